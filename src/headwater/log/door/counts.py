"""What the door of a topic decided, counted over all processes and kept across restarts.

`offered = appended + duplicate + refused + dropped`, once nothing waits any more.
"""

from __future__ import annotations

import logging
import struct
import threading
import zlib
from collections import Counter
from pathlib import Path
from typing import Final

from headwater.errors import DiskFailedError, DiskFullError
from headwater.log.storage.disk import Disk

__all__ = ["COUNTED", "Counts"]

logger = logging.getLogger("headwater.log")
# The order is the order in the file: append only.
COUNTED: Final = ("offered", "appended", "duplicate", "refused", "drop newest", "drop oldest", "drop sampled")
_LAYOUT = struct.Struct(f"<{len(COUNTED)}qI")


class Counts:
    """Counters in a small shared file, with a checksum.

    Example:
        >>> import tempfile
        >>> counts = Counts(Disk(), Path(tempfile.mkdtemp()) / "counts")
        >>> counts.add({"offered": 3, "appended": 2}); counts.read()["offered"]
        3
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._handle = disk.open(path)
        self._mutex = threading.Lock()  # a file lock does not keep threads of one process apart
        self._owed: Counter[str] = Counter()

    def add(self, more: dict[str, int]) -> None:
        """Add to the counters named; if the disk refuses, with the next ones: events do not fail by being counted."""
        with self._mutex:
            self._owed.update(more)
            self._disk.lock(self._handle)
            try:
                totals = self._totals()
                for name, number in self._owed.items():
                    totals[COUNTED.index(name)] += number
                packed = _LAYOUT.pack(*totals, 0)[:-4]
                self._disk.write(self._handle, 0, packed + zlib.crc32(packed).to_bytes(4, "little"))
                self._owed.clear()
            except (DiskFullError, DiskFailedError) as error:
                logger.warning("%s: not counted yet: %s", self.path, error.what)
            finally:
                self._disk.unlock(self._handle)

    def read(self) -> dict[str, int]:
        """All counters by name."""
        with self._mutex:
            self._disk.lock(self._handle)
            try:
                return dict(zip(COUNTED, self._totals(), strict=True))
            finally:
                self._disk.unlock(self._handle)

    def _totals(self) -> list[int]:
        data = self._disk.read(self._handle, 0, _LAYOUT.size)
        if not data:
            return [0] * len(COUNTED)
        if len(data) < _LAYOUT.size or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            logger.warning("%s: the counters were damaged and begin again at 0", self.path)
            return [0] * len(COUNTED)
        return list(_LAYOUT.unpack(data)[:-1])

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._handle)
