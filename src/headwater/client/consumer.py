"""A consumer: one member of a group that resumes at the committed offsets; and the lag and reset of groups."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headwater.errors import DamagedError, RefusedError, UnknownGroupError
from headwater.events import Clock, Event
from headwater.log import Start
from headwater.log.consumer_groups import PIPELINE_GROUP_PREFIX, GroupState
from headwater.log.protocol import Log
from headwater.log.reader import TopicReader, age_of_oldest
from headwater.units import to_seconds

__all__ = [
    "Consumer",
    "Lag",
    "OffsetReset",
    "find_offsets",
    "group_lags",
    "open_reader",
    "refuse_pipeline_group",
    "refuse_unknown_group",
    "reset_group",
]

_CHECK_INTERVAL = 0.1  # seconds between checks of the group while events are buffered


class Consumer:
    """A member of a consumer group; iterate over it, and `commit` after the events are processed.

    Events that were delivered but not committed are delivered again after a crash, or when their partition moves
    to another member: at least once. The members of a group share the partitions. The partitions of a member that
    dies are assigned to the others at once.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> _ = client.create_topic("orders", "order_id string")
        >>> _ = client.send("orders", {"order_id": "a"})
        >>> with client.consumer("orders", group="billing") as consumer:
        ...     for event in consumer:
        ...         print(event.value)
        ...         consumer.commit()
        ...         break
        {'order_id': 'a'}
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        group: str,
        *,
        start: Start = "earliest",
        timeout: timedelta | None = None,
        session: timedelta = timedelta(minutes=5),
    ) -> None:
        refuse_pipeline_group(group)
        self._log = log
        self._timeout = timeout
        self._session = session.total_seconds()
        self._membership = log.groups.join(group, topic, start=start, session=session)
        try:
            self._reader = self._open_reader()
        except BaseException:
            log.groups.leave(self._membership)
            raise
        self._group_changes = log.groups.watch(group, topic)
        self._ready: deque[Event] = deque()
        self._uncommitted: dict[int, int] = {}
        self._checked_at = time.monotonic()
        self._synced_at = -self._session  # sync once at first: the group may have changed before the watch began
        self._closed = False

    @property
    def assignment(self) -> tuple[int, ...]:
        """The partitions this consumer reads now."""
        return tuple(sorted(self._membership.positions))

    @property
    def generation(self) -> int:
        """The number of rebalances of the group."""
        return self._membership.generation

    def _open_reader(self) -> TopicReader:
        joined = self._membership
        return TopicReader(self._log, joined.topic, joined.positions, group=joined.group, marks=joined.marks)

    def poll(self, timeout: float | str | timedelta = 0, most: int = 500) -> list[Event]:
        """Returns up to `most` events; waits up to `timeout` for the first."""
        self._fill(to_seconds(timeout))
        events = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        for event in events:
            self._uncommitted[event.partition] = event.offset + 1
        return events

    def __iter__(self) -> Iterator[Event]:
        while not self._closed:
            if not self._ready or time.monotonic() - self._checked_at > _CHECK_INTERVAL:
                self._fill(None if self._timeout is None else self._timeout.total_seconds())
                if not self._ready:
                    return
            event = self._ready.popleft()
            self._uncommitted[event.partition] = event.offset + 1
            yield event

    def commit(self) -> None:
        """Commit everything delivered so far; the group continues after it.

        Raises:
            FencedError: A partition belongs to another member by now; nothing was committed.
        """
        if self._uncommitted:
            self._log.groups.commit(self._membership, self._uncommitted)
            self._uncommitted = {}

    def _fill(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        changed = False
        while not self._closed:
            self._sync_if_due(changed)
            if self._ready:
                return
            # Three heartbeats per session timeout: one that comes late does not cost the partitions.
            left = self._session / 3 if deadline is None else deadline - time.monotonic()
            wait = max(0.0, min(left, self._session / 3))
            if self._reader.positions:
                for batch in self._reader.next(wait):
                    self._ready.extend(batch.events())
            else:  # more members than partitions: only a rebalance brings events
                changed = self._group_changes.wait(wait)
                if changed:
                    continue
            if self._ready or (deadline is not None and time.monotonic() >= deadline):
                return

    def _sync_if_due(self, changed: bool) -> None:
        now = self._checked_at = time.monotonic()
        if not (self._group_changes.wait(0) or changed) and now - self._synced_at < self._session / 3:
            return
        self._synced_at = now
        known = self._membership
        self._membership = self._log.groups.sync(known)
        if self._membership.generation == known.generation:
            return
        # Partitions that stay keep the read position, which is ahead of the committed offset. Buffered events of lost
        # partitions are dropped: their new owner delivers them.
        mine, was = self._membership.positions, self._reader.positions
        self._reader.positions = {p: was.get(p, offset) for p, offset in mine.items()}
        self._reader.marks |= self._membership.marks
        self._uncommitted = {p: offset for p, offset in self._uncommitted.items() if p in mine}
        self._ready = deque(event for event in self._ready if event.partition in mine)

    def close(self) -> None:
        """Leave the group; uncommitted events are delivered to other members again."""
        if not self._closed:
            self._closed = True
            self._log.groups.leave(self._membership)
            self._reader.close()
            self._group_changes.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


@dataclass(frozen=True)
class Lag:
    """The lag of one group in one partition.

    Attributes:
        group: The group.
        topic: The topic.
        partition: The partition.
        committed: The committed offset.
        end: The next offset of the partition.
        behind: How long the oldest unread event has waited.
        gone: How many unread events retention has removed.
        owner: The member that reads the partition.
        events: The number of unread events, with those that are gone.
    """

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    behind: timedelta
    gone: int = 0
    owner: str | None = None
    events: int = 0


@dataclass(frozen=True)
class OffsetReset:
    """A committed offset before and after a reset."""

    partition: int
    old: int | None
    new: int


def group_lags(log: Log, clock: Clock, group: str | None = None) -> list[Lag]:
    """Returns the lag of one group, or of all groups, in each partition.

    Raises:
        UnknownGroupError: There is no such group.
    """
    states = log.groups.states()
    wanted = [state for state in states if group in (None, state.group)]
    if group is not None:
        refuse_unknown_group(log, group, None, wanted)
    lags = []
    for state in wanted:
        ends = log.ends(state.topic)
        unread = log.count_events(state.topic, {b.partition: state.committed.get(b.partition, b.start) for b in ends})
        for bounds in ends:
            partition, committed = bounds.partition, state.committed.get(bounds.partition, bounds.start)
            behind = age_of_oldest(log, clock, state.topic, partition, max(committed, bounds.start))
            gone, owner = max(0, bounds.start - committed), state.owners.get(partition)
            events = unread[partition] + gone
            lags.append(Lag(state.group, state.topic, partition, committed, bounds.end, behind, gone, owner, events))
    return lags


def refuse_unknown_group(log: Log, group: str, topic: str | None, found: Sequence[GroupState]) -> None:
    """Refuse a group of which nothing was found, on a topic or at all.

    Raises:
        UnknownGroupError: Nothing was found.
    """
    if not found:
        known = sorted({state.group for state in log.groups.states()})
        what = f'no group "{group[:100]}"' + (f' on topic "{topic[:100]}"' if topic is not None else "")
        raise UnknownGroupError(what, detail=f"groups: {', '.join(known) or 'none yet'}", group=group[:100])


def refuse_pipeline_group(group: str) -> None:
    """Refuse to move the offsets of a pipeline's group.

    The group only reports how far the pipeline has read. The pipeline itself continues from its checkpoint, and
    retention would remove events below the moved offsets that it has not read.

    Raises:
        RefusedError: The group belongs to a pipeline.
    """
    if group.startswith(PIPELINE_GROUP_PREFIX):
        pipeline = group.removeprefix(PIPELINE_GROUP_PREFIX)
        raise RefusedError(
            f'group "{group}" belongs to pipeline "{pipeline}", which continues from its checkpoint',
            detail="a view reads events again when it is rebuilt; a stream does not: its rows are events already",
            fix=f"stop the app; headwater backfill {pipeline}",
            group=group,
            pipeline=pipeline,
        )


def reset_group(
    log: Log, group: str, topic: str, to: Start | Mapping[int, int], *, dry_run: bool = False
) -> list[OffsetReset]:
    """Set the committed offsets of a group; returns old and new offset per partition.

    Args:
        log: The log.
        group: The group; none of its members may be running.
        topic: The topic it reads.
        to: "earliest", "latest", an offset or a time; or an offset for each partition.
        dry_run: Only return what would change.

    Raises:
        RefusedError: The group belongs to a pipeline, or a member is running.
    """
    refuse_pipeline_group(group)
    known: Mapping[int, int] = {}
    with contextlib.suppress(UnknownGroupError, DamagedError):  # a reset creates the one and repairs the other
        known = log.groups.state(group, topic).committed
    offsets = to if isinstance(to, Mapping) else find_offsets(log, topic, to)
    resets = [OffsetReset(number, known.get(number), new) for number, new in offsets.items()]
    if not dry_run:
        log.groups.reset(group, topic, dict(offsets))
    return resets


def find_offsets(log: Log, topic: str, start: Start, partitions: Sequence[int] | None = None) -> dict[int, int]:
    """Returns the offset of a start in each of these partitions, or in all."""
    numbers = range(log.topic(topic).partitions) if partitions is None else partitions
    return {number: log.find_offset(topic, number, start) for number in numbers}


def open_reader(
    log: Log,
    topic: str,
    start: Start,
    stop: Start | None,
    partitions: Sequence[int] | None = None,
    marks: Mapping[int, int] | None = None,
) -> TopicReader:
    """Returns a reader from a start up to a stop: "end" for the events there are now, None to follow without an end.

    `marks` are those of an earlier reader, if this one continues at its position.

    Raises:
        DataGoneError: Compaction has removed tombstones behind the start, which is not that of the topic.
    """
    last = "latest" if stop == "end" else stop
    if start == "earliest":
        marks = {horizon.partition: horizon.fresh for horizon in log.tombstone_horizons(topic)}
    positions = find_offsets(log, topic, start, partitions)
    stops = None if last is None else find_offsets(log, topic, last, partitions)
    return TopicReader(log, topic, positions, stops, marks=marks)
