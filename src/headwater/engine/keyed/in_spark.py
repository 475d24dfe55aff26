"""An operator inside a Spark query: its keys in buckets, a bucket's state in one value of transformWithState.

The way of a row: it is packed with others whose keys have the same bucket (`packing.py`), by the source, or by a task
behind what Spark does before; packets travel to the task that has the bucket; there the operator takes them in order,
with the bucket unpacked (`bucket.py`); its result goes back as one list of rows, which Spark takes apart. So what Spark
and Python say to each other is counted in buckets, not in keys or rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from headwater.engine.collecting import leave_out
from headwater.engine.keyed import bucket
from headwater.engine.keyed.due import earliest
from headwater.engine.keyed.kept import kept_in
from headwater.engine.keyed.operator import OFFSET, PARTITION, TIME, Operator
from headwater.engine.keyed.packing import PACKET, Packing, in_order, packets_of, unpacked
from headwater.engine.keyed.state import MemoryState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

__all__ = ["keyed"]

_MARK: Final = "spark.watermarkDelayMs"
"""By this word in a column's metadata Spark knows the event time."""
_KEPT: Final = "_hw_kept"
_ROWS: Final = 65_536
"""How many rows travel as one list at most."""


def keyed(
    operator: Operator,
    frames: Sequence[DataFrame],
    *,
    times: Sequence[str],
    buckets: int,
    time: str | None = None,
    observed: str,
) -> DataFrame:
    """The result of an operator, as a streaming DataFrame; windows and joins may follow in the same query.

    Late rows must have been left out before, and the query needs its state kept in RocksDB. Rows of one time are taken
    in the order of the columns `PARTITION` and `OFFSET`; where a frame has none, of a hash of the row.

    Args:
        operator: The operator.
        frames: One for each of its inputs, each under a watermark.
        times: The event-time column of each.
        buckets: Among how many buckets keys are spread. Fixed for the life of a checkpoint.
        time: The column of the result that carries the event time on, if one does.
        observed: The name under which Spark observes how much buckets keep (`kept.py`).
    """
    from pyspark.sql import functions as F

    inputs = [_placed(frame, at) for frame, at in zip(frames, times, strict=True)]
    marks = [frame.schema[at].metadata.get(_MARK) for frame, at in zip(frames, times, strict=True)]
    delay = next(mark for mark in marks if mark is not None)
    packings = [Packing(number, tuple(keys), buckets) for number, keys in enumerate(operator.keys)]
    packets = [
        make(packing)
        if (make := packets_of(frame))
        else placed.mapInArrow(packing, _spark(PACKET, "at", delay))
        for frame, placed, packing in zip(frames, inputs, packings, strict=True)
    ]
    host = _Host(operator, [_arrow(frame.schema) for frame in inputs], buckets)
    together = reduce(lambda one, other: one.union(other), packets)
    lists = together.groupBy("bucket").transformWithState(
        # Not of Spark's class: that would load Spark wherever this file is read.
        cast("StatefulProcessor", host),
        _lists(operator.schema),
        "Append",
        "EventTime",
    )
    columns = ", ".join(f"`{name}`" for name in operator.schema.names)
    lists = lists.observe(observed, F.collect_list(_KEPT).alias("buckets"))
    return _marked(lists.selectExpr(f"inline(arrays_zip({columns}))"), time, delay)


def _placed(frame: DataFrame, time: str) -> DataFrame:
    """The frame with the hidden columns that operators go by."""
    from pyspark.sql import functions as F

    hidden = {TIME: F.unix_micros(F.col(f"`{time}`"))}
    if OFFSET not in frame.columns:
        kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
        hashed = [F.col(f"`{name}`") for name, kind in kinds.items() if "map<" not in kind]
        hidden |= {PARTITION: F.lit(0), OFFSET: F.xxhash64(*hashed)}
    return frame.withColumns(hidden)


def _marked(frame: DataFrame, time: str | None, delay: int) -> DataFrame:
    from pyspark.sql import functions as F

    if time is None:
        return frame
    return frame.withColumn(time, F.col(f"`{time}`").alias(time, metadata={_MARK: delay}))


