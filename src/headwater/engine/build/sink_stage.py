"""The part of a pipeline that runs at the sink, after Spark: one stateful operator and its inputs."""

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

from headwater.engine.state.key_groups import BatchPacker, decode_ipc, ipc_source_of
from headwater.engine.state.state import OFFSET, PARTITION, TIME, State

__all__ = ["SinkOperator", "SinkStage", "StageInput", "union_inputs"]

_INPUT_COLUMN: Final = "_hw_input"


class SinkOperator(Protocol):
    """An operator, or a chain of operators, that can run at the sink."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its result."""

    @property
    def form(self) -> str:
        """The description of its state; a state written under another form cannot be read."""

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process new rows; see `headwater.engine.state.state.Operator`."""


@dataclass(frozen=True)
class StageInput:
    """One input of a sink stage.

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
class SinkStage:
    """An operator at the sink, with the inputs that Spark delivers.

    Attributes:
        operator: What runs.
        inputs: Its inputs.
        descriptions: What it keeps in state, for messages.
        order_by_offset: Whether rows are taken in the order of their topic, and not of their time.
    """

    operator: SinkOperator
    inputs: tuple[StageInput, ...]
    descriptions: tuple[str, ...]
    order_by_offset: bool = False

    @cached_property
    def _ipc_sources(self) -> list[Callable[[BatchPacker], DataFrame]]:
        """Returns how all inputs arrive as Arrow IPC batches; None unless all of them can."""
        found = [ipc_source_of(arrival.frame) for arrival in self.inputs]
        return [make for make in found if make] if all(found) else []

    def frame(self) -> DataFrame:
        """Returns all inputs as one DataFrame."""
        packets = [make(BatchPacker(number, (), 1)) for number, make in enumerate(self._ipc_sources)]
        return reduce(DataFrame.union, packets) if packets else union_inputs(self.inputs)

    def run(self, state: State, rows: pa.Table, watermark: int) -> pa.Table:
        """Returns the operator's result for one batch of `frame`."""
        return self.operator.step(
            state, [self._input_rows(rows, number) for number in range(len(self.inputs))], watermark
        )

    def _input_rows(self, rows: pa.Table, number: int) -> pa.Table:
        """Returns the rows of one input, in order."""
        arrival = self.inputs[number]
        if self._ipc_sources:
            rows = _decode_input(rows, number, pa.schema([*arrival.schema, (TIME, pa.int64())]))
        else:
            rows = rows if len(self.inputs) == 1 else _select_input(rows, number)
            if TIME not in rows.column_names:  # an operator before this one has said it
                times = rows.column(arrival.time).combine_chunks().view(pa.int64())
                rows = rows.append_column(pa.field(TIME, pa.int64()), times)
        order = _sort_order(rows, [PARTITION, OFFSET] if self.order_by_offset else [TIME, PARTITION, OFFSET])
        return rows if order is None else rows.take(pa.array(order))


def _decode_input(batches: pa.Table, number: int, schema: pa.Schema) -> pa.Table:
    """Returns the rows of the Arrow IPC batches of one input."""
    mine = batches.filter(pc.equal(batches.column("input"), number)).column("rows")
    return decode_ipc((one.as_buffer() for one in mine), schema) if len(mine) else schema.empty_table()


def _select_input(rows: pa.Table, number: int) -> pa.Table:
    """Returns the rows of one input from the combined rows."""
    mine = rows.filter(pc.equal(rows.column(_INPUT_COLUMN), number)).column(f"_hw_{number}")
    batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in mine.chunks]
    return pa.Table.from_batches(batches, schema=pa.schema(list(mine.type)))


def union_inputs(inputs: Sequence[StageInput]) -> DataFrame:
    """Combine several inputs in one DataFrame, each in its own column, because Spark runs one query."""
    if len(inputs) == 1:
        return inputs[0].frame
    tagged = [
        arrival.frame.select(F.lit(number).alias(_INPUT_COLUMN), F.struct("*").alias(f"_hw_{number}"))
        for number, arrival in enumerate(inputs)
    ]
    return reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), tagged)


def _sort_order(rows: pa.Table, names: list[str]) -> Any:
    """Returns the sort order of the rows; None if they are already sorted."""
    columns = [rows.column(name).to_numpy() for name in names if name in rows.column_names]
    order = np.lexsort(columns[::-1])
    return None if (order[1:] > order[:-1]).all() else order
