"""One partition: append, read, roll, and several processes at once."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace

import pytest

from headwater.errors import BadOffsetError, DamagedError, DataGoneError, DiskFailedError, DiskFullError
from headwater.events import ManualClock
from headwater.log.storage import Disk
from tests.log.given import (
    MINUTE,
    SECOND,
    flip,
    in_another_process,
    numbers_in,
    open_partition,
    part,
    segments,
    walked_frames,
)


class Failing(Disk):
    """Fails the chosen call once it is told to."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}

    def _fail(self, call: str) -> None:
        if code := self.failing.pop(call, 0):
            raise {errno.ENOSPC: DiskFullError, errno.EIO: DiskFailedError}[code](call)

    def write(self, handle, position, data):
        if "write" in self.failing and len(data) > 100:
            super().write(handle, position, data[:100])
            self._fail("write")
        super().write(handle, position, data)

    def sync(self, handle):
        self._fail("sync")
        super().sync(handle)


def test_what_is_appended_is_read(tmp_path):
    partition = open_partition(tmp_path)
    partition.append([part(1, 2), part(3)])
    partition.append([part(4)])
    assert numbers_in(partition) == [1, 2, 3, 4]
    assert numbers_in(partition, offset=2) == [3, 4]
    assert partition.fetch(4, 1 << 20) == []


def test_a_process_that_starts_later_reads_the_same(tmp_path):
    open_partition(tmp_path).append([part(*range(100))])
    again = open_partition(tmp_path)
    assert numbers_in(again) == list(range(100))
    again.append([part(100)])
    assert numbers_in(open_partition(tmp_path), offset=99) == [99, 100]


@pytest.mark.parametrize("max_bytes", [1, 500, 1 << 20])
def test_reading_in_pieces_of_any_size_loses_nothing(tmp_path, max_bytes):
    partition = open_partition(tmp_path, segment_size=2000)
    for number in range(0, 60, 3):
        partition.append([part(number, number + 1, number + 2)])
    assert len(segments(tmp_path / "0")) == 3
    assert numbers_in(partition, max_bytes=max_bytes) == list(range(60))
    assert numbers_in(partition, offset=31, max_bytes=max_bytes) == list(range(31, 60))


@pytest.mark.parametrize("offset", [-1, 4, 10**12])
def test_an_offset_beyond_the_end_is_refused(tmp_path, offset):
    partition = open_partition(tmp_path)
    partition.append([part(1, 2, 3)])
    with pytest.raises(BadOffsetError) as caught:
        partition.fetch(offset, 1000)
    assert caught.value.data == {"offset": offset, "end": 3, "partition": 0}


def test_segments_start_anew_when_they_are_full(tmp_path):
    partition = open_partition(tmp_path, segment_size=1000)
    for number in range(20):
        partition.append([part(number)])
    found = segments(tmp_path / "0")
    assert len(found) > 2
    assert all(1000 <= path.stat().st_size < 2000 for path in found[:-1])


def test_segments_start_anew_when_they_are_a_day_old(tmp_path):
    clock = ManualClock()
    partition = open_partition(tmp_path, clock)
    partition.append([part(1)])
    clock.advance("24 hours")
    partition.append([part(2)])
    assert len(segments(tmp_path / "0")) == 1
    clock.advance("1 second")
    partition.append([part(3)])
    assert [path.name[:20] for path in segments(tmp_path / "0")] == [f"{0:020d}", f"{2:020d}"]


def test_an_empty_segment_does_not_grow_old(tmp_path):
    clock = ManualClock()
    partition = open_partition(tmp_path, clock)
    assert partition.state().next_offset == 0
    clock.advance("40 days")
    partition.append([part(1)])
    assert len(segments(tmp_path / "0")) == 1


def test_repeats_are_known_after_a_restart_and_a_new_segment(tmp_path):
    partition = open_partition(tmp_path, segment_size=300)
    for number in range(5):
        partition.append([part(number, producer="a", sequence=number)])
    assert len(segments(tmp_path / "0")) > 2
    again = open_partition(tmp_path, segment_size=300)
    appended = again.append([part(4, producer="a", sequence=4)])
    assert (appended[0].duplicates, again.last_sequence("a"), again.last_sequence("b")) == (1, 4, -1)
    assert again.offsets_of("a", [4, 5]) == [4, -1]
    assert numbers_in(again) == [0, 1, 2, 3, 4]


def test_repeats_of_another_process_are_known(tmp_path):
    one, other = open_partition(tmp_path), open_partition(tmp_path)
    one.append([part(0, producer="a", sequence=0)])
    assert other.last_sequence("a") == 0
    one.append([part(1, producer="a", sequence=1)])
    assert other.append([part(1, producer="a", sequence=1)])[0].duplicates == 1
    assert numbers_in(one) == [0, 1]


