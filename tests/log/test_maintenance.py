"""Maintenance: idle markers, and one failing topic does not stop the others."""

from __future__ import annotations

import errno
import os
import threading
from datetime import timedelta

import pytest

from headwater.errors import DiskFullError, LockedError
from headwater.events import ManualClock, changes
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage import Disk
from headwater.units import micros
from tests.log.given import SECOND, declared, events, reading, rows_of


def filled(log, partitions: int = 1, **options):
    topic = log.create(declared(partitions=partitions, idle="10 seconds", time="at", **options))
    rows = rows_of(topic, [{"id": "a", "at": log.clock.now()}], partition=0)
    log.append("orders", rows)
    return topic


def after(maintenance: Maintenance, clock: ManualClock, log: EventLog, seconds: int) -> list[int]:
    """Returns the seconds at which partition 0 got markers, with maintenance once a second."""
    marked = []
    for second in range(1, seconds + 1):
        clock.advance("1 second")
        before = log.ends("orders")[0].end
        maintenance.run_once()
        if log.ends("orders")[0].end > before:
            marked.append(second)
    return marked


def test_an_idle_partition_gets_markers_at_growing_intervals(log, clock):
    filled(log)
    maintenance = Maintenance(log)
    maintenance.run_once()
    assert after(maintenance, clock, log, 200) == [10, 10 + 20, 10 + 20 + 40, 10 + 20 + 40 + 80]


def test_markers_move_event_time_as_fast_as_the_clock(log, clock):
    filled(log)
    start = log.ends("orders")[0].max_event_time
    maintenance = Maintenance(log)
    maintenance.run_once()
    after(maintenance, clock, log, 70)
    assert log.ends("orders")[0].max_event_time == start + 70 * SECOND


def test_intervals_grow_up_to_an_hour(log, clock):
    filled(log)
    maintenance = Maintenance(log)
    maintenance.run_once()
    hours = []
    for _ in range(14):
        before = log.ends("orders")[0].end
        clock.advance("1 hour")
        maintenance.run_once()
        hours.append(log.ends("orders")[0].end - before)
    assert hours == [1] * 14
    clock.advance("59 minutes")
    end = log.ends("orders")[0].end
    maintenance.run_once()
    assert log.ends("orders")[0].end == end


def test_an_event_starts_the_wait_anew(log, clock):
    topic = filled(log)
    maintenance = Maintenance(log)
    maintenance.run_once()
    assert after(maintenance, clock, log, 9) == []
    log.append("orders", rows_of(topic, [{"id": "b", "at": clock.now()}]))
    maintenance.run_once()
    assert after(maintenance, clock, log, 31) == [10, 30]


def test_a_busy_partition_gets_no_markers(log, clock):
    topic = filled(log)
    maintenance = Maintenance(log)
    for _ in range(30):
        log.append("orders", rows_of(topic, [{"id": "a", "at": clock.now()}]))
        clock.advance("5 seconds")
        maintenance.run_once()
    assert log.ends("orders")[0].end == 31


def test_an_empty_topic_gets_no_markers(log, clock):
    log.create(declared(partitions=2, idle="10 seconds"))
    maintenance = Maintenance(log)
    for _ in range(10):
        maintenance.run_once()
        clock.advance("1 minute")
    assert [part.end for part in log.ends("orders")] == [0, 0]


def test_an_empty_partition_follows_the_others(log, clock):
    filled(log, partitions=3)
    maintenance = Maintenance(log)
    maintenance.run_once()
    clock.advance("10 seconds")
    furthest = log.ends("orders")[0].max_event_time
    maintenance.run_once()
    assert [part.max_event_time for part in log.ends("orders")] == [furthest + 10 * SECOND] * 3


class Jumping(ManualClock):
    """A clock whose wall time can jump while the monotonic time stands still."""

    jump = timedelta()

    def now(self):
        return super().now() + self.jump


