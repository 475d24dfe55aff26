"""Consumer groups in a folder: members, assigned partitions and committed offsets, shared by processes.

`FolderGroups` is the entry. Each member holds a lock on its own file; the kernel releases it when the
process dies, and closing the file wakes the other members. A member that does not `sync` within its session
timeout is expelled, and its commits are refused.

`Assignment` is the state of a group as pure data. A partition has one owner. When it moves, the old owner
keeps it until it releases it or is gone, so two members never read one partition at the same time.

`OffsetFile` holds the committed offsets of a group on a topic: two records per partition, of which the
newer valid one counts. A commit overwrites the older record and is not synced; a power cut can lose it,
which only causes events to be read again. The file is created durably in one step, so a file without a
valid record is always damage.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headwater.errors import DamagedError, FencedError, RefusedError, UnknownGroupError
from headwater.events import Clock
from headwater.log.notifier import FileNotifier
from headwater.log.storage import Disk
from headwater.log.topic import check_name

if TYPE_CHECKING:
    from headwater.log.event_log import EventLog, Start

__all__ = [
    "BRIDGE_GROUP_PREFIX",
    "PIPELINE_GROUP_PREFIX",
    "Assignment",
    "FolderGroups",
    "GroupState",
    "Membership",
    "OffsetFile",
]

PIPELINE_GROUP_PREFIX = "hw.pipeline."
"""The groups under which pipelines report their offsets; a pipeline itself resumes from its checkpoint."""
BRIDGE_GROUP_PREFIX = "hw.feed."
"""The groups as which bridges read topics, followed by the name of the queue."""

logger = logging.getLogger("headwater.log")
_RECORD = struct.Struct("<IQqq")  # checksum, number, offset, time
_SECTOR = 512  # bytes; a torn write damages one of a partition's two records, never both
_HEARTBEAT = struct.Struct("<dd")  # monotonic time and session timeout, in seconds


class Assignment(msgspec.Struct):
    """The members of a group in join order, the owner of each partition, and the next owner (`heirs`) if it moves."""

    generation: int = 0
    members: list[str] = []
    owners: dict[int, str] = {}
    heirs: dict[int, str] = {}

    def partitions_of(self, member: str) -> tuple[int, ...]:
        """Returns the partitions a member may read."""
        return tuple(sorted(p for p, owner in self.owners.items() if owner == member))

    def join(self, member: str, partitions: int) -> None:
        """Add a member and rebalance the partitions.

        Example:
            >>> group = Assignment()
            >>> group.join("a", 4); group.partitions_of("a")
            (0, 1, 2, 3)
            >>> group.join("b", 4); group.partitions_of("b")
            ()
            >>> group.hand_over("a"), group.partitions_of("a"), group.partitions_of("b")
            (True, (0, 1), (2, 3))
        """
        self.members.append(member)
        self.rebalance(partitions)

    def retain_members(self, alive: Collection[str], partitions: int) -> bool:
        """Remove members that are gone; returns True when there were any."""
        gone = [member for member in self.members if member not in alive]
        if not gone:
            return False
        self.members = [member for member in self.members if member in alive]
        self.owners = {p: owner for p, owner in self.owners.items() if owner in alive}
        self.rebalance(partitions)
        return True

    def hand_over(self, member: str) -> bool:
        """Release the partitions that move away from this member; returns True when there were any."""
        moving = [p for p, heir in self.heirs.items() if self.owners.get(p) == member and heir != member]
        for partition in moving:
            self.owners[partition] = self.heirs.pop(partition)
        self.generation += bool(moving)
        return bool(moving)

    def rebalance(self, partitions: int) -> None:
        """Give each member its share, moving as few partitions as possible."""
        self.generation += 1
        self.heirs = {}
        if not self.members:
            self.owners = {}
            return
        least, extra = divmod(partitions, len(self.members))
        quotas = {member: least + (index < extra) for index, member in enumerate(self.members)}
        wanted = {p: member for member, quota in quotas.items() for p in self.partitions_of(member)[:quota]}
        free = iter([p for p in range(partitions) if p not in wanted])
        kept = Counter(wanted.values())
        for member, quota in quotas.items():
            wanted.update(dict.fromkeys(islice(free, quota - kept[member]), member))
        for partition, member in wanted.items():
            if self.owners.setdefault(partition, member) != member:
                self.heirs[partition] = member


class OffsetFile:
    """The committed offsets of one group on one topic; change them under the group's lock only.

    Example:
        >>> import tempfile
        >>> offsets = OffsetFile(Disk(), Path(tempfile.mkdtemp()) / "offsets", "billing", "orders")
        >>> offsets.create({0: 0, 1: 0}, now=0); offsets.write({1: 7}, now=1); offsets.read()
        {0: 0, 1: 7}
    """

    def __init__(self, disk: Disk, path: Path, group: str, topic: str) -> None:
        self.path = path
        self._disk = disk
        self._group = group
        self._topic = topic

    def exists(self) -> bool:
        """Whether the group has joined this topic before."""
        return self._disk.exists(self.path)

    def read(self, partitions: int = 0) -> dict[int, int]:
        """Returns the next offset to read per partition; empty when the group is new.

        Args:
            partitions: The number of partitions that the file must have at least.

        Raises:
            DamagedError: A partition has no valid record.
        """
        data = self._disk.read_file(self.path)
        if data is None:
            return {}
        if not data or len(data) % (2 * _SECTOR) or len(data) < 2 * _SECTOR * partitions:
            raise self._damage_error("it is cut off", len(data) // (2 * _SECTOR))
        return {partition: self._latest_record(data, partition)[1] for partition in range(len(data) // (2 * _SECTOR))}

    def create(self, offsets: Mapping[int, int], now: int) -> None:
        """Write the first offsets of a new group, durably."""
        data = bytearray(2 * _SECTOR * len(offsets))
        for partition, offset in offsets.items():
            at, record = _encode_record(partition, 1, offset, now)
            data[at : at + len(record)] = record
        self._disk.write_file(self.path, bytes(data))

    def write(self, offsets: Mapping[int, int], now: int) -> None:
        """Write new offsets for these partitions."""
        data = self._disk.read_file(self.path)
        if data is None:
            raise self._damage_error("it is gone", min(offsets))
        handle = self._disk.open(self.path, create=False)
        try:
            for partition, offset in offsets.items():
                number = self._latest_record(data, partition)[0] + 1
                self._disk.write(handle, *_encode_record(partition, number, offset, now))
        finally:
            self._disk.close(handle)

    def sync(self) -> None:
        """Make the offsets durable in a new file: after a failed sync, a later sync of the old file proves nothing."""
        data = self._disk.read_file(self.path)
        if data:
            self._disk.write_file(self.path, data)
        # Topic, group, groups and the log: the process that created these folders may have died before it synced them.
        for folder in self.path.parents[:4]:
            self._disk.sync_folder(folder)

    def _latest_record(self, data: bytes, partition: int) -> tuple[int, int]:
        """Returns number and offset of the newer of a partition's two records."""
        best = (0, 0)
        for copy in range(2):
            at = (2 * partition + copy) * _SECTOR
            if at + _RECORD.size > len(data):
                raise self._damage_error(f"it has no partition {partition}", partition)
            crc, number, offset, _ = _RECORD.unpack_from(data, at)
            if zlib.crc32(data[at + 4 : at + _RECORD.size]) == crc:
                best = max(best, (number, offset))
        if not best[0]:
            raise self._damage_error(f"no record of partition {partition} has a matching checksum", partition)
        return best

    def _damage_error(self, why: str, partition: int) -> DamagedError:
        return DamagedError(
            f'the offsets of group "{self._group}" on topic "{self._topic}" are damaged',
            detail=f"{self.path}: {why}",
            fix=f"headwater reset {self._group} --topic {self._topic} --to earliest",
            group=self._group,
            partition=partition,
        )