def test_two_processes_and_two_threads_share_a_partition(tmp_path):
    partition = open_partition(tmp_path, segment_size=4000)
    numbers = iter(range(2 * 20))

    def append():
        for _ in range(20):
            partition.append([part(next(numbers))])

    threads = [threading.Thread(target=append) for _ in range(2)]
    for thread in threads:
        thread.start()
    code = """
        import sys; from pathlib import Path; from tests.log.given import *
        partition = open_partition(Path(sys.argv[1]), segment_size=4000)
        for number in range(1000, 1020): partition.append([part(number)])
    """
    in_another_process(code, tmp_path)
    for thread in threads:
        thread.join()
    found = numbers_in(partition)
    assert sorted(found) == [*range(40), *range(1000, 1020)]
    assert [number for number in found if number >= 1000] == list(range(1000, 1020))


def test_an_idle_marker_takes_an_offset_and_raises_the_event_time(tmp_path):
    partition = open_partition(tmp_path)
    partition.append([part(1, times=[50])])
    partition.append_idle_marker(70)
    partition.append_idle_marker(60)
    assert (partition.state().next_offset, partition.state().max_event_time) == (3, 70)
    assert numbers_in(partition) == [1]


def test_an_idle_marker_is_no_arrival(tmp_path):
    clock = ManualClock()
    partition = open_partition(tmp_path, clock)
    partition.append([part(1)])
    arrived = clock.micros()
    clock.advance("1 hour")
    partition.append_idle_marker(clock.micros())
    assert partition.state().appended_at == arrived


def test_event_time_is_found_across_segments(tmp_path):
    partition = open_partition(tmp_path, segment_size=300)
    times = [100, 50, 200, 150, 120, 300, 10, 400]
    for number, time in enumerate(times):
        partition.append([part(number, times=[time])])
    for wanted in range(0, 420, 10):
        highest = [max(times[: index + 1]) for index in range(len(times))]
        expected = next((index for index, high in enumerate(highest) if high >= wanted), None)
        reached = partition.find_frame_by_time(wanted)
        assert (None if reached is None else reached[0].base_offset) == expected


def test_damage_is_an_error_and_never_an_event(tmp_path):
    partition = open_partition(tmp_path)
    partition.append([part(1, 2, 3)])
    partition.append([part(4)])
    flip(segments(tmp_path / "0")[0], partition.fetch(0, 1)[0][0].position + 200)
    with pytest.raises(DamagedError) as caught:
        numbers_in(partition)
    assert caught.value.data["offset"] == 0
    assert numbers_in(partition, offset=3) == [4]


def test_a_damaged_header_before_the_offset_is_an_error(tmp_path):
    partition = open_partition(tmp_path)
    for number in range(3):
        partition.append([part(number)])
    flip(segments(tmp_path / "0")[0], partition.fetch(1, 1)[0][0].position + 30)
    with pytest.raises(DamagedError):
        open_partition(tmp_path).fetch(2, 1000)


def test_a_removed_segment_in_the_middle_is_damage(tmp_path):
    partition = open_partition(tmp_path, segment_size=300)
    for number in range(6):
        partition.append([part(number)])
    missing = segments(tmp_path / "0")[1]
    missing.unlink()
    with pytest.raises(DamagedError) as caught:
        numbers_in(open_partition(tmp_path, segment_size=300))
    assert caught.value.data["offset"] == int(missing.stem)


def test_removed_first_segments_are_gone(tmp_path):
    partition = open_partition(tmp_path, segment_size=300)
    for number in range(6):
        partition.append([part(number)])
    segments(tmp_path / "0")[0].unlink()
    (tmp_path / "ends").unlink()
    again = open_partition(tmp_path, segment_size=300)
    start = again.state().start_offset
    assert start > 0
    with pytest.raises(DataGoneError) as caught:
        again.fetch(0, 1000)
    assert caught.value.data == {"partition": 0, "first": 0, "last": start - 1, "start": start}


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_full_disk_appends_nothing_and_later_goes_on(tmp_path, call):
    disk = Failing()
    partition = open_partition(tmp_path, disk=disk)
    partition.append([part(1)])
    disk.failing = {call: errno.ENOSPC}
    with pytest.raises(DiskFullError):
        partition.append([part(*range(100))])
    assert numbers_in(partition) == [1]
    partition.append([part(2)])
    assert numbers_in(open_partition(tmp_path)) == [1, 2]
    assert not list((tmp_path / "0").glob("*.torn*"))


