"""A clock for simulations: wall time may jump either way, the monotonic clock only goes forward."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SimulatedClock:
    """Stands still until it is moved; times in microseconds."""

    def __init__(self) -> None:
        self.start = self._wall = 1_767_225_600_000_000
        self._passed = 0

    def advance(self, micros: int) -> None:
        """Time passes."""
        self._wall += micros
        self._passed += micros

    def jump(self, micros: int) -> None:
        """Somebody sets the wall clock."""
        self._wall += micros

    def reboot(self) -> None:
        """The monotonic clock counts from the start of the machine."""
        self._passed = 0

    def now(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self._wall)

    def micros(self) -> int:
        return self._wall

    def monotonic(self) -> float:
        return self._passed / 1e6
