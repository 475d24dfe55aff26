"""Compaction: compared with a dict of last values; survivors are unchanged; reads and appends continue."""

from __future__ import annotations

import random
import threading
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import LockedError
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.maintenance.compaction import CompactionResult, compact
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.maintenance.verify import verify
from tests.log.given import declared, events, rows_of, segments, tombstone


def keyed(log, **options):
    return log.create(declared(key="id", compact=True, **{"segment_size": 1500} | options))


def send(log, topic, pairs) -> None:
    """Pairs of key and amount, one append each; None deletes the key."""
    for key, amount in pairs:
        if amount is None:
            log.append("orders", tombstone(topic, key))
        else:
            log.append("orders", rows_of(topic, [{"id": key, "amount": amount, "at": log.clock.now()}]))


def compacted(log, partition: int = 0, *, eager: bool = True) -> CompactionResult:
    return compact(log.open_topic("orders"), partition, log.clock.micros(), eager=eager)


def table(found) -> dict[str, int]:
    """What a reader knows after these events."""
    known = {event.key: event.value and event.value["amount"] for event in found}
    return {key: amount for key, amount in known.items() if amount is not None}


def closed_end(log) -> int:
    return log.open_topic("orders").partitions[0].state().segment


PAIRS = st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.integers(0, 99)), min_size=1, max_size=60)


@settings(max_examples=25)
@given(PAIRS, PAIRS, st.integers(0, 3))
def test_readers_know_the_same_as_a_plain_dict(tmp_path_factory, first, second, days):
    clock = ManualClock()
    with EventLog(tmp_path_factory.mktemp("compact"), clock=clock) as log:
        topic = keyed(log, durability="fast")
        expected: dict[str, int | None] = {}
        for pairs in (first, second):
            send(log, topic, pairs)
            expected.update(pairs)
            clock.advance(timedelta(days=days))
            compacted(log)
            known = {key: amount for key, amount in expected.items() if amount is not None}
            assert table(events(log)) == known
            assert verify(log).ok


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PAIRS, PAIRS, st.integers(0, 3), st.sampled_from(["1", "240", "500"]))
def test_many_passes_keep_what_one_keeps(tmp_path_factory, monkeypatch, first, second, days, memory):
    """Memory for no key, 6 or 12: each pass takes as many segments as fit, and at least one."""
    clock, kept = ManualClock(), []
    for limit in (memory, "256 MB"):
        monkeypatch.setenv("HEADWATER_COMPACTION_MEMORY", limit)
        with EventLog(tmp_path_factory.mktemp("compact"), clock=clock) as log:
            topic = keyed(log, durability="fast", segment_size=600)
            send(log, topic, first)
            compacted(log)
            clock.advance(timedelta(days=days))
            send(log, topic, second)
            result, end = compacted(log), closed_end(log)
            kept.append([(event.offset, event.key, event.value and event.value["amount"]) for event in events(log)])
            assert result.kept == sum(offset < end for offset, _, _ in kept[-1]) or not result.seen
            assert verify(log).ok
    assert kept[0] == kept[1]


def test_only_the_last_of_each_key_is_kept_in_closed_segments(log):
    topic = keyed(log)
    send(log, topic, [("abc"[n % 3], n) for n in range(60)])
    before, end = events(log), closed_end(log)
    result = compacted(log)
    last = {event.key: event.offset for event in before if event.offset < end}
    kept = [event.offset for event in events(log)]
    assert kept == [*sorted(last.values()), *range(end, 60)]
    assert (result.seen, result.kept) == (end, 3)


def test_survivors_stay_exactly_as_they_were(log, clock):
    topic = keyed(log, time="at", lateness="1 minute")
    chance = random.Random(7)
    for number in range(80):
        moment = clock.now() - timedelta(seconds=chance.choice([0, 0, 30, 90, 600]))
        value = {"id": chance.choice("abcdefgh"), "amount": number, "at": moment}
        log.append("orders", rows_of(topic, [value] * 2, sent_at=number))
        clock.advance("7 seconds")
    before = {event.offset: event for event in events(log)}
    compacted(log)
    after = events(log)
    assert len(after) < len(before) / 2
    assert {event.late for event in after} == {True, False}
    assert all(event == before[event.offset] for event in after)


def test_a_second_run_changes_nothing_that_survives(log):
    topic = keyed(log)
    send(log, topic, [("abc"[n % 3], n) for n in range(60)])
    compacted(log)
    before = events(log)
    send(log, topic, [("d", n) for n in range(30)])
    compacted(log)
    after = {event.offset: event for event in events(log)}
    assert [after[event.offset] for event in before if event.offset in after] != []
    assert table(after.values()) == table(before) | {"d": 29}


def test_every_offset_can_still_be_read_from(log):
    topic = keyed(log)
    send(log, topic, [("ab"[n % 2], n) for n in range(50)])
    compacted(log)
    left = [event.offset for event in events(log)]
    for offset in range(50):
        assert [event.offset for event in events(log, offset=offset)] == [o for o in left if o >= offset]


def test_tombstones_stay_a_day_and_then_go(log, clock):
    topic = keyed(log, segment_size=1)
    send(log, topic, [("a", 1), ("a", None), ("b", 2), ("c", 3)])
    compacted(log)
    assert [(event.key, event.tombstone) for event in events(log)] == [("a", True), ("b", False), ("c", False)]
    clock.advance("24 hours")
    send(log, topic, [("d", 4)])
    compacted(log)
    assert "a" in [event.key for event in events(log)]
    clock.advance("1 second")
    send(log, topic, [("e", 5)])
    compacted(log)
    assert [event.key for event in events(log)] == ["b", "c", "d", "e"]


