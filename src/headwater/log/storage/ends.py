"""Where each partition of a topic ends: one small shared file, a slot per partition.

Writers update a partition's slot after its batch is on disk; readers look here and never read beyond it. Every
write to this file wakes whoever watches it. The slots only repeat what the segments say, so a lost or damaged
file is rebuilt from them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from headwater.log.storage.disk import Disk
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["Ends", "Slot"]

_LAYOUT = struct.Struct("<IIqqqqqqqqq")
_SLOT_SIZE: Final = 128


@dataclass(frozen=True, slots=True)
class Slot:
    """The state of one partition.

    `segment` is the base offset of the segment being written and `length` its acknowledged bytes; `last_frame` is
    the position of the last acknowledged frame. `edition` counts how often older segments were removed or rewritten,
    so that others drop what they cached of them. `dirty` is set while files are being changed in several steps:
    whoever finds it under the lock repairs first. `distrusted`: a sync behind `length` failed in this `boot`, so what
    is read there may never reach the disk, whatever a later sync says.
    """

    start_offset: int = 0
    next_offset: int = 0
    segment: int = 0
    length: int = 0
    last_frame: int = 0
    running_max: int = LOWEST_TIME
    appended_at: int = 0
    edition: int = 0
    boot: int = 0
    dirty: bool = False
    distrusted: bool = False


_DIRTY, _DISTRUSTED = 1, 2
_NUMBERS = [field.name for field in fields(Slot) if field.name not in ("dirty", "distrusted")]


class Ends:
    """The shared file of slots.

    Example:
        >>> import tempfile
        >>> ends = Ends(Disk(), Path(tempfile.mkdtemp()) / "ends")
        >>> ends.read(1) is None
        True
        >>> ends.write(1, Slot(next_offset=7)); ends.read(1).next_offset
        7
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._handle = disk.open(path)

    def read(self, partition: int) -> Slot | None:
        """The slot, or None when it was never written or is damaged."""
        for _ in range(3):  # a slot read while it is being written fails its checksum once
            data = self._disk.read(self._handle, partition * _SLOT_SIZE, _LAYOUT.size)
            if len(data) == _LAYOUT.size and zlib.crc32(data[4:]) == int.from_bytes(data[:4], "little"):
                _, flags, *numbers = _LAYOUT.unpack(data)
                known = dict(zip(_NUMBERS, numbers, strict=True))
                return Slot(**known, dirty=bool(flags & _DIRTY), distrusted=bool(flags & _DISTRUSTED))
        return None

    def write(self, partition: int, slot: Slot) -> None:
        """Publish the slot; called under the partition's lock only."""
        packed = _LAYOUT.pack(
            0,
            slot.dirty * _DIRTY | slot.distrusted * _DISTRUSTED,
            slot.start_offset,
            slot.next_offset,
            slot.segment,
            slot.length,
            slot.last_frame,
            slot.running_max,
            slot.appended_at,
            slot.edition,
            slot.boot,
        )
        crc = zlib.crc32(packed[4:]).to_bytes(4, "little")
        self._disk.write(self._handle, partition * _SLOT_SIZE, crc + packed[4:])

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._handle)
