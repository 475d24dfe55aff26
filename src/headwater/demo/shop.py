"""A small shop as an app: six topics, a table of the shop's database and six pipelines. Copy it and adapt it.

`SHOP_DATABASE=postgresql://… headwater run shop.py` runs it.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw

__all__ = ["Click", "Login", "Order", "Payment", "Reading", "Search", "app"]

app = hw.App("shop")


@dataclass
class Order:
    """A customer bought some pieces of a product."""

    order_id: str
    customer_id: int
    product_id: int
    quantity: int
    placed_at: datetime


@dataclass
class Payment:
    """A customer paid for an order."""

    payment_id: str
    order_id: str
    method: Literal["card", "cash", "voucher"]
    paid_at: datetime


@dataclass
class Click:
    """A customer opened a page."""

    click_id: str
    customer_id: int
    page: str
    clicked_at: datetime


@dataclass
class Search:
    """A customer searched the shop; `millis` is the response time."""

    search_id: str
    customer_id: int
    words: str
    hits: int
    millis: int
    searched_at: datetime


@dataclass
class Login:
    """A customer logged in or failed to; its event time is the arrival time."""

    login_id: str
    customer_id: int
    success: bool


@dataclass
class Reading:
    """A reading of a cold store's sensor; both times are from its own clock, which may be wrong."""

    reading_id: str
    sensor_id: str
    celsius: float
    measured_at: datetime
    sent_at: datetime


app.topic("orders", Order, key="customer_id", time="placed_at", lateness="5 seconds", partitions=3)
app.topic("payments", Payment, key="order_id", time="paid_at", lateness="5 seconds", partitions=3)
app.topic("clicks", Click, key="customer_id", time="clicked_at", lateness="5 seconds", durability="fast", partitions=3)
app.topic("searches", Search, key="customer_id", time="searched_at", lateness="5 seconds", durability="fast")
app.topic("logins", Login, key="customer_id", lateness="1 second")
app.topic(
    "sensors",
    Reading,
    key="sensor_id",
    time=hw.device_clock("measured_at", sent="sent_at"),
    lateness="5 seconds",
    durability="fast",
)
app.table("products", hw.capture("${SHOP_DATABASE}", table="products"))


@app.view(key=("minute", "category"), late=hw.correct(for_="1 hour"))
def revenue(orders: DataFrame, products: hw.Table) -> DataFrame:
    """Revenue by minute, at the price and in the category of the sale; late orders are still added for one hour."""
    minute = F.window("placed_at", "1 minute").alias("minute")
    sums = F.sum(F.expr("quantity * price")).alias("revenue"), F.count("*").alias("orders")
    return hw.join_as_of(orders, products, on="product_id").groupBy(minute, "category").agg(*sums)


@app.stream
def unpaid(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Orders that were not paid within 30 seconds, emitted when the 30 seconds are over."""
    paid = payments.select(F.col("order_id").alias("paid_order"), "paid_at")
    in_time = "order_id = paid_order and paid_at between placed_at and placed_at + interval 30 seconds"
    joined = orders.join(paid, F.expr(in_time), "left_outer")
    return joined.where("paid_order is null").drop("paid_order", "paid_at")


@app.view(key=("customer_id", "visit"))
def visits(clicks: DataFrame, logins: DataFrame) -> DataFrame:
    """Visits of customers; a pause of ten seconds ends a visit."""
    seen = clicks.selectExpr("customer_id", "clicked_at as at", "1 as page", "0 as login")
    came = logins.selectExpr("customer_id", "occurred_at as at", "0 as page", "1 as login")
    visit = F.session_window("at", "10 seconds").alias("visit")
    sums = F.sum("page").alias("pages"), F.sum("login").alias("logins")
    return seen.unionByName(came).groupBy("customer_id", visit).agg(*sums)


app.view(
    "search_times",
    key="minute",
    sql="""
        select window(searched_at, '1 minute') as minute,
               count(*) as searches,
               approx_count_distinct(customer_id) as customers,
               percentile_approx(millis, 0.5) as median,
               percentile_approx(millis, 0.99) as slowest,
               sum(millis div hits) as millis_per_hit
        from searches
        group by window(searched_at, '1 minute')
    """,
)


@app.view(key=("sensor_id", "span"))
def temperatures(sensors: DataFrame) -> DataFrame:
    """Average of the last 30 seconds of each cold store, every ten seconds, in corrected device time."""
    span = F.window("occurred_at", "30 seconds", "10 seconds").alias("span")
    return sensors.groupBy("sensor_id", span).agg(F.avg("celsius").alias("celsius"), F.count("*").alias("readings"))


@app.view(key="sensor_id")
def too_warm(temperatures: DataFrame) -> DataFrame:
    """How often each cold store was too warm, from the final rows of another view."""
    warm = F.count_if(F.col("celsius") > 5).alias("times")
    return temperatures.groupBy("sensor_id").agg(warm, F.max("celsius").alias("highest"), F.count("*").alias("spans"))
