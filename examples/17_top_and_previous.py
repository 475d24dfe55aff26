"""Analytics over a view: the top rows of each hour, and each hour beside the previous one."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import run

app = hw.App("shop")
app.topic("sales", "category string, amount int, at timestamp", key="category", time="at", lateness="1 minute")


@app.view(key=("hour", "category"))
def per_hour(sales: DataFrame) -> DataFrame:
    """Revenue by hour and category."""
    hour = F.window("at", "1 hour").alias("hour")
    return sales.groupBy(hour, "category").agg(F.sum("amount").alias("revenue"))


@app.view(key=("hour", "category"))
def best(per_hour: hw.Table) -> hw.Table:
    """The two best categories of each hour."""
    return per_hour.top(2, by="revenue desc, category", per="hour")


app.view(
    "compared",
    key=("hour", "category"),
    sql="""
        select now.hour, now.category, now.revenue, before.revenue previous
        from per_hour now left join per_hour before
        on before.category = now.category and before.hour.end = now.hour.start
    """,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
SALES = [("tea", 5, 0), ("ink", 7, 0), ("pens", 1, 0), ("tea", 9, 1), ("ink", 2, 1), ("pens", 3, 1), ("tea", 1, 2)]

if __name__ == "__main__":
    with run(app, now=START + timedelta(hours=3)) as world:
        for category, amount, hour in SALES:
            world.send("sales", {"category": category, "amount": amount, "at": START + timedelta(hours=hour)})
        world.settle()
        print("best:", [(row["hour"]["start"].hour, row["category"]) for row in world.rows("best")])
        for row in world.rows("compared"):
            print(row["hour"]["start"].hour, row["category"], row["revenue"], row["previous"])
