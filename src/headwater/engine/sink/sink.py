"""The end of every batch: run it, put its checkpoint on disk, commit its rows with the ledger, publish its changes.

The order is the promise (docs/guarantees.md): offsets planned → batch run → checkpoint synced → rows, ledger, outbox,
late and quarantined events in one transaction → outbox published → offsets committed by Spark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.engine.building.build import Built
from headwater.engine.building.weighted import distinct, net
from headwater.engine.home import Home
from headwater.engine.keyed.operator import SINCE, WEIGHT
from headwater.engine.points import reach
from headwater.engine.sink.bookkeeping import Books, ObservedRows
from headwater.engine.sink.checkpoint import Planned, planned_batch
from headwater.engine.sink.files import ParquetFolder
from headwater.engine.sink.holding import Hold
from headwater.engine.sink.outputs import publish
from headwater.engine.sink.remembering import Made, Remembering, settled
from headwater.engine.sink.staging import Staging, staged_in
from headwater.engine.sink.versions import changes_in, last_of_each
from headwater.engine.surroundings import Surroundings
from headwater.errors import KeyNotUniqueError
from headwater.log import Topic
from headwater.pipelines import Drop
from headwater.store import Commit, LedgerEntry, StagedPart, ViewTable

__all__ = ["Sink"]


class Sink:
    """Takes the batches of one query.

    Args:
        built: The pipeline.
        home: Its folder.
        around: The log its events come from, the store its rows go to.
        epoch: Which runner this is.
        table: The view's table; None for a stream.
        topic: What is published to.
        starts: Where the query began to read each input.
    """

    def __init__(
        self,
        built: Built,
        home: Home,
        around: Surroundings,
        *,
        epoch: int,
        table: ViewTable | None,
        topic: Topic | None,
        starts: Mapping[str, Mapping[int, int]],
    ) -> None:
        self._built = built
        self._home = home
        self._store = around.store
        self._log = around.log
        self._clock = around.clock
        self._epoch = epoch
        self._table = table
        self._topic = topic
        self._starts = starts
        self._staging = Staging(home.staged) if home.staged else None
        self._stage_above = around.stage_above
        self._memory: Remembering | None = None
        if built.after_spark is not None:
            begun = around.store.last(home.query) is not None
            self._memory = Remembering(built.after_spark, around.store.states(home.query), begun=begun)
        self._yield = 1.0  # rows that the last batch made of one event
        self._hold = Hold(around.log, built.pipeline.name) if around.scratch is None else None
        self._files = ParquetFolder(around.data / built.pipeline.path) if built.pipeline.path else None

    def take(self, frame: DataFrame, batch: int, observed: ObservedRows) -> bool:
        """Run a batch and commit it; False when it was committed before.

        Args:
            frame: What Spark will compute; computed once, here.
            batch: Its number.
            observed: Tells, after the run, how many rows each input gave to the function.
        """
        reach("before-sink")
        # A driver that was replaced must not run either: the state it would write is the next one's.
        self._store.require(self._home.query, self._epoch)
        began, worked = time.monotonic(), time.thread_time()
        planned = planned_batch(self._home.checkpoint, batch, list(self._starts), self._starts)
        # Always run: Spark's state moves with it, even if the write is skipped.
        rows, parts = self._run(frame, batch, _events(planned))
        books = Books(self._built, planned, self._store.skipped(self._home.query), self._log)
        books.require_equal(observed)
        self._home.checkpoint.settle()
        made = self._remembered(batch, rows, books.complete)
        books = replace(books, refused=(*observed.refused(self._built.refusing), *made.refused))
        reach("before-sink-commit")
        kept = observed.kept(self._built.keeping)
        work = self._work(batch, made.rows, books, began, worked)
        work = replace(work, staged=parts, states=made.states, kept=kept)
        if self._files is not None:
            self._files.stage(batch, rows)
        taken = self._commit(work)
        if self._memory is not None:
            self._memory.committed()
        reach("after-sink-commit")
        if self._files is not None:
            self._files.publish(work.entry)
        publish(self._store, self._log, self._built, self._topic, self._home.query)
        reach("after-publish")
        if self._hold is not None:
            self._hold.note(work.entry)
        if self._staging is not None:
            self._staging.clear()
        return taken

    def close(self) -> None:
        """Write down how far it has come."""
        if self._hold is not None:
            self._hold.write()

    def _run(self, frame: DataFrame, batch: int, events: int) -> tuple[pa.Table, tuple[StagedPart, ...]]:
        """Compute the rows. A large result is staged; how large it will be, the batch before tells."""
        rows = self._built.schema.empty_table()
        parts: tuple[StagedPart, ...] = ()
        if events * self._yield <= self._stage_above or self._memory is not None:
            rows = frame.toArrow()
        elif (stager := self._store.stager()) and self._table is not None and not self._built.weighted:
            parts = staged_in(stager, self._table, batch, frame)
        else:
            rows = self._staging.run(frame) if self._staging else frame.toArrow()
        made = rows.num_rows + sum(part.rows for part in parts)
        self._yield = made / events if events else self._yield
        return rows, parts

    def _remembered(self, batch: int, rows: pa.Table, watermark: int) -> Made:
        """What an operator with state makes of the rows; a batch that was committed before is in its state already."""
        if self._memory is None:
            return Made(rows)
        if self._store.entry(self._home.query, batch) is not None:
            return Made(self._built.schema.empty_table())
        return self._memory.run(rows, watermark)

    def _commit(self, work: Commit) -> bool:
        try:
            return self._store.commit(work)
        except KeyNotUniqueError:
            rows = distinct(work.rows)
            if rows.num_rows == work.rows.num_rows and not work.staged:
                raise
            return self._store.commit(replace(work, rows=rows, distinct=True))

    def _work(self, batch: int, rows: pa.Table, books: Books, began: float, worked: float) -> Commit:
        """All that the batch leaves behind."""
        accounts = books.accounts()
        late = tuple(aside for counted in accounts.values() for aside in counted.late)
        deletes: pa.Table | None = None
        changes: pa.Table | None = None
        if SINCE in rows.column_names and self._table is not None:
            changes = changes_in(rows, self._table)
            rows = last_of_each(rows, self._table.key).drop_columns([SINCE])
        if WEIGHT in rows.column_names:
            rows, deletes = settled(net(rows) if self._memory is None else rows, self._built.pipeline.key)
        entry = LedgerEntry(
            self._home.query,
            batch,
            self._epoch,
            books.ranges(accounts),
            books.watermark,
            committed_at=self._clock.micros(),
            wall=time.monotonic() - began,
            cpu=time.thread_time() - worked,
        )
        return Commit(
            entry,
            self._table,
            rows.cast(self._built.schema) if self._files is None else rows.slice(0, 0),
            late=() if isinstance(self._built.pipeline.late, Drop) else late,
            quarantined=books.quarantined(late)
            + tuple(a for one in accounts.values() for a in one.unreadable),
            finals=self._built.finals,
            deletes=deletes,
            changes=changes,
        )


def _events(planned: Mapping[str, Planned]) -> int:
    """How many offsets a batch covers."""
    return sum(end - read.start[p] for read in planned.values() for p, end in read.end.items())
