"""Wake-ups: an append by any process ends a wait, and nobody polls."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from headwater.log import EventLog, FileNotifier
from headwater.log.notifier import _SleepPoller
from tests.log.given import amounts, declared, rows_of

APPEND = """
    import sys; from headwater.log import EventLog; from tests.log.given import *
    log = EventLog(sys.argv[1])
    sys.stdin.readline()
    log.append("orders", rows_of(log.topic("orders"), [{"amount": 7}]))
"""


@pytest.fixture
def looks(monkeypatch):
    """A list with one element per look at the log."""
    found = []
    look = EventLog._fetch_available
    monkeypatch.setattr(EventLog, "_fetch_available", lambda *args: found.append(1) or look(*args))
    return found


def test_an_append_by_another_process_ends_the_wait(log, looks):
    log.create(declared())
    command = [sys.executable, "-c", textwrap.dedent(APPEND), log.folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as other:
        threading.Timer(0.3, other.communicate, ["now\n"]).start()
        found = log.fetch("orders", {0: 0}, timeout=60)
        assert [batch.values.column("amount").to_pylist() for batch in found] == [[7]]
    assert len(looks) == 3


def test_waiting_looks_three_times_however_long_it_takes(log, looks):
    """At first, when the watch has begun, and after the wait."""
    log.create(declared())
    assert log.fetch("orders", {0: 0}, timeout=0.3) == []
    assert len(looks) == 3


def test_a_wait_that_finds_something_does_not_wait(log, looks):
    topic = log.create(declared())
    log.append("orders", rows_of(topic, [{"amount": 1}]))
    assert log.fetch("orders", {0: 0}, timeout=60)
    assert len(looks) == 1


def test_a_thread_that_appends_ends_the_wait(log):
    topic = log.create(declared())
    sender = threading.Timer(0.1, log.append, ["orders", rows_of(topic, [{"amount": 1}])])
    sender.start()
    assert log.fetch("orders", {0: 0}, timeout=60)
    sender.join()
    assert amounts(log) == [1]


def test_a_change_between_two_waits_is_not_lost(log):
    topic = log.create(declared())
    watch = log.watch("orders")
    log.append("orders", rows_of(topic, [{"amount": 1}]))
    assert watch.wait(0)
    assert not watch.wait(0)
    watch.close()


def test_many_changes_are_one_wake_up(log):
    topic = log.create(declared(durability="fast"))
    watch = log.watch("orders")
    for number in range(300):
        log.append("orders", rows_of(topic, [{"amount": number}]))
    assert watch.wait(0)
    assert not watch.wait(0)
    watch.close()


def test_another_topic_does_not_wake(log):
    log.create(declared())
    other = log.create(declared("other"))
    watch = log.watch("orders")
    log.append("other", rows_of(other, [{"amount": 1}]))
    assert not watch.wait(0)
    watch.close()


def test_reading_wakes_nobody(log):
    topic = log.create(declared())
    log.append("orders", rows_of(topic, [{"amount": 1}]))
    watch = log.watch("orders")
    assert log.fetch("orders", {0: 0})
    assert log.ends("orders")
    assert not watch.wait(0)
    watch.close()


def test_a_watch_with_a_group_wakes_for_its_members(log):
    log.create(declared())
    log.groups.join("billing", "orders")
    watch = log.watch("orders", "billing")
    log.groups.join("billing", "orders")
    assert watch.wait(10)
    watch.close()


def test_the_descriptor_becomes_readable_on_a_change(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    wakeup = FileNotifier([path])
    waiting = select.poll()
    waiting.register(wakeup.fileno(), select.POLLIN)
    assert waiting.poll(0) == []
    path.write_bytes(b"x")
    assert waiting.poll(10_000) == [(wakeup.fileno(), select.POLLIN)]
    wakeup.close()
    wakeup.close()


def test_a_path_that_is_not_there_cannot_be_watched(tmp_path):
    with pytest.raises(FileNotFoundError):
        FileNotifier([tmp_path / "nothing"])


def test_without_help_of_the_system_a_wait_is_short(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    plain = _SleepPoller()
    assert all(plain.wait(timeout) for timeout in (60, 0.01))
    assert (slept, plain.fileno()) == ([0.05, 0.01], None)
    plain.close()


def test_an_unknown_system_sleeps(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "sunos5")
    wakeup = FileNotifier([tmp_path])
    assert (wakeup.wait(0), wakeup.fileno()) == (True, None)


class _Signalled(Exception):
    pass


def test_a_signal_that_comes_just_before_a_wait_ends_it(tmp_path):
    """Then it does not interrupt the wait itself, as when another thread takes it."""

    def handle(*_: object) -> None:
        raise _Signalled

    before = signal.signal(signal.SIGUSR1, handle)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

    def take() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGUSR1)

    taking = threading.Thread(target=take)
    wakeup = FileNotifier([tmp_path])
    taking.start()
    try:
        begun = time.monotonic()
        with pytest.raises(_Signalled):
            wakeup.wait(20)
        assert time.monotonic() - begun < 15
    finally:
        taking.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGUSR1, before)
        wakeup.close()
