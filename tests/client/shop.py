"""The shop's types, declared in every way a user may declare them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pandas
import polars
import pyarrow as pa
import pydantic

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Order:
    """As a dataclass."""

    order_id: str
    customer_id: int
    amount: Decimal
    placed_at: datetime


class OrderModel(pydantic.BaseModel):
    """As a pydantic model."""

    order_id: str
    customer_id: int
    amount: Decimal
    placed_at: datetime


class OrderStruct(msgspec.Struct):
    """As a msgspec struct."""

    order_id: str
    customer_id: int
    amount: Decimal
    placed_at: datetime


def order(number: int, customer: int = 7) -> dict[str, Any]:
    """The n-th order, placed n seconds after noon."""
    return {
        "order_id": f"o-{number}",
        "customer_id": customer,
        "amount": Decimal("1.50") + number,
        "placed_at": NOON + timedelta(seconds=number),
    }


def orders(count: int, customers: int = 20) -> list[dict[str, Any]]:
    """So many orders, of customers in turn."""
    return [order(number, number % customers) for number in range(count)]


def table() -> pa.Table:
    """Three orders as an Arrow table."""
    schema = pa.schema(
        [
            ("order_id", pa.string()),
            ("customer_id", pa.int64()),
            ("amount", pa.decimal128(38, 18)),
            ("placed_at", pa.timestamp("us", "UTC")),
        ]
    )
    return pa.Table.from_pylist(orders(3), schema)


# The same three orders in each form that `send_many` takes.
FORMS: dict[str, Callable[[], Any]] = {
    "dicts": lambda: orders(3),
    "dataclasses": lambda: [Order(**row) for row in orders(3)],
    "pydantic models": lambda: [OrderModel(**row) for row in orders(3)],
    "msgspec structs": lambda: [OrderStruct(**row) for row in orders(3)],
    "Arrow table": table,
    "Arrow batch": lambda: table().to_batches()[0],
    "pandas": lambda: pandas.DataFrame(orders(3)),
    "Polars": lambda: polars.from_arrow(table()),
}


def fresh(word: str = "orders") -> str:
    """A name no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:8]}"
