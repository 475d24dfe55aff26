"""The app whose data folder is pinned: every kind of topic, table and state, in few pipelines.

Do not edit a pipeline: what it kept would not fit any more, and the folder in `written_by_0.1.tar.xz` was written by
this very file. Add a new app and a new archive instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw

TOPICS: dict[str, tuple[Any, dict[str, Any]]] = {
    "orders": (
        "order_id int, customer string, product int, amount int, at timestamp",
        {"key": "customer", "time": "at", "lateness": "10 minutes", "partitions": 2},
    ),
    "payments": (
        "payment_id int, of_order int, paid_at timestamp",
        {"key": "payment_id", "time": "paid_at", "lateness": "10 minutes"},
    ),
    "readings": (
        "device string, celsius double, at timestamp, sent_at timestamp",
        {"key": "device", "time": hw.device_clock("at", sent="sent_at"), "lateness": "1 minute"},
    ),
    "products": (
        "product int, category string, price int, since timestamp",
        {"key": "product", "time": "since", "compact": True},
    ),
    "cities": ("city string, country string", {"key": "city", "compact": True}),
    "parts": ("part int, label string", {"key": "part", "compact": True}),
}
CHANGES = ("account_changes", hw.changes("customer string, city string"))

app = hw.App("formats")
for name, (type_, options) in TOPICS.items():
    app.topic(name, type_, **options)
app.table("accounts", app.topic(*CHANGES, time="at"), key="customer")


# -- windows and joins of Spark's own --------------------------------------------------------------------------------


@app.view(key=("span", "customer"), late=hw.correct(for_="1 hour"))
def revenue(orders: DataFrame) -> DataFrame:
    """Late events of up to an hour correct a row."""
    span = F.window("at", "5 minutes").alias("span")
    return orders.groupBy(span, "customer").agg(F.sum("amount").alias("amount"), F.count("*").alias("n"))


@app.view(key="hour")
def best(revenue: DataFrame) -> DataFrame:
    """A view over the closed windows of a view."""
    hour = F.window("occurred_at", "1 hour").alias("hour")
    return revenue.groupBy(hour).agg(F.max("amount").alias("amount"))


@app.view(key="span")
def warmth(readings: DataFrame) -> DataFrame:
    """Windows over a time that was put right."""
    span = F.window("occurred_at", "1 hour").alias("span")
    return readings.groupBy(span).agg(F.max("celsius").alias("celsius"), F.count("*").alias("n"))


@app.stream
def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """A join of two streams."""
    near = "order_id = of_order and paid_at between at and at + interval 1 hour"
    return orders.join(payments, F.expr(near), "left").select("order_id", "payment_id")


@app.stream
def large(orders: DataFrame) -> DataFrame:
    """No state at all."""
    return orders.where("amount >= 6").select("order_id", "amount")


def half(number: int) -> int:
    """Fails on one event, which is found and left out."""
    if number == 2:
        raise ValueError("two is refused")
    return number // 2


@app.stream
def checked(payments: DataFrame) -> DataFrame:
    """Code of the user's own, in Spark."""
    return payments.select("payment_id", F.udf(half, "int")("payment_id").alias("half"))


@app.files("exports/large")
def exported(orders: DataFrame) -> DataFrame:
    """Parquet files."""
    return orders.where("amount >= 6").select("order_id", "amount")


# -- operators at the sink -------------------------------------------------------------------------------------------


@app.view(key=("customer", "session"))
def visits(orders: DataFrame) -> DataFrame:
    """Sessions."""
    return hw.sessions(orders, by="customer", gap="15 minutes", n="count(*)", total="sum(amount)")


@app.view(key="order_id")
def lately(orders: DataFrame) -> DataFrame:
    """A sliding window."""
    return hw.sliding(orders, by="customer", over="30 minutes", n="count(*)", most="max(amount)")


@app.stream
def firsts(orders: DataFrame) -> DataFrame:
    """The first of equal events."""
    return hw.deduplicate(orders, by=("customer", "product"), within="30 minutes")


@app.view(key="order_id")
def priced(orders: DataFrame, products: hw.Table) -> DataFrame:
    """The row of a table at the time of the event."""
    return hw.join_as_of(orders, products, on="product", valid_from="price_since")


@app.view(key="order_id")
def sorted_(orders: DataFrame, products: hw.Table) -> DataFrame:
    """The row that a table has by now; an event waits for it."""
    return hw.enrich(orders, products, on="product", wait="3 hours")


@dataclass
class Spent:
    """What `spent` remembers of a customer."""

    n: int = 0
    total: int = 0