@pytest.mark.parametrize("days", [-400, 400])
def test_a_jump_of_the_wall_clock_moves_no_event_time(tmp_path, days):
    clock = Jumping()
    with EventLog(tmp_path, clock=clock) as log:
        filled(log)
        before = log.ends("orders")[0]
        maintenance = Maintenance(log)
        maintenance.run_once()
        clock.jump = timedelta(days=days)
        maintenance.run_once()
        assert log.ends("orders")[0] == before
        clock.advance("10 seconds")
        maintenance.run_once()
        assert log.ends("orders")[0].max_event_time == before.max_event_time + 10 * SECOND


def test_markers_are_no_events_and_make_none_late(log, clock):
    topic = filled(log)
    maintenance = Maintenance(log)
    maintenance.run_once()
    clock.advance("10 seconds")
    maintenance.run_once()
    log.append("orders", rows_of(topic, [{"id": "b", "at": clock.now()}]))
    found = events(log)
    assert [(event.offset, event.late) for event in found] == [(0, False), (2, False)]


def test_settings_changed_by_another_process_are_used(log, clock):
    filled(log)
    maintenance = Maintenance(log)
    maintenance.run_once()
    with EventLog(log.folder, clock=clock) as other:
        other.create(declared(time="at", idle="1 hour"))
    clock.advance("1 second")
    topic = log.open_topic("orders")
    maintenance.run_once()
    assert topic.definition.idle == timedelta(hours=1)


@pytest.mark.parametrize(("error", "logged"), [(DiskFullError("full"), 1), (LockedError("busy"), 0)])
def test_a_fault_of_one_topic_does_not_stop_the_others(log, caplog, error, logged):
    for name in ("a", "b", "c"):
        log.create(declared(name))
    done = []

    def work(topic):
        if topic.definition.name == "b":
            raise error
        done.append(topic.definition.name)

    Maintenance(log).for_each_topic(work)
    assert done == ["a", "c"]
    assert len(caplog.records) == logged


def test_the_threads_work_until_they_are_stopped(log, monkeypatch):
    filled(log)
    maintenance = Maintenance(log)
    worked = threading.Event()
    monkeypatch.setattr(maintenance, "check_idle", worked.set)
    monkeypatch.setattr(maintenance._stopped, "wait", lambda _: maintenance._stopped.is_set())
    maintenance.start()
    assert worked.wait(30)
    maintenance.stop()
    assert [thread.is_alive() for thread in maintenance._threads] == [False, False]


class _FailingFolders(Disk):
    """Every folder fails to be listed, for as long as there are failures left."""

    failures = 0

    def names(self, path):
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().names(path)


def test_the_threads_outlive_a_folder_that_cannot_be_listed(tmp_path, monkeypatch, clock):
    with EventLog(tmp_path, clock=clock, disk=(disk := _FailingFolders())) as log:
        filled(log)
        maintenance = Maintenance(log)
        checked, compacted = threading.Event(), threading.Event()
        monkeypatch.setattr(maintenance, "_due_markers", lambda _: checked.set() or [])
        monkeypatch.setattr(maintenance, "compact", lambda _: compacted.set())
        monkeypatch.setattr(maintenance._stopped, "wait", lambda _: maintenance._stopped.is_set())
        disk.failures = 6
        maintenance.start()
        assert checked.wait(5)
        assert compacted.wait(5)
        maintenance.stop()


def test_a_stop_before_the_start_ends_the_threads_at_once(log):
    maintenance = Maintenance(log)
    maintenance.stop()
    maintenance.start()
    maintenance.stop()
    assert [thread.is_alive() for thread in maintenance._threads] == [False, False]


@pytest.mark.parametrize(("pause", "silent"), [(5, 12), (6, 0)])
def test_a_process_that_was_stopped_counts_silence_anew(log, clock, pause, silent):
    filled(log)  # idle after ten seconds
    start = log.ends("orders")[0].max_event_time
    maintenance = Maintenance(log)
    for seconds in (1, 1, 5, pause):
        clock.advance(f"{seconds} seconds")
        maintenance.check_idle()
    passed = (12 if pause == 5 else 13) - 1  # the first check saw the event after one second
    assert log.ends("orders")[0].max_event_time == start + (passed if silent else 0) * SECOND


