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
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.engine.build.plan_analysis import tag_input
from headwater.engine.source.visible_rows import HIDDEN_COLUMNS, VisibleRows
from headwater.engine.state.key_groups import (
    IPC_BATCH_SCHEMA,
    WATERMARK_ROW_SHIFT,
    WATERMARK_ROWS_FROM,
    BatchPacker,
    attach_ipc_source,
    attach_watermark_rows,
)
from headwater.engine.state.state import DELETED, OFFSET, PARTITION, SINCE
from headwater.log import Topic

__all__ = ["DEFAULT_EVENT_TIME", "Input", "InputOptions", "RowBehaviour", "source_options", "stream_inputs"]

DEFAULT_EVENT_TIME: Final = "occurred_at"
"""The event-time column of topics whose type has none: the sender's event time, or else the arrival time."""
_WATERMARK_DELAY = f"{WATERMARK_ROW_SHIFT // 86_400_000_000} days"


class RowBehaviour(StrEnum):
    """The behaviour of a view's rows, as a downstream pipeline sees it."""

    OPEN = "open"
    """Rows are shown while their window is open; a change of kind "final" marks the last version."""
    CHANGING = "changing"
    """Rows may change at any time."""
    FINAL = "final"
    """Rows never change."""


@dataclass(frozen=True)
class Input:
    """One parameter of a pipeline's function.

    Args:
        name: The parameter's name.
        topic: The topic; for a view, its changelog topic.
        row_behaviour: The behaviour of the view's rows; None for a plain topic.
        ops: For a view, the kinds of change that are events.
        side: For a view, which row of a change is the event, "before" or "after"; "table" for a changing table.
        has_position: Whether rows have hidden columns with their partition and offset.
        view_key: For a view, the columns of its key.
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
        """Returns a view as a stream of events: final rows if its rows become final, otherwise every new version."""
        ops = ("final",) if row_behaviour is RowBehaviour.OPEN else ("insert", "update")
        return cls(name, topic, row_behaviour, ops, view_key=key)

    def as_table(self) -> Input:
        """Returns the input as a changing table: each row replaces the one with its key, and deletes are included."""
        ops = ("insert", "update", "delete") if self.row_behaviour else ()
        return replace(self, ops=ops, side="table", has_position=True)

    @property
    def is_table(self) -> bool:
        """Whether it is a changing table."""
        return self.side == "table"

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row of a table."""
        return self.view_key or self.topic.key

    def as_new_rows(self) -> Input:
        """Returns the input with the new rows of all changes of the view."""
        return replace(self, ops=("insert", "update"), side="after")

    def as_old_rows(self) -> Input:
        """Returns the input with the previous rows of all changes of the view."""
        return replace(self, ops=("update", "delete"), side="before")

    @property
    def lacks_event_time(self) -> bool:
        """Whether its event-time column is not a column of the view."""
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
        """The columns that the function receives."""
        fields = list(self.row_schema)
        if self.time not in [field.name for field in fields]:
            fields.append(pa.field(self.time, pa.timestamp("us", "UTC")))
        hidden = [PARTITION, OFFSET] * self.has_position + [DELETED] * self.is_table
        fields += [pa.field(name, HIDDEN_COLUMNS[name]) for name in hidden]
        return pa.schema([field.with_nullable(True) for field in fields])


@dataclass(frozen=True)
class InputOptions:
    """The options with which a query reads its inputs.

    Args:
        log_url: The address of the log.
        pacer_file: The file that its inputs share for pacing (see `BatchPacer`).
        barrier_file: The file that its inputs share for loading tables (see `TableBarrier`).
        skip_files: The files with the offsets to skip, by name of the input.
        start_offsets: The offsets at which the query begins, by name of the input.
        drop_late: Whether late rows are left out.
        after_1970: Whether events up to 1970 are left out: steps of Spark wait for event time.
        extra_lateness: Time to wait for late rows in addition to the topic's lateness.
        final_tables: The tables whose late versions correct no result, because it is emitted when it is final.
        batch_rows: The approximate number of rows in a batch while catching up.
        batch_size: The limit of bytes of a batch, which its inputs share.
        budget_file: The file of a smaller limit, after a batch that needed too much memory.
        cores: The number of tasks of a batch.
        max_wait: The longest wait for events, in seconds; 0 never waits.
        columns: The columns to read, by name of the input; all, by default.
        end_offsets: The offsets at which the query ends, by name of the input; it has no end, by default.
        alignment_files: For inputs that Spark reads more than once, the file that aligns the reads.
        retry_files: The files with the events to retry, by name of the input.
        ipc_batches: Whether operators get other inputs as Arrow IPC batches. Rows of aligned inputs could not be
            counted that way.
    """

    log_url: str
    pacer_file: str
    barrier_file: str
    skip_files: Mapping[str, str]
    start_offsets: Mapping[str, Mapping[int, int]]
    drop_late: bool = True
    after_1970: bool = False
    extra_lateness: timedelta = timedelta()
    final_tables: frozenset[str] = frozenset()
    batch_rows: int = 1_000_000
    batch_size: int = 64 << 20
    budget_file: str = ""
    cores: int = 2
    max_wait: float = 1.0
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    end_offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    alignment_files: Mapping[str, str] = field(default_factory=dict)
    retry_files: Mapping[str, str] = field(default_factory=dict)
    ipc_batches: bool = False

    def lateness(self, input_: Input) -> int:
        """Returns the microseconds after which a row is late; negative if no row ever is."""
        if not self.drop_late and not input_.is_table:
            return -1
        return (input_.topic.lateness + self.extra_lateness) // timedelta(microseconds=1)

    def correction(self, input_: Input) -> int:
        """Returns how much less late, in microseconds, a version of a table may be than the watermark waits."""
        return self.extra_lateness // timedelta(microseconds=1) if input_.name in self.final_tables else 0

    def retry_rule(self, input_: Input) -> Literal["always", "watermark", "after 1970", "rebuild"]:
        """Returns when a quarantined event of an input can be retried (see `VisibleRows.retry_mask`)."""
        if input_.is_table or input_.ops:
            return "rebuild"
        if self.after_1970:
            return "after 1970"
        return "always" if self.lateness(input_) < 0 else "watermark"

    def columns_of(self, input_: Input) -> tuple[str, ...]:
        """Returns the columns to read of an input."""
        return self.columns.get(input_.name, tuple(input_.schema.names))

    def visible_rows(self, input_: Input) -> VisibleRows:
        """Returns the selection of rows and of all columns of an input, with the lateness of this query."""
        names = tuple(input_.schema.names)
        lateness = self.lateness(input_) - self.correction(input_)
        return VisibleRows(names, input_.time, input_.ops, lateness, input_.side, self.after_1970)