def _encode_record(partition: int, number: int, offset: int, now: int) -> tuple[int, bytes]:
    """Returns the position of a record in the file, and its bytes."""
    packed = _RECORD.pack(0, number, offset, now)
    crc = zlib.crc32(packed[4:]).to_bytes(4, "little")
    return (2 * partition + number % 2) * _SECTOR, crc + packed[4:]


class Membership(msgspec.Struct, frozen=True):
    """One consumer's membership of a group: its partitions and their start offsets.

    `marks` are the tombstone marks of the partitions that the group began at their start (see `TombstoneHorizon`).
    """

    group: str
    topic: str
    member: str
    generation: int
    positions: dict[int, int]
    marks: dict[int, int] = {}


class GroupState(msgspec.Struct, frozen=True):
    """The state of a group on one topic, as others see it."""

    group: str
    topic: str
    generation: int
    owners: dict[int, str]
    committed: dict[int, int]


class FolderGroups:
    """All consumer groups of a log."""

    def __init__(self, disk: Disk, clock: Clock, folder: Path, log: EventLog) -> None:
        self._disk = disk
        self._clock = clock
        self._folder = folder
        self._log = log
        self._member_files: dict[str, int] = {}  # locked handles of this process's members
        self._mutex = threading.RLock()  # one thread of this process at a time; the file lock is for other processes

    def join(
        self, group: str, topic: str, *, start: Start = "earliest", session: timedelta = timedelta(minutes=5)
    ) -> Membership:
        """Become a member; partitions are assigned at once or when their owners release them.

        Args:
            group: Created on first use.
            topic: The topic to read.
            start: Start position of a new group; a known group continues at its committed offsets.
            session: Session timeout; a member that does not `sync` for this long loses its partitions.
        """
        member = f"{os.getpid()}-{os.urandom(4).hex()}"
        partitions = self._log.topic(topic).partitions
        folder = self.members_folder(group, topic)
        self._disk.make_folder(folder)
        handle = self._disk.open(folder / f"member-{member}")
        self._disk.lock(handle)  # before the group lists the member: others take one without a lock for dead
        self._member_files[member] = handle
        try:
            self._disk.write(handle, 0, _HEARTBEAT.pack(self._clock.monotonic(), session.total_seconds()))
            with self._lock_group(group, topic) as state:
                self._create_offsets(group, topic, start)
                self._offset_file(group, topic).sync()
                state.retain_members(self._live_members(folder, state), partitions)
                state.join(member, partitions)
                self._save_assignment(folder, state)
                return self._membership(group, topic, member, state)
        except BaseException:  # a member that no group lists would hold its lock until the process ends
            self._release_member(folder, member)
            raise

    def sync(self, membership: Membership) -> Membership:
        """Send a heartbeat, release partitions that moved away, and return the current assignment.

        Raises:
            FencedError: The member was expelled.
        """
        group, topic, member = membership.group, membership.topic, membership.member
        folder = self.members_folder(group, topic)
        with self._lock_group(group, topic) as state:
            self._check_member(state, membership)
            self._record_heartbeat(member)
            partitions = self._log.open_topic(topic).definition.partitions
            changed = state.retain_members(self._live_members(folder, state), partitions)
            if state.hand_over(member) or changed:
                self._save_assignment(folder, state)
            if state.generation == membership.generation:
                return membership
            return self._membership(group, topic, member, state)

    def commit(self, membership: Membership, offsets: Mapping[int, int]) -> None:
        """Commit offsets: all events below them are processed.

        Raises:
            FencedError: A partition belongs to another member now; no offset was committed.
        """
        with self._lock_group(membership.group, membership.topic) as state:
            self._check_member(state, membership)
            for partition in offsets:
                if state.owners.get(partition) != membership.member:
                    raise self._fencing_error(membership, state, f"partition {partition} has another owner")
            self._record_heartbeat(membership.member)
            self._offset_file(membership.group, membership.topic).write(offsets, self._clock.micros())

    def leave(self, membership: Membership) -> None:
        """Leave the group and release its partitions at once."""
        folder = self.members_folder(membership.group, membership.topic)
        with self._lock_group(membership.group, membership.topic) as state:
            self._release_member(folder, membership.member)
            partitions = self._log.open_topic(membership.topic).definition.partitions
            if state.retain_members([m for m in state.members if m != membership.member], partitions):
                self._save_assignment(folder, state)

    def states(self, topic: str | None = None) -> list[GroupState]:
        """Returns the state of all groups on all topics, or on one."""
        # A deletion that was interrupted leaves offsets on a topic that is gone.
        topics = set(self._log.topics()) if topic is None else {topic}
        found = []
        for group, name in self._known(topic):
            if name in topics:
                with contextlib.suppress(UnknownGroupError):  # it was deleted meanwhile
                    found.append(self.state(group, name))
        return found

    def _known(self, topic: str | None = None) -> list[tuple[str, str]]:
        """Returns all groups with the topics they read. A group that was deleted leaves a folder with its lock."""
        return [
            (group, name)
            for group in self._disk.names(self._folder)
            for name in (self._disk.names(self._folder / group) if topic is None else [topic])
            if self._offset_file(group, name).exists()
        ]

    def pipeline_inputs(self) -> dict[str, list[str]]:
        """Returns the topics that each pipeline reads, by the name of the pipeline."""
        found: dict[str, list[str]] = {}
        for group, topic in self._known():
            if group.startswith(PIPELINE_GROUP_PREFIX):
                found.setdefault(group.removeprefix(PIPELINE_GROUP_PREFIX), []).append(topic)
        return found

    def state(self, group: str, topic: str) -> GroupState:
        """Returns the state of one group on one topic."""
        if not self._offset_file(group, topic).exists():
            known = sorted({known for known, _ in self._known()})
            raise UnknownGroupError(
                f'no group "{group}" on topic "{topic}"',
                detail=f"groups: {', '.join(known)}" if known else "there are no groups yet",
                group=group,
            )
        with self._lock_group(group, topic) as state:
            alive = self._live_members(self.members_folder(group, topic), state)
            owners = {p: owner for p, owner in state.owners.items() if owner in alive}
            return GroupState(group, topic, state.generation, owners, self.read_offsets(group, topic))

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group; only while none of its members is running.

        Raises:
            RefusedError: A member is running.
        """
        self._disk.make_folder(self.members_folder(group, topic))
        with self._lock_group(group, topic) as state:
            self._refuse_live_members(group, topic, state)
            stored = self._offset_file(group, topic)
            try:
                self._create_offsets(group, topic, "earliest")
            except DamagedError:
                self._disk.remove(stored.path)
                self._create_offsets(group, topic, "earliest")
            stored.write(offsets, self._clock.micros())
            stored.sync()
            self._save_marks(group, topic, offsets)

    def report(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group without members, without a sync.

        A power cut may bring an older report back. Retention then keeps more; it syncs a report before it relies on it.
        """
        if not self._offset_file(group, topic).exists():
            self.reset(group, topic, offsets)
            return
        try:
            with self._lock_group(group, topic):
                self._offset_file(group, topic).write(offsets, self._clock.micros())
        except DamagedError:
            self.reset(group, topic, offsets)

    def _refuse_live_members(self, group: str, topic: str, state: Assignment) -> None:
        if alive := self._live_members(self.members_folder(group, topic), state):
            raise RefusedError(
                f'group "{group}" has {len(alive)} running members',
                detail=f"members: {', '.join(sorted(alive))}",
                fix="stop its consumers first",
                group=group,
            )

    def delete(self, group: str, topic: str | None = None) -> None:
        """Delete the committed offsets of a group on a topic, or on all; retention then no longer waits for them.

        Raises:
            UnknownGroupError: There is no such group, or not on this topic.
            RefusedError: A member is running.
        """
        if topic is None:
            for name in [name for known, name in self._known() if known == group]:
                self.delete(group, name)
            return
        self.state(group, topic)
        with self._lock_group(group, topic) as state:
            self._refuse_live_members(group, topic, state)
            self._remove_offsets(group, topic)

    def remove_topic(self, topic: str) -> None:
        """Remove a deleted topic from all groups; members that still run are expelled."""
        for group, _ in self._known(topic):
            with self._lock_group(group, topic) as state:
                if topic in self._log.topics():  # it was created again: these are the offsets of its own readers
                    return
                self._remove_offsets(group, topic)
                if state.retain_members([], 0):
                    self._save_assignment(self.members_folder(group, topic), state)

    def _remove_offsets(self, group: str, topic: str) -> None:
        # The lock and the generation stay: a process that waits for the lock must find the same file.
        path = self._path(group, topic, "offsets")
        self._disk.remove(path)
        self._disk.remove(self._path(group, topic, "tombstones"))
        self._disk.sync_folder(path.parent)

    def sync_offsets(self, group: str, topic: str) -> None:
        """Make the committed offsets durable, so that retention may remove what is below them."""
        with self._lock_group(group, topic):
            self._offset_file(group, topic).sync()

    def close_files(self) -> None:
        """Close the members' files without leaving: in a forked child they belong to the parent."""
        for handle in self._member_files.values():
            self._disk.close(handle)
        self._member_files = {}

    def watch(self, group: str, topic: str) -> FileNotifier:
        """Returns a waiter for members that join, leave or die."""
        return FileNotifier([self.members_folder(group, topic)])

    def members_folder(self, group: str, topic: str) -> Path:
        """Returns the folder of the members of a group on a topic; changes there wake them."""
        return self._path(group, topic, "members")

    def _path(self, group: str, topic: str, what: str) -> Path:
        return self._folder / check_name(group, what="group") / check_name(topic) / what

    # -- files ---------------------------------------------------------------------------------------------------

    def read_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Returns the next offset to read per partition."""
        return self._offset_file(group, topic).read()

    def _offset_file(self, group: str, topic: str) -> OffsetFile:
        return OffsetFile(self._disk, self._path(group, topic, "offsets"), group, topic)

    def _create_offsets(self, group: str, topic: str, start: Start) -> None:
        """Write a new group's first offsets; once they are synced, a lost later commit only means reading again."""
        offsets = self._offset_file(group, topic)
        partitions = self._log.open_topic(topic).definition.partitions
        if not offsets.exists():
            first = {partition: self._log.find_offset(topic, partition, start) for partition in range(partitions)}
            offsets.create(first, self._clock.micros())
            self._save_marks(group, topic, first)
        offsets.read(partitions)

    def _save_marks(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Write the tombstone marks of partitions that are set to their start, and remove those of the others.

        After the offsets: a crash in between leaves lower marks, which refuse a reader rather than let it miss
        deletions.
        """
        path, known = self._path(group, topic, "tombstones"), self._load_marks(group, topic)
        fresh = {horizon.partition: horizon.fresh for horizon in self._log.tombstone_horizons(topic)}
        starts = {held.partition: held.start for held in self._log.ends(topic)} if fresh or known else {}
        marks = {p: mark for p, mark in known.items() if p not in offsets}
        marks |= {p: fresh[p] for p, offset in offsets.items() if p in fresh and offset == starts.get(p)}
        if marks != known:
            self._disk.write_file(path, msgspec.json.encode(marks))

    def _load_marks(self, group: str, topic: str) -> dict[int, int]:
        data = self._disk.read_file(self._path(group, topic, "tombstones"))
        return msgspec.json.decode(data, type=dict[int, int]) if data else {}

    @contextlib.contextmanager
    def _lock_group(self, group: str, topic: str) -> Iterator[Assignment]:
        folder = self.members_folder(group, topic)
        with self._mutex:
            handle = self._disk.open(self._path(group, topic, "lock"))
            try:
                self._disk.lock(handle)
                yield self._load_assignment(folder)
            finally:
                self._disk.close(handle)

    def _load_assignment(self, folder: Path) -> Assignment:
        """Returns the assignment; one torn by a power cut has no living members and starts empty."""
        data = self._disk.read_file(folder / "state.json")
        try:
            return msgspec.json.decode(data, type=Assignment) if data else Assignment()
        except msgspec.DecodeError:
            logger.warning("%s: the state of the group was damaged; its members must join again", folder)
            return Assignment()

    def _save_assignment(self, folder: Path, state: Assignment) -> None:
        # Not synced: after a power cut no member is alive, and the group starts empty.
        self._disk.write_file(folder / "state.json", msgspec.json.encode(state), sync=False)

    def _membership(self, group: str, topic: str, member: str, state: Assignment) -> Membership:
        committed = self.read_offsets(group, topic)
        positions = {partition: committed[partition] for partition in state.partitions_of(member)}
        marks = self._load_marks(group, topic)
        return Membership(group, topic, member, state.generation, positions, marks)

    # -- members -------------------------------------------------------------------------------------------------

    def _record_heartbeat(self, member: str) -> None:
        handle = self._member_files[member]
        _, session = _HEARTBEAT.unpack(self._disk.read(handle, 0, _HEARTBEAT.size))
        self._disk.write(handle, 0, _HEARTBEAT.pack(self._clock.monotonic(), session))

    def _live_members(self, folder: Path, state: Assignment) -> set[str]:
        return {member for member in state.members if self._is_alive(folder, member)}

    def _is_alive(self, folder: Path, member: str) -> bool:
        """Whether the member's process holds its lock and sent a heartbeat within its session timeout."""
        path = folder / f"member-{member}"
        try:
            handle = self._disk.open_readonly(path)
        except FileNotFoundError:
            return False
        try:
            if self._disk.lock(handle, wait=False):  # only a dead process does not hold its own lock
                self._disk.remove(path)
                return False
            data = self._disk.read(handle, 0, _HEARTBEAT.size)
        finally:
            self._disk.close(handle)
        if len(data) < _HEARTBEAT.size:  # it holds the lock and is about to write its first heartbeat
            return True
        seen, session = _HEARTBEAT.unpack(data)
        return bool(self._clock.monotonic() - seen <= session)

    def _release_member(self, folder: Path, member: str) -> None:
        handle = self._member_files.pop(member, None)
        if handle is not None:
            self._disk.remove(folder / f"member-{member}")
            self._disk.close(handle)

    def _check_member(self, state: Assignment, membership: Membership) -> None:
        folder = self.members_folder(membership.group, membership.topic)
        known = membership.member in state.members and membership.member in self._member_files
        if not known or not self._is_alive(folder, membership.member):
            self._release_member(folder, membership.member)
            raise self._fencing_error(membership, state, "the member was expelled")

    def _fencing_error(self, membership: Membership, state: Assignment, why: str) -> FencedError:
        return FencedError(
            f'group "{membership.group}" is at generation {state.generation}: {why}',
            detail=f"this consumer joined at generation {membership.generation}; its commit was refused",
            fix="open a new consumer; it continues at the committed offsets",
            group=membership.group,
            generation=state.generation,
            member=membership.member,
        )
