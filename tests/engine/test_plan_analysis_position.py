"""Where events stand, and when they happened, is kept through steps that name neither; other steps are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.errors import BadPipelineError
from headwater.testing import World, run

pytestmark = pytest.mark.spark
NOW = "2026-01-01T00:00:00Z"
ORDER = "order_id int, product_id int, note string, at timestamp"


def gathered(product, orders, state):
    seen = [*(state or {"seen": []})["seen"], *(order["order_id"] for order in orders)]
    return {"seen": seen}, [{"product_id": product, "seen": seen}]


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", ORDER, time="at", lateness="1 hour")
    app.topic("returns_", ORDER, time="at", lateness="1 hour")
    app.table("products", "product_id int, name string", key="product_id")
    return app


def send(world: World, topic: str, *ids: int, product: int = 7) -> None:
    """Events of one time; each topic counts its offsets from 0."""
    for number in ids:
        world.send(topic, {"order_id": number, "product_id": product, "note": "", "at": NOW})


def settled(world: World) -> None:
    world.settle()
    world.advance("1 day")
    world.settle()


def test_select_before_an_operator_keeps_equal_events_apart():
    app = shop()

    @app.stream
    def selected(orders: DataFrame) -> DataFrame:
        """Neither time nor place is named, and all rows are equal."""
        bare = orders.select("product_id").where("product_id > 0").selectExpr("product_id as p")
        return hw.sliding(bare, by="p", over="1 hour", n="count(*)")

    @app.view(key="product_id")
    def in_sql(orders: DataFrame) -> DataFrame:
        query = "with whole as (select * from {o}) select order_id, product_id from whole where note = ''"
        bare = orders.sparkSession.sql(query, o=orders).repartition(1)
        returns = "product_id int, seen array<int>"
        return hw.stateful(bare, by="product_id", fn=gathered, returns=returns, ordered=True)

    @app.view(key="order_id")
    def chained(orders: DataFrame, products: hw.Table) -> DataFrame:
        """The first operator runs in Spark, with a select before it and one behind."""
        named = hw.enrich(orders.select("order_id", "product_id"), products, on="product_id").select("order_id", "name")
        return hw.sliding(named, by="name", over="1 hour", n="count(*)")

    with run(app, now=NOW) as world:
        world.send("products", {"product_id": 7, "name": "pen"})
        send(world, "orders", 1, 2, 3)
        settled(world)
        assert [event.value for event in world.client.read("selected")] == [{"p": 7, "n": 3}] * 3
        assert world.rows("in_sql") == [{"product_id": 7, "seen": [1, 2, 3]}]
        assert world.rows("chained") == [{"order_id": n, "name": "pen", "n": 3} for n in (1, 2, 3)]


def test_events_of_two_topics_that_stand_at_equal_places_are_two():
    app = shop()
    returns = "product_id int, seen array<int>"

    @app.view(key="product_id")
    def of_two(orders: DataFrame, returns_: DataFrame) -> DataFrame:
        both = orders.select("order_id", "product_id").union(returns_.select("order_id", "product_id"))
        return hw.stateful(both, by="product_id", fn=gathered, returns=returns, ordered=True)

    @app.view(key="product_id")
    def whole(orders: DataFrame, returns_: DataFrame) -> DataFrame:
        """With the hidden columns of both."""
        both = orders.unionByName(returns_)
        return hw.stateful(both, by="product_id", fn=gathered, returns=returns, ordered=True)

    @app.view(key="product_id")
    def of_one(orders: DataFrame) -> DataFrame:
        twice = orders.union(orders.withColumn("order_id", F.expr("order_id + 10")))
        return hw.stateful(twice, by="product_id", fn=gathered, returns=returns, ordered=True)

    with run(app, now=NOW) as world:
        send(world, "orders", 1, 2)
        send(world, "returns_", 3, 4)
        settled(world)
        assert sorted(world.rows("of_two")[0]["seen"]) == [1, 2, 3, 4]
        assert sorted(world.rows("whole")[0]["seen"]) == [1, 2, 3, 4]
        assert sorted(world.rows("of_one")[0]["seen"]) == [1, 2, 11, 12]


def test_events_that_are_given_back_are_those_of_their_topic():
    app = shop()

    @app.view(key="order_id")
    def known(products: hw.Table, orders: DataFrame) -> DataFrame:
        """The table comes first."""
        return hw.enrich(orders.select("order_id", "product_id"), products, on="product_id", missing="quarantine")

    def picky(product, orders, state):
        if product == 9:
            raise ValueError("not this one")
        return gathered(product, orders, state)

    @app.view(key="product_id")
    def picked(orders: DataFrame, returns_: DataFrame) -> DataFrame:
        both = orders.select("order_id", "product_id").union(returns_.select("order_id", "product_id"))
        return hw.stateful(both, by="product_id", fn=picky, returns="product_id int, seen array<int>")

    with run(app, now=NOW) as world:
        world.send("products", {"product_id": 7, "name": "pen"})
        send(world, "orders", 1)
        send(world, "orders", 2, product=8)
        send(world, "returns_", 3)
        send(world, "returns_", 4, product=9)
        settled(world)
        asked = "select pipeline, topic, value->>'order_id' from hw_quarantine order by pipeline"
        kept = [tuple(row) for row in world.client.sql(asked).rows]
        assert kept == [("known", "orders", 2), ("picked", "returns_", 4)]
        counts = world.counts("picked")
        assert (counts.in_, counts.used, counts.quarantined) == (4, 3, 1)


def joined(orders: DataFrame, returns_: DataFrame) -> DataFrame:
    late = returns_.selectExpr("order_id as of", "at as returned_at")
    return orders.join(late, F.expr("order_id = of and returned_at between at and at + interval 1 hour"))


REFUSED: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "groups": lambda orders, _: orders.groupBy(F.window("at", "1 hour"), "order_id").count(),
    "windows": lambda orders, _: orders.groupBy("at", "order_id").count(),
    "pairs": lambda orders, returns_: joined(orders, returns_).drop("returned_at"),
    "parts": lambda orders, _: orders.select("*", F.explode(F.split("note", ","))),
    "some parts": lambda orders, _: orders.select("*", F.explode(F.split("note", ","))).dropDuplicates(["order_id"]),
    "half": lambda orders, _: orders.select("order_id", "at").union(
        orders.groupBy("order_id", "at").count().drop("count")
    ),
    "same": lambda orders, _: orders.select("order_id", "at").distinct(),
    "equal": lambda orders, _: orders.dropDuplicates(),
    "code": lambda orders, _: orders.select("order_id", "at").mapInArrow(
        lambda rows: rows, "order_id int, at timestamp"
    ),
}


@pytest.mark.parametrize("step", REFUSED)
def test_rows_that_are_not_one_event_each_are_refused(step: str):
    app = shop()

    @app.stream
    def once(orders: DataFrame, returns_: DataFrame) -> DataFrame:
        return hw.deduplicate(REFUSED[step](orders, returns_), by="order_id", within="1 hour")

    with run(app, now=NOW) as world, pytest.raises(BadPipelineError) as refused:
        world.settle()
    assert "an earlier step has dropped" in refused.value.what
    assert "hw.deduplicate before that step" in str(refused.value.fix)
