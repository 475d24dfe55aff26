"""A view over a view is right through inserts, updates and deletes of the rows it reads."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

import headwater as hw
from headwater.errors import BadPipelineError, KeyNotUniqueError
from headwater.testing import run

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def order(customer: int, amount: int, seconds: float) -> dict:
    return {"customer": customer, "amount": amount, "at": T0 + timedelta(seconds=seconds)}


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "customer int, amount int, at timestamp", key="customer", time="at", lateness="5 seconds")

    @app.view(key="customer")
    def spent(orders):
        return orders.groupBy("customer").agg(F.sum("amount").alias("spent"))

    @app.view(key="customer")
    def odd(spent):
        """Leaves the view again when the sum becomes even."""
        return spent.where("spent % 2 = 1").select("customer", F.col("spent").alias("odd"))

    @app.view(key="customer")
    def also_small(odd):
        return odd.where("odd < 10")

    @app.view(key="minute", late=hw.correct(for_="1 hour"))
    def revenue(orders):
        return orders.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.sum("amount").alias("revenue"))

    @app.view(key="minute")
    def rich(revenue):
        return revenue.where("revenue >= 10")

    return app


def test_rows_come_change_and_go_with_the_rows_they_were_made_of():
    with run(shop(), now=T0) as world:
        sums: dict[int, int] = {}
        for customer, amount in [(1, 3), (2, 4), (1, 1), (2, 3), (1, 1), (3, 11), (2, 2), (3, 1), (3, 1)]:
            sums[customer] = sums.get(customer, 0) + amount
            world.send("orders", order(customer, amount, 0))
            world.settle()
            expected = [{"customer": c, "odd": s} for c, s in sorted(sums.items()) if s % 2]
            assert world.rows("odd") == expected
            assert world.rows("also_small") == [row for row in expected if row["odd"] < 10]
        for view in ("spent", "odd", "also_small"):
            assert world.counts(view).unaccounted == 0


def test_several_changes_of_one_row_in_one_batch_leave_the_last():
    with run(shop(), now=T0) as world:
        world.settle()
        world._engine.supervisors["odd"].stop()
        for amount in (1, 2, 2, 2):
            world.send("orders", order(7, amount, 0))
            world._engine.supervisors["spent"].catch_up()
    # the view above was stopped; a fresh world reads all changes of a row in its first batch
    with run(shop(), now=T0) as world:
        world.send("orders", *(order(7, amount, 0) for amount in (1, 2, 2, 2)), order(8, 2, 0))
        world.settle()
        assert world.rows("odd") == [{"customer": 7, "odd": 7}]


def test_a_correction_changes_the_row_and_the_next_view():
    with run(shop(), now=T0) as world:
        world.send("orders", order(1, 6, 0))
        world.advance("5 minutes")
        world.settle()
        assert world.rows("rich") == []
        world.send("orders", order(2, 7, 30))
        world.settle()
        assert [row["revenue"] for row in world.rows("revenue")] == [13]
        assert [row["revenue"] for row in world.rows("rich")] == [13]
        assert world.counts("revenue").late == 0


BY_SUM = {
    "other rows": lambda spent: spent.select("spent", "customer"),
    "equal rows": lambda spent: spent.select("spent"),
}


def sums(by_sum) -> hw.App:
    app = hw.App("sums")
    app.topic("orders", "customer int, amount int", key="customer")
    app.view("spent", key="customer", sql="select customer, sum(amount) spent from orders group by customer")
    app.view(key="spent")(by_sum)
    return app


@pytest.mark.parametrize(("columns", "batches"), [("other rows", 2), ("equal rows", 1), ("equal rows", 2)])
def test_two_rows_of_one_key_stop_the_view_with_both_rows(columns, batches):
    def by_sum(spent):
        return BY_SUM[columns](spent)

    with run(sums(by_sum)) as world:
        world.send("orders", {"customer": 1, "amount": 3})
        if batches == 2:
            world.settle()
        world.send("orders", {"customer": 2, "amount": 3}, {"customer": 3, "amount": 5})
        with pytest.raises(KeyNotUniqueError) as failed:
            world.settle()
    assert failed.value.data["key"] == {"spent": 3}
    customers = [row.get("customer") for row in failed.value.data["rows"]]
    assert customers == ([1, 2] if columns == "other rows" else [None, None])


def test_a_key_may_pass_from_one_row_to_another():
    def by_sum(spent):
        return spent.select("spent", "customer")

    with run(sums(by_sum)) as world:
        world.send("orders", {"customer": 1, "amount": 3})
        world.settle()
        world.send("orders", {"customer": 1, "amount": 2}, {"customer": 2, "amount": 3})
        world.settle()
        assert world.rows("by_sum") == [{"spent": 3, "customer": 2}, {"spent": 5, "customer": 1}]


def test_state_over_rows_that_change_for_ever_is_refused():
    app = shop()

    @app.view(key="n")
    def many(spent):
        return spent.groupBy("spent").agg(F.count("*").alias("n"))

    with run(app) as world, pytest.raises(BadPipelineError) as refused:
        world._engine.supervisors["many"].wait_until_running()
    assert refused.value.data["pipeline"] == "many"