def stream_inputs(
    session: SparkSession, inputs: tuple[Input, ...], input_options: InputOptions
) -> dict[str, DataFrame]:
    """Returns a streaming DataFrame for each input, by name."""
    found = {}
    for number, input_ in enumerate(inputs):
        options = source_options(inputs, number, input_options)
        schema = pa.schema([input_.schema.field(name) for name in input_options.columns_of(input_)])
        frame = _read_stream(session, schema, options)
        if input_.has_position and not input_.is_table and number:  # rows of a table are never in a union
            frame = tag_input(frame, number)
        frame = _add_watermark(frame, input_.time, input_, F.count(F.lit(1)))
        if input_options.ipc_batches and input_.has_position and input_.name not in input_options.alignment_files:
            frame = attach_ipc_source(frame, partial(_read_ipc_batches, session, input_, options))
        found[input_.name] = frame
    return found


def source_options(inputs: tuple[Input, ...], number: int, input_options: InputOptions) -> dict[str, str]:
    """Returns the options of `LogSource` for one of the inputs."""
    input_, topics = inputs[number], [each.topic.name for each in inputs]
    tables = [index for index, each in enumerate(inputs) if each.is_table]
    tables = tables if len(tables) < len(inputs) else []  # without events, no input waits for a table
    return {
        "url": input_options.log_url,
        "topic": input_.topic.name,
        "ops": ",".join(input_.ops),
        "side": input_.side,
        "columns": json.dumps(input_options.columns_of(input_)),
        "time": input_.time,
        "lateness": str(input_options.lateness(input_)),
        "correction": str(input_options.correction(input_)),
        "after_1970": str(input_options.after_1970),
        "rows": str(input_options.batch_rows),
        "size": str(input_options.batch_size),
        "budget": input_options.budget_file,
        "cores": str(input_options.cores),
        "skips": input_options.skip_files[input_.name],
        "retries": input_options.retry_files.get(input_.name, ""),
        "start": json.dumps(dict(input_options.start_offsets[input_.name])),
        "end": json.dumps(dict(input_options.end_offsets.get(input_.name, {}))),
        "number": str(number),
        "decided": input_options.alignment_files.get(input_.name, ""),
        "loading": json.dumps({"path": input_options.barrier_file, "number": number, "tables": tables}),
        "pace": json.dumps(
            {"topics": topics, "number": number, "notes": input_options.pacer_file, "wait": input_options.max_wait}
        ),
        "packing": "",
    }


def _read_stream(session: SparkSession, schema: pa.Schema, options: Mapping[str, str]) -> DataFrame:
    reader = session.readStream.format("headwater").schema(from_arrow_schema(schema))
    return reader.options(**options).load()


def _read_ipc_batches(
    session: SparkSession, input_: Input, options: Mapping[str, str], packer: BatchPacker
) -> DataFrame:
    """Returns the rows of an input as Arrow IPC batches."""
    frame = _read_stream(session, IPC_BATCH_SCHEMA, {**options, "packing": json.dumps(asdict(packer))})
    return _add_watermark(frame, "at", input_, F.coalesce(F.sum("count"), F.lit(0)))


def _add_watermark(frame: DataFrame, time: str, input_: Input, rows: Column) -> DataFrame:
    """Count the rows, let only the source's watermark rows advance Spark's watermark, and filter these out.

    The order matters. Spark moves filters that do not name the time column below the watermark, where they would remove
    the watermark rows. It moves no filter below `observe`, whose count is also the ledger's number of used events.
    """
    observed = frame.withWatermark(time, _WATERMARK_DELAY).observe(input_.metric_name, rows.alias("rows"))
    filtered = observed.where(F.col(time) < F.timestamp_micros(F.lit(WATERMARK_ROWS_FROM)))
    return attach_watermark_rows(filtered, observed) if input_.is_table else filtered
