"""The part of a pipeline that runs after Spark, at the sink: an operator with state per key, and what arrives there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.engine.keyed.operator import OFFSET, PARTITION, TIME
from headwater.engine.keyed.packing import Packing, packets_of, unpacked
from headwater.engine.keyed.state import State

__all__ = ["AfterSpark", "Arrival", "Stepping", "together"]

_INPUT: Final = "_hw_input"


class Stepping(Protocol):
    """What can run after Spark: one operator, or several in a row."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its result."""

    @property
    def form(self) -> str:
        """What its state looks like; a state written under another form cannot be read."""

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take what arrived; see `headwater.engine.keyed.operator.Operator`."""


@dataclass(frozen=True)
class Arrival:
    """One input of what runs after Spark.

    Attributes:
        frame: What Spark makes of it.
        time: The column with its event time.
    """

    frame: DataFrame
    time: str

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return to_arrow_schema(self.frame.schema, timezone="UTC")


@dataclass(frozen=True)
class AfterSpark:
    """An operator at the sink, with what Spark hands it.

    Attributes:
        steps: What runs.
        arrivals: Its inputs.
        words: What it keeps in state, for people.
        by_offset: Whether rows are taken in the order of their topic, and not of their time.
    """

    steps: Stepping
    arrivals: tuple[Arrival, ...]
    words: tuple[str, ...]
    by_offset: bool = False

    @cached_property
    def _packets(self) -> list[Callable[[Packing], DataFrame]]:
        """How the inputs come in packets; nothing, unless all of them can: Spark then has nothing to do with rows."""
        found = [packets_of(arrival.frame) for arrival in self.arrivals]
        return [make for make in found if make] if all(found) else []

    def frame(self) -> DataFrame:
        """All inputs as one DataFrame."""
        packets = [make(Packing(number, (), 1)) for number, make in enumerate(self._packets)]
        return reduce(DataFrame.union, packets) if packets else together(self.arrivals)

    def run(self, state: State, rows: pa.Table, watermark: int) -> pa.Table:
        """What the operator makes of one batch of `frame`."""
        return self.steps.step(
            state, [self._arrived(rows, number) for number in range(len(self.arrivals))], watermark
        )

    def _arrived(self, rows: pa.Table, number: int) -> pa.Table:
        """The rows of one input, in order."""
        arrival = self.arrivals[number]
        if self._packets:
            rows = _unpacked(rows, number, pa.schema([*arrival.schema, (TIME, pa.int64())]))
        else:
            rows = rows if len(self.arrivals) == 1 else _taken_apart(rows, number)
            if TIME not in rows.column_names:  # an operator before this one has said it
                times = rows.column(arrival.time).combine_chunks().view(pa.int64())
                rows = rows.append_column(pa.field(TIME, pa.int64()), times)
        order = _order(rows, [PARTITION, OFFSET] if self.by_offset else [TIME, PARTITION, OFFSET])
        return rows if order is None else rows.take(pa.array(order))


def _unpacked(packets: pa.Table, number: int, schema: pa.Schema) -> pa.Table:
    """The rows of the packets of one input."""
    mine = packets.filter(pc.equal(packets.column("input"), number)).column("rows")
    return unpacked((one.as_buffer() for one in mine), schema) if len(mine) else schema.empty_table()


def _taken_apart(rows: pa.Table, number: int) -> pa.Table:
    """The rows of one input out of those that came together."""
    mine = rows.filter(pc.equal(rows.column(_INPUT), number)).column(f"_hw_{number}")
    batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in mine.chunks]
    return pa.Table.from_batches(batches, schema=pa.schema(list(mine.type)))


def together(arrivals: Sequence[Arrival]) -> DataFrame:
    """Several inputs as one DataFrame, for Spark runs one query: each in a column of its own."""
    if len(arrivals) == 1:
        return arrivals[0].frame
    tagged = [
        arrival.frame.select(F.lit(number).alias(_INPUT), F.struct("*").alias(f"_hw_{number}"))
        for number, arrival in enumerate(arrivals)
    ]
    return reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), tagged)


def _order(rows: pa.Table, names: list[str]) -> Any:
    """Where each row goes; None when all are where they belong."""
    columns = [rows.column(name).to_numpy() for name in names if name in rows.column_names]
    order = np.lexsort(columns[::-1])
    return None if (order[1:] > order[:-1]).all() else order
