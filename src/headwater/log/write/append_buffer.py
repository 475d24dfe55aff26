"""The append buffer of a topic: group commit and overload policy.

Senders put entries into a bounded buffer. One of them, the leader, takes all waiting entries, appends them
with one sync and passes the lead to the next. While the disk works, the next group gathers. Entries without
a waiting sender are appended by the buffer's own thread.

`AppendCounters` counts the outcomes over all processes and across restarts. When nothing waits, `offered =
appended + duplicate + refused + dropped + diverted`.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import sys
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headwater.errors import DiskFailedError, DiskFullError, OverloadedError, UsageError
from headwater.log.storage.disk import Disk
from headwater.log.topic import Overload, WhenFull

__all__ = ["COUNTERS", "AppendBuffer", "AppendCounters", "PendingAppend"]

logger = logging.getLogger("headwater.log")
# The order is the order in the file: append only.
COUNTERS: Final = (
    "offered",
    "appended",
    "duplicate",
    "refused",
    "drop newest",
    "drop oldest",
    "drop sampled",
    "diverted",
)
_LAYOUT = struct.Struct(f"<{len(COUNTERS)}qI")
_NUMBER_BYTES: Final = 8
_CHECKSUM_BYTES: Final = 4


class AppendCounters:
    """Counters in a small shared file, with a checksum.

    Example:
        >>> import tempfile
        >>> counts = AppendCounters(Disk(), Path(tempfile.mkdtemp()) / "counts")
        >>> counts.add({"offered": 3, "appended": 2}); counts.read()["offered"]
        3
    """

    _handle = -1

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._handle = disk.open(path)
        self._mutex = threading.Lock()  # a file lock does not keep threads of one process apart
        self._unwritten: Counter[str] = Counter()

    def add(self, increments: dict[str, int]) -> None:
        """Add to counters by name; if the disk fails, they are added later: counting never fails an append."""
        with self._mutex:
            self._unwritten.update(increments)
            try:
                self._disk.lock(self._handle)
            except FileNotFoundError:  # the topic was deleted, and its counters with it
                return
            try:
                totals = self._read_totals()
                for name, number in self._unwritten.items():
                    totals[COUNTERS.index(name)] += number
                packed = _LAYOUT.pack(*totals, 0)[:-4]
                self._disk.write(self._handle, 0, packed + zlib.crc32(packed).to_bytes(4, "little"))
                self._unwritten.clear()
            except (DiskFullError, DiskFailedError) as error:
                logger.warning("%s: not counted yet: %s", self.path, error.what)
            finally:
                self._disk.unlock(self._handle)

    def read(self) -> dict[str, int]:
        """Returns all counters by name."""
        with self._mutex:
            self._disk.lock(self._handle)
            try:
                return dict(zip(COUNTERS, self._read_totals(), strict=True))
            finally:
                self._disk.unlock(self._handle)

    def _read_totals(self) -> list[int]:
        data = self._disk.read(self._handle, 0, _LAYOUT.size)
        if not data:
            return [0] * len(COUNTERS)
        numbers, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if len(numbers) % _NUMBER_BYTES or zlib.crc32(numbers) != int.from_bytes(checksum, "little"):
            logger.warning("%s: the counters are damaged and restart at 0", self.path)
            return [0] * len(COUNTERS)
        # An older version wrote fewer counters.
        return list(struct.unpack(f"<{len(COUNTERS)}q", numbers.ljust(len(COUNTERS) * _NUMBER_BYTES, b"\0")))

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._disk.close(handle)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()


def _make_acquired_lock() -> threading.Lock:
    lock = threading.Lock()  # cheaper than an Event, which allocates a condition per append
    lock.acquire()
    return lock


@dataclass(eq=False)
class PendingAppend:
    """Rows that wait for their append, and later its outcome.

    The commit function sets `outcome` or `error`; `dropped` is the overload policy that dropped the rows. `awaited`
    means that the sending thread waits and can lead.
    """

    content: Any
    row_count: int
    awaited: bool = True
    outcome: Any = None
    error: BaseException | None = None
    dropped: str | None = None
    done: bool = False
    _signal: threading.Lock = field(default_factory=_make_acquired_lock)

    def notify(self) -> None:
        """Wake the thread that waits for this entry."""
        with contextlib.suppress(RuntimeError):  # two threads may wake it at the same time
            self._signal.release()

    def wait(self, timeout: float = -1) -> bool:
        """Wait for `notify`."""
        return self._signal.acquire(timeout=timeout)


class AppendBuffer:
    """A bounded buffer in front of `commit`, which appends a list of entries and sets their outcome.

    Example:
        >>> def commit(entries):
        ...     for entry in entries: entry.outcome = entry.content * 2
        >>> append_buffer = AppendBuffer(commit, Overload(), count=lambda decisions: None)
        >>> append_buffer.append(PendingAppend(21, row_count=1)).outcome
        42
    """

    def __init__(
        self, commit: Callable[[list[PendingAppend]], None], overload: Overload, count: Callable[[dict[str, int]], None]
    ) -> None:
        self._commit = commit
        self.overload = overload
        self._count = count
        # Guards all fields below. It is never held during `commit`, so senders can enqueue while the disk works.
        self._lock = threading.RLock()
        self._not_full = threading.Condition(self._lock)
        self._queue: deque[PendingAppend] = deque()
        self.waiting_rows = 0
        self._has_leader = False
        self._next_leader: PendingAppend | None = None  # chosen to lead next, woken, has not begun yet
        self._sample_count = 0
        self._thread: threading.Thread | None = None
        self._thread_signal = threading.Semaphore(0)
        self._closed = False

    def append(self, entry: PendingAppend) -> PendingAppend:
        """Add the entry and return when it is appended or dropped; raises the error of its append."""
        leads = self._enqueue(entry)
        if leads is None:
            return entry
        if not leads:
            self._await_leader(entry)
        if leads or not entry.done:  # a chosen leader commits for the others even if its own entry was dropped
            self._commit_group()
        if entry.error is not None:
            raise entry.error
        return entry

    def _await_leader(self, entry: PendingAppend) -> None:
        try:
            entry.wait()
        except BaseException:  # interrupted: if this thread was to lead, the buffer's own thread takes over
            entry.awaited = False
            with self._lock:
                if self._next_leader is entry:
                    self._wake_thread()
            raise

    def begin_append(self, entry: PendingAppend) -> PendingAppend:
        """Add the entry and return at once; `await_append` waits for it."""
        entry.awaited = False
        if self._enqueue(entry):
            self._wake_thread()
        return entry

    def await_append(self, entry: PendingAppend) -> None:
        """Wait for an entry passed to `begin_append`; raises the error of its append."""
        while not entry.done:
            entry.wait()
        if entry.error is not None:
            raise entry.error

    def _enqueue(self, entry: PendingAppend) -> bool | None:
        """Admit or drop the entry. True: the caller leads; False: it follows; None: the entry was dropped."""
        with self._lock:
            admitted = self._closed or self._admit(entry)
            if self._closed:  # perhaps while the entry waited for space
                raise UsageError("the log is closed", fix="hw.connect(...) again")
            if not admitted:
                entry.done = True
                return None
            self._queue.append(entry)
            self.waiting_rows += entry.row_count
            leads, self._has_leader = not self._has_leader, True
            return leads

    def _admit(self, entry: PendingAppend) -> bool:
        policy = self.overload
        if policy.when_full is WhenFull.DROP_SAMPLED and self.waiting_rows * 2 >= policy.events:
            self._sample_count += 1
            if self._sample_count % policy.one_in:
                return self._drop(entry)
        if self._fits(entry):
            return True
        if policy.when_full is WhenFull.WAIT:
            self._wait_for_space(entry)
            return True
        if policy.when_full is WhenFull.DROP_OLDEST:
            while not self._fits(entry):
                oldest = self._queue.popleft()
                self.waiting_rows -= oldest.row_count
                self._drop(oldest)
                oldest.done = True
                oldest.notify()
                if oldest is self._next_leader:
                    self._wake_thread()
            return True
        return self._drop(entry)

    def _drop(self, entry: PendingAppend) -> bool:
        entry.dropped = self.overload.when_full.value
        self._count({entry.dropped: entry.row_count, "offered": entry.row_count})
        return False

    def _wait_for_space(self, entry: PendingAppend) -> None:
        limit = self.overload.timeout
        if not self._not_full.wait_for(lambda: self._fits(entry), None if limit is None else limit.total_seconds()):
            self._count({"refused": entry.row_count, "offered": entry.row_count})
            raise OverloadedError(
                f"{self.waiting_rows:,} events wait already and the buffer holds {self.overload.events:,}",
                detail="the topic's overload policy is backpressure; nothing of this call was appended",
                fix="send again later, or choose another policy: overload=hw.drop()",
                waiting=self.waiting_rows,
                limit=self.overload.events,
            )

    def _fits(self, entry: PendingAppend) -> bool:
        """Whether there is space; an empty buffer admits an entry of any size."""
        return not self.waiting_rows or self.waiting_rows + entry.row_count <= self.overload.events

    def _commit_group(self) -> None:
        # The queue is swapped under the lock and committed without it, so the next group gathers meanwhile.
        with self._lock:
            group, self._queue = list(self._queue), deque()
            self.waiting_rows, self._next_leader = 0, None
            self._not_full.notify_all()
        try:
            if group:
                self._commit(group)
        except BaseException as error:
            for entry in group:
                entry.error = entry.error or error
            if not isinstance(error, Exception):  # Ctrl-C ends the leader; its group has the error already
                raise
        finally:
            self._pass_leadership(group)

    def _pass_leadership(self, group: list[PendingAppend]) -> None:
        # Invariant: while entries wait, there is exactly one leader, or one that was chosen and woken. The next one is
        # chosen before the group is released, so that no new sender can become a second leader in between.
        with self._lock:
            next_leader = next((entry for entry in self._queue if entry.awaited), None)
            self._has_leader, self._next_leader = bool(self._queue), next_leader
            leaderless = self._has_leader and next_leader is None
            self._not_full.notify_all()
        for entry in group:
            entry.done = True
            entry.notify()
        if next_leader is not None:
            next_leader.notify()
        elif leaderless:
            self._wake_thread()

    def _wake_thread(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headwater-append-buffer", daemon=True)
                self._thread.start()
        self._thread_signal.release()

    def _run(self) -> None:
        while True:
            self._thread_signal.acquire()
            if self._closed:
                return
            self._commit_group()

    def close(self) -> None:
        """Append the remaining entries, then stop the buffer's thread."""
        with self._not_full:
            while self._has_leader:  # as long as entries wait or are being committed
                self._not_full.wait()
            self._closed = True
        self._thread_signal.release()
