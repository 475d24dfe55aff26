"""F10: several processes share a log; a dead one's locks are released, and some roles are exclusive."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

import headwater as hw
from headwater.errors import LockedError
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage.disk import Disk
from tests.faults.checker import Journal, check
from tests.faults.counts import times
from tests.faults.processes import declared, fork, kill, names, numbered_rows, read_all, until, wait_for
from tests.faults.test_kill_in_maintenance import compact, prepared


def append_some(folder: Path, producer: str, batches: int, disk: Disk | None = None) -> None:
    log, book = EventLog(folder / "log", disk=disk), Journal(folder / "journal")
    for first in range(0, batches * 3, 3):
        book.sent(names(producer, first, 3))
        log.append("t", numbered_rows(producer, first, 3))
        book.acknowledged(names(producer, first, 3))
    log.close()


def test_processes_take_turns_and_nothing_is_lost(tmp_path):
    with EventLog(tmp_path / "log") as log:
        log.create(declared(segment_size=20_000, partitions=2, key="key"))
        batches = times(120, 2_000)
        children = [fork(partial(append_some, tmp_path, name, batches)) for name in "abc"]
        seen = []
        while any(map(_runs, children)):
            seen = read_all(log)  # reading goes on meanwhile
        assert [wait_for(child) for child in children] == [0, 0, 0]
        verdict = check(*Journal(tmp_path / "journal").read(), read_all(log), seen)
        assert verdict.sound, verdict
        assert verdict.events == 3 * batches * 3
        counts = log.counts("t")
        assert counts["offered"] == counts["appended"] == verdict.events


def _runs(child: int) -> bool:
    return _state(child) != "Z"


def _state(child: int) -> str:
    return Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]


def hold_the_lock(folder: Path, told: int) -> None:
    partition = EventLog(folder).open_topic("t").partitions[0]
    with partition.lock():
        os.write(told, b".")
        time.sleep(60)


def test_the_lock_of_a_dead_process_is_free_at_once(tmp_path):
    log = EventLog(tmp_path)
    log.create(declared())
    begun, told = os.pipe()
    child = fork(partial(hold_the_lock, tmp_path, told))
    os.read(begun, 1)
    assert not _lock_is_free(tmp_path)
    kill(child)
    assert log.append("t", numbered_rows("a", 0, 1)).offsets.tolist() == [0]


def _lock_is_free(folder: Path) -> bool:
    handle = Disk().open(folder / "topics" / "t" / "0" / "lock")
    try:
        return Disk().lock(handle, wait=False)
    finally:
        Disk().close(handle)


def test_a_reader_does_not_wait_for_a_writer_that_is_stopped(tmp_path):
    log = EventLog(tmp_path)
    log.create(declared())
    log.append("t", numbered_rows("a", 0, 5))
    begun, told = os.pipe()
    child = fork(partial(hold_the_lock, tmp_path, told))
    os.read(begun, 1)
    os.kill(child, signal.SIGSTOP)
    assert len(read_all(EventLog(tmp_path))) == 5
    kill(child)


class StoppingDisk(Disk):
    """Stops its own process before a sync: during compaction, when the new file is not yet renamed."""

    def __init__(self, told: int, *, nth: int = 1) -> None:
        self.told = told
        self.left = nth

    def sync(self, handle: int) -> None:
        self.left -= 1
        if not self.left:
            os.write(self.told, b".")
            os.kill(os.getpid(), signal.SIGSTOP)
        super().sync(handle)


@pytest.mark.parametrize("nth", [1, 4, 9])
@pytest.mark.parametrize("ends_by", [signal.SIGCONT, signal.SIGKILL], ids=["continued", "killed"])
def test_others_append_after_a_writer_that_was_stopped_with_the_lock(tmp_path, nth: int, ends_by: signal.Signals):
    """It wakes up in the middle of its append, or never."""
    with EventLog(tmp_path / "log") as log:
        log.create(declared(segment_size=600))
        begun, told = os.pipe()
        child = fork(partial(append_some, tmp_path, "stopped", 10, StoppingDisk(told, nth=nth)))
        os.read(begun, 1)
        until(lambda: _state(child) == "T")
        assert not _lock_is_free(tmp_path / "log")
        other = fork(partial(append_some, tmp_path, "other", 10))
        os.kill(child, ends_by)
        assert (wait_for(child), wait_for(other)) == (0 if ends_by is signal.SIGCONT else -ends_by, 0)
        found = read_all(log)
        verdict = check(*Journal(tmp_path / "journal").read(), found)
        assert verdict.sound, verdict
        assert sum(event.event.producer == "other" for event in found) == 30


def test_a_second_compactor_is_told_who_the_first_is(tmp_path):
    prepared(tmp_path, key="key", compact=True)
    begun, told = os.pipe()
    child = fork(lambda: compact(EventLog(tmp_path, disk=StoppingDisk(told))))
    os.read(begun, 1)
    with EventLog(tmp_path) as log:
        with pytest.raises(LockedError) as locked:
            compact(log)
        assert (locked.value.code, locked.value.status) == ("LOCKED_BY", 423)
        assert int(locked.value.data["pid"]) == child
        Maintenance(log).run_once()  # the maintenance thread leaves it to the other process
        kill(child)
        compact(log)


def test_a_forked_child_does_not_share_its_parents_locks(tmp_path):
    client = hw.connect(tmp_path)
    client.create_topic("t", "who string, n int", durability="fast")
    client.send("t", {"who": "parent", "n": -1})

    def send(who: str) -> None:
        for number in range(200):
            client.send("t", {"who": who, "n": number})

    children = [fork(partial(send, f"child {number}")) for number in range(2)]
    send("parent")
    assert [wait_for(child) for child in children] == [0, 0]
    events = [(event.value["who"], event.value["n"]) for event in client.read("t")]
    assert len(events) == len(set(events)) == 601


def test_a_member_of_a_group_dies_with_its_process_even_if_that_has_children(tmp_path):
    """The child of a consumer inherits its open files, and must not keep its membership alive."""
    client = hw.connect(tmp_path)
    client.create_topic("t", "n int")
    begun, told = os.pipe()

    def consume_and_fork() -> None:
        consumer = hw.connect(tmp_path).consumer("t", group="g")
        assert consumer.assignment == (0,)
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(20)
            os._exit(0)
        os.write(told, str(grandchild).encode())
        time.sleep(20)

    child = fork(consume_and_fork)
    grandchild = int(os.read(begun, 20))
    kill(child)
    with client.consumer("t", group="g") as consumer:
        assert consumer.assignment == (0,)
    os.kill(grandchild, signal.SIGKILL)
