"""A view of tables that change: its query is compiled to operators over weighted rows, which run after Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.engine.building.after_spark import AfterSpark, Arrival
from headwater.engine.building.inputs import Input, Reading, Rows, streaming
from headwater.engine.operators.tables.dataflow import TableInput, compile_tables
from headwater.engine.spark.translation import translated
from headwater.errors import BadPipelineError
from headwater.pipelines import Kind, Pipeline
from headwater.pipelines.query import over_inputs

__all__ = ["kept_by_tables", "tables_after_spark"]


def kept_by_tables(pipeline: Pipeline, inputs: tuple[Input, ...], *, stateful: bool = False) -> bool:
    """Whether a query in SQL is about tables as a whole, and not about the events that change them.

    It is when it reads a table that programs write to; or when it has to remember something about a view whose rows
    change for ever, which no stream could.

    Raises:
        BadPipelineError: It reads a table and the events of a topic.
    """
    if pipeline.sql is None:
        return False
    tables = [input_ for input_ in inputs if input_.topic.compact and input_.rows is None]
    if not tables:
        return (
            stateful
            and any(input_.rows is Rows.CHANGING for input_ in inputs)
            and all(i.rows for i in inputs)
        )
    events = [input_ for input_ in inputs if input_.rows is None and not input_.topic.compact]
    if events:
        what = f'{pipeline} joins the events of "{events[0].name}" with the table "{tables[0].name}" in SQL'
        detail = "a row of the table may change after the event: say which row is meant"
        fix = "in Python: hw.enrich(…) for the row as it is now, hw.join_as_of(…) for the row at the event's time"
        raise BadPipelineError(what, detail=detail, fix=fix, place=pipeline.place, pipeline=pipeline.name)
    return True


def _columns(pipeline: Pipeline, sql: str, inputs: tuple[Input, ...], session: SparkSession) -> pa.Schema:
    """The columns of a query over tables, as Spark understands it.

    Raises:
        BadPipelineError: Spark does not understand it, or its result is no view.
    """
    if pipeline.kind is not Kind.VIEW:
        what = f"{pipeline} is made of tables that change, so its rows change, too"
        fix = f'@app.view(key=…), or read "{inputs[0].name}" as events: {inputs[0].name}: DataFrame'
        raise BadPipelineError(what, fix=fix, place=pipeline.place, pipeline=pipeline.name)
    frames: dict[str, Any] = {f"i{n}": _empty(session, input_) for n, input_ in enumerate(inputs)}
    try:
        found = session.sql(over_inputs(sql, tuple(input_.name for input_ in inputs)), **frames).schema
    except Exception as error:
        raise translated(error, pipeline) from error
    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(found, timezone="UTC")])


def _empty(session: SparkSession, input_: Input) -> DataFrame:
    """A table without rows; `createDataFrame` would make this session the one of the whole thread."""
    columns = [F.lit(None).cast(f.dataType).alias(f.name) for f in from_arrow_schema(input_.row)]
    return session.range(0).select(*columns)


def tables_after_spark(
    session: SparkSession, pipeline: Pipeline, sql: str, inputs: tuple[Input, ...], reading: Reading
) -> AfterSpark:
    """The query as operators, each input as the changes of its table.

    Raises:
        BadSqlError: A part of the query cannot be kept right.
    """
    flow = compile_tables(
        sql,
        {input_.name: TableInput(input_.row, input_.key) for input_ in inputs},
        key=pipeline.key,
        types=_columns(pipeline, sql, inputs, session),
        what=str(pipeline),
        place=pipeline.place,
    )
    frames = streaming(session, inputs, reading)
    arrivals = {input_.name: Arrival(frames[input_.name], input_.time) for input_ in inputs}
    return AfterSpark(flow, tuple(arrivals[name] for name in flow.inputs), flow.words, by_offset=True)
