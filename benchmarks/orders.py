"""The event that every benchmark sends: an order of six typed fields, 200 bytes as JSON."""

from __future__ import annotations

import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

__all__ = ["JSON_BYTES", "SCHEMA", "arrow_orders", "json_orders", "orders"]

JSON_BYTES = 200
SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.string()),
        pa.field("customer_id", pa.int64()),
        pa.field("product_id", pa.int64()),
        pa.field("amount", pa.decimal128(12, 2)),
        pa.field("placed_at", pa.timestamp("us", "UTC")),
        pa.field("note", pa.string()),
    ]
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz "


@cache
def orders(count: int) -> list[dict[str, Any]]:
    """Returns `count` orders as dicts, the same in every run.

    Example:
        >>> len(orders(3)), sorted(orders(1)[0])
        (3, ['amount', 'customer_id', 'note', 'order_id', 'placed_at', 'product_id'])
    """
    chance = random.Random(7)
    first = datetime(2026, 1, 1, tzinfo=UTC)
    return [_order(chance, first + timedelta(milliseconds=number)) for number in range(count)]


@cache
def arrow_orders(count: int) -> pa.RecordBatch:
    """Returns the same orders as one Arrow batch."""
    return pa.RecordBatch.from_pylist(orders(count), schema=SCHEMA)


@cache
def json_orders(count: int) -> list[bytes]:
    """Returns the same orders as JSON, each of `JSON_BYTES` bytes."""
    return [_json(order) for order in orders(count)]


def _order(chance: random.Random, placed_at: datetime) -> dict[str, Any]:
    order: dict[str, Any] = {
        "order_id": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
        "customer_id": chance.randrange(100_000),
        "product_id": chance.randrange(10_000),
        "amount": Decimal(chance.randrange(100, 100_000)) / 100,
        "placed_at": placed_at,
        "note": "",
    }
    missing = JSON_BYTES - len(_json(order))
    return {**order, "note": "".join(chance.choices(_LETTERS, k=missing))}


def _json(order: dict[str, Any]) -> bytes:
    placed_at = order["placed_at"].isoformat(timespec="microseconds").replace("+00:00", "Z")
    plain = {**order, "amount": str(order["amount"]), "placed_at": placed_at}
    return json.dumps(plain, separators=(",", ":")).encode()