def add(customer: str, orders: list[dict[str, Any]], state: Spent | None) -> tuple[Spent, list[dict[str, Any]]]:
    """A function for each key; it fails on a negative amount."""
    state = state or Spent()
    for order in orders:
        if order["amount"] < 0:
            raise ValueError("no order is negative")
        state = Spent(state.n + 1, state.total + order["amount"])
    return state, [{"customer": customer, "n": state.n, "total": state.total}]


@app.view(key="customer")
def spent(orders: DataFrame) -> DataFrame:
    """A user's function over a user's state."""
    return hw.stateful(orders, by="customer", fn=add, returns="customer string, n int, total int", state=Spent)


def listed(customer: str, orders: list[dict[str, Any]], state: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The numbers of the orders of a customer."""
    ids = [*(state or {"ids": []})["ids"], *(order["order_id"] for order in orders)]
    return {"ids": ids}, [{"customer": customer, "ids": ids}]


@app.view(key="customer")
def in_turn(orders: DataFrame) -> DataFrame:
    """Events wait until they are complete; state has a time."""
    returns = "customer string, ids array<int>"
    return hw.stateful(orders, by="customer", fn=listed, returns=returns, ordered=True, expire="2 hours")


def highest(events: pa.Table, at: Any, states: Any, keys: pa.Table) -> pa.Table:
    """A function for all keys at once."""
    np.maximum.at(states["amount"], at, events["amount"].to_numpy())
    np.add.at(states["n"], at, 1)
    return keys.append_column("amount", pa.array(states["amount"])).append_column("n", pa.array(states["n"]))


@app.view(key="customer")
def peak(orders: DataFrame) -> DataFrame:
    """A vectorised function."""
    columns, state = "customer string, amount bigint, n bigint", "amount bigint, n bigint"
    return hw.stateful(orders, by="customer", fn=highest, returns=columns, state=state)


# -- operators in Spark ----------------------------------------------------------------------------------------------


@app.view(key="customer")
def chained(orders: DataFrame, products: hw.Table) -> DataFrame:
    """Three operators in a row, and Spark's own sums behind them."""
    known = hw.enrich(orders, products, on="product")
    once = hw.deduplicate(known, by=("customer", "product"), within="30 minutes")
    looked = hw.sliding(once, by="customer", over="1 hour", n="count(*)")
    category = F.min(F.expr("case when product < 3 then category end")).alias("category")
    return looked.groupBy("customer").agg(F.count("*").alias("events"), F.max("n").alias("most"), category)


@app.view(key="category")
def sold(orders: DataFrame, products: hw.Table) -> DataFrame:
    """An as-of join in Spark."""
    joined = hw.join_as_of(orders, products, on="product")
    return joined.groupBy("category").agg(F.sum("price").alias("price"), F.count("*").alias("n"))


@app.view(key="customer")
def longest(orders: DataFrame) -> DataFrame:
    """A user's function in Spark, over events that wait."""
    columns = "customer string, ids array<int>"
    lists = hw.stateful(orders, by="customer", fn=listed, returns=columns, ordered=True)
    return lists.groupBy("customer").agg(F.max(F.size("ids")).alias("n"))


@app.view(key="customer")
def peaks(orders: DataFrame) -> DataFrame:
    """A vectorised function in Spark."""
    columns, state = "customer string, amount bigint, n bigint", "amount bigint, n bigint"
    tops = hw.stateful(orders, by="customer", fn=highest, returns=columns, state=state)
    return tops.groupBy("customer").agg(F.max("amount").alias("amount"), F.max("n").alias("n"))


# -- views of tables -------------------------------------------------------------------------------------------------

BY_CATEGORY = """
    select category, count(*) n, sum(price) total, avg(price) mean, min(price) low, max(price) top,
        count(distinct price) prices
    from products group by category
"""
PLACED = "select a.customer, a.city, c.country from accounts a left join cities c on a.city = c.city"
COUNTRIES = "select country, count(*) n from placed where country is not null group by country"
NAMES = """
    select c.city name from cities c left anti join accounts a on a.city = c.city
    union select category name from products
"""

app.view("by_category", key="category", sql=BY_CATEGORY)
app.view("placed", key="customer", sql=PLACED)
app.view("countries", key="country", sql=COUNTRIES)
app.view("names", key="name", sql=NAMES)
app.view("past", key="customer", sql="select * from accounts", history=True)
app.view("labels", key="label", sql="select label, count(*) n from parts group by label")


@app.view(key="product")
def dearest(products: hw.Table) -> hw.Table:
    """The first rows of each group."""
    return products.top(1, by="price desc, product", per="category").select("product", "category", "price")


@app.view(key="product", history=True)
def price_history(products: hw.Table) -> hw.Table:
    """All versions of a table's rows."""
    return products
