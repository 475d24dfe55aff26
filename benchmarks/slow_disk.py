"""A disk with slower syncs than this machine's, for figures that depend on the disk.

Group commit and notification are compared with one sync. If a sync takes 0.1 ms, the figures depend on Python's own
time; if it takes 2 ms, as on many servers, they depend on the design.
"""

from __future__ import annotations

import time

from headwater.log.storage import Disk

__all__ = ["EXTRA", "SlowDisk"]

EXTRA = 0.002  # seconds


class SlowDisk(Disk):
    """The disk of this machine, with `EXTRA` seconds more for each sync."""

    def sync(self, handle: int) -> None:
        """Sync, then wait."""
        super().sync(handle)
        time.sleep(EXTRA)
