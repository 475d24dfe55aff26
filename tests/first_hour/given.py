"""What is sent to the shop of the first hour, and what its fourteen pipelines must then hold: DuckDB's answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

__all__ = ["COLUMNS", "EXPECTED", "NOON", "TIMED", "events", "expected_rows", "found_rows"]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIMED = ("orders", "payments", "prices")
"""The topics with event time: their history is complete once all is sent, so all windows close."""
CATEGORIES = ("tea", "ink", "pens")

EXPECTED = {
    "revenue": """
        select time_bucket(interval 1 minute, placed_at), category, sum(cents)::bigint, count(*)
        from orders group by all""",
    "busy": """
        select span, count(*) from orders,
            unnest([time_bucket(interval 5 minutes, placed_at), time_bucket(interval 5 minutes, placed_at)
                - interval 5 minutes]) as spans(span)
        group by all""",
    "visits": """
        with marked as (select *, placed_at - lag(placed_at) over customer >= interval 5 minutes as first
            from orders window customer as (partition by customer_id order by placed_at, order_id)),
        numbered as (select *, count(*) filter (first) over
            (partition by customer_id order by placed_at, order_id) as number from marked)
        select customer_id, min(placed_at), count(*) from numbered group by customer_id, number""",
    "best": """
        select time_bucket(interval 1 hour, minute), max(cents)::bigint
        from (select time_bucket(interval 1 minute, placed_at) as minute, category, sum(cents) as cents
            from orders group by all) group by all""",
    "large": "select order_id, cents from orders where cents > 9000",
    "totals": "select category, count(*), sum(cents)::bigint from orders group by all",
    "paid": """
        select order_id, payment_id from orders join payments
        on order_id = order_ref and paid_at between placed_at and placed_at + interval 10 minutes""",
    "outcomes": """
        select order_id, placed_at, payment_id from orders left join payments
        on order_id = order_ref and paid_at between placed_at and placed_at + interval 10 minutes""",
    "labelled": "select order_id, name, section from orders left join products using (product_id)",
    "priced": "select order_id, price from orders asof left join prices on orders.product_id = prices.product_id "
    "and placed_at >= since",
    "sections": "select section, count(*), max(price) from products group by all",
    "dearest": """
        select product_id, name, section, price from products
        qualify row_number() over (partition by section order by price desc, product_id) = 1""",
    "recent": """
        select a.order_id, count(b.order_id) from orders a left join orders b on a.customer_id = b.customer_id
            and b.placed_at >= a.placed_at - interval 10 minutes and b.placed_at < a.placed_at
        group by all""",
    "spent": "select customer_id, sum(cents)::bigint from orders group by all",
}
"""The same questions in DuckDB's SQL, over all that was sent; a window is its start."""

COLUMNS = {
    "revenue": ("minute", "category", "cents", "orders"),
    "busy": ("span", "orders"),
    "visits": ("customer_id", "session", "orders"),
    "best": ("hour", "cents"),
    "large": ("order_id", "cents"),
    "totals": ("category", "n", "cents"),
    "paid": ("order_id", "payment_id"),
    "outcomes": ("order_id", "placed_at", "payment_id"),
    "labelled": ("order_id", "name", "section"),
    "priced": ("order_id", "price"),
    "sections": ("section", "n", "top"),
    "dearest": ("product_id", "name", "section", "price"),
    "recent": ("order_id", "before"),
    "spent": ("customer_id", "cents"),
}
"""The columns of each pipeline, in the order of its query."""


def events(orders: int = 300) -> dict[str, list[dict[str, Any]]]:
    """Rows of each topic, the same in every run, in the order in which they are sent; no event is late."""
    chance = random.Random(17)
    products = [
        {"product_id": n, "name": f"product {n}", "section": chance.choice("abc"), "price": Decimal(n * 150) / 100}
        for n in range(1, 9)
    ]
    prices = [
        {"product_id": n, "price": 10 * n + step, "since": NOON + timedelta(minutes=20 * step - 60)}
        for step in range(6)
        for n in range(1, 9)
    ]
    return {"products": products, "prices": prices, **_sales(chance, orders)}


def _sales(chance: random.Random, number: int) -> dict[str, list[dict[str, Any]]]:
    orders, payments = [], []
    for n in range(number):
        at = NOON + timedelta(seconds=17 * n + chance.randint(-20, 20))
        customer, product = chance.randint(1, 12), chance.randint(1, 9)  # product 9 is in no table
        row = {"order_id": n, "customer_id": customer, "product_id": product, "category": chance.choice(CATEGORIES)}
        orders.append(row | {"cents": chance.randint(100, 10_000), "placed_at": at})
        if chance.random() < 0.7:
            paid_at = at + timedelta(seconds=chance.randint(0, 900))
            payments.append({"payment_id": 1000 + n, "order_ref": n, "paid_at": paid_at})
    return {"orders": orders, "payments": sorted(payments, key=lambda row: row["paid_at"])}


def expected_rows(sent: dict[str, list[dict[str, Any]]]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yields each pipeline with its rows, as sorted tuples of text."""
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for topic, rows in sent.items():
            connection.register(f"sent_{topic}", pa.Table.from_pylist(rows))
            connection.execute(f"create table {topic} as from sent_{topic}")
        for name, query in EXPECTED.items():
            yield name, as_text(connection.execute(query).fetchall())


def found_rows(name: str, rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of a pipeline in the form of `expected_rows`."""
    return as_text([row[column] for column in COLUMNS[name]] for row in rows)


def as_text(rows: Any) -> list[tuple[str, ...]]:
    """Rows in an order and a form that differ only if their values differ."""
    return sorted(tuple(map(_text, row)) for row in rows)


def _text(value: Any) -> str:
    if isinstance(value, dict):  # a window
        value = value["start"]
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value)