def _lists(schema: pa.Schema) -> StructType:
    from pyspark.sql import types as T

    columns = [T.StructField(part.name, T.ArrayType(part.dataType)) for part in _spark(schema)]
    return T.StructType([*columns, T.StructField(_KEPT, T.BinaryType())])


def _spark(schema: pa.Schema, time: str | None = None, delay: int = 0) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    found = from_arrow_schema(schema)
    if time is not None:
        found[time].metadata = {_MARK: delay}
    return found


def _arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


class _Host:
    """What Spark calls in its workers: once for each bucket that has new rows, and for each whose time has come."""

    def __init__(self, operator: Operator, schemas: Sequence[pa.Schema], buckets: int) -> None:
        self._operator = operator
        self._schemas = tuple(schemas)
        self._buckets = buckets

    def init(self, handle: Any) -> None:
        """Called for each task of each batch."""
        from pyspark.sql import types as T

        kept = [T.StructField("bucket", T.BinaryType()), T.StructField("timer", T.LongType())]
        self._handle = handle
        self._state = handle.getValueState("bucket", T.StructType(kept))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """A bucket with new packets."""
        streams: list[list[bytes]] = [[] for _ in self._schemas]
        for row in rows:
            streams[row.input].append(row.rows)
        return self._step(key[0], streams, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """A bucket that has nothing new, and something that is due."""
        streams: list[list[bytes]] = [[] for _ in self._schemas]
        return self._step(key[0], streams, timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Called at the end of each task: nothing is open."""
        leave_out("operator")

    def _step(
        self, number: int, streams: list[list[bytes]], times: Any, fired: int | None = None
    ) -> Iterator[Any]:
        arrived = [
            in_order(unpacked(found, schema)) if found else schema.empty_table()
            for found, schema in zip(streams, self._schemas, strict=True)
        ]
        found = self._state.get()
        packed, timer = found or (None, None)
        form = self._operator.form
        state = bucket.unpacked(packed, self._buckets, form) if packed else MemoryState()
        result = self._operator.step(state, arrived, times.getCurrentWatermarkInMs() * 1_000)
        next_ = self._set_timer(earliest(state), timer, fired)
        kept = bucket.packed(state, self._buckets, form)
        if state:
            self._state.update((kept.data, next_))
        elif found:
            self._state.clear()
        return _as_lists(result, kept_in(state, number, kept.sizes))

    def _set_timer(self, deadline: int | None, timer: int | None, fired: int | None) -> int | None:
        """One timer for a bucket, the first; Spark fires it once the watermark has reached it, and takes it away then.

        It never fires one that the watermark had reached before it was set.
        """
        wanted = None if deadline is None else -(-deadline // 1_000)
        if wanted != timer:
            if timer is not None and timer != fired:
                self._handle.deleteTimer(timer)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        return wanted


def _as_lists(table: pa.Table, kept: bytes) -> Iterator[Any]:
    """Rows of Spark that each hold a list for each column; one of nothing but nulls is empty, and Spark fills it up.

    The last one has no rows in its lists, and says how much the bucket keeps.
    """
    from pyspark.sql import Row

    made = Row(*table.column_names, _KEPT)
    for start in range(0, table.num_rows, _ROWS):
        rows = table.slice(start, _ROWS)
        bare = [column.null_count == len(rows) for column in rows.columns]
        bare[0] &= not all(bare)  # one list says how many rows there are
        yield made(
            *(() if null else _values(column) for null, column in zip(bare, rows.columns, strict=True)), None
        )
    yield made(*([()] * table.num_columns), kept)


def _values(column: pa.ChunkedArray) -> Any:
    """The values as Spark takes them fastest: of numbers and times an array, of all others a tuple."""
    kind = column.type
    if not column.null_count:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return column.to_numpy()
        if kind == pa.timestamp("us", "UTC"):
            return column.cast(pa.int64()).to_numpy().view("datetime64[us]")
    return tuple(column.to_pylist())
