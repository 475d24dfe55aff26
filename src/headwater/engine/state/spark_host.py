"""Runs an operator inside a Spark query, with one transformWithState value per key group.

Rows are packed into Arrow IPC batches by key group (`key_groups`), by the source or by a task after Spark's own steps.
The batches are shuffled to the task that has the key group. There the state of the key group is unpacked, the operator
processes the rows in order, and its result returns as one list of rows, which Spark explodes. So the number of calls
between Spark and Python depends on key groups, not on keys or rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from headwater.engine.spark.python_workers import freeze_gc
from headwater.engine.state import key_groups
from headwater.engine.state.key_groups import (
    IPC_BATCH_SCHEMA,
    BatchPacker,
    decode_ipc,
    encode_state_sizes,
    ipc_source_of,
    sort_by_event_time,
)
from headwater.engine.state.state import OFFSET, PARTITION, TIME, MemoryState, Operator, next_timer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

__all__ = ["apply_in_spark"]

_WATERMARK_DELAY_KEY: Final = "spark.watermarkDelayMs"
"""The metadata key that marks the event-time column in Spark."""
_STATE_SIZES: Final = "_hw_kept"
_MAX_LIST_ROWS: Final = 65_536
"""The maximum number of rows in one list."""


def apply_in_spark(
    operator: Operator,
    frames: Sequence[DataFrame],
    *,
    times: Sequence[str],
    key_groups: int,
    time: str | None = None,
    metric: str,
) -> DataFrame:
    """Returns the result of an operator as a streaming DataFrame; windows and joins may follow.

    Late rows must have been left out before, and the query needs its state kept in RocksDB. Rows of one time are taken
    in the order of the columns `PARTITION` and `OFFSET`; where a frame has none, of a hash of the row.

    Args:
        operator: The operator.
        frames: One for each of its inputs, each under a watermark.
        times: The event-time column of each.
        key_groups: The number of key groups. Fixed for the life of a checkpoint.
        time: The column of the result that carries the event time on, if one does.
        metric: The name under which Spark observes the sizes of key groups (`encode_state_sizes`).
    """
    from pyspark.sql import functions as F

    inputs = [_add_position(frame, at) for frame, at in zip(frames, times, strict=True)]
    delays = [frame.schema[at].metadata.get(_WATERMARK_DELAY_KEY) for frame, at in zip(frames, times, strict=True)]
    delay = next(mark for mark in delays if mark is not None)
    packers = [BatchPacker(number, tuple(keys), key_groups) for number, keys in enumerate(operator.keys)]
    batches = [
        make(packing)
        if (make := ipc_source_of(frame))
        else placed.mapInArrow(packing, _to_spark_schema(IPC_BATCH_SCHEMA, "at", delay))
        for frame, placed, packing in zip(frames, inputs, packers, strict=True)
    ]
    host = SparkHost(operator, [_to_arrow_schema(frame.schema) for frame in inputs], key_groups)
    together = reduce(lambda one, other: one.union(other), batches)
    lists = together.groupBy("bucket").transformWithState(
        # Not a subclass of Spark's class: that would import Spark wherever this file is imported.
        cast("StatefulProcessor", host),
        _list_schema(operator.schema),
        "Append",
        "EventTime",
    )
    columns = ", ".join(f"`{name}`" for name in operator.schema.names)
    lists = lists.observe(metric, F.collect_list(_STATE_SIZES).alias("buckets"))
    return _set_event_time(lists.selectExpr(f"inline(arrays_zip({columns}))"), time, delay)


def _add_position(frame: DataFrame, time: str) -> DataFrame:
    """Returns the frame with the hidden position columns."""
    from pyspark.sql import functions as F

    hidden = {TIME: F.unix_micros(F.col(f"`{time}`"))}
    if OFFSET not in frame.columns:
        kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
        hashed = [F.col(f"`{name}`") for name, kind in kinds.items() if "map<" not in kind]
        hidden |= {PARTITION: F.lit(0), OFFSET: F.xxhash64(*hashed)}
    return frame.withColumns(hidden)


def _set_event_time(frame: DataFrame, time: str | None, delay: int) -> DataFrame:
    from pyspark.sql import functions as F

    if time is None:
        return frame
    return frame.withColumn(time, F.col(f"`{time}`").alias(time, metadata={_WATERMARK_DELAY_KEY: delay}))


def _list_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql import types as T

    columns = [T.StructField(part.name, T.ArrayType(part.dataType)) for part in _to_spark_schema(schema)]
    return T.StructType([*columns, T.StructField(_STATE_SIZES, T.BinaryType())])


def _to_spark_schema(schema: pa.Schema, time: str | None = None, delay: int = 0) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    found = from_arrow_schema(schema)
    if time is not None:
        found[time].metadata = {_WATERMARK_DELAY_KEY: delay}
    return found


def _to_arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


class SparkHost:
    """The transformWithState processor: called once per key group with new rows or an expired timer."""

    def __init__(self, operator: Operator, schemas: Sequence[pa.Schema], key_groups: int) -> None:
        self._operator = operator
        self._schemas = tuple(schemas)
        self._key_groups = key_groups

    def init(self, handle: Any) -> None:
        """Called for each task of each batch."""
        from pyspark.sql import types as T

        kept = [T.StructField("bucket", T.BinaryType()), T.StructField("timer", T.LongType())]
        self._handle = handle
        self._state = handle.getValueState("bucket", T.StructType(kept))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Process new Arrow IPC batches of a key group."""
        streams: list[list[bytes]] = [[] for _ in self._schemas]
        for row in rows:
            streams[row.input].append(row.rows)
        return self._step(key[0], streams, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Process an expired timer of a key group without new rows."""
        streams: list[list[bytes]] = [[] for _ in self._schemas]
        return self._step(key[0], streams, timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Do nothing at the end of a task: nothing is open."""
        freeze_gc("operator")

    def _step(self, number: int, streams: list[list[bytes]], times: Any, fired: int | None = None) -> Iterator[Any]:
        arrived = [
            sort_by_event_time(decode_ipc(found, schema)) if found else schema.empty_table()
            for found, schema in zip(streams, self._schemas, strict=True)
        ]
        found = self._state.get()
        packed, timer = found or (None, None)
        form = self._operator.form
        state = key_groups.unpack_key_group(packed, self._key_groups, form) if packed else MemoryState()
        result = self._operator.step(state, arrived, times.getCurrentWatermarkInMs() * 1_000)
        next_ = self._set_timer(next_timer(state), timer, fired)
        kept = key_groups.pack_key_group(state, self._key_groups, form)
        if state:
            self._state.update((kept.data, next_))
        elif found:
            self._state.clear()
        return _to_list_rows(result, encode_state_sizes(state, number, kept.sizes))

    def _set_timer(self, deadline: int | None, timer: int | None, fired: int | None) -> int | None:
        """Set one timer for a key group, at its next deadline; Spark fires it once and removes it.

        It never fires one that the watermark had reached before it was set.
        """
        wanted = None if deadline is None else -(-deadline // 1_000)
        if wanted != timer:
            if timer is not None and timer != fired:
                self._handle.deleteTimer(timer)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        return wanted


def _to_list_rows(table: pa.Table, state_sizes: bytes) -> Iterator[Any]:
    """Yields rows with one list per column, which Spark explodes; a row of nulls is empty.

    The last one has empty lists and the state sizes of the key group.
    """
    from pyspark.sql import Row

    made = Row(*table.column_names, _STATE_SIZES)
    for start in range(0, table.num_rows, _MAX_LIST_ROWS):
        rows = table.slice(start, _MAX_LIST_ROWS)
        bare = [column.null_count == len(rows) for column in rows.columns]
        bare[0] &= not all(bare)  # one list says how many rows there are
        yield made(
            *(() if null else _to_spark_values(column) for null, column in zip(bare, rows.columns, strict=True)), None
        )
    yield made(*([()] * table.num_columns), state_sizes)


def _to_spark_values(column: pa.ChunkedArray) -> Any:
    """Returns the values in the fastest form for Spark: an array for numbers and times, otherwise a tuple."""
    kind = column.type
    if not column.null_count:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return column.to_numpy()
        if kind == pa.timestamp("us", "UTC"):
            return column.cast(pa.int64()).to_numpy().view("datetime64[us]")
    return tuple(column.to_pylist())
