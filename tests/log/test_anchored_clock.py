"""The clock of a log folder: a jump of the wall clock removes nothing and makes nothing late."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headwater.log import EventLog, Retention
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage import AnchoredClock, Disk
from tests.log.given import MINUTE, SECOND, amounts, declared, events, rows_of

HOUR = 60 * MINUTE
DAY = 24 * HOUR
START = 1_767_225_600 * SECOND


class Machine:
    """A machine whose clocks a test sets."""

    def __init__(self) -> None:
        self.jump, self.passed, self.boot, self.started = 0, 0, 7, -1_000 * SECOND

    def advance(self, micros: int) -> None:
        self.passed += micros

    def restart(self) -> None:
        self.boot, self.started = self.boot + 1, self.passed

    def wall(self) -> int:
        return START + self.passed + self.jump

    def boottime(self) -> int:
        return self.passed - self.started

    def boot_id(self) -> int:
        return self.boot


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def open_clock(machine: Machine, tmp_path: Path) -> Callable[[], AnchoredClock]:
    """Opens the clock of one folder, as several processes do."""
    return lambda: AnchoredClock(Disk(), tmp_path / "clock.json", machine)


@pytest.fixture
def timed_log(open_clock: Callable[[], AnchoredClock], tmp_path: Path) -> Iterator[EventLog]:
    with EventLog(tmp_path, clock=open_clock()) as log:
        yield log


@pytest.mark.parametrize("jump", [-400 * DAY, -HOUR, HOUR, 400 * DAY])
def test_a_jump_of_the_wall_clock_changes_nothing(open_clock, machine, jump):
    clock = open_clock()
    assert clock.micros() == START
    machine.jump = jump
    machine.advance(10 * MINUTE)
    assert [clock.micros(), open_clock().micros()] == [START + 10 * MINUTE] * 2
    clock.renew()
    machine.advance(10 * MINUTE)
    assert [clock.micros(), open_clock().micros()] == [START + 20 * MINUTE] * 2
    assert clock.jump == timedelta(microseconds=jump)
    machine.jump = 0
    assert clock.jump == timedelta(0)


@pytest.mark.parametrize("jump", [-20 * SECOND, 20 * SECOND])
def test_a_small_correction_is_followed_without_a_jump(open_clock, machine, jump):
    clock = open_clock()
    times = [clock.micros()]
    machine.jump = jump
    for _ in range(10 * 60):
        if machine.passed % MINUTE == 0:
            clock.renew()
        machine.advance(SECOND)
        times.append(clock.micros())
    assert times[-1] == machine.wall()
    steps = [after - before for before, after in itertools.pairwise(times)]
    assert 0.9 * SECOND < min(steps) <= max(steps) < 1.1 * SECOND


def test_after_a_restart_of_the_machine_the_wall_clock_counts(open_clock, machine):
    first = open_clock()
    assert first.micros() == START
    machine.jump = 400 * DAY
    machine.advance(2 * HOUR)
    assert first.unsettled_for == timedelta(0)
    machine.restart()
    clock = open_clock()
    assert clock.micros() == machine.wall()
    assert clock.unsettled_for == timedelta(hours=1)


def test_a_damaged_anchor_is_replaced(open_clock, tmp_path, machine):
    (tmp_path / "clock.json").write_bytes(b"{")
    assert open_clock().micros() == START
    machine.jump = DAY
    assert open_clock().micros() == START


def test_a_folder_that_cannot_be_written_has_the_wall_clock(machine):
    clock = AnchoredClock(Disk(), Path("/proc/clock.json"), machine)
    machine.jump = DAY
    assert clock.micros() == machine.wall()


def filled(log: EventLog, machine: Machine) -> None:
    """Two closed segments of a topic that keeps a week, both a few hours old."""
    topic = log.create(declared(retention=Retention.of("7 days"), segment_size=1))
    for number in range(3):
        log.append("orders", rows_of(topic, [{"id": "a", "amount": number}]))
        machine.advance(HOUR)


def retain(log: EventLog) -> int:
    Maintenance(log).apply_retention(log.open_topic("orders"))
    return log.ends("orders")[0].start


def test_a_jump_of_the_wall_clock_removes_no_event(timed_log, machine):
    filled(timed_log, machine)
    machine.jump = 400 * DAY
    assert retain(timed_log) == 0
    assert amounts(timed_log) == [0, 1, 2]


def test_retention_continues_when_the_clocks_agree_again(timed_log, machine):
    filled(timed_log, machine)
    machine.advance(8 * DAY)
    machine.jump = 400 * DAY
    assert retain(timed_log) == 0
    machine.jump = 0
    assert retain(timed_log) == 3


def test_retention_continues_when_the_jump_is_accepted(timed_log, machine):
    filled(timed_log, machine)
    machine.jump = 400 * DAY
    timed_log.clock.renew(accept_wall=True)
    assert retain(timed_log) == 3


def test_retention_waits_an_hour_after_a_restart(timed_log, machine, open_clock):
    filled(timed_log, machine)
    machine.advance(8 * DAY)
    timed_log.close()
    machine.restart()
    with EventLog(timed_log.folder, clock=open_clock()) as log:
        assert retain(log) == 0
        machine.advance(HOUR)
        assert retain(log) == 3


def test_a_jump_of_the_wall_clock_makes_no_event_late(timed_log, machine):
    topic = timed_log.create(declared())  # event time is arrival
    for jump in (0, 400 * DAY, 0):
        machine.jump = jump
        machine.advance(2 * SECOND)
        timed_log.append("orders", rows_of(topic, [{"id": "a"}]))
    assert [event.late for event in events(timed_log)] == [False] * 3


def test_a_waiting_retention_is_logged_once(timed_log, machine, caplog):
    timed_log.create(declared("all"))  # without a retention, there is nothing to wait for
    timed_log.create(declared(retention=Retention.of("7 days")))
    maintenance = Maintenance(timed_log)
    logged = []
    for passed, jump in ((0, 0), (MINUTE, 0), (HOUR, 0), (MINUTE, 0), (MINUTE, DAY), (MINUTE, DAY), (MINUTE, 0)):
        machine.advance(passed)
        machine.jump = jump
        maintenance.renew_clock()
        maintenance.for_each_topic(maintenance.apply_retention)
        logged.append(len(caplog.records))
    assert logged == [1, 1, 2, 2, 3, 3, 4]
