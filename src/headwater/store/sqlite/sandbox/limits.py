"""The limits of a query in SQLite, and the guard that ends it when it takes more."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import sys
import time
from threading import Event

from headwater.errors import BadQueryError
from headwater.store.query import QueryLimits, Reached, ended

__all__ = ["Guard", "apply_limits"]

_STEPS = 200  # instructions between two looks; each can make a cell of at most `QueryLimits.cell`
_BETWEEN = 0.002  # seconds between two looks at memory, which cost more than one at the clock
_PAGE = resource.getpagesize()


def apply_limits(limits: QueryLimits, connection: sqlite3.Connection) -> None:
    """Set what SQLite itself can watch over."""
    for category, limit in (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.cell),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000),
        (sqlite3.SQLITE_LIMIT_COLUMN, limits.columns),
        (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200),
        (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 50),
        (sqlite3.SQLITE_LIMIT_VDBE_OP, 100_000),
        (sqlite3.SQLITE_LIMIT_FUNCTION_ARG, 50),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
        (sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 100),
        (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
    ):
        connection.setlimit(category, limit)


class Guard:
    """Ends a query that takes too long, makes the process grow, or is cancelled.

    Args:
        limits: What it may take.
        cancel: Set it, from any thread, to end the query.
    """

    def __init__(self, limits: QueryLimits, cancel: Event | None = None) -> None:
        self._limits = limits
        self._cancel = cancel
        self._end = time.monotonic() + limits.time.total_seconds()
        self._look = 0.0
        self._most = _memory() + limits.memory
        self.reached: Reached | None = None

    def watch(self, connection: sqlite3.Connection) -> None:
        """Look at the query again and again from now on."""
        connection.set_progress_handler(self._over, _STEPS)

    def _over(self) -> bool:
        now = time.monotonic()
        if now > self._end:
            self.reached = "time"
        elif self._cancel is not None and self._cancel.is_set():
            self.reached = "cancelled"
        elif now > self._look:
            self._look = now + _BETWEEN
            if _memory() > self._most:
                self.reached = "memory"
        return self.reached is not None

    def error(self) -> BadQueryError | None:
        """Why the query was ended, if it was."""
        if self.reached is None:
            return None
        return ended(self._limits, self.reached)


def _memory() -> int:
    """Bytes of memory this process has now; where nobody can say, the most it ever had."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            handle = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(handle, 128).split()[1]) * _PAGE
            finally:
                os.close(handle)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
