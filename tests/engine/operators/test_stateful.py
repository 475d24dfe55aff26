"""User functions with state per key: types, versions, expiry, and errors."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headwater.engine.operators.stateful import Stateful
from headwater.engine.state.state import OFFSET, PARTITION, TIME, MemoryState, next_timer
from headwater.errors import BadPipelineError, StateChangedError

EVENTS = pa.schema([("k", pa.string()), ("n", pa.int64())])
SECOND = 1_000_000


def arrived(*events: tuple[Any, int, int]) -> list[pa.Table]:
    """Events of a key, a number and a time in seconds."""
    columns = list(zip(*events, strict=True)) or [(), (), ()]
    times = pa.array([time * SECOND for time in columns[2]], pa.int64())
    table = pa.table({"k": pa.array(columns[0], pa.string()), "n": pa.array(columns[1], pa.int64()), TIME: times})
    places = pa.array(range(len(times)), pa.int64())
    return [table.append_column(PARTITION, places).append_column(OFFSET, places)]


@dataclass
class Tally:
    n: int = 0


class Record(msgspec.Struct):
    n: int = 0


def tally(key, events, state):
    state = state or Tally()
    state.n += sum(event["n"] for event in events)
    return (state if state.n else None), [{"k": key, "n": state.n}]


def told(key, state):
    return [{"k": key, "n": -state.n}]


def made(fn=tally, **options):
    return Stateful(EVENTS, **{"by": ["k"], "fn": fn, "returns": "k string, n bigint", "state": Tally, **options})


def rows(operator, state, events=(), watermark=0):
    found = operator.step(state, arrived(*events), watermark * SECOND)
    assert found.schema == operator.schema
    return [(row["k"], row["n"]) for row in found.to_pylist()]


def test_a_null_key_is_a_key():
    operator, state = made(), MemoryState()
    assert rows(operator, state, [(None, 1, 0), ("", 5, 0), (None, 2, 1)]) == [(None, 3), ("", 5)]
    assert rows(operator, state, [(None, 4, 2)]) == [(None, 7)]


def test_the_function_sees_events_without_hidden_columns():
    seen = []

    def look(key, events, state):
        seen.append((key, events, state))
        return {"n": 1}, []

    schema = pa.schema([*EVENTS, ("at", pa.timestamp("us", "UTC"))])
    operator = Stateful(schema, by=["k", "n"], fn=look, returns="k string")
    (table,) = arrived(("a", 1, 5))
    operator.step(MemoryState(), [table.append_column("at", table[TIME].cast(schema.field("at").type))], 0)
    at = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert seen == [(("a", 1), [{"k": "a", "n": 1, "at": at}], None)]


@pytest.mark.parametrize("kind", [Tally, Record], ids=["dataclass", "struct"])
def test_a_state_is_of_its_type(kind):
    kinds = []

    def look(key, events, state):
        kinds.append(type(state))
        return kind(3), None

    operator, state = made(look, state=kind), MemoryState()
    rows(operator, state, [("a", 1, 0)])
    rows(operator, state, [("a", 1, 1)])
    assert kinds == [type(None), kind]


def test_a_forgotten_key_leaves_nothing_behind():
    operator, state = made(expire="10 seconds"), MemoryState()
    rows(operator, state, [("a", 1, 0)])
    assert len(state) == 2
    assert rows(operator, state, [("a", -1, 1)]) == [("a", 0)]
    assert len(state) == 0


def test_a_key_expires_when_the_watermark_has_passed():
    operator, state = made(expire="10 seconds", on_expire=told), MemoryState()
    rows(operator, state, [("a", 1, 0), ("a", 1, 4), ("b", 5, 2)])
    assert rows(operator, state, watermark=11) == []
    assert rows(operator, state, watermark=12) == [("b", -5)]
    assert next_timer(state) == 14 * SECOND
    assert rows(operator, state, watermark=14) == [("a", -2)]
    assert len(state) == 0


def test_a_gap_in_one_batch_begins_anew():
    operator, state = made(expire="10 seconds", on_expire=told), MemoryState()
    found = rows(operator, state, [("a", 1, 0), ("a", 2, 9), ("a", 4, 19), ("a", 8, 20)], watermark=20)
    assert found == [("a", 3), ("a", -3), ("a", 12)]


def test_an_older_event_does_not_shorten_a_life():
    operator, state = made(expire="10 seconds", on_expire=told), MemoryState()
    rows(operator, state, [("a", 1, 8)])
    assert rows(operator, state, [("a", 1, 3)], watermark=3) == [("a", 2)]
    assert rows(operator, state, [("a", 1, 14)], watermark=14) == [("a", 3)]
    assert rows(operator, state, watermark=24) == [("a", -3)]


def test_a_key_keeps_one_reminder_only():
    operator, state = made(expire="10 seconds"), MemoryState()
    for time in range(0, 40, 3):
        rows(operator, state, [("a", 1, time)], watermark=time)
    assert len(state) == 2


def test_an_older_version_is_upgraded():
    old, state = made(lambda key, events, state: ({"count": 7}, []), state=dict), MemoryState()
    rows(old, state, [("a", 1, 0)])
    new = made(version=2, upgrade=lambda version, plain: Tally(plain["count"] * 10 + version))
    assert rows(new, state, [("a", 1, 1)]) == [("a", 72)]
    assert rows(new, state, [("a", 1, 2)]) == [("a", 73)]


@pytest.mark.parametrize(("written", "read"), [(3, 2), (1, 2)], ids=["newer", "older without upgrade"])
def test_another_version_stops_with_an_error(written, read):
    state = MemoryState()
    rows(made(version=written), state, [("a", 1, 0)])
    with pytest.raises(StateChangedError) as caught:
        rows(made(version=read), state, [("a", 1, 1)])
    assert caught.value.data == {"version": written, "known": read}
    assert caught.value.location.file.endswith("test_stateful.py")


def test_a_failing_function_is_named_with_its_key():
    def divide(key, events, state):
        return 1 / 0, []

    with pytest.raises(ZeroDivisionError) as caught:
        rows(made(divide), MemoryState(), [("a", 1, 0)])
    text = "".join(traceback.format_exception(caught.value))
    assert "in divide (" in text
    assert "test_stateful.py:" in text
    assert "for the key 'a'" in text


def changing(key, events, state):
    """Changes the state in place, and fails at a negative number after it has emitted rows."""
    state = state or Tally()

    def emit():
        for event in events:
            state.n += abs(event["n"])
            yield {"k": key, "n": state.n}
            if event["n"] < 0:
                raise ValueError(event["n"])

    return state, emit()


def test_a_rejected_call_leaves_state_and_rows_as_they_were():
    operator, state = made(changing, quarantine=True), MemoryState()
    rows(operator, state, [("a", 1, 0)])
    assert rows(operator, state, [("a", 2, 1), ("a", -4, 2), ("b", 8, 2)]) == [("b", 8), (None, None), (None, None)]
    assert rows(operator, state, [("a", 16, 3)]) == [("a", 17)]


def test_a_rejected_call_keeps_the_state_of_the_call_before_it():
    operator, state = made(changing, quarantine=True, expire="10 seconds"), MemoryState()
    rows(operator, state, [("a", 1, 100)])
    # Two calls, because the events are 10 seconds apart; the key lives, because its last event is later than both.
    assert rows(operator, state, [("a", 2, 50), ("a", -4, 60)]) == [("a", 3), (None, None)]
    assert rows(operator, state, [("a", 8, 101)]) == [("a", 11)]


def test_a_rejected_event_neither_prolongs_nor_ends_a_life():
    operator, state = made(changing, quarantine=True, expire="10 seconds", on_expire=told), MemoryState()
    rows(operator, state, [("a", 1, 0), ("b", 1, 0)])
    rows(operator, state, [("a", -2, 5)])
    assert rows(operator, state, [("b", -2, 20)]) == [(None, None)]
    assert rows(operator, state, [("b", 4, 6)]) == [("b", 5)]
    assert rows(operator, state, watermark=10) == [("a", -1)]
    assert rows(operator, state, watermark=16) == [("b", -5)]


@pytest.mark.parametrize("watermark", [0, 20])
def test_no_event_is_rejected_because_the_function_for_expired_keys_fails(watermark):
    def fail(key, state):
        yield {"k": key, "n": 0}
        raise ValueError(key)

    operator, state = made(quarantine=True, expire="10 seconds", on_expire=fail), MemoryState()
    rows(operator, state, [("a", 1, 0)])
    with pytest.raises(ValueError, match="a"):
        rows(operator, state, [] if watermark else [("a", 2, 20)], watermark)


def test_no_event_is_rejected_because_an_upgrade_fails():
    def fail(version, plain):
        raise KeyError(version)

    state = MemoryState()
    rows(made(), state, [("a", 1, 0)])
    with pytest.raises(KeyError):
        rows(made(version=2, upgrade=fail, quarantine=True), state, [("a", 2, 1)])
    assert rows(made(), state, [("a", 2, 1)]) == [("a", 3)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda key, events, state: None,
        lambda key, events, state: (state, [{"k": key, "m": 1}]),
        lambda key, events, state: (state, [{"k": key, "n": "one"}]),
    ],
    ids=["no pair", "unknown column", "wrong type"],
)
def test_what_a_function_returns_is_checked(fn):
    with pytest.raises(BadPipelineError) as caught:
        rows(made(fn), MemoryState(), [("a", 1, 0)])
    assert caught.value.location.file.endswith("test_stateful.py")


@pytest.mark.parametrize(
    "options",
    [
        {"by": ["missing"]},
        {"by": []},
        {"returns": "k nonsense"},
        {"version": 0},
        {"version": 256},
        {"on_expire": told},
        {"expire": "0 seconds"},
        {"state": MemoryState},
    ],
    ids=", ".join,
)
def test_a_bad_declaration_is_refused(options):
    with pytest.raises(BadPipelineError):
        made(**options)


def test_a_map_cannot_be_a_key():
    schema = pa.schema([("k", pa.map_(pa.string(), pa.string()))])
    with pytest.raises(BadPipelineError):
        Stateful(schema, by=["k"], fn=tally, returns="n bigint")
