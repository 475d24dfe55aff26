"""Clocks: the current time, replaceable by a test clock, and the correction of device clocks.

A device stamps an event twice by its own clock: when it happened and when it was sent. The log knows when
it was received. Received minus sent is the offset of the device's clock plus the time in transit. That sum,
taken over several requests of the device, corrects the stated event time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from headwater.errors import BadSettingError
from headwater.units import duration, micros, moment

__all__ = ["UNKNOWN_TIME", "Clock", "ClockOffsets", "DeviceClock", "ManualClock", "SystemClock", "device_clock"]


class Clock(Protocol):
    """The clock of all packages; nothing else in Headwater reads the machine's clock."""

    def now(self) -> datetime:
        """Returns the present moment, in UTC."""
        ...

    def micros(self) -> int:
        """Returns the present moment as microseconds since 1970."""
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
        """Returns the present moment, in UTC."""
        return datetime.now(UTC)

    def micros(self) -> int:
        """Returns the present moment as microseconds since 1970."""
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
        """Returns the moment the clock stands at, in UTC."""
        return self._start + self._passed

    def micros(self) -> int:
        """Returns the moment the clock stands at, as microseconds since 1970."""
        return micros(self.now())

    def monotonic(self) -> float:
        """Seconds this clock was moved since it was made."""
        return self._passed.total_seconds()


Times = npt.NDArray[np.int64]
UNKNOWN_TIME: Final = -(2**63)
"""A time that is not known, among times in microseconds."""

_MAX_REQUESTS = 9  # of a device that its offset is taken from; the fifth slow one in a row would move it
_MAX_DEVICES = 100_000  # remembered in one process, those heard of last
_MIN_CORRECTION = 1_000_000  # microseconds: less than this may be the network, and is not corrected
_MAX_TIME = 2**61  # microseconds: sums of two such times still fit


@dataclass(frozen=True)
class DeviceClock:
    """Which columns hold a device's own times; `hw.device_clock` makes one.

    Args:
        column: When it happened, by the device's clock.
        sent: When it was sent, by the same clock.
        device: The columns that say which device it was; the topic's key, if empty.
        limit: A clock that is further off than this is not believed: its events count when they arrive.
    """

    column: str
    sent: str
    device: tuple[str, ...] = ()
    limit: timedelta | None = None

    def __str__(self) -> str:
        return f"{self.column}, corrected by {self.sent}"


def device_clock(
    column: str, *, sent: str, device: str | tuple[str, ...] | None = None, limit: str | timedelta | None = None
) -> DeviceClock:
    """Event time by the clock of a device, corrected by when its events arrive; for `time=` of a topic.

    The claimed times stay in their columns. The corrected time is the event's `occurred_at`, never later than its
    arrival; a column of that name is there in every pipeline that reads the topic.

    Args:
        column: When it happened, by the device's clock.
        sent: When it was sent, by the same clock; stamped anew for every attempt to send.
        device: The column or columns that say which device it was; the topic's key, if left out.
        limit: A clock that is further off than this is not believed: its events count when they arrive.

    Example:
        >>> str(device_clock("at", sent="sent_at", limit="2 days"))
        'at, corrected by sent_at'
    """
    names = () if device is None else (device,) if isinstance(device, str) else tuple(device)
    if column == sent:
        what = f"{column!r} cannot say both when an event happened and when it was sent"
        raise BadSettingError(what, fix='hw.device_clock("at", sent="sent_at")')
    return DeviceClock(column, sent, names, None if limit is None else duration(limit))


class ClockOffsets:
    """What one process knows of the clocks of devices: how far off each was in its last requests.

    The estimate is the lower median of received minus sent over the last nine requests of a device. A median, so that a
    request that was slow, or repeated with its old stamp, changes nothing; of requests, not events, so that a long
    request counts once; the lower one, because time on the way only ever adds. After a device's clock was set, it takes
    five requests to follow.

    Example:
        >>> offsets = ClockOffsets()
        >>> hour = 3_600_000_000
        >>> claimed, sent = np.array([10_000_000, 40_000_000]), np.array([50_000_000, 50_000_000])
        >>> (offsets.correct(["d1", "d1"], claimed, sent, 50_000_000 + hour) - hour).tolist()
        [10000000, 40000000]
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, tuple[tuple[int, int], ...]] = OrderedDict()
        self._lock = threading.Lock()

    def correct(
        self, devices: Sequence[Hashable | None], claimed: Times, sent: Times, received: int, limit: int | None = None
    ) -> Times:
        """Returns when each event happened, by our clock; never after it was received.

        Args:
            devices: Whose clock each event was stamped by; None where that is not known.
            claimed: When each event happened, by that clock; `UNKNOWN_TIME` stays so.
            sent: When it was sent, by that clock, or `UNKNOWN_TIME`.
            received: When all of them were received, by ours.
            limit: Offsets beyond this many microseconds are not believed.
        """
        offsets = self._offsets(devices, sent, received)
        clipped = np.clip(claimed, -_MAX_TIME, _MAX_TIME)
        times = np.minimum(np.where(np.abs(offsets) < _MIN_CORRECTION, clipped, clipped + offsets), received)
        if limit is not None:
            times = np.where(np.abs(offsets) > limit, received, times)
        return np.where(claimed == UNKNOWN_TIME, UNKNOWN_TIME, times)

    def _offsets(self, devices: Sequence[Hashable | None], sent: Times, received: int) -> Times:
        """Returns the estimate for each row; rows of one device with one stamp are one request."""
        offsets = np.zeros(len(sent), np.int64)
        start, stamps = 0, sent.tolist()
        with self._lock:
            for end in range(1, len(stamps) + 1):
                same = end < len(stamps) and stamps[end] == stamps[start] and devices[end] == devices[start]
                if not same:
                    offsets[start:end] = self._estimate(devices[start], stamps[start], received)
                    start = end
        return offsets

    def _estimate(self, device: Hashable | None, sent: int, received: int) -> int:
        seen = () if device is None else self._seen.get(device, ())
        if sent != UNKNOWN_TIME and (not seen or seen[-1][0] != sent):
            offset = min(max(received - sent, -_MAX_TIME), _MAX_TIME)
            seen = (*seen, (sent, offset))[-_MAX_REQUESTS:]
            if device is not None:
                self._remember(device, seen)
        ordered = sorted(offset for _, offset in seen)
        return ordered[(len(ordered) - 1) // 2] if ordered else 0

    def _remember(self, device: Hashable, seen: tuple[tuple[int, int], ...]) -> None:
        self._seen[device] = seen
        self._seen.move_to_end(device)
        if len(self._seen) > _MAX_DEVICES:
            self._seen.popitem(last=False)
