"""A view of tables that change: its query is compiled to operators over weighted rows, which run after Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.engine.building.after_spark import AfterSpark, Arrival
from headwater.engine.building.inputs import Input, Reading, Rows, streaming
from headwater.engine.operators.joins.history import History
from headwater.engine.operators.tables.apply import Apply
from headwater.engine.operators.tables.dataflow import TableInput, compile_tables
from headwater.engine.spark.translation import translated
from headwater.errors import BadPipelineError
from headwater.events import row_of_changes
from headwater.pipelines import Kind, Pipeline
from headwater.pipelines.declaring import VALID_FROM
from headwater.pipelines.query import over_inputs, whole_table

__all__ = ["changes_after_spark", "history_after_spark", "kept_by_tables", "tables_after_spark"]


def kept_by_tables(pipeline: Pipeline, inputs: tuple[Input, ...], operators: tuple[str, ...] = ()) -> bool:
    """Whether a query in SQL is about tables as a whole, and not about the events that change them.

    It is when it reads a table that programs write to; when it joins views; when it asks for the history of a view, as
    a table of changes is one; and when it has to remember something about a view whose rows change for ever, which no
    stream could.

    Args:
        pipeline: The query.
        inputs: What it reads.
        operators: What Spark would have to remember to run it on streams.

    Raises:
        BadPipelineError: It reads a table and the events of a topic.
    """
    if pipeline.sql is None:
        return False
    tables = [input_ for input_ in inputs if input_.topic.compact and input_.rows is None]
    if not tables:
        views = all(input_.rows for input_ in inputs)
        changing = any(input_.rows is Rows.CHANGING for input_ in inputs)
        past = pipeline.history is not None
        return views and (past or "join" in operators or (changing and bool(operators)))
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
        raise _bad(pipeline, what, fix)
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


def history_after_spark(
    session: SparkSession, pipeline: Pipeline, sql: str, inputs: tuple[Input, ...], reading: Reading
) -> AfterSpark:
    """A table's present and earlier rows, each with the time it held.

    Raises:
        BadPipelineError: It is not one table as it is, or its key is another.
    """
    (input_, *others) = inputs
    if others or not whole_table(sql, input_.name):
        what = f"{pipeline} keeps the history of something that is not one table as it is"
        in_python = f"def {pipeline.name}({input_.name}: hw.Table) -> hw.Table: return {input_.name}"
        raise _bad(pipeline, what, f'sql="select * from {input_.name}"' if pipeline.sql else in_python)
    if pipeline.key != (*input_.key, VALID_FROM):
        what = f'{pipeline} keeps the history of "{input_.name}" under another key'
        raise _bad(
            pipeline, what, f"key={input_.key[0]!r}" if len(input_.key) == 1 else f"key={input_.key!r}"
        )
    for_ever = pipeline.history in (None, timedelta.max)
    keep = 0 if for_ever else (pipeline.history or timedelta()) // timedelta(microseconds=1)
    steps = History(input_.row, input_.key, keep=keep, forget=not for_ever, valid_from=VALID_FROM)
    frame = streaming(session, inputs, reading)[input_.name]
    words = f"versions of {input_.name} by {', '.join(input_.key)}"
    return AfterSpark(steps, (Arrival(frame, input_.time),), (words,))


def changes_after_spark(
    session: SparkSession, pipeline: Pipeline, input_: Input, reading: Reading
) -> AfterSpark:
    """The table that a topic of changes is about.

    Raises:
        BadPipelineError: The topic is there with another type.
    """
    row = row_of_changes(input_.topic.schema)
    if row is None or input_.topic.partitions > 1:
        what = f'{pipeline} reads topic "{input_.name}", which is not one of changes in one partition'
        raise _bad(pipeline, what, "give it another name")
    steps = Apply(input_.name, row, pipeline.key)
    frame = streaming(session, (input_,), reading)[input_.name]
    return AfterSpark(steps, (Arrival(frame, input_.time),), (steps.words,), by_offset=True)


def _bad(pipeline: Pipeline, what: str, fix: str) -> BadPipelineError:
    return BadPipelineError(what, fix=fix, place=pipeline.place, pipeline=pipeline.name)
