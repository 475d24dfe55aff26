"""The log as a streaming source of Spark.

The source runs in two kinds of processes. One long-lived process per input of a query plans batches with `LogReader`.
Spark's workers call `LogReader.read` on a pickled copy, with a `LogInputPartition` for each task. The processes share
only the log on disk.

An offset is `{"i": 0, "p0": 17, "p1": 4, "w": 1700000000000000}`: the number of the input, a position per partition
(always between two frames), and the watermark there. The watermark depends only on the positions, so a batch that runs
again is the same batch. Once quarantined events were retried, the offset also has `"r"`, the number of the last request
(see `headwater.store.commit.retries`). A request is a batch of its own, which leaves the positions as they are.

Two files coordinate the processes of a query. `TableBarrier` makes events wait until the tables they are joined with
are loaded: the file has one byte per input, set once a table has been read up to the end it had when the query started.
`AlignedInput` serves an input that Spark reads twice, as in a self-join: the reader that Spark asks first decides the
range and writes it to the file, and the others read it, so all have the same range in every batch.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.backends import open_log
from headwater.engine.failpoints import failpoint
from headwater.engine.source.batch_budget import BatchBudget
from headwater.engine.source.batch_planner import BatchLimits, BatchPacer, Span, plan_batch, split_into_tasks
from headwater.engine.source.retries import read_retried
from headwater.engine.source.visible_rows import VisibleRows
from headwater.engine.spark.python_workers import freeze_gc
from headwater.engine.state.key_groups import WATERMARK_ROW_SHIFT, BatchPacker, split_by_size
from headwater.engine.state.state import INPUT_SHIFT, PARTITION, TIME
from headwater.events import times_column
from headwater.log.protocol import TimedLog, TimedTopic
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.topic import Topic
from headwater.log.watermark import watermark_at

__all__ = [
    "AlignedInput",
    "LogInputPartition",
    "LogSource",
    "TableBarrier",
    "parse_positions",
]


class TableBarrier:
    """One input's access to the barrier at which events wait until the tables are loaded.

    Args:
        path: The file that all inputs share; zeros at first.
        number: The number of this input.
        tables: The numbers of the tables that other inputs wait for.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp(), "loaded")
        >>> _ = path.write_bytes(bytes(2))
        >>> table, events = TableBarrier(str(path), 1, [1]), TableBarrier(str(path), 0, [1])
        >>> events.must_wait()
        True
        >>> table.record_plan({0: 3}, lambda: {0: 5}), table.record_plan({0: 5}, lambda: {0: 9}), events.must_wait()
        (None, None, False)
    """

    def __init__(self, path: str, number: int, tables: Sequence[int]) -> None:
        self._number = number
        self._tables = tables
        self._file = os.open(path, os.O_RDWR)
        self._loaded = mmap.mmap(self._file, os.fstat(self._file).st_size)
        self._target: Mapping[int, int] | None = None

    def must_wait(self) -> bool:
        """Returns whether this input must wait: it is not a table, and a table is not loaded yet."""
        return self._number not in self._tables and not all(self._loaded[table] for table in self._tables)

    def record_plan(self, positions: Mapping[int, int], ends: Callable[[], Mapping[int, int]]) -> None:
        """Record the planned positions of this input; `ends` returns the ends of its topic and is called once."""
        if self._number not in self._tables or self._loaded[self._number]:
            return
        if self._target is None:
            self._target = ends()
        self._loaded[self._number] = all(positions.get(p, 0) >= end for p, end in self._target.items())


SourceOffset = dict[str, int]


class _Decision(msgspec.Struct, frozen=True):
    by: str  # the id of the reader that decided
    start: SourceOffset
    end: SourceOffset


class AlignedInput:
    """One of several readers of an input, which all read the same ranges.

    Args:
        path: The file that all readers share.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "decided")
        >>> first, second = AlignedInput(path), AlignedInput(path)
        >>> first.decide({"p0": 0}, lambda: {"p0": 5}), second.decide({"p0": 0}, lambda: {"p0": 9})
        ({'p0': 5}, {'p0': 5})
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._id = os.urandom(8).hex()

    def decide(self, start: SourceOffset, plan: Callable[[], SourceOffset]) -> SourceOffset:
        """Returns the end of the batch from `start`, the same for all readers; `plan` decides it."""
        try:
            decision = msgspec.json.decode(self._path.read_bytes(), type=_Decision)
        except (FileNotFoundError, msgspec.DecodeError):
            decision = None
        if decision is not None and decision.start == start:
            # The reader that found no events asks again; the others follow its decision.
            undecided = decision.by == self._id and decision.end == start
            if not undecided:
                return decision.end
        end = plan()
        temporary = self._path.with_suffix(f".{self._id}")
        temporary.write_bytes(msgspec.json.encode(_Decision(self._id, start, end)))
        temporary.replace(self._path)
        return end


