"""Count and sum per key, with state in several places, over the same events from the same source."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

import headwater as hw
from benchmarks.measure import Lap
from benchmarks.process_tree import compiler_cpu, tree_cpu
from benchmarks.spine_events import EVENTS_DDL, batches
from headwater.engine.build.build import new_session
from headwater.engine.build.inputs import Input, InputOptions, stream_inputs
from headwater.engine.build.placement import KEY_GROUPS
from headwater.engine.build.sink_stage import SinkStage, StageInput
from headwater.engine.operators.stateful import VectorizedStateful
from headwater.engine.sink.stateful_stage import StatefulStage
from headwater.engine.state.spark_host import apply_in_spark
from headwater.engine.state.state import OFFSET, PARTITION, Operator
from headwater.log import EventLog
from headwater.store import Commit, LedgerEntry, SqliteDialect, SqlStore

__all__ = ["HOSTS", "PER_KEY", "SQL", "Query", "Topic", "counting", "make_filled_topic", "make_topic", "run"]

_QUERY = "counted@1"
_FILL = 250_000
_RESULT = "customer int, n bigint, total double"


@dataclass(frozen=True)
class Topic:
    """Events in a log, read in batches of `batch`; the events of `filled`, if given, come first."""

    folder: Path
    events: int
    keys: int
    batch: int
    filled: Topic | None = None


@dataclass(frozen=True)
class Query:
    """One way to count and sum; our operators also need the position of rows in their topic (`placed`).

    `operator` runs after Spark; its state is committed to a store with a ledger entry.
    """

    build: Callable[[DataFrame], DataFrame]
    mode: str = "append"
    placed: bool = False
    operator: Operator | None = None


def _with_topic(folder: Path) -> hw.Client:
    client = hw.connect(folder)
    client.create_topic("events", EVENTS_DDL, key="customer", time="at", lateness="10 seconds", partitions=4)
    return client


def make_topic(folder: Path, *, events: int, keys: int, batch: int) -> Topic:
    """Write the events, in frames small enough for the batch size."""
    client = _with_topic(folder)
    for group in batches(events, keys, min(batch, 25_000)):
        client.send_many("events", group)
    client.log.close()
    return Topic(folder, events, keys, batch)


def make_filled_topic(folder: Path, *, events: int, keys: int, batch: int) -> Topic:
    """Write one event of each key, then the same events."""
    filled = folder.with_name(f"{folder.name}-filled")
    client = _with_topic(filled)
    for group in batches(keys, keys, _FILL):
        client.send_many("events", group.set_column(1, "customer", group["event_id"].cast("int32")))
    client.log.close()
    shutil.copytree(filled, folder)
    client = hw.connect(folder)
    for group in batches(events, keys, batch):
        later = pc.add(group["at"], pa.scalar(3_600_000_000, pa.duration("us")))
        client.send_many("events", group.set_column(5, "at", later))
    client.log.close()
    return Topic(folder, events, keys, batch, Topic(filled, keys, keys, _FILL))


def _sql(events: DataFrame) -> DataFrame:
    grouped = events.groupBy("customer")
    return grouped.agg(F.count(F.lit(1)).alias("n"), F.sum("amount").alias("total"))


SQL = Query(_sql, "update")
"""Spark's aggregate."""


def _added(
    events: pa.Table, at: npt.NDArray[np.int64], states: dict[str, npt.NDArray[Any]], keys: pa.Table
) -> pa.Table:
    states["n"] += np.bincount(at, minlength=len(keys))
    states["total"] += np.bincount(at, events["amount"].to_numpy(), minlength=len(keys))
    return pa.table({"customer": keys["customer"], **states})


def counting() -> Operator:
    """Returns an operator that counts and sums, for all keys of a batch at once."""
    schema = pa.schema([("customer", pa.int32()), ("amount", pa.float64())])
    state = "n bigint, total double"
    return VectorizedStateful(schema, by=["customer"], fn=_added, returns=_RESULT, state=state)


