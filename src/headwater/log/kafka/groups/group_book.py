"""Consumer groups of Kafka, under their own names, so that other tools see their members and their lag."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from headwater.errors import FencedError, RefusedError, UnknownGroupError
from headwater.log.definition import Topic, check_name
from headwater.log.event_log import Start
from headwater.log.groups import GroupState, Membership
from headwater.log.kafka.brokers import Brokers, driver, partition_at
from headwater.log.kafka.groups.member import Member
from headwater.log.kafka.waiter import GroupWaiter

__all__ = ["KafkaGroups"]


class Offsets(Protocol):
    """What groups need of the log."""

    def topic(self, name: str) -> Topic:
        """A topic's definition."""

    def topics(self) -> list[str]:
        """Names of all topics."""

    def find(self, name: str, partition: int, start: Start) -> int:
        """The offset to start from."""


class KafkaGroups:
    """All consumer groups of the brokers.

    Args:
        brokers: Where they are.
        log: Knows topics and where to start in them.
    """

    def __init__(self, brokers: Brokers, log: Offsets) -> None:
        self._brokers = brokers
        self._log = log
        self._kafka = driver()
        self._lock = threading.Lock()
        self._members: dict[str, Member] = {}
        self._starts: dict[str, dict[int, int]] = {}
        self._waiters: dict[tuple[str, str], list[GroupWaiter]] = {}

    def join(
        self,
        group: str,
        topic: str,
        *,
        start: Start = "earliest",
        session: timedelta = timedelta(minutes=5),
    ) -> Membership:
        """Become a member. If this process dies, its partitions come free some seconds later."""
        check_name(group, what="group")
        partitions = self._log.topic(topic).partitions
        begun = bool(self._committed(group, topic))
        starts = {} if begun else {p: self._log.find(topic, p, start) for p in range(partitions)}
        member = Member(self._brokers, group, topic, session, lambda: self._tell(group, topic))
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
        member = self._member(membership)
        if member.expelled:
            raise member.fenced("the member was expelled")
        mine, generation = member.partitions(), member.generation
        if generation == membership.generation and mine == set(membership.positions):
            return membership
        return self._membership(member)

    def commit(self, membership: Membership, offsets: Mapping[int, int]) -> None:
        """Everything below these offsets is done.

        Raises:
            FencedError: A partition belongs to another member by now; none of the offsets was taken.
        """
        self._member(membership).commit(dict(offsets))

    def leave(self, membership: Membership) -> None:
        """Give the partitions back at once."""
        with self._lock:
            member = self._members.pop(membership.member, None)
            self._starts.pop(membership.member, None)
        if member is not None:
            member.leave()

    def _membership(self, member: Member) -> Membership:
        mine, generation = member.partitions(), member.generation
        known = self._committed(member.group, member.topic) if mine else {}
        fresh = {p: self._begin(member, p) for p in mine if p not in known}
        if fresh:
            member.commit(fresh)
        positions = {p: known.get(p, fresh.get(p, 0)) for p in sorted(mine)}
        return Membership(member.group, member.topic, member.id, generation, positions)

    def _begin(self, member: Member, partition: int) -> int:
        """Where the group begins in a partition: as it was told to, or at the start of one that came later."""
        starts = self._starts.get(member.id, {})
        found = starts.get(partition)
        return self._log.find(member.topic, partition, "earliest") if found is None else found

    def _member(self, membership: Membership) -> Member:
        found = self._members.get(membership.member)
        if found is None:
            raise FencedError(
                f'this process has no member {membership.member} of group "{membership.group}"',
                fix="open a new consumer; it goes on where the group committed",
                group=membership.group,
                generation=membership.generation + 1,
                member=membership.member,
            )
        return found

    # -- from outside --------------------------------------------------------------------------------------------

    def states(self) -> list[GroupState]:
        """All groups on all declared topics."""
        topics = set(self._log.topics())
        listed = self._brokers.ask(
            lambda seconds: self._brokers.admin.list_consumer_groups(request_timeout=seconds).result()
        )
        names = sorted(group.group_id for group in listed.valid)
        owners = self._owners(names)
        return [
            self._state(name, topic, offsets, owners[name])
            for name in names
            for topic, offsets in sorted(self._all_committed(name).items())
            if topic in topics
        ]

    def state(self, group: str, topic: str) -> GroupState:
        """One group on one topic; its generation is what the members of this process have seen."""
        check_name(group, what="group")
        offsets = self._committed(group, topic)
        if not offsets:
            raise UnknownGroupError(f'no group "{group}" on topic "{topic}"', group=group)
        return self._state(group, topic, offsets, self._owners([group])[group])

    def _state(
        self, group: str, topic: str, offsets: dict[int, int], owners: dict[str, dict[int, str]]
    ) -> GroupState:
        seen = [m.generation for m in self._members.values() if (m.group, m.topic) == (group, topic)]
        return GroupState(group, topic, max(seen, default=0), owners.get(topic, {}), offsets)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set where a group goes on; only while none of its members is running.

        Raises:
            RefusedError: A member is running.
        """
        check_name(group, what="group")
        running = {owner for held in self._owners([group])[group].values() for owner in held.values()}
        if running:
            raise RefusedError(
                f'group "{group}" has {len(running)} running members',
                detail=f"members: {', '.join(sorted(running))}",
                fix="stop its consumers first",
                group=group,
            )
        places = [partition_at(topic, *pair) for pair in offsets.items()]
        wanted = self._kafka.ConsumerGroupTopicPartitions(group, places)
        self._brokers.futures(
            lambda admin, seconds: admin.alter_consumer_group_offsets([wanted], request_timeout=seconds)
        )

    def _committed(self, group: str, topic: str) -> dict[int, int]:
        return self._all_committed(group).get(topic, {})

    def _all_committed(self, group: str) -> dict[str, dict[int, int]]:
        wanted = self._kafka.ConsumerGroupTopicPartitions(group)
        found = self._brokers.futures(
            lambda admin, seconds: admin.list_consumer_group_offsets([wanted], request_timeout=seconds)
        )
        committed: dict[str, dict[int, int]] = {}
        for place in found[group].topic_partitions:
            if place.offset >= 0:
                committed.setdefault(place.topic, {})[place.partition] = place.offset
        return committed

    def _owners(self, groups: list[str]) -> dict[str, dict[str, dict[int, str]]]:
        """The member that has each partition, by group and topic."""
        owners: dict[str, dict[str, dict[int, str]]] = {group: {} for group in groups}
        if not groups:
            return owners

        def described(admin: Any, seconds: float) -> dict[Any, Any]:
            found: dict[Any, Any] = admin.describe_consumer_groups(groups, request_timeout=seconds)
            return found

        try:
            found = self._brokers.futures(described)
        except RefusedError:  # a group that nobody has used yet
            return owners
        for group, about in found.items():
            for member in about.members:
                for place in member.assignment.topic_partitions:
                    owners[group].setdefault(place.topic, {})[place.partition] = member.member_id
        return owners

    # -- waking --------------------------------------------------------------------------------------------------

    def watch(self, group: str, topic: str) -> GroupWaiter:
        """A wake-up for changes of a group that members of this process hear of."""
        waiter = GroupWaiter(lambda gone: self._forget(group, topic, gone))
        with self._lock:
            self._waiters.setdefault((group, topic), []).append(waiter)
        return waiter

    def _forget(self, group: str, topic: str, waiter: GroupWaiter) -> None:
        with self._lock:
            waiters = self._waiters.get((group, topic), [])
            if waiter in waiters:
                waiters.remove(waiter)

    def _tell(self, group: str, topic: str) -> None:
        for waiter in list(self._waiters.get((group, topic), ())):
            waiter.notify()

    def close(self) -> None:
        """Leave all groups."""
        with self._lock:
            members, self._members = list(self._members.values()), {}
        for member in members:
            member.leave()
