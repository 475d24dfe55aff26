"""What a partition remembers of producers."""

from __future__ import annotations

from headwater.log.storage import Frame, Kind
from headwater.log.storage.producers import Producers

DAY = 86_400 * 1_000_000


def sent(first: int, last: int, offset: int, producer: str = "till-7", at: int = 0, rows: int = 0) -> Frame:
    rows = rows or last - first + 1
    return Frame(
        Kind.EVENTS,
        offset,
        offset + rows,
        count=rows,
        first_sequence=first,
        last_sequence=last,
        producer=producer,
        appended_at=at,
    )


def test_unknown_producer_has_sent_nothing():
    producers = Producers()
    producers.note(sent(0, 4, 0, producer=""))
    assert (producers.last("till-7"), producers.last(""), producers.offset_of("till-7", 0)) == (-1, -1, -1)


def test_each_row_of_a_batch_has_its_own_offset():
    producers = Producers()
    producers.note(sent(5, 8, 100))
    producers.note(sent(9, 9, 200))
    assert [producers.offset_of("till-7", n) for n in range(4, 11)] == [-1, 100, 101, 102, 103, 200, -1]
    assert producers.last("till-7") == 9


def test_batch_under_one_sequence_has_the_offset_of_its_first_row():
    producers = Producers()
    producers.note(sent(7, 7, 100, rows=50))
    assert producers.offset_of("till-7", 7) == 100


def test_producers_are_kept_apart():
    producers = Producers()
    producers.note(sent(0, 9, 0, "a"))
    producers.note(sent(0, 3, 10, "b"))
    assert (producers.last("a"), producers.last("b")) == (9, 3)
    assert producers.offset_of("b", 9) == -1


def test_the_last_sixteen_batches_are_remembered():
    producers = Producers()
    for number in range(20):
        producers.note(sent(number, number, number * 10))
    assert [producers.offset_of("till-7", n) for n in (3, 4, 19)] == [-1, 40, 190]
    assert producers.last("till-7") == 19


def test_snapshot_restores_the_last_batch_and_what_follows():
    producers, again = Producers(), Producers()
    producers.note(sent(0, 4, 0))
    producers.note(sent(5, 6, 5))
    again.restore(producers.snapshot(now=0), [sent(7, 8, 7)])
    assert [again.offset_of("till-7", n) for n in (4, 5, 6, 7, 8)] == [-1, 5, 6, 7, 8]
    assert again.last("till-7") == 8


def test_producer_not_seen_for_seven_days_leaves_the_snapshot():
    producers = Producers()
    producers.note(sent(0, 0, 0, "old", at=0))
    producers.note(sent(0, 0, 1, "new", at=2 * DAY))
    assert set(producers.snapshot(7 * DAY - 1)) == {"old", "new"}
    assert set(producers.snapshot(7 * DAY)) == {"new"}
