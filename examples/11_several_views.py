"""Several views of one log, and chains: a view of a view, a view of a stream; the changelog rebuilds the table."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

app = hw.App("shop")
app.topic("orders", "customer string, cents int, at timestamp", key="customer", time="at", lateness="30 seconds")


@app.view(key="minute")
def by_minute(orders: DataFrame) -> DataFrame:
    """Revenue, minute by minute."""
    return orders.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.sum("cents").alias("cents"))


@app.view(key="hour")
def busiest(by_minute: DataFrame) -> DataFrame:
    """The best minute of each hour; reads each minute once, when it is final."""
    hour = F.window("occurred_at", "1 hour").alias("hour")
    return by_minute.groupBy(hour).agg(F.max("cents").alias("best"), F.count("*").alias("minutes"))


@app.stream(key="customer")
def large(orders: DataFrame) -> DataFrame:
    """Orders above ten euros, as events of a new topic."""
    return orders.where("cents > 1000")


app.view("patrons", key="customer", sql="select customer, count(*) orders from large group by customer")

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
PEOPLE = ("ada", "bob", "cy")
ORDERS = [(PEOPLE[n % 3], 100 + 377 * n % 1500, START + timedelta(seconds=40 * n)) for n in range(180)]

if __name__ == "__main__":
    with run(app) as world:
        world.send("orders", *({"customer": who, "cents": cents, "at": at} for who, cents, at in ORDERS))
        world.advance("3 hours")  # idle long enough that all windows close, in both steps of the chain
        world.settle()
        for row in world.rows("busiest"):
            print(f"busiest {row['hour']['start']:%H:%M}: {row['best']} of {row['minutes']} minutes")
        for row in world.rows("patrons"):
            print(f"patron {row['customer']}: {row['orders']}")

        # A view is a table and a stream: applying its changes gives its rows.
        added_up: dict[Any, Any] = {}
        for change in world.client.view("patrons").changes():
            added_up[change.key] = change.after
        print(f"changes add up to the view: {[added_up[key] for key in sorted(added_up)] == world.rows('patrons')}")
        print(f"events unaccounted for: {sum(world.counts(name).unaccounted for name in app.pipelines)}")
