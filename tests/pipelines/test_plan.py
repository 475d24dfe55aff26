"""The plan of an app: the same facts as text, as a picture and as JSON; what the engine found is added later."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.errors import BadSettingError, UnknownInputError
from headwater.pipelines import Pipeline, PipelineKind
from headwater.plan import PipelineCheck, Plan


@pytest.fixture
def app() -> hw.App:
    app = hw.App("shop")
    order = "order_id string, amount decimal(12,2), placed_at timestamp"
    app.topic("orders", order, key="order_id", time="placed_at", lateness="10 minutes", partitions=3)
    app.table("products", "product_id int", key="product_id")

    @app.view(key=("minute", "category"), late=hw.correct(for_="1 hour"))
    def revenue(orders, products):
        """Revenue by minute and category."""

    @app.stream(late="drop")
    def alerts(revenue): ...

    @app.files("exports/orders")
    def exported(orders): ...

    return app


@pytest.fixture
def plan(app) -> Plan:
    return Plan.of(app)


def block(plan: Plan, heading: str) -> list[str]:
    """The lines below a heading."""
    blocks = "\n".join(plan.lines()).split("\n\n")
    found = next(text for text in blocks if text.startswith(heading))
    return found.splitlines()


def test_the_tree_shows_what_feeds_what(plan):
    assert plan.tree() == [
        "orders (topic)",
        "├── revenue (view)",
        "│   └── alerts (stream)",
        "└── exported (files)",
        "products (table)",
        "└── revenue (view) …",
    ]


def test_a_topic_shows_its_type_key_and_time(plan):
    heading, *facts = block(plan, "topic orders")
    assert re.search(r"test_plan\.py:\d+$", heading)
    assert facts == [
        "  type      order_id STRING, amount DECIMAL(12,2), placed_at TIMESTAMP",
        "  key       order_id",
        "  time      placed_at, waits 10 minutes for stragglers",
        "  readers   revenue, exported",
    ]


def test_a_view_shows_inputs_key_lateness_and_delivery(plan):
    heading, *facts = block(plan, "view revenue")
    assert re.search(r"test_plan\.py:\d+$", heading)
    assert facts == [
        "  Revenue by minute and category.",
        "  reads     orders, products",
        "  key       minute, category",
        "  late      correct for 1 hour (late is more than 10 minutes behind in orders, 10 seconds behind in products)",
        "  delivery  effectively once: rows, ledger and outbox commit together",
    ]


def test_files_show_their_folder(plan):
    assert "  folder    exports/orders" in block(plan, "files exported")


def test_every_kind_states_its_delivery_and_none_says_exactly_once():
    pipelines = [Pipeline(name="p", kind=kind, inputs=("orders",), sql="…") for kind in PipelineKind]
    assert len({pipeline.delivery for pipeline in pipelines}) == len(PipelineKind)
    assert not any("exactly" in pipeline.delivery for pipeline in pipelines)


def test_the_document_has_the_same_facts(plan):
    document = json.loads(json.dumps(plan.document()))
    assert document["app"] == "shop"
    assert document["topics"][0] | {"location": None} == {
        "name": "orders",
        "kind": "topic",
        "type": "order_id STRING, amount DECIMAL(12,2), placed_at TIMESTAMP",
        "key": ["order_id"],
        "time": "placed_at",
        "lateness": 600.0,
        "partitions": 3,
        "value_format": "json",
        "location": None,
    }
    revenue = document["pipelines"][0]
    assert (revenue["waits"], revenue["corrects_for"]) == ({"orders": 600.0, "products": 10.0}, 3600.0)
    assert (revenue["late"], revenue["checked"]) == ("correct for 1 hour", None)
    assert {"source": "revenue", "target": "alerts"} in document["edges"]


def test_the_picture_has_a_node_and_an_arrow_for_each(plan):
    lines = plan.mermaid().splitlines()
    assert lines[0] == "flowchart LR"
    assert '  n2["revenue<br/>view, key minute, category"]' in lines
    assert "  n0 --> n2" in lines
    assert sum("-->" in line for line in lines) == len(plan.graph.edges)


@given(st.text(min_size=1).filter(str.strip))
def test_no_key_can_break_out_of_the_picture(key):
    app = hw.App("shop")
    app.topic("orders", "id int")
    app.view("totals", key=key, sql="select * from orders")
    _, _, node, arrow = Plan.of(app).mermaid().split("\n")
    assert (node.count('"'), node.count("<"), arrow) == (2, 1, "  n0 --> n1")
    assert node.splitlines() == [node]


def test_a_plan_of_an_app_that_is_wrong_cannot_be_made(app):
    app.stream("lost", sql="select * from nowhere")
    with pytest.raises(UnknownInputError):
        Plan.of(app)


def test_an_app_of_topics_alone_has_a_plan():
    app = hw.App("log")
    app.topic("notes", "text string")
    assert Plan.of(app).tree() == ["notes (topic)"]
    assert Plan.of(hw.App("empty")).lines() == []


def test_what_the_engine_found_is_shown(plan):
    checked = PipelineCheck(
        "revenue", "minute struct<start: timestamp>, n bigint", "update", ("window aggregate",), "kept", ("cut in two",)
    )
    told = plan.with_checks([checked])
    assert told.check_lines() == [
        "revenue: kept, resumes where it stopped",
        "  type      minute struct<start: timestamp>, n bigint",
        "  rows      as they change (update); state: window aggregate",
        "  note      cut in two",
    ]
    assert told.document()["pipelines"][0]["checked"]["stateful"] == ["window aggregate"]
    assert (told.has_errors, told.is_refused, plan.check_lines()) == (False, False, [])


def test_an_error_of_the_engine_is_shown_in_our_form(plan):
    problem = BadSettingError("no column b", detail="columns: a\nof orders", fix='key="a"').problem()
    told = plan.with_checks([PipelineCheck("revenue", error=problem | {"location": "app.py:7"})])
    assert told.check_lines() == [
        "revenue: error BAD_SETTING: no column b",
        "  app.py:7",
        "  columns: a",
        "  of orders",
        '  fix: key="a"',
    ]
    assert told.has_errors


def test_a_pipeline_that_does_not_fit_is_refused(plan):
    told = plan.with_checks(
        [PipelineCheck("revenue", compatibility="refused"), PipelineCheck("alerts", compatibility="rebuild")]
    )
    assert told.is_refused
    assert told.check_lines()[0] == "revenue: refused, is not compatible with the previous run"
