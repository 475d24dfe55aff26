"""A time that all processes of a machine share and nobody can set: visibility, delays and TTL are measured in it.

The wall clock may jump. Forward, it would take messages from receivers that still work on them; back, it would leave
those of dead receivers with them. So a queue has its own time: it begins at the wall clock's and then goes on with the
machine's monotonic clock, which all its processes share. After a restart of the machine it begins at the wall clock
again, but never behind what it had reached.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from headwater.events import Clock

__all__ = ["QueueTime"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class QueueTime:
    """The time of one queue, in microseconds.

    Example:
        >>> from headwater.events import ManualClock
        >>> from headwater.queues.embedded.tables import migrate
        >>> connection = sqlite3.connect(":memory:"); migrate(connection, Path("queue"))
        >>> clock = ManualClock(); time = QueueTime(clock, connection)
        >>> before = time.micros(); clock.advance("1 second"); time.micros() - before
        1000000
    """

    def __init__(self, clock: Clock, connection: sqlite3.Connection) -> None:
        self._clock = clock
        self._offset = self._anchored(connection)

    def _anchored(self, connection: sqlite3.Connection) -> int:
        """What to add to the monotonic clock; inside the caller's transaction."""
        boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        (reached,) = connection.execute("SELECT coalesce(max(changed), 0) FROM grp").fetchone()
        found = connection.execute("SELECT value FROM setting WHERE name = 'time'").fetchone()
        if found is not None:
            known = msgspec.json.decode(found[0])
            if known["boot"] == boot and known["offset"] + self._monotonic() >= reached:
                return int(known["offset"])
        offset: int = max(self._clock.micros(), reached) - self._monotonic()
        value = msgspec.json.encode({"boot": boot, "offset": offset})
        connection.execute("INSERT OR REPLACE INTO setting VALUES ('time', ?)", (value,))
        return offset

    def _monotonic(self) -> int:
        return round(self._clock.monotonic() * 1e6)

    def micros(self) -> int:
        """Now."""
        return self._offset + self._monotonic()