class SkippedOffsets:
    """The offsets of quarantined events that an input skips.

    Args:
        path: A file with partition and offset of each, in order; it need not exist.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "skips")
        >>> _ = path.write_text("[[0, 3], [0, 8], [1, 2]]")
        >>> SkippedOffsets(path).within([Span(0, 4, 9), Span(1, 0, 2)])
        ((0, 8),)
    """

    def __init__(self, path: Path) -> None:
        data = path.read_bytes() if path.exists() else b"[]"
        positions = np.array(msgspec.json.decode(data, type=list[tuple[int, int]]), np.int64).reshape(-1, 2)
        self._offsets = {int(p): positions[positions[:, 0] == p, 1] for p in np.unique(positions[:, 0])}

    def within(self, spans: Sequence[Span]) -> tuple[tuple[int, int], ...]:
        """Returns partition and offset of those in some spans."""
        found = []
        for span in spans:
            offsets = self._offsets.get(span.partition, np.empty(0, np.int64))
            first, last = np.searchsorted(offsets, (span.start, span.end))
            found += [(span.partition, offset) for offset in offsets[first:last].tolist()]
        return tuple(found)


_logs: dict[str, TimedLog] = {}  # by URL; a worker process serves many tasks


@dataclass
class LogInputPartition(InputPartition):
    """The input of one task: offset ranges, rows to skip, and in one task the watermark row of the batch.

    That task also reads the events that the batch retries; `watermark_before` is the watermark at its start.
    """

    spans: tuple[Span, ...]
    skipped: tuple[tuple[int, int], ...] = ()
    watermark: int | None = None
    retried: tuple[tuple[int, int], ...] = ()
    watermark_before: int = LOWEST_TIME


