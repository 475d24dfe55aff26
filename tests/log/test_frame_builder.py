"""From write batches to frames: offsets, event time, repeated sends."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.log.storage import AppendResult, PartitionState
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.storage.frame_builder import EncodedFrames, build_frames, max_event_times
from headwater.log.storage.producers import ProducerState
from tests.log.given import NUMBERS, part

AHEAD = 100


def laid_out(*parts, slot=None, now=1000, producers=None) -> EncodedFrames:
    return build_frames(list(parts), slot or PartitionState(), now, AHEAD, producers or ProducerState())


def stored(laid: EncodedFrames) -> list[list[int]]:
    """The numbers in each frame, read back from its bytes."""
    found = []
    for frame, data in zip(laid.frames, laid.data, strict=True):
        body = data[112 + (len(frame.producer) + 7) // 8 * 8 :]
        found.append(pa.ipc.read_record_batch(pa.py_buffer(body), NUMBERS).column(0).to_pylist())
    return found


def test_offsets_go_on_from_the_partitions_end():
    laid = laid_out(part(1, 2), part(3), part(4, 5, 6), slot=PartitionState(next_offset=40))
    assert laid.results == [AppendResult(40, 2), AppendResult(42, 1), AppendResult(43, 3)]
    assert [(frame.base_offset, frame.next_offset) for frame in laid.frames] == [(40, 42), (42, 43), (43, 46)]
    assert stored(laid) == [[1, 2], [3], [4, 5, 6]]


def test_positions_follow_the_bytes():
    laid = laid_out(part(1, 2), part(3), part(4))
    lengths = [len(data) for data in laid.data]
    assert [frame.position for frame in laid.frames] == [0, lengths[0], lengths[0] + lengths[1]]
    assert [frame.follows for frame in laid.frames] == [False, True, True]


def test_a_part_without_rows_makes_no_frame():
    laid = laid_out(part(), part(7), part())
    assert laid.results == [AppendResult(0, 0), AppendResult(0, 1), AppendResult(1, 0)]
    assert len(laid.frames) == 1


def test_arrival_is_the_event_time_of_rows_without_times():
    frame = laid_out(part(1), slot=PartitionState(max_event_time=5), now=1000).frames[0]
    assert (frame.lowest, frame.highest, frame.max_event_time_before, frame.max_event_time) == (1000, 1000, 5, 1000)


def test_a_row_without_time_among_others_takes_its_arrival():
    frame = laid_out(part(1, 2, 3, times=[300, LOWEST_TIME, 200])).frames[0]
    assert (frame.lowest, frame.highest, frame.max_event_time) == (200, 1000, 1000)


def test_time_too_far_ahead_is_stored_but_does_not_count():
    frame = laid_out(part(1, 2, 3, times=[900, 1101, 1100])).frames[0]
    assert (frame.highest, frame.max_event_time) == (1101, 1100)
    alone = laid_out(part(1, times=[5000]), slot=PartitionState(max_event_time=7)).frames[0]
    assert (alone.highest, alone.max_event_time) == (5000, 7)


def test_the_running_maximum_goes_on_from_part_to_part():
    laid = laid_out(
        part(1, times=[50]), part(2, times=[20]), part(3, times=[70]), slot=PartitionState(max_event_time=30)
    )
    assert [(f.max_event_time_before, f.max_event_time) for f in laid.frames] == [(30, 50), (50, 50), (50, 70)]


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), min_size=1), st.integers(0, 200), st.integers(0, 40)
)
def test_running_maximum_agrees_with_a_walk(rows, before, ahead):
    times, received = zip(*rows, strict=True)
    expected, highest = [before], before
    for time, arrival in rows:
        if time <= arrival + ahead:
            highest = max(highest, time)
        expected.append(highest)
    assert max_event_times(np.array(times), np.array(received), before, ahead).tolist() == expected


def test_rows_sent_before_are_left_out():
    producers = ProducerState()
    first = laid_out(part(1, 2, 3, producer="a", sequence=0), producers=producers)
    producers.record(first.frames[0])
    slot = PartitionState(next_offset=3)
    again = laid_out(part(2, 3, 4, 5, producer="a", sequence=1), slot=slot, producers=producers)
    assert again.results == [AppendResult(3, 2, duplicates=2)]
    assert stored(again) == [[4, 5]]
    assert (again.frames[0].first_sequence, again.frames[0].last_sequence) == (3, 4)


def test_a_repeat_within_one_append_is_left_out():
    laid = laid_out(part(1, 2, producer="a", sequence=0), part(1, 2, 3, producer="a", sequence=0))
    assert laid.results == [AppendResult(0, 2), AppendResult(2, 1, duplicates=2)]
    assert stored(laid) == [[1, 2], [3]]


def test_an_older_repeat_does_not_lower_the_last_sequence():
    producers = ProducerState()
    producers.record(laid_out(part(*range(10), producer="a", sequence=0)).frames[0])
    parts = [part(3, producer="a", sequence=3), part(9, producer="a", sequence=9)]
    laid = laid_out(*parts, producers=producers)
    assert [appended.duplicates for appended in laid.results] == [1, 1]


def test_one_sequence_for_a_part_repeats_all_of_it_or_nothing():
    parts = [part(1, 2, 3, producer="a", sequence=7, per_row=False) for _ in range(2)]
    laid = laid_out(*parts)
    assert laid.results == [AppendResult(0, 3), AppendResult(3, 0, duplicates=3)]
    assert (laid.frames[0].first_sequence, laid.frames[0].last_sequence) == (7, 7)


def test_a_batch_after_a_missing_one_is_refused_and_so_are_those_that_follow_it():
    producers = ProducerState()
    producers.record(laid_out(part(1, producer="a", sequence=10)).frames[0])
    parts = [part(2, producer="a", sequence=30, previous=20), part(3, producer="a", sequence=31, previous=30)]
    laid = laid_out(*parts, part(4, producer="b", sequence=5, previous=-1), producers=producers)
    first, second = (appended.refused for appended in laid.results[:2])
    assert first is not None
    assert second is not None
    assert first.data == {"producer": "a", "sequence": 30, "previous": 20, "last": 10}
    assert (second.data["previous"], second.data["last"]) == (30, 10)
    assert (laid.results[2], stored(laid)) == (AppendResult(0, 1), [[4]])


def test_a_batch_that_names_the_last_sequence_is_appended():
    laid = laid_out(part(1, 2, producer="a", sequence=10, previous=-1), part(3, producer="a", sequence=90, previous=11))
    assert [appended.refused for appended in laid.results] == [None, None]
    assert stored(laid) == [[1, 2], [3]]


def test_a_repeat_is_recognised_whatever_it_names_as_previous():
    producers = ProducerState()
    producers.record(laid_out(part(1, 2, 3, producer="a", sequence=10)).frames[0])
    for previous in (None, -1, 9, 11, 12, 99):
        laid = laid_out(part(2, 3, producer="a", sequence=11, previous=previous), producers=producers)
        assert laid.results == [AppendResult(0, 0, duplicates=2)], previous


def test_a_number_in_a_gap_is_no_repeat():
    producers = ProducerState()
    for sequence in (10, 20):
        producers.record(laid_out(part(1, producer="a", sequence=sequence)).frames[0])
    results = [
        laid_out(part(1, producer="a", sequence=sequence), producers=producers).results[0] for sequence in (10, 15, 20)
    ]
    assert [appended.duplicates for appended in results] == [1, 0, 1]
    refused = results[1].refused
    assert refused is not None
    assert (refused.data["sequence"], refused.data["previous"], refused.data["last"]) == (15, None, 20)


def test_two_producers_do_not_repeat_each_other():
    laid = laid_out(part(1, producer="a", sequence=0), part(1, producer="b", sequence=0))
    assert [appended.count for appended in laid.results] == [1, 1]


def test_a_slice_keeps_its_own_times_envelope_and_sequences():
    envelope = {"_hw.id": pa.array(["a", "b", "c", "d"])}
    whole = part(1, 2, 3, 4, times=[10, 20, 30, 40], producer="a", sequence=5, envelope=envelope, sent_at=9)
    cut = whole.slice(1, 2)
    assert cut.values.column(0).to_pylist() == [2, 3]
    assert cut.envelope["_hw.id"].to_pylist() == ["b", "c"]
    assert (cut.times.tolist(), cut.sequence, cut.last_sequence, cut.sent_at) == ([20, 30], 6, 7, 9)


def test_a_slice_follows_the_rows_before_it():
    whole = part(1, 2, 3, producer="a", sequence=5, previous=2)
    assert [whole.slice(start, 1).previous for start in range(3)] == [2, 5, 6]
    assert part(1, 2, producer="a", sequence=5).slice(1, 1).previous is None
