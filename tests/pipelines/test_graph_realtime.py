"""Pipelines that ask for real-time mode, as far as the file alone tells."""

from __future__ import annotations

import pytest

import headwater as hw
from headwater.errors import BadPipelineError, NotRealtimeError
from headwater.pipelines import faults
from headwater.plan import Plan


@pytest.fixture
def app() -> hw.App:
    app = hw.App("shop")
    app.topic("orders", "id int, shop string")
    app.topic("shops", "shop string")
    return app


def fault(app: hw.App) -> NotRealtimeError:
    (found,) = faults(app.topics.values(), app.pipelines.values())
    assert isinstance(found, NotRealtimeError)
    assert found.location is not None
    assert "test_graph_realtime.py" in str(found.location)
    with pytest.raises(NotRealtimeError):
        app.resolve()
    return found


def test_a_view_is_refused_because_it_is_kept_in_a_store(app):
    app.view("totals", key="shop", latency="realtime", sql="select shop, count(*) n from orders group by shop")
    assert "store" in fault(app).what


def test_two_inputs_are_refused_by_name(app):
    app.stream("both", latency="realtime", sql="select id from orders join shops using (shop)")
    assert "orders, shops" in fault(app).what


def test_a_view_as_input_is_refused_by_name(app):
    app.view("totals", key="shop", sql="select shop, count(*) n from orders group by shop")
    app.stream("fast", latency="realtime", sql="select * from totals")
    assert 'view "totals"' in fault(app).what


def test_a_rule_for_late_events_is_refused(app):
    app.stream("fast", latency="realtime", late="drop", sql="select * from orders")
    assert "late: drop" in fault(app).what


def test_values_that_are_not_json_are_refused_by_topic(app):
    app.topic("packed", "id int", value_format="avro")
    app.stream("fast", latency="realtime", sql="select * from packed")
    assert 'values of "packed" are avro' in fault(app).what


def test_another_latency_is_refused_with_the_one_there_is(app):
    with pytest.raises(BadPipelineError) as caught:
        app.stream("fast", latency="fast", sql="select * from orders")
    assert '"realtime"' in str(caught.value)


def test_the_plan_names_mode_and_delivery(app):
    app.stream("fast", latency="realtime", sql="select * from orders")
    lines = Plan.of(app).lines()
    assert "  latency   realtime: Spark's real-time mode" in lines
    assert "  delivery  at least once, outside ledger and identity" in lines
    assert Plan.of(app).document()["pipelines"][0]["latency"] == "realtime"


def test_a_change_of_latency_is_a_change_of_the_pipeline(app):
    fast = app.stream("fast", latency="realtime", sql="select * from orders")
    usual = app.stream("usual", sql="select * from orders")
    assert fast.fingerprint != usual.fingerprint
