"""F01: kill -9 at every call of an append, at every system call, and at random instants."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from headwater.log import EventLog, WriteBatch
from tests.faults.checker import Found, Journal, check
from tests.faults.counts import times
from tests.faults.faulty_disk import KillingDisk
from tests.faults.processes import append_for_ever, declared, fork, kill, names, numbered_rows, read_all, wait_for
from tests.faults.tracing import run_traced
from tests.programs import require_program

BATCHES = ((0, 3), (3, 2), (5, 4))


def idempotent(first: int, rows: int) -> WriteBatch:
    plain = numbered_rows("once", first, rows)
    return WriteBatch(plain.values, 1, {}, 0, "once", first)


def program(folder: Path, disk: KillingDisk | None = None) -> None:
    """Create a log, append with and without a producer id across three segments, and journal every receipt."""
    book = Journal(folder / "journal")
    log = EventLog(folder / "log", disk=disk)
    log.create(declared(segment_size=900))
    for first, rows in BATCHES:
        book.sent([*names("plain", first, rows), *names("once", first, rows)])
        log.append("t", numbered_rows("plain", first, rows))
        book.acknowledged(names("plain", first, rows))
        for _ in range(2):  # the second send is recognised as a repeat
            log.append("t", idempotent(first, rows))
            book.acknowledged(names("once", first, rows))
    log.close()


def check_what_is_left(folder: Path) -> int:
    """Check that every acknowledged event is there once and no batch is partial; retries then change nothing."""
    sent, acknowledged = Journal(folder / "journal").read()
    log = EventLog(folder / "log")
    log.create(declared(segment_size=900))
    before = read_all(log)
    verdict = check(sent, acknowledged, before)
    assert verdict.sound, verdict
    _whole_batches_only(before)
    for first, rows in BATCHES:
        log.append("t", idempotent(first, rows))
    once = [found.event.seq for found in read_all(log) if found.event.producer == "once"]
    assert once == list(range(9))
    log.close()
    return len(before)


def _whole_batches_only(found: list[Found]) -> None:
    for producer in ("plain", "once"):
        numbers = {event.event.seq for event in found if event.event.producer == producer}
        for first, rows in BATCHES:
            part = numbers & set(range(first, first + rows))
            assert len(part) in (0, rows), f"a part of a batch: {part}"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_every_call_of_the_disk_loses_nothing_acknowledged(memory_path, after):
    for nth in range(1, 1_000):
        folder = memory_path / str(nth)
        folder.mkdir()
        disk = KillingDisk("any", nth, after=after)
        ended = wait_for(fork(partial(program, folder, disk)))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        check_what_is_left(folder)
    assert nth > 40, "the program makes more calls than that"
    assert check_what_is_left(folder) == 18


SYSTEM_CALLS = ("pwrite64", "fdatasync", "fsync", "rename", "ftruncate", "openat", "unlink", "mkdir")


@pytest.mark.parametrize("call", SYSTEM_CALLS)
def test_kill_at_every_system_call_loses_nothing_acknowledged(memory_path, call):
    strace = require_program("strace")
    kills = 0
    for nth in range(1, 1_000):
        folder = memory_path / str(nth)
        folder.mkdir()
        ended = run_traced(partial(program, folder), strace, f"{call}:signal=KILL:when={nth}")
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        kills += 1
        check_what_is_left(folder)
    assert kills or call == "unlink", f"the program never calls {call}"


def test_kill_at_random_instants_loses_nothing_acknowledged(tmp_path):
    """Two writers share the log; every few milliseconds one of them is killed and another takes its place."""
    chance = random.Random(1)
    log = EventLog(tmp_path / "log")
    log.create(declared(segment_size="2 MB", partitions=1))
    kills = times(500, 5_000)
    journal = tmp_path / "journal"
    seen: list[Found] = []

    begun, told = os.pipe()

    def start(number: int) -> int:
        return fork(lambda: append_for_ever(tmp_path / "log", journal, f"p{number}", rows=25, told=told))

    children = [start(0), start(1)]
    for number in range(kills):
        if number % 5:  # one in five dies while it opens the log
            os.read(begun, 1)
        time.sleep(chance.uniform(0, 0.006))
        kill(children.pop(chance.randrange(2)))
        children.append(start(number + 2))
        if number % (kills // 4) == kills // 8:
            seen = read_all(log)
    for child in children:
        kill(child)
    verdict = check(*Journal(journal).read(), read_all(log), seen)
    assert verdict.sound, verdict
    assert verdict.events > kills * 20
    print(f"{kills} kills, {verdict.events} events")  # noqa: T201