def test_a_key_that_came_back_after_its_tombstone_is_kept(log, clock):
    topic = keyed(log, segment_size=1)
    send(log, topic, [("a", 1), ("a", None), ("a", 2), ("b", 0)])
    clock.advance("3 days")
    compacted(log)
    assert table(events(log)) == {"a": 2, "b": 0}


def test_idle_markers_survive(log, clock):
    topic = keyed(log, segment_size=1)
    send(log, topic, [("a", 1)])
    log.open_topic("orders").partitions[0].append_idle_marker(clock.micros() + 5)
    send(log, topic, [("a", 2), ("a", 3)])
    compacted(log)
    kinds = [(batch.frame.kind.name, batch.frame.base_offset) for batch in log.fetch("orders", {0: 0})]
    assert ("IDLE_MARKER", 1) in kinds
    assert log.find_offset("orders", 0, clock.now() + timedelta(microseconds=5)) == 1


def test_closed_files_become_few(log):
    topic = keyed(log, segment_size=2000)
    send(log, topic, [("abc"[n % 3], n) for n in range(100)])
    folder = log.folder / "topics" / "orders" / "0"
    before = len(segments(folder))
    compacted(log)
    send(log, topic, [("d", n) for n in range(10)])
    compacted(log)
    assert before > 10
    assert len(segments(folder)) < before / 2
    assert not list(folder.glob("*.new"))


def test_it_waits_until_half_is_new(log):
    topic = keyed(log)
    send(log, topic, [(str(n), n) for n in range(60)])
    assert compacted(log, eager=False).kept > 0
    send(log, topic, [("0", n) for n in range(15)])
    assert compacted(log, eager=False).seen == 0
    send(log, topic, [("0", n) for n in range(60)])
    assert compacted(log, eager=False).seen > 0


def test_a_topic_that_is_not_compacted_is_left_alone(log):
    topic = log.create(declared(key="id", segment_size=1))
    send(log, topic, [("a", n) for n in range(5)])
    assert Maintenance(log).compact(log.open_topic("orders"), eager=True) == []
    assert len(events(log)) == 5


def test_nothing_closed_is_nothing_to_do(log):
    topic = keyed(log, segment_size=1 << 20)
    send(log, topic, [("a", n) for n in range(5)])
    assert compacted(log) == CompactionResult(0)


def test_old_types_are_rewritten_under_the_new_one(log):
    topic = keyed(log, segment_size=1)
    send(log, topic, [("a", 1), ("a", 2), ("b", 3)])
    new = log.create(declared(type_="id string, amount int, at timestamp, note string", key="id"))
    send(log, new, [("c", 4)])
    before = events(log, offset=1)
    compacted(log)
    assert events(log) == before
    assert before[0].value["note"] is None


def test_repeats_are_still_known_after_compaction(log):
    topic = keyed(log, segment_size=1)
    rows = [rows_of(topic, [{"id": "a", "amount": n}], partition=0, producer="p", sequence=n) for n in range(4)]
    for row in rows:
        log.append("orders", row)
    compacted(log)
    with EventLog(log.folder, clock=log.clock) as other:
        assert other.append("orders", rows[3]).duplicates == 1


def test_a_second_compactor_is_refused(log):
    topic = keyed(log, segment_size=1)
    send(log, topic, [("a", n) for n in range(5)])
    partition = log.open_topic("orders").partitions[0]
    handle = partition.disk.open(partition.folder / "compaction.lock")
    partition.disk.lock(handle)
    partition.disk.write(handle, 0, b"4711".ljust(20))
    with pytest.raises(LockedError) as caught:
        compacted(log)
    assert (caught.value.code, caught.value.data) == ("LOCKED_BY", {"pid": "4711"})
    partition.disk.close(handle)
    assert compacted(log).kept == 1


def write_all(log, topic, pairs, stop: threading.Event) -> None:
    for pair in pairs:
        send(log, topic, [pair])
    stop.set()


def read_all(log, disorder: list[list[int]], stop: threading.Event) -> None:
    while not stop.is_set():
        offsets = [event.offset for event in events(log)]
        if offsets != sorted(set(offsets)):
            disorder.append(offsets)


def test_reading_and_appending_go_on_meanwhile(log):
    topic = keyed(log, segment_size=3000, durability="fast")
    pairs = [(f"k{number % 20}", number) for number in range(600)]
    stop, disorder, runs = threading.Event(), [], 0
    threads = [threading.Thread(target=read_all, args=(log, disorder, stop)) for _ in range(2)]
    threads.append(threading.Thread(target=write_all, args=(log, topic, pairs, stop)))
    for thread in threads:
        thread.start()
    while not stop.is_set():
        runs += compacted(log).seen > 0
    for thread in threads:
        thread.join()
    assert (disorder, runs > 0) == ([], True)
    assert table(events(log)) == dict(pairs)
    assert verify(log).ok


def test_a_reader_of_another_process_follows_the_new_files(log, clock):
    topic = keyed(log, segment_size=1)
    send(log, topic, [("ab"[n % 2], n) for n in range(6)])
    with EventLog(log.folder, clock=clock) as other:
        assert len(events(other)) == 6  # few enough that it keeps all files open
        compacted(log)
        assert events(other) == events(log)
        assert len(events(other)) == 3
