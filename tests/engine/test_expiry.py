"""What is left of a pipeline that its app no longer has: for a week everything, then the view and its counts."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.compatibility import Rebuild
from headwater.errors import DataGoneError
from tests.engine.rooms import started

pytestmark = pytest.mark.spark
NOON = "2026-01-01T12:00:00Z"


def shop(*, with_totals: bool) -> hw.App:
    """An app with a view that always exists, and one that comes and goes."""
    app = hw.App("shop")
    app.topic("orders", "customer string, amount int")

    @app.view(key="customer")
    def orders_by_customer(orders: DataFrame) -> DataFrame:
        return orders.groupBy("customer").agg(F.count("*").alias("n"))

    def totals(orders: DataFrame) -> DataFrame:
        return orders.groupBy("customer").agg(F.sum("amount").alias("total"))

    if with_totals:
        app.view(key="customer")(totals)
    return app


def groups(world) -> set[str]:
    return {state.group for state in world.client.log.groups.states()}


def test_a_pipeline_expires_a_week_after_a_run_without_it_and_is_told_when_it_comes_back(tmp_path):
    with started(shop(with_totals=True), tmp_path, now=NOON) as world:
        world.send("orders", {"customer": "a", "amount": 5}, {"customer": "b", "amount": 2})
        world.settle()
        counts = world.counts("totals")
    with started(shop(with_totals=False), tmp_path, now="2026-01-02T12:00:00Z") as world:
        world.send("orders", {"customer": "a", "amount": 7})
        world.settle()
        for passed, left in (("6 days 23 hours", True), ("2 hours", False)):
            world.advance(passed)
            world._engine.remove_expired()
            assert ("hw.pipeline.totals" in groups(world)) == left
            assert bool(list((tmp_path / "engine/totals").iterdir())) == left
        assert "hw.pipeline.orders_by_customer" in groups(world)
        assert world.rows("totals") == [{"customer": "a", "total": 5}, {"customer": "b", "total": 2}]
        assert "totals.changes" in world.client.topics()
        assert world.counts("totals") == counts
        assert (counts.in_, counts.used) == (2, 2)
    with started(shop(with_totals=True), tmp_path, now="2026-01-12T12:00:00Z") as world:
        with pytest.raises(DataGoneError) as caught:
            world.settle()
        assert caught.value.data["pipeline"] == "totals"
        assert caught.value.fix == "stop the app; headwater run app.py --rebuild totals"
        assert world.rows("totals") == [{"customer": "a", "total": 5}, {"customer": "b", "total": 2}]
    rebuilt = {"totals": Rebuild()}
    with started(shop(with_totals=True), tmp_path, now="2026-01-13T12:00:00Z", rebuild=rebuilt) as world:
        world.settle()
        assert world.rows("totals") == [{"customer": "a", "total": 12}, {"customer": "b", "total": 2}]


def test_a_pipeline_that_comes_back_within_a_week_goes_on(tmp_path):
    for day, with_totals in ((1, True), (2, False), (8, True)):
        with started(shop(with_totals=with_totals), tmp_path, now=f"2026-01-{day:02}T12:00:00Z") as world:
            world.send("orders", {"customer": "a", "amount": day})
            world.settle()
            world._engine.remove_expired()
            if day == 8:
                assert world.rows("totals") == [{"customer": "a", "total": 11}]
                assert world.counts("totals").used == 3
