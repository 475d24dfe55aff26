"""Inputs of a pipeline: each topic as a streaming DataFrame with Headwater's watermark and a row count.

`stream_inputs` returns the DataFrames that the user's function receives. The rows are counted in Spark, so that the
sink can compare the count with the log (`engine.sink.accounting`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.engine.build.plan_analysis import tag_input
from headwater.engine.source.log_source import WATERMARK_ROW_SHIFT, WATERMARK_ROWS_FROM
from headwater.engine.source.visible_rows import HIDDEN_COLUMNS, VisibleRows
from headwater.engine.state.key_groups import IPC_BATCH_SCHEMA, BatchPacker, attach_ipc_source
from headwater.engine.state.state import DELETED, OFFSET, PARTITION, SINCE
from headwater.log import Topic

__all__ = ["DEFAULT_EVENT_TIME", "Input", "InputOptions", "RowBehaviour", "stream_inputs"]

DEFAULT_EVENT_TIME: Final = "occurred_at"
"""The event-time column of topics whose type has none: what the sender said, else arrival."""
_WATERMARK_DELAY = f"{WATERMARK_ROW_SHIFT // 86_400_000_000} days"


class RowBehaviour(StrEnum):
    """The behaviour of a view's rows, as a downstream pipeline sees it."""

    OPEN = "open"
    """They are shown while their window is open, and told apart once they are final."""
    CHANGING = "changing"
    """They may change for ever."""
    FINAL = "final"
    """They are final when they come."""


@dataclass(frozen=True)
class Input:
    """One parameter of a pipeline's function.

    Args:
        name: The parameter's name.
        topic: The topic it reads; of a view, the topic of its changes.
        row_behaviour: How the rows of the view behave; None for a plain topic.
        ops: Of a view, the kinds of change that count.
        side: Of a view, whether the row before or after the change is the event; "table" for a table that changes.
        has_position: Whether rows say where they stand in their topic.
        view_key: Of a view, the columns of its key.
    """

    name: str
    topic: Topic
    row_behaviour: RowBehaviour | None = None
    ops: tuple[str, ...] = ()
    side: str = "after"
    has_position: bool = False
    view_key: tuple[str, ...] = ()

    @classmethod
    def of_view(cls, name: str, topic: Topic, row_behaviour: RowBehaviour, key: tuple[str, ...]) -> Input:
        """Returns a view as a stream of events: each row once, when it is final, if it ever is."""
        ops = ("final",) if row_behaviour is RowBehaviour.OPEN else ("insert", "update")
        return cls(name, topic, row_behaviour, ops, view_key=key)

    def as_table(self) -> Input:
        """Returns a table that changes: each row replaces the one with its key, and deletes are included."""
        ops = ("insert", "update", "delete") if self.row_behaviour else ()
        return replace(self, ops=ops, side="table", has_position=True)

    @property
    def is_table(self) -> bool:
        """Whether it is a table that changes."""
        return self.side == "table"

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row of a table."""
        return self.view_key or self.topic.key

    def as_new_rows(self) -> Input:
        """Returns all new rows of the view."""
        return replace(self, ops=("insert", "update"), side="after")

    def as_old_rows(self) -> Input:
        """Returns all previous rows of the view."""
        return replace(self, ops=("update", "delete"), side="before")

    @property
    def lacks_event_time(self) -> bool:
        """Whether its event time is a column that the view itself lacks."""
        return DEFAULT_EVENT_TIME not in [field.name for field in self.topic.schema.field("after").type]

    @property
    def metric_name(self) -> str:
        """The name under which its rows are counted."""
        return f"{self.name}.before" if self.side == "before" else self.name

    @property
    def time(self) -> str:
        """The event-time column."""
        if self.is_table:
            return SINCE
        return DEFAULT_EVENT_TIME if self.ops or self.topic.time is None else self.topic.time

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of the topic or view itself."""
        fields = self.topic.schema.field("after").type if self.ops else self.topic.schema
        return pa.schema([field.with_nullable(True) for field in fields])

    @property
    def schema(self) -> pa.Schema:
        """The columns the function sees."""
        fields = list(self.row_schema)
        if self.time not in [field.name for field in fields]:
            fields.append(pa.field(self.time, pa.timestamp("us", "UTC")))
        hidden = [PARTITION, OFFSET] * self.has_position + [DELETED] * self.is_table
        fields += [pa.field(name, HIDDEN_COLUMNS[name]) for name in hidden]
        return pa.schema([field.with_nullable(True) for field in fields])

    def visible_rows(self, lateness: int = -1) -> VisibleRows:
        """Returns how its rows are made from the log's rows."""
        return VisibleRows(tuple(self.schema.names), self.time, self.ops, lateness, self.side)


