"""The append buffer: which entries are admitted, dropped or made to wait, and that each is counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from headwater.errors import DiskFullError, OverloadedError, UsageError
from headwater.log import Overload, backpressure, buffer, drop
from headwater.log.topic import WhenFull
from headwater.log.write.append_buffer import AppendBuffer, PendingAppend


class Gate:
    """A commit that blocks until it is opened, so that a test can fill the buffer meanwhile."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.groups: list[list[Any]] = []

    def __call__(self, entries: list[PendingAppend]) -> None:
        self.entered.release()
        assert self.open.wait(10)
        self.groups.append([entry.content for entry in entries])
        for entry in entries:
            entry.outcome = entry.content


class Crowd:
    """Threads that send, and the outcome of each."""

    def __init__(self, append_buffer: AppendBuffer) -> None:
        self.buffer = append_buffer
        self.threads: list[threading.Thread] = []
        self.results: dict[Any, PendingAppend | BaseException] = {}

    def send(self, content: Any, rows: int = 1) -> None:
        """Send from a thread of its own; returns when the entry waits, is dropped or is refused."""
        entry = PendingAppend(content, rows)
        thread = threading.Thread(target=self._send, args=(entry,))
        thread.start()
        self.threads.append(thread)
        blocked = (
            self.buffer.overload.when_full is WhenFull.WAIT and self.buffer.waiting_rows >= self.buffer.overload.events
        )
        while thread.is_alive() and not blocked and entry not in self.buffer._queue:
            thread.join(0.001)

    def _send(self, entry: PendingAppend) -> None:
        try:
            self.results[entry.content] = self.buffer.append(entry)
        except BaseException as error:
            self.results[entry.content] = error

    def join(self) -> dict[Any, PendingAppend | BaseException]:
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive(), "a sender waits for ever"
        return self.results


def filled(policy: Overload, contents: range) -> tuple[dict[Any, Any], Counter[str], Gate]:
    """Send one event that blocks in the commit, then these; returns all outcomes and the counts."""
    gate, counts = Gate(), Counter[str]()
    append_buffer = AppendBuffer(gate, policy, counts.update)
    crowd = Crowd(append_buffer)
    crowd.threads.append(threading.Thread(target=crowd._send, args=(PendingAppend("first", 1),)))
    crowd.threads[0].start()
    gate.entered.acquire()
    for content in contents:
        crowd.send(content)
    gate.open.set()
    return crowd.join(), counts, gate


def test_appends_what_gathered_while_the_disk_worked_as_one_group():
    _, _, gate = filled(backpressure(events=100), range(20))
    assert gate.groups[0] == ["first"]
    assert gate.groups[1] == list(range(20))


def test_drops_the_newest_when_the_buffer_is_full():
    results, counts, gate = filled(drop("newest", events=3), range(8))
    assert gate.groups[1] == [0, 1, 2]
    assert [content for content, entry in results.items() if entry.dropped] == [3, 4, 5, 6, 7]
    assert counts == {"drop newest": 5, "offered": 5}


def test_drops_the_oldest_when_the_buffer_is_full():
    results, counts, gate = filled(drop("oldest", events=3), range(8))
    assert gate.groups[1] == [5, 6, 7]
    assert sorted(content for content, entry in results.items() if entry.dropped) == [0, 1, 2, 3, 4]
    assert counts == {"drop oldest": 5, "offered": 5}


def test_takes_one_in_so_many_from_half_full_on():
    _, counts, gate = filled(drop("sampled", events=8, one_in=3), range(16))
    # Four fill one half; of the twelve that follow every third is taken.
    assert gate.groups[1] == [0, 1, 2, 3, 6, 9, 12, 15]
    assert counts == {"drop sampled": 8, "offered": 8}


def test_sampling_drops_all_once_the_buffer_is_quite_full():
    _, counts, gate = filled(drop("sampled", events=4, one_in=1), range(10))
    assert gate.groups[1] == [0, 1, 2, 3]
    assert counts["drop sampled"] == 6


def test_buffer_goes_on_with_its_second_choice():
    _, counts, gate = filled(buffer(2, then=drop("newest")), range(5))
    assert gate.groups[1] == [0, 1]
    assert counts["drop newest"] == 3


def test_a_buffer_without_second_choice_makes_senders_wait():
    results, counts, gate = filled(buffer(2), range(5))
    assert sum(map(len, gate.groups)) == 6
    assert not counts
    assert all(entry.done and not entry.dropped for entry in results.values())


def test_backpressure_refuses_after_its_timeout():
    gate, counts = Gate(), Counter[str]()
    append_buffer = AppendBuffer(gate, backpressure(timedelta(milliseconds=20), events=2), counts.update)
    crowd = Crowd(append_buffer)
    crowd.threads.append(threading.Thread(target=crowd._send, args=(PendingAppend("first", 1),)))
    crowd.threads[0].start()
    gate.entered.acquire()
    crowd.send("second", rows=2)
    with pytest.raises(OverloadedError) as refused:
        append_buffer.append(PendingAppend("third", 1))
    assert refused.value.data == {"waiting": 2, "limit": 2}
    assert counts == {"refused": 1, "offered": 1}
    gate.open.set()
    assert all(isinstance(entry, PendingAppend) and entry.done for entry in crowd.join().values())


