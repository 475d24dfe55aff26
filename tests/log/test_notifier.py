"""Wake-ups: an append by any process ends a wait, and nobody polls."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest

from headwater.log import EventLog, FileNotifier
from headwater.log import notifier as notifiers
from headwater.log.notifier import _InotifyHub, _SleepPoller
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


def instances() -> int:
    """Returns the number of inotify instances of this process, as the kernel shows them."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify"
    return found


def test_a_thousand_consumers_share_one_instance(log):
    log.create(declared())
    for number in range(1_000):
        log.groups.members_folder(f"g{number}", "orders").mkdir(parents=True)
    watches = [log.watch("orders", f"g{number}") for number in range(1_000)]
    watches += [log.groups.watch(f"g{number}", "orders") for number in range(1_000)]
    assert instances() == 1
    assert not any(watch.wait(0) for watch in watches)
    (log.groups.members_folder("g7", "orders") / "member").write_bytes(b"")
    assert [at for at, watch in enumerate(watches) if watch.wait(0)] == [7, 1_007]
    for watch in watches:
        watch.close()


def test_a_watch_ends_with_its_last_waiter(tmp_path):
    paths = [tmp_path / str(number) for number in range(3)]
    for path in paths:
        path.write_bytes(b"")
    hub = _InotifyHub.of_process()
    before = len(hub._waiters)
    one, two = FileNotifier(paths), FileNotifier(paths[1:])
    assert len(hub._waiters) == before + 3
    one.close()
    assert len(hub._waiters) == before + 2
    paths[1].write_bytes(b"x")
    assert two.wait(0)
    del two
    assert len(hub._waiters) == before


def test_a_watch_on_a_deleted_file_is_stale_even_if_a_new_file_gets_its_inode(tmp_path, monkeypatch):
    path = tmp_path / "ends"
    path.write_bytes(b"")
    watch = FileNotifier([path])
    assert watch.is_current()
    path.unlink()
    path.write_bytes(b"")
    monkeypatch.setattr(watch, "_inodes", [path.stat().st_ino])
    assert not watch.is_current()
    watch.close()


def test_no_wake_up_is_lost_among_many_threads(tmp_path):
    """Each thread waits for its number in its file and answers; a lost wake-up would end the chain."""
    paths = [tmp_path / str(number) for number in range(12)]
    for path in paths:
        path.write_bytes(b"0")
    turns, done = 60, []

    def follow(number: int) -> None:
        watch, mine = FileNotifier([paths[number]]), 0
        while mine < turns:
            now = int(paths[number].read_bytes() or b"0")
            if now == mine:
                if not watch.wait(60):
                    return
                continue
            mine = now
            with paths[(number + 1) % len(paths)].open("r+b") as following:
                following.write(str(mine + (number + 1 == len(paths))).encode())
        watch.close()
        done.append(number)

    threads = [threading.Thread(target=follow, args=[number]) for number in range(len(paths))]
    for thread in threads:
        thread.start()
    paths[0].write_bytes(b"1")
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(len(paths)))


@pytest.fixture
def no_instances(monkeypatch):
    """A process that gets no inotify instance."""
    hub = object.__new__(_InotifyHub)
    monkeypatch.setattr(_InotifyHub, "_of_process", hub)
    monkeypatch.setattr(notifiers, "_warned", False)
    with monkeypatch.context() as refusing:
        refusing.setattr(notifiers.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(inotify_init1=lambda flags: -1))
        hub.__init__()


@pytest.mark.usefixtures("no_instances")
def test_without_an_instance_files_are_polled_with_a_warning(log, caplog):
    topic = log.create(declared())
    watch, other = log.watch("orders"), FileNotifier([log.folder / "log.json"])
    while watch.wait(1):  # a fresh file counts as changed once more
        pass
    other.wait(0)
    sender = threading.Timer(0.1, log.append, ["orders", rows_of(topic, [{"amount": 1}])])
    sender.start()
    assert watch.wait(60)
    sender.join()
    assert not other.wait(0)
    with pytest.raises(FileNotFoundError):
        FileNotifier([log.folder / "nothing"])


def test_the_limit_of_instances_is_named_once(no_instances, caplog):
    said = [record.getMessage() for record in caplog.get_records("setup")]
    assert [("fs.inotify.max_user_instances" in text) for text in said] == [True]


@pytest.mark.usefixtures("no_instances")
def test_a_polled_path_that_cannot_be_reached_for_a_while_keeps_its_waiters(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"")
    watch = FileNotifier([folder / "file"])
    folder.rename(tmp_path / "aside")
    folder.write_bytes(b"")  # NotADirectoryError
    assert watch.wait(10)
    folder.unlink()
    (tmp_path / "aside").rename(folder)
    assert watch.wait(10)
    watch.close()


def test_the_first_polled_path_is_looked_at_at_once(tmp_path, monkeypatch):
    """The thread may be in a poll that ends only with a change of a file."""
    monkeypatch.setattr(notifiers, "_MAX_WAIT", 100.0)
    hub = _InotifyHub()
    monkeypatch.setattr(_InotifyHub, "_of_process", hub)
    monkeypatch.setattr(hub, "_add_watch", refuse_watch)
    path = tmp_path / "file"
    path.write_bytes(b"")
    watch = FileNotifier([path])
    path.write_bytes(b"x")
    assert watch._source.changed.wait(10)  # not `watch.wait`, which looks by itself
    watch.close()


def refuse_watch(path):
    """No more watches for this user."""
    raise notifiers._NoWatchError


def test_a_forked_child_leaves_its_parents_notifications_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    watch = FileNotifier([path])
    child = os.fork()
    if not child:
        ok = watch.wait(0) and not watch.wait(0)  # unknown at first
        path.write_bytes(b"x")
        os._exit(0 if ok and watch.wait(10) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert watch.wait(10)
    watch.close()


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