@dataclass(frozen=True)
class InputOptions:
    """The options with which a query reads its inputs.

    Args:
        log_url: Where the log is.
        pacer_file: The file its inputs share (see `BatchPacer`).
        barrier_file: Another one (see `TableBarrier`).
        skip_files: Where the offsets to leave out stand, by name of the input.
        start_offsets: Where it begins, by name of the input.
        drop_late: Whether late rows are left out; without it all rows pass.
        extra_lateness: How much longer than the topic's lateness a row may take.
        batch_rows: About how many a batch takes while catching up.
        cores: Into how many tasks a batch is cut.
        max_wait: The longest wait for events, in seconds; 0 never waits.
        columns: The columns that are read, by name of the input; all, by default.
        end_offsets: Where it ends, by name of the input; nowhere, by default.
        alignment_files: For inputs that the function uses more than once: the file that aligns the uses.
        ipc_batches: Whether operators get the other inputs as Arrow IPC batches; Spark cannot count several uses of
            one.
    """

    log_url: str
    pacer_file: str
    barrier_file: str
    skip_files: Mapping[str, str]
    start_offsets: Mapping[str, Mapping[int, int]]
    drop_late: bool = True
    extra_lateness: timedelta = timedelta()
    batch_rows: int = 1_000_000
    cores: int = 2
    max_wait: float = 1.0
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    end_offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    alignment_files: Mapping[str, str] = field(default_factory=dict)
    ipc_batches: bool = False

    def lateness(self, input_: Input) -> int:
        """Microseconds after which a row is late; negative when none is."""
        if not self.drop_late and not input_.is_table:
            return -1
        return (input_.topic.lateness + self.extra_lateness) // timedelta(microseconds=1)

    def columns_of(self, input_: Input) -> tuple[str, ...]:
        """Returns the columns that are read of an input."""
        return self.columns.get(input_.name, tuple(input_.schema.names))

    def visible_rows(self, input_: Input) -> VisibleRows:
        """Returns how rows of an input are made from the log's rows."""
        return input_.visible_rows(self.lateness(input_))


def stream_inputs(
    session: SparkSession, inputs: tuple[Input, ...], input_options: InputOptions
) -> dict[str, DataFrame]:
    """Returns a streaming DataFrame for each input, by name."""
    topics = [input_.topic.name for input_ in inputs]
    # Without events no input waits for a table.
    tables = [number for number, input_ in enumerate(inputs) if input_.is_table]
    tables = tables if len(tables) < len(inputs) else []
    found = {}
    for number, input_ in enumerate(inputs):
        options = _source_options(input_, input_options, topics, tables, number)
        frame = _add_watermark(_load_stream(session, input_, input_options, options, number), input_)
        if input_options.ipc_batches and input_.has_position and input_.name not in input_options.alignment_files:
            frame = attach_ipc_source(frame, partial(_load_ipc_batches, session, input_, options))
        found[input_.name] = frame
    return found


def _source_options(
    input_: Input, input_options: InputOptions, topics: list[str], tables: list[int], number: int
) -> dict[str, str]:
    """Returns the options of `LogSource`."""
    return {
        "url": input_options.log_url,
        "topic": input_.topic.name,
        "ops": ",".join(input_.ops),
        "side": input_.side,
        "columns": json.dumps(input_options.columns_of(input_)),
        "time": input_.time,
        "lateness": str(input_options.lateness(input_)),
        "rows": str(input_options.batch_rows),
        "cores": str(input_options.cores),
        "skips": input_options.skip_files[input_.name],
        "start": json.dumps({str(p): offset for p, offset in input_options.start_offsets[input_.name].items()}),
        "end": json.dumps({str(p): offset for p, offset in input_options.end_offsets.get(input_.name, {}).items()}),
        "number": str(number),
        "decided": input_options.alignment_files.get(input_.name, ""),
        "loading": json.dumps({"path": input_options.barrier_file, "number": number, "tables": tables}),
        "pace": json.dumps(
            {"topics": topics, "number": number, "notes": input_options.pacer_file, "wait": input_options.max_wait}
        ),
        "packing": "",
    }


def _load_stream(
    session: SparkSession, input_: Input, input_options: InputOptions, options: Mapping[str, str], number: int
) -> DataFrame:
    schema = pa.schema([input_.schema.field(name) for name in input_options.columns_of(input_)])
    frame = _read_stream(session, schema, options)
    # Rows of a table are never combined with rows of another input.
    return tag_input(frame, number) if input_.has_position and not input_.is_table and number else frame


def _read_stream(session: SparkSession, schema: pa.Schema, options: Mapping[str, str]) -> DataFrame:
    reader = session.readStream.format("headwater").schema(from_arrow_schema(schema))
    return reader.options(**options).load()


def _add_watermark(frame: DataFrame, input_: Input) -> DataFrame:
    """Let only the source's watermark rows advance Spark's watermark, then filter them out.

    Spark moves filters that do not name the time column below the watermark, where they would remove the watermark
    rows. It moves none below `observe`, whose count is also what the ledger calls used.
    """
    return _count_rows(frame, input_.time, input_, F.count(F.lit(1)))


def _load_ipc_batches(
    session: SparkSession, input_: Input, options: Mapping[str, str], packer: BatchPacker
) -> DataFrame:
    """Returns the same rows as Arrow IPC batches."""
    frame = _read_stream(session, IPC_BATCH_SCHEMA, {**options, "packing": json.dumps(asdict(packer))})
    return _count_rows(frame, "at", input_, F.coalesce(F.sum("count"), F.lit(0)))


def _count_rows(frame: DataFrame, time: str, input_: Input, rows: Column) -> DataFrame:
    return (
        frame.withWatermark(time, _WATERMARK_DELAY)
        .observe(input_.metric_name, rows.alias("rows"))
        .where(F.col(time) < F.timestamp_micros(F.lit(WATERMARK_ROWS_FROM)))
    )
