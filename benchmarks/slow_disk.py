"""A disk whose syncs take longer than this one's: what a figure that depends on the disk would be elsewhere.

Group commit and wake-up are judged by how they compare with one sync. Where a sync takes 0.1 ms, Python's own time
decides those figures; where it takes 2 ms, as on many disks of servers, the design does.
"""

from __future__ import annotations

import time

from headwater.log.storage import Disk

__all__ = ["EXTRA", "SlowDisk"]

EXTRA = 0.002


class SlowDisk(Disk):
    """The disk of this machine, with `EXTRA` seconds more for each sync."""

    def sync(self, handle: int) -> None:
        """Sync, then wait."""
        super().sync(handle)
        time.sleep(EXTRA)
