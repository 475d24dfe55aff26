"""The sink of a query: runs each batch, syncs its checkpoint, commits its rows and ledger entry, and publishes.

The order of steps makes a crash safe (docs/guarantees.md): offsets planned → batch run → checkpoint synced → rows,
ledger, outbox, late and quarantined events committed in one transaction → outbox published → offsets committed by
Spark.

`OffsetReport` reports the committed offsets of a query to the log as a consumer group. Retention waits for them, and
other tools can show the lag.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.engine.build.build import BuiltQuery
from headwater.engine.context import EngineContext, QueryDirectory
from headwater.engine.failpoints import failpoint
from headwater.engine.sink.accounting import BatchAccounting, ObservedRows
from headwater.engine.sink.checkpoint import PlannedInput, read_planned_batch
from headwater.engine.sink.files import ParquetFolder, Staging, stage_in_store
from headwater.engine.sink.publisher import publish
from headwater.engine.sink.stateful_stage import StageResult, StatefulStage, last_by_key, to_changes, to_upserts
from headwater.engine.state.state import SINCE, WEIGHT
from headwater.engine.tables.zset import distinct_rows, sum_weights
from headwater.errors import HeadwaterError, KeyNotUniqueError
from headwater.log import Topic
from headwater.log.protocol import Log
from headwater.pipelines import DropLate
from headwater.store import Commit, LedgerEntry, StagedPart, ViewTable

__all__ = ["OffsetReport", "Sink", "consumer_group"]

logger = logging.getLogger("headwater.engine")
_REPORT_INTERVAL: Final = 2.0


def consumer_group(pipeline: str) -> str:
    """Returns the consumer group of a pipeline.

    Example:
        >>> consumer_group("revenue")
        'hw.pipeline.revenue'
    """
    return f"hw.pipeline.{pipeline}"


class OffsetReport:
    """Reports the committed offsets of one pipeline, at most every two seconds and always at the end.

    Being behind only keeps events longer. So does a failure to write: it is no reason to stop a pipeline.

    Args:
        log: Whose group it is.
        pipeline: Its name.
    """

    def __init__(self, log: Log, pipeline: str) -> None:
        self._log = log
        self._group = consumer_group(pipeline)
        # Guards the pending entry and the timer; it is not held while offsets are written to the log.
        self._lock = threading.Lock()
        self._pending: LedgerEntry | None = None
        self._flushed_at = 0.0
        self._timer: threading.Timer | None = None

    def record(self, entry: LedgerEntry) -> None:
        """Record that events below the ends of this entry are no longer needed."""
        with self._lock:
            self._pending = entry
            delay = self._flushed_at + _REPORT_INTERVAL - time.monotonic()
            if delay > 0 and self._timer is None:
                self._timer = threading.Timer(delay, self.flush)
                self._timer.daemon = True
                self._timer.start()
        if delay <= 0:
            self.flush()

    def flush(self) -> None:
        """Write the last recorded offsets, if they are not yet written."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            entry, self._pending, self._timer = self._pending, None, None
            self._flushed_at = time.monotonic()
            try:
                for read in entry.inputs if entry else ():
                    self._log.groups.reset(self._group, read.topic, read.end)
            except HeadwaterError as error:
                logger.warning("%s: how far it is cannot be written down: %s", self._group, error)


