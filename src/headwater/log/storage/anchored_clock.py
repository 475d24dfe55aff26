"""The clock of a data folder: wall time that does not jump while the machine runs.

One file holds an anchor for all processes that use the folder: a wall time, the time since boot at that moment, and the
boot id. In the same boot, the time is the anchor plus what has passed since, so a jump of the wall clock changes
neither arrival times nor the age of events. The maintenance of the node renews the anchor each minute; if the log is
on Kafka, the process that indexes event time does. A renewal
follows differences of less than a minute, such as corrections by NTP, and spreads them over the next minutes: the time
never goes back and never jumps.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import msgspec

from headwater.errors import EnvironmentFaultError
from headwater.log.storage.disk import Disk

__all__ = ["Anchor", "AnchoredClock", "MachineClock", "TimeSource", "folder_clock"]

_MINUTE: Final = 60_000_000  # microseconds
_MAX_CORRECTION: Final = 3_000_000  # microseconds that the time follows the wall clock in a minute
_SETTLED_AFTER: Final = 60 * _MINUTE  # microseconds from the first anchor of a boot until its wall time is trusted
_READ_INTERVAL: Final = 1_000_000  # microseconds between two reads of the file
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has no CLOCK_BOOTTIME


class TimeSource(Protocol):
    """The clocks of a machine; tests pass one that jumps."""

    def wall(self) -> int:
        """Returns the wall clock, in microseconds since 1970."""

    def boottime(self) -> int:
        """Returns the microseconds since the machine started, suspended time included."""

    def boot_id(self) -> int:
        """Returns a number that changes when the machine restarts; 0 if the system has none."""


class MachineClock:
    """The clocks of this machine.

    Example:
        >>> machine = MachineClock()
        >>> machine.boottime() <= machine.boottime(), machine.boot_id() == machine.boot_id()
        (True, True)
    """

    def wall(self) -> int:
        """Returns the wall clock, in microseconds since 1970."""
        return time.time_ns() // 1_000

    def boottime(self) -> int:
        """Returns the microseconds since the machine started, suspended time included."""
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000

    def boot_id(self) -> int:
        """Returns a number that changes when the machine restarts; 0 if the system has none."""
        return Disk().boot_id()


class Anchor(msgspec.Struct, frozen=True):
    """The contents of the file; all times are in microseconds.

    `correction` is added within the minute after `boottime`. `first` is the time since boot of the first anchor of this
    boot.
    """

    wall: int
    boottime: int
    boot_id: int
    first: int
    correction: int = 0

    def time_at(self, boottime: int) -> int:
        """Returns the time at a time since boot.

        Example:
            >>> anchor = Anchor(1_000_000, 0, 7, 0, correction=-600_000)
            >>> anchor.time_at(30_000_000), anchor.time_at(60_000_000), anchor.time_at(70_000_000)
            (30700000, 60400000, 70400000)
        """
        passed = boottime - self.boottime
        return self.wall + passed + self.correction * min(passed, _MINUTE) // _MINUTE


class AnchoredClock:
    """The clock of a log folder; implements `Clock`.

    Args:
        disk: File system access.
        path: The file of the anchor. It is created on first use; if it cannot be written, the wall clock is used.
        machine: The clocks of the machine.

    Example:
        >>> import tempfile
        >>> clock = AnchoredClock(Disk(), Path(tempfile.mkdtemp()) / "clock.json")
        >>> clock.micros() <= clock.micros()
        True
    """

    def __init__(self, disk: Disk, path: Path, machine: TimeSource | None = None) -> None:
        self._disk = disk
        self._path = path
        self._machine = machine or MachineClock()
        self._mutex = threading.RLock()  # a file lock does not keep threads of one process apart
        self._anchor: Anchor | None = None
        self._read_at = -_READ_INTERVAL  # time since boot

    def now(self) -> datetime:
        """Returns the current time, in UTC."""
        return _EPOCH + timedelta(microseconds=self.micros())

    def micros(self) -> int:
        """Returns the current time in microseconds since 1970."""
        anchor = self._current_anchor()
        return self._machine.wall() if anchor is None else anchor.time_at(self._machine.boottime())

    def monotonic(self) -> float:
        """Returns seconds since a fixed point, without the time that the machine was suspended."""
        return time.monotonic()

    # -- the anchor ----------------------------------------------------------------------------------------------

    def _current_anchor(self) -> Anchor | None:
        """Returns the anchor of this boot; creates it if there is none; None if that is not possible."""
        boottime = self._machine.boottime()
        if 0 <= boottime - self._read_at < _READ_INTERVAL:
            return self._anchor
        with self._mutex:
            anchor = self._anchor if self._anchor is not None and self._is_valid(self._anchor) else None
            with contextlib.suppress(EnvironmentFaultError, OSError):
                anchor = self._read() or anchor or self.renew()
            self._anchor, self._read_at = anchor, boottime
            return anchor

    def _read(self) -> Anchor | None:
        """Returns the anchor in the file if it belongs to this boot."""
        data = self._disk.read_file(self._path)
        try:
            anchor = None if data is None else msgspec.json.decode(data, type=Anchor)
        except msgspec.DecodeError:  # a damaged file is replaced
            return None
        return anchor if anchor is not None and self._is_valid(anchor) else None

    def _is_valid(self, anchor: Anchor) -> bool:
        boottime, boot_id = self._machine.boottime(), self._machine.boot_id()
        if anchor.boot_id != boot_id or anchor.boottime > boottime:
            return False
        # Without a boot id, a restart looks like a jump of the wall clock.
        return boot_id != 0 or abs(self._machine.wall() - anchor.time_at(boottime)) < _MINUTE

    def renew(self, *, accept_wall: bool = False) -> Anchor:
        """Write a new anchor; in the same boot, it continues the present one.

        Args:
            accept_wall: Take the wall clock as it is, and trust it.
        """
        with self._file_lock():
            anchor, wall, boottime = self._read(), self._machine.wall(), self._machine.boottime()
            if accept_wall:
                new = Anchor(wall, boottime, self._machine.boot_id(), boottime - _SETTLED_AFTER)
            elif anchor is None:
                new = Anchor(wall, boottime, self._machine.boot_id(), boottime)
            else:
                reached = anchor.time_at(boottime)
                jumped = abs(wall - reached) >= _MINUTE
                correction = 0 if jumped else max(-_MAX_CORRECTION, min(wall - reached, _MAX_CORRECTION))
                new = Anchor(reached, boottime, anchor.boot_id, anchor.first, correction)
            self._disk.write_file(self._path, msgspec.json.encode(new), sync=False)
            self._anchor, self._read_at = new, boottime
            return new

    @contextlib.contextmanager
    def _file_lock(self) -> Iterator[None]:
        with self._mutex:
            handle = self._disk.open(self._path.with_suffix(".lock"))
            try:
                self._disk.lock(handle)
                yield
            finally:
                self._disk.close(handle)

    def reset_after_fork(self) -> None:
        """Forget the lock in a forked child: a thread of its parent may hold it for ever."""
        self._mutex = threading.RLock()

    # -- whether it is trusted -----------------------------------------------------------------------------------

    @property
    def jump(self) -> timedelta:
        """How far the wall clock is ahead of this clock; zero if less than a minute."""
        difference = self._machine.wall() - self.micros()
        return timedelta(microseconds=difference if abs(difference) >= _MINUTE else 0)

    @property
    def unsettled_for(self) -> timedelta:
        """The time until the wall clock of a new boot is trusted; zero if it is."""
        anchor = self._current_anchor()
        left = 0 if anchor is None else anchor.first + _SETTLED_AFTER - self._machine.boottime()
        return timedelta(microseconds=max(0, left))


def folder_clock(folder: Path) -> AnchoredClock:
    """Returns the clock of a data folder; the wall clock if the folder does not exist.

    Example:
        >>> clock = folder_clock(Path("nowhere"))
        >>> clock.micros() - MachineClock().wall() < 1_000_000, Path("nowhere").exists()
        (True, False)
    """
    return AnchoredClock(Disk(), folder / "clock.json")
