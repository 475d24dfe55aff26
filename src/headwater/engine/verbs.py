"""What Spark lacks, as functions for a user's pipeline: DataFrames and tables in, a DataFrame out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from headwater.engine.building.placing import arrival, columns_of, placed, table_of
from headwater.engine.keyed.operator import Operator
from headwater.engine.operators.as_of import AsOf
from headwater.engine.operators.enrich import Enrich
from headwater.engine.operators.stateful import Stateful
from headwater.engine.operators.vectorised import Vectorised
from headwater.errors import BadPipelineError, Place
from headwater.pipelines import Table
from headwater.units import duration

__all__ = ["enrich", "join_as_of", "stateful"]

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
    return placed(lambda final, last: operator, (left, right), words, "hw.enrich")


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

    def make(*, final: bool, last: bool) -> AsOf:
        return AsOf(columns_of(left), columns_of(right), pairs, how=how, final=final, valid_from=valid_from)

    words = f"versions of {table.inputs[0]} by {_named(pairs)}"
    return placed(make, (left, right), words, "hw.join_as_of")


def stateful(  # noqa: PLR0913 - what a user may say of a function
    events: DataFrame,
    *,
    by: str | Sequence[str],
    fn: Callable[..., Any],
    returns: Any,
    state: Any = dict,
    version: int = 1,
    upgrade: Callable[[int, Any], Any] | None = None,
    expire: str | timedelta | None = None,
    on_expire: Callable[[Any, Any], Any] | None = None,
) -> DataFrame:
    """Your own logic with state per key.

    With a type as `state`, the function is called for each key that has new events: `fn(key, events, state)` returns
    the new state (None forgets the key) and rows as dicts. With columns as `state`, such as "n bigint, total double",
    it is called once for all: `fn(events, at, states, keys)` changes arrays in place and returns an Arrow table.

    Args:
        events: The events.
        by: The column or columns that are the key.
        fn: The function.
        returns: The columns of its rows, as DDL text or Arrow schema.
        state: A dataclass, a msgspec struct or dict; or columns of fixed width, as DDL text or Arrow schema.
        version: Which form of the state the function works with.
        upgrade: Makes a state of this version out of an older one: `upgrade(version, plain)`.
        expire: How long after its last event a key is forgotten, in event time.
        on_expire: Gives rows for a key that is forgotten so: `on_expire(key, state)`.

    Raises:
        BadPipelineError: It cannot be as it is declared.

    Example:
        >>> import headwater as hw
        >>> from headwater.testing import run
        >>> app = hw.App("shop")
        >>> orders = app.topic("orders", "customer int, amount int")
        >>> def spent(customer, orders, state):
        ...     total = (state or {"total": 0})["total"] + sum(order["amount"] for order in orders)
        ...     return {"total": total}, [{"customer": customer, "total": total}]
        >>> @app.view(key="customer")
        ... def totals(orders: DataFrame) -> DataFrame:
        ...     return hw.stateful(orders, by="customer", fn=spent, returns="customer int, total bigint")
        >>> with run(app) as world:
        ...     _ = world.send("orders", {"customer": 1, "amount": 3}, {"customer": 1, "amount": 4})
        ...     world.settle()
        ...     world.rows("totals")
        [{'customer': 1, 'total': 7}]
    """
    left = arrival(events, "hw.stateful")
    columns, keys = columns_of(left), [by] if isinstance(by, str) else list(by)

    def make(*, final: bool, last: bool) -> Operator:
        if isinstance(state, str | pa.Schema):
            _require_plain(version=version != 1, upgrade=upgrade, expire=expire, on_expire=on_expire)
            return Vectorised(columns, by=keys, fn=fn, returns=returns, state=state)
        return Stateful(
            columns, by=keys, fn=fn, returns=returns, state=state, version=version, upgrade=upgrade, expire=expire,
            on_expire=on_expire, refuse=last,
        )  # fmt: skip

    words = f"states of {getattr(fn, '__name__', 'a function')} by {', '.join(keys)}"
    return placed(make, (left,), words, "hw.stateful")


def _require_plain(**options: Any) -> None:
    """Refuse what only a function for each key can have."""
    for name, value in options.items():
        if value:
            what = f"hw.stateful with columns as state has no {name}"
            raise BadPipelineError(what, fix="state=… with a type", place=Place.of_caller(), option=name)


def _pairs(on: On) -> tuple[tuple[str, str], ...]:
    if isinstance(on, str):
        return ((on, on),)
    if isinstance(on, Mapping):
        return tuple(on.items())
    return tuple((name, name) for name in on)


def _named(pairs: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(right for _, right in pairs)
