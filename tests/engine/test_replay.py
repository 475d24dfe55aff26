"""D2: a range run again, cut elsewhere, gives the same rows."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.replay import replay
from headwater.testing import run
from headwater.testing.world import get_spark

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
