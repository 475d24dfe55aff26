"""A model of the log in plain Python: the expected contents of each partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

LOWEST = -(2**63)


class Record(NamedTuple):
    """One event: its producer, number, key, event time (None: arrival), and whether it is a tombstone."""

    producer: str
    number: int
    key: str
    at: int | None
    deleted: bool = False


class Stored(NamedTuple):
    """An event at its offset; an idle marker has no record."""

    record: Record | None
    received: int
    running_before: int


@dataclass
class Allowed:
    """What may differ after a fault, because its outcome was not reported."""

    maybe: list[list[Record]] = field(default_factory=list)  # sent, not acknowledged: some whole ones are there
    mark: bool = False  # an idle marker may have been written
    gone_until: int = 0  # retention may have removed offsets below this
    superseded: set[int] = field(default_factory=set)  # compaction may have removed these
    shorter: bool = False  # acknowledged, but the topic's durability does not cover a power cut


@dataclass
class ModelPartition:
    """Offsets `[start, end)`, the events that are there, and the highest event time."""

    ahead: int
    start: int = 0
    end: int = 0
    running: int = LOWEST
    events: dict[int, Stored] = field(default_factory=dict)
    sequences: dict[str, dict[int, int]] = field(default_factory=dict)

    def add(self, records: Iterable[Record], received: int, *, idempotent: bool = False) -> None:
        """Append events that arrived together."""
        for record in records:
            self.events[self.end] = Stored(record, received, self.running)
            if idempotent:
                self.sequences.setdefault(record.producer, {})[record.number] = self.end
            time = received if record.at is None else record.at
            if time <= received + self.ahead:
                self.running = max(self.running, time)
            self.end += 1

    def add_mark(self, running: int, received: int) -> None:
        """Append an idle marker, which takes one offset."""
        self.events[self.end] = Stored(None, received, self.running)
        self.running = max(self.running, running)
        self.end += 1

    def last(self, producer: str) -> int:
        """Returns the highest sequence number of an idempotent producer; -1 when it has none."""
        return max(self.sequences.get(producer, {}), default=-1)

    def late(self, offset: int, lateness: int) -> bool:
        """Whether an event is more than the lateness behind the max event time before it."""
        stored = self.events[offset]
        assert stored.record is not None
        time = stored.received if stored.record.at is None else stored.record.at
        return time < stored.running_before - lateness

    def reaches(self, time: int) -> int:
        """Returns the first offset at which event time reaches `time`; the end if none does."""
        for offset in sorted(self.events):
            stored = self.events[offset]
            after = self.events[offset + 1].running_before if offset + 1 in self.events else None
            if (self.running if after is None else after) >= time > stored.running_before:
                return offset
        return self.end if self.running < time else self.start

    def superseded(self, below: int, oldest_tombstone: int) -> set[int]:
        """Returns the offsets that compaction below an offset may remove."""
        last: dict[str, int] = {}
        for offset, stored in self.events.items():
            if stored.record is not None and offset < below:
                last[stored.record.key] = max(offset, last.get(stored.record.key, 0))
        return {
            offset
            for offset, stored in self.events.items()
            if stored.record is not None
            and offset < below
            and (offset < last[stored.record.key] or (stored.record.deleted and stored.received < oldest_tombstone))
        }

    def remove_below(self, start: int) -> None:
        """Remove what retention removed below an offset."""
        self.start = max(self.start, start)
        for offset in [offset for offset in self.events if offset < start]:
            del self.events[offset]

    def cut(self, end: int, running: int) -> None:
        """Remove what a power cut lost from an offset on."""
        for offset in [offset for offset in self.events if offset >= end]:
            del self.events[offset]
        for known in self.sequences.values():
            for number in [number for number, offset in known.items() if offset >= end]:
                del known[number]
        self.end, self.running = end, running
