"""Consumer groups on Kafka, under their own names, so that other tools see their members and lag.

`KafkaGroups` is the entry. Each `GroupMember` has a consumer of the driver that fetches nothing and only
keeps the assignment, and a thread that makes all calls on it, because the driver allows one thread per
consumer: heartbeats, commits, rebalances. A partition that moves is released when its reader has confirmed
that it stopped reading. A reader that does not call `sync` within its session timeout loses all partitions.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Final, Protocol

from headwater.errors import FencedError, HeadwaterError, RefusedError, UnknownGroupError
from headwater.log.consumer_groups import GroupState, Membership
from headwater.log.event_log import Start
from headwater.log.kafka.brokers import Brokers, driver, topic_partition
from headwater.log.kafka.fetcher import KafkaGroupWaiter
from headwater.log.topic import Topic, check_name

__all__ = ["GroupMember", "KafkaGroups"]

_SESSION_TIMEOUT_MS: Final = (
    10_000  # milliseconds without a sign of life after which the brokers count a member as dead
)
_POLL_INTERVAL: Final = 0.05  # seconds that the driver may wait while a commit waits for it
_COMMIT_ATTEMPTS: Final = 40


class GroupMember:
    """A member of a group on one topic.

    Args:
        brokers: Where the group is.
        group: Its name, the same in Kafka.
        topic: What it reads.
        session: A reader that does not come back for this long loses its partitions.
        notify: Called when partitions came or are to go.
    """

    def __init__(
        self, brokers: Brokers, group: str, topic: str, session: timedelta, notify: Callable[[], None]
    ) -> None:
        self.group = group
        self.topic = topic
        self.id = ""
        self.generation = 0
        self.expelled = False
        self._brokers = brokers
        self._kafka = driver()
        self._session = session.total_seconds()
        self._notify = notify
        self._owned: set[int] = set()
        self._revoking: set[int] = set()
        self._changed = threading.Condition()
        self._commits: queue.SimpleQueue[tuple[list[Any], Future[None]]] = queue.SimpleQueue()
        self._last_poll_at = time.monotonic()
        self._closing = False
        self._joined = False
        self._join_done = threading.Event()
        session_ms = int(brokers.address.settings.get("session.timeout.ms", _SESSION_TIMEOUT_MS))
        self._consumer = brokers.create_consumer(
            {
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": max(100, session_ms // 4),
                "topic.metadata.refresh.interval.ms": 30_000,  # how soon new partitions are shared out
                "max.poll.interval.ms": max(session_ms, int(self._session * 1000) + 1000, 300_000),
            }
        )
        self._thread = threading.Thread(target=self._run, name="headwater-member", daemon=True)

    def join(self) -> None:
        """Become a member; comes back when the group has said what is ours, which can be nothing for now."""
        self._consumer.subscribe(
            [self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread.start()
        if not self._join_done.wait(self._brokers.patience + self._session):
            self.leave()
            codes = self._kafka.KafkaError
            raise self._brokers.translate_error(codes(codes._WAIT_COORD))

    def sync_partitions(self) -> set[int]:
        """Returns what is ours, without what is to go: our reader has let go of that by asking."""
        with self._changed:
            self._last_poll_at = time.monotonic()
            self._owned -= self._revoking
            self._revoking.clear()
            self._changed.notify_all()
            return set(self._owned)

    def commit(self, offsets: dict[int, int]) -> None:
        """Everything below these offsets is done.

        Raises:
            FencedError: A partition is not ours any more.
        """
        self._last_poll_at = time.monotonic()
        if self.expelled:
            raise self.fencing_error("the member was expelled")
        for partition in offsets:
            if partition not in self._owned:
                raise self.fencing_error(f"partition {partition} has another owner")
        partitions = [topic_partition(self.topic, *pair) for pair in offsets.items()]
        done: Future[None] = Future()
        self._commits.put((partitions, done))
        while self._thread.is_alive() and not done.done():
            with contextlib.suppress(TimeoutError):
                done.result(1)
        if not done.done():
            raise self.fencing_error("the member was expelled")
        done.result()

    def _raise_commit_error(self, error: Any, *, last: bool) -> None:
        codes = self._kafka.KafkaError
        if error.code() in (codes.ILLEGAL_GENERATION, codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID):
            self.expelled = True
            self.generation += 1
            raise self.fencing_error("the member was expelled")
        if error.code() != codes.REBALANCE_IN_PROGRESS or last:
            raise self._brokers.translate_error(error)

    def fencing_error(self, why: str) -> FencedError:
        """Returns the error of a member that is none any more."""
        return FencedError(
            f'group "{self.group}": {why}',
            detail="its commit was not taken",
            fix="open a new consumer; it continues at the committed offsets",
            group=self.group,
            generation=self.generation,
            member=self.id,
        )

    def leave(self) -> None:
        """Give the partitions back."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(self._brokers.patience)

    # -- in the member's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = min(_POLL_INTERVAL, self._session / 4)
        try:
            while not self._closing and not self.expelled:
                with contextlib.suppress(HeadwaterError, self._kafka.KafkaException):
                    self._consumer.poll(pause)
                if self._joined and not self._join_done.is_set():
                    self.id = str(self._consumer.memberid())
                    self._join_done.set()
                self._commit_pending()
                if time.monotonic() - self._last_poll_at > self._session:
                    self._expel()
        finally:
            with contextlib.suppress(self._kafka.KafkaException, RuntimeError):
                self._consumer.close()
            self._notify()

    def _commit_pending(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                partitions, done = self._commits.get_nowait()
                try:
                    self._commit(partitions)
                    done.set_result(None)
                except HeadwaterError as error:
                    done.set_exception(error)

    def _commit(self, partitions: list[Any]) -> None:
        for attempt in range(_COMMIT_ATTEMPTS):
            try:
                found = self._consumer.commit(offsets=partitions, asynchronous=False)
                failed = [place.error for place in found or () if place.error is not None]
                if not failed:
                    return
                error = failed[0]
            except self._kafka.KafkaException as raised:
                error = raised.args[0]
            self._raise_commit_error(error, last=attempt == _COMMIT_ATTEMPTS - 1)
            time.sleep(0.1)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)
        with self._changed:
            self._owned |= {place.partition for place in partitions}
            self.generation += bool(partitions) or not self._joined
        self._joined = True
        self._notify()

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        revoked = {place.partition for place in partitions}
        with self._changed:
            self._revoking |= revoked & self._owned
            self.generation += 1
        self._notify()
        while not self._closing and self._revoking & revoked and time.monotonic() - self._last_poll_at < self._session:
            self._commit_pending()  # the reader may finish what it has before it lets go
            with self._changed:
                self._changed.wait_for(lambda: self._closing or not (self._revoking & revoked), _POLL_INTERVAL)
        with self._changed:
            self._owned -= revoked
            self._revoking -= revoked
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        with self._changed:
            self._owned -= {place.partition for place in partitions}
            self.generation += 1
        with contextlib.suppress(self._kafka.KafkaException):
            consumer.incremental_unassign(partitions)
        self._notify()

    def _expel(self) -> None:
        with self._changed:
            self.expelled = True
            self._closing = True
            self.generation += 1
            self._owned.clear()


