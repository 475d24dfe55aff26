"""The part of a pipeline that runs at the sink, after Spark: one stateful operator and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.engine.state.key_groups import BatchPacker, decode_ipc, ipc_source_of
from headwater.engine.state.state import (
    OFFSET,
    PARTITION,
    TABLE_INPUT,
    TIME,
    State,
    StatefulStep,
    TableJoin,
    first_open_time,
)

__all__ = ["SinkStage", "StageInput", "union_inputs"]

_INPUT_COLUMN: Final = "_hw_input"


@dataclass(frozen=True)
class StageInput:
    """One input of a sink stage.

    Attributes:
        frame: The rows that Spark delivers.
        time: The column with their event time.
        table: The name of the table that they are; None for events.
    """

    frame: DataFrame
    time: str
    table: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return to_arrow_schema(self.frame.schema, timezone="UTC")


@dataclass(frozen=True)
class SinkStage:
    """An operator at the sink, with the inputs that Spark delivers.

    Attributes:
        operator: The operator, or a dataflow of operators.
        inputs: Its inputs.
        descriptions: Descriptions of its state, for messages.
        order_by_offset: Whether rows are processed in the order of their topic, not of their event time.
    """

    operator: StatefulStep
    inputs: tuple[StageInput, ...]
    descriptions: tuple[str, ...]
    order_by_offset: bool = False

    @cached_property
    def _ipc_sources(self) -> list[Callable[[BatchPacker], DataFrame]]:
        """The sources of the inputs as Arrow IPC batches; empty unless every input has one."""
        found = [ipc_source_of(input_.frame) for input_ in self.inputs]
        return [make for make in found if make] if all(found) else []

    def frame(self) -> DataFrame:
        """Returns all inputs as one DataFrame."""
        batches = [make(BatchPacker(number, (), 1)) for number, make in enumerate(self._ipc_sources)]
        return reduce(DataFrame.union, batches) if batches else union_inputs(self.inputs)

    def run(self, state: State, rows: pa.Table, watermark: int, input_watermarks: Mapping[str, int]) -> pa.Table:
        """Returns the operator's result for one batch of `frame`.

        Args:
            state: The state.
            rows: The batch.
            watermark: The watermark.
            input_watermarks: The watermarks of the inputs, by name.
        """
        inputs = [self._input_rows(rows, number) for number in range(len(self.inputs))]
        if not isinstance(self.operator, TableJoin):
            return self.operator.step(state, inputs, first_open_time(watermark))
        complete = input_watermarks.get(self.inputs[TABLE_INPUT].table or "")
        known = None if complete is None else first_open_time(complete)
        return self.operator.step(state, inputs, first_open_time(watermark), known)

    def _input_rows(self, rows: pa.Table, number: int) -> pa.Table:
        """Returns the rows of one input, in order."""
        input_ = self.inputs[number]
        if self._ipc_sources:
            schema = pa.schema([*input_.schema, (TIME, pa.int64())])
            mine = rows.filter(pc.equal(rows.column("input"), number)).column("rows")
            rows = decode_ipc((one.as_buffer() for one in mine), schema) if len(mine) else schema.empty_table()
        else:
            if len(self.inputs) > 1:  # see `union_inputs`
                mine = rows.filter(pc.equal(rows.column(_INPUT_COLUMN), number)).column(f"_hw_{number}")
                batches = [pa.RecordBatch.from_struct_array(chunk) for chunk in mine.chunks]
                rows = pa.Table.from_batches(batches, schema=pa.schema(list(mine.type)))
            if TIME not in rows.column_names:  # an operator in Spark adds it
                times = rows.column(input_.time).combine_chunks().view(pa.int64())
                rows = rows.append_column(pa.field(TIME, pa.int64()), times)
        names = [PARTITION, OFFSET] if self.order_by_offset else [TIME, PARTITION, OFFSET]
        columns = [rows.column(name).to_numpy() for name in names if name in rows.column_names]
        order = np.lexsort(columns[::-1])
        return rows if (order[1:] > order[:-1]).all() else rows.take(pa.array(order))


def union_inputs(inputs: Sequence[StageInput]) -> DataFrame:
    """Combine several inputs in one DataFrame, each in its own column, because Spark runs one query."""
    if len(inputs) == 1:
        return inputs[0].frame
    tagged = [
        input_.frame.select(F.lit(number).alias(_INPUT_COLUMN), F.struct("*").alias(f"_hw_{number}"))
        for number, input_ in enumerate(inputs)
    ]
    return reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), tagged)
