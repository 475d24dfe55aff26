"""Pipelines that Spark would take and that would then be wrong, or silent, or never end: refused before they run."""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.engine.building.inputs import Input, Rows
from headwater.engine.building.plans import join_waits
from headwater.errors import BadPipelineError
from headwater.pipelines import Kind, Pipeline

__all__ = [
    "check_columns",
    "refuse_chance",
    "refuse_changing",
    "refuse_corrections",
    "refuse_following",
    "refuse_history",
    "refuse_waiting",
    "unrunnable",
]

_CHANCE: Final = re.compile(
    r"\b(rand|randn|uuid|shuffle|current_timestamp|current_date|localtimestamp|now)\("
)


def refuse_chance(pipeline: Pipeline, plan: Any) -> None:
    """Rows must be the same when a range runs again."""
    found = _CHANCE.search(plan.toString())
    if found:
        what = f"{pipeline} uses {found[1]}(), which gives another answer each time"
        detail = "a batch that is run again after a crash must give the same rows"
        fix = "take the time from the event" if found[1] not in ("rand", "randn", "uuid", "shuffle") else None
        raise _bad(pipeline, what, detail, fix)


def refuse_waiting(frame: DataFrame, pipeline: Pipeline) -> None:
    """A join must know when no partner can come any more; Spark would wait for ever and say nothing."""
    for side, wait in join_waits(frame):
        if wait is None:
            what = f"{pipeline} joins two streams without a range of time: its {side} side waits for ever"
            detail = "nothing would ever be forgotten, and an outer join would never give the rows that find no partner"
            fix = (
                "add a range to the condition: paid_at between placed_at and placed_at + interval 10 minutes"
            )
            raise _bad(pipeline, what, detail, fix)


def refuse_changing(pipeline: Pipeline, inputs: tuple[Input, ...]) -> None:
    """A step with state would count every version of a row that changes for ever."""
    for input_ in inputs:
        if input_.rows is Rows.CHANGING:
            what = f'{pipeline} keeps state over view "{input_.name}", whose rows change for ever'
            detail = "it would count each version of a row as a row of its own"
            fix = f"take it as a table: {input_.name}: hw.Table, or write the view in SQL"
            raise _bad(pipeline, what, detail, fix)


def refuse_following(pipeline: Pipeline, verbs: list[str]) -> None:
    """What corrects its rows must be the last step: nobody behind it would know what to do."""
    if verbs:
        what = f"{pipeline} goes on after {verbs[0]}, whose rows are corrected"
        fix = f"return what {verbs[0]} gives in a view, and go on in a pipeline that reads the view"
        raise _bad(pipeline, what, None, fix)


def refuse_corrections(pipeline: Pipeline, verb: str) -> None:
    """Rows of a stream stay as they are."""
    if pipeline.kind is not Kind.VIEW:
        what = f"{pipeline} cannot take back rows, and {verb} corrects what it has given"
        raise _bad(pipeline, what, None, "make it a view: @app.view(key=…)")


def refuse_history(pipeline: Pipeline) -> None:
    """Only a table has a history: events are one already."""
    if pipeline.history is not None:
        what = f"{pipeline} asks for history, and is not made of a table"
        annotated, declared = (
            f"annotate its parameter: {pipeline.inputs[0]}: hw.Table",
            f'app.table("{pipeline.inputs[0]}", …, key=…)',
        )
        raise _bad(pipeline, what, None, annotated if pipeline.sql is None else declared)


def unrunnable(pipeline: Pipeline, refusal: str) -> BadPipelineError:
    """What Spark cannot run as a stream, in any way we could choose."""
    if pipeline.kind is not Kind.VIEW:
        detail = f"its rows would change after they were written\nSpark: {refusal}"
        fix = "make it a view, or group by a window of the event time"
    else:
        detail, fix = f"Spark: {refusal}", "headwater help BAD_PIPELINE"
    return _bad(pipeline, f"{pipeline} cannot run on a stream", detail, fix)


def check_columns(pipeline: Pipeline, schema: pa.Schema) -> None:
    """Columns have one name each, and the key is among them."""
    double = {name for name in schema.names if schema.names.count(name) > 1}
    if double:
        what = f'{pipeline} returns two columns named "{sorted(double)[0]}"'
        raise _bad(pipeline, what, None, "drop one, or give it another name with alias")
    missing = [column for column in pipeline.key if column not in schema.names]
    if missing:
        what = f'{pipeline} returns no column "{missing[0]}", which is its key'
        raise _bad(pipeline, what, f"it returns: {', '.join(schema.names)}", None)


def _bad(pipeline: Pipeline, what: str, detail: str | None, fix: str | None) -> BadPipelineError:
    return BadPipelineError(what, detail=detail, fix=fix, place=pipeline.place, pipeline=pipeline.name)
