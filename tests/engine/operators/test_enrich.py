"""The stream-table join: each event with the row of its key as it is, for every cut into batches."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.operators.enrich import Enrich
from headwater.engine.state.state import DELETED, OFFSET, PARTITION, QUARANTINE_REASON, TIME, MemoryState
from headwater.errors import BadPipelineError
from tests.engine.operators.histories import END, START, asked, contents, histories, run, spaces, table_of

CLICKS = pa.schema([("click", pa.int64()), ("page", pa.float64())])
PAGES = pa.schema([("id", pa.float64()), ("title", pa.string())])
ON = (("page", "id"),)
KEYS = st.sampled_from([1.0, math.nan, 0.0, -0.0, None])
EVENTS = st.fixed_dictionaries({"click": st.integers(0, 3), "page": KEYS})
VERSIONS = st.fixed_dictionaries({"id": KEYS, "title": st.sampled_from(["a", "b", None]), DELETED: st.booleans()})
NOW = """
    with now as (
        select * from pages where id is not null
        qualify row_number() over (partition by id order by _hw_time desc) = 1
    )
    select click, page, title, clicks._hw_time, clicks._hw_partition, clicks._hw_offset
    from clicks {how} join (select * from now where not _hw_deleted) now on page = id
"""


def in_order(pages):
    """Versions as they stand in their topic."""
    return sorted(pages, key=lambda page: (page[PARTITION], page[OFFSET]))


def now(clicks, pages, how="left"):
    """The rows that DuckDB gives; of versions in this order, the last counts."""
    pages = [{**page, TIME: number} for number, page in enumerate(pages)]
    tables = {"clicks": table_of(clicks, CLICKS), "pages": table_of(pages, PAGES, of_table=True)}
    return asked(NOW.format(how=how), **tables)


@settings(max_examples=50, deadline=None)
@given(histories(EVENTS, VERSIONS), st.sampled_from(["inner", "left"]))
def test_each_batch_gives_the_rows_of_duckdb(history, how):
    results, state = run(Enrich(CLICKS, PAGES, ON, how=how), history, [CLICKS, PAGES], [False, True])
    seen, expected = [], contents([])
    for (clicks, pages), _ in history.batches:
        seen += in_order(pages)
        expected += now(clicks, seen, how)
    assert contents(results) == expected
    rows = now(
        [{"click": 0, "page": key, TIME: 0, PARTITION: 0, OFFSET: 0} for key in (1.0, math.nan, 0.0)], seen, "inner"
    )
    assert spaces(state) == ({"rows": rows.total()} if rows else {})


@settings(max_examples=50, deadline=None)
@given(histories(EVENTS, VERSIONS, most=5), st.integers(0, 6), st.booleans())
def test_waiting_events_come_out_exactly_once(history, wait, refuse):
    operator = Enrich(CLICKS, PAGES, ON, wait=wait, quarantine=refuse)
    results, state = run(operator, history, [CLICKS, PAGES], [False, True])
    places = [(row[TIME], row[PARTITION], row[OFFSET]) for result in results for row in result.to_pylist()]
    assert sorted(places) == sorted((row[TIME], row[PARTITION], row[OFFSET]) for row in history.inputs[0])
    assert set(spaces(state)) <= {"rows"}


@settings(max_examples=30, deadline=None)
@given(histories(EVENTS, VERSIONS, most=5))
def test_an_event_that_waits_gets_its_first_row(history):
    results, _ = run(Enrich(CLICKS, PAGES, ON, how="inner", wait=END // 2), history, [CLICKS, PAGES], [False, True])
    waiting, seen, expected = [], [], contents([])
    for (clicks, pages), _ in history.batches:
        waiting, seen = waiting + clicks, seen + in_order(pages)
        for click in list(waiting):
            if row := now([click], seen, "inner"):
                expected += row
                waiting.remove(click)
    assert contents(results) == expected


def click(time, page=1, offset=0):
    return {"click": 0, "page": page, TIME: time, PARTITION: 0, OFFSET: offset}


def page(time, title, id=1, deleted=False, offset=0):
    return {"id": id, "title": title, DELETED: deleted, TIME: time, PARTITION: 0, OFFSET: offset}


def stepped(operator, state, clicks, pages, watermark=START):
    arrived = [table_of(clicks, operator.events), table_of(pages, operator.table, of_table=True)]
    return operator.step(state, arrived, watermark).to_pylist()


def test_the_last_version_counts_whatever_it_says_of_its_time():
    operator, state = Enrich(CLICKS, PAGES, ON), MemoryState()
    stepped(operator, state, [], [page(9, "new")])
    pages = [page(5, "last", offset=2), page(7, "between", offset=1)]
    assert [row["title"] for row in stepped(operator, state, [click(9)], pages)] == ["last"]


def test_a_deleted_row_leaves_nothing_behind():
    operator, state = Enrich(CLICKS, PAGES, ON), MemoryState()
    stepped(operator, state, [], [page(9, "a")])
    deleted = page(9, None, deleted=True, offset=1)
    assert [row["title"] for row in stepped(operator, state, [click(9)], [deleted])] == [None]
    assert len(state) == 0
    stepped(operator, state, [], [deleted])
    assert [row["title"] for row in stepped(operator, state, [click(9)], [page(1, "b", offset=2)])] == ["b"]


def test_an_event_waits_exactly_as_long_as_said():
    operator, state = Enrich(CLICKS, PAGES, ON, wait=10), MemoryState()
    assert stepped(operator, state, [click(5)], [], 15) == []
    assert [row["title"] for row in stepped(operator, state, [], [], 16)] == [None]
    assert len(state) == 0


def test_a_row_that_comes_in_time_is_joined():
    operator, state = Enrich(CLICKS, PAGES, ON, wait=10), MemoryState()
    stepped(operator, state, [click(5)], [page(5, None, deleted=True)], 5)
    assert [row["title"] for row in stepped(operator, state, [], [page(6, "a", offset=1)], 16)] == ["a"]
    assert spaces(state) == {"rows": 1}


def test_a_missing_row_is_refused_with_its_reason():
    operator = Enrich(CLICKS, PAGES, ON, quarantine=True, how="inner")
    clicks = [click(5, 1), click(5, 2, 1), click(5, None, 2)]
    found = stepped(operator, MemoryState(), clicks, [page(5, "a")])
    assert [row[QUARANTINE_REASON] for row in found] == [None, "no row for this page", "page is null"]


def test_a_table_of_keys_alone_can_be_joined():
    operator = Enrich(CLICKS, pa.schema([("id", pa.float64())]), ON, how="inner")
    assert [row["page"] for row in stepped(operator, MemoryState(), [click(5), click(5, 2)], [page(5, "a")])] == [1]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"on": ()}, {"on": []}),
        ({"on": (("nothing", "id"),)}, {"column": "nothing", "side": "event"}),
        ({"on": (("page", "nothing"),)}, {"column": "nothing", "side": "table"}),
        ({"on": (("click", "id"),)}, {"on": ["click", "id"]}),
        ({"table": pa.schema([("id", pa.float64()), ("click", pa.int64())])}, {"columns": ["click"]}),
        ({"wait": -1}, {"option": "wait", "value": -1}),
    ],
)
def test_a_join_that_cannot_be_is_refused(options, part):
    with pytest.raises(BadPipelineError) as refused:
        Enrich(**{"events": CLICKS, "table": PAGES, "on": ON, **options})
    assert refused.value.data == part
