"""What time it is: asked through a clock that a test can hold in its hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Protocol

from headwater.units import duration, micros, moment

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Where every room asks for the time; nothing else in Headwater reads the machine's clock."""

    def now(self) -> datetime:
        """The present moment, in UTC."""
        ...

    def micros(self) -> int:
        """The present moment as microseconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back, so it is the one to measure waiting with."""
        ...


class SystemClock:
    """The machine's clock.

    Example:
        >>> clock = SystemClock()
        >>> clock.now().tzinfo is UTC and clock.monotonic() <= clock.monotonic()
        True
    """

    def now(self) -> datetime:
        """The present moment, in UTC."""
        return datetime.now(UTC)

    def micros(self) -> int:
        """The present moment as microseconds since 1970."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Seconds since some fixed point."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved; it may be moved from another thread.

    Example:
        >>> clock = ManualClock("2026-01-01T00:00:00Z")
        >>> clock.advance("10 minutes")
        >>> clock.now().isoformat(), clock.monotonic()
        ('2026-01-01T00:10:00+00:00', 600.0)
    """

    def __init__(self, at: datetime | str = "2026-01-01T00:00:00Z") -> None:
        self._start = moment(at)
        self._passed = timedelta()
        self._lock = Lock()

    def advance(self, by: str | timedelta) -> None:
        """Moves the clock forward, by a duration such as "10 minutes"."""
        with self._lock:
            self._passed += duration(by)

    def now(self) -> datetime:
        """The moment the clock stands at, in UTC."""
        return self._start + self._passed

    def micros(self) -> int:
        """The moment the clock stands at, as microseconds since 1970."""
        return micros(self.now())

    def monotonic(self) -> float:
        """Seconds this clock was moved since it was made."""
        return self._passed.total_seconds()
