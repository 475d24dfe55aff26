"""Testing an app: real Spark, a test clock, late and repeated events, a crash, and counts that add up."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.testing import World

RunApp: TypeAlias = Callable[..., AbstractContextManager[World]]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

app = hw.App("shop")
app.topic("orders", "order_id int, cents int, at timestamp", key="order_id", time="at", lateness="1 minute")


@app.view(key="minute")
def revenue(orders: DataFrame) -> DataFrame:
    """Revenue by minute; each order counts once."""
    once = orders.dropDuplicates(["order_id", "at"])
    return once.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.sum("cents").alias("cents"))


def order(order_id: int, cents: int, *, second: int) -> dict[str, Any]:
    """An order some seconds after noon."""
    return {"order_id": order_id, "cents": cents, "at": NOON + timedelta(seconds=second)}


def test_a_minute_is_open_until_its_stragglers_had_their_time(run_app: RunApp) -> None:
    """The test moves the clock: three minutes pass at once."""
    with run_app(app, now=NOON) as world:
        world.send("orders", order(1, 500, second=5), order(1, 500, second=5), order(2, 70, second=50))
        world.settle()
        assert [row["cents"] for row in world.client.view("revenue").open_windows()] == [570]
        world.advance("3 minutes")
        world.settle()
        assert world.client.view("revenue").open_windows() == []
        world.send("orders", order(3, 9_999, second=30))
        world.settle()
        assert [row["cents"] for row in world.rows("revenue")] == [570]
        assert (world.counts("revenue").used, world.counts("revenue").late) == (3, 1)


@pytest.mark.parametrize("point", ["before-sink-commit", "in-sink-commit", "after-sink-commit"])
def test_a_crash_changes_nothing(run_app: RunApp, point: str) -> None:
    """The next batch crashes at this point; the query restarts and catches up."""
    with run_app(app, now=NOON) as world:
        world.send("orders", order(1, 500, second=5))
        world.settle()
        world.crash(point)
        world.send("orders", order(2, 70, second=50))
        world.settle()
        assert [row["cents"] for row in world.rows("revenue")] == [570]
        assert world.counts("revenue").unaccounted == 0


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", __file__]))
