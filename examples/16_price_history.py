"""The as-of join: each order gets the price that was valid when it was placed, in any order of arrival."""

from pyspark.sql import DataFrame

import headwater as hw
from headwater.testing import run

app = hw.App("shop")
app.topic("orders", "order_id int, product_id int, at timestamp", key="product_id", time="at", lateness="1 hour")
app.table("prices", "product_id int, price int, since timestamp", key="product_id", time="since")


@app.view(key="order_id")
def priced(orders: DataFrame, prices: hw.Table) -> DataFrame:
    """The price at the order's time; a price that becomes known later corrects the row."""
    return hw.join_as_of(orders, prices, on="product_id", valid_from="price_since")


@app.view(key="product_id", history=True)
def price_history(prices: hw.Table) -> hw.Table:
    """Every price with the time range in which it was valid."""
    return prices


def at(minute: int) -> str:
    """A minute after noon."""
    return f"2026-01-01T12:{minute:02}:00Z"


PRICES = [{"product_id": 7, "price": 10, "since": at(0)}, {"product_id": 7, "price": 12, "since": at(30)}]
ORDERS = [{"order_id": number, "product_id": 7, "at": at(minute)} for number, minute in enumerate([10, 29, 30, 45])]

if __name__ == "__main__":
    with run(app, now="2026-01-01T13:00:00Z") as world:
        world.send("orders", *ORDERS)
        world.send("prices", PRICES[0])
        world.settle()
        print("priced:", [(row["order_id"], row["price"]) for row in world.rows("priced")])
        world.send("prices", PRICES[1])
        world.settle()
        print("priced:", [(row["order_id"], row["price"]) for row in world.rows("priced")])
        for row in world.rows("price_history"):
            print("price", row["price"], "from", row["valid_from"], "to", row["valid_to"])
