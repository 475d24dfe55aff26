"""A shop with fourteen pipelines, as someone writes it in the first hour: app.py of `make check-hour`."""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw

app = hw.App("shop")
app.topic(
    "orders",
    "order_id int, customer_id int, product_id int, category string, cents int, placed_at timestamp",
    key="customer_id",
    time="placed_at",
    lateness="1 minute",
    partitions=2,
)
app.topic("payments", "payment_id int, order_ref int, paid_at timestamp", time="paid_at", lateness="1 minute")
app.table("products", "product_id int, name string, section string, price decimal(10,2)", key="product_id")
app.table("prices", "product_id int, price int, since timestamp", key="product_id", time="since")

PAID = "order_id = order_ref and paid_at between placed_at and placed_at + interval 10 minutes"


@app.view(key=("minute", "category"))
def revenue(orders: DataFrame) -> DataFrame:
    """Tumbling windows."""
    minute = F.window("placed_at", "1 minute").alias("minute")
    return orders.groupBy(minute, "category").agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))


@app.view(key="span")
def busy(orders: DataFrame) -> DataFrame:
    """Hopping windows: ten minutes, every five."""
    span = F.window("placed_at", "10 minutes", "5 minutes").alias("span")
    return orders.groupBy(span).agg(F.count("*").alias("orders"))


@app.view(key=("customer_id", "session"))
def visits(orders: DataFrame) -> DataFrame:
    """Sessions of customers."""
    return hw.sessions(orders, by="customer_id", gap="5 minutes", orders="count(*)")


@app.view(key="hour")
def best(revenue: DataFrame) -> DataFrame:
    """The best minute of each hour: windows over windows."""
    hour = F.window("occurred_at", "1 hour").alias("hour")
    return revenue.groupBy(hour).agg(F.max("cents").alias("cents"))


@app.stream
def large(orders: DataFrame) -> DataFrame:
    """A filter."""
    return orders.where("cents > 9000").select("order_id", "cents")


app.view("totals", key="category", sql="select category, count(*) n, sum(cents) cents from orders group by category")


@app.stream
def paid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """A join of streams."""
    return orders.join(payments, F.expr(PAID)).select("order_id", "payment_id")


@app.view(key="order_id")
def outcomes(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """An outer join of streams: every order, with its payment or without one."""
    return orders.join(payments, F.expr(PAID), "left").select("order_id", "placed_at", "payment_id")


@app.view(key="order_id")
def labelled(orders: DataFrame, products: hw.Table) -> DataFrame:
    """The row of a table as it is now."""
    return hw.enrich(orders, products, on="product_id").select("order_id", "name", "section")


@app.view(key="order_id")
def priced(orders: DataFrame, prices: hw.Table) -> DataFrame:
    """The row of a table as it was at the event's time."""
    return hw.join_as_of(orders, prices, on="product_id").select("order_id", "price")


app.view("sections", key="section", sql="select section, count(*) n, max(price) top from products group by section")


@app.view(key="product_id")
def dearest(products: hw.Table) -> hw.Table:
    """The dearest product of each section."""
    return products.top(1, by="price desc, product_id", per="section")


@app.view(key="order_id")
def recent(orders: DataFrame) -> DataFrame:
    """Each order with the number of the customer's orders in the ten minutes before it."""
    return hw.sliding(orders, by="customer_id", over="10 minutes", itself=False, before="count(*)")


def add_up(customer: int, events: list[dict[str, Any]], state: dict[str, Any] | None) -> Any:
    """State per key."""
    total = (state or {"cents": 0})["cents"] + sum(event["cents"] for event in events)
    return {"cents": total}, [{"customer_id": customer, "cents": total}]


@app.view(key="customer_id")
def spent(orders: DataFrame) -> DataFrame:
    """What each customer has spent so far."""
    return hw.stateful(orders, by="customer_id", fn=add_up, returns="customer_id int, cents int")
