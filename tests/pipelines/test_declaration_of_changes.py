"""Tables of a topic of changes as they are declared: what they are, and what is refused with the user's line."""

from __future__ import annotations

import pytest

import headwater as hw
from headwater.errors import BadAppError, BadNameError, BadPipelineError
from headwater.pipelines import PipelineKind
from headwater.plan import Plan

ROW = "product_id int, name string, parts array<int>"


@pytest.fixture
def app() -> hw.App:
    app = hw.App("shop")
    app.topic("raw", hw.changes(ROW), time="at")
    return app


def test_a_table_of_changes_is_kept_as_a_view_is(app):
    table = app.table("products", app.topics["raw"], key="product_id")
    assert (table.kind, table.inputs, table.key, table.of_changes) == (
        PipelineKind.VIEW,
        ("raw",),
        ("product_id",),
        True,
    )
    assert (str(table), list(app.pipelines), list(app.topics)) == ('table "products"', ["products"], ["raw"])
    assert table.location.source.startswith("table = app.table(")


def test_its_key_may_have_several_columns(app):
    assert app.table("products", app.topics["raw"], key=("name", "product_id")).key == ("name", "product_id")


def test_the_plan_calls_it_a_table(app):
    app.table("products", app.topics["raw"], key="product_id")
    app.view("named", key="name", sql="select name, count(*) n from products group by 1")
    plan = Plan.of(app)
    assert plan.tree() == ["raw (topic)", "└── products (table)", "    └── named (view)"]
    assert any(line.startswith("table products ") for line in plan.lines())


def test_its_facts_change_with_topic_and_key(app):
    other = app.topic("other", hw.changes(ROW))
    tables = [
        app.table("a", app.topics["raw"], key="product_id"),
        app.table("b", app.topics["raw"], key="name"),
        app.table("c", other, key="product_id"),
    ]
    assert len({table.fingerprint for table in tables}) == 3


def test_it_cannot_be_called(app):
    with pytest.raises(BadPipelineError):
        app.table("products", app.topics["raw"], key="product_id")(1)


@pytest.mark.parametrize(
    ("declare", "data"),
    [
        (lambda app: app.table("t", app.topic("plain", ROW), key="product_id"), {"source": "plain"}),
        (lambda app: app.table("t", app.topic("wide", hw.changes(ROW), partitions=3), key="name"), {"source": "wide"}),
        (
            lambda app: app.table("t", app.topic("c", hw.changes(ROW), key="op", compact=True), key="name"),
            {"source": "c"},
        ),
        (lambda app: app.table("t", app.topics["raw"]), {}),
        (lambda app: app.table("t", app.topics["raw"], key="sku"), {"column": "sku"}),
        (lambda app: app.table("t", app.topics["raw"], key=("name", "op")), {"column": "op"}),
        (lambda app: app.table("t", app.topics["raw"], key="parts"), {"column": "parts"}),
        (lambda app: app.table("t", app.topics["raw"], key="name", time="at"), {"option": "time"}),
        (lambda app: app.table("t", hw.Topic.declare("raw", hw.changes(ROW)), key="name"), {"source": "raw"}),
        (lambda app: app.table("t", app.view("v", key="name", sql="select * from raw"), key="name"), {"source": "v"}),
        (lambda app: app.table("t", app.stream("s", sql="select * from raw"), key="name"), {"source": "s"}),
    ],
)
def test_what_cannot_be_a_table_quotes_the_users_line(app, declare, data):
    with pytest.raises(BadPipelineError) as refused:
        declare(app)
    error = refused.value
    assert error.data == {"pipeline": "t"} | data
    assert "app.table(" in error.location.source
    assert error.fix
    assert "t" not in app.pipelines


def test_its_name_is_its_own(app):
    with pytest.raises(BadAppError):
        app.table("raw", app.topics["raw"], key="name")
    with pytest.raises(BadNameError):
        app.table("hw_products", app.topics["raw"], key="name")
