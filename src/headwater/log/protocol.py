"""What others need of a log, wherever it is: clients of `Log`; pipelines of `TimedLog`, which knows event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from headwater.events import Clock, Receipt
from headwater.log.batch import LogBatch
from headwater.log.definition import Topic
from headwater.log.event_log import PartitionRange, Start
from headwater.log.groups import GroupState, Membership
from headwater.log.receipts import Receipts
from headwater.log.rows import Row, Rows
from headwater.log.storage.frame import Frame
from headwater.log.wakeup import Waiter

__all__ = ["GroupBook", "Log", "PartitionEnd", "TimedLog", "TimedPartition", "TimedTopic"]


class GroupBook(Protocol):
    """Consumer groups: who reads what, and how far they have come."""

    def join(self, group: str, topic: str, *, start: Start, session: timedelta) -> Membership:
        """Become a member."""

    def sync(self, membership: Membership) -> Membership:
        """Stay a member; learn what is mine now."""

    def commit(self, membership: Membership, offsets: Mapping[int, int]) -> None:
        """Everything below these offsets is done."""

    def leave(self, membership: Membership) -> None:
        """Give the partitions back."""

    def states(self) -> list[GroupState]:
        """All groups."""

    def state(self, group: str, topic: str) -> GroupState:
        """One group."""

    def watch(self, group: str, topic: str) -> Waiter:
        """A wake-up for changes of a group."""

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set where a group goes on."""


class Log(Protocol):
    """Topics that can be appended to and read."""

    @property
    def groups(self) -> GroupBook:
        """Its consumer groups."""

    def create(self, topic: Topic) -> Topic:
        """Create a topic or bring it up to this definition."""

    def topics(self) -> list[str]:
        """Names of all topics."""

    def topic(self, name: str) -> Topic:
        """A topic's definition under its newest type."""

    def append(self, name: str, rows: Rows) -> Receipts:
        """Append rows and wait for the acknowledgement."""

    def append_one(self, name: str, row: Row) -> Receipt:
        """Append one event and wait for the acknowledgement."""

    def put(self, name: str, row: Row) -> Any:
        """Hand one event over and come back at once."""

    def finish(self, name: str, entry: Any) -> Receipt:
        """Wait for an event that was `put`."""

    def last_sequences(self, name: str, producer: str) -> list[int]:
        """Highest sequence of a producer per partition."""

    def counts(self, name: str) -> dict[str, int]:
        """What the topic's door decided."""

    def ends(self, name: str) -> list[PartitionRange]:
        """What each partition holds."""

    def find(self, name: str, partition: int, start: Start) -> int:
        """The offset to start from."""

    def fetch(
        self,
        name: str,
        positions: Mapping[int, int],
        *,
        max_bytes: int,
        timeout: float,
        waiter: Waiter | None,
    ) -> list[LogBatch]:
        """Batches from these offsets on; waits for the first."""

    def watch(self, name: str, group: str | None = None) -> Waiter:
        """A wake-up for appends to a topic and, with `group`, for changes of that group."""

    def close(self) -> None:
        """Let go of files and connections."""


class PartitionEnd(Protocol):
    """Where a partition ends, and the highest event time so far there."""

    @property
    def next_offset(self) -> int:
        """The offset of the next event."""

    @property
    def running_max(self) -> int:
        """The highest event time so far, in microseconds since 1970."""


class TimedPartition(Protocol):
    """A partition whose event time is known at every frame, without reading the events."""

    @property
    def number(self) -> int:
        """Which partition."""

    def slot(self) -> PartitionEnd:
        """Where it ends now."""

    def headers(self, start: int, end: int) -> Iterator[Frame]:
        """Headers of the frames that hold offsets of `[start, end)`."""

    def mark(self, time: int) -> None:
        """Move its time on without an event."""


class TimedTopic(Protocol):
    """A topic as pipelines read it."""

    @property
    def definition(self) -> Topic:
        """Its definition under its newest type."""

    @property
    def partitions(self) -> Sequence[TimedPartition]:
        """Its partitions, by number."""

    def batches(self, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """The events of offsets `[start, end)`."""


class TimedLog(Log, Protocol):
    """A log that pipelines can run on: its event time is a property of its contents, the same on every read."""

    @property
    def where(self) -> str:
        """What another process opens the same log by: a folder or a URL; it may hold a password."""

    @property
    def clock(self) -> Clock:
        """What time it is."""

    def opened(self, name: str) -> TimedTopic:
        """A topic as pipelines read it."""

    def incarnation(self, name: str) -> str:
        """What tells a topic from another one that was made later under the same name; may be empty."""

    def watch_times(self, names: Sequence[str]) -> Waiter:
        """A wake-up for everything that moves the time of one of these topics."""

    def settle(self, name: str) -> None:
        """Return when the event time of everything that is in a topic now is known."""
