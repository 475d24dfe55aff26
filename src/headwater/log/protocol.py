"""The protocols of a log, independent of its backend.

Clients use `Log` and `ConsumerGroups`. Pipelines use `TimedLog`, whose event time can be read from the log
itself. `EventLog` (folder), `HttpLog` (node) and `KafkaLog` implement them; contract tests run against
each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from headwater.events import Clock, Receipt
from headwater.events.envelope import Receipts
from headwater.log.batch import LogBatch
from headwater.log.consumer_groups import GroupState, Membership
from headwater.log.event_log import PartitionRange, Start
from headwater.log.notifier import Waiter
from headwater.log.storage.frame import Frame
from headwater.log.tombstones import TombstoneHorizon
from headwater.log.topic import Topic
from headwater.log.write.append_buffer import PendingAppend
from headwater.log.write.write_batch import PendingEvent, WriteBatch

__all__ = ["ConsumerGroups", "Log", "PartitionEnd", "TimedLog", "TimedPartition", "TimedTopic"]


class ConsumerGroups(Protocol):
    """Consumer groups: members, their partitions, and committed offsets."""

    def join(self, group: str, topic: str, *, start: Start, session: timedelta) -> Membership:
        """Become a member."""

    def sync(self, membership: Membership) -> Membership:
        """Send a heartbeat and return the partitions assigned now."""

    def commit(self, membership: Membership, offsets: Mapping[int, int]) -> None:
        """Commit offsets: all events below them are processed."""

    def leave(self, membership: Membership) -> None:
        """Leave the group and release its partitions."""

    def states(self, topic: str | None = None) -> list[GroupState]:
        """Returns the state of all groups on all topics, or on one."""

    def state(self, group: str, topic: str) -> GroupState:
        """Returns the state of one group."""

    def watch(self, group: str, topic: str) -> Waiter:
        """Returns a waiter for changes of a group."""

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group."""

    def report(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group without members; a crash of the machine may undo it."""

    def delete(self, group: str, topic: str | None = None) -> None:
        """Delete the committed offsets of a group that has no running member, on one topic or on all."""


class PipelineGroups(ConsumerGroups, Protocol):
    """Consumer groups of a log that pipelines can run on."""

    def pipeline_inputs(self) -> dict[str, list[str]]:
        """Returns the topics that each pipeline reads, by the name of the pipeline."""


class Log(Protocol):
    """Topics that can be appended to and read."""

    repeats_appends: bool
    """Whether it repeats an append whose outcome is unknown, so that a new event can come back as a repeat."""

    @property
    def groups(self) -> ConsumerGroups:
        """The log's consumer groups."""

    def create(self, topic: Topic) -> Topic:
        """Create a topic or update it to this definition."""

    def topics(self) -> list[str]:
        """Returns the names of all topics."""

    def topic(self, name: str) -> Topic:
        """Returns a topic's definition under its newest type."""

    def delete(self, name: str) -> None:
        """Delete a topic with its events, side topics and the offsets of its groups."""

    def size(self, name: str) -> int | None:
        """Returns the size of a topic in bytes; None if the log cannot tell."""

    def side_topics(self, name: str) -> list[str]:
        """Returns the internal topics that exist only for a topic."""

    def append(self, name: str, batch: WriteBatch) -> Receipts:
        """Append rows and wait for the acknowledgement."""

    def append_one(self, name: str, event: PendingEvent) -> Receipt:
        """Append one event and wait for the acknowledgement."""

    def begin_append(self, name: str, event: PendingEvent) -> PendingAppend:
        """Accept one event and return at once."""

    def await_append(self, name: str, pending: PendingAppend) -> Receipt:
        """Wait for an event passed to `begin_append`."""

    def divert(self, name: str, batch: WriteBatch) -> Receipts:
        """Append rows to the topic of a topic's invalid events, and count them as offered to it and diverted."""

    def complete(self, name: str) -> int:
        """Advance the event time of a topic to the present and return it, in microseconds since 1970."""

    def last_sequences(self, name: str, producer: str) -> list[int]:
        """Returns the highest sequence number of a producer per partition."""

    def counts(self, name: str) -> dict[str, int]:
        """Returns the append counters of a topic."""

    def ends(self, name: str) -> list[PartitionRange]:
        """Returns what each partition holds."""

    def tombstone_horizons(self, name: str) -> list[TombstoneHorizon]:
        """Returns which tombstones may have been removed; partitions with none are left out."""

    def count_events(self, name: str, starts: Mapping[int, int] | None = None) -> dict[int, int]:
        """Returns the number of events in each partition, from an offset on; idle markers are not events."""

    def find_offset(self, name: str, partition: int, start: Start) -> int:
        """Returns the offset to start from."""

    def fetch(
        self, name: str, positions: Mapping[int, int], *, max_bytes: int, timeout: float, waiter: Waiter | None
    ) -> list[LogBatch]:
        """Returns batches from these offsets; waits for the first."""

    def watch(self, name: str, group: str | None = None) -> Waiter:
        """Returns a waiter for appends to a topic and, with `group`, for changes of that group."""

    def close(self) -> None:
        """Close files and connections."""


class PartitionEnd(Protocol):
    """The end of a partition and its max event time."""

    @property
    def next_offset(self) -> int:
        """The offset of the next event."""

    @property
    def max_event_time(self) -> int:
        """The highest event time so far, in microseconds since 1970."""


class TimedPartition(Protocol):
    """A partition whose event time is known at every frame without reading the events."""

    @property
    def number(self) -> int:
        """The partition's number."""

    def state(self) -> PartitionEnd:
        """Returns where the partition ends now."""

    def size(self, start: int, end: int) -> int:
        """Returns the bytes of `[start, end)` in memory, without a walk over the frames; both are frame boundaries."""

    def frame_headers(self, start: int, end: int) -> Iterator[Frame]:
        """Returns the headers of the frames that hold offsets in `[start, end)`."""

    def append_idle_marker(self, time: int) -> None:
        """Append an idle marker: advances the event time without an event."""


class TimedTopic(Protocol):
    """A topic as pipelines read it."""

    @property
    def definition(self) -> Topic:
        """The definition under the newest type."""

    @property
    def partitions(self) -> Sequence[TimedPartition]:
        """The partitions, by number."""

    def batches(self, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """Yields the events of offsets `[start, end)`."""


class TimedLog(Log, Protocol):
    """A log that pipelines can run on: its event time is stored, and is the same on every read."""

    @property
    def url(self) -> str:
        """The address by which another process opens the same log: a folder or a URL; may hold a password."""

    @property
    def clock(self) -> Clock:
        """The clock of the log."""

    @property
    def groups(self) -> PipelineGroups:
        """The log's consumer groups."""

    def open_topic(self, name: str) -> TimedTopic:
        """Returns a topic as pipelines read it."""

    def topic_id(self, name: str) -> str:
        """Returns the id that tells a topic from a later one of the same name; may be empty."""

    def append_idle_markers(self, name: str, time: int) -> None:
        """Advance the event time of all partitions of a topic, after their present events.

        On Kafka another process may keep the event-time index. It is asked to; this returns before it has done so.
        """

    def watch_event_times(self, names: Sequence[str]) -> Waiter:
        """Returns a waiter for everything that advances the event time of these topics."""

    def check_sizes(self, name: str, batch: WriteBatch) -> None:
        """Raise TooLargeError if an append of this batch would; appends nothing."""

    def sync(self, name: str) -> None:
        """Bring all events of a topic to stable storage, whatever its durability."""

    def await_event_time(self, name: str) -> None:
        """Wait until the event time of all present events of a topic is known."""
