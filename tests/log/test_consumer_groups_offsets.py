"""The file of a group's committed offsets."""

from __future__ import annotations

import pytest

from headwater.errors import DamagedError
from headwater.log.consumer_groups import OffsetFile
from headwater.log.storage import Disk


@pytest.fixture
def offsets(tmp_path) -> OffsetFile:
    folder = tmp_path / "groups" / "billing" / "orders"
    folder.mkdir(parents=True)
    return OffsetFile(Disk(), folder / "offsets", "billing", "orders")


def test_a_group_that_has_not_begun_has_none(offsets):
    assert not offsets.exists()
    assert offsets.read() == {}


def test_commits_are_read_back_and_the_newest_counts(offsets):
    offsets.create({0: 5, 1: 7}, now=1)
    for offset in range(6, 20):
        offsets.write({0: offset}, now=offset)
    assert offsets.read() == {0: 19, 1: 7}


@pytest.mark.parametrize("torn", [0, 1], ids=["first record", "second record"])
def test_a_torn_commit_leaves_the_one_before(offsets, torn):
    offsets.create({0: 1}, now=1)
    offsets.write({0: 2}, now=2)
    offsets.write({0: 3}, now=3)
    data = bytearray(offsets.path.read_bytes())
    data[512 * torn + 9] ^= 1
    offsets.path.write_bytes(bytes(data))
    assert offsets.read() == {0: 2 if torn else 3}


@pytest.mark.parametrize("left", [b"", b"\0" * 1024, b"x" * 1024, b"\0" * 700])
def test_a_file_without_a_sound_record_is_damage(offsets, left):
    offsets.path.write_bytes(left)
    with pytest.raises(DamagedError) as damaged:
        offsets.read()
    assert damaged.value.data["group"] == "billing"
    assert damaged.value.fix == "headwater reset billing --topic orders --to earliest"


def test_a_file_with_too_few_partitions_is_damage(offsets):
    offsets.create({0: 1}, now=1)
    assert offsets.read(partitions=1) == {0: 1}
    with pytest.raises(DamagedError):
        offsets.read(partitions=2)
    with pytest.raises(DamagedError):
        offsets.write({1: 5}, now=2)


def test_a_commit_without_a_file_is_refused(offsets):
    with pytest.raises(DamagedError):
        offsets.write({0: 5}, now=2)


def test_settled_offsets_are_in_a_new_file(offsets):
    """A sync of the old one would prove nothing if one before it had failed."""
    offsets.create({0: 1}, now=1)
    before = offsets.path.stat().st_ino
    offsets.sync()
    assert offsets.path.stat().st_ino != before
    assert offsets.read() == {0: 1}


def test_a_damaged_file_can_be_given_up(offsets):
    offsets.path.write_bytes(b"x")
    offsets.path.unlink()
    offsets.sync()
    offsets.create({0: 0}, now=1)
    assert offsets.read() == {0: 0}
