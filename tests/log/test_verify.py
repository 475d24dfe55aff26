"""Verification reads every byte and reports each fault."""

from __future__ import annotations

import pytest

from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.maintenance.verify import verify
from tests.log.given import declared, flip, rows_of, segments, tombstone


@pytest.fixture
def folder(log):
    """A topic with one partition of five closed segments and an open one; ten events."""
    topic = log.create(declared(segment_size=400))
    for number in range(10):
        log.append("orders", rows_of(topic, [{"amount": number}]))
    return log.folder / "topics" / "orders" / "0"


def test_a_sound_log_is_counted(log, folder):
    log.create(declared("other", partitions=2))
    report = verify(log)
    assert report.ok
    assert (report.topics, report.events) == (2, 10)
    assert report.segments == len(segments(folder)) + 2
    files = [path for path in log.folder.rglob("*.segment")]
    assert report.bytes == sum(path.stat().st_size for path in files)


def test_any_flipped_bit_is_found(log, folder):
    for path in segments(folder)[:-1]:
        size = path.stat().st_size
        for position in {0, 9, 50, 115, size // 2, size - 1}:
            flip(path, position)
            report = verify(log)
            assert any(fault.segment == path.name for fault in report.faults), (path, position)
            flip(path, position)
    assert verify(log).ok


def test_a_fault_says_where(log, folder):
    path = segments(folder)[1]
    partition = log.open_topic("orders").partitions[0]
    frame = partition.fetch(int(path.stem), 1)[0][0]
    flip(path, frame.position + frame.length - 9)
    fault = verify(log).faults[0]
    assert (fault.topic, fault.partition, fault.segment) == ("orders", 0, path.name)
    assert (fault.offset, fault.position) == (int(path.stem), frame.position)


def test_events_behind_the_damage_are_still_counted(log):
    topic = log.create(declared())
    for number in range(10):
        log.append("orders", rows_of(topic, [{"amount": number}]))
    partition = log.open_topic("orders").partitions[0]
    frame = partition.fetch(4, 1)[0][0]
    flip(partition.folder / "00000000000000000000.segment", frame.position + 120)
    report = verify(log)
    assert (report.events, [fault.offset for fault in report.faults]) == (9, [4])


def test_a_missing_segment_is_a_fault(log, folder):
    missing = segments(folder)[2]
    after = segments(folder)[3]
    missing.unlink()
    log.open_topic("orders").partitions[0].invalidate()
    report = verify(log)
    assert [(fault.offset, fault.segment) for fault in report.faults] == [(int(missing.stem), after.name)]


def test_a_torn_tail_set_aside_is_noted_and_no_fault(log, folder):
    (folder / "00000000000000000000.torn-96").write_bytes(b"x")
    report = verify(log)
    assert [note.segment for note in report.notes] == ["00000000000000000000.torn-96"]
    assert report.ok


def test_a_topic_that_cannot_be_opened_is_reported_and_the_others_read(log, folder):
    log.create(declared("other"))
    (log.folder / "topics" / "other" / "schema-0001.arrow").unlink()
    log.close()
    report = verify(log)
    assert [(fault.topic, fault.partition) for fault in report.faults] == [("other", -1)]
    assert report.events == 10


def test_a_partition_that_cannot_be_repaired_is_reported(log, folder):
    log.close()
    (log.folder / "topics" / "orders" / "ends").unlink()
    path = segments(folder)[-1]
    flip(path, 60)
    report = verify(log)
    assert not report.ok
    assert {fault.topic for fault in report.faults} == {"orders"}


def test_a_compacted_topic_is_sound(log):
    topic = log.create(declared(key="id", compact=True, segment_size=1))
    for number in range(8):
        log.append("orders", rows_of(topic, [{"id": "ab"[number % 2], "amount": number}]))
    log.append("orders", tombstone(topic, "a"))
    Maintenance(log).compact(log.open_topic("orders"), eager=True)
    report = verify(log)
    assert report.ok
    assert report.events < 9


def test_progress_rises_to_the_whole(log, folder):
    told = []
    report = verify(log, lambda done, total, name: told.append((done, total, name)))
    assert told == sorted(told)
    assert {(total, name) for _, total, name in told} == {(report.bytes, "orders/0")}
    assert len(told) == report.segments
