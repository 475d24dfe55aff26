"""Deduplication within a time: by its definition over all events in order, for every order of arrival and every cut."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.operators.deduplicate import Deduplicate
from headwater.engine.state.state import OFFSET, PARTITION, TIME, MemoryState
from headwater.errors import BadPipelineError
from tests.engine.operators.histories import contents, histories, run, spaces, table_of

PAYMENTS = pa.schema([("id", pa.float64()), ("amount", pa.int64())])
EVENTS = st.fixed_dictionaries({"id": st.sampled_from([1.0, math.nan, None]), "amount": st.integers(0, 3)})


def expected(records, within):
    """Each event in order: kept unless one of its key was kept less than the time before."""
    kept = []
    for row in table_of(records, PAYMENTS).to_pylist():
        if not any(repr(one["id"]) == repr(row["id"]) and row[TIME] - one[TIME] < within for one in kept):
            kept.append(row)
    return contents([table_of(kept, PAYMENTS)])


@settings(max_examples=60, deadline=None)
@given(histories(EVENTS, partitions=3), st.integers(1, 6))
def test_every_cut_keeps_the_same_events(history, within):
    results, state = run(Deduplicate(PAYMENTS, ("id",), within), history, [PAYMENTS], [False])
    assert contents(results) == expected(history.inputs[0], within)
    assert spaces(state) == {}


def payment(time, offset=0):
    return {"id": 1, "amount": 0, TIME: time, PARTITION: 0, OFFSET: offset}


def test_an_event_at_the_end_of_the_time_is_kept():
    operator, state = Deduplicate(PAYMENTS, ("id",), 10), MemoryState()
    rows = operator.step(state, [table_of([payment(0), payment(9, 1), payment(10, 2)], PAYMENTS)], 11)
    assert rows[OFFSET].to_pylist() == [0, 2]


def test_a_kept_event_is_remembered_while_it_matters():
    operator, state = Deduplicate(PAYMENTS, ("id",), 10), MemoryState()
    operator.step(state, [table_of([payment(0)], PAYMENTS)], 9)
    assert spaces(state)["kept"] == 1
    assert len(operator.step(state, [table_of([payment(9, 1)], PAYMENTS)], 10)) == 0
    assert len(state) == 0


def test_a_newer_event_is_remembered_beyond_an_older():
    operator, state = Deduplicate(PAYMENTS, ("id",), 10), MemoryState()
    operator.step(state, [table_of([payment(0)], PAYMENTS)], 1)
    assert len(operator.step(state, [table_of([payment(12, 1)], PAYMENTS)], 21)) == 1
    assert len(operator.step(state, [table_of([payment(21, 2)], PAYMENTS)], 22)) == 0


@pytest.mark.parametrize(("options", "part"), [({"key": ()}, "key"), ({"within": 0}, "option")])
def test_what_cannot_be_is_refused(options, part):
    with pytest.raises(BadPipelineError) as refused:
        Deduplicate(**{"events": PAYMENTS, "key": ("id",), "within": 5, **options})
    assert part in refused.value.data
