"""The ledger: what one batch of one query read, and what became of every event of it. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Counts", "InputRange", "LedgerEntry"]


@dataclass(frozen=True)
class Counts:
    """What became of the events of a range: each is in exactly one of the last four.

    The names are a promise: they stand in the system views, the documents of the node and the command line.

    Example:
        >>> total = Counts(in_=3, used=2, late=1) + Counts(in_=1)
        >>> total.in_, total.unaccounted
        (4, 1)
    """

    in_: int = 0
    used: int = 0
    late: int = 0
    quarantined: int = 0
    dropped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.in_ + other.in_,
            self.used + other.used,
            self.late + other.late,
            self.quarantined + other.quarantined,
            self.dropped + other.dropped,
        )

    @property
    def unaccounted(self) -> int:
        """Events nobody can tell the fate of; 0, or there is a mistake."""
        return self.in_ - self.used - self.late - self.quarantined - self.dropped


@dataclass(frozen=True)
class InputRange:
    """One input of one batch: offsets from `start` up to, not including, `end` by partition.

    Example:
        >>> InputRange("orders", {0: 0, 1: 4}, {0: 7, 1: 4}, Counts(in_=7, used=7)).end[0]
        7
    """

    topic: str
    start: Mapping[int, int]
    end: Mapping[int, int]
    counts: Counts = Counts()


@dataclass(frozen=True)
class LedgerEntry:
    """One batch of one query, as it stands in the ledger beside the rows it made.

    Attributes:
        query: Which version of which pipeline, such as "revenue@1".
        batch: The number of the micro-batch.
        epoch: Which runner made it.
        inputs: What it read.
        watermark: Event time up to which it is complete, in microseconds since 1970.
        committed_at: When, in microseconds since 1970.
        rows: How many rows changed.
        wall: Seconds it took.
        cpu: Seconds of processor it took.

    Example:
        >>> read = InputRange("orders", {0: 0}, {0: 5}, Counts(in_=5, used=5))
        >>> first = LedgerEntry("revenue@1", 0, 1, (read,), None, committed_at=0)
        >>> again = LedgerEntry("revenue@1", 0, 2, (read,), None, committed_at=9)
        >>> first.same_range(again), first.counts.used
        (True, 5)
    """

    query: str
    batch: int
    epoch: int
    inputs: tuple[InputRange, ...]
    watermark: int | None
    committed_at: int
    rows: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    @property
    def counts(self) -> Counts:
        """The sum over all inputs."""
        return sum((read.counts for read in self.inputs), Counts())

    def same_range(self, other: LedgerEntry) -> bool:
        """Whether both read the same offsets of the same topics."""
        return self.ranges() == other.ranges()

    def ranges(self) -> list[tuple[str, dict[int, int], dict[int, int]]]:
        """Topic, starts and ends of every input, in the order of the topics' names."""
        found = ((read.topic, dict(read.start), dict(read.end)) for read in self.inputs)
        return sorted(found, key=lambda read: (read[0], sorted(read[1].items()), sorted(read[2].items())))
