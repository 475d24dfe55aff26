"""Sessions that correct: equal to DuckDB's gaps and islands after every batch, for every order of arrival."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.operators.aggregates import WindowAggregate
from headwater.engine.operators.session_windows import SessionWindows
from headwater.engine.state.state import OFFSET, PARTITION, TIME, WEIGHT, MemoryState
from headwater.errors import BadPipelineError
from tests.engine.operators.histories import END, asked, contents, histories, moment, run, spaces, table_of

CLICKS = pa.schema([("user", pa.float64()), ("price", pa.decimal128(10, 2)), ("gap", pa.int64())])
EVENTS = st.fixed_dictionaries(
    {
        "user": st.sampled_from([1.0, math.nan, None]),
        "price": st.none() | st.decimals(-5, 5, places=2),
        "gap": st.sampled_from([1, 2, 5, 0, None]),
    }
)
ASKED = (
    WindowAggregate("count", None, "clicks"),
    WindowAggregate("sum", "price", "total"),
    WindowAggregate("max", "price", "top"),
)
ORACLE = """
    with lasting as (select *, _hw_time + {gap} as until from clicks where {gap} > 0),
    marked as (
        select *, coalesce(_hw_time > max(until) over (
            partition by "user" order by _hw_time, _hw_partition, _hw_offset
            rows between unbounded preceding and 1 preceding), true) as first
        from lasting
    ), numbered as (
        select *, sum(first::int) over (partition by "user" order by _hw_time, _hw_partition, _hw_offset) as number
        from marked
    )
    select "user", {{'start': make_timestamp(min(_hw_time)), 'end': make_timestamp(max(until))}} as session,
        count(*) as clicks, cast(sum(price) as decimal(20, 2)) as total, max(price) as top
    from numbered group by "user", number
"""


@settings(max_examples=40, deadline=None)
@given(histories(EVENTS, partitions=2, most=7, span=20), st.sampled_from([1, 3, "gap"]))
def test_every_batch_shows_the_islands_of_duckdb(history, gap):
    results, state = run(SessionWindows(CLICKS, ("user",), gap, ASKED), history, [CLICKS], [False])
    seen = []
    for end, ((records,), _) in enumerate(history.batches):
        seen += records
        assert contents(results[: end + 1]) == asked(ORACLE.format(gap=gap), clicks=table_of(seen, CLICKS))
    assert spaces(state) == {}


@settings(max_examples=40, deadline=None)
@given(histories(EVENTS, partitions=2, span=20), st.integers(1, 8))
def test_every_cut_gives_the_same_limited_sessions(history, longest):
    results, state = run(SessionWindows(CLICKS, ("user",), "gap", ASKED[:1], longest), history, [CLICKS], [False])
    assert contents(results) == limited(history.inputs[0], longest)
    assert spaces(state) == {}


def limited(records, longest):
    """Each event in order: into the last session of its user, unless it is over or full."""
    sessions = {}
    for row in table_of(records, CLICKS).to_pylist():
        if not row["gap"]:
            continue
        mine = sessions.setdefault(repr(row["user"]), [])
        if not mine or row[TIME] > mine[-1]["end"] or row[TIME] >= mine[-1]["start"] + longest:
            mine.append({"user": row["user"], "start": row[TIME], "end": row[TIME], "clicks": 0})
        mine[-1]["clicks"] += 1
        mine[-1]["end"] = min(max(mine[-1]["end"], row[TIME] + row["gap"]), mine[-1]["start"] + longest)
    shown = [
        {
            "user": one["user"],
            "clicks": one["clicks"],
            "session": {"start": moment(one["start"]), "end": moment(one["end"])},
        }
        for mine in sessions.values()
        for one in mine
    ]
    moments = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
    schema = pa.schema([("user", pa.float64()), ("clicks", pa.int64()), ("session", moments)])
    return contents([pa.Table.from_pylist(shown, schema)])


def click(time, offset=0):
    return {"user": 1, "price": 1, "gap": 5, TIME: time, PARTITION: 0, OFFSET: offset}


def stepped(operator, state, rows, watermark):
    found = operator.step(state, [table_of(rows, CLICKS)], watermark).to_pylist()
    return [
        (row["session"]["start"].microsecond, row["session"]["end"].microsecond, row["clicks"], row[WEIGHT])
        for row in found
    ]


def test_an_event_between_two_sessions_merges_them():
    operator, state = SessionWindows(CLICKS, ("user",), 5, ASKED), MemoryState()
    assert stepped(operator, state, [click(0), click(10, 1)], 0) == [(0, 5, 1, 1), (10, 15, 1, 1)]
    assert stepped(operator, state, [click(5, 2)], 0) == [(0, 5, 1, -1), (10, 15, 1, -1), (0, 15, 3, 1)]


def test_a_session_is_forgotten_above_its_end():
    operator, state = SessionWindows(CLICKS, ("user",), 5, ASKED), MemoryState()
    stepped(operator, state, [click(0)], 5)
    assert stepped(operator, state, [click(5, 1)], 5) == [(0, 5, 1, -1), (0, 10, 2, 1)]
    assert stepped(operator, state, [], 11) == []
    assert len(state) == 0


def test_a_session_at_its_end_can_still_grow():
    operator, state = SessionWindows(CLICKS, ("user",), 5, ASKED), MemoryState()
    stepped(operator, state, [click(0), click(1, 1)], 6)
    assert stepped(operator, state, [click(6, 2)], 6) == [(0, 6, 2, -1), (0, 11, 3, 1)]


def test_sessions_that_do_not_change_are_not_told():
    operator, state = SessionWindows(CLICKS, ("user",), 5, ASKED), MemoryState()
    stepped(operator, state, [click(0), click(20, 1)], 0)
    assert stepped(operator, state, [click(21, 2)], 0) == [(20, 25, 1, -1), (20, 26, 2, 1)]
    stepped(operator, state, [], END)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"gap": 0}, "option"),
        ({"gap": "nothing"}, "column"),
        ({"gap": "price"}, "column"),
        ({"longest": 0}, "option"),
        ({"session": "user"}, "columns"),
        ({"aggregates": ()}, "aggregates"),
    ],
)
def test_what_cannot_be_is_refused(options, part):
    with pytest.raises(BadPipelineError) as refused:
        SessionWindows(**{"events": CLICKS, "key": ("user",), "gap": 5, "aggregates": ASKED, **options})
    assert part in refused.value.data
