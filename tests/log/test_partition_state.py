"""The shared file of partition states: slots are independent, and a damaged one reads as none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headwater.log.storage import Disk, PartitionState, StateFile
from tests.log.given import flip

NUMBERS = st.integers(-(2**63), 2**63 - 1)
SLOT = PartitionState(1, 2, 3, 4, 5, 6, 7, 8, 9)


@given(st.lists(NUMBERS, min_size=9, max_size=9), st.booleans(), st.booleans())
def test_every_slot_comes_back(tmp_path_factory, numbers, dirty, distrusted):
    ends = StateFile(Disk(), tmp_path_factory.getbasetemp() / "ends-of-all-kinds")
    slot = PartitionState(*numbers, dirty=dirty, sync_failed=distrusted)
    ends.write(3, slot)
    assert ends.read(3) == slot
    ends.close()


def test_slots_do_not_touch_each_other(tmp_path):
    ends = StateFile(Disk(), tmp_path / "ends")
    slots = [replace(SLOT, next_offset=number) for number in range(50)]
    for number in reversed(range(50)):
        ends.write(number, slots[number])
    assert [ends.read(number) for number in range(50)] == slots


def test_slot_never_written_is_none(tmp_path):
    ends = StateFile(Disk(), tmp_path / "ends")
    assert ends.read(0) is None
    ends.write(1, SLOT)
    assert ends.read(0) is None
    assert ends.read(2) is None


def test_damaged_slot_is_none_and_its_neighbour_is_not(tmp_path):
    ends = StateFile(Disk(), tmp_path / "ends")
    ends.write(0, SLOT)
    ends.write(1, SLOT)
    for position in range(80):
        flip(tmp_path / "ends", position)
        assert ends.read(0) is None, position
        flip(tmp_path / "ends", position)
    assert ends.read(0) == ends.read(1) == SLOT


def test_slot_read_while_it_is_written_is_read_again(tmp_path):
    class Torn(Disk):
        torn = 2

        def read(self, handle, position, length):
            self.torn -= 1
            data = super().read(handle, position, length)
            return data if self.torn < 0 else data[:40] + bytes(len(data) - 40)

    StateFile(Disk(), tmp_path / "ends").write(0, SLOT)
    assert StateFile(Torn(), tmp_path / "ends").read(0) == SLOT


def test_another_handle_sees_what_was_published(tmp_path):
    one, other = StateFile(Disk(), tmp_path / "ends"), StateFile(Disk(), tmp_path / "ends")
    one.write(0, SLOT)
    assert other.read(0) == SLOT
