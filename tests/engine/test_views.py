from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.errors import HeadwaterError
from headwater.testing import run

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "id int, amount int, at timestamp", key="id", time="at", lateness="10 seconds", partitions=2)
    return app


def order(id_: int, amount: int, seconds: float) -> dict:
    return {"id": id_, "amount": amount, "at": T0 + timedelta(seconds=seconds)}


def test_a_windowed_view_has_its_rows_while_windows_are_open():
    app = shop()

    @app.view(key="minute")
    def revenue(orders):
        return orders.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.sum("amount").alias("revenue"))

    with run(app) as world:
        world.send("orders", order(1, 5, 0), order(2, 6, 30), order(3, 7, 70))
        world.settle()
        assert [row["revenue"] for row in world.rows("revenue")] == [11, 7]
        counts = world.counts("revenue")
        assert (counts.in_, counts.used, counts.unaccounted) == (3, 3, 0)


def test_a_function_may_name_a_column_that_its_result_does_not_need():
    app = shop()

    @app.view(key="minute")
    def revenue(orders):
        named = orders.select("id", "amount", "at")
        return named.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.sum("amount").alias("revenue"))

    with run(app) as world:
        world.send("orders", order(1, 5, 0), order(2, 6, 30))
        world.settle()
        assert [row["revenue"] for row in world.rows("revenue")] == [11]


@pytest.mark.parametrize(
    "point", ["before-sink", "before-sink-commit", "in-sink-commit", "after-sink-commit", "after-publish"]
)
def test_a_crash_at_any_point_changes_nothing(point):
    app = shop()

    @app.view(key="id")
    def spent(orders):
        return orders.groupBy("id").agg(F.sum("amount").alias("spent"))

    with run(app) as world:
        world.send("orders", order(1, 5, 0))
        world.settle()
        world.crash(point)
        world.send("orders", order(1, 6, 1))
        world.settle()
        assert world.rows("spent") == [{"id": 1, "spent": 11}]
        assert world.counts("spent").in_ == 2
        changes = [event.value["op"] for event in world.client.read("spent.changes", stop="end")]
        assert changes == ["insert", "update"]


def test_an_event_on_which_the_function_fails_is_quarantined():
    app = shop()

    @app.stream
    def inverse(orders):
        @F.udf("double")
        def one_over(amount):
            return 1 / amount

        return orders.select("id", one_over("amount").alias("inverse"), "at")

    with run(app) as world:
        world.send("orders", *(order(i, i % 7, i) for i in range(1, 30)))
        world.settle()
        counts = world.counts("inverse")
        assert (counts.in_, counts.quarantined, counts.used) == (29, 4, 25)
        assert len(list(world.client.read("inverse", stop="end"))) == 25


def test_a_key_that_is_not_unique_fails_with_the_key():
    app = shop()

    @app.view(key="id")
    def last(orders):
        return orders.select("id", "amount")

    with run(app) as world:
        world.send("orders", order(1, 5, 0), order(1, 6, 1))
        with pytest.raises(HeadwaterError) as failed:
            world.settle()
        assert failed.value.code == "KEY_NOT_UNIQUE"


def test_an_event_that_came_twice_gives_one_row():
    app = shop()

    @app.view(key="id")
    def known(orders):
        return orders.select("id", "amount", "at")

    with run(app) as world:
        world.send("orders", order(1, 5, 0), order(1, 5, 0), order(2, 6, 0))
        world.settle()
        assert [row["id"] for row in world.rows("known")] == [1, 2]
        assert world.counts("known").used == 3
