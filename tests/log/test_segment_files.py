"""The segment files of a partition: the listing, the valid length of each, and how many are open."""

from __future__ import annotations

import os

import pytest

from headwater.log.storage import Disk, PartitionState
from headwater.log.storage.segment import Segment, SegmentFiles, SegmentHeader, segment_file_name
from tests.log.given import open_partition, part


def make(folder, *bases: int) -> SegmentFiles:
    for base in bases:
        Segment(Disk(), folder, base).create(SegmentHeader(), 0)
    return SegmentFiles(Disk(), folder)


def test_bases_are_the_numbers_in_the_names(tmp_path):
    files = make(tmp_path, 120, 0, 7)
    (tmp_path / "lock").touch()
    (tmp_path / "00000000000000000009.new").touch()
    assert files.bases() == [0, 7, 120]


def test_segment_of_an_offset_is_the_last_that_starts_below(tmp_path):
    files = make(tmp_path, 0, 10, 20)
    slot = PartitionState(segment=20, next_offset=25)
    assert [files.base_for_offset(offset, slot) for offset in (0, 9, 10, 19, 20, 24)] == [0, 0, 10, 10, 20, 20]
    assert [files.next_base(base, slot) for base in (0, 10, 20)] == [10, 20, 25]


def test_segments_of_another_process_are_noticed(tmp_path):
    files = make(tmp_path, 0)
    assert files.bases() == [0]
    make(tmp_path, 10)
    assert files.base_for_offset(12, PartitionState(segment=10, next_offset=15)) == 10


def test_offset_before_all_segments_has_no_file(tmp_path):
    files = make(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        files.base_for_offset(3, PartitionState(start_offset=10, segment=10, next_offset=10))
    with pytest.raises(FileNotFoundError):
        make(tmp_path / "nowhere").base_for_offset(0, PartitionState())


def test_few_files_stay_open_however_many_there_are(tmp_path):
    files = make(tmp_path, *range(30))
    before = len(os.listdir("/proc/self/fd"))
    for base in range(30):
        files.file_size(base)
    assert len(os.listdir("/proc/self/fd")) - before <= 8


def test_reader_of_a_forgotten_segment_can_go_on(tmp_path):
    files = make(tmp_path, 0)
    segment = files.segment(0)
    size = files.file_size(0)
    files.invalidate()
    (tmp_path / segment_file_name(0)).unlink()
    assert len(list(segment.walk(0, size, check=True))) == 1
    assert files.bases() == []


def test_only_published_bytes_of_the_last_segment_count(tmp_path):
    files = make(tmp_path, 0)
    assert files.valid_length(files.segment(0), PartitionState(segment=0, length=17)) == 17


def test_a_closed_segment_counts_as_far_as_the_next_one_says(tmp_path):
    length = Segment(Disk(), tmp_path, 0).create(SegmentHeader(), 0)
    Segment(Disk(), tmp_path, 5).create(SegmentHeader(previous=(0, length, 1)), 0)
    with (tmp_path / segment_file_name(0)).open("ab") as file:
        file.write(b"left by a failed sync")
    files, slot = SegmentFiles(Disk(), tmp_path), PartitionState(segment=5, next_offset=5)
    assert files.valid_length(files.segment(0), slot) == length


def test_a_compacted_segment_counts_as_a_whole(tmp_path):
    length = Segment(Disk(), tmp_path, 0).create(SegmentHeader(covers_until=5), 0)
    Segment(Disk(), tmp_path, 5).create(SegmentHeader(previous=(0, length - 8, 1)), 0)
    files, slot = SegmentFiles(Disk(), tmp_path), PartitionState(segment=5, next_offset=5)
    assert files.valid_length(files.segment(0), slot) == length


def test_frames_of_a_segment_come_in_pieces_and_in_order(tmp_path):
    partition = open_partition(tmp_path)
    for number in range(5):
        partition.append([part(*range(number * 60_000, (number + 1) * 60_000))])
    frames = [frame for frame, _ in partition.files.read_frames(0, partition.state())]
    assert [frame.next_offset for frame in frames] == [0, *(60_000 * n for n in range(1, 6))]


def test_a_file_stays_open_while_its_size_is_asked(tmp_path):
    class Forgetful(Disk):
        """Another thread forgets all files just before this one looks."""

        def size(self, handle):
            files.invalidate()
            return super().size(handle)

    make(tmp_path, 0)
    files = SegmentFiles(Forgetful(), tmp_path)
    assert files.file_size(0) == (tmp_path / segment_file_name(0)).stat().st_size
