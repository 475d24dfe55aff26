"""The producer state of a partition: last sequence numbers, by which a repeated send is recognised.

A segment header holds the producers of pipelines and the most recent of the others. `OlderProducers` is a file beside
the segments with the rest. Each roll appends to it only what left the header since the last one, so its cost does not
depend on how many there are.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from headwater.errors import DamagedError
from headwater.log.storage.disk import Disk
from headwater.log.storage.frame import Frame, FrameKind, encode_frame, parse_header
from headwater.log.storage.partition_state import PartitionState
from headwater.log.storage.segment import SegmentFiles

__all__ = ["OlderProducers", "ProducerBatch", "ProducerState", "load_producers"]

logger = logging.getLogger("headwater.log")
_MAX_BATCHES: Final = 16  # per producer, for the receipts of repeated sends
_EXPIRY: Final = 7 * 86_400 * 1_000_000  # microseconds
_MAX_IDS: Final = 100_000  # of a partition; beyond it the least recently used are forgotten
_MAX_IN_HEADER: Final = 200  # ids, apart from permanent ones
_SUFFIX: Final = ".producers"
# Ids of bridges ("queue/…"), captures ("capture/…"), pipelines ("revenue@1") and commands ("hw.…"). Their retries may
# come after any time.
_PERMANENT: Final = re.compile(r"(queue|capture)/.+|.+@\d+|hw\..+")


class ProducerBatch(NamedTuple):
    """One batch of a producer in this partition."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    rows: int
    appended_at: int


Snapshot = Mapping[str, tuple[int, int, int, int, int]]
"""The last batch of each producer, with the fields of `ProducerBatch`."""


