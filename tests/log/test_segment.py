"""Segments: a header, frames one after another, and an error where a checksum does not match."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest

from headwater.errors import DamagedError, NewerFormatError
from headwater.log.storage import Disk, Frame, FrameKind, Segment
from headwater.log.storage.frame import HEADER_SIZE, encode_frame
from headwater.log.storage.segment import SegmentHeader, parse_base_offset, segment_file_name
from tests.log.given import flip


def frame_bytes(offset: int, size: int = 40) -> bytes:
    return encode_frame(Frame(FrameKind.EVENTS, offset, offset + 1, count=1), bytes([offset % 251]) * size)


def written(folder, frames: list[bytes], head: SegmentHeader | None = None) -> tuple[Segment, int]:
    segment = Segment(Disk(), folder, 0)
    length = segment.create(head or SegmentHeader(), max_event_time=5)
    Disk().write(segment.handle, length, b"".join(frames))
    return segment, length + sum(map(len, frames))


@pytest.mark.parametrize("base", [0, 7, 10**19])
def test_name_gives_the_base_back(base):
    assert parse_base_offset(segment_file_name(base)) == base
    assert len(segment_file_name(base)) == len("00000000000000000000.segment")


@pytest.mark.parametrize("name", ["lock", "7.new", "x.segment", ".segment", "7.torn-120", "compaction.lock"])
def test_other_files_are_no_segments(name):
    assert parse_base_offset(name) is None


def test_header_comes_back_after_reopening(tmp_path):
    head = SegmentHeader(covers_until=9, previous=(1, 2, 3), producers={"till-7": (0, 4, 10, 5, 99)})
    written(tmp_path, [], head)
    frame, found = Segment(Disk(), tmp_path, 0).header()
    assert msgspec.to_builtins(found) == msgspec.to_builtins(head)
    assert (frame.kind, frame.max_event_time_before, frame.max_event_time) == (FrameKind.SEGMENT_HEADER, 5, 5)


def test_header_larger_than_one_read_comes_back(tmp_path):
    producers = {f"till-{number}": (number, number, number, 1, 0) for number in range(500)}
    written(tmp_path, [], SegmentHeader(producers=producers))
    assert Segment(Disk(), tmp_path, 0).header()[1].producers == producers


def test_new_segment_has_its_name_only_when_whole(tmp_path):
    segment = Segment(Disk(), tmp_path, 7)
    segment.create(SegmentHeader(), 0, temporary=True)
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000007.new"]


def test_header_of_a_newer_format_is_refused(tmp_path):
    written(tmp_path, [], SegmentHeader(format=99))
    with pytest.raises(NewerFormatError):
        Segment(Disk(), tmp_path, 0).header()


@pytest.mark.parametrize("position", [3, 20, HEADER_SIZE + 1])
def test_damaged_header_is_an_error(tmp_path, position):
    segment, _ = written(tmp_path, [])
    flip(segment.path, position)
    with pytest.raises(DamagedError) as caught:
        segment.header()
    assert caught.value.data == {"segment": segment.path.name, "offset": 0, "position": 0}


def test_empty_file_has_a_damaged_head(tmp_path):
    (tmp_path / segment_file_name(0)).touch()
    with pytest.raises(DamagedError):
        Segment(Disk(), tmp_path, 0).header()


@pytest.mark.parametrize("check", [False, True])
def test_walk_gives_all_frames_in_order(tmp_path, check):
    sizes = [0, 8, 3, 1 << 20, 70_000, 1]
    segment, length = written(tmp_path, [frame_bytes(n, size) for n, size in enumerate(sizes)])
    frames = list(segment.walk(0, length, check=check))
    assert [frame.base_offset for frame in frames[1:]] == list(range(6))
    ends = [frame.position + frame.length for frame in frames]
    assert [frame.position for frame in frames] == [0, *ends[:-1]]
    assert ends[-1] == length


def test_walk_stops_at_the_limit(tmp_path):
    segment, length = written(tmp_path, [frame_bytes(n) for n in range(5)])
    assert len(list(segment.walk(0, length - 1))) == 5
    assert len(list(segment.walk(0, length))) == 6


def test_only_a_checking_walk_stops_at_a_damaged_body(tmp_path):
    frames = [frame_bytes(n) for n in range(5)]
    segment, length = written(tmp_path, frames)
    flip(segment.path, length - 2 * len(frames[0]) - 9)
    assert len(list(segment.walk(0, length))) == 6
    assert len(list(segment.walk(0, length, check=True))) == 3


def test_read_gives_at_least_one_frame(tmp_path):
    segment, length = written(tmp_path, [frame_bytes(0, 5000), frame_bytes(1, 5000)])
    start = length - 2 * len(frame_bytes(0, 5000))
    found = list(segment.read(start, length, max_bytes=1))
    assert [frame.base_offset for frame, _ in found] == [0]


def test_read_gives_what_fits_and_no_part_of_a_frame(tmp_path):
    frames = [frame_bytes(n) for n in range(10)]
    segment, length = written(tmp_path, frames)
    start = length - sum(map(len, frames))
    found = list(segment.read(start, length, max_bytes=3 * len(frames[0]) + 120))
    assert [frame.base_offset for frame, _ in found] == [0, 1, 2]
    assert [bytes(data) for _, data in found] == frames[:3]


def test_read_raises_where_a_body_is_damaged(tmp_path):
    frames = [frame_bytes(n) for n in range(4)]
    segment, length = written(tmp_path, frames)
    flip(segment.path, length - len(frames[0]) - 9)
    reading = segment.read(length - sum(map(len, frames)), length, 1 << 20)
    assert [next(reading)[0].base_offset, next(reading)[0].base_offset] == [0, 1]
    with pytest.raises(DamagedError) as caught:
        next(reading)
    assert caught.value.data["offset"] == 2


def test_read_raises_where_a_header_is_damaged(tmp_path):
    frames = [frame_bytes(n) for n in range(3)]
    segment, length = written(tmp_path, frames)
    flip(segment.path, length - len(frames[0]) * 2 + 30)
    with pytest.raises(DamagedError) as caught:
        list(segment.read(length - sum(map(len, frames)), length, 1 << 20))
    assert caught.value.data["position"] == length - 2 * len(frames[0])


def test_read_raises_when_the_file_ends_early(tmp_path):
    segment, length = written(tmp_path, [frame_bytes(0)])
    Disk().truncate(segment.handle, length - 100)
    with pytest.raises(DamagedError):
        list(segment.read(length - len(frame_bytes(0)), length, 1 << 20))
    with pytest.raises(DamagedError):
        list(segment.read(length, length + 200, 1 << 20))


def test_next_sound_finds_the_frame_behind_a_hole(tmp_path):
    frames = [frame_bytes(n) for n in range(3)]
    segment, length = written(tmp_path, frames)
    hole = length - 3 * len(frames[0])
    flip(segment.path, hole + 40)
    assert segment.find_valid_frame(hole, length) == hole + len(frames[0])
    assert segment.find_valid_frame(length - len(frames[0]) + 8, length) is None


def test_next_sound_takes_no_magic_word_inside_a_body_for_a_frame(tmp_path):
    body = b"HWB1" + bytes(200)
    decoy = encode_frame(Frame(FrameKind.EVENTS, 0, 1, count=1), b"x" * 3 + body)
    segment, length = written(tmp_path, [decoy])
    start = length - len(decoy)
    assert segment.find_valid_frame(start + 8, length) is None


def test_threads_that_open_a_segment_together_share_one_file(tmp_path):
    class Slow(Disk):
        opened = 0

        def open(self, path, *, create=True):
            time.sleep(0.02)
            self.opened += 1
            return super().open(path, create=create)

    written(tmp_path, [])
    disk = Slow()
    segment = Segment(disk, tmp_path, 0)
    handles: list[int] = []
    threads = [threading.Thread(target=lambda: handles.append(segment.handle)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(set(handles)), disk.opened) == (1, 1)


def test_a_walk_leaves_index_entries_for_a_later_one(tmp_path):
    segment, length = written(tmp_path, [frame_bytes(offset) for offset in range(4_000)])
    assert segment.find_index_entry(3_999) == (0, 0)
    starts = {frame.base_offset: frame.position for frame in segment.walk(0, length)}
    for begun in (0, 17, 1_000):  # from wherever walks begin, landmarks stay apart
        list(segment.walk(starts[begun], length))
    noted = {segment.find_index_entry(offset) for offset in range(4_000)}
    assert 1 < len(noted) <= 1 + length // (1 << 15)
    for offset in range(4_000):
        found, position = segment.find_index_entry(offset)
        assert found <= offset
        assert position in (0, starts[found])
        assert starts[offset] - position < 3 << 16
