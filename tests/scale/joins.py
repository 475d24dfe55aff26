"""One of each join, as an app file that runs on both profiles."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw

app = hw.App("joins")
# Idle only after an hour: on a slow machine an idle marker would come before the run ends, and close the last windows.
app.topic(
    "sales", "sale int, product int, amount int, at timestamp", key="product", time="at", lateness="1 minute",
    partitions=2, idle="1 hour",
)  # fmt: skip
app.table("goods", "product int, category string, price decimal(8,2), since timestamp", key="product", time="since")

app.view(
    "by_category", key="category", sql="select category, count(*) n, sum(price) total from goods group by category"
)
app.view(
    "rivals",
    key=("one", "other"),
    sql="""
        select a.product one, b.product other, a.price - b.price difference
        from goods a join goods b on a.category = b.category and a.product < b.product
    """,
)


@app.view(key="sale")
def named(sales: DataFrame, goods: hw.Table) -> DataFrame:
    """Stream-table: the row as it is now."""
    return hw.enrich(sales, goods, on="product")


@app.view(key="sale")
def priced(sales: DataFrame, goods: hw.Table) -> DataFrame:
    """As of the sale's time, after Spark."""
    return hw.join_as_of(sales, goods, on="product")


@app.view(key=("minute", "category"))
def sold(sales: DataFrame, goods: hw.Table) -> DataFrame:
    """As of the sale's time, in Spark, with windows behind it."""
    minute = F.window("at", "1 minute").alias("minute")
    joined = hw.join_as_of(sales, goods, on="product")
    return joined.groupBy(minute, "category").agg(F.sum("amount").alias("amount"))
