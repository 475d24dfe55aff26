"""F08: kill -9 during a roll, retention, compaction or deletion leaves what was there or what should be."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from headwater.errors import UnknownTopicError
from headwater.log import EventLog, Retention, WriteBatch
from headwater.log.maintenance import verify
from headwater.log.maintenance.maintenance import Maintenance
from tests.faults.checker import Found
from tests.faults.counts import times
from tests.faults.faulty_disk import KillingDisk
from tests.faults.processes import declared, fork, numbered_rows, read_all, wait_for
from tests.faults.tracing import run_traced
from tests.programs import require_program

EVENTS = 60


def prepared(folder: Path, **options: object) -> list[Found]:
    """Create a log of several segments, with an idempotent producer among the senders."""
    with EventLog(folder) as log:
        log.create(declared(segment_size=1_800, **options))
        for first in range(0, EVENTS, 3):
            rows = numbered_rows("a" if first % 2 else "b", first, 3, keys=5)
            log.append("t", rows if first % 2 else WriteBatch(rows.values, 1, {}, 0, "b", first))
            if first == 30 and options.get("compact"):
                compact(log)  # small segments are merged with their neighbours by the next run
        return read_all(log)


def roll(log: EventLog) -> None:
    partition = log.open_topic("t").partitions[0]
    for _ in range(2):
        with partition.lock() as slot:
            partition.roll(slot)
        log.append("t", numbered_rows("later", 0, 1))


def retain(log: EventLog) -> None:
    Maintenance(log).apply_retention(log.open_topic("t"))


def compact(log: EventLog) -> None:
    Maintenance(log).compact(log.open_topic("t"), eager=True)


WORK: dict[str, tuple[Callable[[EventLog], None], dict[str, object]]] = {
    "roll": (roll, {}),
    "retention": (retain, {"retention": Retention(size=3_000)}),
    "compaction": (compact, {"key": "key", "compact": True}),
}


def check_left(folder: Path, work: str, before: list[Found]) -> None:
    """Check that the segments are the old or the new ones, and that the work can be repeated."""
    with EventLog(folder) as log:
        after = [found for found in read_all(log) if found.event.producer != "later"]
        assert set(after) <= set(before), "something that was not there"
        assert [found.offset for found in after] == sorted(found.offset for found in after)
        if work == "roll":
            assert after == before
        elif work == "retention":
            assert after == before[-len(after) :], "a gap, or the wrong end was removed"
            assert log.ends("t")[0].start == after[0].offset
        else:
            assert last_of(after) == last_of(before), "the last value of a key is gone"
        assert log.last_sequences("t", "b") == [EVENTS - 4]
        assert verify(log).ok
        WORK[work][0](log)
        again = read_all(log)
        if work == "compaction":
            assert last_of(again) == last_of(before)
        assert log.append("t", numbered_rows("new", 0, 1)).offsets[0] == log.ends("t")[0].end - 1


def last_of(found: list[Found]) -> dict[str | None, Found]:
    return {event.key: event for event in found}


def work_on(folder: Path, work: str, disk: KillingDisk | None) -> None:
    log = EventLog(folder, disk=disk)
    log.ends("t")
    WORK[work][0](log)


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_every_call_leaves_old_or_new_segments(memory_path, work, after):
    before = prepared(memory_path / "template", **WORK[work][1])
    for nth in range(1, 500):
        folder = memory_path / str(nth)
        shutil.copytree(memory_path / "template", folder)
        ended = wait_for(fork(partial(work_on, folder, work, KillingDisk("any", nth, after=after))))
        check_left(folder, work, before)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert nth > 10, "the work makes more calls than that"


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("call", ["rename", "unlink", "fsync"])
def test_kill_at_every_rename_and_unlink_leaves_old_or_new_segments(memory_path, work, call):
    strace = require_program("strace")
    before = prepared(memory_path / "template", **WORK[work][1])
    kills = 0
    for nth in range(1, times(30, 500)):
        folder = memory_path / str(nth)
        shutil.copytree(memory_path / "template", folder)
        ended = run_traced(partial(work_on, folder, work, None), strace, f"{call}:signal=KILL:when={nth}")
        check_left(folder, work, before)
        if ended == 0:
            break
        kills += 1
    assert kills or (call == "unlink" and work == "roll") or (call == "rename" and work == "retention")


def test_compaction_keeps_the_last_value_of_each_key_in_order(memory_path):
    before = prepared(memory_path, key="key", compact=True)
    with EventLog(memory_path) as log:
        active = log.open_topic("t").partitions[0].state().segment
        compact(log)
        after = read_all(log)
    closed = [found for found in after if found.offset < active]
    assert len(closed) == len({found.key for found in closed}) == 5
    assert after == [found for found in before if found in after]
    assert last_of(after) == last_of(before)


def delete_topic(folder: Path, disk: KillingDisk | None) -> None:
    log = EventLog(folder, disk=disk)
    log.ends("t")
    log.delete("t")


@pytest.mark.parametrize(("durability", "after"), [("fast", False), ("fast", True), ("memory", False)])
def test_kill_at_every_call_of_a_deletion_leaves_the_topic_or_none(memory_path, after, durability):
    before = prepared(memory_path / "template", durability="fast")
    with EventLog(memory_path / "template") as log:
        log.groups.reset("billing", "t", {0: EVENTS})
    for nth in range(1, 500):
        folder = memory_path / str(nth)
        if durability == "fast":
            shutil.copytree(memory_path / "template", folder)
        else:  # events in memory belong to one folder
            before = prepared(folder, durability=durability)
        with EventLog(folder) as log:
            # A process that has the topic open, as it is when another one deletes it and is killed.
            log.ends("t")
            ended = wait_for(fork(partial(delete_topic, folder, KillingDisk("any", nth, after=after))))
            check_deletion(folder, log, before, durability)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert nth > 10, "a deletion makes more calls than that"


def check_deletion(folder: Path, opened: EventLog, before: list[Found], durability: str) -> None:
    """Check that the topic is whole or gone, and that a deletion ends and a later topic begins empty."""
    with EventLog(folder) as log:
        if "t" in log.topics():
            whole = read_all(log) == before
            assert whole or durability == "memory", "a part of the topic is gone"
            opened.append("t", numbered_rows("new", 0, 1)) if whole else None
            log.delete("t")
        with pytest.raises(UnknownTopicError):
            opened.append("t", numbered_rows("new", 0, 1))
        assert [state for state in log.groups.states() if state.topic in log.topics()] == []
        log.create(declared(durability=durability))
        assert log.groups.states() == []
        assert read_all(log) == []
        log.remove_leftovers()
        assert list((folder / "deleted").iterdir()) == []
