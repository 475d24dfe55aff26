"""Engines that run some pipelines of an app."""

from __future__ import annotations

import pytest

import headwater as hw
from headwater.engine.compatibility import Rebuild
from headwater.engine.engine import Engine
from headwater.errors import RefusedError, UnknownViewError
from headwater.testing import run
from headwater.testing.world import get_spark
from tests.engine.rooms import started

pytestmark = pytest.mark.spark


def shop() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "customer string, amount int", key="customer")
    app.stream("paid", sql="select * from orders where amount > 0")
    app.view("spent", key="customer", sql="select customer, sum(amount) amount from paid group by customer")
    app.view("counts", key="customer", sql="select customer, count(*) n from orders group by customer")
    app.view("fans", key="n", sql="select n, count(*) customers from counts group by n")
    return app


def test_only_the_selected_pipelines_and_their_inputs_run():
    with run(shop(), only=["spent"]) as world:
        world.send("orders", {"customer": "a", "amount": 3}, {"customer": "a", "amount": 0})
        world.settle()
        assert world.rows("spent") == [{"customer": "a", "amount": 3}]
        with pytest.raises(UnknownViewError):
            world.rows("counts")


def test_a_selected_pipeline_reads_what_the_others_have_committed(tmp_path):
    with started(shop(), tmp_path) as world:
        world.send("orders", {"customer": "a", "amount": 3})
        world.settle()
    with started(shop(), tmp_path, names=["spent", "fans"]) as world:
        world.send("orders", {"customer": "a", "amount": 4}, {"customer": "b", "amount": 5})
        world.settle()
        assert world.rows("spent") == [{"customer": "a", "amount": 3}]  # paid does not run
    with started(shop(), tmp_path, names=["paid", "counts"]) as world:
        world.settle()
    with started(shop(), tmp_path, names=["spent", "fans"]) as world:
        world.settle()
        assert world.rows("spent") == [{"customer": "a", "amount": 7}, {"customer": "b", "amount": 5}]
        assert world.rows("fans") == [{"n": 1, "customers": 1}, {"n": 2, "customers": 1}]


def test_an_input_that_has_never_run_is_named(tmp_path):
    for name, source in (("spent", "paid"), ("fans", "counts")):
        with started(shop(), tmp_path / name, names=[name]) as world, pytest.raises(RefusedError) as refused:
            world.settle()
        assert refused.value.fix == f"--select {source}"


def test_a_rebuild_needs_the_pipelines_downstream(tmp_path):
    with started(shop(), tmp_path) as world:
        engine = world._engine
        with pytest.raises(RefusedError) as refused:
            Engine(
                shop().resolve(), lambda: get_spark().session, engine.context, {"counts": Rebuild()}, names=["counts"]
            )
        assert refused.value.fix == "--select fans"
