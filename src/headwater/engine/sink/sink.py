"""The sink of a query: runs each batch, syncs its checkpoint, commits its rows and ledger entry, and publishes.

The order of steps makes a crash safe at every point (docs/guarantees.md):

1. Spark writes the planned offsets of the batch to its checkpoint.
2. The batch runs, and its counts are compared with the log.
3. The checkpoint is synced, so that planned offsets and state survive a power failure.
4. One transaction commits rows, ledger entry, operator state, outbox, late and quarantined events.
5. The outbox is published to the output topic, each batch once.
6. Spark writes the batch to the commit log of its checkpoint.

After a crash before step 6, Spark runs the batch again with the same offsets. If step 4 was done, the ledger has the
batch, and the commit is skipped. If a batch number comes with other offsets, the store refuses it.

`OffsetReport` reports the committed offsets of a query to the log as a consumer group. Retention waits for them, and
other tools can show the lag.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.engine.build.build import BuiltQuery
from headwater.engine.context import EngineContext, QueryDirectory
from headwater.engine.failpoints import failpoint
from headwater.engine.quarantine.failure_limit import OperatorFailures
from headwater.engine.sink.accounting import BatchAccounting, ObservedRows, Rejection
from headwater.engine.sink.checkpoint import PlannedInput, read_planned_batch
from headwater.engine.sink.files import ParquetFolder, Staging, stage_in_store
from headwater.engine.sink.publisher import check_event_sizes, publish, unchecked_size
from headwater.engine.sink.stateful_stage import (
    StageResult,
    StatefulStage,
    inserted_keys,
    last_by_key,
    to_changes,
    to_upserts,
)
from headwater.engine.state.state import SINCE, WEIGHT
from headwater.engine.tables.zset import distinct_rows, sum_weights
from headwater.errors import DamagedError, HeadwaterError, KeyNotUniqueError, UnknownGroupError, UnreachableError
from headwater.log import Topic
from headwater.log.consumer_groups import PIPELINE_GROUP_PREFIX
from headwater.log.protocol import TimedLog
from headwater.pipelines import DropLate
from headwater.store import Commit, LedgerEntry, OffsetRange, StagedPart, ViewTable

__all__ = ["OffsetReport", "Sink", "ViewRows", "choose_destination", "to_view_rows"]

logger = logging.getLogger("headwater.engine")
_REPORT_INTERVAL: Final = 2.0  # seconds


class OffsetReport:
    """Reports the committed offsets of one pipeline, at most every two seconds and always at the end.

    The consumer group of a pipeline is named `hw.pipeline.NAME`. A late or failed report only delays retention, so it
    never stops a pipeline.

    Args:
        log: The log that has the consumer group.
        pipeline: The name of the pipeline.
    """

    def __init__(self, log: TimedLog, pipeline: str) -> None:
        self._log = log
        self._pipeline = pipeline
        self._group = f"{PIPELINE_GROUP_PREFIX}{pipeline}"
        # Guards the fields below, and orders writes to the log: an older report never follows a newer one.
        self._lock = threading.Lock()
        self._pending: LedgerEntry | None = None
        self._flushed_at = 0.0
        self._timer: threading.Timer | None = None

    def begin(self, starts: Mapping[str, Mapping[int, int]]) -> None:
        """Report the start offsets of topics that the group has none of.

        From then on the log knows which topics the pipeline reads, although nothing may ever be committed: a topic
        without events follows the other inputs of its readers.
        """
        for topic, offsets in starts.items():
            try:
                self._log.groups.state(self._group, topic)
            except (UnknownGroupError, DamagedError):  # a report is not synced, so a power failure may tear it
                self._report(topic, offsets)
            except UnreachableError:  # the pipeline could not read either, and waits
                raise
            except HeadwaterError as error:
                logger.warning("%s: the committed offsets are unknown: %s", self._group, error)

    def delete_others(self, topics: Collection[str]) -> None:
        """Delete the offsets on topics that the pipeline no longer reads, such as those of older versions of a view.

        They hold back retention, and a topic without events would wait for their watermark, which stands still.
        """
        try:
            for topic in set(self._log.groups.pipeline_inputs().get(self._pipeline, ())) - set(topics):
                self._log.groups.delete(self._group, topic)
        except HeadwaterError as error:
            logger.warning("%s: the offsets on topics of before were not deleted: %s", self._group, error)

    def _report(self, topic: str, offsets: Mapping[int, int]) -> None:
        try:
            self._log.groups.report(self._group, topic, offsets)
        except HeadwaterError as error:
            logger.warning("%s: the committed offsets were not reported: %s", self._group, error)

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
            for read in entry.inputs if entry else ():
                self._report(read.topic, read.end)


def choose_destination(
    expected: float, limit: int, *, needs_rows: bool, store: bool, folder: bool, large: bool = False
) -> Literal["driver", "store", "files"]:
    """Decide where the result of a batch goes: large results must not pass through the memory of the driver.

    Args:
        expected: The expected number of rows.
        limit: The number of rows up to which the driver collects them.
        needs_rows: Whether the driver itself processes every row.
        store: Whether workers can send rows of this query directly to the store.
        folder: Whether workers share a folder with the driver.
        large: Whether the expected bytes exceed the limit of a batch, however few rows they are.
    """
    if needs_rows or (expected <= limit and not large):
        return "driver"
    if store:
        return "store"
    return "files" if folder else "driver"


@dataclass(frozen=True)
class ViewRows:
    """The rows of a batch as the store takes them; the fields are those of `Commit`."""

    rows: pa.Table
    deletes: pa.Table | None = None
    changes: pa.Table | None = None
    inserts: pa.Table | None = None


def to_view_rows(rows: pa.Table, table: ViewTable | None, *, consolidate: bool, check_key: bool) -> ViewRows:
    """Returns the rows to upsert, the keys to delete, the changes to publish, and the keys that must be new.

    Args:
        rows: The result of a batch: plain rows, Z-set rows, or Z-set rows with the time from which each is valid.
        table: The view's table; None for a stream, whose rows are always plain.
        consolidate: Whether weights of equal rows must be summed first.
        check_key: Whether the plan does not prove that the key is unique.
    """
    if table is None or WEIGHT not in rows.column_names:
        return ViewRows(rows)
    changes = None
    if SINCE in rows.column_names:
        changes = to_changes(rows, table)
        rows = last_by_key(rows, table.key).drop_columns([SINCE])
    rows = sum_weights(rows) if consolidate else rows
    return ViewRows(*to_upserts(rows, table.key), changes, inserted_keys(rows, table.key) if check_key else None)


class Sink:
    """Processes the batches of one query.

    Args:
        built: The query.
        directory: Its directory.
        context: The engine context.
        epoch: The epoch of this run; the store refuses commits of an older one.
        table: The view's table; None for a stream.
        topic: The output topic, if there is one.
        starts: The start offsets of the query, by name of the input.
        check_inputs: Called before each commit with the start offsets of the batch; raises if the log has removed
            something that belongs to the batch.
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
        check_inputs: Callable[[Mapping[str, Mapping[int, int]]], None] = lambda positions: None,
    ) -> None:
        self._built = built
        self._directory = directory
        self._context = context
        self._store = context.store
        self._epoch = epoch
        self._table = table
        self._topic = topic
        self._starts = starts
        self._check_inputs = check_inputs
        self._staging = Staging(directory.staging_folder) if directory.staging_folder else None
        self._stateful_stage: StatefulStage | None = None
        if built.sink_stage is not None:
            states = self._store.state_store(directory.query_id)
            has_commits = self._store.last_entry(directory.query_id) is not None
            self._stateful_stage = StatefulStage(built.sink_stage, states, has_commits=has_commits)
        self._failures = OperatorFailures(built.pipeline)
        self._rows_per_event = 1.0  # result rows per event in the last batch
        self._bytes_per_event = 0.0  # bytes of the result per event in the last batch
        self._offset_report = OffsetReport(context.log, built.pipeline.name) if context.scratch is None else None
        if self._offset_report is not None:
            self._offset_report.begin({each.topic.name: starts[each.name] for each in built.inputs})
        self._files = ParquetFolder(context.data / built.pipeline.path) if built.pipeline.path else None

    def process_batch(self, frame: DataFrame, batch: int, observed: ObservedRows) -> bool:
        """Run a batch and commit it; returns False if it was committed before.

        Args:
            frame: The lazy result of the batch; it must be computed exactly once.
            batch: The batch number.
            observed: Returns, after the run, the number of rows that each input delivered.
        """
        failpoint("before-sink")
        # A replaced driver must not run the batch: it would write to the Spark state of its successor.
        self._store.check_epoch(self._directory.query_id, self._epoch)
        began, cpu_began = time.monotonic(), time.thread_time()
        planned = read_planned_batch(self._directory.checkpoint, batch, list(self._starts), self._starts)
        # The batch always runs to its end, even if its commit is then skipped: Spark commits the state of a partition
        # only after its last row was read, and refuses the next batch if one is missing.
        rows, parts = self._compute(frame, batch, planned)
        skipped = self._store.skips(self._directory.query_id, self._offset_ranges(planned))
        takes_retries = any(read.retries for read in planned.values())
        retries = self._store.retries(self._directory.query_id) if takes_retries else ()
        accounting = BatchAccounting(self._built, planned, skipped, self._context.log, retries)
        accounting.reconcile(observed)
        if self._built.spark_steps:
            accounting.check_dropped_rows(observed.dropped_rows(self._built.spark_steps))
        self._check_inputs({name: read.start for name, read in planned.items()})
        # The checkpoint must be durable before the ledger names the batch: after a power failure a committed batch
        # without its planned offsets could not be identified.
        self._directory.checkpoint.sync()
        result = self._run_stage(batch, rows, accounting)
        rejections = self._judge_rejections(observed, result, accounting)
        failpoint("before-sink-commit")
        commit = self._build_commit(batch, result, accounting, rejections, (began, cpu_began))
        commit = replace(commit, staged=parts, state_sizes=observed.state_sizes(self._built.state_metrics))
        check_event_sizes(self._context.log, self._topic, self._built, commit.rows, commit.changes)
        if self._files is not None:
            # The file is staged before and named in the manifest after the commit: both steps are idempotent, so a
            # crash between them neither loses nor repeats it.
            self._files.stage(batch, rows)
        committed = self._commit(commit)
        if self._stateful_stage is not None:
            self._stateful_stage.on_commit()
        failpoint("after-sink-commit")
        if self._files is not None:
            self._files.publish(commit.entry)
        # After a crash before this line the outbox is still in the store; `Query.start` publishes it.
        publish(self._store, self._context.log, self._built, self._topic, self._directory.query_id)
        failpoint("after-publish")
        if self._offset_report is not None:
            self._offset_report.record(commit.entry)
        if self._staging is not None:
            self._staging.clear()
        events = sum(read.counts.used for read in commit.entry.inputs)
        self._context.start_report.record_batch(self._built.pipeline.name, events)
        return committed

    def close(self) -> None:
        """Report the last committed offsets."""
        if self._offset_report is not None:
            self._offset_report.flush()

    def _offset_ranges(self, planned: Mapping[str, PlannedInput]) -> list[OffsetRange]:
        """Returns the offsets of a batch, of each topic once."""
        topics = {read.name: read.topic.name for read in self._built.inputs}
        return sorted(
            {(topics[name], p, read.start[p], end) for name, read in planned.items() for p, end in read.end.items()}
        )

    def _compute(
        self, frame: DataFrame, batch: int, planned: Mapping[str, PlannedInput]
    ) -> tuple[pa.Table, tuple[StagedPart, ...]]:
        """Compute the rows; a result is staged if the previous batch suggests that it is large."""
        events = sum(end - read.start[p] for read in planned.values() for p, end in read.end.items())
        rows = self._built.schema.empty_table()
        parts: tuple[StagedPart, ...] = ()
        stager = self._store.stager() if self._table is not None and not self._built.has_weights else None
        destination = choose_destination(
            events * self._rows_per_event,
            self._context.stage_above,
            needs_rows=self._stateful_stage is not None,
            store=stager is not None,
            folder=self._staging is not None,
            large=events * self._bytes_per_event > self._context.batch_size,
        )
        if destination == "store" and stager is not None and self._table is not None:
            parts, large = stage_in_store(stager, self._table, batch, frame, unchecked_size(self._table.schema))
            check_event_sizes(self._context.log, self._topic, self._built, large)
        elif destination == "files" and self._staging is not None:
            rows = self._staging.run(frame)
        else:
            rows = frame.toArrow()
        count = rows.num_rows + sum(part.rows for part in parts)
        if events:
            size = rows.nbytes + sum(part.size for part in parts)
            self._rows_per_event, self._bytes_per_event = count / events, size / events
        return rows, parts

    def _run_stage(self, batch: int, rows: pa.Table, accounting: BatchAccounting) -> StageResult:
        """Run the stateful stage; skipped for a batch that was committed before, whose state already includes it."""
        if self._stateful_stage is None:
            return StageResult(rows)
        if self._store.entry(self._directory.query_id, batch) is not None:
            return StageResult(self._built.schema.empty_table())
        watermarks = {name: planned.watermark for name, planned in accounting.planned.items()}
        return self._stateful_stage.run(rows, accounting.complete, watermarks)

    def _judge_rejections(
        self, observed: ObservedRows, result: StageResult, accounting: BatchAccounting
    ) -> tuple[Rejection, ...]:
        """Returns the events that operators reject.

        Raises:
            TooManyFailuresError: A function that an operator calls fails on too many events.
        """
        rejections = (*observed.rejections(self._built.quarantine_metrics), *result.refused)
        events = sum(account.ready for account in accounting.accounts.values())
        self._failures.check(events, [reason for _, _, reason in rejections])
        return rejections

    def _commit(self, commit: Commit) -> bool:
        try:
            return self._store.commit(commit)
        except KeyNotUniqueError:  # equal rows of one key, from an event that was sent twice, count as one row
            rows = distinct_rows(commit.rows) if commit.merge_equal else commit.rows
            if rows.num_rows == commit.rows.num_rows and not commit.staged:
                raise
            return self._store.commit(replace(commit, rows=rows, distinct=True))

    def _build_commit(
        self,
        batch: int,
        result: StageResult,
        accounting: BatchAccounting,
        rejections: Sequence[Rejection],
        began: tuple[float, float],
    ) -> Commit:
        view = to_view_rows(
            result.rows,
            self._table,
            consolidate=self._stateful_stage is None,
            check_key=self._built.checks_key,
        )
        entry = LedgerEntry(
            self._directory.query_id,
            batch,
            self._epoch,
            accounting.input_ranges(rejections),
            accounting.watermark,
            committed_at=self._context.clock.micros(),
            wall=time.monotonic() - began[0],
            cpu=time.thread_time() - began[1],
        )
        return Commit(
            entry,
            self._table,
            view.rows.cast(self._built.schema) if self._files is None else view.rows.slice(0, 0),
            late=() if isinstance(self._built.pipeline.late, DropLate) else accounting.late,
            quarantined=accounting.events_to_quarantine(rejections),
            retried=accounting.retried,
            finals=self._built.marks_final_rows,
            deletes=view.deletes,
            inserts=view.inserts,
            # Two equal rows of views are two rows; only an event can be sent twice.
            merge_equal=any(input_.row_behaviour is None for input_ in self._built.inputs),
            states=result.states,
            changes=view.changes,
        )
