"""Each event's own last minutes: equal to DuckDB's windows over all events, for every cut into batches."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.operators.aggregates import WindowAggregate
from headwater.engine.operators.sliding_windows import SlidingWindows
from headwater.engine.state.state import OFFSET, PARTITION, TIME, WEIGHT, MemoryState
from headwater.errors import BadPipelineError
from tests.engine.operators.histories import END, asked, contents, histories, run, spaces, table_of

READINGS = pa.schema([("sensor", pa.float64()), ("value", pa.float64()), ("n", pa.int32())])
EVENTS = st.fixed_dictionaries(
    {
        "sensor": st.sampled_from([1.0, math.nan, None]),
        "value": st.sampled_from([0.1, 2.5, -7.0, None]),
        "n": st.integers(-2, 2),
    }
)
ASKED = (
    WindowAggregate("count", None, "events"),
    WindowAggregate("avg", "value", "mean"),
    WindowAggregate("stddev", "value", "spread"),
    WindowAggregate("min", "n", "low"),
    WindowAggregate("sum", "n", "total"),
)
ORACLE = """
    select *, count(*) over w as events, avg(value) over w as mean, stddev(value) over w as spread,
        min(n) over w as low, cast(sum(n) over w as bigint) as total
    from readings
    window w as (partition by sensor order by _hw_time range between {frame})
"""


def expected(history, length, itself):
    frame = f"{length - 1} preceding and current row" if itself else f"{length} preceding and 1 preceding"
    return asked(ORACLE.format(frame=frame), readings=table_of(history.inputs[0], READINGS))


@settings(max_examples=60, deadline=None)
@given(histories(EVENTS, partitions=2), st.integers(1, 6), st.booleans(), st.booleans())
def test_every_cut_gives_the_windows_of_duckdb(history, length, itself, final):
    operator = SlidingWindows(READINGS, ("sensor",), length, ASKED, itself=itself, final=final)
    results, state = run(operator, history, [READINGS], [False])
    assert contents(results) == expected(history, length, itself)
    assert spaces(state) == {}


def reading(time, offset=0):
    return {"sensor": 1, "value": 1.0, "n": 1, TIME: time, PARTITION: 0, OFFSET: offset}


def stepped(operator, state, rows, watermark):
    found = operator.step(state, [table_of(rows, READINGS)], watermark).to_pylist()
    return [(row[TIME], row["events"], row.get(WEIGHT)) for row in found]


def test_an_event_out_of_order_corrects_those_after_it():
    operator, state = SlidingWindows(READINGS, ("sensor",), 10, ASKED, final=False), MemoryState()
    stepped(operator, state, [reading(2), reading(8, 1), reading(20, 2)], 0)
    changes = stepped(operator, state, [reading(5, 3)], 0)
    assert changes == [(8, 2, -1), (8, 3, 1), (5, 2, 1)]


def test_events_are_kept_while_others_look_back():
    operator, state = SlidingWindows(READINGS, ("sensor",), 10, ASKED), MemoryState()
    stepped(operator, state, [reading(0)], 9)
    assert spaces(state)["events"] == 1
    assert stepped(operator, state, [reading(9, 1)], 10) == [(9, 2, None)]
    stepped(operator, state, [], 19)
    assert len(state) == 0


def test_an_event_looks_back_over_the_whole_length():
    operator, state = SlidingWindows(READINGS, ("sensor",), 10, ASKED, itself=False), MemoryState()
    stepped(operator, state, [reading(0), reading(1, 1)], 11)
    assert stepped(operator, state, [reading(11, 2)], 12) == [(11, 1, None)]


def test_the_last_event_of_all_is_given_out():
    operator = SlidingWindows(READINGS, ("sensor",), 10, ASKED, itself=False)
    assert stepped(operator, MemoryState(), [reading(0), reading(10, 1), reading(10, 2)], END) == [
        (0, 0, None),
        (10, 1, None),
        (10, 1, None),
    ]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"key": ("nothing",)}, "column"),
        ({"length": 0}, "option"),
        ({"aggregates": ()}, "aggregates"),
        ({"aggregates": (WindowAggregate("count", None, "n"),)}, "columns"),
    ],
)
def test_what_cannot_be_is_refused(options, part):
    with pytest.raises(BadPipelineError) as refused:
        SlidingWindows(**{"events": READINGS, "key": ("sensor",), "length": 5, "aggregates": ASKED, **options})
    assert part in refused.value.data
