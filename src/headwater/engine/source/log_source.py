"""The log as a streaming source of Spark.

Runs in two kinds of processes. `LogReader` plans: one long-lived process per input of a query, which says how far the
next batch goes. `read` reads: in Spark's workers, on a pickled `Slice`. They share nothing but the log on disk.

An offset is `{"i": 0, "p0": 17, "p1": 4, "w": 1700000000000000}`: which input of the query, a position per partition,
always between two frames, and the watermark there. The watermark is a function of the positions alone, so a batch that
runs again is the same batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.engine.collecting import leave_out
from headwater.engine.keyed.operator import INPUT_BITS, PARTITION, TIME
from headwater.engine.keyed.packing import Packing
from headwater.engine.points import reach
from headwater.engine.source.loading import Loading
from headwater.engine.source.lockstep import Lockstep
from headwater.engine.source.pace import Pace
from headwater.engine.source.ranges import Span, advance, slices_of, watermark_at
from headwater.engine.source.visible import Visible
from headwater.events import times_column
from headwater.log.places import open_log
from headwater.log.protocol import TimedLog, TimedTopic
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["FAR", "TICK_FROM", "LogSource", "Slice"]

FAR: Final = 3_652_500 * 86_400 * 1_000_000
"""A tick stands this far (10,000 years, in microseconds) above the watermark it carries: beyond every event."""
TICK_FROM: Final = 253_402_300_800_000_000
"""The year 10000: what is not below it is a tick. No event can be there, since Python's dates end before."""

_logs: dict[str, TimedLog] = {}


@dataclass
class Slice(InputPartition):
    """What one task reads: spans of offsets, the rows to leave out of them, and perhaps the tick of the batch."""

    spans: tuple[Span, ...]
    without: tuple[tuple[int, int], ...] = ()
    tick: int | None = None


