"""How much a query may take, and the guard that ends it when it takes more."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from typing import Literal

from headwater.errors import BadQueryError

__all__ = ["Guard", "QueryLimits"]

_STEPS = 200  # instructions between two looks; each can make a cell of at most `QueryLimits.cell`
_BETWEEN = 0.002  # seconds between two looks at memory, which cost more than one at the clock
_PAGE = resource.getpagesize()


@dataclass(frozen=True)
class QueryLimits:
    """How much one query may take.

    Args:
        time: After this long it is ended.
        rows: More rows than this are left out of the answer, which then says so.
        size: So many bytes of answer; rows beyond are left out.
        memory: By how many bytes the process may grow meanwhile.
        cell: The longest text, binary or row, in bytes.
        columns: The most columns of an answer.

    Example:
        >>> QueryLimits(rows=10).time.total_seconds()
        5.0
    """

    time: timedelta = timedelta(seconds=5)
    rows: int = 10_000
    size: int = 16 << 20
    memory: int = 256 << 20
    cell: int = 1 << 20
    columns: int = 200

    def apply(self, connection: sqlite3.Connection) -> None:
        """Set what SQLite itself can watch over."""
        for category, limit in (
            (sqlite3.SQLITE_LIMIT_LENGTH, self.cell),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000),
            (sqlite3.SQLITE_LIMIT_COLUMN, self.columns),
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
        self.reached: Literal["time", "memory", "cancelled"] | None = None

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
        words = {
            "time": f"the query took longer than {self._limits.time.total_seconds():g} s and was ended",
            "memory": f"the query took more than {self._limits.memory >> 20} MB of memory and was ended",
            "cancelled": "the query was cancelled",
        }
        fix = None if self.reached == "cancelled" else "read less: add a condition or a limit"
        return BadQueryError(words[self.reached], fix=fix, limit=self.reached)


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
