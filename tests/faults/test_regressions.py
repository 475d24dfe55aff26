"""Faults that were found once, each with the shortest reproduction."""

from __future__ import annotations

import contextlib
import random

import pytest

import headwater as hw
from headwater.errors import DamagedError
from headwater.events import ManualClock
from headwater.log import EventLog, Retention, WriteBatch
from headwater.log.maintenance.compaction import compact
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage import Partition
from headwater.log.storage.disk import Disk
from tests.faults.processes import declared, numbered_rows, read_all
from tests.faults.simulated_disk import DiedError, Machine, SimulatedDisk
from tests.faults.test_kill_in_maintenance import prepared


def idempotent(first: int, rows: int) -> WriteBatch:
    return WriteBatch(numbered_rows("x", first, rows).values, 1, {}, 0, "x", first)


def partition_of(log: EventLog) -> Partition:
    return log.open_topic("t").partitions[0]


def roll(log: EventLog) -> None:
    with partition_of(log).lock() as slot:
        partition_of(log).roll(slot)


def numbers(log: EventLog) -> list[int]:
    return [found.event.seq for found in read_all(log)]


@pytest.fixture
def pair(tmp_path) -> tuple[EventLog, EventLog]:
    """The same log, opened twice as by two processes."""
    one, other = EventLog(tmp_path), EventLog(tmp_path)
    one.create(declared(segment_size=2_000))
    return one, other


def test_a_segment_made_anew_under_its_name_is_noticed_by_others(pair):
    """Otherwise the other process would write to the removed file, and its events would be lost."""
    one, other = pair
    one.append("t", numbered_rows("a", 0, 1))
    roll(one)
    for _ in range(2):
        with partition_of(other).lock():  # from the second time on it has the empty segment open
            pass
    roll(one)
    other.append("t", numbered_rows("a", 1, 1))
    one.append("t", numbered_rows("a", 2, 1))
    assert numbers(one) == numbers(other) == [0, 1, 2]


def test_what_a_dead_writer_left_in_a_segment_made_anew_is_seen(pair):
    """The next writer used the size of the old file and overwrote the events."""
    one, other = pair
    one.append("t", numbered_rows("a", 0, 1))
    roll(one)
    for _ in range(2):
        with partition_of(other).lock():
            pass
    roll(one)
    slot = partition_of(one).state()
    one.append("t", numbered_rows("a", 1, 1))
    partition_of(one).publish(slot)  # as if the writer had died before it published
    assert other.append("t", numbered_rows("a", 2, 1)).offsets.tolist() == [2]
    assert numbers(one) == [0, 1, 2]


def test_a_reader_at_the_end_of_a_segment_goes_on_in_the_next(pair):
    """The reader stayed at the end of the closed segment for ever."""
    one, other = pair
    one.append("t", numbered_rows("a", 0, 2))
    assert len(other.fetch("t", {0: 0})) == 1
    assert other.fetch("t", {0: 2}) == []
    roll(one)
    one.append("t", numbered_rows("a", 2, 2))
    [batch] = other.fetch("t", {0: 2})
    assert batch.offsets.tolist() == [2, 3]


@pytest.mark.parametrize("look", ["fetch", "headers"])
def test_a_reader_whose_segment_is_rewritten_between_two_reads_retries(tmp_path, monkeypatch, look):
    """The reader used the length of the old file on the new, shorter one, and reported damage."""
    one, other = EventLog(tmp_path), EventLog(tmp_path)
    one.create(declared(segment_size=2_000, key="key", compact=True))
    one.append("t", numbered_rows("a", 0, 14))
    reader = partition_of(other)
    early = reader.state()
    roll(one)
    one.append("t", numbered_rows("a", 14, 14))
    roll(one)
    assert compact(one.open_topic("t"), 0, 0, eager=True).kept < 28
    reader.invalidate()  # the reader opens the file only now
    answers = [early]
    published = reader.state
    monkeypatch.setattr(reader, "state", lambda: answers.pop() if answers else published())
    if look == "fetch":
        assert reader.fetch(0, 1 << 20)[0][0].next_offset > 14
    else:
        assert next(reader.frame_headers(0, 28)).next_offset > 14


def test_receipts_of_repeats_name_the_offsets_they_were_written_at(pair):
    """The repeats are in two earlier batches with another sender's event between them."""
    one, other = pair
    one.append("t", idempotent(0, 1))
    other.append("t", numbered_rows("a", 0, 1))
    one.append("t", idempotent(1, 1))
    assert other.append("t", idempotent(0, 3)).offsets.tolist() == [0, 2, 3]


def test_a_repeat_is_known_although_the_ends_were_lost_on_the_way(pair, tmp_path):
    """The writer had not noticed that another process had recovered the partition."""
    one, other = pair
    one.append("t", idempotent(0, 1))
    (tmp_path / "topics" / "t" / "ends").write_bytes(b"")
    other.append("t", idempotent(1, 1))
    (tmp_path / "topics" / "t" / "ends").write_bytes(b"")
    assert one.append("t", idempotent(1, 1)).duplicates == 1


