"""A clock for simulations: wall time may jump either way, the monotonic clock only goes forward."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SimulatedClock:
    """A clock that advances only when told to; times in microseconds."""

    def __init__(self) -> None:
        self.start = self._wall = 1_767_225_600_000_000
        self._passed = 0

    def advance(self, micros: int) -> None:
        """Advance both clocks."""
        self._wall += micros
        self._passed += micros

    def jump(self, micros: int) -> None:
        """Set the wall clock."""
        self._wall += micros

    def reboot(self) -> None:
        """Restart the monotonic clock, which counts from the boot of the machine."""
        self._passed = 0

    def now(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self._wall)

    def micros(self) -> int:
        return self._wall

    def monotonic(self) -> float:
        return self._passed / 1e6