def test_nothing_is_written_behind_a_failed_sync(tmp_path):
    disk = Failing()
    partition = open_partition(tmp_path, disk=disk)
    partition.append([part(1)])
    disk.failing = {"sync": errno.EIO}
    with pytest.raises(DiskFailedError):
        partition.append([part(2)])
    partition.append([part(3)])
    assert len(segments(tmp_path / "0")) == 2
    assert numbers_in(open_partition(tmp_path)) == [1, 3]


def test_a_failed_sync_of_an_empty_segment_starts_it_anew(tmp_path):
    disk = Failing()
    partition, reader = open_partition(tmp_path, disk=disk), open_partition(tmp_path)
    assert partition.state().next_offset == 0
    assert reader.last_sequence("a") == -1  # it has the file open now
    disk.failing = {"sync": errno.EIO}
    with pytest.raises(DiskFailedError):
        partition.append([part(1)])
    partition.append([part(2)])
    assert numbers_in(reader) == numbers_in(partition) == [2]


def test_appends_that_need_not_be_durable_do_not_sync(tmp_path):
    disk = Failing()
    partition = open_partition(tmp_path, disk=disk, durability="fast")
    assert partition.state().next_offset == 0
    disk.failing = {"sync": errno.EIO}
    partition.append([part(1)])
    assert disk.failing == {"sync": errno.EIO}
    assert numbers_in(partition) == [1]


def test_readers_at_many_places_do_not_disturb_each_other(tmp_path):
    partition = open_partition(tmp_path, segment_size=3000)
    for number in range(200):
        partition.append([part(number)])
    positions = dict.fromkeys(range(0, 200, 2), 0)
    for _ in range(3):
        for reader, offset in positions.items():
            frame = partition.fetch(reader + offset, 1)[0][0] if reader + offset < 200 else None
            assert frame is None or frame.base_offset == reader + offset
            positions[reader] = offset + 1
    assert len(partition._index._cursors) <= 64


def test_clock_of_the_log_stamps_each_batch(tmp_path):
    clock = ManualClock()
    partition = open_partition(tmp_path, clock)
    stamps = []
    for _ in range(3):
        partition.append([part(1)])
        stamps.append(clock.micros())
        clock.advance("1 minute")
    assert [frame.appended_at for frame, _ in partition.fetch(0, 1 << 20)] == stamps
    assert stamps[2] - stamps[0] == 2 * MINUTE == 120 * SECOND


def test_a_look_at_any_offset_does_not_walk_through_all_frames_before_it(tmp_path, monkeypatch):
    partition = open_partition(tmp_path)
    for start in range(0, 3_000, 100):
        partition.append([part(number) for number in range(start, start + 100)])
    list(partition.fetch(2_900, 1))
    walked = walked_frames(monkeypatch)
    for offset in (2_500, 100, 1_700, 2_999):
        walked.clear()
        (found, *_) = partition.fetch(offset, 1)
        assert found[0].base_offset == offset
        assert len(walked) < 600, offset


def test_the_size_of_a_range_is_that_of_its_frames_across_segments(tmp_path):
    partition = open_partition(tmp_path, segment_size=4096)
    for number in range(40):
        partition.append([part(*range(number % 7 + 1))])
    end = partition.state().next_offset
    frames = list(partition.frame_headers(0, end))
    headers = sum(next(partition.files.segment(base).walk(0, 4096)).length for base in partition.files.bases())
    bounds = [frame.base_offset for frame in frames] + [end]
    for low, start in enumerate(bounds):
        for high, until in enumerate(bounds[low:], low):
            expected = sum(frame.length for frame in frames[low:high])
            assert expected <= partition.size(start, until) <= expected + headers
    assert len(segments(tmp_path / "0")) > 2
    assert partition.size(end, end) == 0


def test_the_size_of_what_is_new_needs_no_walk_also_across_a_roll(tmp_path, monkeypatch):
    partition = open_partition(tmp_path, segment_size=4096)
    partition.append([part(*range(9))])
    reached = partition.state().next_offset
    assert partition.size(0, reached) > 0
    walked = walked_frames(monkeypatch)
    for _ in range(30):
        partition.append([part(1)])
        new = partition.state().next_offset
        walked.clear()
        assert 0 < partition.size(reached, new) < 4096
        assert not [frame for frame in walked if frame.count]
        reached = new
    assert len(segments(tmp_path / "0")) > 2


def test_the_size_of_a_range_that_retention_removed_is_an_error(tmp_path):
    partition = open_partition(tmp_path)
    for _ in range(40):
        partition.append([part(*range(9))])
    with partition.lock() as state:
        partition.publish(replace(state, start_offset=90))
    with pytest.raises(DataGoneError):
        partition.size(0, 360)
