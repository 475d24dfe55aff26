"""What a pipeline's function sees of a topic: a streaming DataFrame that carries our watermark and counts its rows."""

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

from headwater.engine.building.places import numbered
from headwater.engine.keyed.operator import DELETED, OFFSET, PARTITION, SINCE
from headwater.engine.keyed.packing import PACKET, Packing, with_packets
from headwater.engine.source.log_source import FAR, TICK_FROM
from headwater.engine.source.visible import HIDDEN, Visible
from headwater.log import Topic

__all__ = ["ARRIVAL", "Input", "Reading", "Rows", "streaming"]

ARRIVAL: Final = "occurred_at"
"""The event-time column of topics whose type has none: what the sender said, else arrival."""
_DELAY = f"{FAR // 86_400_000_000} days"


class Rows(StrEnum):
    """How the rows of a view behave, seen by a pipeline behind it."""

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
        rows: How the rows of the view behave; None for a plain topic.
        ops: Of a view, the kinds of change that count.
        side: Of a view, whether the row before or after the change is the event; "table" for a table that changes.
        placed: Whether rows say where they stand in their topic.
        identity: Of a view, the columns of its key.
    """

    name: str
    topic: Topic
    rows: Rows | None = None
    ops: tuple[str, ...] = ()
    side: str = "after"
    placed: bool = False
    identity: tuple[str, ...] = ()

    @classmethod
    def of_view(cls, name: str, topic: Topic, rows: Rows, key: tuple[str, ...]) -> Input:
        """A view as a stream of events: each row once, when it is final, if it ever is."""
        ops = ("final",) if rows is Rows.OPEN else ("insert", "update")
        return cls(name, topic, rows, ops, identity=key)

    def as_table(self) -> Input:
        """A table that changes: each row takes the place of the one with its key, deleted ones too."""
        ops = ("insert", "update", "delete") if self.rows else ()
        return replace(self, ops=ops, side="table", placed=True)

    @property
    def of_table(self) -> bool:
        """Whether it is a table that changes."""
        return self.side == "table"

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row of a table."""
        return self.identity or self.topic.key

    def after(self) -> Input:
        """All new rows of the view."""
        return replace(self, ops=("insert", "update"), side="after")

    def before(self) -> Input:
        """All rows of the view that are no longer."""
        return replace(self, ops=("update", "delete"), side="before")

    @property
    def dated(self) -> bool:
        """Whether its event time is a column that the view itself does not have."""
        return ARRIVAL not in [field.name for field in self.topic.schema.field("after").type]

    @property
    def observed(self) -> str:
        """The name under which its rows are counted."""
        return f"{self.name}.before" if self.side == "before" else self.name

    @property
    def time(self) -> str:
        """The event-time column."""
        if self.of_table:
            return SINCE
        return ARRIVAL if self.ops or self.topic.time is None else self.topic.time

    @property
    def row(self) -> pa.Schema:
        """The columns of the topic or view itself."""
        fields = self.topic.schema.field("after").type if self.ops else self.topic.schema
        return pa.schema([field.with_nullable(True) for field in fields])

    @property
    def schema(self) -> pa.Schema:
        """The columns the function sees."""
        fields = list(self.row)
        if self.time not in [field.name for field in fields]:
            fields.append(pa.field(self.time, pa.timestamp("us", "UTC")))
        hidden = [PARTITION, OFFSET] * self.placed + [DELETED] * self.of_table
        fields += [pa.field(name, HIDDEN[name]) for name in hidden]
        return pa.schema([field.with_nullable(True) for field in fields])

    def visible(self, lateness: int = -1) -> Visible:
        """How its rows are made from the log's."""
        return Visible(tuple(self.schema.names), self.time, self.ops, lateness, self.side)