class LogSource(DataSource):
    """Format "headwater": a topic of a log.

    Options: `url` (of the log; Spark shows no option of this name), `topic`, `columns`, `time`, `ops`, `side` and
    `lateness` (see `Visible`), `rows` (of a batch, about), `cores`, `number` (which input of the query), `start` and
    `end` (offset by partition), `pace` (see `Pace`), `loading` (see `Loading`), `skips` (file of offsets to leave out),
    `decided` (see `Lockstep`; empty when Spark reads the input once), `packing` (see `Packing`; empty when rows are not
    packed).
    """

    @classmethod
    def name(cls) -> str:
        """What `readStream.format` calls it."""
        return "headwater"

    def streamReader(self, schema: StructType) -> LogReader:
        """The planner, which is also pickled into the workers."""
        return LogReader(dict(self.options))


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches, and reads slices of them."""

    def __init__(self, options: dict[str, str]) -> None:
        ops = tuple(op for op in options["ops"].split(",") if op)
        columns = tuple(json.loads(options["columns"]))
        self._where = options["url"]
        self._topic = options["topic"]
        self._visible = Visible(columns, options["time"], ops, int(options["lateness"]), options["side"])
        self._rows = int(options["rows"])
        self._cores = int(options["cores"])
        self._skips = options["skips"]
        self._start = {int(partition): offset for partition, offset in json.loads(options["start"]).items()}
        self._number = int(options["number"])
        self._pace_options = json.loads(options["pace"])
        self._decided = options["decided"]
        self._loading_options = json.loads(options["loading"])
        self._loading: Loading | None = None
        self._lockstep: Lockstep | None = None
        self._pace: Pace | None = None
        self._packing = Packing(**json.loads(options["packing"])) if options["packing"] else None
        ends = {int(partition): offset for partition, offset in json.loads(options["end"]).items()}
        self._target: dict[int, int] | None = ends or None

    # -- planning ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:
        """Where the query was told to begin: fixed when it was made, whatever retention has done since."""
        return self._offset(self._start, LOWEST_TIME)

    def getDefaultReadLimit(self) -> ReadLimit:
        """About how much a batch takes while catching up."""
        return ReadMaxRows(self._rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Go no further than what is there now."""
        self._target = self._ends()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """How far the next batch goes; waits a moment for events when there are none."""
        reach("before-offsets")
        positions = _positions(start)
        if self._loading is None:
            self._loading = Loading(**self._loading_options)
        if self._loading.waits():
            return start
        if self._target is not None:
            return self._planned(start, positions)[0]
        if self._pace is None:
            self._pace = Pace(self._log(), **self._pace_options)
        self._pace.before_planning()
        reached, more = self._planned(start, positions)
        if reached is start:
            self._pace.wait()
            reached, more = self._planned(start, positions)
        self._pace.planned(new=reached is not start, more=more)
        return reached

    def _planned(self, start: dict[str, int], positions: dict[int, int]) -> tuple[dict[str, int], bool]:
        """The end of the next batch, `start` itself when there is nothing new; and whether there is more behind it."""
        topic = self._log().opened(self._topic)
        ends, running, more = advance(topic, positions, self._rows, self._target)
        watermark = watermark_at(running, self._visible.lateness, topic.definition.lateness)
        same = all(end == positions.get(number, 0) for number, end in ends.items())
        same = same and watermark <= start["w"]
        reached = start if same else self._offset(ends, max(watermark, start["w"]))
        if self._decided:
            self._lockstep = self._lockstep or Lockstep(Path(self._decided))
            reached = self._lockstep.decide(start, lambda: reached)
        if self._loading is not None:
            self._loading.planned(_positions(reached), self._ends)
        return (start, False) if reached == start else (reached, more)

    def _ends(self) -> dict[int, int]:
        return {end.partition: end.end for end in self._log().ends(self._topic)}

    def _offset(self, positions: dict[int, int], watermark: int) -> dict[str, int]:
        """Keys always in the same order: Spark compares offsets as text."""
        ordered = {f"p{partition}": positions[partition] for partition in sorted(positions)}
        return {"i": self._number, **ordered, "w": watermark}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The batch cut into tasks; the first also carries the tick."""
        reach("after-offsets")
        topic = self._log().opened(self._topic)
        tasks = slices_of(topic, _positions(start), _positions(end), self._cores)
        without = _read_skips(self._skips)
        tick = end["w"] if end["w"] > LOWEST_TIME else None
        return [
            Slice(tuple(spans), without, tick if number == 0 else None) for number, spans in enumerate(tasks)
        ]

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: how far a query has come stands in the ledger."""

    def _log(self) -> TimedLog:
        if self._where not in _logs:
            _logs[self._where] = open_log(self._where)
        return _logs[self._where]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pace": None, "_lockstep": None, "_loading": None}

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a slice, typed, without the late ones; or packets of them."""
        assert isinstance(partition, Slice)
        reach("in-read")
        topic = self._log().opened(self._topic)
        if self._packing is not None:
            yield from self._packing(map(self._placed, self._seen(topic, partition)))
        else:
            yield from self._seen(topic, partition)
        if partition.tick is not None:
            at = partition.tick + FAR
            yield self._packing.tick(at) if self._packing else self._tick(topic.definition.schema, at)
        leave_out("source")

    def _seen(self, topic: TimedTopic, slice_: Slice) -> Iterator[pa.RecordBatch]:
        for span in slice_.spans:
            skipped = [offset for number, offset in slice_.without if number == span.partition]
            for batch in topic.batches(span.partition, span.start, span.end):
                mask = self._visible.mask(batch)
                if skipped:
                    mask &= ~np.isin(batch.offsets, skipped)
                rows = self._visible.rows(batch, mask)
                if rows.num_rows:
                    yield rows

    def _placed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the hidden columns that operators go by; the partition says which input it is, as in `numbered`."""
        if self._number and self._visible.side != "table":
            at = rows.schema.get_field_index(PARTITION)
            partitions = pc.add(rows.column(PARTITION).cast(pa.int64()), self._number << INPUT_BITS)
            rows = rows.set_column(at, PARTITION, partitions)
        return rows.append_column(TIME, rows.column(self._visible.time).cast(pa.int64()))

    def _tick(self, schema: pa.Schema, at: int) -> pa.RecordBatch:
        """The row that moves Spark's watermark: it has a time and nothing else."""
        seen = self._visible.schema(
            pa.schema(list(schema.field("after").type)) if self._visible.ops else schema
        )
        columns = [
            times_column(np.array([at])) if field.name == self._visible.time else pa.nulls(1, field.type)
            for field in seen
        ]
        return pa.RecordBatch.from_arrays(columns, schema=seen)


def _positions(offset: dict[str, int]) -> dict[int, int]:
    return {int(name[1:]): position for name, position in offset.items() if name[0] == "p"}


def _read_skips(path: str) -> tuple[tuple[int, int], ...]:
    try:
        return tuple((partition, offset) for partition, offset in json.loads(Path(path).read_text()))
    except FileNotFoundError:
        return ()
