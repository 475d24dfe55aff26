"""A first view: a function from a DataFrame to a DataFrame, whose result is a table that stays up to date."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

app = hw.App("shop")


@dataclass
class Order:
    """A customer bought something."""

    category: str
    amount: Annotated[Decimal, hw.Precision(12, 2)]
    placed_at: datetime


app.topic("orders", Order, key="category", time="placed_at")


@app.view(key="category")
def revenue(orders: DataFrame) -> DataFrame:
    """Revenue and number of orders by category."""
    return orders.groupBy("category").agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))


app.view("by_day", key="day", sql="select date(placed_at) day, sum(amount) revenue from orders group by day")

# `headwater run 06_first_view.py` runs the app until Ctrl-C; here it runs briefly, in a temporary folder.
if __name__ == "__main__":
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with run(app, now=noon) as world:
        world.send("orders", Order("tea", Decimal("19.90"), noon), Order("ink", Decimal("4"), noon))
        world.settle()
        world.send("orders", Order("tea", Decimal("250.10"), noon))
        world.settle()
        for row in world.rows("revenue"):
            print(f"{row['category']}: revenue {row['revenue']}, orders {row['orders']}")
        print(f"SQL says {world.rows('by_day')[0]['revenue']} on {world.rows('by_day')[0]['day']}")
        for change in world.client.view("revenue").changes():
            print(f"{change.op} {change.key[0]}: {change.before} -> {change.after}")
