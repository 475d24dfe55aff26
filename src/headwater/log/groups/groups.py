"""Consumer groups in a folder: members, their partitions, committed offsets; shared by several processes.

Each member holds a lock on a file of its own, which the kernel frees when its process dies; closing that file wakes the
others. A member that lives but does not come back within its session time is expelled, and its commits are refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headwater.errors import DamagedError, FencedError, RefusedError, UnknownGroupError
from headwater.events import Clock
from headwater.log.definition import check_name
from headwater.log.groups.assignment import Assignment
from headwater.log.groups.offsets import Offsets
from headwater.log.storage import Disk
from headwater.log.wakeup import Wakeup

if TYPE_CHECKING:
    from headwater.log.event_log import EventLog, Start

__all__ = ["GroupState", "Groups", "Membership"]

logger = logging.getLogger("headwater.log")
_SEEN = struct.Struct("<dd")


class Membership(msgspec.Struct, frozen=True):
    """One consumer's place in a group: which partitions it may read, and from where."""

    group: str
    topic: str
    member: str
    generation: int
    positions: dict[int, int]


class GroupState(msgspec.Struct, frozen=True):
    """What can be seen of a group on one topic from outside."""

    group: str
    topic: str
    generation: int
    owners: dict[int, str]
    committed: dict[int, int]


