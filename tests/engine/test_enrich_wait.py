"""Events that waited for their row are older than the watermark: no step of the same pipeline may wait for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.errors import BadPipelineError
from headwater.testing import run

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "id int, product int, at timestamp", time="at", lateness="1 second")
    app.table("products", "product int, name string", key="product")
    return app


def per_minute(orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.window("at", "1 minute").alias("minute")).agg(
        F.count("name").alias("named"), F.count("*").alias("n")
    )


STEPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregate": per_minute,
    "deduplicate": lambda orders: orders.select("id", "at").dropDuplicates(["id", "at"]),
    "hw.deduplicate": lambda orders: hw.deduplicate(orders, by="id", within="1 hour"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_waits_for_event_time_after_a_wait_is_refused(step: str):
    app = shop()

    @app.stream
    def named(orders: DataFrame, products: hw.Table) -> DataFrame:
        return STEPS[step](hw.enrich(orders, products, on="product", wait="1 minute"))

    with run(app) as world, pytest.raises(BadPipelineError) as refused:
        world.settle()
    assert step in refused.value.what
    assert "stream" in (refused.value.fix or "")


def order(number: int, second: int) -> dict[str, Any]:
    return {"id": number, "product": number, "at": T0 + timedelta(seconds=second)}


def test_a_window_in_the_next_pipeline_counts_every_event_that_waited():
    app = shop()

    @app.stream
    def named(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.enrich(orders, products, on="product", wait="1 minute")

    @app.view("per_minute", key="minute")
    def counted(named: DataFrame) -> DataFrame:
        return per_minute(named)

    with run(app, now=T0) as world:
        world.send("products", {"product": 1, "name": "pen"}, {"product": 5, "name": "cup"})
        world.send("orders", order(1, 10), order(2, 20), order(3, 50))
        world.settle()
        world.send("orders", order(4, 75))  # the watermark is above orders 2 and 3, which wait
        world.settle()
        world.send("products", {"product": 3, "name": "ink"})
        world.settle()
        world.send("orders", order(5, 400))
        world.settle()
        world.advance("10 minutes")  # the table is idle: it is known up to the present
        world.settle()
        found = {row["minute"]["start"].minute: (row["named"], row["n"]) for row in world.rows("per_minute")}
        assert found == {0: (2, 3), 1: (0, 1), 6: (1, 1)}
        assert world.counts("per_minute").late == 0


def test_an_event_waits_for_its_row_no_longer_because_the_view_corrects_late_events():
    app = shop()

    @app.view(key="id", late=hw.correct(for_="1 hour"))
    def named(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.enrich(orders, products, on="product", wait="1 minute")

    @app.view(key="minute", late=hw.correct(for_="1 hour"))
    def counted(orders: DataFrame, products: hw.Table) -> DataFrame:
        return per_minute(hw.enrich(orders, products, on="product", wait="1 minute"))

    def per_minute_counts() -> dict[int, tuple[int, int]]:
        return {row["minute"]["start"].minute: (row["named"], row["n"]) for row in world.rows("counted")}

    with run(app, now=T0 + timedelta(hours=1)) as world:
        world.send("products", {"product": 1, "name": "pen"})
        world.send("orders", order(1, 10), order(2, 20), order(3, 50))
        world.settle()
        assert [row["id"] for row in world.rows("named")] == [1]
        assert per_minute_counts() == {0: (1, 1)}
        world.send("products", {"product": 3, "name": "ink"})
        world.send("orders", order(4, 100))  # the wait of order 2 is over
        world.settle()
        assert {row["id"]: row["name"] for row in world.rows("named")} == {1: "pen", 2: None, 3: "ink"}
        assert per_minute_counts() == {0: (2, 3)}
        world.send("orders", order(5, 30), order(6, 3_800))  # a minute late, and an hour ahead: the waits are over
        world.settle()
        assert per_minute_counts() == {0: (2, 4), 1: (0, 1)}
        world.advance("3 hours")  # the watermark passes the last order, which waits, in one step
        world.settle()
        assert per_minute_counts() == {0: (2, 4), 1: (0, 1), 3: (0, 1)}
        assert world.counts("counted").late == 0