class OlderProducers:
    """The producers that a segment header leaves out: files of frames with checksums, each a part of them.

    A file is named after the roll that began it. A header names its file and how many bytes of it count, so bytes of
    a roll that was interrupted do not. A file of which most entries are outdated is replaced by a new one.

    Args:
        disk: File system access.
        folder: The partition's folder.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder

    def read(self, file: tuple[int, int]) -> tuple[dict[str, tuple[int, int, int, int, int]], int] | None:
        """Returns the producers in a file and its number of entries; None if it is lost or damaged.

        Args:
            file: The offset that names it, and the number of its bytes that count.
        """
        data = self._disk.read_file(self._path(file[0])) or b""
        found: dict[str, tuple[int, int, int, int, int]] = {}
        at = entries = 0
        while at < file[1]:
            frame = parse_header(memoryview(data), at, at)
            body = frame.body(memoryview(data)[at : at + frame.length]) if frame else None
            if frame is None or body is None:
                return None
            part = msgspec.json.decode(bytes(body).rstrip(b"\0"), type=dict[str, tuple[int, int, int, int, int]])
            found |= part
            entries += len(part)
            at += frame.length
        return found, entries

    def append(self, file: tuple[int, int], part: Snapshot) -> tuple[int, int]:
        """Append to a file, durably; creates it at length 0. Returns the file with its new length."""
        frame = Frame(FrameKind.SEGMENT_HEADER, file[0], file[0])
        data = encode_frame(frame, msgspec.json.encode(part))
        handle = self._disk.open(self._path(file[0]))
        try:
            self._disk.truncate(handle, file[1])
            self._disk.write(handle, file[1], data)
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        if not file[1]:
            self._disk.sync_folder(self._folder)
        return file[0], file[1] + len(data)

    def remove_others(self, file: tuple[int, int] | None) -> None:
        """Remove all files but one."""
        kept = self._path(file[0]).name if file else None
        for name in self._disk.names(self._folder):
            if name.endswith(_SUFFIX) and name != kept:
                self._disk.remove(self._folder / name)

    def _path(self, base: int) -> Path:
        return self._folder / f"{base:020d}{_SUFFIX}"


class ProducerState:
    """The last sequence number of each producer, and the positions of its latest batches.

    Example:
        >>> from headwater.log.storage.frame import Frame, FrameKind
        >>> producers = ProducerState()
        >>> sequences = {"first_sequence": 0, "last_sequence": 1}
        >>> producers.record(Frame(FrameKind.EVENTS, 10, 12, count=2, producer="till-7", **sequences))
        >>> producers.last_sequence("till-7"), producers.last_sequence("till-8")
        (1, -1)
    """

    def __init__(self) -> None:
        self._batches: dict[str, deque[ProducerBatch]] = {}  # the most recently used last
        self._file: tuple[int, int] | None = None  # of older producers
        self._in_file: dict[str, int] = {}  # the base offset of the batch that the file has, by producer
        self._entries = 0  # of the file, with outdated ones

    def last_sequence(self, producer: str) -> int:
        """Returns the highest sequence number of this producer; -1 when it has none."""
        batches = self._batches.get(producer)
        return batches[-1].last_sequence if batches else -1

    def record(self, frame: Frame) -> None:
        """Record a batch that is in the log."""
        if not frame.producer:
            return
        batches = self._batches.pop(frame.producer, None)
        if batches is None:
            batches = deque(maxlen=_MAX_BATCHES)
            if len(self._batches) > 1.1 * _MAX_IDS:
                self._forget_least_recent()
        batches.append(
            ProducerBatch(frame.first_sequence, frame.last_sequence, frame.base_offset, frame.count, frame.appended_at)
        )
        self._batches[frame.producer] = batches

    def offset_of(self, producer: str, sequence: int) -> int:
        """Returns the offset of a sequence number if it is in one of the last few batches; else -1."""
        for batch in reversed(self._batches.get(producer, ())):
            if batch.first_sequence <= sequence <= batch.last_sequence:
                per_row = batch.rows == batch.last_sequence - batch.first_sequence + 1
                return batch.base_offset + (sequence - batch.first_sequence if per_row else 0)
        return -1

    def find_missing(self, producer: str, first: int, last: int) -> int | None:
        """Returns the first sequence number of a range that is known not to be in the log; None if none is known.

        Numbers before the oldest batch that is remembered may be in the log.
        """
        after: int | None = None
        for batch in self._batches.get(producer, ()):
            if after is not None and max(first, after) <= min(last, batch.first_sequence - 1):
                return max(first, after)
            after = batch.last_sequence + 1
        return None

    def remove_expired(self, now: int) -> None:
        """Forget producers that have been inactive for seven days, except those of pipelines, bridges and captures."""
        self._batches = {
            name: batches
            for name, batches in self._batches.items()
            if now - batches[-1].appended_at < _EXPIRY or _PERMANENT.fullmatch(name)
        }
        self._forget_least_recent()

    def _forget_least_recent(self) -> None:
        """Forget the producers that are too many, except those of pipelines, bridges and captures."""
        for name in list(self._batches)[: max(0, len(self._batches) - _MAX_IDS)]:
            if not _PERMANENT.fullmatch(name):
                del self._batches[name]

    def snapshot(self) -> dict[str, tuple[int, int, int, int, int]]:
        """Returns the latest batch of each producer that belongs into a segment header."""
        names = [name for name in self._batches if _PERMANENT.fullmatch(name)]
        others = [name for name in self._batches if not _PERMANENT.fullmatch(name)]
        return self._latest(names + others[-_MAX_IN_HEADER:])

    def _latest(self, names: Iterable[str]) -> dict[str, tuple[int, int, int, int, int]]:
        return {name: tuple(self._batches[name][-1]) for name in names}  # type: ignore[misc]

    def save_older(self, files: OlderProducers, in_header: Snapshot, base: int) -> tuple[int, int] | None:
        """Write the producers that a header leaves out, if they are not yet written; returns their file.

        Args:
            files: Where.
            in_header: The producers in the header.
            base: The offset of the roll.
        """
        older = [name for name in self._batches if name not in in_header]
        new = [name for name in older if self._in_file.get(name) != self._batches[name][-1].base_offset]
        if not older:
            self._file, self._in_file, self._entries = None, {}, 0
        elif self._file is None or (
            self._entries + len(new) > 2 * len(older) + _MAX_IN_HEADER and self._file[0] != base
        ):
            self._file = files.append((base, 0), self._latest(older))
            self._in_file = {name: self._batches[name][-1].base_offset for name in older}
            self._entries = len(older)
        elif new:
            self._file = files.append(self._file, self._latest(new))
            self._in_file |= {name: self._batches[name][-1].base_offset for name in new}
            self._entries += len(new)
        return self._file

    def _is_outdated(self, older: int, new: int) -> bool:
        return self._entries + new > 2 * older + _MAX_IN_HEADER

    def restore(
        self,
        snapshot: Snapshot,
        frames: Iterable[Frame],
        older: Snapshot | None = None,
        file: tuple[int, int] | None = None,
        entries: int = 0,
    ) -> None:
        """Restore the state from a segment header, the frames that follow it, and the file of older producers."""
        known = sorted((dict(older or {}) | dict(snapshot)).items(), key=lambda item: item[1][4])
        self._batches = {name: deque([ProducerBatch(*batch)], _MAX_BATCHES) for name, batch in known}
        self._file, self._entries = file, entries
        self._in_file = {name: batch[2] for name, batch in (older or {}).items()} if file else {}
        for frame in frames:
            self.record(frame)


def load_producers(files: SegmentFiles, state: PartitionState) -> ProducerState:
    """Returns the producer state of the active segment; reads earlier segments if its header is damaged.

    Raises:
        DamagedError: The earlier segments were compacted and no longer hold the state.
    """
    producers = ProducerState()
    bases = [base for base in files.bases(fresh=True) if base <= state.segment]
    for index in reversed(range(len(bases))):
        try:
            head = files.segment(bases[index]).header()[1]
        except DamagedError as damage:
            logger.error("%s", damage)
            continue
        if head.covers_until and index + 1 < len(bases):
            raise files.segment(bases[index + 1]).damage_error(bases[index + 1], 0)
        frames = (
            frame
            for later in map(files.segment, bases[index:])
            for frame in later.walk_past_damage(0, files.valid_length(later, state))
        )
        if head.older_producers is None:
            producers.restore(head.producers, frames)
        elif (found := OlderProducers(files.disk, files.folder).read(head.older_producers)) is not None:
            producers.restore(head.producers, frames, found[0], head.older_producers, found[1])
        else:
            logger.warning("%s: the file of older producers is lost; it is rebuilt from the segments", files.folder)
            producers.restore(head.producers, frames, _rebuild_older(files, bases[:index], state))
        break
    return producers


def _rebuild_older(files: SegmentFiles, bases: list[int], state: PartitionState) -> Snapshot:
    """Returns the producers that the segments still know, from their headers and batches."""
    producers = ProducerState()
    known: dict[str, tuple[int, int, int, int, int]] = {}
    for segment in map(files.segment, bases):
        with contextlib.suppress(DamagedError):
            known |= segment.header()[1].producers
        for frame in segment.walk_past_damage(0, files.valid_length(segment, state)):
            producers.record(frame)
        known |= producers._latest(producers._batches)
    return known