@dataclass(frozen=True)
class Reading:
    """How a query reads its inputs.

    Args:
        log: Where the log is.
        notes: The file its inputs share (see `Pace`).
        loaded: Another one (see `Loading`).
        skips: Where the offsets to leave out stand, by name of the input.
        starts: Where it begins, by name of the input.
        late: Whether late rows are left out; without it all rows pass.
        correction: How much longer than the topic's lateness a row may take.
        rows: About how many a batch takes while catching up.
        cores: Into how many tasks a batch is cut.
        wait: The longest wait for events, in seconds; 0 never waits.
        columns: The columns that are read, by name of the input; all, where nothing is said.
        ends: Where it ends, by name of the input; nowhere, if nothing is said.
        decided: For inputs that the function uses more than once: the file that keeps the uses together.
        packed: Whether operators get the other inputs in packets; Spark could not count several uses of one apart.
    """

    log: str
    notes: str
    loaded: str
    skips: Mapping[str, str]
    starts: Mapping[str, Mapping[int, int]]
    late: bool = True
    correction: timedelta = timedelta()
    rows: int = 1_000_000
    cores: int = 2
    wait: float = 1.0
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    decided: Mapping[str, str] = field(default_factory=dict)
    packed: bool = False

    def lateness(self, input_: Input) -> int:
        """Microseconds after which a row is late; negative when none is."""
        if not self.late and not input_.of_table:
            return -1
        return (input_.topic.lateness + self.correction) // timedelta(microseconds=1)

    def columns_of(self, input_: Input) -> tuple[str, ...]:
        """The columns that are read of an input."""
        return self.columns.get(input_.name, tuple(input_.schema.names))

    def visible(self, input_: Input) -> Visible:
        """How rows of an input are made from the log's."""
        return input_.visible(self.lateness(input_))


def streaming(session: SparkSession, inputs: tuple[Input, ...], reading: Reading) -> dict[str, DataFrame]:
    """A streaming DataFrame for each input, by name."""
    topics = [input_.topic.name for input_ in inputs]
    # Nobody waits for a table where there are no events.
    tables = [number for number, input_ in enumerate(inputs) if input_.of_table]
    tables = tables if len(tables) < len(inputs) else []
    found = {}
    for number, input_ in enumerate(inputs):
        options = _options(input_, reading, topics, tables, number)
        frame = _clocked(_load(session, input_, reading, options, number), input_)
        if reading.packed and input_.placed and input_.name not in reading.decided:
            frame = with_packets(frame, partial(_packets, session, input_, options))
        found[input_.name] = frame
    return found


def _options(
    input_: Input, reading: Reading, topics: list[str], tables: list[int], number: int
) -> dict[str, str]:
    """What `LogSource` is told."""
    return {
        "url": reading.log,
        "topic": input_.topic.name,
        "ops": ",".join(input_.ops),
        "side": input_.side,
        "columns": json.dumps(reading.columns_of(input_)),
        "time": input_.time,
        "lateness": str(reading.lateness(input_)),
        "rows": str(reading.rows),
        "cores": str(reading.cores),
        "skips": reading.skips[input_.name],
        "start": json.dumps({str(p): offset for p, offset in reading.starts[input_.name].items()}),
        "end": json.dumps({str(p): offset for p, offset in reading.ends.get(input_.name, {}).items()}),
        "number": str(number),
        "decided": reading.decided.get(input_.name, ""),
        "loading": json.dumps({"path": reading.loaded, "number": number, "tables": tables}),
        "pace": json.dumps(
            {"topics": topics, "number": number, "notes": reading.notes, "wait": reading.wait}
        ),
        "packing": "",
    }


def _load(
    session: SparkSession, input_: Input, reading: Reading, options: Mapping[str, str], number: int
) -> DataFrame:
    schema = pa.schema([input_.schema.field(name) for name in reading.columns_of(input_)])
    frame = _source(session, schema, options)
    # Rows of a table never meet those of another input.
    return numbered(frame, number) if input_.placed and not input_.of_table and number else frame


def _source(session: SparkSession, schema: pa.Schema, options: Mapping[str, str]) -> DataFrame:
    reader = session.readStream.format("headwater").schema(from_arrow_schema(schema))
    return reader.options(**options).load()


def _clocked(frame: DataFrame, input_: Input) -> DataFrame:
    """Let the source's ticks, and nothing else, move Spark's watermark; then let no tick through.

    Spark moves filters that do not name the time column below the watermark, where they would take the ticks away. It
    moves none below `observe`, whose count is also what the ledger calls used.
    """
    return _observed(frame, input_.time, input_, F.count(F.lit(1)))


def _packets(session: SparkSession, input_: Input, options: Mapping[str, str], packing: Packing) -> DataFrame:
    """The same rows, in packets."""
    frame = _source(session, PACKET, {**options, "packing": json.dumps(asdict(packing))})
    return _observed(frame, "at", input_, F.coalesce(F.sum("count"), F.lit(0)))


def _observed(frame: DataFrame, time: str, input_: Input, rows: Column) -> DataFrame:
    return (
        frame.withWatermark(time, _DELAY)
        .observe(input_.observed, rows.alias("rows"))
        .where(F.col(time) < F.timestamp_micros(F.lit(TICK_FROM)))
    )
