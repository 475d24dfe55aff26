"""After a crash or damage to side files: whole batches are kept, torn tails are saved and cut off."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from headwater.errors import DamagedError
from headwater.log.storage import Disk, Frame, FrameKind, Segment
from headwater.log.storage.frame import encode_frame
from headwater.log.storage.segment import SegmentHeader, segment_file_name
from tests.log.given import flip, numbers_in, open_partition, part, segments


def filled(folder, *numbers: int, **written):
    partition = open_partition(folder, **written)
    for number in numbers:
        partition.append([part(number)])
    return partition


def frame_positions(partition) -> list[int]:
    return [frame.position for frame, _ in partition.fetch(0, 1 << 20)]


def unpublish(folder, partition, offset: int) -> None:
    """As if the process had died before it published what lies from this offset on."""
    frames = [frame for frame, _ in partition.fetch(0, 1 << 20)]
    frame = next(frame for frame in frames if frame.next_offset == offset)
    slot = replace(
        partition.state(),
        next_offset=offset,
        length=frame.position + frame.length,
        last_frame=frame.position,
        max_event_time=frame.max_event_time,
    )
    partition._state_file.write(0, slot)


def test_whole_batches_behind_the_published_end_are_kept(tmp_path):
    unpublish(tmp_path, filled(tmp_path, 1, 2, 3), offset=1)
    again = open_partition(tmp_path)
    assert numbers_in(again) == [1]
    again.append([part(4)])
    assert numbers_in(again) == [1, 2, 3, 4]


def test_a_lost_file_of_ends_is_rebuilt(tmp_path):
    before = filled(tmp_path, 1, 2, 3).state()
    (tmp_path / "ends").unlink()
    again = open_partition(tmp_path)
    assert again.state().next_offset == 3
    after = again.state()
    assert replace(after, files_version=0) == replace(before, files_version=0)
    assert after.files_version != before.files_version


def test_a_damaged_file_of_ends_is_rebuilt(tmp_path):
    filled(tmp_path, 1, 2, 3)
    flip(tmp_path / "ends", 12)
    assert numbers_in(open_partition(tmp_path)) == [1, 2, 3]


@pytest.mark.parametrize("torn", [1, 8, 100, 130])
def test_a_torn_tail_is_cut_and_set_aside(tmp_path, caplog, torn):
    filled(tmp_path, 1, 2)
    path = segments(tmp_path / "0")[0]
    size = path.stat().st_size
    tail = encode_frame(Frame(FrameKind.EVENTS, 2, 3, count=1), bytes(100))[:torn]
    path.write_bytes(path.read_bytes() + tail)
    with caplog.at_level(logging.WARNING, "headwater.log"):
        open_partition(tmp_path).append([part(3)])
    assert numbers_in(open_partition(tmp_path)) == [1, 2, 3]
    aside = tmp_path / "0" / f"{path.stem}.torn-{size}"
    assert aside.read_bytes() == tail
    assert aside.name in caplog.text


def test_damage_in_the_middle_is_not_cut_away(tmp_path):
    partition = filled(tmp_path, 1, 2, 3)
    flip(segments(tmp_path / "0")[0], frame_positions(partition)[1] + 150)
    (tmp_path / "ends").unlink()
    again = open_partition(tmp_path)
    assert again.state().next_offset == 3
    assert numbers_in(again, offset=2) == [3]
    with pytest.raises(DamagedError):
        numbers_in(again)
    assert not list((tmp_path / "0").glob("*.torn*"))


def test_a_hole_in_the_last_write_takes_all_of_that_write(tmp_path):
    partition = filled(tmp_path, 1)
    partition.append([part(2), part(3), part(4)])
    unpublish(tmp_path, partition, offset=1)
    flip(segments(tmp_path / "0")[0], frame_positions(open_partition(tmp_path))[0] + 300)
    again = open_partition(tmp_path)
    again.append([part(5)])
    assert numbers_in(again) == [1, 5]


def test_an_unfinished_new_segment_is_removed(tmp_path):
    filled(tmp_path, 1, 2)
    folder = tmp_path / "0"
    (folder / segment_file_name(2)).write_bytes(b"HWB1 not whole")
    (folder / "00000000000000000009.new").touch()
    (tmp_path / "ends").unlink()
    again = open_partition(tmp_path)
    again.append([part(3)])
    assert numbers_in(again) == [1, 2, 3]
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".segment", ".torn-0"]


def test_a_finished_roll_that_was_not_published_is_found(tmp_path):
    partition = filled(tmp_path, 1, 2)
    slot = partition.state()
    partition.roll(slot)
    partition._state_file.write(0, slot)
    again = open_partition(tmp_path)
    again.append([part(3)])
    assert numbers_in(again) == [1, 2, 3]
    assert len(segments(tmp_path / "0")) == 2


def test_a_dirty_slot_is_repaired_by_whoever_sees_it(tmp_path):
    partition = filled(tmp_path, 1, 2)
    partition._state_file.write(0, replace(partition.state(), dirty=True, next_offset=1))
    assert not partition.state().dirty
    assert partition.state().next_offset == 2


def test_leftovers_of_a_compaction_are_removed(tmp_path):
    partition = filled(tmp_path, 1, 2, 3, 4, 5, segment_size=150)
    bases = partition.files.bases()
    frame, head = partition.files.segment(0).header()
    covering = Segment(Disk(), tmp_path / "0", 0)
    covering.create(SegmentHeader(covers_until=bases[2], previous=head.previous), frame.max_event_time_before)
    partition._state_file.write(0, replace(partition.state(), dirty=True))
    again = open_partition(tmp_path)
    assert again.state().next_offset == 5
    assert again.files.bases() == [0, *bases[2:]]
    assert numbers_in(again) == list(range(1, 6))[bases[2] :]


def test_a_slot_of_another_boot_is_checked_again(tmp_path):
    class Rebooted(Disk):
        def boot_id(self):
            return super().boot_id() + 1

    unpublish(tmp_path, filled(tmp_path, 1, 2, 3), offset=2)
    assert numbers_in(open_partition(tmp_path)) == [1, 2]
    assert numbers_in(open_partition(tmp_path, disk=Rebooted())) == [1, 2, 3]


def test_bytes_behind_a_failed_sync_are_not_believed(tmp_path):
    partition = filled(tmp_path, 1, 2)
    unpublish(tmp_path, partition, offset=1)
    partition._state_file.write(0, replace(partition._state_file.read(0), dirty=True, sync_failed=True))
    again = open_partition(tmp_path)
    again.append([part(3)])
    assert numbers_in(again) == [1, 3]
    assert len(segments(tmp_path / "0")) == 2


def test_offsets_go_on_when_all_files_are_gone(tmp_path):
    slot = filled(tmp_path, 1, 2, 3).state()
    segments(tmp_path / "0")[0].unlink()
    again = open_partition(tmp_path)
    assert again.state().start_offset == again.state().next_offset == 3
    assert again.state().max_event_time == slot.max_event_time
    assert again.append([part(4)])[0].first_offset == 3


def test_a_slot_that_promises_more_than_the_file_holds_is_repaired(tmp_path):
    filled(tmp_path, 1, 2, 3)
    path = segments(tmp_path / "0")[0]
    path.write_bytes(path.read_bytes()[:-10])
    again = open_partition(tmp_path)
    assert numbers_in(again) == [1, 2]
    assert again.append([part(4)])[0].first_offset == 2
