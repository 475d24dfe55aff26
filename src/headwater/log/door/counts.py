"""What the door of a topic decided, counted over all processes and kept across restarts.

`offered = appended + duplicate + refused + dropped`, once nothing waits any more.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Final

from headwater.log.storage.disk import Disk

__all__ = ["COUNTED", "Counts"]

# The order is the order in the file: append only.
COUNTED: Final = ("offered", "appended", "duplicate", "refused", "drop newest", "drop oldest", "drop sampled")
_LAYOUT = struct.Struct(f"<{len(COUNTED)}q")


class Counts:
    """Counters in a small shared file.

    Example:
        >>> import tempfile
        >>> counts = Counts(Disk(), Path(tempfile.mkdtemp()) / "counts")
        >>> counts.add({"offered": 3, "appended": 2}); counts.read()["offered"]
        3
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._handle = disk.open(path)
        self._mutex = threading.Lock()  # a file lock does not keep threads of one process apart

    def add(self, more: dict[str, int]) -> None:
        """Add to the counters named."""
        with self._mutex:
            self._disk.lock(self._handle)
            try:
                totals = self._totals()
                for name, number in more.items():
                    totals[COUNTED.index(name)] += number
                self._disk.write(self._handle, 0, _LAYOUT.pack(*totals))
            finally:
                self._disk.unlock(self._handle)

    def read(self) -> dict[str, int]:
        """All counters by name."""
        return dict(zip(COUNTED, self._totals(), strict=True))

    def _totals(self) -> list[int]:
        data = self._disk.read(self._handle, 0, _LAYOUT.size)
        return list(_LAYOUT.unpack(data.ljust(_LAYOUT.size, b"\0")))

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._handle)