HOSTS: dict[str, Query] = {
    "in Spark": Query(
        lambda events: apply_in_spark(counting(), [events], times=["at"], key_groups=KEY_GROUPS, metric="kept"),
        placed=True,
    ),
    "at the sink": Query(lambda events: events, placed=True, operator=counting()),
}
"""The hosts of our operator: one function for all keys of a batch."""


class _PerKey(StatefulProcessor):
    """The example of Spark's documentation: one value of state per key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        kept = [T.StructField("n", T.LongType()), T.StructField("total", T.DoubleType())]
        self._state = handle.getValueState("state", T.StructType(kept))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        n, total = self._state.get() or (0, 0.0)
        for row in rows:
            n += 1
            total += row.amount
        self._state.update((n, total))
        yield Row(customer=key[0], n=n, total=total)

    def close(self) -> None:
        """Nothing is open."""


def _per_key(events: DataFrame) -> DataFrame:
    return events.groupBy("customer").transformWithState(_PerKey(), _RESULT, "Append", "EventTime")


PER_KEY = Query(_per_key)
"""transformWithState, as documented."""


@dataclass
class _Laps:
    """CPU at the end of each batch, without Java's compilers, which work only in the first minute."""

    after: StatefulStage | None
    store: SqlStore
    epoch: int
    marks: list[tuple[float, float]] = field(default_factory=list)
    rows: int = 0

    def take(self, batch: DataFrame, number: int) -> None:
        rows = batch.toArrow()
        if self.after is not None:
            made = self.after.run(rows, 0, {})
            entry = LedgerEntry(_QUERY, number, self.epoch, (), None, committed_at=0)
            self.store.commit(Commit(entry, None, rows.slice(0, 0), states=made.states))
            self.after.on_commit()
            rows = made.rows
        self.rows += rows.num_rows
        self.marks.append((time.perf_counter(), tree_cpu(os.getpid()) - compiler_cpu(os.getpid())))


def run(spark: SparkSession, topic: Topic, query: Query, *, warm: int) -> Lap:
    """Read all events; the lap starts after the first `warm` batches."""
    folder = topic.folder / "engine" / "bench"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for shared in ("notes", "loaded"):
        (folder / shared).write_bytes(bytes(1))
    if topic.filled is not None:
        _read(spark, topic.filled, query, folder)
    marks = _read(spark, topic, query, folder)
    first, last = marks[warm - 1], marks[-1]
    events = topic.events - warm * topic.batch
    return Lap(events, last[0] - first[0], last[1] - first[1])


def _read(spark: SparkSession, topic: Topic, query: Query, folder: Path) -> list[tuple[float, float]]:
    """Read the new events of a topic; returns wall time and CPU at the end of each batch."""
    with EventLog(topic.folder) as log:
        starts = {end.partition: end.start for end in log.ends("events")}
        input_ = Input("events", log.topic("events"), has_position=query.placed)
    reading = InputOptions(
        log_url=str(topic.folder),
        pacer_file=str(folder / "notes"),
        barrier_file=str(folder / "loaded"),
        skip_files={"events": str(folder / "skips")},
        start_offsets={"events": starts},
        batch_rows=topic.batch,
        columns={"events": ("customer", "amount", "at") + (PARTITION, OFFSET) * query.placed},
        ipc_batches=True,
    )
    session = new_session(spark, empty_batches=False)
    frame = query.build(stream_inputs(session, (input_,), reading)["events"])
    store = SqlStore(SqliteDialect(folder / "store"))
    after = None
    if query.operator is not None:
        arriving = SinkStage(query.operator, (StageInput(frame, "at"),), ())
        after, frame = StatefulStage(arriving, store.state_store(_QUERY)), arriving.frame()
    laps = _Laps(after, store, store.open_epoch(_QUERY))
    writer = frame.writeStream.outputMode(query.mode).option("checkpointLocation", str(folder / "checkpoint"))
    running = writer.trigger(availableNow=True).foreachBatch(laps.take).start()
    running.awaitTermination()
    store.close()
    return laps.marks
