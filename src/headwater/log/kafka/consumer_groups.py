"""Consumer groups on Kafka, under their own names, so that other tools see their members and lag.

Enter at `KafkaGroups`. Each `GroupMember` has a consumer of the driver that fetches nothing and only holds the
assignment, and a thread that makes all calls on it (heartbeats, commits, rebalances), because the driver
allows one thread per consumer. A revoked partition is released after its reader has confirmed that it stopped
reading. A reader that does not call `sync` within its session timeout loses all partitions.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Final

from headwater.errors import FencedError, HeadwaterError, RefusedError, UnknownGroupError
from headwater.log.consumer_groups import PIPELINE_GROUP_PREFIX, GroupState, Membership
from headwater.log.event_log import Start
from headwater.log.kafka.brokers import Brokers, topic_partition
from headwater.log.kafka.fetcher import KafkaGroupWaiter
from headwater.log.protocol import Log
from headwater.log.topic import check_name

__all__ = ["GroupMember", "KafkaGroups"]

_SESSION_TIMEOUT_MS: Final = 10_000  # without a heartbeat; then the brokers remove the member
_POLL_INTERVAL: Final = 0.05  # seconds of one poll of the driver; a commit waits at most this long
_INPUTS_AGE: Final = 5.0  # seconds until the brokers are asked again for the inputs of pipelines
_COMMIT_ATTEMPTS: Final = 40  # at intervals of 0.1 s, while the group rebalances


class GroupMember:
    """A member of a group on one topic.

    Args:
        brokers: The brokers.
        group: The group's name, also in Kafka.
        topic: The topic it reads.
        session: Session timeout of the reader; after it the member gives up its partitions.
        notify: Called when partitions were assigned or revoked.
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
        self._kafka = brokers.kafka
        self._session = session.total_seconds()
        self._notify = notify
        # Guards _owned, _revoking and generation. Never held during a call of the driver, which may run the callbacks.
        self._changed = threading.Condition()
        self._owned: set[int] = set()
        self._revoking: set[int] = set()  # owned until the reader's next sync
        self._commits: queue.SimpleQueue[tuple[list[Any], Future[None]]] = queue.SimpleQueue()
        self._last_poll_at = time.monotonic()
        self._closing = False
        self._joined = False  # set by the first assignment; `_join_done` follows when the member id is known
        self._join_done = threading.Event()
        session_ms = int(brokers.address.settings.get("session.timeout.ms", _SESSION_TIMEOUT_MS))
        self._consumer = brokers.create_consumer(
            {
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": max(100, session_ms // 4),
                "topic.metadata.refresh.interval.ms": 30_000,  # how soon new partitions are assigned
                "max.poll.interval.ms": max(session_ms, int(self._session * 1000) + 1000, 300_000),
            }
        )
        self._thread = threading.Thread(target=self._run, name="headwater-member", daemon=True)

    def join(self) -> None:
        """Join the group; return after the first assignment, which may be empty."""
        self._consumer.subscribe(
            [self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread.start()
        if not self._join_done.wait(self._brokers.patience + self._session):
            self.leave()
            codes = self._kafka.KafkaError
            raise self._brokers.translate_error(codes(codes._WAIT_COORD))

    def sync_partitions(self) -> set[int]:
        """Returns the owned partitions. The call itself confirms that the reader stopped reading revoked ones."""
        with self._changed:
            self._last_poll_at = time.monotonic()
            self._owned -= self._revoking
            self._revoking.clear()
            self._changed.notify_all()
            return set(self._owned)

    def commit(self, offsets: dict[int, int]) -> None:
        """Commit offsets: all events below them are processed.

        Raises:
            FencedError: The member no longer owns a partition.
        """
        self._last_poll_at = time.monotonic()
        if self.expelled:
            raise self.fencing_error()
        for partition in offsets:
            if partition not in self._owned:
                raise self.fencing_error(f"partition {partition} has another owner")
        partitions = [topic_partition(self.topic, *pair) for pair in offsets.items()]
        done: Future[None] = Future()
        self._commits.put((partitions, done))
        while self._thread.is_alive() and not done.done():
            with contextlib.suppress(TimeoutError):
                done.result(1)
        if not done.done():  # the thread ended before it took the commit
            raise self.fencing_error()
        done.result()

    def fencing_error(self, why: str = "the member was expelled") -> FencedError:
        """Returns the error of a member that lost a partition or its membership."""
        return _fencing_error(self.group, self.generation, self.id, why)

    def leave(self) -> None:
        """Leave the group and release the partitions."""
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
                    # Closing the consumer below leaves the group, so the brokers reassign at once.
                    with self._changed:
                        self.expelled = self._closing = True
                        self.generation += 1
                        self._owned.clear()
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
        codes = self._kafka.KafkaError
        for attempt in range(_COMMIT_ATTEMPTS):
            try:
                committed = self._consumer.commit(offsets=partitions, asynchronous=False)
                error = next((each.error for each in committed or () if each.error is not None), None)
            except self._kafka.KafkaException as raised:
                error = raised.args[0]
            if error is None:
                return
            if error.code() in (codes.ILLEGAL_GENERATION, codes.UNKNOWN_MEMBER_ID, codes.FENCED_INSTANCE_ID):
                # The brokers have removed the member: another one may own its partitions.
                self.expelled = True
                self.generation += 1
                raise self.fencing_error()
            if error.code() != codes.REBALANCE_IN_PROGRESS or attempt == _COMMIT_ATTEMPTS - 1:
                raise self._brokers.translate_error(error)
            time.sleep(0.1)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)  # this consumer only holds the assignment; readers fetch with others
        with self._changed:
            self._owned |= {each.partition for each in partitions}
            self.generation += bool(partitions) or not self._joined
        self._joined = True
        self._notify()

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        """Hold the rebalance until the reader has synced, or its session has ended."""
        revoked = {each.partition for each in partitions}
        with self._changed:
            self._revoking |= revoked & self._owned
            self.generation += 1
        self._notify()
        while not self._closing and self._revoking & revoked and time.monotonic() - self._last_poll_at < self._session:
            self._commit_pending()  # the reader commits what it has processed before it syncs
            with self._changed:
                self._changed.wait_for(lambda: self._closing or not (self._revoking & revoked), _POLL_INTERVAL)
        with self._changed:
            self._owned -= revoked
            self._revoking -= revoked
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        """The brokers have given the partitions to another member already: there is nothing to wait for."""
        with self._changed:
            self._owned -= {each.partition for each in partitions}
            self.generation += 1
        with contextlib.suppress(self._kafka.KafkaException):
            consumer.incremental_unassign(partitions)
        self._notify()


def _fencing_error(group: str, generation: int, member: str, why: str) -> FencedError:
    fix = "open a new consumer; it continues at the committed offsets"
    return FencedError(f'group "{group}": {why}', fix=fix, group=group, generation=generation, member=member)


class KafkaGroups:
    """All consumer groups of the brokers.

    Args:
        brokers: The brokers.
        log: The log, for topics and start offsets.
    """

    def __init__(self, brokers: Brokers, log: Log) -> None:
        self._brokers = brokers
        self._log = log
        self._kafka = brokers.kafka
        self._lock = threading.Lock()  # guards the three maps below
        self._members: dict[str, GroupMember] = {}
        self._starts: dict[str, dict[int, int]] = {}
        self._waiters: dict[tuple[str, str], list[KafkaGroupWaiter]] = {}
        self._inputs_lock = threading.Lock()  # held while the brokers are asked
        self._inputs: tuple[float, dict[str, list[str]]] = (-_INPUTS_AGE, {})

    def join(
        self, group: str, topic: str, *, start: Start = "earliest", session: timedelta = timedelta(minutes=5)
    ) -> Membership:
        """Join a group. If this process dies, its partitions are reassigned after `session.timeout.ms`."""
        check_name(group, what="group")
        partitions = range(self._log.topic(topic).partitions)
        begun = topic in self._group_offsets(group)
        starts = {} if begun else {p: self._log.find_offset(topic, p, start) for p in partitions}
        member = GroupMember(self._brokers, group, topic, session, lambda: self._notify(group, topic))
        member.join()
        with self._lock:
            self._members[member.id] = member
            self._starts[member.id] = starts
        return self._membership(member)

    def sync(self, membership: Membership) -> Membership:
        """Renew the session, release revoked partitions, and return the current assignment.

        Raises:
            FencedError: The member was expelled.
        """
        member = self._find_member(membership)
        if member.expelled:
            raise member.fencing_error()
        mine = member.sync_partitions()
        unchanged = member.generation == membership.generation and mine == set(membership.positions)
        return membership if unchanged else self._membership(member)

    def commit(self, membership: Membership, offsets: Mapping[int, int]) -> None:
        """Commit offsets: all events below them are processed.

        Raises:
            FencedError: A partition belongs to another member now; no offset was committed.
        """
        self._find_member(membership).commit(dict(offsets))

    def leave(self, membership: Membership) -> None:
        """Leave the group and release the partitions at once."""
        with self._lock:
            member = self._members.pop(membership.member, None)
            self._starts.pop(membership.member, None)
        if member is not None:
            member.leave()

    def _membership(self, member: GroupMember) -> Membership:
        mine, generation = member.sync_partitions(), member.generation
        offsets = self._group_offsets(member.group).get(member.topic, {}) if mine else {}
        # A new group starts as `join` says. Partitions that were added later are read from their start.
        starts = self._starts.get(member.id, {})
        for partition in mine - starts.keys() - offsets.keys():
            starts[partition] = self._log.find_offset(member.topic, partition, "earliest")
        fresh = {partition: starts[partition] for partition in mine - offsets.keys()}
        if fresh:
            member.commit(fresh)
        offsets |= fresh
        positions = {p: offsets[p] for p in sorted(mine)}
        return Membership(
            member.group, member.topic, member.id, generation, positions, self._marks(member.topic, fresh)
        )

    def _marks(self, topic: str, fresh: Mapping[int, int]) -> dict[int, int]:
        """Returns the tombstone marks of partitions that begin at their start now; Kafka has no place to keep them."""
        horizons = self._log.tombstone_horizons(topic) if fresh else []
        return {
            horizon.partition: horizon.fresh
            for horizon in horizons
            if fresh.get(horizon.partition) == self._log.find_offset(topic, horizon.partition, "earliest")
        }

    def _find_member(self, membership: Membership) -> GroupMember:
        found = self._members.get(membership.member)
        if found is None:
            why = f"member {membership.member} is not in this process"
            raise _fencing_error(membership.group, membership.generation + 1, membership.member, why)
        return found

    # -- administration ------------------------------------------------------------------------------------------

    def states(self, topic: str | None = None) -> list[GroupState]:
        """Returns the state of every group on every declared topic, or on one."""
        topics = set(self._log.topics()) if topic is None else {topic}
        names = self._names()
        owners = self._partition_owners(names)
        return [
            self._state(name, each, offsets, owners[name])
            for name in names
            for each, offsets in sorted(self._group_offsets(name).items())
            if each in topics
        ]

    def pipeline_inputs(self) -> dict[str, list[str]]:
        """Returns the topics that each pipeline reads, by the name of the pipeline; asked every few seconds."""
        with self._inputs_lock:
            asked_at, known = self._inputs
            if time.monotonic() - asked_at > _INPUTS_AGE:
                names = [name for name in self._names() if name.startswith(PIPELINE_GROUP_PREFIX)]
                known = {name.removeprefix(PIPELINE_GROUP_PREFIX): sorted(self._group_offsets(name)) for name in names}
                self._inputs = time.monotonic(), known
            return known

    def _names(self) -> list[str]:
        listed = self._brokers.retry(
            lambda seconds: self._brokers.admin.list_consumer_groups(request_timeout=seconds).result()
        )
        return sorted(group.group_id for group in listed.valid)

    def state(self, group: str, topic: str) -> GroupState:
        """Returns one group on one topic; its generation is the highest that members of this process have seen."""
        check_name(group, what="group")
        offsets = self._group_offsets(group).get(topic)
        if offsets is None:
            raise UnknownGroupError(f'no group "{group}" on topic "{topic}"', group=group)
        return self._state(group, topic, offsets, self._partition_owners([group])[group])

    def _state(self, group: str, topic: str, offsets: dict[int, int], owners: dict[str, dict[int, str]]) -> GroupState:
        seen = [m.generation for m in self._members.values() if (m.group, m.topic) == (group, topic)]
        return GroupState(group, topic, max(seen, default=0), owners.get(topic, {}), offsets)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group that has no running member.

        Raises:
            RefusedError: A member is running.
        """
        check_name(group, what="group")
        self._refuse_running_members(group)
        self.report(group, topic, offsets)

    def _refuse_running_members(self, group: str) -> None:
        running = {owner for held in self._partition_owners([group])[group].values() for owner in held.values()}
        if running:
            raise RefusedError(
                f'group "{group}" has {len(running)} running members',
                detail=f"members: {', '.join(sorted(running))}",
                fix="stop its consumers first",
                group=group,
            )

    def report(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group that never has members."""
        partitions = [topic_partition(topic, *pair) for pair in offsets.items()]
        wanted = self._kafka.ConsumerGroupTopicPartitions(group, partitions)
        self._brokers.call_admin(self._brokers.admin.alter_consumer_group_offsets, [wanted])

    def delete(self, group: str, topic: str | None = None) -> None:
        """Delete the committed offsets of a group on all topics; the driver deletes only whole groups.

        Raises:
            UnknownGroupError: There is no such group, or it has no offsets on this topic.
            RefusedError: A member is running, or the group has offsets on other topics than the one named.
        """
        check_name(group, what="group")
        known = self._group_offsets(group)
        if not known or topic not in (None, *known):
            what = f'no group "{group}"' + (f' on topic "{topic}"' if topic is not None else "")
            raise UnknownGroupError(what, group=group)
        if topic is not None and len(known) > 1:
            raise RefusedError(
                f'group "{group}" has offsets on other topics, and Kafka deletes only whole groups',
                detail=f"topics: {', '.join(sorted(known))}",
                fix=f"headwater groups delete {group}",
                group=group,
            )
        self._refuse_running_members(group)
        self._brokers.call_admin(self._brokers.admin.delete_consumer_groups, [group])

    def _group_offsets(self, group: str) -> dict[str, dict[int, int]]:
        """Returns the committed offsets by topic and partition; topics without one are left out."""
        wanted = self._kafka.ConsumerGroupTopicPartitions(group)
        found = self._brokers.call_admin(self._brokers.admin.list_consumer_group_offsets, [wanted])
        committed: dict[str, dict[int, int]] = {}
        for each in found[group].topic_partitions:
            if each.offset >= 0:
                committed.setdefault(each.topic, {})[each.partition] = each.offset
        return committed

    def _partition_owners(self, groups: list[str]) -> dict[str, dict[str, dict[int, str]]]:
        """Returns the member that owns each partition, by group, topic and partition."""
        owners: dict[str, dict[str, dict[int, str]]] = {group: {} for group in groups}
        if not groups:
            return owners
        try:
            found = self._brokers.call_admin(self._brokers.admin.describe_consumer_groups, groups)
        except RefusedError:  # the brokers do not know a group without members and offsets
            return owners
        for group, description in found.items():
            for member in description.members:
                for each in member.assignment.topic_partitions:
                    owners[group].setdefault(each.topic, {})[each.partition] = member.member_id
        return owners

    # -- notification --------------------------------------------------------------------------------------------

    def watch(self, group: str, topic: str) -> KafkaGroupWaiter:
        """Returns a waiter for rebalances of a group that members of this process take part in."""

        def remove(waiter: KafkaGroupWaiter) -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._waiters[group, topic].remove(waiter)

        waiter = KafkaGroupWaiter(remove)
        with self._lock:
            self._waiters.setdefault((group, topic), []).append(waiter)
        return waiter

    def _notify(self, group: str, topic: str) -> None:
        for waiter in list(self._waiters.get((group, topic), ())):
            waiter.notify()

    def close(self) -> None:
        """Leave all groups."""
        with self._lock:
            members, self._members = list(self._members.values()), {}
        for member in members:
            member.leave()
