"""How a process waits for messages: many threads, one watch on a small file that whoever has news writes to."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from headwater.log.wakeup import Wakeup

__all__ = ["Bell"]


class Bell:
    """Rings in all processes that have it open; `wait` returns if it rang since `heard` was asked for.

    One of the threads that wait listens to the file and tells the others: the number of watches that a user may have
    is small.

    Example:
        >>> import tempfile
        >>> bell = Bell(Path(tempfile.mkdtemp()) / "bell")
        >>> heard = bell.heard(); bell.ring(); bell.wait(heard, 5)
        True
        >>> bell.wait(bell.heard(), 0.01)
        False
        >>> bell.close()
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._wakeup: Wakeup | None = None
        self._path = path
        self._condition = threading.Condition()
        self._rings = 0
        self._listened = False
        self._closed = False

    def ring(self) -> None:
        """Wake everybody who waits, in every process."""
        with self._condition:
            if not self._closed:
                os.pwrite(self._handle, b".", 0)

    def heard(self) -> int:
        """What to give to `wait`: take it before looking, so that no ring between looking and waiting is lost."""
        with self._condition:
            if self._wakeup is None and not self._closed:
                self._wakeup = Wakeup([self._path])
            return self._rings

    def wait(self, heard: int, timeout: float | None) -> bool:
        """True as soon as it rang; False after `timeout` seconds, or when it is closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while self._rings == heard and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._listened:
                    self._condition.wait(left)
                else:
                    self._listen(left)
            return self._rings != heard

    def _listen(self, timeout: float | None) -> None:
        """Wait for the file, with the condition let go meanwhile."""
        wakeup, self._listened, rang = self._wakeup, True, False
        assert wakeup is not None
        self._condition.release()
        try:
            rang = wakeup.wait(timeout)
        finally:
            self._condition.acquire()
            self._listened = False
            self._rings += rang
            self._condition.notify_all()  # also when it did not ring: somebody else must listen now

    def close(self) -> None:
        """Let everybody who waits here go."""
        with self._condition:
            if self._closed:
                return
            self._closed = True
        os.pwrite(self._handle, b".", 0)  # whoever listens comes back
        with self._condition:
            while self._listened:
                self._condition.wait()
            self._condition.notify_all()
            if self._wakeup is not None:
                self._wakeup.close()
            os.close(self._handle)