class Sink:
    """Processes the batches of one query.

    Args:
        built: The pipeline.
        directory: Its folder.
        context: The log its events come from, the store its rows go to.
        epoch: Which runner this is.
        table: The view's table; None for a stream.
        topic: What is published to.
        starts: Where the query began to read each input.
    """

    def __init__(
        self,
        built: BuiltQuery,
        directory: QueryDirectory,
        context: EngineContext,
        *,
        epoch: int,
        table: ViewTable | None,
        topic: Topic | None,
        starts: Mapping[str, Mapping[int, int]],
    ) -> None:
        self._built = built
        self._directory = directory
        self._store = context.store
        self._log = context.log
        self._clock = context.clock
        self._epoch = epoch
        self._table = table
        self._topic = topic
        self._starts = starts
        self._staging = Staging(directory.staging_folder) if directory.staging_folder else None
        self._stage_above = context.stage_above
        self._stateful_stage: StatefulStage | None = None
        if built.sink_stage is not None:
            has_commits = context.store.last_entry(directory.query_id) is not None
            self._stateful_stage = StatefulStage(
                built.sink_stage, context.store.state_store(directory.query_id), has_commits=has_commits
            )
        self._rows_per_event = 1.0  # result rows per event in the last batch
        self._offset_report = OffsetReport(context.log, built.pipeline.name) if context.scratch is None else None
        self._files = ParquetFolder(context.data / built.pipeline.path) if built.pipeline.path else None

    def process_batch(self, frame: DataFrame, batch: int, observed: ObservedRows) -> bool:
        """Run a batch and commit it; returns False if it was committed before.

        Args:
            frame: What Spark will compute; computed once, here.
            batch: The batch number.
            observed: Tells, after the run, how many rows each input gave to the function.
        """
        failpoint("before-sink")
        # A replaced driver must not run the batch: it would write to the state of its successor.
        self._store.check_epoch(self._directory.query_id, self._epoch)
        began, cpu_began = time.monotonic(), time.thread_time()
        planned = read_planned_batch(self._directory.checkpoint, batch, list(self._starts), self._starts)
        # Always run the batch, even if its commit is skipped: Spark's own state advances with it.
        rows, parts = self._compute(frame, batch, _offset_count(planned))
        accounting = BatchAccounting(self._built, planned, self._store.skips(self._directory.query_id), self._log)
        accounting.reconcile(observed)
        # The checkpoint must be durable before the ledger names the batch: after a power failure a committed batch
        # without its offsets could not be identified.
        self._directory.checkpoint.sync()
        result = self._run_stage(batch, rows, accounting.complete)
        accounting = replace(
            accounting, refused=(*observed.rejections(self._built.quarantine_metrics), *result.refused)
        )
        failpoint("before-sink-commit")
        state_sizes = observed.state_sizes(self._built.state_metrics)
        commit = self._build_commit(batch, result.rows, accounting, began, cpu_began)
        commit = replace(commit, staged=parts, states=result.states, state_sizes=state_sizes)
        if self._files is not None:
            # Staged before and named in the manifest after the commit: both steps are idempotent, so a crash between
            # them neither loses nor repeats the file.
            self._files.stage(batch, rows)
        committed = self._commit(commit)
        if self._stateful_stage is not None:
            self._stateful_stage.on_commit()
        failpoint("after-sink-commit")
        if self._files is not None:
            self._files.publish(commit.entry)
        # A crash before this line leaves the outbox in the store; `Query.start` publishes it.
        publish(self._store, self._log, self._built, self._topic, self._directory.query_id)
        failpoint("after-publish")
        if self._offset_report is not None:
            self._offset_report.record(commit.entry)
        if self._staging is not None:
            self._staging.clear()
        return committed

    def close(self) -> None:
        """Write the offset report."""
        if self._offset_report is not None:
            self._offset_report.flush()

    def _compute(self, frame: DataFrame, batch: int, events: int) -> tuple[pa.Table, tuple[StagedPart, ...]]:
        """Compute the rows; a result is staged if the previous batch suggests that it is large."""
        rows = self._built.schema.empty_table()
        parts: tuple[StagedPart, ...] = ()
        if events * self._rows_per_event <= self._stage_above or self._stateful_stage is not None:
            rows = frame.toArrow()
        elif (stager := self._store.stager()) and self._table is not None and not self._built.has_weights:
            parts = stage_in_store(stager, self._table, batch, frame)
        else:
            rows = self._staging.run(frame) if self._staging else frame.toArrow()
        count = rows.num_rows + sum(part.rows for part in parts)
        self._rows_per_event = count / events if events else self._rows_per_event
        return rows, parts

    def _run_stage(self, batch: int, rows: pa.Table, watermark: int) -> StageResult:
        """Run the stateful stage; skipped for a batch that was committed before, whose state already includes it."""
        if self._stateful_stage is None:
            return StageResult(rows)
        if self._store.entry(self._directory.query_id, batch) is not None:
            return StageResult(self._built.schema.empty_table())
        return self._stateful_stage.run(rows, watermark)

    def _commit(self, commit: Commit) -> bool:
        try:
            return self._store.commit(commit)
        except KeyNotUniqueError:
            rows = distinct_rows(commit.rows)
            if rows.num_rows == commit.rows.num_rows and not commit.staged:
                raise
            return self._store.commit(replace(commit, rows=rows, distinct=True))

    def _build_commit(
        self, batch: int, rows: pa.Table, accounting: BatchAccounting, began: float, cpu_began: float
    ) -> Commit:
        """Returns the commit of the batch."""
        accounts = accounting.accounts()
        late = tuple(aside for counted in accounts.values() for aside in counted.late)
        deletes: pa.Table | None = None
        changes: pa.Table | None = None
        if SINCE in rows.column_names and self._table is not None:
            changes = to_changes(rows, self._table)
            rows = last_by_key(rows, self._table.key).drop_columns([SINCE])
        if WEIGHT in rows.column_names:
            rows, deletes = to_upserts(
                sum_weights(rows) if self._stateful_stage is None else rows, self._built.pipeline.key
            )
        entry = LedgerEntry(
            self._directory.query_id,
            batch,
            self._epoch,
            accounting.input_ranges(accounts),
            accounting.watermark,
            committed_at=self._clock.micros(),
            wall=time.monotonic() - began,
            cpu=time.thread_time() - cpu_began,
        )
        return Commit(
            entry,
            self._table,
            rows.cast(self._built.schema) if self._files is None else rows.slice(0, 0),
            late=() if isinstance(self._built.pipeline.late, DropLate) else late,
            quarantined=accounting.to_quarantine(late) + tuple(a for one in accounts.values() for a in one.unreadable),
            finals=self._built.marks_final_rows,
            deletes=deletes,
            changes=changes,
        )


def _offset_count(planned: Mapping[str, PlannedInput]) -> int:
    """Returns the number of offsets that a batch covers."""
    return sum(end - read.start[p] for read in planned.values() for p, end in read.end.items())