class Groups:
    """All consumer groups of a log."""

    def __init__(self, disk: Disk, clock: Clock, folder: Path, log: EventLog) -> None:
        self._disk = disk
        self._clock = clock
        self._folder = folder
        self._log = log
        self._held: dict[str, int] = {}
        self._mutex = threading.RLock()

    def join(
        self,
        group: str,
        topic: str,
        *,
        start: Start = "earliest",
        session: timedelta = timedelta(minutes=5),
    ) -> Membership:
        """Become a member; partitions come at once or when their owners let go.

        Args:
            group: Created when nobody has used it on this topic.
            topic: What to read.
            start: Where a new group begins; a known group goes on where it committed.
            session: A member that does not `sync` for this long loses its partitions.
        """
        member = f"{os.getpid()}-{os.urandom(4).hex()}"
        partitions = self._log.topic(topic).partitions
        folder = self.folder(group, topic)
        self._disk.make_folder(folder)
        handle = self._disk.open(folder / f"member-{member}")
        self._disk.lock(handle)
        self._held[member] = handle
        try:
            self._seen(member, session)
            with self._locked(group, topic) as state:
                self._begin(group, topic, start)
                state.keep_only(self._alive(folder, state), partitions)
                state.join(member, partitions)
                self._write(folder, state)
                return self._membership(group, topic, member, state)
        except BaseException:  # a member that nobody knows of would keep its partitions for ever
            self._release(folder, member)
            raise

    def sync(self, membership: Membership) -> Membership:
        """Say "I am here", let go of what moved away, and learn what is mine now.

        Raises:
            FencedError: The member was expelled.
        """
        group, topic, member = membership.group, membership.topic, membership.member
        folder = self.folder(group, topic)
        with self._locked(group, topic) as state:
            self._require_member(state, membership)
            self._seen(member)
            partitions = self._log.opened(topic).definition.partitions
            changed = state.keep_only(self._alive(folder, state), partitions)
            if state.let_go(member) or changed:
                self._write(folder, state)
            if state.generation == membership.generation:
                return membership
            return self._membership(group, topic, member, state)

    def commit(self, membership: Membership, offsets: Mapping[int, int]) -> None:
        """Remember that everything below these offsets is done.

        Raises:
            FencedError: A partition belongs to another member by now; none of the offsets was taken.
        """
        with self._locked(membership.group, membership.topic) as state:
            self._require_member(state, membership)
            for partition in offsets:
                if state.owners.get(partition) != membership.member:
                    raise self._fenced(membership, state, f"partition {partition} has another owner")
            self._seen(membership.member)
            self._offsets(membership.group, membership.topic).store(offsets, self._clock.micros())

    def leave(self, membership: Membership) -> None:
        """Give the partitions back at once."""
        folder = self.folder(membership.group, membership.topic)
        with self._locked(membership.group, membership.topic) as state:
            self._release(folder, membership.member)
            partitions = self._log.opened(membership.topic).definition.partitions
            if state.keep_only([m for m in state.members if m != membership.member], partitions):
                self._write(folder, state)

    def states(self) -> list[GroupState]:
        """All groups on all topics."""
        return [
            self.state(group, topic)
            for group in self._disk.names(self._folder)
            for topic in self._disk.names(self._folder / group)
            if self._offsets(group, topic).exists()
        ]

    def state(self, group: str, topic: str) -> GroupState:
        """One group on one topic."""
        if not self._offsets(group, topic).exists():
            known = [f"{name}" for name in self._disk.names(self._folder)]
            raise UnknownGroupError(
                f'no group "{group}" on topic "{topic}"',
                detail=f"groups: {', '.join(known)}" if known else "there are no groups yet",
                group=group,
            )
        with self._locked(group, topic) as state:
            alive = self._alive(self.folder(group, topic), state)
            owners = {p: owner for p, owner in state.owners.items() if owner in alive}
            return GroupState(group, topic, state.generation, owners, self.committed(group, topic))

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set where a group goes on; only while none of its members is running.

        Raises:
            RefusedError: A member is running.
        """
        folder = self.folder(group, topic)
        self._disk.make_folder(folder)
        with self._locked(group, topic) as state:
            if alive := self._alive(folder, state):
                raise RefusedError(
                    f'group "{group}" has {len(alive)} running members',
                    detail=f"members: {', '.join(sorted(alive))}",
                    fix="stop its consumers first",
                    group=group,
                )
            stored = self._offsets(group, topic)
            try:
                self._begin(group, topic, "earliest")
            except DamagedError:
                stored.remove()
                self._begin(group, topic, "earliest")
            stored.store(offsets, self._clock.micros())
            stored.settle()

    def settle(self, group: str, topic: str) -> None:
        """Make the committed offsets durable, so that what lies below them may be removed."""
        with self._locked(group, topic):
            self._offsets(group, topic).settle()

    def abandon(self) -> None:
        """Let go of the members' files without leaving: in a forked child they belong to the parent."""
        for handle in self._held.values():
            self._disk.close(handle)
        self._held = {}

    def watch(self, group: str, topic: str) -> Wakeup:
        """A wake-up for members that come, go or die."""
        return Wakeup([self.folder(group, topic)])

    def folder(self, group: str, topic: str) -> Path:
        """Where the members of a group on a topic are; changes there wake them."""
        return self._beside(group, topic, "members")

    def _beside(self, group: str, topic: str, what: str) -> Path:
        return self._folder / check_name(group, what="group") / check_name(topic) / what

    # -- files ---------------------------------------------------------------------------------------------------

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Next offset to read per partition."""
        return self._offsets(group, topic).read()

    def _offsets(self, group: str, topic: str) -> Offsets:
        return Offsets(self._disk, self._beside(group, topic, "offsets"), group, topic)

    def _begin(self, group: str, topic: str, start: Start) -> None:
        """A new group's first offsets, durably: a later commit that is lost can only mean reading again."""
        offsets = self._offsets(group, topic)
        partitions = self._log.opened(topic).definition.partitions
        if not offsets.exists():
            first = {partition: self._log.find(topic, partition, start) for partition in range(partitions)}
            offsets.begin(first, self._clock.micros())
        offsets.read(partitions)
        offsets.settle()

    @contextlib.contextmanager
    def _locked(self, group: str, topic: str) -> Iterator[Assignment]:
        folder = self.folder(group, topic)
        with self._mutex:
            handle = self._disk.open(self._beside(group, topic, "lock"))
            try:
                self._disk.lock(handle)
                yield self._assignment(folder)
            finally:
                self._disk.close(handle)

    def _assignment(self, folder: Path) -> Assignment:
        """Who is there; a state that a power cut tore has no living members, and is begun anew."""
        data = self._disk.read_file(folder / "state.json")
        try:
            return msgspec.json.decode(data, type=Assignment) if data else Assignment()
        except msgspec.DecodeError:
            logger.warning("%s: the state of the group was damaged; its members must join again", folder)
            return Assignment()

    def _write(self, folder: Path, state: Assignment) -> None:
        self._disk.write_file(folder / "state.json", msgspec.json.encode(state), sync=False)

    def _membership(self, group: str, topic: str, member: str, state: Assignment) -> Membership:
        committed = self.committed(group, topic)
        positions = {partition: committed[partition] for partition in state.owned(member)}
        return Membership(group, topic, member, state.generation, positions)

    # -- members -------------------------------------------------------------------------------------------------

    def _seen(self, member: str, session: timedelta | None = None) -> None:
        handle = self._held[member]
        if session is None:
            _, seconds = _SEEN.unpack(self._disk.read(handle, 0, _SEEN.size))
        else:
            seconds = session.total_seconds()
        self._disk.write(handle, 0, _SEEN.pack(self._clock.monotonic(), seconds))

    def _alive(self, folder: Path, state: Assignment) -> set[str]:
        return {member for member in state.members if self._lives(folder, member)}

    def _lives(self, folder: Path, member: str) -> bool:
        """Whether the member's process holds its lock and has been seen in its session time."""
        path = folder / f"member-{member}"
        try:
            handle = self._disk.look(path)
        except FileNotFoundError:
            return False
        try:
            if self._disk.lock(handle, wait=False):
                self._disk.remove(path)
                return False
            data = self._disk.read(handle, 0, _SEEN.size)
        finally:
            self._disk.close(handle)
        if len(data) < _SEEN.size:
            return True
        seen, session = _SEEN.unpack(data)
        return bool(self._clock.monotonic() - seen <= session)

    def _release(self, folder: Path, member: str) -> None:
        handle = self._held.pop(member, None)
        if handle is not None:
            self._disk.remove(folder / f"member-{member}")
            self._disk.close(handle)

    def _require_member(self, state: Assignment, membership: Membership) -> None:
        folder = self.folder(membership.group, membership.topic)
        known = membership.member in state.members and membership.member in self._held
        if not known or not self._lives(folder, membership.member):
            self._release(folder, membership.member)
            raise self._fenced(membership, state, "the member was expelled")

    def _fenced(self, membership: Membership, state: Assignment, why: str) -> FencedError:
        return FencedError(
            f'group "{membership.group}" is at generation {state.generation}: {why}',
            detail=f"this consumer joined at generation {membership.generation}; its commit was not taken",
            fix="open a new consumer; it goes on where the group committed",
            group=membership.group,
            generation=state.generation,
            member=membership.member,
        )
