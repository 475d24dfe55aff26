"""Which queries in SQL are about tables as a whole when they ask for history; no Spark is needed to say so."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

import headwater as hw
from headwater.engine.build import checks
from headwater.engine.build.inputs import Input, RowBehaviour
from headwater.engine.build.table_views import is_table_query
from headwater.errors import BadPipelineError
from headwater.store import ViewTable
from headwater.store.changelog import change_schema

ROW = pa.schema([("id", pa.int32()), ("name", pa.string())])


def view(name: str) -> Input:
    """A table of changes, as a pipeline behind it sees it."""
    topic = hw.Topic.declare(f"{name}.changes", change_schema(ViewTable(name, 1, ROW, ("id",))))
    return Input.of_view(name, topic, RowBehaviour.CHANGING, ("id",))


def query(sql: str, **options: object):
    app = hw.App("shop")
    for name in ("raw", "more"):
        app.topic(name, hw.changes("id int, name string"), time="at")
    app.topic("orders", "id int, at timestamp", time="at")
    app.table("products", app.topics["raw"], key="id")
    app.table("others", app.topics["more"], key="id")
    return app.view("past", key="id", sql=sql, **options)


@pytest.mark.parametrize("history", [True, timedelta(days=1)])
def test_the_history_of_a_table_of_changes_is_about_the_table(history):
    assert is_table_query(query("select * from products", history=history), (view("products"),))


def test_a_plain_query_of_a_table_of_changes_runs_on_its_changes():
    assert not is_table_query(query("select id, name from products"), (view("products"),))


def test_a_join_of_tables_of_changes_is_about_tables():
    joined = query("select p.id, p.name from products p join others o on o.id = p.id")
    assert is_table_query(joined, (view("products"), view("others")), ("join",))


def test_the_history_of_events_is_refused_with_a_fix_for_sql():
    asked = query("select * from orders", history=True)
    topic = hw.Topic.declare("orders", "id int, at timestamp", time="at")
    assert not is_table_query(asked, (Input("orders", topic),))
    with pytest.raises(BadPipelineError) as refused:
        checks.refuse_history(asked)
    assert refused.value.fix.startswith('app.table("orders", ')
