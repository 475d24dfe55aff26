"""Verification: reads all bytes of a log, compares all checksums and reports faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import HeadwaterError
from headwater.log.event_log import EventLog
from headwater.log.open_topic import OpenTopic
from headwater.log.storage import FrameKind, Partition, PartitionState, Segment

__all__ = ["Fault", "VerifyReport", "verify"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Fault:
    """One fault and its location; -1 and empty text where the location is a whole topic."""

    topic: str
    partition: int
    segment: str
    offset: int | None
    position: int | None
    what: str


@dataclass
class VerifyReport:
    """What `verify` read and found; `notes` are torn tails that were cut off after a crash and saved."""

    topics: int = 0
    segments: int = 0
    events: int = 0
    bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    notes: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no faults."""
        return not self.faults


def verify(log: EventLog, progress: Progress | None = None) -> VerifyReport:
    """Verify all topics.

    Args:
        log: The log; appends may continue meanwhile.
        progress: Called with bytes read, bytes in total, and the partition that is read now.

    Example:
        >>> import tempfile
        >>> verify(EventLog(tempfile.mkdtemp())).ok
        True
    """
    report = VerifyReport()
    opened: list[OpenTopic] = []
    for name in log.topics():
        report.topics += 1
        try:
            opened.append(log.open_topic(name))
        except HeadwaterError as error:
            report.faults.append(Fault(name, -1, "", None, None, str(error)))
    work = [(topic, partition) for topic in opened for partition in topic.partitions]
    total = sum(_total_bytes(partition) for _, partition in work)
    for topic, partition in work:
        _check_partition(report, topic, partition, lambda name: progress and progress(report.bytes, total, name))
    return report


def _total_bytes(partition: Partition) -> int:
    try:
        return sum(partition.files.file_size(base) for base in partition.files.bases(fresh=True))
    except (HeadwaterError, OSError):
        return 0


def _check_partition(
    report: VerifyReport, topic: OpenTopic, partition: Partition, progress: Callable[[str], Any]
) -> None:
    name = topic.definition.name
    try:
        state = partition.state()
    except HeadwaterError as error:
        place = (error.data.get("segment", ""), error.data.get("offset"), error.data.get("position"))
        report.faults.append(Fault(name, partition.number, *place, str(error)))
        return
    for file in partition.disk.names(partition.folder):
        if ".torn-" in file:
            what = "a torn tail was cut off here and saved in this file"
            report.notes.append(Fault(name, partition.number, file, None, None, what))
    expected: int | None = None
    for base in partition.files.bases(fresh=True):
        segment = partition.files.segment(base)
        progress(f"{name}/{partition.number}")
        if expected is not None and base != expected:
            what = f"offsets {expected} to {base - 1} are missing"
            report.faults.append(Fault(name, partition.number, segment.path.name, expected, None, what))
        expected = _check_segment(report, topic, partition, segment, state)


def _check_segment(
    report: VerifyReport, topic: OpenTopic, partition: Partition, segment: Segment, state: PartitionState
) -> int:
    """Add the counts and faults of one segment; returns the base offset that the next one must have."""
    report.segments += 1
    here = (topic.definition.name, partition.number, segment.path.name)
    until = segment.base
    try:
        covers = segment.header()[1].covers_until
        limit = partition.files.valid_length(segment, state)
    except HeadwaterError as error:
        report.faults.append(Fault(*here, segment.base, 0, error.what))
        covers, limit = 0, partition.files.file_size(segment.base)
    position: int | None = 0
    while position is not None and position < limit:
        for frame in segment.walk(position, limit, check=True):
            position = frame.position + frame.length
            until = max(until, frame.next_offset)
            report.events += frame.count if frame.kind is FrameKind.EVENTS else 0
        if position >= limit:
            break
        report.faults.append(Fault(*here, until, position, "the checksum does not match"))
        position = segment.find_valid_frame(position + 8, limit)  # frames start at multiples of eight bytes
    report.bytes += limit
    return covers or until
