"""The shop's app: what its programs send to one another. `headwater run shop.py` serves it."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal

import headwater as hw

__all__ = ["Click", "Order", "Payment", "Product", "Reading", "app"]

Money = Annotated[Decimal, hw.Precision(12, 2)]

app = hw.App("shop")


@dataclass
class Order:
    """A customer bought something at a till."""

    order_id: str
    customer_id: int
    product_id: int
    quantity: int
    amount: Money
    placed_at: datetime


@dataclass
class Payment:
    """Money came in for an order."""

    payment_id: str
    order_id: str
    customer_id: int
    method: Literal["card", "cash", "voucher"]
    amount: Money
    paid_at: datetime


@dataclass
class Click:
    """Somebody looked at a page of the web shop."""

    session_id: str
    page: str
    clicked_at: datetime
    customer_id: int | None = None


@dataclass
class Reading:
    """A cold store's sensor reported."""

    sensor_id: str
    celsius: float
    measured_at: datetime


@dataclass
class Product:
    """An article as it is sold now."""

    product_id: int
    name: str
    price: Money


orders = app.topic("orders", Order, key="customer_id", time="placed_at", partitions=3)
payments = app.topic("payments", Payment, key="customer_id", time="paid_at", partitions=3)
clicks = app.topic(
    "clicks",
    Click,
    key="session_id",
    time="clicked_at",
    lateness="5 seconds",
    partitions=3,
    durability="fast",
    overload=hw.drop("oldest", events=5_000),
)
sensors = app.topic(
    "sensors",
    Reading,
    key="sensor_id",
    time="measured_at",
    durability="fast",
    ahead="1 minute",
    retention="7 days",
)
products = app.table("products", Product, key="product_id")
