"""The door of a topic: where events wait before they are appended, and where overload is decided.

Senders put entries into a bounded buffer. One of them, the leader, takes all that wait, appends them with one sync and
hands the lead to the next: while the disk works, the next group gathers. Entries nobody waits for are led by a
thread of the door's own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import OverloadedError, UsageError
from headwater.log.door.overload import Overload, WhenFull

__all__ = ["Door", "Entry"]


def _taken_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False)
class Entry:
    """Rows that wait for one append, and then its outcome."""

    content: Any
    rows: int
    awaited: bool = True
    outcome: Any = None
    error: BaseException | None = None
    dropped: str | None = None
    done: bool = False
    _signal: threading.Lock = field(default_factory=_taken_lock)

    def wake(self) -> None:
        """Let the thread that waits for this entry look again."""
        with contextlib.suppress(RuntimeError):  # two threads may wake it at the same time
            self._signal.release()

    def sleep(self, timeout: float = -1) -> bool:
        """Wait to be woken."""
        return self._signal.acquire(timeout=timeout)


class Door:
    """A bounded buffer in front of `commit`, which appends a list of entries and sets their outcome.

    Example:
        >>> def commit(entries):
        ...     for entry in entries: entry.outcome = entry.content * 2
        >>> door = Door(commit, Overload(), count=lambda decisions: None)
        >>> door.pass_through(Entry(21, rows=1)).outcome
        42
    """

    def __init__(
        self,
        commit: Callable[[list[Entry]], None],
        overload: Overload,
        count: Callable[[dict[str, int]], None],
    ) -> None:
        self._commit = commit
        self.overload = overload
        self._count = count
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._waiting: deque[Entry] = deque()
        self._rows = 0
        self._led = False
        self._leader: Entry | None = None  # chosen to lead next, woken, has not begun yet
        self._sampled = 0
        self._pump: threading.Thread | None = None
        self._pump_signal = threading.Semaphore(0)
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many rows wait now."""
        return self._rows

    def pass_through(self, entry: Entry) -> Entry:
        """Put the entry in and come back when it is appended, dropped or failed."""
        lead = self._enter(entry)
        if lead is None:
            return entry
        if not lead:
            self._follow(entry)
        if lead or not entry.done:  # who was told to lead does so, even if its entry was dropped meanwhile
            self._lead()
        if entry.error is not None:
            raise entry.error
        return entry

    def _follow(self, entry: Entry) -> None:
        try:
            entry.sleep()
        except BaseException:  # interrupted: nobody will lead for this entry, so the door's own thread must
            entry.awaited = False
            with self._lock:
                if self._leader is entry:
                    self._wake_pump()
            raise

    def put(self, entry: Entry) -> Entry:
        """Put the entry in and come back at once; `finish` waits for it."""
        entry.awaited = False
        if self._enter(entry):
            self._wake_pump()
        return entry

    def finish(self, entry: Entry) -> None:
        """Wait until an entry that was `put` is done; raises what went wrong with it."""
        while not entry.done:
            entry.sleep()
        if entry.error is not None:
            raise entry.error

    def _enter(self, entry: Entry) -> bool | None:
        """Admit or drop. True: the caller leads, False: it follows, None: the entry is dropped."""
        with self._lock:
            if self._closed:
                raise UsageError("the log is closed", fix="hw.connect(...) again")
            if not self._admit(entry):
                entry.done = True
                return None
            self._waiting.append(entry)
            self._rows += entry.rows
            lead, self._led = not self._led, True
            return lead

    def _admit(self, entry: Entry) -> bool:
        policy = self.overload
        if policy.when_full is WhenFull.DROP_SAMPLED and self._rows * 2 >= policy.events:
            self._sampled += 1
            if self._sampled % policy.one_in:
                return self._drop(entry)
        if not self._rows or self._rows + entry.rows <= policy.events:
            return True
        if policy.when_full is WhenFull.WAIT:
            self._wait_for_room(entry)
            return True
        if policy.when_full is WhenFull.DROP_OLDEST:
            while self._waiting and self._rows + entry.rows > policy.events:
                oldest = self._waiting.popleft()
                self._rows -= oldest.rows
                self._drop(oldest)
                oldest.done = True
                oldest.wake()
                if oldest is self._leader:
                    self._wake_pump()
            return True
        return self._drop(entry)

    def _drop(self, entry: Entry) -> bool:
        entry.dropped = self.overload.when_full.value
        self._count({entry.dropped: entry.rows, "offered": entry.rows})
        return False

    def _wait_for_room(self, entry: Entry) -> None:
        limit = self.overload.timeout
        deadline = None if limit is None else time.monotonic() + limit.total_seconds()
        while self._rows and self._rows + entry.rows > self.overload.events:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                self._count({"refused": entry.rows, "offered": entry.rows})
                raise OverloadedError(
                    f"{self._rows:,} events wait already and the buffer holds {self.overload.events:,}",
                    detail="the topic's overload policy is backpressure; nothing of this call was appended",
                    fix="send again later, or choose another policy: overload=hw.drop()",
                    waiting=self._rows,
                    limit=self.overload.events,
                )
            self._room.wait(left)

    def _lead(self) -> None:
        with self._lock:
            taken, self._waiting = list(self._waiting), deque()
            self._rows, self._leader = 0, None
            self._room.notify_all()
        try:
            if taken:
                self._commit(taken)
        except BaseException as error:
            for entry in taken:
                entry.error = entry.error or error
            if not isinstance(error, Exception):
                raise
        finally:
            self._hand_over(taken)

    def _hand_over(self, taken: list[Entry]) -> None:
        with self._lock:
            following = next((entry for entry in self._waiting if entry.awaited), None)
            self._led, self._leader = bool(self._waiting), following
            unled = self._led and following is None
            self._room.notify_all()
        for entry in taken:
            entry.done = True
            entry.wake()
        if following is not None:
            following.wake()
        elif unled:
            self._wake_pump()

    def _wake_pump(self) -> None:
        with self._lock:
            if self._pump is None:
                self._pump = threading.Thread(target=self._run_pump, name="headwater-door", daemon=True)
                self._pump.start()
        self._pump_signal.release()

    def _run_pump(self) -> None:
        while True:
            self._pump_signal.acquire()
            if self._closed:
                return
            self._lead()

    def close(self) -> None:
        """Append what still waits or is being appended, then stop the door's thread."""
        with self._room:
            while self._led:
                self._room.wait()
            self._closed = True
        self._pump_signal.release()
