"""The producer state of a partition."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.log.storage import Frame, FrameKind
from headwater.log.storage.producers import ProducerState
from headwater.store import ViewTable

SPANS = st.integers(1, 20)
DAY = 86_400 * 1_000_000


def sent(first: int, last: int, offset: int, producer: str = "till-7", at: int = 0, rows: int = 0) -> Frame:
    rows = rows or last - first + 1
    return Frame(
        FrameKind.EVENTS,
        offset,
        offset + rows,
        count=rows,
        first_sequence=first,
        last_sequence=last,
        producer=producer,
        appended_at=at,
    )


def test_unknown_producer_has_sent_nothing():
    producers = ProducerState()
    producers.record(sent(0, 4, 0, producer=""))
    assert (producers.last_sequence("till-7"), producers.last_sequence(""), producers.offset_of("till-7", 0)) == (
        -1,
        -1,
        -1,
    )


def test_each_row_of_a_batch_has_its_own_offset():
    producers = ProducerState()
    producers.record(sent(5, 8, 100))
    producers.record(sent(9, 9, 200))
    assert [producers.offset_of("till-7", n) for n in range(4, 11)] == [-1, 100, 101, 102, 103, 200, -1]
    assert producers.last_sequence("till-7") == 9


def test_batch_under_one_sequence_has_the_offset_of_its_first_row():
    producers = ProducerState()
    producers.record(sent(7, 7, 100, rows=50))
    assert producers.offset_of("till-7", 7) == 100


def test_producers_are_kept_apart():
    producers = ProducerState()
    producers.record(sent(0, 9, 0, "a"))
    producers.record(sent(0, 3, 10, "b"))
    assert (producers.last_sequence("a"), producers.last_sequence("b")) == (9, 3)
    assert producers.offset_of("b", 9) == -1


def test_the_last_sixteen_batches_are_remembered():
    producers = ProducerState()
    for number in range(20):
        producers.record(sent(number, number, number * 10))
    assert [producers.offset_of("till-7", n) for n in (3, 4, 19)] == [-1, 40, 190]
    assert producers.last_sequence("till-7") == 19


def test_snapshot_restores_the_last_batch_and_what_follows():
    producers, again = ProducerState(), ProducerState()
    producers.record(sent(0, 4, 0))
    producers.record(sent(5, 6, 5))
    again.restore(producers.snapshot(), [sent(7, 8, 7)])
    assert [again.offset_of("till-7", n) for n in (4, 5, 6, 7, 8)] == [-1, 5, 6, 7, 8]
    assert again.last_sequence("till-7") == 8


def test_producer_not_seen_for_seven_days_is_forgotten():
    producers = ProducerState()
    producers.record(sent(0, 0, 0, "old", at=0))
    producers.record(sent(0, 0, 1, "new", at=2 * DAY))
    producers.remove_expired(7 * DAY - 1)
    assert set(producers.snapshot()) == {"old", "new"}
    producers.remove_expired(7 * DAY)
    assert set(producers.snapshot()) == {"new"}
    assert producers.last_sequence("old") == -1


def test_producers_of_pipelines_bridges_and_captures_are_never_forgotten():
    producers = ProducerState()
    query = ViewTable("revenue", 12, pa.schema([]), ()).query
    permanent = [query, "queue/parcels/hw.feed.sent", "capture/shop", "hw.again.hw_late.orders.0"]
    for number, id in enumerate([*permanent, "till@home", "q", "captured"]):
        producers.record(sent(7, 7, number, id))
    producers.remove_expired(400 * DAY)
    assert list(producers.snapshot()) == permanent


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=16), st.integers(0, 99), SPANS)
def test_a_number_is_missing_if_it_lies_between_two_batches(batches, first, length):
    producers, there, end = ProducerState(), set(), 0
    for gap, rows in batches:
        producers.record(sent(end + gap, end + gap + rows - 1, 0))
        there |= set(range(end + gap, end + gap + rows))
        end += gap + rows
    absent = [number for number in range(first, first + length) if min(there) < number < end and number not in there]
    assert producers.find_missing("till-7", first, first + length - 1) == (absent[0] if absent else None)