class TopicLookup(Protocol):
    """What groups need of the log."""

    def topic(self, name: str) -> Topic:
        """A topic's definition."""

    def topics(self) -> list[str]:
        """Returns the names of all topics."""

    def find_offset(self, name: str, partition: int, start: Start) -> int:
        """Returns the offset to start from."""


class KafkaGroups:
    """All consumer groups of the brokers.

    Args:
        brokers: Where they are.
        log: Knows topics and where to start in them.
    """

    def __init__(self, brokers: Brokers, log: TopicLookup) -> None:
        self._brokers = brokers
        self._log = log
        self._kafka = driver()
        self._lock = threading.Lock()
        self._members: dict[str, GroupMember] = {}
        self._starts: dict[str, dict[int, int]] = {}
        self._waiters: dict[tuple[str, str], list[KafkaGroupWaiter]] = {}

    def join(
        self, group: str, topic: str, *, start: Start = "earliest", session: timedelta = timedelta(minutes=5)
    ) -> Membership:
        """Become a member. If this process dies, its partitions come free some seconds later."""
        check_name(group, what="group")
        partitions = self._log.topic(topic).partitions
        begun = bool(self._topic_offsets(group, topic))
        starts = {} if begun else {p: self._log.find_offset(topic, p, start) for p in range(partitions)}
        member = GroupMember(self._brokers, group, topic, session, lambda: self._notify(group, topic))
        member.join()
        with self._lock:
            self._members[member.id] = member
            self._starts[member.id] = starts
        return self._membership(member)

    def sync(self, membership: Membership) -> Membership:
        """Stay a member, let go of what is to move, and learn what is mine now.

        Raises:
            FencedError: The member was expelled.
        """
        member = self._find_member(membership)
        if member.expelled:
            raise member.fencing_error("the member was expelled")
        mine, generation = member.sync_partitions(), member.generation
        if generation == membership.generation and mine == set(membership.positions):
            return membership
        return self._membership(member)

    def commit(self, membership: Membership, offsets: Mapping[int, int]) -> None:
        """Everything below these offsets is done.

        Raises:
            FencedError: A partition belongs to another member by now; none of the offsets was taken.
        """
        self._find_member(membership).commit(dict(offsets))

    def leave(self, membership: Membership) -> None:
        """Give the partitions back at once."""
        with self._lock:
            member = self._members.pop(membership.member, None)
            self._starts.pop(membership.member, None)
        if member is not None:
            member.leave()

    def _membership(self, member: GroupMember) -> Membership:
        mine, generation = member.sync_partitions(), member.generation
        known = self._topic_offsets(member.group, member.topic) if mine else {}
        fresh = {p: self._start_offset(member, p) for p in mine if p not in known}
        if fresh:
            member.commit(fresh)
        positions = {p: known.get(p, fresh.get(p, 0)) for p in sorted(mine)}
        return Membership(member.group, member.topic, member.id, generation, positions)

    def _start_offset(self, member: GroupMember, partition: int) -> int:
        """Returns where the group begins in a partition: as it was told to, or at the start of one that came later."""
        starts = self._starts.get(member.id, {})
        found = starts.get(partition)
        return self._log.find_offset(member.topic, partition, "earliest") if found is None else found

    def _find_member(self, membership: Membership) -> GroupMember:
        found = self._members.get(membership.member)
        if found is None:
            raise FencedError(
                f'this process has no member {membership.member} of group "{membership.group}"',
                fix="open a new consumer; it continues at the committed offsets",
                group=membership.group,
                generation=membership.generation + 1,
                member=membership.member,
            )
        return found

    # -- from outside --------------------------------------------------------------------------------------------

    def states(self) -> list[GroupState]:
        """Returns all groups on all declared topics."""
        topics = set(self._log.topics())
        listed = self._brokers.retry(
            lambda seconds: self._brokers.admin.list_consumer_groups(request_timeout=seconds).result()
        )
        names = sorted(group.group_id for group in listed.valid)
        owners = self._partition_owners(names)
        return [
            self._state(name, topic, offsets, owners[name])
            for name in names
            for topic, offsets in sorted(self._group_offsets(name).items())
            if topic in topics
        ]

    def state(self, group: str, topic: str) -> GroupState:
        """One group on one topic; its generation is what the members of this process have seen."""
        check_name(group, what="group")
        offsets = self._topic_offsets(group, topic)
        if not offsets:
            raise UnknownGroupError(f'no group "{group}" on topic "{topic}"', group=group)
        return self._state(group, topic, offsets, self._partition_owners([group])[group])

    def _state(self, group: str, topic: str, offsets: dict[int, int], owners: dict[str, dict[int, str]]) -> GroupState:
        seen = [m.generation for m in self._members.values() if (m.group, m.topic) == (group, topic)]
        return GroupState(group, topic, max(seen, default=0), owners.get(topic, {}), offsets)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group; only while none of its members is running.

        Raises:
            RefusedError: A member is running.
        """
        check_name(group, what="group")
        running = {owner for held in self._partition_owners([group])[group].values() for owner in held.values()}
        if running:
            raise RefusedError(
                f'group "{group}" has {len(running)} running members',
                detail=f"members: {', '.join(sorted(running))}",
                fix="stop its consumers first",
                group=group,
            )
        partitions = [topic_partition(topic, *pair) for pair in offsets.items()]
        wanted = self._kafka.ConsumerGroupTopicPartitions(group, partitions)
        self._brokers.call_admin(
            lambda admin, seconds: admin.alter_consumer_group_offsets([wanted], request_timeout=seconds)
        )

    def _topic_offsets(self, group: str, topic: str) -> dict[int, int]:
        return self._group_offsets(group).get(topic, {})

    def _group_offsets(self, group: str) -> dict[str, dict[int, int]]:
        wanted = self._kafka.ConsumerGroupTopicPartitions(group)
        found = self._brokers.call_admin(
            lambda admin, seconds: admin.list_consumer_group_offsets([wanted], request_timeout=seconds)
        )
        committed: dict[str, dict[int, int]] = {}
        for place in found[group].topic_partitions:
            if place.offset >= 0:
                committed.setdefault(place.topic, {})[place.partition] = place.offset
        return committed

    def _partition_owners(self, groups: list[str]) -> dict[str, dict[str, dict[int, str]]]:
        """Returns the member that has each partition, by group and topic."""
        owners: dict[str, dict[str, dict[int, str]]] = {group: {} for group in groups}
        if not groups:
            return owners

        def describe(admin: Any, seconds: float) -> dict[Any, Any]:
            found: dict[Any, Any] = admin.describe_consumer_groups(groups, request_timeout=seconds)
            return found

        try:
            found = self._brokers.call_admin(describe)
        except RefusedError:  # a group that nobody has used yet
            return owners
        for group, about in found.items():
            for member in about.members:
                for place in member.assignment.topic_partitions:
                    owners[group].setdefault(place.topic, {})[place.partition] = member.member_id
        return owners

    # -- waking --------------------------------------------------------------------------------------------------

    def watch(self, group: str, topic: str) -> KafkaGroupWaiter:
        """Returns a waiter for changes of a group that members of this process hear of."""
        waiter = KafkaGroupWaiter(lambda gone: self._remove_waiter(group, topic, gone))
        with self._lock:
            self._waiters.setdefault((group, topic), []).append(waiter)
        return waiter

    def _remove_waiter(self, group: str, topic: str, waiter: KafkaGroupWaiter) -> None:
        with self._lock:
            waiters = self._waiters.get((group, topic), [])
            if waiter in waiters:
                waiters.remove(waiter)

    def _notify(self, group: str, topic: str) -> None:
        for waiter in list(self._waiters.get((group, topic), ())):
            waiter.notify()

    def close(self) -> None:
        """Leave all groups."""
        with self._lock:
            members, self._members = list(self._members.values()), {}
        for member in members:
            member.leave()
