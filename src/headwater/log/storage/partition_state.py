"""The published state of each partition of a topic: one small shared file, a slot per partition.

Writers update a partition's slot after its batch is on disk. Readers never read beyond it. Every write to
this file wakes the processes that watch it. The slots repeat what the segments say, so a lost or damaged
file is rebuilt from them.
"""

from __future__ import annotations

import struct
import sys
import zlib
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Final

from headwater.log.storage.disk import Disk
from headwater.log.storage.frame import LOWEST_TIME

__all__ = ["PartitionState", "StateFile"]

_LAYOUT = struct.Struct("<IIqqqqqqqqq")
_RECORD_SIZE: Final = 128  # bytes per partition; larger than the layout, for later fields


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one partition.

    `segment` is the base offset of the active segment and `length` its acknowledged bytes; `last_frame` is
    the position of the last acknowledged frame. `files_version` counts how often older segments were
    removed or rewritten, so that other processes drop their caches. `dirty` is set while files are changed
    in several steps: a process that finds it under the lock recovers first. `sync_failed` means that a sync
    behind `length` failed in this `boot_id`: bytes that can be read there may never reach the disk, even if
    a later sync succeeds.
    """

    start_offset: int = 0
    next_offset: int = 0
    segment: int = 0
    length: int = 0
    last_frame: int = 0
    max_event_time: int = LOWEST_TIME
    appended_at: int = 0
    files_version: int = 0
    boot_id: int = 0
    dirty: bool = False
    sync_failed: bool = False


_DIRTY, _SYNC_FAILED = 1, 2
# The fields before the two flags, in the order of the file.
_NUMBERS = [field.name for field in fields(PartitionState)][:-2]
_get_numbers = attrgetter(*_NUMBERS)


class StateFile:
    """The shared file of slots.

    Example:
        >>> import tempfile
        >>> ends = StateFile(Disk(), Path(tempfile.mkdtemp()) / "ends")
        >>> ends.read(1) is None
        True
        >>> ends.write(1, PartitionState(next_offset=7)); ends.read(1).next_offset
        7
    """

    _handle = -1

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self.deleted = False  # whether the topic was found to be deleted, by any process
        self._disk = disk
        self._handle = disk.open(path)

    def read(self, partition: int) -> PartitionState | None:
        """Returns the slot, or None when it was never written or is damaged."""
        for _ in range(3):  # a slot read while it is being written fails its checksum once
            data = self._disk.read(self._handle, partition * _RECORD_SIZE, _LAYOUT.size)
            if len(data) == _LAYOUT.size and zlib.crc32(data[4:]) == int.from_bytes(data[:4], "little"):
                _, flags, *numbers = _LAYOUT.unpack(data)
                values = dict(zip(_NUMBERS, numbers, strict=True))
                return PartitionState(**values, dirty=bool(flags & _DIRTY), sync_failed=bool(flags & _SYNC_FAILED))
        return None

    def write(self, partition: int, state: PartitionState) -> None:
        """Publish the slot; only under the partition's lock."""
        packed = _LAYOUT.pack(0, state.dirty * _DIRTY | state.sync_failed * _SYNC_FAILED, *_get_numbers(state))
        crc = zlib.crc32(packed[4:]).to_bytes(4, "little")
        self._disk.write(self._handle, partition * _RECORD_SIZE, crc + packed[4:])

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._disk.close(handle)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()
