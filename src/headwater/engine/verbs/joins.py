"""Joins of events with tables, as functions for a user's pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from pyspark.sql import DataFrame

from headwater.engine.building.placing import arrival, columns_of, placed, table_of
from headwater.engine.operators.joins.as_of import AsOf
from headwater.engine.operators.joins.enrich import Enrich
from headwater.pipelines import Table
from headwater.units import duration

__all__ = ["enrich", "join_as_of"]

On = str | Sequence[str] | Mapping[str, str]
"""Columns that must be equal: a name that both have, several, or the event's column → the table's."""


def enrich(
    events: DataFrame,
    table: Table,
    *,
    on: On,
    missing: Literal["null", "drop", "quarantine"] = "null",
    wait: str | timedelta = timedelta(),
) -> DataFrame:
    """Each event with the row that a table has for it now, from a copy that the pipeline keeps itself.

    The table is read as far as it goes before the first event is. An event without a row gets nulls, is dropped, or is
    kept aside; with `wait`, it first waits for its row for so long, in event time.

    Args:
        events: The events.
        table: A parameter of the function that is annotated `hw.Table`.
        on: The columns of the table's key: a name that both have, several, or `{"of the event": "of the table"}`.
        missing: What becomes of an event without a row.
        wait: How long it waits for one first.

    Raises:
        BadPipelineError: Columns are missing, cannot be compared, or would be in the result twice.

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
    left, right = arrival(events, "hw.enrich"), table_of(table, "hw.enrich")
    pairs = _pairs(on)
    operator = Enrich(
        columns_of(left),
        columns_of(right),
        pairs,
        how="inner" if missing == "drop" else "left",
        wait=duration(wait) // timedelta(microseconds=1),
        refuse=missing == "quarantine",
    )
    words = f"rows of {table.inputs[0]} by {_named(pairs)}"
    return placed(lambda final: operator, (left, right), words, "hw.enrich")


def join_as_of(
    events: DataFrame,
    table: Table,
    *,
    on: On,
    how: Literal["left", "inner"] = "left",
    valid_from: str | None = None,
) -> DataFrame:
    """Each event with the row that a table had for it at the event's time.

    The answer does not depend on what came first: an event waits, or is corrected, until the table is known up to its
    time. So every rerun gives the same rows. See docs/joins.md for how time is told for a table.

    Args:
        events: The events.
        table: A parameter of the function that is annotated `hw.Table`.
        on: The columns of the table's key: a name that both have, several, or `{"of the event": "of the table"}`.
        how: Whether an event without a row gets nulls ("left") or is left out ("inner").
        valid_from: The name for a column that says since when the row held.

    Raises:
        BadPipelineError: Columns are missing, cannot be compared, or would be in the result twice.

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
    left, right = arrival(events, "hw.join_as_of"), table_of(table, "hw.join_as_of")
    pairs = _pairs(on)

    def make(*, final: bool) -> AsOf:
        return AsOf(columns_of(left), columns_of(right), pairs, how=how, final=final, valid_from=valid_from)

    words = f"versions of {table.inputs[0]} by {_named(pairs)}"
    return placed(make, (left, right), words, "hw.join_as_of")


def _pairs(on: On) -> tuple[tuple[str, str], ...]:
    if isinstance(on, str):
        return ((on, on),)
    if isinstance(on, Mapping):
        return tuple(on.items())
    return tuple((name, name) for name in on)


def _named(pairs: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(right for _, right in pairs)
