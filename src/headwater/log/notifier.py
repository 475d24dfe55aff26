"""Waiting for changes of files, in this process or another, without polling.

`FileNotifier` watches files and folders through inotify on Linux and kqueue on macOS and the BSDs;
elsewhere each wait ends after at most 50 ms. `SharedNotifier` lets many threads share one watch on a small file
that writers touch, because the number of watches per user is limited. `Waiter` and `PollableWaiter` are the
protocols that logs return from `watch`.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, Protocol

__all__ = ["FileNotifier", "PollableWaiter", "SharedNotifier", "Waiter"]

_MODIFY: Final = 0x2
_CLOSE_WRITE: Final = 0x8
_MOVED_TO: Final = 0x80
_READ_BYTES: Final = 1 << 16
_MAX_NAME_BYTES: Final = 256
# Python runs signal handlers only after a wait ends: a bound on each wait, in seconds, keeps Ctrl-C prompt.
_MAX_WAIT: Final = 1.0


class Waiter(Protocol):
    """Waits for new events on one topic, or for changes in one group."""

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as something changed."""

    def close(self) -> None:
        """Stop waiting."""


class PollableWaiter(Waiter, Protocol):
    """A waiter that an event loop can wait for."""

    def fileno(self) -> int | None:
        """Returns the descriptor that becomes readable on a change; None if there is none."""


class FileNotifier:
    """Watches files and folders; `wait` returns when one of them changed since the last `wait`.

    A change between two waits is not lost: the next wait returns at once. Callers therefore check first,
    and wait if there is nothing.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "file"; _ = path.write_bytes(b"")
        >>> wakeup = FileNotifier([path]); wakeup.wait(0.01)
        False
        >>> _ = path.write_bytes(b"x"); wakeup.wait(5)
        True
    """

    def __init__(self, paths: list[Path]) -> None:
        self._source: _Inotify | _Kqueue | _SleepPoller
        if sys.platform.startswith("linux"):
            self._source = _Inotify(paths)
        elif hasattr(select, "kqueue"):
            self._source = _Kqueue(paths)
        else:
            self._source = _SleepPoller()

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as something changed; False after `timeout` seconds without a change."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._source.wait(max(0.0, min(_MAX_WAIT, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
        return True

    def fileno(self) -> int | None:
        """Returns the descriptor that becomes readable on a change, for event loops; None if there is none."""
        return self._source.fileno()

    def close(self) -> None:
        """Stop watching."""
        self._source.close()


class _Inotify:
    def __init__(self, paths: list[Path]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._handle = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "too many watches: raise fs.inotify.max_user_instances")
        self._poll = select.poll()
        self._poll.register(self._handle, select.POLLIN)
        for path in paths:
            mask = _CLOSE_WRITE | _MOVED_TO if path.is_dir() else _MODIFY
            if library.inotify_add_watch(self._handle, os.fsencode(path), mask) < 0:
                raise OSError(ctypes.get_errno(), f"cannot watch {path}: raise fs.inotify.max_user_watches")

    def wait(self, timeout: float) -> bool:
        changed = bool(self._poll.poll(timeout * 1000))
        while changed:  # read all events, or the next wait would return at once for an old change
            try:
                # A read that leaves space for the largest event has read them all.
                if len(os.read(self._handle, _READ_BYTES)) < _READ_BYTES - struct.calcsize("iIII") - _MAX_NAME_BYTES:
                    return True
            except BlockingIOError:
                return True
        return False

    def fileno(self) -> int:
        return int(self._handle)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __del__(self) -> None:
        self.close()


class _Kqueue:
    def __init__(self, paths: list[Path]) -> None:
        kqueue: Any = select  # these names exist on macOS and the BSDs only
        self._queue = kqueue.kqueue()
        self._files = [os.open(path, os.O_RDONLY) for path in paths]
        flags = kqueue.KQ_EV_ADD | kqueue.KQ_EV_CLEAR
        notes = kqueue.KQ_NOTE_WRITE | kqueue.KQ_NOTE_EXTEND | kqueue.KQ_NOTE_RENAME
        changes = [kqueue.kevent(f, kqueue.KQ_FILTER_VNODE, flags, notes) for f in self._files]
        self._queue.control(changes, 0)

    def wait(self, timeout: float) -> bool:
        return bool(self._queue.control(None, 64, timeout))

    def fileno(self) -> int:
        return int(self._queue.fileno())

    def close(self) -> None:
        self._queue.close()
        for handle in self._files:
            os.close(handle)
        self._files = []


class _SleepPoller:
    def wait(self, timeout: float) -> bool:
        time.sleep(min(0.05, timeout))
        return True

    def fileno(self) -> None:
        return None

    def close(self) -> None:
        pass


class SharedNotifier:
    """Notifies all processes that have it open; `wait` returns if a notification came since `generation`.

    One of the waiting threads listens to the file and wakes the others, because the number of watches per
    user is limited.

    Example:
        >>> import tempfile
        >>> notifier = SharedNotifier(Path(tempfile.mkdtemp()) / "changes")
        >>> generation = notifier.generation(); notifier.notify(); notifier.wait(generation, 5)
        True
        >>> notifier.wait(notifier.generation(), 0.01)
        False
        >>> notifier.close()
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._file_notifier: FileNotifier | None = None
        self._path = path
        self._condition = threading.Condition()
        self._generation = 0
        self._has_listener = False
        self._closed = False

    def notify(self) -> None:
        """Wake all waiters in every process."""
        with self._condition:
            if not self._closed:
                os.pwrite(self._handle, b".", 0)

    def generation(self) -> int:
        """Returns the argument for `wait`.

        Take it before checking for work, so that a notification between the check and the wait is not lost.
        """
        with self._condition:
            if self._file_notifier is None and not self._closed:
                self._file_notifier = FileNotifier([self._path])
            return self._generation

    def wait(self, generation: int, timeout: float | None) -> bool:
        """Returns True on a notification; False after `timeout` seconds or when closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while self._generation == generation and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._has_listener:
                    self._condition.wait(left)
                else:
                    self._listen(left)
            return self._generation != generation

    def _listen(self, timeout: float | None) -> None:
        """Wait for the file; releases the condition meanwhile."""
        notifier, self._has_listener, notified = self._file_notifier, True, False
        assert notifier is not None
        self._condition.release()
        try:
            notified = notifier.wait(timeout)
        finally:
            self._condition.acquire()
            self._has_listener = False
            self._generation += notified
            self._condition.notify_all()  # also without a notification: another waiter must listen now

    def close(self) -> None:
        """Release all waiters of this process."""
        with self._condition:
            if self._closed:
                return
            self._closed = True
        os.pwrite(self._handle, b".", 0)  # ends the wait of the thread that listens
        with self._condition:
            while self._has_listener:
                self._condition.wait()
            self._condition.notify_all()
            if self._file_notifier is not None:
                self._file_notifier.close()
            os.close(self._handle)
