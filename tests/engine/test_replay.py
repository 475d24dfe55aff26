"""D2: a range run again, cut elsewhere, gives the same rows."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.replay import replay
from headwater.testing import run
from headwater.testing.world import get_spark
from tests.engine.rooms import started

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_range_that_is_cut_elsewhere_gives_the_same_rows(tmp_path):
    app = hw.App("shop")
    app.topic("orders", "id int, amount double, at timestamp", key="id", time="at", lateness="1 minute", partitions=3)

    @app.view(key="minute")
    def revenue(orders):
        return orders.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.avg("amount").alias("mean"))

    @app.stream
    def large(orders):
        return orders.where("amount > 50")

    with run(app) as world:
        for start in range(0, 300, 50):
            world.send(
                "orders",
                *(
                    {"id": i, "amount": i / 3, "at": T0 + timedelta(seconds=(i * 37) % 400)}
                    for i in range(start, start + 50)
                ),
            )
            world.settle()
        context = world._context
        for name in ("revenue", "large"):
            done = replay(get_spark().session, app.resolve(), app.pipelines[name], context, tmp_path / name, rows=40)
            assert done.same, done
            assert done.batches > 3
            assert done.events == 300


def prices_app(*, mended: bool) -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "id int, pieces int", key="id")
    fails, works = lambda pieces: 100 // pieces, lambda pieces: 100 // pieces if pieces else 0
    price = works if mended else fails

    @app.stream
    def prices(orders):
        return orders.select("id", F.udf(price, "int")("pieces").alias("cents"))

    @app.view(key="id")
    def latest(orders):
        return orders.select("id", F.udf(price, "int")("pieces").alias("cents"))

    return app


def test_a_range_with_quarantined_and_retried_events_gives_the_same_rows(tmp_path):
    def replayed(world, app, name):
        done = replay(
            get_spark().session, app.resolve(), app.pipelines["prices"], world._context, tmp_path / name, rows=2
        )
        return done.same, done.events

    failing, mended = prices_app(mended=False), prices_app(mended=True)
    with started(failing, tmp_path / "data") as world:
        world.send("orders", {"id": 1, "pieces": 2}, {"id": 2, "pieces": 0}, {"id": 3, "pieces": 0})
        world.settle()
        assert world.counts("prices").quarantined == 2
        assert replayed(world, failing, "quarantined") == (True, 3)
    with started(mended, tmp_path / "data") as world:
        world.settle()
        store = world._context.store
        store.request_retry("prices@1", [("orders", 0, 2)])
        assert [event.outcome for event in store.preview_retry("latest@1")] == ["rebuild"] * 2
        world.send("orders", {"id": 3, "pieces": 4})
        world.settle()
        assert world.counts("prices").quarantined == 1
        assert world.rows("latest") == [
            {"id": 1, "cents": 50},
            {"id": 3, "cents": 25},
        ]  # not the 0 of the retried event
        assert replayed(world, mended, "retried") == (True, 4)
