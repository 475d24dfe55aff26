"""User functions for all keys at once: states as arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.engine.operators.stateful import VectorizedStateful
from headwater.engine.state.state import OFFSET, PARTITION, QUARANTINE_REASON, TIME, MemoryState
from headwater.errors import BadPipelineError

EVENTS = pa.schema([("k", pa.float64()), ("n", pa.int64())])


def events(keys, numbers):
    return pa.table(
        {"k": pa.array(keys, pa.float64()), "n": pa.array(numbers, pa.int64()), TIME: list(range(len(keys)))}
    )


def added(events, at, states, keys):
    assert events.column_names == ["k", "n"]
    np.add.at(states["n"], at, events["n"].to_numpy())
    states["seen"] |= True
    states["seen"][states["n"] == 0] = False
    return keys.append_column("n", pa.array(states["n"]))


def made(**options):
    usual = {"by": ["k"], "fn": added, "returns": "k double, n bigint", "state": "n bigint, seen boolean"}
    return VectorizedStateful(EVENTS, **{**usual, **options})


def test_states_are_arrays_over_touched_keys():
    operator, state = made(), MemoryState()
    first = operator.step(state, [events([1.0, None, float("nan"), 1.0, -0.0], [1, 2, 3, 4, 5])], 0)
    assert first["n"].to_pylist() == [5, 2, 3, 5]
    second = operator.step(state, [events([0.0, float("nan"), None], [1, 1, 1])], 0)
    assert second["n"].to_pylist() == [6, 4, 3]


def test_a_state_of_zeros_is_forgotten():
    operator, state = made(), MemoryState()
    operator.step(state, [events([1.0, 2.0], [1, 1])], 0)
    assert len(state) == 2
    operator.step(state, [events([1.0], [-1])], 0)
    assert len(state) == 1


def test_arrays_may_be_replaced_instead_of_changed():
    def replaced(events, at, states, keys):
        states["n"] = states["n"] + np.bincount(at, minlength=len(keys))
        return keys.append_column("n", pa.array(states["n"]))

    operator, state = made(fn=replaced), MemoryState()
    operator.step(state, [events([1.0], [0])], 0)
    assert operator.step(state, [events([1.0], [0])], 0)["n"].to_pylist() == [2]


def test_without_events_the_function_is_not_called():
    operator = made(fn=lambda *_: 1 / 0)
    assert operator.step(MemoryState(), [events([], [])], 99).schema == operator.schema


def test_a_result_without_its_columns_is_refused():
    operator = made(fn=lambda events, at, states, keys: keys)
    with pytest.raises(BadPipelineError) as caught:
        operator.step(MemoryState(), [events([1.0], [1])], 0)
    assert caught.value.location.file.endswith("test_stateful_vectorized.py")


def test_a_failing_function_is_named():
    def divide(events, at, states, keys):
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        made(fn=divide).step(MemoryState(), [events([1.0, 1.0], [1, 1])], 0)
    assert caught.value.__notes__[0].startswith("in divide (")
    assert "2 events of 1 keys" in caught.value.__notes__[0]


def test_a_state_without_fixed_width_is_refused():
    with pytest.raises(BadPipelineError) as caught:
        made(state="n bigint, name string")
    assert caught.value.data == {"column": "name"}


def test_another_state_has_another_form():
    assert made().form != made(state="n bigint").form
    assert made().form == made(fn=lambda *_: None).form


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.sets(st.integers(0, 9)))
def test_events_of_keys_on_which_the_function_fails_are_given_back(numbers, bad):
    """Whatever keys they are: the others go on, and what those had stays as it was."""

    def picky(events, at, states, keys):
        if bad & set(keys["k"].to_pylist()):
            raise ValueError("not these")
        np.add.at(states["n"], at, 1)
        return keys.append_column("n", pa.array(states["n"]))

    places = pa.array(range(len(numbers)), pa.int64())
    events = pa.table({"k": numbers, TIME: places, PARTITION: places, OFFSET: places})
    operator = VectorizedStateful(
        events.schema, by=["k"], fn=picky, returns="k bigint, n bigint", state="n bigint", quarantine=True
    )
    state = MemoryState()
    for times in (1, 2):
        found = operator.step(state, [events], 0).to_pylist()
        given_back = sorted(row[OFFSET] for row in found if row[QUARANTINE_REASON] is not None)
        assert given_back == [place for place, number in enumerate(numbers) if number in bad]
        made = {row["k"]: row["n"] for row in found if row[QUARANTINE_REASON] is None}
        assert made == {number: times * numbers.count(number) for number in numbers if number not in bad}
    assert len(state) == len(set(numbers) - bad)
