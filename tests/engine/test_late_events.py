"""Late events are left out only where the result depends on event time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.dry_run import describe
from headwater.engine.operators.aggregates import WindowAggregate
from headwater.engine.operators.as_of_join import AsOfJoin
from headwater.engine.operators.deduplicate import Deduplicate
from headwater.engine.operators.enrich import Enrich
from headwater.engine.operators.reorder_buffer import ReorderBuffer
from headwater.engine.operators.session_windows import SessionWindows
from headwater.engine.operators.sliding_windows import SlidingWindows
from headwater.engine.operators.stateful import Stateful, VectorizedStateful
from headwater.testing import run

T0 = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = pa.schema([("id", pa.int64())])
PRICES = pa.schema([("id", pa.int64()), ("price", pa.int64())])
FUNCTION = {"by": ["id"], "fn": lambda *given: None, "returns": "id bigint"}
COUNT = WindowAggregate("count", None, "n")
OPERATORS = {
    "enrich": (Enrich(EVENTS, PRICES, on=(("id", "id"),)), False),
    "enrich with wait": (Enrich(EVENTS, PRICES, on=(("id", "id"),), wait=1), True),
    "stateful": (Stateful(EVENTS, **FUNCTION), False),
    "stateful with expiry": (Stateful(EVENTS, **FUNCTION, expire="1 hour"), True),
    "stateful in order": (ReorderBuffer(Stateful(EVENTS, **FUNCTION), EVENTS), True),
    "stateful for all keys": (VectorizedStateful(EVENTS, **FUNCTION, state="n bigint"), False),
    "join_as_of": (AsOfJoin(EVENTS, PRICES, on=(("id", "id"),)), True),
    "sliding": (SlidingWindows(EVENTS, ("id",), 10, (COUNT,)), True),
    "sessions": (SessionWindows(EVENTS, ("id",), 10, (COUNT,)), True),
    "deduplicate": (Deduplicate(EVENTS, ("id",), 10), True),
}


@pytest.mark.parametrize(("operator", "uses_event_time"), OPERATORS.values(), ids=OPERATORS)
def test_an_operator_uses_event_time_only_if_it_waits(operator, uses_event_time: bool):
    assert operator.uses_event_time is uses_event_time


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "id int, product int, at timestamp", key="id", time="at", lateness="5 seconds")
    app.table("products", "product int, name string", key="product")

    @app.stream
    def named(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.enrich(orders, products, on="product")

    @app.stream
    def upper(orders: DataFrame, products: hw.Table) -> DataFrame:
        """The operator runs in Spark, because a step follows."""
        return hw.enrich(orders, products, on="product").select("id", F.upper("name").alias("name"))

    @app.stream
    def waiting(orders: DataFrame, products: hw.Table) -> DataFrame:
        return hw.enrich(orders, products, on="product", wait="1 minute")

    @app.view(key="id")
    def known(orders: DataFrame) -> DataFrame:
        return orders.select("id").dropDuplicates(["id"])

    @app.view(key="product")
    def per_product(orders: DataFrame) -> DataFrame:
        return orders.groupBy("product").count()

    @app.view(key="window")
    def per_window(orders: DataFrame) -> DataFrame:
        return orders.groupBy(F.window("at", "5 seconds")).count()

    @app.view(key="id")
    def known_since(orders: DataFrame) -> DataFrame:
        return orders.dropDuplicates(["id"])

    return app


@pytest.mark.spark
def test_late_events_are_left_out_only_by_steps_that_depend_on_event_time():
    with run(shop(), now=T0) as world:
        world.send("products", {"product": 7, "name": "tea"})
        world.send("orders", {"id": 1, "product": 7, "at": T0 + timedelta(minutes=1)})
        world.settle()
        world.send("orders", {"id": 2, "product": 7, "at": T0})
        world.settle()
        used, left_out = ("named", "upper", "known", "per_product"), ("waiting", "known_since", "per_window")
        names = (*used, *left_out)
        assert {name: world.counts(name).late for name in names} == dict.fromkeys(used, 0) | dict.fromkeys(left_out, 1)
        assert [event.value["name"] for event in world.client.read("named", stop="end")] == ["tea", "tea"]
        assert [event.value["name"] for event in world.client.read("upper", stop="end")] == ["TEA", "TEA"]
        assert [row["id"] for row in world.rows("known")] == [1, 2]
        assert all(world.counts(name).unaccounted == 0 for name in names)
        queries = {name: world._engine.supervisors[name].wait_until_running() for name in ("named", "waiting")}
        notes = {name: any("left out" in note for note in describe(query.built)) for name, query in queries.items()}
        assert notes == {"named": False, "waiting": True}
