"""Joins of streams: an inner join within a time range, an outer join, and a self-join."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

app = hw.App("shop")
app.topic("orders", "order_id int, card string, city string, placed_at timestamp", time="placed_at")
app.topic("payments", "payment_id int, order_ref int, paid_at timestamp", time="paid_at")
WITHIN = "order_id = order_ref and paid_at between placed_at and placed_at + interval 10 minutes"


@app.stream
def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Inner: orders with their payment, as soon as both are there."""
    return orders.join(payments, F.expr(WITHIN)).select("order_id", "payment_id", "paid_at")


@app.view(key="order_id")
def settled(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Left: every order; without a payment as soon as none can arrive any more."""
    found = orders.join(payments, F.expr(WITHIN), "left")
    return found.select("order_id", "placed_at", "payment_id")


@app.view(key=("first", "second"))
def travellers(orders: DataFrame) -> DataFrame:
    """Self: one card in two cities within five minutes."""
    a, b = orders.alias("a"), orders.alias("b")
    near = "b.placed_at > a.placed_at and b.placed_at <= a.placed_at + interval 5 minutes"
    found = a.join(b, F.expr(f"a.card = b.card and a.city <> b.city and {near}"))
    return found.select(F.col("a.order_id").alias("first"), F.col("b.order_id").alias("second"), "a.card")


START = datetime(2026, 1, 1, tzinfo=UTC)
ORDERS = [(1, "x", "Rome", 0), (2, "y", "Oslo", 1), (3, "x", "Bonn", 3), (4, "x", "Rome", 20)]  # minute last
PAYMENTS = [(91, 1, 2), (92, 3, 12), (93, 2, 30)]  # the third pays after 29 minutes: too late for its order

if __name__ == "__main__":
    with run(app) as world:
        for order_id, card, city, minute in ORDERS:
            at = START + timedelta(minutes=minute)
            world.send("orders", {"order_id": order_id, "card": card, "city": city, "placed_at": at})
        for payment_id, order, minute in PAYMENTS:
            at = START + timedelta(minutes=minute)
            world.send("payments", {"payment_id": payment_id, "order_ref": order, "paid_at": at})
        world.advance("1 hour")
        world.settle()
        print("paid:", [tuple(event.value.values())[:2] for event in world.client.read("paid") if event.value])
        print("settled:", {row["order_id"]: row["payment_id"] for row in world.rows("settled")})
        print("travellers:", [tuple(row.values()) for row in world.rows("travellers")])
