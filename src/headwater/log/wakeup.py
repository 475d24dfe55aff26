"""Wait until a file in a folder changes, in this process or another, without looking again and again.

Linux tells through inotify, macOS and the BSDs through kqueue. Elsewhere a wait lasts at most 50 ms.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final, Protocol

__all__ = ["Waiter", "Waker", "Wakeup"]

_MODIFY: Final = 0x2
_CLOSE_WRITE: Final = 0x8
_MOVED_TO: Final = 0x80
_NONBLOCK: Final = os.O_NONBLOCK
_CLOEXEC: Final = os.O_CLOEXEC
# Python handles a signal that comes in the instant before a wait only when the wait ends: Ctrl-C must not take an hour.
_LONGEST: Final = 1.0


class Waiter(Protocol):
    """Waits for new events on one topic, or for changes in one group."""

    def wait(self, timeout: float | None) -> bool:
        """True as soon as something changed."""

    def close(self) -> None:
        """Stop waiting."""


class Waker(Waiter, Protocol):
    """A waiter that an event loop can wait for."""

    def fileno(self) -> int | None:
        """The descriptor that becomes readable on a change; None where there is none."""


class Wakeup:
    """Watches files and folders; `wait` returns when one of them changed since the last `wait`.

    A change between two waits is not lost: the next wait returns at once. So: look, and if there is nothing, wait.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "file"; _ = path.write_bytes(b"")
        >>> wakeup = Wakeup([path]); wakeup.wait(0.01)
        False
        >>> _ = path.write_bytes(b"x"); wakeup.wait(5)
        True
    """

    def __init__(self, paths: list[Path]) -> None:
        self._source: _Inotify | _Kqueue | _Sleep
        if sys.platform.startswith("linux"):
            self._source = _Inotify(paths)
        elif hasattr(select, "kqueue"):
            self._source = _Kqueue(paths)
        else:
            self._source = _Sleep()

    def wait(self, timeout: float | None) -> bool:
        """True as soon as something changed; False after `timeout` seconds without a change."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._source.wait(max(0.0, min(_LONGEST, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
        return True

    def fileno(self) -> int | None:
        """The descriptor that becomes readable on a change, for event loops; None where there is none."""
        return self._source.fileno()

    def close(self) -> None:
        """Stop watching."""
        self._source.close()


class _Inotify:
    def __init__(self, paths: list[Path]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._handle = library.inotify_init1(_NONBLOCK | _CLOEXEC)
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
        while changed:
            try:
                if len(os.read(self._handle, 1 << 16)) < (1 << 16) - struct.calcsize("iIII") - 256:
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


class _Sleep:
    def wait(self, timeout: float) -> bool:
        time.sleep(min(0.05, timeout))
        return True

    def fileno(self) -> None:
        return None

    def close(self) -> None:
        pass
