"""Runs an operator inside a Spark query, with one transformWithState value per key group.

Rows are packed into Arrow IPC batches by key group (`key_groups`), by the source or by a task after Spark's own steps.
Spark shuffles the batches to the task of the key group. There the state of the key group is unpacked, the operator
processes the rows in order, and its result returns as one list per column, which Spark explodes to rows. So the number
of calls between Spark and Python depends on the number of key groups, not on the number of keys or rows.

The events of a `TableJoin` wait for the watermark of its table, and Spark's timers know only that of the query. So
every batch in which the table's watermark advances has a row with it for each key group. A second, small state value
has the last of these watermarks and the one that releases the next event. Until then, the state of the key group is
neither read nor written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from headwater.engine.spark.python_workers import freeze_gc
from headwater.engine.state.encoding import decode_time
from headwater.engine.state.grouping import sort_by_event_time
from headwater.engine.state.key_groups import (
    IPC_BATCH_SCHEMA,
    BatchPacker,
    decode_ipc,
    encode_state_sizes,
    ipc_source_of,
    pack_key_group,
    unpack_key_group,
    with_watermark_rows,
)
from headwater.engine.state.state import (
    OFFSET,
    PARTITION,
    TABLE_INPUT,
    TIME,
    TIMESTAMP,
    MemoryState,
    Operator,
    State,
    TableJoin,
    first_open_time,
    next_timer,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

__all__ = ["apply_in_spark"]

_WATERMARK_DELAY_KEY: Final = "spark.watermarkDelayMs"
"""The metadata key that marks the event-time column in Spark."""
_STATE_SIZES: Final = "_hw_kept"
_MAX_LIST_ROWS: Final = 65_536
"""The maximum number of rows in the lists of one row."""


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

    The frames must not contain late rows, and the query must use the RocksDB state store. Rows with equal event times
    are processed in order of `PARTITION` and `OFFSET`; in a frame without these columns, in order of a hash of the row.

    Args:
        operator: The operator.
        frames: The input frames, each with a watermark.
        times: The event-time column of each frame.
        key_groups: The number of key groups; fixed for the life of a checkpoint.
        time: The event-time column of the result; None if it has none.
        metric: The name of the Spark metric with the sizes of key groups (`encode_state_sizes`).
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    table = TABLE_INPUT if isinstance(operator, TableJoin) else None
    read = [with_watermark_rows(frame) if number == table else frame for number, frame in enumerate(frames)]
    inputs = [_add_position(frame, at) for frame, at in zip(read, times, strict=True)]
    delays = [frame.schema[at].metadata.get(_WATERMARK_DELAY_KEY) for frame, at in zip(frames, times, strict=True)]
    event_time = {_WATERMARK_DELAY_KEY: next(delay for delay in delays if delay is not None)}
    packers = [BatchPacker(n, tuple(keys), key_groups, n == table) for n, keys in enumerate(operator.keys)]
    batch_schema = from_arrow_schema(IPC_BATCH_SCHEMA)
    batch_schema["at"].metadata = event_time
    batches = [
        make(packer) if (make := ipc_source_of(frame)) else with_position.mapInArrow(packer, batch_schema)
        for frame, with_position, packer in zip(frames, inputs, packers, strict=True)
    ]
    columns = [T.StructField(field.name, T.ArrayType(field.dataType)) for field in from_arrow_schema(operator.schema)]
    list_schema = T.StructType([*columns, T.StructField(_STATE_SIZES, T.BinaryType())])
    host = SparkHost(operator, [to_arrow_schema(frame.schema, timezone="UTC") for frame in inputs], key_groups)
    # Not a subclass of Spark's class: that would import Spark wherever this file is imported.
    processor = cast("StatefulProcessor", host)
    grouped = reduce(lambda one, other: one.union(other), batches).groupBy("bucket")
    lists = grouped.transformWithState(processor, list_schema, "Append", "EventTime")
    lists = lists.observe(metric, F.collect_list(_STATE_SIZES).alias("buckets"))
    names = ", ".join(f"`{name}`" for name in operator.schema.names)
    result = lists.selectExpr(f"inline(arrays_zip({names}))")
    if time is None:
        return result
    return result.withColumn(time, F.col(f"`{time}`").alias(time, metadata=event_time))


def _add_position(frame: DataFrame, time: str) -> DataFrame:
    """Returns the frame with the hidden position columns."""
    from pyspark.sql import functions as F

    hidden = {TIME: F.unix_micros(F.col(f"`{time}`"))}
    if OFFSET not in frame.columns:
        kinds = {field.name: field.dataType.simpleString() for field in frame.schema}
        hashed = [F.col(f"`{name}`") for name, kind in kinds.items() if "map<" not in kind]
        # Spark's hash functions refuse maps.
        hidden |= {PARTITION: F.lit(0), OFFSET: F.xxhash64(*hashed)}
    return frame.withColumns(hidden)


class SparkHost:
    """The transformWithState processor of an operator, with one state value per key group.

    Spark calls it for a key group with new rows or an expired timer, by the method names of `StatefulProcessor`.
    """

    def __init__(self, operator: Operator, schemas: Sequence[pa.Schema], key_groups: int) -> None:
        self._operator = operator
        self._schemas = tuple(schemas)
        self._key_groups = key_groups
        self._table_join = operator if isinstance(operator, TableJoin) else None

    def init(self, handle: Any) -> None:
        """Open the state; Spark calls it for each task of each batch."""
        from pyspark.sql import types as T

        fields = [T.StructField("bucket", T.BinaryType()), T.StructField("timer", T.LongType())]
        self._handle = handle
        self._state = handle.getValueState("bucket", T.StructType(fields))
        if self._table_join is not None:
            fields = [T.StructField("watermark", T.LongType()), T.StructField("next", T.LongType())]
            self._table = handle.getValueState("table", T.StructType(fields))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Process new Arrow IPC batches of a key group."""
        streams: list[list[bytes]] = [[] for _ in self._schemas]
        watermark: int | None = None
        for row in rows:
            if row["count"]:
                streams[row.input].append(row.rows)
            else:
                watermark = decode_time(row.rows)
        if watermark is not None and not any(streams) and self._releases_nothing(watermark):
            return iter(())
        return self._step(key[0], streams, timerValues, table_watermark=watermark)

    def _releases_nothing(self, watermark: int) -> bool:
        """Returns whether no event waits for this watermark of the table; records the watermark then."""
        stored = self._table.get()
        # A state of an older version does not have it: its events may wait.
        if stored is None or (stored[1] is not None and stored[1] < first_open_time(watermark)):
            return False
        self._table.update((watermark, stored[1]))
        return True

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Process an expired timer of a key group without new rows."""
        streams: list[list[bytes]] = [[] for _ in self._schemas]
        return self._step(key[0], streams, timerValues, fired=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Exclude the loaded modules from garbage collection; nothing has to be closed at the end of a task."""
        freeze_gc("operator")

    def _step(
        self,
        number: int,
        streams: list[list[bytes]],
        times: Any,
        *,
        fired: int | None = None,
        table_watermark: int | None = None,
    ) -> Iterator[Any]:
        inputs = [
            sort_by_event_time(decode_ipc(batches, schema)) if batches else schema.empty_table()
            for batches, schema in zip(streams, self._schemas, strict=True)
        ]
        stored = self._state.get()
        packed, timer = stored or (None, None)
        form = self._operator.form
        state = unpack_key_group(packed, self._key_groups, form) if packed else MemoryState()
        watermark = first_open_time(times.getCurrentWatermarkInMs() * 1_000)
        if self._table_join is None:
            result = self._operator.step(state, inputs, watermark)
        else:
            result = self._step_table_join(self._table_join, state, inputs, watermark, table_watermark)
        timer = self._set_timer(next_timer(state), timer, fired)
        group = pack_key_group(state, self._key_groups, form)
        # State and timer are one value, so a restart finds them together; an empty group must not stay for ever.
        if state:
            self._state.update((group.data, timer))
        elif stored:
            self._state.clear()
        return _to_list_rows(result, encode_state_sizes(state, number, group.sizes))

    def _step_table_join(
        self, join: TableJoin, state: State, inputs: Sequence[pa.Table], watermark: int, table_watermark: int | None
    ) -> pa.Table:
        """Run a step with the table's newest watermark, that of this batch or of an earlier one."""
        stored = self._table.get()
        known = stored[0] if table_watermark is None and stored else table_watermark
        result = join.step(state, inputs, watermark, None if known is None else first_open_time(known))
        if known is not None and (now := (known, join.next_release(state))) != stored:
            self._table.update(now)
        return result

    def _set_timer(self, next_time: int | None, timer: int | None, fired: int | None) -> int | None:
        """Keep one Spark timer for a key group, at its next timer; returns its time in milliseconds.

        Spark removes a timer when it fires, and never fires one that the watermark had reached before it was set.
        """
        # Rounded up: the operator pops a timer at t once the watermark has reached t - 1 (see `first_open_time`).
        wanted = None if next_time is None else -((1 - next_time) // 1_000)
        if wanted != timer:
            if timer is not None and timer != fired:
                self._handle.deleteTimer(timer)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        return wanted


def _to_list_rows(table: pa.Table, state_sizes: bytes) -> Iterator[Any]:
    """Yields rows with one list per column, which Spark explodes; the list of a column of nulls is empty.

    The last row has empty lists and the state sizes of the key group.
    """
    from pyspark.sql import Row

    row = Row(*table.column_names, _STATE_SIZES)
    for start in range(0, table.num_rows, _MAX_LIST_ROWS):
        part = table.slice(start, _MAX_LIST_ROWS)
        empty = [column.null_count == len(part) for column in part.columns]
        empty[0] &= not all(empty)  # at least one list must have a value for each row
        lists = [() if null else _to_spark_values(column) for null, column in zip(empty, part.columns, strict=True)]
        yield row(*lists, None)
    yield row(*([()] * table.num_columns), state_sizes)


def _to_spark_values(column: pa.ChunkedArray) -> Any:
    """Returns the values in the fastest form for Spark: a NumPy array for numbers and times, otherwise a tuple."""
    kind = column.type
    if not column.null_count:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return column.to_numpy()
        if kind == TIMESTAMP:
            return column.cast(pa.int64()).to_numpy().view("datetime64[us]")
    return tuple(column.to_pylist())
