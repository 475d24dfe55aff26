"""Enrichment: events joined with the current rows of tables, and policies for an event without a row."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

app = hw.App("shop")
app.topic("orders", "order_id int, product_id int, customer_id int, amount int, at timestamp", time="at")
app.table("products", "product_id int, category string", key="product_id")
app.table("customers", "customer_id int, country string", key="customer_id")


@app.view(key=("minute", "category", "country"))
def revenue(orders: DataFrame, products: hw.Table, customers: hw.Table) -> DataFrame:
    """Joins two tables, then aggregates by window, in one Spark query."""
    known = hw.enrich(hw.enrich(orders, products, on="product_id"), customers, on="customer_id")
    minute = F.window("at", "1 minute").alias("minute")
    return known.groupBy(minute, "category", "country").agg(F.sum("amount").alias("revenue"))


@app.view(key="order_id")
def checked(orders: DataFrame, products: hw.Table) -> DataFrame:
    """An order for an unknown product waits for a minute, and is then quarantined."""
    return hw.enrich(orders, products, on="product_id", missing="quarantine", wait="1 minute")


def order(order_id: int, product_id: int, customer_id: int, amount: int, second: int) -> dict[str, object]:
    """One order in the first minute after noon."""
    at = f"2026-01-01T12:00:{second:02}Z"
    return {
        "order_id": order_id, "product_id": product_id, "customer_id": customer_id, "amount": amount, "at": at,
    }  # fmt: skip


ORDERS = [order(1, 7, 1, 10, 1), order(2, 8, 2, 20, 2), order(3, 7, 1, 5, 3), order(4, 99, 2, 1, 4)]

if __name__ == "__main__":
    with run(app, now="2026-01-01T12:00:05Z") as world:
        world.send("orders", *ORDERS)  # sent first, but they wait until the tables are loaded
        world.send("products", {"product_id": 7, "category": "tea"}, {"product_id": 8, "category": "ink"})
        world.send("customers", {"customer_id": 1, "country": "IT"}, {"customer_id": 2, "country": "NO"})
        world.settle()
        world.advance("10 minutes")
        world.settle()
        print("revenue:", [(r["category"], r["country"], r["revenue"]) for r in world.rows("revenue")])
        print("checked:", [(row["order_id"], row["category"]) for row in world.rows("checked")])
        print("kept aside:", world.counts("checked").quarantined)
