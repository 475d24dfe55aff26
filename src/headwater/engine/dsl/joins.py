"""Joins of events with tables, for a user's pipeline: `enrich` and `join_as_of`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from pyspark.sql import DataFrame

from headwater.engine.build.placement import (
    late_correction,
    place_operator,
    stream_input,
    table_input,
    visible_schema,
)
from headwater.engine.operators.arguments import require_choice
from headwater.engine.operators.as_of_join import AsOfJoin
from headwater.engine.operators.enrich import Enrich
from headwater.pipelines import Table
from headwater.units import duration

__all__ = ["enrich", "join_as_of"]

JoinColumns = str | Sequence[str] | Mapping[str, str]
"""Columns that must be equal: a name that both have, several, or the event's column → the table's."""


def enrich(
    events: DataFrame,
    table: Table,
    *,
    on: JoinColumns,
    missing: Literal["null", "drop", "quarantine"] = "null",
    wait: str | timedelta = timedelta(),
) -> DataFrame:
    """Join each event with the current row of a table, from a copy that the pipeline keeps.

    The table is read to its current end before the first event is processed. An event without a row gets nulls, is
    dropped, or is quarantined. With `wait`, it first waits this long for its row, in event time. It is then older than
    the watermark, so windows and other steps that wait for event time cannot follow in the same pipeline, unless
    `late=hw.correct(…)` of the pipeline accepts late events for at least that long.

    Args:
        events: The events.
        table: A parameter of the function that is annotated `hw.Table`.
        on: The columns of the table's key: a common name, several, or `{"event column": "table column"}`.
        missing: The handling of an event without a row.
        wait: How long an event waits for its row first.

    Raises:
        BadPipelineError: `missing` is unknown, or columns are missing, cannot be compared, or would occur twice in the
            result.

    Example:
        >>> import headwater as hw
        >>> from headwater.testing import run
        >>> app = hw.App("shop")
        >>> orders = app.topic("orders", "order_id int, product_id int")
        >>> products = app.table("products", "product_id int, name string", key="product_id")
        >>> @app.view(key="order_id")
        ... def named(orders: DataFrame, products: hw.Table) -> DataFrame:
        ...     return hw.enrich(orders, products, on="product_id")
        >>> with run(app) as world:
        ...     _ = world.send("products", {"product_id": 7, "name": "pen"})
        ...     _ = world.send("orders", {"order_id": 1, "product_id": 7})
        ...     world.settle()
        ...     [(row["order_id"], row["name"]) for row in world.rows("named")]
        [(1, 'pen')]
    """
    require_choice("hw.enrich", "missing", missing, ("null", "drop", "quarantine"))
    left, right = stream_input(events, "hw.enrich"), table_input(table, "hw.enrich")
    pairs = _column_pairs(on)
    operator = Enrich(
        visible_schema(left),
        visible_schema(right),
        pairs,
        how="inner" if missing == "drop" else "left",
        wait=duration(wait) // timedelta(microseconds=1),
        quarantine=missing == "quarantine",
        correction=late_correction("hw.enrich"),
    )
    description = f"rows of {table.inputs[0]} by {_table_columns(pairs)}"
    # A joined row is never corrected, so one operator serves whether or not rows must be final.
    return place_operator(lambda final: operator, (left, right), description, "hw.enrich", delay=max(0, operator.delay))


def join_as_of(
    events: DataFrame,
    table: Table,
    *,
    on: JoinColumns,
    how: Literal["left", "inner"] = "left",
    valid_from: str | None = None,
) -> DataFrame:
    """Join each event with the row that a table had at the event's time.

    The result does not depend on the order of arrival: until the table is complete up to the event's time, the event
    waits, or its row is corrected if the join is the last step of a view. So every rerun gives the same rows.
    docs/joins.md describes the event time of a table.

    Args:
        events: The events.
        table: A parameter of the function that is annotated `hw.Table`.
        on: The columns of the table's key: a common name, several, or `{"event column": "table column"}`.
        how: Whether an event without a row gets nulls ("left") or is dropped ("inner").
        valid_from: The name of a column with the time from which the row is valid.

    Raises:
        BadPipelineError: `how` is unknown, or columns are missing, cannot be compared, or would occur twice in the
            result.

    Example:
        >>> import headwater as hw
        >>> from headwater.testing import run
        >>> app = hw.App("shop")
        >>> orders = app.topic("orders", "order_id int, product_id int, at timestamp", time="at")
        >>> prices = app.table("prices", "product_id int, price int, since timestamp", key="product_id", time="since")
        >>> @app.view(key="order_id")
        ... def priced(orders: DataFrame, prices: hw.Table) -> DataFrame:
        ...     return hw.join_as_of(orders, prices, on="product_id")
        >>> with run(app, now="2026-01-01T12:00:00Z") as world:
        ...     _ = world.send("prices", {"product_id": 7, "price": 10, "since": "2026-01-01T10:00:00Z"},
        ...                    {"product_id": 7, "price": 12, "since": "2026-01-01T11:00:00Z"})
        ...     _ = world.send("orders", {"order_id": 1, "product_id": 7, "at": "2026-01-01T10:30:00Z"})
        ...     world.settle()
        ...     [(row["order_id"], row["price"]) for row in world.rows("priced")]
        [(1, 10)]
    """
    left, right = stream_input(events, "hw.join_as_of"), table_input(table, "hw.join_as_of")
    pairs, correction = _column_pairs(on), late_correction("hw.join_as_of")

    def make(*, final: bool) -> AsOfJoin:
        return AsOfJoin(
            visible_schema(left),
            visible_schema(right),
            pairs,
            how=how,
            final=final,
            valid_from=valid_from,
            correction=correction if final else 0,
        )

    description = f"versions of {table.inputs[0]} by {_table_columns(pairs)}"
    return place_operator(make, (left, right), description, "hw.join_as_of")


def _column_pairs(on: JoinColumns) -> tuple[tuple[str, str], ...]:
    if isinstance(on, str):
        return ((on, on),)
    if isinstance(on, Mapping):
        return tuple(on.items())
    return tuple((name, name) for name in on)


def _table_columns(pairs: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(right for _, right in pairs)