def test_what_the_dead_had_not_made_durable_is_made_so_by_the_next(tmp_path):
    """A process renames a segment and dies before it syncs the folder; then the power is cut."""
    machine = Machine()
    log = EventLog("/data", disk=SimulatedDisk(machine))
    log.create(declared())
    log.append("t", numbered_rows("a", 0, 1))
    log.disk.fail("sync_folder", 1, None)  # type: ignore[attr-defined]
    with pytest.raises(DiedError):
        roll(log)
    other = EventLog("/data", disk=SimulatedDisk(machine))
    other.append("t", numbered_rows("a", 1, 1))
    for seed in range(20):
        machine.lose_power(random.Random(seed))
        assert numbers(EventLog("/data", disk=SimulatedDisk(machine))) == [0, 1]


def test_a_hole_in_an_unacknowledged_write_is_a_torn_tail(tmp_path):
    """Several senders shared the write; the first batch was lost, the second complete: neither was acknowledged."""
    log = EventLog(tmp_path)
    log.create(declared())
    log.append("t", numbered_rows("a", 0, 1))
    before = partition_of(log).state()
    parts = [WriteBatch(numbered_rows("a", first, 2).values, 1) for first in (1, 3, 5)]
    partition_of(log).append(parts)
    path = partition_of(log).files.segment(0).path
    data = bytearray(path.read_bytes())
    data[before.length + 50] ^= 1
    path.write_bytes(bytes(data))
    (tmp_path / "topics" / "t" / "ends").unlink()
    assert numbers(EventLog(tmp_path)) == [0]


def test_a_send_of_several_frames_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    """A kill during the write left its first frames."""
    monkeypatch.setattr("headwater.log.write.topic_writer._MAX_FRAME_BYTES", 2_000)
    log = EventLog(tmp_path)
    log.create(declared())
    log.append("t", numbered_rows("a", 0, 1))
    log.append("t", numbered_rows("a", 1, 200))
    log.append("t", numbered_rows("a", 201, 1))
    files, slot = partition_of(log).files, partition_of(log).state()
    frames = list(files.segment(0).walk(0, slot.length))
    assert [frame.unfinished for frame in frames] == [False, False, *[True] * (len(frames) - 4), False, False]
    before = files.segment(0).path.read_bytes()
    for cut in (*(frame.position for frame in frames[3:]), frames[5].position + 9):
        files.segment(0).path.write_bytes(before[:cut])
        (tmp_path / "topics" / "t" / "ends").unlink()
        left = numbers(EventLog(tmp_path))
        assert left == list(range(201 if cut == frames[-1].position else 1))


def test_a_hole_with_a_later_write_behind_it_is_damage(tmp_path):
    log = EventLog(tmp_path)
    log.create(declared())
    log.append("t", numbered_rows("a", 0, 1))
    before = partition_of(log).state()
    partition_of(log).append([WriteBatch(numbered_rows("a", first, 2).values, 1) for first in (1, 3)])
    log.append("t", numbered_rows("a", 5, 1))
    path = partition_of(log).files.segment(0).path
    data = bytearray(path.read_bytes())
    data[before.length + 50] ^= 1
    path.write_bytes(bytes(data))
    (tmp_path / "topics" / "t" / "ends").unlink()
    other = EventLog(tmp_path)
    assert other.ends("t")[0].end == 6
    with pytest.raises(DamagedError):
        numbers(other)


def test_a_power_cut_in_retention_leaves_no_gap(tmp_path):
    for seed in range(60):
        machine = Machine()
        log = EventLog("/data", disk=SimulatedDisk(machine))
        log.create(declared(segment_size=600, retention=Retention(size=1_500)))
        for number in range(12):
            log.append("t", numbered_rows("a", number, 1))
        log.disk.fail("any", random.Random(seed).randint(1, 25), None)  # type: ignore[attr-defined]
        with contextlib.suppress(DiedError):
            Maintenance(log).apply_retention(log.open_topic("t"))
        log.disk.die()  # type: ignore[attr-defined]
        machine.lose_power(random.Random(seed))
        left = numbers(EventLog("/data", disk=SimulatedDisk(machine)))
        assert left == list(range(left[0], 12)), seed


def test_reading_ends_although_compaction_took_the_last_event(tmp_path):
    clock = ManualClock()
    client = hw.connect(tmp_path, clock=clock)
    client.create_topic("t", "key string, value int", key="key", compact=True)
    client.send("t", {"key": "a", "value": 1})
    client.delete("t", "b")
    roll(client.log)
    clock.advance("2 days")
    Maintenance(client.log).compact(client.log.open_topic("t"), eager=True)
    assert [event.offset for event in client.read("t")] == [0]
    assert len(client.table("t").rows()) == 1


class BeforeTheSwap(Disk):
    """Calls a function once, after compaction has written its file and before it renames it."""

    def __init__(self) -> None:
        self.happens = lambda: None

    def sync(self, handle: int) -> None:
        super().sync(handle)
        happens, self.happens = self.happens, lambda: None
        happens()


def test_compaction_does_not_bring_back_what_retention_removed(tmp_path):
    prepared(tmp_path, key="key", compact=True)
    disk = BeforeTheSwap()
    log, other = EventLog(tmp_path, disk=disk), EventLog(tmp_path)
    log.ends("t")

    def remove() -> None:
        other.create(declared(key="key", compact=True, retention=Retention(size=1, force=True)))
        Maintenance(other).apply_retention(other.open_topic("t"))

    disk.happens = remove
    compact(log.open_topic("t"), 0, log.clock.micros(), eager=True)
    start = other.ends("t")[0].start
    assert start > 0
    (tmp_path / "topics" / "t" / "ends").unlink()
    assert EventLog(tmp_path).ends("t")[0].start == start
