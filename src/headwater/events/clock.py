"""Clocks: the current time, replaceable by a test clock, and the correction of device clocks.

A device stamps each event twice with its own clock: when it happened and when it was sent. The log knows when
it received the event. Received minus sent is the offset of the device's clock plus the network delay. The
estimate of that offset over several requests corrects the claimed event time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from headwater.errors import BadSettingError
from headwater.units import duration, micros, moment

__all__ = ["UNKNOWN_TIME", "Clock", "ClockOffsets", "DeviceClock", "ManualClock", "SystemClock", "device_clock"]


class Clock(Protocol):
    """The source of the current time; nothing else in Headwater reads the machine's clock."""

    def now(self) -> datetime:
        """Returns the current time, in UTC."""

    def micros(self) -> int:
        """Returns the current time in microseconds since 1970."""

    def monotonic(self) -> float:
        """Returns seconds since a fixed point; never goes back, so use it to measure timeouts."""


class SystemClock:
    """The machine's clock.

    Example:
        >>> clock = SystemClock()
        >>> clock.now().tzinfo is UTC and clock.monotonic() <= clock.monotonic()
        True
    """

    def now(self) -> datetime:
        """Returns the current time, in UTC."""
        return datetime.now(UTC)

    def micros(self) -> int:
        """Returns the current time in microseconds since 1970."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Returns seconds since a fixed point."""
        return time.monotonic()


class ManualClock:
    """A test clock that moves only when `advance` is called, from any thread.

    Example:
        >>> clock = ManualClock("2026-01-01T00:00:00Z")
        >>> clock.advance("10 minutes")
        >>> clock.now().isoformat(), clock.monotonic()
        ('2026-01-01T00:10:00+00:00', 600.0)
    """

    def __init__(self, at: datetime | str = "2026-01-01T00:00:00Z") -> None:
        self._start = moment(at)
        self._passed = timedelta()
        self._lock = threading.Lock()  # guards _passed

    def advance(self, by: str | timedelta) -> None:
        """Move the clock forward by a duration such as "10 minutes"."""
        with self._lock:
            self._passed += duration(by)

    def now(self) -> datetime:
        """Returns the time of the clock, in UTC."""
        return self._start + self._passed

    def micros(self) -> int:
        """Returns the time of the clock in microseconds since 1970."""
        return micros(self.now())

    def monotonic(self) -> float:
        """Returns the seconds that the clock was advanced since it was created."""
        return self._passed.total_seconds()


Times = npt.NDArray[np.int64]
UNKNOWN_TIME: Final = -(2**63)
"""Stands for an unknown time in arrays of microseconds."""

_MAX_REQUESTS = 9  # per device; fewer than five slow requests in a row do not move their lower median
_MAX_DEVICES = 100_000  # per process; the least recently seen device is dropped
_MIN_CORRECTION = 1_000_000  # microseconds; smaller offsets may be network delay and are not corrected
_MAX_TIME = 2**61  # microseconds; the sum of two such times fits into 64 bits


@dataclass(frozen=True)
class DeviceClock:
    """The columns with a device's own times; created by `hw.device_clock`.

    Args:
        column: The column with the event time, by the device's clock.
        sent: The column with the send time, by the same clock.
        device: The columns that identify the device; the topic's key if empty.
        limit: Events of a clock that is off by more than this get their arrival time.
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
    """Returns the event time by a device's clock, corrected on arrival; for `time=` of a topic.

    The claimed times stay in their columns. The corrected time is the event's `occurred_at` and never later than its
    arrival. Pipelines that read the topic have it as column `occurred_at`.

    Args:
        column: The column with the event time, by the device's clock.
        sent: The column with the send time, by the same clock; the device sets it again for each attempt to send.
        device: The column or columns that identify the device; the topic's key if left out.
        limit: Events of a clock that is off by more than this get their arrival time.

    Example:
        >>> str(device_clock("at", sent="sent_at", limit="2 days"))
        'at, corrected by sent_at'
    """
    names = () if device is None else (device,) if isinstance(device, str) else tuple(device)
    if column == sent:
        what = f"column {column!r} cannot be both the event time and the send time"
        raise BadSettingError(what, fix='hw.device_clock("at", sent="sent_at")')
    return DeviceClock(column, sent, names, None if limit is None else duration(limit))


class ClockOffsets:
    """Estimates the clock offsets of devices from their last requests, in one process.

    The estimate is the lower median of received minus sent over the last nine requests of a device. A median ignores
    single requests that were slow or repeated with an old stamp. It counts requests, not events, so a large request
    counts once. It is the lower median because network delay only adds. After a device's clock is set, the estimate
    follows within five requests.

    Example:
        >>> offsets = ClockOffsets()
        >>> hour = 3_600_000_000
        >>> claimed, sent = np.array([10_000_000, 40_000_000]), np.array([50_000_000, 50_000_000])
        >>> (offsets.correct(["d1", "d1"], claimed, sent, 50_000_000 + hour) - hour).tolist()
        [10000000, 40000000]
    """

    def __init__(self) -> None:
        # The last requests of each device, as (sent, offset), least recently seen device first.
        self._seen: OrderedDict[Hashable, tuple[tuple[int, int], ...]] = OrderedDict()
        self._lock = threading.Lock()  # guards _seen

    def correct(
        self, devices: Sequence[Hashable | None], claimed: Times, sent: Times, received: int, limit: int | None = None
    ) -> Times:
        """Returns the corrected time of each event, never later than `received`.

        Args:
            devices: The device of each event; None if unknown.
            claimed: The event times by the devices' clocks; `UNKNOWN_TIME` stays unknown.
            sent: The send times by the same clocks, or `UNKNOWN_TIME`.
            received: When the log received the events.
            limit: Events with a larger offset, in microseconds, get the time `received`.
        """
        offsets = self._offsets(devices, sent, received)
        clipped = np.clip(claimed, -_MAX_TIME, _MAX_TIME)
        times = np.minimum(np.where(np.abs(offsets) < _MIN_CORRECTION, clipped, clipped + offsets), received)
        if limit is not None:
            times = np.where(np.abs(offsets) > limit, received, times)
        return np.where(claimed == UNKNOWN_TIME, UNKNOWN_TIME, times)

    def _offsets(self, devices: Sequence[Hashable | None], sent: Times, received: int) -> Times:
        """Returns the estimate for each row; consecutive rows of one device with the same send time are one request."""
        offsets: list[int] = []
        with self._lock:
            for (device, stamp), request in groupby(zip(devices, sent.tolist(), strict=True)):
                estimate = self._estimate(device, stamp, received)
                offsets += [estimate for _ in request]
        return np.array(offsets, np.int64)

    def _estimate(self, device: Hashable | None, sent: int, received: int) -> int:
        seen = () if device is None else self._seen.get(device, ())
        if sent != UNKNOWN_TIME and (not seen or seen[-1][0] != sent):
            offset = min(max(received - sent, -_MAX_TIME), _MAX_TIME)
            seen = (*seen, (sent, offset))[-_MAX_REQUESTS:]
            if device is not None:
                self._seen[device] = seen
                self._seen.move_to_end(device)
                if len(self._seen) > _MAX_DEVICES:
                    self._seen.popitem(last=False)
        ordered = sorted(offset for _, offset in seen)
        return ordered[(len(ordered) - 1) // 2] if ordered else 0
