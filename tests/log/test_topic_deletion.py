"""Deleted topics of the embedded log: other processes, memory, damage, side data."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from headwater import errors
from headwater.log import EventLog, WriteBatch
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage import Disk
from headwater.log.storage.file_pool import FILES
from headwater.log.topic import Topic
from headwater.log.write.write_batch import EventEncoder


@pytest.fixture(params=["fast", "memory"])
def durability(request) -> str:
    return request.param


def rows(log: EventLog, *values: int) -> WriteBatch:
    return EventEncoder(log.topic("t")).encode_many([{"n": value} for value in values], None, 0)


def read(log: EventLog) -> list[int]:
    return [event.value["n"] for batch in log.fetch("t", {0: 0}) for event in batch.events()]


def open_files(folder: Path) -> list[str]:
    """The files below a folder that this process has open, deleted ones included."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    found = [os.readlink(link) for link in links if os.path.islink(link)]
    return [path for path in found if str(folder) in path]


@pytest.fixture
def two(tmp_path, durability):
    """Two logs of one folder, as two processes have them; the topic holds 1, 2, 3."""
    with EventLog(tmp_path) as one, EventLog(tmp_path) as other:
        one.create(Topic.declare("t", "n int", durability=durability))
        other.append("t", rows(other, 1, 2, 3))
        assert read(one) == [1, 2, 3]
        yield one, other


def test_a_writer_with_the_topic_open_is_refused_and_writes_nothing(two):
    one, other = two
    made = rows(other, 4)
    partition = other.open_topic("t").partitions[0]
    segment = os.open(next(partition.folder.glob("*.segment")), os.O_RDONLY)
    before = os.fstat(segment).st_size
    one.delete("t")
    for write in (lambda: other.append("t", made), lambda: partition.append([made])):
        with pytest.raises(errors.UnknownTopicError):
            write()
    assert os.fstat(segment).st_size == before
    os.close(segment)


def test_rows_made_for_a_deleted_topic_do_not_reach_a_later_one(two, durability):
    one, other = two
    made = rows(other, 4)
    one.delete("t")
    again = one.create(Topic.declare("t", "n bigint, note string", durability=durability))
    assert (again.version, again.first_version, one.topic_id("t")) == (2, 2, "2")
    for log in (one, other):
        log.release_deleted()
        with pytest.raises(errors.UnknownTopicError):
            log.append("t", made)
        assert read(log) == []
    other.append("t", rows(other, 9))
    assert read(one) == read(other) == [9]


def test_a_waiting_reader_is_woken_and_told(two):
    one, other = two
    waiter = other.watch("t")
    one.delete("t")
    assert waiter.wait(30)
    with pytest.raises(errors.UnknownTopicError):
        other.fetch("t", {0: 3})
    waiter.close()


def test_segments_of_a_deleted_topic_are_closed_everywhere(two, tmp_path):
    one, other = two
    one.delete("t")
    Maintenance(other).run_once()
    assert [path for path in open_files(tmp_path) if ".segment" in path] == []


def test_no_file_of_a_deleted_topic_stays_open(two, tmp_path):
    one, other = two
    one.delete("t")
    Maintenance(other).run_once()
    gc.collect()
    assert [path for path in open_files(tmp_path) if "deleted" in path] == []


def test_a_writer_whose_files_were_closed_meanwhile_learns_of_the_deletion(two, tmp_path, monkeypatch):
    one, other = two
    made = rows(other, 4)
    one.delete("t")
    with monkeypatch.context() as few:
        few.setattr(FILES, "_limit", 1)
        for name in "abc":  # their files take the place of those of the deleted topic
            other.create(Topic.declare(name, "n int"))
            other.append(name, EventEncoder(other.topic(name)).encode_many([{"n": 1}], None, 0))
        counters = other.open_topic("t").writer.counters
        with pytest.raises(errors.UnknownTopicError):
            other.append("t", made)
        counters.add({"offered": 1})
    with pytest.raises(errors.UnknownTopicError):
        other.counts("t")


def test_a_member_of_a_deleted_topic_cannot_commit(two, durability):
    one, other = two
    membership = other.groups.join("billing", "t")
    other.groups.commit(membership, {0: 2})
    one.delete("t")
    assert one.groups.states() == []
    one.create(Topic.declare("t", "n int", durability=durability))
    with pytest.raises(errors.FencedError):
        other.groups.commit(membership, {0: 3})
    assert one.groups.states() == []


def test_a_topic_that_is_deleted_while_it_is_opened_is_unknown(tmp_path, monkeypatch):
    class DeletingDisk(Disk):
        """Another process deletes the topic once this one has read its definition."""

        def boot_id(self):
            if "t" in other.topics():
                other.delete("t")
            return super().boot_id()

    with EventLog(tmp_path) as other, EventLog(tmp_path, disk=DeletingDisk()) as log:
        other.create(Topic.declare("t", "n int"))
        other.groups.reset("billing", "t", {0: 0})
        with pytest.raises(errors.UnknownTopicError):
            log.open_topic("t")
        assert log.topics() == []
        other.create(Topic.declare("t", "n int"))
        other.append("t", rows(other, 1))
        assert read(other) == [1]
        assert other.groups.states() == []


def test_a_damaged_topic_can_be_deleted(tmp_path):
    with EventLog(tmp_path) as log:
        log.create(Topic.declare("t", "n int"))
        log.append("t", rows(log, 1))
    (tmp_path / "topics/t/topic.json").write_bytes(b"{")
    (tmp_path / "topics/t/ends").write_bytes(b"x" * 200)
    with EventLog(tmp_path) as log:
        log.delete("t")
        assert log.topics() == []
        log.create(Topic.declare("t", "n int"))
        assert read(log) == []


def test_the_size_of_a_topic_is_that_of_its_files(tmp_path):
    with EventLog(tmp_path) as log:
        log.create(Topic.declare("t", "n int"))
        log.append("t", rows(log, *range(1000)))
        files = [path for path in (tmp_path / "topics/t").rglob("*") if path.is_file()]
        assert log.size("t") == sum(path.stat().st_size for path in files) > 4000
        with pytest.raises(errors.UnknownTopicError):
            log.size("u")


def test_offsets_that_an_interrupted_deletion_left_are_not_those_of_a_later_topic(tmp_path, monkeypatch):
    with EventLog(tmp_path) as log:
        log.create(Topic.declare("t", "n int"))
        log.append("t", rows(log, 1, 2, 3))
        log.groups.reset("billing", "t", {0: 3})
        monkeypatch.setattr(log.groups, "remove_topic", lambda name: None)
        log.delete("t")
    with EventLog(tmp_path) as log:
        assert log.groups.states() == []
        log.create(Topic.declare("t", "n int"))
        assert log.groups.states() == []
        assert log.groups.join("billing", "t").positions == {0: 0}
