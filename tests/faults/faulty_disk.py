"""Real disks that kill their own process, or fail, at a chosen call."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from headwater.log.storage.disk import Disk, translate_os_error

# The methods of `Disk` that change something.
CHANGING = ("open", "write", "sync", "truncate", "replace", "remove", "make_folder", "sync_folder")


class KillingDisk(Disk):
    """A real disk that kills its own process with SIGKILL before or after the n-th call of a kind.

    Args:
        kind: One of `CHANGING`, or "any".
        nth: Counted from 1.
        after: Kill after the call, not before it.
    """

    def __init__(self, kind: str, nth: int, *, after: bool = False) -> None:
        self._left = nth
        self._after = after
        for name in CHANGING if kind == "any" else (kind,):
            setattr(self, name, partial(self._counted, getattr(self, name)))

    def _counted(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._left -= 1
        now = self._left == 0
        if now and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = call(*args, **options)
        if now:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class FailingDisk(Disk):
    """A real disk on which some calls of one kind fail, from the n-th on.

    Args:
        kind: One of `CHANGING`.
        error: The `errno` of the failure.
        nth: Counted from 1.
        times: How many calls fail.
    """

    def __init__(self, kind: str, error: int, *, nth: int = 1, times: int = 1) -> None:
        self.first, self.last, self.error = nth, nth + times - 1, error
        self.seen = 0
        setattr(self, kind, partial(self._refused, getattr(self, kind)))

    def _refused(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.seen += 1
        if self.first <= self.seen <= self.last:
            raise translate_os_error(OSError(self.error, os.strerror(self.error)), "disk")
        return call(*args, **options)