class LogSource(DataSource):
    """The Spark source format "headwater": a topic of a log.

    Options: `url` of the log, which Spark redacts in plans; `topic`; `columns`, `time`, `ops`, `side` and `after_1970`
    (see `VisibleRows`); `lateness`, how long the watermark waits for late rows, and `correction`, how much less late a
    row of a table may be; `rows`, the approximate number of rows in a batch; `size`, the limit of its bytes,
    and `budget`, the file of a smaller one (see `BatchBudget`), both for all inputs together; `cores`; `number` of the
    input in the query; `start` and `end`, offsets by partition; `pace` (see `BatchPacer`); `loading` (see
    `TableBarrier`); `skips`, the file of offsets to skip; `retries`, the file of events to retry; `decided` (see
    `AlignedInput`; empty if Spark reads the input once); `packing` (see `BatchPacker`; empty if rows are not packed).
    """

    @classmethod
    def name(cls) -> str:
        """Returns the name for `readStream.format`."""
        return "headwater"

    def streamReader(self, schema: StructType) -> LogReader:
        """Returns the planner, which is also pickled into the workers."""
        return LogReader(dict(self.options))


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches, and reads the offset ranges of their tasks."""

    def __init__(self, options: dict[str, str]) -> None:
        ops = tuple(op for op in options["ops"].split(",") if op)
        columns, lateness = tuple(json.loads(options["columns"])), int(options["lateness"])
        self._correction = int(options["correction"])
        self._log_url = options["url"]
        self._topic = options["topic"]
        self._visible = VisibleRows(
            columns, options["time"], ops, lateness - self._correction, options["side"], options["after_1970"] == "True"
        )
        self._batch_rows = int(options["rows"])
        self._budget = BatchBudget(Path(options["budget"]), int(options["size"]))
        self._cores = int(options["cores"])
        self._skips_file = options["skips"]
        self._skips: SkippedOffsets | None = None
        self._retries_file = options.get("retries", "")
        self._retries_known: list[tuple[int, int, int]] = []
        self._retries_state: tuple[int, int] | None = None
        self._start = msgspec.json.decode(options["start"], type=dict[int, int])
        self._number = int(options["number"])
        self._pacer_options = json.loads(options["pace"])
        self._alignment_file = options["decided"]
        self._barrier_options = json.loads(options["loading"])
        self._barrier: TableBarrier | None = None
        self._alignment: AlignedInput | None = None
        self._pacer: BatchPacer | None = None
        self._packer = BatchPacker(**json.loads(options["packing"])) if options["packing"] else None
        self._target = msgspec.json.decode(options["end"], type=dict[int, int]) or None

    # -- planning ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:
        """Returns the start of the query, which was fixed when the query was created."""
        return self._offset(self._start, LOWEST_TIME)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the approximate size of a batch while catching up."""
        return ReadMaxRows(self._batch_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to what is in the log now."""
        self._target = self._ends()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Returns the end of the next batch; waits for events for a limited time."""
        failpoint("before-offsets")
        positions = parse_positions(start)
        if self._barrier is None:
            self._barrier = TableBarrier(**self._barrier_options)
        if self._barrier.must_wait():
            return start
        if self._target is not None:
            return self._plan(start, positions)[0]
        if self._pacer is None:
            self._pacer = BatchPacer(self._log(), **self._pacer_options)
        self._pacer.before_planning()
        reached, more = self._plan(start, positions)
        if reached is start:
            self._pacer.wait()
            reached, more = self._plan(start, positions)
        self._pacer.record_plan(new=reached is not start, more=more)
        return reached

    def _plan(self, start: dict[str, int], positions: dict[int, int]) -> tuple[dict[str, int], bool]:
        """Returns the end of the next batch (`start` if there is nothing new) and whether there is more."""
        taken = start.get("r", 0)
        waiting = [number for number, _, _ in self._retries() if number > taken]
        if waiting:  # one request at a time: all of them may be too many events for a batch
            reached, more = self._offset(positions, start["w"], min(waiting)), True
        else:
            topic = self._log().open_topic(self._topic)
            limits = BatchLimits(self._batch_rows, self._budget.size // len(self._pacer_options["topics"]))
            ends, max_event_times, more = plan_batch(topic, positions, limits, self._target)
            watermark = watermark_at(max_event_times.values(), self._lateness(topic.definition))
            same = all(end == positions.get(number, 0) for number, end in ends.items())
            same = same and watermark <= start["w"]
            # The watermark never goes back, although a partition that was added later begins without event time.
            reached = start if same else self._offset(ends, max(watermark, start["w"]), taken)
        if self._alignment_file:
            self._alignment = self._alignment or AlignedInput(Path(self._alignment_file))
            reached = self._alignment.decide(start, lambda: reached)
        if self._barrier is not None:
            self._barrier.record_plan(parse_positions(reached), self._ends)
        return (start, False) if reached == start else (reached, more)

    def _ends(self) -> dict[int, int]:
        return {end.partition: end.end for end in self._log().ends(self._topic)}

    def _retries(self) -> list[tuple[int, int, int]]:
        """Returns number, partition and offset of the events to retry; the file is replaced when there are new ones."""
        try:
            found = Path(self._retries_file).stat() if self._retries_file else None
        except FileNotFoundError:
            found = None
        state = (found.st_ino, found.st_mtime_ns) if found else None
        if state != self._retries_state:
            data = Path(self._retries_file).read_bytes() if found else b"[]"
            self._retries_known = msgspec.json.decode(data, type=list[tuple[int, int, int]])
            self._retries_state = state
        return self._retries_known

    def _lateness(self, topic: Topic) -> int:
        """Returns how long the query waits for late events, in microseconds."""
        own = self._visible.lateness
        return topic.lateness // timedelta(microseconds=1) if own < 0 else own + self._correction

    def _offset(self, positions: dict[int, int], watermark: int, retry: int = 0) -> dict[str, int]:
        """Returns an offset with keys in a fixed order: Spark compares offsets as text."""
        ordered = {f"p{partition}": positions[partition] for partition in sorted(positions)}
        return {"i": self._number, **ordered, **({"r": retry} if retry else {}), "w": watermark}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Returns the tasks of the batch; the first also retries events and emits the watermark row."""
        failpoint("after-offsets")
        topic = self._log().open_topic(self._topic)
        tasks = split_into_tasks(topic, parse_positions(start), parse_positions(end), self._cores)
        watermark = end["w"] if end["w"] > LOWEST_TIME else None
        taken = range(start.get("r", 0) + 1, end.get("r", 0) + 1)
        retried = tuple((partition, offset) for number, partition, offset in self._retries() if number in taken)
        skips = self._load_skips()
        first = LogInputPartition(tuple(tasks[0]), skips.within(tasks[0]), watermark, retried, start["w"])
        return [first, *(LogInputPartition(tuple(spans), skips.within(spans)) for spans in tasks[1:])]

    def _load_skips(self) -> SkippedOffsets:
        """Returns the offsets to skip; the file is written before the query starts, and does not change."""
        if self._skips is None:
            self._skips = SkippedOffsets(Path(self._skips_file))
        return self._skips

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the ledger has the committed offsets."""

    def _log(self) -> TimedLog:
        if self._log_url not in _logs:
            _logs[self._log_url] = open_log(self._log_url)
        return _logs[self._log_url]

    def __getstate__(self) -> dict[str, Any]:
        # Memory maps and watchers belong to the planning process; workers only read.
        # Tasks have the events that they retry and skip.
        known: dict[str, Any] = {"_retries_known": [], "_retries_state": None, "_skips": None}
        return {**self.__dict__, **known, "_pacer": None, "_alignment": None, "_barrier": None}

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the visible rows of a task, as typed columns or as Arrow IPC batches."""
        assert isinstance(partition, LogInputPartition)
        failpoint("in-read")
        topic = self._log().open_topic(self._topic)
        if self._packer is not None:
            yield from self._packer(map(self._with_positions, self._visible_rows(topic, partition)))
        else:
            yield from self._visible_rows(topic, partition)
        if partition.watermark is not None:
            at = partition.watermark + WATERMARK_ROW_SHIFT
            yield (self._packer.watermark_row(at) if self._packer else self._watermark_row(topic.definition.schema, at))
            if self._packer is not None and self._packer.with_watermark:
                yield self._packer.key_group_watermarks(partition.watermark)
        freeze_gc("source")

    def _visible_rows(self, topic: TimedTopic, task: LogInputPartition) -> Iterator[pa.RecordBatch]:
        for span in task.spans:
            skipped = [offset for number, offset in task.skipped if number == span.partition]
            for batch in topic.batches(span.partition, span.start, span.end):
                mask = self._visible.mask(batch)
                if skipped:
                    mask &= ~np.isin(batch.offsets, skipped)
                rows = self._visible.rows(batch, mask)
                if rows.num_rows:
                    yield from split_by_size(rows)
        for batch in read_retried(topic, self._visible, task.retried, task.watermark_before):
            yield self._visible.rows(batch, np.ones(batch.values.num_rows, bool))

    def _with_positions(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with the hidden position columns; the partition is tagged as in `tag_input`."""
        if self._number and self._visible.side != "table":
            at = rows.schema.get_field_index(PARTITION)
            partitions = pc.add(rows.column(PARTITION).cast(pa.int64()), self._number << INPUT_SHIFT)
            rows = rows.set_column(at, PARTITION, partitions)
        return rows.append_column(TIME, rows.column(self._visible.time).cast(pa.int64()))

    def _watermark_row(self, schema: pa.Schema, at: int) -> pa.RecordBatch:
        """Returns the row that advances Spark's watermark; all columns but the event time are NULL."""
        visible = self._visible.schema(pa.schema(list(schema.field("after").type)) if self._visible.ops else schema)
        columns = [
            times_column(np.array([at])) if field.name == self._visible.time else pa.nulls(1, field.type)
            for field in visible
        ]
        return pa.RecordBatch.from_arrays(columns, schema=visible)


def parse_positions(offset: dict[str, int]) -> dict[int, int]:
    """Returns the position of each partition in an offset of the source.

    Example:
        >>> parse_positions({"i": 0, "p0": 17, "p1": 4, "w": 1700000000000000})
        {0: 17, 1: 4}
    """
    return {int(name[1:]): position for name, position in offset.items() if name[0] == "p"}
