"""How far a group has come on a topic: one file, two records per partition, of which the newer sound one counts.

A commit overwrites the older record and is not synced: a power cut can take it, which only means reading again. The
file itself is made whole and durable at once, so that one without a sound record is always damage.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from headwater.errors import DamagedError
from headwater.log.storage import Disk

__all__ = ["Offsets"]

_RECORD = struct.Struct("<IQqq")  # checksum, number, offset, time
_SECTOR = 512  # a torn write damages one of a partition's two records, never both


class Offsets:
    """The committed offsets of one group on one topic; change them under the group's lock only.

    Example:
        >>> import tempfile
        >>> offsets = Offsets(Disk(), Path(tempfile.mkdtemp()) / "offsets", "billing", "orders")
        >>> offsets.begin({0: 0, 1: 0}, now=0); offsets.store({1: 7}, now=1); offsets.read()
        {0: 0, 1: 7}
    """

    def __init__(self, disk: Disk, path: Path, group: str, topic: str) -> None:
        self.path = path
        self._disk = disk
        self._group = group
        self._topic = topic

    def exists(self) -> bool:
        """Whether the group has begun on this topic."""
        return self._disk.exists(self.path)

    def read(self, partitions: int = 0) -> dict[int, int]:
        """Next offset to read per partition; none when the group has not begun.

        Args:
            partitions: How many there must be at least, if the group has begun.

        Raises:
            DamagedError: A partition has no sound record.
        """
        data = self._disk.read_file(self.path)
        if data is None:
            return {}
        if not data or len(data) % (2 * _SECTOR) or len(data) < 2 * _SECTOR * partitions:
            raise self._damaged("it is cut off", len(data) // (2 * _SECTOR))
        return {
            partition: self._newest(data, partition)[1] for partition in range(len(data) // (2 * _SECTOR))
        }

    def begin(self, offsets: Mapping[int, int], now: int) -> None:
        """The first offsets of a new group, durably."""
        data = bytearray(2 * _SECTOR * len(offsets))
        for partition, offset in offsets.items():
            at, record = _packed(partition, 1, offset, now)
            data[at : at + len(record)] = record
        self._disk.write_file(self.path, bytes(data))

    def store(self, offsets: Mapping[int, int], now: int) -> None:
        """New offsets for these partitions."""
        data = self._disk.read_file(self.path)
        if data is None:
            raise self._damaged("it is gone", min(offsets))
        handle = self._disk.open(self.path, create=False)
        try:
            for partition, offset in offsets.items():
                number = self._newest(data, partition)[0] + 1
                self._disk.write(handle, *_packed(partition, number, offset, now))
        finally:
            self._disk.close(handle)

    def settle(self) -> None:
        """Make them durable, in a new file: a sync of the old one proves nothing if one before it failed."""
        data = self._disk.read_file(self.path)
        if data:
            self._disk.write_file(self.path, data)
        for folder in self.path.parents[
            :4
        ]:  # topic, group, groups, the log: whoever made these may have died before it synced them
            self._disk.sync_folder(folder)

    def remove(self) -> None:
        """Give up a damaged file."""
        self._disk.remove(self.path)

    def _newest(self, data: bytes, partition: int) -> tuple[int, int]:
        """Number and offset of the newer of a partition's two records."""
        best = (0, 0)
        for place in range(2):
            at = (2 * partition + place) * _SECTOR
            if at + _RECORD.size > len(data):
                raise self._damaged(f"it has no partition {partition}", partition)
            crc, number, offset, _ = _RECORD.unpack_from(data, at)
            if zlib.crc32(data[at + 4 : at + _RECORD.size]) == crc:
                best = max(best, (number, offset))
        if not best[0]:
            raise self._damaged(f"no record of partition {partition} has a matching checksum", partition)
        return best

    def _damaged(self, why: str, partition: int) -> DamagedError:
        return DamagedError(
            f'the offsets of group "{self._group}" on topic "{self._topic}" are damaged',
            detail=f"{self.path}: {why}",
            fix=f"headwater reset {self._group} --topic {self._topic} --to earliest",
            group=self._group,
            partition=partition,
        )


def _packed(partition: int, number: int, offset: int, now: int) -> tuple[int, bytes]:
    """Where a record goes, and its bytes."""
    packed = _RECORD.pack(0, number, offset, now)
    crc = zlib.crc32(packed[4:]).to_bytes(4, "little")
    return (2 * partition + number % 2) * _SECTOR, crc + packed[4:]
