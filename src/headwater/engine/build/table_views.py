"""Builds views over tables that change.

The query is compiled to operators over Z-set rows (`headwater.engine.tables`), which run at the sink. Spark only
delivers the changes of the tables.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.engine.build.checks import pipeline_error
from headwater.engine.build.inputs import Input, InputOptions, RowBehaviour, stream_inputs
from headwater.engine.build.sink_stage import SinkStage, StageInput
from headwater.engine.operators.table_history import TableHistory
from headwater.engine.spark.error_translation import translate_error
from headwater.engine.tables.apply_changes import ApplyChanges
from headwater.engine.tables.dataflow import TableInput, compile_tables
from headwater.events import change_row_schema, storage_schema
from headwater.pipelines import Pipeline, PipelineKind
from headwater.pipelines.declaration import VALID_FROM
from headwater.pipelines.sql_text import bind_inputs, selects_whole_table

__all__ = ["build_changes_stage", "build_history_stage", "build_table_stage", "is_table_query"]


def is_table_query(pipeline: Pipeline, inputs: tuple[Input, ...], operators: tuple[str, ...] = ()) -> bool:
    """Returns whether a SQL query is about tables as a whole, and not about the events that change them.

    It is, if it reads a declared table, joins views, requests the history of a view, or keeps state over a view whose
    rows may change at any time, which a stream cannot.

    Args:
        pipeline: The pipeline; only one with SQL text can be a table query.
        inputs: Its inputs.
        operators: The steps that would keep state if Spark ran the query on streams.

    Raises:
        BadPipelineError: It reads both a table and the events of a topic.
    """
    if pipeline.sql is None:
        return False
    tables = [input_ for input_ in inputs if input_.topic.compact and input_.row_behaviour is None]
    if not tables:
        views = all(input_.row_behaviour for input_ in inputs)
        changing = any(input_.row_behaviour is RowBehaviour.CHANGING for input_ in inputs)
        has_history = pipeline.history is not None
        return views and (has_history or "join" in operators or (changing and bool(operators)))
    events = [input_ for input_ in inputs if input_.row_behaviour is None and not input_.topic.compact]
    if events:
        what = f'{pipeline} joins the events of "{events[0].name}" with the table "{tables[0].name}" in SQL'
        detail = "a row of the table may change after the event, and SQL does not say which version to join"
        fix = "in Python: hw.enrich(…) for the current row, hw.join_as_of(…) for the row at the event's time"
        raise pipeline_error(pipeline, what, detail, fix)
    return True


def _query_schema(pipeline: Pipeline, sql: str, inputs: tuple[Input, ...], session: SparkSession) -> pa.Schema:
    """Returns the columns of a query over tables, by Spark's analysis of its SQL.

    Raises:
        BadPipelineError: Spark rejects the SQL, or the pipeline is not a view.
    """
    if pipeline.kind is not PipelineKind.VIEW:
        what = f"{pipeline} reads tables that change, so its rows change, too"
        fix = f'@app.view(key=…), or read "{inputs[0].name}" as events: {inputs[0].name}: DataFrame'
        raise pipeline_error(pipeline, what, fix=fix)
    frames: dict[str, Any] = {}
    for number, input_ in enumerate(inputs):  # not by createDataFrame, which sets the thread's active session
        columns = [F.lit(None).cast(f.dataType).alias(f.name) for f in from_arrow_schema(input_.row_schema)]
        frames[f"i{number}"] = session.range(0).select(*columns)
    try:
        found = session.sql(bind_inputs(sql, tuple(input_.name for input_ in inputs)), **frames).schema
    except Exception as error:
        raise translate_error(error, pipeline) from error
    return storage_schema(to_arrow_schema(found, timezone="UTC"))


def build_table_stage(
    session: SparkSession, pipeline: Pipeline, sql: str, inputs: tuple[Input, ...], input_options: InputOptions
) -> SinkStage:
    """Compile the query to operators, with the changes of each table as input.

    Raises:
        BadSqlError: A part of the query cannot be maintained incrementally.
    """
    flow = compile_tables(
        sql,
        {input_.name: TableInput(input_.row_schema, input_.key) for input_ in inputs},
        key=pipeline.key,
        types=_query_schema(pipeline, sql, inputs, session),
        what=str(pipeline),
        location=pipeline.location,
    )
    frames = stream_inputs(session, inputs, input_options)
    stage_inputs = {input_.name: StageInput(frames[input_.name], input_.time) for input_ in inputs}
    return SinkStage(flow, tuple(stage_inputs[name] for name in flow.inputs), flow.descriptions, order_by_offset=True)


def build_history_stage(
    session: SparkSession, pipeline: Pipeline, sql: str, inputs: tuple[Input, ...], input_options: InputOptions
) -> SinkStage:
    """Build the history of a table: current and earlier rows, each with its validity.

    Raises:
        BadPipelineError: The query is not one whole table, or has another key.
    """
    (input_, *others) = inputs
    if others or not selects_whole_table(sql, input_.name):
        what = f"{pipeline} requests the history of a query that is not one whole table"
        in_python = f"def {pipeline.name}({input_.name}: hw.Table) -> hw.Table: return {input_.name}"
        fix = f'sql="select * from {input_.name}"' if pipeline.sql else in_python
        raise pipeline_error(pipeline, what, fix=fix)
    if pipeline.key != (*input_.key, VALID_FROM):
        what = f'{pipeline} keeps the history of "{input_.name}" under another key'
        fix = f"key={input_.key[0]!r}" if len(input_.key) == 1 else f"key={input_.key!r}"
        raise pipeline_error(pipeline, what, fix=fix)
    for_ever = pipeline.history in (None, timedelta.max)
    keep = 0 if for_ever else (pipeline.history or timedelta()) // timedelta(microseconds=1)
    operator = TableHistory(
        input_.row_schema, input_.key, keep=keep, delete_expired=not for_ever, valid_from=VALID_FROM
    )
    frame = stream_inputs(session, inputs, input_options)[input_.name]
    description = f"versions of {input_.name} by {', '.join(input_.key)}"
    return SinkStage(operator, (StageInput(frame, input_.time),), (description,))


def build_changes_stage(
    session: SparkSession, pipeline: Pipeline, input_: Input, input_options: InputOptions
) -> SinkStage:
    """Build the table that a topic of changes describes.

    Raises:
        BadPipelineError: The topic has another type, or several partitions.
    """
    row = change_row_schema(input_.topic.schema)
    if row is None or input_.topic.partitions > 1:
        what = f'{pipeline} needs a topic of changes with one partition, and "{input_.name}" is not one'
        raise pipeline_error(pipeline, what, fix="give it another name")
    operator = ApplyChanges(input_.name, row, pipeline.key)
    frame = stream_inputs(session, (input_,), input_options)[input_.name]
    return SinkStage(operator, (StageInput(frame, input_.time),), (operator.description,), order_by_offset=True)