def test_one_entry_larger_than_the_buffer_is_taken_alone():
    results, _, _ = filled(drop("newest", events=2), range(0))
    append_buffer = AppendBuffer(_succeed, drop("newest", events=2), lambda _: None)
    assert append_buffer.append(PendingAppend("large", row_count=10)).outcome == "large"
    assert results["first"].done


def _succeed(entries: list[PendingAppend]) -> None:
    for entry in entries:
        entry.outcome = entry.content


def test_everyone_in_a_failed_group_is_told():
    def fail(entries: list[PendingAppend]) -> None:
        raise DiskFullError("no space left")

    append_buffer = AppendBuffer(fail, Overload(), lambda _: None)
    with pytest.raises(DiskFullError):
        append_buffer.append(PendingAppend("a", 1))
    entry = append_buffer.begin_append(PendingAppend("b", 1))
    with pytest.raises(DiskFullError):
        append_buffer.await_append(entry)
    append_buffer.close()


def test_put_comes_back_before_the_append():
    gate = Gate()
    append_buffer = AppendBuffer(gate, Overload(), lambda _: None)
    entries = [append_buffer.begin_append(PendingAppend(number, 1)) for number in range(50)]
    gate.open.set()
    for entry in entries:
        append_buffer.await_append(entry)
    assert [content for group in gate.groups for content in group] == list(range(50))
    append_buffer.close()


def test_close_appends_what_still_waits():
    gate = Gate()
    append_buffer = AppendBuffer(gate, Overload(), lambda _: None)
    append_buffer.begin_append(PendingAppend("a", 1))
    append_buffer.begin_append(PendingAppend("b", 1))
    threading.Timer(0.05, gate.open.set).start()
    append_buffer.close()
    assert sorted(content for group in gate.groups for content in group) == ["a", "b"]


def test_a_closed_buffer_admits_nothing_more():
    append_buffer = AppendBuffer(_succeed, Overload(), lambda _: None)
    append_buffer.close()
    with pytest.raises(UsageError):
        append_buffer.begin_append(PendingAppend("late", 1))


def test_a_sender_that_waited_for_space_is_refused_once_the_buffer_is_closed(monkeypatch):
    append_buffer = AppendBuffer(_succeed, backpressure(events=1), lambda _: None)
    append_buffer.waiting_rows = 1
    monkeypatch.setattr(append_buffer, "_wait_for_space", lambda entry: append_buffer.close())
    with pytest.raises(UsageError):
        append_buffer.append(PendingAppend("late", 1))


class Interposed(AppendBuffer):
    """A buffer that calls a function right after it admitted an entry."""

    def __init__(self, policy: Overload, happens: Callable[[AppendBuffer], None]) -> None:
        super().__init__(_succeed, policy, lambda _: None)
        self.happens: Callable[[AppendBuffer], None] | None = happens

    def _enqueue(self, entry: PendingAppend) -> bool | None:
        lead = super()._enqueue(entry)
        happens, self.happens = self.happens, None
        if happens:
            happens(self)
        return lead


def test_a_leader_that_is_dropped_before_it_leads_still_leads():
    others: list[Crowd] = []

    def another_comes(append_buffer: AppendBuffer) -> None:
        others.append(Crowd(append_buffer))
        others[0].threads.append(threading.Thread(target=others[0]._send, args=(PendingAppend("newer", 1),)))
        others[0].threads[0].start()
        while not entry.done:  # dropped by the newer one
            others[0].threads[0].join(0.001)

    entry = PendingAppend("older", 1)
    append_buffer = Interposed(drop("oldest", events=1), another_comes)
    assert append_buffer.append(entry).dropped == "drop oldest"
    newer = others[0].join()["newer"]
    assert isinstance(newer, PendingAppend)
    assert newer.outcome == "newer"


def test_a_sender_that_is_interrupted_does_not_hold_up_the_others():
    gate = Gate()
    append_buffer = AppendBuffer(gate, Overload(), lambda _: None)
    crowd = Crowd(append_buffer)
    crowd.threads.append(threading.Thread(target=crowd._send, args=(PendingAppend("first", 1),)))
    crowd.threads[0].start()
    gate.entered.acquire()
    interrupted = PendingAppend("interrupted", 1)

    def interrupt(timeout: float = -1) -> bool:
        raise KeyboardInterrupt

    interrupted.wait = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        append_buffer.append(interrupted)
    crowd.send("after")
    gate.open.set()
    assert crowd.join()["after"].outcome == "after"  # type: ignore[union-attr]
    assert interrupted.done


def test_hundreds_of_senders_each_get_their_own_answer():
    counts = Counter[str]()
    append_buffer = AppendBuffer(_succeed, drop("oldest", events=4), counts.update)
    crowd = Crowd(append_buffer)
    for number in range(300):
        crowd.threads.append(threading.Thread(target=crowd._send, args=(PendingAppend(number, 1),)))
    for thread in crowd.threads:
        thread.start()
    results = crowd.join()
    assert all(entry.done and (entry.dropped or entry.outcome == n) for n, entry in results.items())
    assert counts["offered"] == sum(bool(entry.dropped) for entry in results.values())
