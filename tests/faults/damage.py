"""A log whose bytes can be damaged, read by a new process, and restored."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import DamagedError
from headwater.log import EventLog
from headwater.log.storage import Frame, FrameKind, Segment
from headwater.log.storage.disk import Disk
from tests.faults.checker import Found, Numbered
from tests.faults.processes import declared, numbered_rows, read_all


class AfterReboot(Disk):
    """The same disk after a reboot: only synced data can be trusted."""

    def boot_id(self) -> int:
        return super().boot_id() + 1


@dataclass
class Looked:
    """What a new process read: the events, and the damage that was reported, per segment."""

    events: dict[int, Numbered]
    damaged: dict[int, DamagedError]


class Patient:
    """A topic of one partition with several segments."""

    def __init__(self, folder: Path, *, batches: int = 30, rows: int = 3, pad: int = 0) -> None:
        self.folder = folder
        with EventLog(folder) as log:
            log.create(declared(segment_size=4_000))
            for number in range(batches):
                log.append("t", numbered_rows(f"p{number % 2}", number * rows, rows, pad=pad + number))
            self.events = {found.offset: found.event for found in read_all(log)}
        self.partition = folder / "topics" / "t" / "0"
        self.ends = folder / "topics" / "t" / "ends"
        self.segments = sorted(self.partition.glob("*.segment"))
        self.bases = [int(path.stem) for path in self.segments]
        self._bytes = {path: path.read_bytes() for path in (*self.segments, self.ends)}
        self._frames = {path: self._walk(path) for path in self.segments}

    def _walk(self, path: Path) -> list[Frame]:
        segment = Segment(Disk(), self.partition, int(path.stem))
        return list(segment.walk(0, len(self._bytes[path])))

    def frames(self, path: Path) -> list[Frame]:
        """Returns all frames of a segment before the damage."""
        return self._frames[path]

    def bytes_of(self, path: Path) -> bytes:
        """Returns the bytes of a file before the damage."""
        return self._bytes[path]

    @contextlib.contextmanager
    def with_bytes(self, path: Path, data: bytes) -> Iterator[None]:
        """Replace the bytes of a file until the block ends."""
        path.write_bytes(data)
        try:
            yield
        finally:
            self.heal()

    def heal(self) -> None:
        for file in self.partition.iterdir():
            if file not in self._bytes and file.name not in ("lock", "compaction.lock"):
                file.unlink()
        for path, data in self._bytes.items():
            path.write_bytes(data)

    def look(self, *, rebooted: bool = False) -> Looked:
        """Open the log again and read each segment separately, so that damage in one does not hide the others."""
        looked = Looked({}, {})
        with EventLog(self.folder, disk=AfterReboot() if rebooted else None) as log:
            for base, until in zip(self.bases, [*self.bases[1:], 1 << 40], strict=True):
                try:
                    self._read(log, base, until, looked.events)
                except DamagedError as damage:
                    looked.damaged[base] = damage
        return looked

    def _read(self, log: EventLog, base: int, until: int, events: dict[int, Numbered]) -> None:
        offset, end = base, min(until, log.ends("t")[0].end)
        while offset < end:
            batches = log.fetch("t", {0: offset}, max_bytes=1)
            assert batches, f"nothing at {offset} below the end {end}"
            for batch in batches:
                columns = batch.values.to_pydict()
                rows = map(Numbered, columns["producer"], columns["seq"])
                events.update(zip(batch.offsets.tolist(), rows, strict=True))
            offset = batches[-1].next_offset

    def found(self) -> list[Found]:
        return [Found(0, offset, event) for offset, event in self.events.items()]


def events_of(frames: list[Frame]) -> list[Frame]:
    """Returns the frames without the segment header."""
    return [frame for frame in frames if frame.kind is not FrameKind.SEGMENT_HEADER]


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target
