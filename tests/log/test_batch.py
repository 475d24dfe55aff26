"""Batches as they are read: offsets, clocks, keys, lateness."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.events import ManualClock
from headwater.log import EventLog
from tests.log.given import SECOND, declared, events, row_of, rows_of, tombstone

START = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = 10


def at(second: int | None) -> datetime | None:
    return None if second is None else START + timedelta(seconds=second)


def walk(arrivals: list[tuple[int, list[int | None], int]]) -> tuple[list[bool], list[int | None]]:
    """Lateness and event time of every row by definition: one row after the other, as a reader would."""
    late, before, highest = [], [], None
    for arrival, times, ahead in arrivals:
        for given_time in times:
            time = arrival if given_time is None else given_time
            late.append(highest is not None and time < highest - LATENESS)
            before.append(highest)
            if time <= arrival + ahead:
                highest = time if highest is None else max(highest, time)
    return late, before


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.lists(st.none() | st.integers(-100, 400), min_size=1, max_size=6),
        st.sampled_from([0, 60, 60, 200]),  # `ahead`, which an app may change at any time
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(ARRIVALS, st.integers(0, 12))
def test_lateness_agrees_with_a_walk_over_all_rows(tmp_path_factory, arrivals, start):
    clock = ManualClock(START)
    log = EventLog(tmp_path_factory.mktemp("walk"), clock=clock)
    options = {"time": "at", "lateness": f"{LATENESS}s", "durability": "fast"}
    moments = []
    for pause, times, ahead in arrivals:
        topic = log.create(declared(**options, ahead=f"{ahead}s"))
        clock.advance(timedelta(seconds=pause))
        moments.append((int(clock.monotonic()), times, ahead))
        log.append("orders", rows_of(topic, [{"id": "a", "at": at(time)} for time in times]))
    late, before = walk(moments)
    start = min(start, len(late))
    batches = log.fetch("orders", {0: start})
    found = [second for batch in batches for second in batch.max_event_times.tolist()]
    assert [event.late for event in events(log, offset=start)] == late[start:]
    zero = int(START.timestamp()) * SECOND
    expected = [-(2**63) if second is None else zero + second * SECOND for second in before]
    assert found == expected[start:]
    log.close()


def test_a_time_in_the_future_does_not_make_others_late(log):
    topic = log.create(declared(time="at", lateness="10s", ahead="60s"))
    seconds = [0, 3600, 1, 60, 49, 61, 0]
    log.append("orders", rows_of(topic, [{"at": at(second)} for second in seconds]))
    assert [event.late for event in events(log)] == [False, False, False, False, True, False, True]


@pytest.mark.parametrize(("lateness", "expected"), [("0s", 2), ("5s", 1), ("10s", 0)])
def test_another_lateness_can_be_asked_for(log, lateness, expected):
    topic = log.create(declared(time="at", lateness="1 hour"))
    log.append("orders", rows_of(topic, [{"at": at(second)} for second in (10, 9, 4, 20)]))
    batch = log.fetch("orders", {0: 0})[0]
    seconds = timedelta(seconds=int(lateness[:-1]))
    assert batch.late(seconds).sum() == expected
    assert not batch.late().any()


def test_event_time_is_the_senders_when_the_type_has_none(log, clock):
    topic = log.create(declared(type_="id string"))
    occurred = pa.array([1000, None], pa.timestamp("us", "UTC"))
    log.append("orders", rows_of(topic, [{"id": "a"}] * 2, envelope={"_hw.occurred_at": occurred}))
    log.append("orders", rows_of(topic, [{"id": "b"}]))
    times = [time for batch in log.fetch("orders", {0: 0}) for time in batch.event_times.tolist()]
    assert times == [1000, clock.micros(), clock.micros()]


def filled_batch(log, clock):
    """Two batches, of which the second is returned: rows at offsets 2 to 6."""
    topic = log.create(declared(time="at", lateness="1s"))
    log.append("orders", rows_of(topic, [{"at": at(0)}] * 2))
    clock.advance("1 minute")
    values = [{"id": str(n), "amount": n, "at": at(second)} for n, second in enumerate([5, 9, 2, 7, 8])]
    log.append("orders", rows_of(topic, values, sent_at=77))
    return log.fetch("orders", {0: 2})[0]


def test_since_keeps_offsets_and_clocks(log, clock):
    batch = filled_batch(log, clock)
    assert batch.from_offset(0) is batch.from_offset(2) is batch
    cut = batch.from_offset(4)
    assert cut.offsets.tolist() == [4, 5, 6]
    assert cut.arrival_times.tolist() == [clock.micros()] * 3
    assert cut.send_times.cast("int64").to_pylist() == [77] * 3
    assert list(cut.events()) == list(batch.events())[2:]
    assert batch.from_offset(7).values.num_rows == 0


@settings(max_examples=30)
@given(st.lists(st.booleans(), min_size=5, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5))
def test_select_keeps_each_row_as_it_was(tmp_path_factory, mask, second):
    clock = ManualClock(START)
    with EventLog(tmp_path_factory.mktemp("select"), clock=clock) as log:
        batch = filled_batch(log, clock)
        whole = list(batch.events())
        cut = batch.select(np.array(mask))
        again = cut.select(np.array(second)[np.array(mask)])
    assert list(cut.events()) == [event for event, kept in zip(whole, mask, strict=True) if kept]
    both = [a and b for a, b in zip(mask, second, strict=True)]
    assert list(again.events()) == [event for event, kept in zip(whole, both, strict=True) if kept]
    assert again.late().tolist() == batch.late()[np.array(both)].tolist()


def test_sending_time_is_none_when_no_sender_said(log):
    topic = log.create(declared())
    log.append("orders", rows_of(topic, [{"id": "a"}]))
    batch = log.fetch("orders", {0: 0})[0]
    assert batch.send_times is None
    assert batch.select(np.array([True])).send_times is None
    assert next(batch.events()).sent_at is None


def test_each_row_may_have_its_own_sending_time(log):
    topic = log.create(declared())
    for second in (1, 2):
        log.begin_append("orders", row_of(topic, {"id": "a"}, envelope={"_hw.sent_at": second * SECOND}))
    log.append_one("orders", row_of(topic, {"id": "b"}))
    found = [event.sent_at and event.sent_at.timestamp() for event in events(log)]
    assert found == [1.0, 2.0, None]


def test_an_idle_marker_is_a_batch_without_rows(log):
    log.create(declared())
    log.open_topic("orders").partitions[0].append_idle_marker(5)
    batch = log.fetch("orders", {0: 0})[0]
    assert (batch.values.num_rows, batch.next_offset, list(batch.events())) == (0, 1, [])


def test_a_tombstone_has_a_key_and_no_value(log):
    topic = log.create(declared(key="id"))
    log.append("orders", rows_of(topic, [{"id": "a", "amount": 1}]))
    log.append("orders", tombstone(topic, "a"))
    found = events(log)
    assert [(event.key, event.value and event.value["amount"]) for event in found] == [("a", 1), ("a", None)]
    assert [event.tombstone for event in found] == [False, True]
    assert [batch.tombstones.tolist() for batch in log.fetch("orders", {0: 0})] == [[False], [True]]


def test_keys_come_from_columns_or_from_the_sender(log):
    one = log.create(declared("one", key="id"))
    two = log.create(declared("two", key=("id", "amount")))
    free = log.create(declared("free"))
    for topic in (one, two):
        log.append(topic.name, rows_of(topic, [{"id": "a", "amount": 1}]))
    keys = pa.array([b"k", b"\xff", None])
    log.append("free", rows_of(free, [{"id": "a"}] * 3, envelope={"_hw.key": keys}))
    assert [event.key for event in events(log, "one")] == ["a"]
    assert [event.key for event in events(log, "two")] == [("a", 1)]
    assert [event.key for event in events(log, "free")] == ["k", b"\xff", None]
    raw = [log.fetch(name, {0: 0})[0].key_bytes.to_pylist() for name in ("one", "two", "free")]
    assert raw == [[b"a"], [b'["a",1]'], [b"k", b"\xff", None]]


def test_what_the_sender_attached_comes_back(log):
    topic = log.create(declared())
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    about = {"_hw.id": "x", "_hw.headers": [("tenant", "acme")], "_hw.traceparent": trace, "_hw.source": "/t"}
    log.append_one("orders", row_of(topic, {"id": "a"}, envelope=about))
    log.append_one("orders", row_of(topic, {"id": "b"}))
    first, second = events(log)
    assert (first.id, first.headers, first.traceparent, first.source) == ("x", {"tenant": "acme"}, trace, "/t")
    assert (second.id, second.headers, second.traceparent, second.source) == ("orders/0/1", {}, None, None)
