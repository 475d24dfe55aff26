"""Pipelines, inputs and built queries as plain data, for tests that need no Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa

import headwater as hw
from headwater.engine.build.build import BuiltQuery
from headwater.engine.build.inputs import Input, InputOptions, RowBehaviour
from headwater.pipelines import Pipeline, PipelineKind
from headwater.store import ViewTable
from headwater.store.changelog import change_schema

ORDERS = "id int, at timestamp"
ROWS = pa.schema([("id", pa.int32())])


def pipeline(kind: PipelineKind = PipelineKind.VIEW, **options: Any) -> Pipeline:
    """A pipeline over orders; `options` are fields of `Pipeline`."""
    given = {"name": "big", "kind": kind, "inputs": ("orders",), "key": ("id",), "sql": "select * from orders"}
    return Pipeline(**given | options)


def orders(name: str = "orders", **options: Any) -> Input:
    """An input with plain events, which are late after 5 seconds."""
    return Input(name, hw.Topic.declare(name, ORDERS, time="at", lateness="5 seconds", **options))


def view(name: str, behaviour: RowBehaviour = RowBehaviour.CHANGING) -> Input:
    """An input with the changes of a view."""
    topic = hw.Topic.declare(f"{name}.changes", change_schema(ViewTable(name, 1, ROWS, ("id",))))
    return Input.of_view(name, topic, behaviour, ("id",))


def options(*inputs: Input, **more: Any) -> InputOptions:
    """How these inputs are read: from offset 0."""
    names = [input_.name for input_ in inputs]
    files, starts = {name: f"skips-{name}" for name in names}, {name: {0: 0} for name in names}
    return InputOptions("log", "pacing", "barrier", files, starts, **more)


def built(
    pipeline_: Pipeline, *inputs: Input, drop_late: bool = True, schema: pa.Schema = ROWS, **more: Any
) -> BuiltQuery:
    """A built query without a DataFrame."""
    given: dict[str, Any] = {"mode": "append", "stateful": (), "window": None, "time": None, "state": ""} | more
    read = options(*inputs, drop_late=drop_late, extra_lateness=timedelta())
    return BuiltQuery(
        pipeline_, inputs, read, frame=None, schema=schema, has_weights=given.pop("has_weights", False), **given
    )
