"""The options of the source for each input."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from headwater.engine.build.inputs import DEFAULT_EVENT_TIME, Input, RowBehaviour, source_options
from headwater.engine.state.state import DELETED, OFFSET, PARTITION, SINCE
from tests.engine.given import options, orders, view


@pytest.mark.parametrize(
    ("input_", "ops", "side", "metric"),
    [
        (orders(), "", "after", "orders"),
        (orders().as_table(), "", "table", "orders"),
        (view("v", RowBehaviour.OPEN), "final", "after", "v"),
        (view("v"), "insert,update", "after", "v"),
        (view("v").as_table(), "insert,update,delete", "table", "v"),
        (view("v").as_new_rows(), "insert,update", "after", "v"),
        (view("v").as_old_rows(), "update,delete", "before", "v.before"),
    ],
)
def test_an_input_reads_the_changes_that_are_its_events(input_: Input, ops: str, side: str, metric: str):
    found = source_options((input_,), 0, options(input_))
    assert (found["topic"], found["ops"], found["side"]) == (input_.topic.name, ops, side)
    assert input_.metric_name == metric


def test_columns_include_event_time_and_hidden_ones():
    assert orders().schema.names == ["id", "at"]
    assert view("v").schema.names == ["id", DEFAULT_EVENT_TIME]
    assert orders().as_table().schema.names == ["id", "at", SINCE, PARTITION, OFFSET, DELETED]
    found = source_options((orders(),), 0, options(orders(), columns={"orders": ("at",)}))
    assert (json.loads(found["columns"]), found["time"]) == (["at"], "at")


@pytest.mark.parametrize(
    ("input_", "drop_late", "lateness"),
    [(orders(), True, 7_000_000), (orders(), False, -1), (orders().as_table(), False, 7_000_000)],
)
def test_lateness_is_that_of_the_topic_and_of_corrections(input_: Input, drop_late: bool, lateness: int):
    given = options(input_, drop_late=drop_late, extra_lateness=timedelta(seconds=2))
    assert source_options((input_,), 0, given)["lateness"] == str(lateness)
    assert given.visible_rows(input_).lateness == lateness


def test_events_wait_for_tables_and_tables_alone_wait_for_nothing():
    events, table, other = orders(), orders("rates").as_table(), orders("names").as_table()
    for inputs, tables in (((events, table), [1]), ((table, other), []), ((events,), [])):
        found = [json.loads(source_options(inputs, n, options(*inputs))["loading"]) for n in range(len(inputs))]
        assert [one["tables"] for one in found] == [tables] * len(inputs)
        assert [one["number"] for one in found] == list(range(len(inputs)))


def test_all_inputs_share_one_pace():
    inputs = (orders(), orders("rates"))
    found = json.loads(source_options(inputs, 1, options(*inputs, max_wait=0.5))["pace"])
    assert found == {"topics": ["orders", "rates"], "number": 1, "notes": "pacing", "wait": 0.5}
