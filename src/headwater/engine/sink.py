"""The end of every batch: run it, put its checkpoint on disk, commit its rows with the ledger, publish its changes.

The order is the promise (docs/reliability.md): offsets planned → batch run → checkpoint synced → rows, ledger, outbox,
late and quarantined events in one transaction → outbox published → offsets committed by Spark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.engine.accounting import Account, account
from headwater.engine.building import Built
from headwater.engine.checkpoint import Planned, planned_batch, sync
from headwater.engine.files import ParquetFolder
from headwater.engine.holding import Hold
from headwater.engine.home import Home
from headwater.engine.outputs import publish
from headwater.engine.points import reach
from headwater.engine.surroundings import Surroundings
from headwater.errors import EngineFailedError
from headwater.log import Topic
from headwater.log.storage.frame import LOWEST_TIME
from headwater.pipelines import Drop
from headwater.store import Aside, Commit, Counts, InputRange, LedgerEntry, ViewTable

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
        self._hold = Hold(around, built.pipeline.name) if around.scratch is None else None
        self._files = ParquetFolder(Path(built.pipeline.path)) if built.pipeline.path else None

    def take(self, frame: DataFrame, batch: int, observed: ObservedRows) -> bool:
        """Run a batch and commit it; False when it was committed before.

        Args:
            frame: What Spark will compute; computed once, here.
            batch: Its number.
            observed: Tells, after the run, how many rows each input gave to the function.
        """
        reach("before-sink")
        began, worked = time.monotonic(), time.thread_time()
        rows = frame.toArrow()  # always: Spark's state moves with it, even if the write is skipped
        planned = planned_batch(self._home.checkpoint, batch, list(self._starts), self._starts)
        asides = self._store.skipped(self._home.query)
        accounts = {name: self._account(name, planned[name], asides) for name in planned}
        self._compare(accounts, planned, observed)
        sync(self._home.checkpoint)
        reach("before-sink-commit")
        entry = LedgerEntry(
            self._home.query,
            batch,
            self._epoch,
            tuple(self._range(name, planned[name], accounts[name]) for name in planned),
            watermark=_watermark(planned),
            committed_at=self._clock.micros(),
            rows=rows.num_rows,
            wall=time.monotonic() - began,
            cpu=time.thread_time() - worked,
        )
        if self._files is not None:
            self._files.stage(batch, rows)
        taken = self._store.commit(self._work(entry, rows, planned, accounts, asides))
        reach("after-sink-commit")
        if self._files is not None:
            self._files.publish(entry)
        publish(self._store, self._log, self._built, self._topic, self._home.query)
        reach("after-publish")
        if self._hold is not None:
            self._hold.note(entry)
        return taken

    def _account(self, name: str, planned: Planned, asides: list[Aside]) -> Account:
        input_ = next(input_ for input_ in self._built.inputs if input_.name == name)
        reading = self._built.reading
        allowed = timedelta(microseconds=reading.lateness(input_)) if reading.late else None
        skipped = {(aside.partition, aside.offset) for aside in asides if aside.topic == input_.topic.name}
        return account(self._log, input_, planned, allowed, skipped)

    def _compare(
        self, accounts: Mapping[str, Account], planned: Mapping[str, Planned], observed: ObservedRows
    ) -> None:
        """Two counts of the same thing: what the log says Spark was given, and what Spark says it was given."""
        for name, counted in accounts.items():
            seen = observed(name)
            ticks = int(planned[name].watermark > LOWEST_TIME and planned[name].start != planned[name].end)
            if seen is not None and seen - ticks != counted.ready:
                raise EngineFailedError(
                    f'{self._built.pipeline} counts {seen - ticks} events of "{name}", the log {counted.ready}',
                    detail="nothing of this batch was committed; it will be run again",
                    query=self._home.query,
                )

    def _range(self, name: str, planned: Planned, counted: Account) -> InputRange:
        late = len(counted.late)
        dropping = isinstance(self._built.pipeline.late, Drop)
        counts = Counts(
            in_=counted.in_,
            used=counted.ready,
            late=0 if dropping else late,
            quarantined=counted.left_out,
            dropped=counted.deleted + (late if dropping else 0),
        )
        topic = next(input_.topic.name for input_ in self._built.inputs if input_.name == name)
        return InputRange(topic, planned.start, planned.end, counts)

    def _work(
        self,
        entry: LedgerEntry,
        rows: pa.Table,
        planned: Mapping[str, Planned],
        accounts: Mapping[str, Account],
        asides: list[Aside],
    ) -> Commit:
        keeping = not isinstance(self._built.pipeline.late, Drop)
        late = tuple(aside for counted in accounts.values() for aside in counted.late)
        too_late = {(aside.topic, aside.partition, aside.offset) for aside in late}
        topics = {input_.name: input_.topic.name for input_ in self._built.inputs}
        read = {topics[name]: range_ for name, range_ in planned.items()}
        left_out = [aside for aside in asides if aside.topic in read and _within(read[aside.topic], aside)]
        return Commit(
            entry,
            self._table,
            rows.cast(self._built.schema) if self._files is None else rows.slice(0, 0),
            late=late if keeping else (),
            quarantined=tuple(a for a in left_out if (a.topic, a.partition, a.offset) not in too_late),
            finals=self._built.finals,
        )


class ObservedRows:
    """How many rows Spark counted behind each input, read from the batch that has just run."""

    def __init__(self, query: Any) -> None:
        self._execution = query._jsq.streamingQuery().lastExecution()

    def __call__(self, name: str) -> int | None:
        """The count; None when Spark found that it need not read the input at all."""
        found = self._execution.observedMetrics().get(name)
        return int(found.get().getLong(0)) if found.isDefined() else None


def _within(planned: Planned, aside: Aside) -> bool:
    return planned.start[aside.partition] <= aside.offset < planned.end[aside.partition]


def _watermark(planned: Mapping[str, Planned]) -> int | None:
    lowest = min(input_.watermark for input_ in planned.values())
    return lowest if lowest > LOWEST_TIME else None
