"""A clock for simulations: wall time may jump either way, the monotonic clock only goes forward."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from headwater.log.storage import AnchoredClock, Disk

_HOUR = 3_600_000_000
_MINUTE = _HOUR // 60
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


class SimulatedMachineClock(SimulatedClock):
    """The clocks of a machine that is started again and whose wall clock is set, and the time that a log should have.

    That is, by definition: the wall time when the boot began or the wall clock was accepted, and what has passed since.
    """

    def __init__(self) -> None:
        super().__init__()
        self._boot = 1
        self._since_boot = 0
        self._anchor = self._wall
        self._settled = False

    def advance(self, micros: int) -> None:
        """Let time pass."""
        super().advance(micros)
        self._anchor += micros
        self._since_boot += micros

    def reboot(self) -> None:
        """Start the machine again; its wall clock may have been set while it was off."""
        super().reboot()
        self._boot += 1
        self._since_boot, self._anchor, self._settled = 0, self._wall, False

    def accept(self) -> None:
        """Trust the wall clock, as `headwater doctor --accept-clock` does."""
        self._anchor, self._settled = self._wall, True

    def micros(self) -> int:
        """Returns the time that the log should have."""
        return self._anchor

    @property
    def trusted(self) -> bool:
        """Whether something may be removed because of its age."""
        return abs(self._wall - self._anchor) < _MINUTE and (self._settled or self._since_boot >= _HOUR)

    def wall(self) -> int:
        return self._wall

    def boottime(self) -> int:
        return self._since_boot + 1_000_000

    def boot_id(self) -> int:
        return self._boot


class SimulatedLogClock(AnchoredClock):
    """The clock of a log folder on a simulated machine."""

    def __init__(self, disk: Disk, folder: Path, machine: SimulatedMachineClock) -> None:
        super().__init__(disk, folder / "clock.json", machine)
        self._simulated = machine

    def monotonic(self) -> float:
        return self._simulated.monotonic()