class StoppableClock(ManualClock):
    """A clock whose process is stopped for some seconds, just before it measures the silence."""

    pause = 0

    def monotonic(self) -> float:
        seconds, self.pause = self.pause, 0
        self.advance(f"{seconds} seconds")
        return super().monotonic()


@pytest.mark.parametrize(("pause", "silent"), [(4, 8), (20, 0)])
def test_a_process_that_was_stopped_within_a_check_counts_silence_anew(tmp_path, pause, silent):
    clock = StoppableClock()
    with EventLog(tmp_path, clock=clock) as log:
        topic = log.create(declared(time="at", lateness="10 seconds", idle="5 seconds"))
        start = clock.now()
        log.append("orders", rows_of(topic, [{"id": "a", "at": start}]))
        maintenance = Maintenance(log)
        for pause_of_check in (0, 0, 0, 0, pause):
            clock.pause = pause_of_check
            maintenance.check_idle()
            clock.advance("1 second")
        assert log.ends("orders")[0].max_event_time == micros(start) + silent * SECOND
        log.append("orders", rows_of(topic, [{"id": "a", "at": start + timedelta(seconds=5)}]))
        assert not events(log)[-1].late


def test_an_idle_table_is_known_up_to_the_present(log, clock):
    prices = log.create(declared("prices", "id int, since timestamp", key="id", time="since", compact=True))
    log.create(declared("never", "id int", key="id", compact=True))
    long_ago = clock.now() - timedelta(days=2000)
    log.append("prices", rows_of(prices, [{"id": 1, "since": long_ago}], partition=0))
    orders, maintenance = filled(log), Maintenance(log)
    reading(log, "priced", "orders", "prices", "never")
    for _ in range(4):  # steadily, not at growing intervals, as long as events come
        maintenance.run_once()
        clock.advance("31 seconds")
        log.append("orders", rows_of(orders, [{"id": "a", "at": clock.now()}], partition=0))
    maintenance.run_once()
    assert [log.ends(topic)[0].max_event_time for topic in ("prices", "never")] == [clock.micros()] * 2


def test_an_idle_topic_of_changes_is_known_up_to_the_present(log, clock):
    raw = log.create(declared("raw", changes("id int"), time="at"))
    log.append("raw", rows_of(raw, [{"op": "insert", "after": {"id": 1}, "at": clock.now()}], partition=0))
    maintenance = Maintenance(log)
    maintenance.run_once()
    clock.advance("31 seconds")
    maintenance.run_once()
    assert log.ends("raw")[0].max_event_time == clock.micros()


def markers(maintenance: Maintenance, clock: ManualClock, log: EventLog, minutes: int, each=lambda minute: None) -> int:
    """How many markers the table gets, with maintenance every five seconds."""
    before = log.ends("prices")[0].end
    for second in range(0, minutes * 60, 5):
        clock.advance("5 seconds")
        if second % 60 == 0:
            each(second // 60)
        maintenance.run_once()
    return log.ends("prices")[0].end - before


def test_a_table_for_which_nobody_waits_costs_nothing(log, clock):
    log.create(declared("prices", "id int, since timestamp", key="id", time="since", compact=True))
    topic = filled(log)
    reading(log, "priced", "orders", "prices")
    maintenance = Maintenance(log)
    maintenance.run_once()
    assert markers(maintenance, clock, log, 12 * 60) < 40  # 1,440 of 30 seconds each

    def event(minute: int) -> None:
        if minute < 5:
            log.append("orders", rows_of(topic, [{"id": "a", "at": clock.now()}], partition=0))

    moving = markers(maintenance, clock, log, 5, event)
    assert moving >= 8
    event(0)
    newest = log.ends("orders")[0].max_event_time
    for _ in range(9):  # the idle time, and the table's lateness of ten seconds behind it
        clock.advance("5 seconds")
        maintenance.run_once()
    assert log.ends("prices")[0].max_event_time >= newest + 10 * SECOND
