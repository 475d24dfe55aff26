"""The embedded log: a folder of topics that several processes append to and read at the same time.

`EventLog` opens topics (open_topic.py), routes appends to their append buffers, serves `fetch`, and finds
offsets by time. `log.json` holds the log's id and format version; an older Headwater refuses a newer
format. One lock file serialises the creation of topics across processes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from headwater.errors import BadOffsetError, DamagedError, NewerFormatError
from headwater.events import Clock, Receipt, merge
from headwater.events.envelope import Receipts
from headwater.log.batch import LogBatch
from headwater.log.consumer_groups import FolderGroups
from headwater.log.invalid_events import create_invalid_topic, invalid_topic_of
from headwater.log.notifier import FileNotifier, Waiter
from headwater.log.open_topic import OpenTopic, latest_schema_version, load_schema, schema_file_name
from headwater.log.storage import AnchoredClock, Disk, Partition
from headwater.log.storage.segment import FORMAT_VERSION
from headwater.log.tombstones import TombstoneHorizon
from headwater.log.topic import (
    Topic,
    check_name,
    check_name_clash,
    check_producer,
    external_time_error,
    merge_definition,
    unknown_topic_error,
)
from headwater.log.write.append_buffer import PendingAppend
from headwater.log.write.write_batch import PendingEvent, WriteBatch
from headwater.units import micros, moment

__all__ = ["EventLog", "PartitionRange", "Start"]

Start = str | int | datetime
_OPEN_LOGS: weakref.WeakSet[EventLog] = weakref.WeakSet()  # reset in forked children


@dataclass(frozen=True)
class PartitionRange:
    """The offset range [start, end) of a partition, its max event time and last append, in microseconds since 1970."""

    partition: int
    start: int
    end: int
    max_event_time: int
    appended_at: int


class _LogMetadata(msgspec.Struct):
    """The contents of `log.json`."""

    format: int
    id: str = ""


class EventLog:
    """Topics in a folder.

    Args:
        folder: Created when it does not exist.
        disk: File system access; tests pass one that fails.
        clock: The current time; the clock that all processes of the folder share, if omitted.

    Example:
        >>> import tempfile
        >>> log = EventLog(tempfile.mkdtemp())
        >>> topic = log.create(Topic.declare("orders", "order_id string, amount int"))
        >>> log.topics()
        ['orders']
    """

    repeats_appends = False

    def __init__(self, folder: str | Path, *, disk: Disk | None = None, clock: Clock | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.url = str(self.folder)  # by which another process opens the same log
        self.disk = disk or Disk()
        self.clock: Clock = clock or AnchoredClock(self.disk, self.folder / "clock.json")
        self._open_topics: dict[str, OpenTopic] = {}
        self._deleted_topics: weakref.WeakSet[OpenTopic] = weakref.WeakSet()
        self._mutex = threading.RLock()  # guards `_open_topics`; re-entrant, since `create` opens topics
        self.disk.make_folder(self.folder / "topics")
        self.id = self._load_id()
        # A file system in memory outlives the process, not the machine; the id keeps logs apart.
        shared = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else self.folder / "memory"
        self._memory_folder = shared / f"headwater-{self.id}"
        self.groups = FolderGroups(self.disk, self.clock, self.folder / "groups", self)
        _OPEN_LOGS.add(self)

    def _load_id(self) -> str:
        path = self.folder / "log.json"
        data = self.disk.read_file(path)
        if data is None:
            with self._file_lock():  # the first of several processes chooses the id
                data = self.disk.read_file(path)
                if data is None:
                    data = msgspec.json.encode(_LogMetadata(FORMAT_VERSION, os.urandom(8).hex()))
                    self.disk.write_file(path, data)
        try:
            metadata = msgspec.json.decode(data, type=_LogMetadata)
        except msgspec.DecodeError as error:
            fix = f"delete {path.name}: a new one is created, and topics in memory start empty"
            raise DamagedError("log.json cannot be read", detail=f"{path}: {error}", fix=fix) from None
        if metadata.format > FORMAT_VERSION:
            raise NewerFormatError(
                f"{self.folder} was written by a newer version "
                f"(format {metadata.format}, this one reads {FORMAT_VERSION})",
                fix="pip install --upgrade headwater",
                format=metadata.format,
            )
        return metadata.id

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Returns the names of all topics."""
        names = self.disk.names(self.folder / "topics")
        return [name for name in names if self.disk.exists(self.folder / "topics" / name / "topic.json")]

    def topic(self, name: str) -> Topic:
        """Returns a topic's definition under its newest type."""
        self.release_deleted(name)
        return self.open_topic(name).reload()

    def create(self, topic: Topic) -> Topic:
        """Create a topic, or update an existing one to this definition.

        Raises:
            SchemaConflictError: Old events could not be read under the new type.
            TopicExistsError: The partitions, the key or the time column differ.
        """
        create_invalid_topic(self, topic)
        if not latest_schema_version(self.disk, self.folder / "topics" / check_name(topic.name)):
            self.groups.remove_topic(topic.name)  # offsets that an interrupted deletion has left
        with self._file_lock():
            self.release_deleted(topic.name)
            if topic.name in self.topics():
                known = self.topic(topic.name)
                new = merge_definition(known, topic)
                return known if new == known else self._write_definition(new)
            check_name_clash(topic.name, self.topics())
            return self._write_definition(self._first_version(topic))

    def _first_version(self, topic: Topic) -> Topic:
        """Returns a new topic at version 1; if its folder has events but no definition, its versions continue."""
        folder = self.folder / "topics" / topic.name
        version = latest_schema_version(self.disk, folder)
        if not version:  # a crash may have interrupted the deletion of an earlier topic
            self._remove_aside(self._memory_folder / topic.name)
        if not version or not self.disk.exists(folder / "0"):
            first = self._deleted_versions().get(topic.name, 0) + 1
            return replace(topic, first_version=first).with_schema(topic.schema, first)
        last = load_schema(self.disk, folder, version)
        schema = merge(last, topic.schema)
        return topic.with_schema(schema, version + (not schema.equals(last, check_metadata=True)))

    def delete(self, name: str) -> None:
        """Delete a topic with its events and the offsets of its groups.

        Processes that have it open get UNKNOWN_TOPIC. A topic that is created again under the name is another one:
        its versions continue, so that rows and positions of the deleted topic are recognised.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        folder = self.folder / "topics" / check_name(name)
        with self._file_lock():
            if not self.disk.exists(folder / "topic.json"):
                raise unknown_topic_error(name, self.topics())
            # Before the topic is gone: a later one must not begin at a version that it had.
            known = self._deleted_versions()
            last = max(known.get(name, 0), latest_schema_version(self.disk, folder))
            self.disk.write_file(self.folder / "deleted.json", msgspec.json.encode(known | {name: last}))
            with self._lock_partitions(name):
                self._remove_aside(self._memory_folder / name)
                self._remove_aside(folder)
            self.release_deleted(name)
        self.groups.remove_topic(name)  # without the lock: a member that joins holds the group's and wants the log's
        self.remove_leftovers()

    def _deleted_versions(self) -> dict[str, int]:
        """Returns the last version of each deleted topic."""
        data = self.disk.read_file(self.folder / "deleted.json")
        return msgspec.json.decode(data, type=dict[str, int]) if data else {}

    @contextlib.contextmanager
    def _lock_partitions(self, name: str) -> Iterator[None]:
        """Hold the locks of all partitions of a topic, whose definition and state may be damaged."""
        with contextlib.ExitStack() as stack:
            for folder in (self.folder / "topics" / name, self._memory_folder / name):
                for number in filter(str.isdigit, self.disk.names(folder)):
                    handle = self.disk.open(folder / number / "lock")
                    stack.callback(self.disk.close, handle)
                    self.disk.lock(handle)
            yield

    def _remove_aside(self, folder: Path) -> None:
        """Move a folder to where `remove_leftovers` finds it, atomically."""
        if self.disk.exists(folder):
            parent = folder.parent
            aside = parent.with_name("deleted" if parent.name == "topics" else f"{parent.name}-deleted")
            self.disk.make_folder(aside)
            self.disk.replace(folder, aside / f"{folder.name}-{os.urandom(8).hex()}")
            self.disk.sync_folder(parent)

    def remove_leftovers(self) -> None:
        """Remove the files of deleted topics, also those of a process that died meanwhile."""
        memory = self._memory_folder
        for aside in (self.folder / "deleted", memory.with_name(f"{memory.name}-deleted")):
            for name in self.disk.names(aside):
                self.disk.remove_folder(aside / name)

    def release_deleted(self, name: str | None = None) -> None:
        """Forget a topic, or all, that this process has open and that was deleted, and close its segments."""
        for topic in [self._open_topics.get(name)] if name else list(self._open_topics.values()):
            if topic is not None and not topic.is_current():
                self._forget(topic)

    def _forget(self, topic: OpenTopic) -> None:
        with self._mutex:
            if self._open_topics.get(topic.folder.name) is topic:
                del self._open_topics[topic.folder.name]
                self._deleted_topics.add(topic)  # other threads may use its files: they close with the last of them

    @contextlib.contextmanager
    def _file_lock(self) -> Iterator[None]:
        """Hold the log's lock across threads and processes."""
        with self._mutex:
            handle = self.disk.open(self.folder / "lock")
            try:
                self.disk.lock(handle)
                yield
            finally:
                self.disk.close(handle)

    def _write_definition(self, topic: Topic) -> Topic:
        folder = self.folder / "topics" / topic.name
        self.disk.make_folder(folder)
        schema = folder / schema_file_name(topic.version)
        # The schema first: a definition never names a version whose file is missing.
        self.disk.write_file(schema, topic.schema.serialize().to_pybytes())
        self.disk.write_file(folder / "topic.json", topic.to_json())
        self.disk.sync_folder(self.folder / "topics")
        if topic.name in self._open_topics:
            self._open_topics[topic.name].reload()
        return topic

    def open_topic(self, name: str) -> OpenTopic:
        """Returns the topic with its partitions; each is opened once per process."""
        found = self._open_topics.get(name)  # without the lock: every append and fetch comes here
        if found is not None and not found.deleted:
            return found
        if found is not None:
            self._forget(found)
        with self._mutex:
            if name not in self._open_topics:
                folder = self.folder / "topics" / check_name(name)
                if not self.disk.exists(folder / "topic.json"):
                    raise unknown_topic_error(name, self.topics())
                opened = OpenTopic(self.disk, self.clock, folder, self._memory_folder)
                if not self.disk.exists(folder / "topic.json"):  # it was deleted meanwhile, perhaps before its locks
                    opened.close_files()
                    raise unknown_topic_error(name, self.topics())
                self._open_topics[name] = opened
            return self._open_topics[name]

    def side_topics(self, name: str) -> list[str]:
        """Returns none: everything of a topic is in its folder."""
        return []

    # -- append --------------------------------------------------------------------------------------------------

    def append(self, name: str, batch: WriteBatch) -> Receipts:
        """Append rows; returns when they are as safe as the topic's durability promises."""
        return self.open_topic(name).writer.append(batch)

    def append_one(self, name: str, event: PendingEvent) -> Receipt:
        """Append one event; concurrent calls share a batch and a sync (group commit)."""
        return self.open_topic(name).writer.append_one(event)

    def begin_append(self, name: str, event: PendingEvent) -> PendingAppend:
        """Put one event into the append buffer and return at once; `await_append` waits for it."""
        return self.open_topic(name).writer.begin_append(event)

    def await_append(self, name: str, pending: PendingAppend) -> Receipt:
        """Wait for an event passed to `begin_append`."""
        return self.open_topic(name).writer.await_append(pending)

    def divert(self, name: str, batch: WriteBatch) -> Receipts:
        """Append rows to the topic of a topic's invalid events, and count them as offered to it and diverted."""
        receipts = self.append(invalid_topic_of(self.topic(name)), batch)
        counts = {"offered": batch.row_count, "diverted": batch.row_count}
        self.open_topic(name).writer.counters.add(counts)
        return receipts

    def complete(self, name: str) -> int:
        """Advance the event time of a topic to the present: no more events from before are expected.

        Returns:
            The present, in microseconds since 1970.

        Raises:
            RefusedError: A pipeline keeps the event time of the topic.
        """
        topic = self.open_topic(name)
        if topic.reload().external_time:
            raise external_time_error(name)
        now = self.clock.micros()
        for partition in topic.partitions:
            partition.append_idle_marker(now)
        return now

    def sync(self, name: str) -> None:
        """Bring all events of a topic to stable storage, whatever its durability."""
        for partition in self.open_topic(name).partitions:
            partition.sync()

    def append_idle_markers(self, name: str, time: int) -> None:
        """Advance the event time of the partitions that are behind a time."""
        for partition in self.open_topic(name).partitions:
            if partition.state().max_event_time < time:
                partition.append_idle_marker(time)

    def check_sizes(self, name: str, batch: WriteBatch) -> None:
        """Check that every event of a batch is within the size limit; appends nothing."""
        self.open_topic(name).writer.check_sizes(batch)

    def last_sequences(self, name: str, producer: str) -> list[int]:
        """Returns the highest sequence number of a producer per partition; -1 where it has none."""
        check_producer(producer)
        return [partition.last_sequence(producer) for partition in self.open_topic(name).partitions]

    def counts(self, name: str) -> dict[str, int]:
        """Returns the append counters of the topic, summed over all processes."""
        self.release_deleted(name)
        return self.open_topic(name).writer.counters.read()

    # -- read ----------------------------------------------------------------------------------------------------

    def ends(self, name: str) -> list[PartitionRange]:
        """Returns what each partition holds now."""
        states = [(partition.number, partition.state()) for partition in self.open_topic(name).partitions]
        return [
            PartitionRange(number, state.start_offset, state.next_offset, state.max_event_time, state.appended_at)
            for number, state in states
        ]

    def tombstone_horizons(self, name: str) -> list[TombstoneHorizon]:
        """Returns which tombstones compaction has removed; partitions with none are left out."""
        topic = self.open_topic(name)
        if not topic.definition.key:  # never compacted; a topic with a key may have been compacted before
            return []
        removed = {partition.number: partition.tombstones_removed() for partition in topic.partitions}
        return [TombstoneHorizon(number, until, mark=until, fresh=until) for number, until in removed.items() if until]

    def count_events(self, name: str, starts: Mapping[int, int] | None = None) -> dict[int, int]:
        """Returns the number of events in each partition, from an offset on; idle markers are not events.

        Args:
            name: The topic.
            starts: The first offset, per partition; all partitions from their start, if omitted.
        """
        topic = self.open_topic(name)
        wanted = dict.fromkeys(range(len(topic.partitions)), 0) if starts is None else starts
        return {number: self._partition(topic, number).count_events(start) for number, start in wanted.items()}

    def fetch(
        self,
        name: str,
        positions: Mapping[int, int],
        *,
        max_bytes: int = 1 << 20,
        timeout: float = 0,
        waiter: Waiter | None = None,
    ) -> list[LogBatch]:
        """Returns batches from these offsets, partition by partition; waits up to `timeout` seconds.

        The list may be empty before the timeout, when another partition or the group changed. Call again.

        Args:
            name: The topic.
            positions: Offset to read from, per partition.
            max_bytes: Approximate number of bytes to read from each partition.
            timeout: Seconds to wait when there are no batches.
            waiter: From `watch`; without one, each call creates its own.
        """
        topic = self.open_topic(name)
        found = self._fetch_available(topic, positions, max_bytes)
        if found or timeout <= 0:
            return found
        if waiter is None:
            # The watch begins before the next look: an append in between is not missed.
            with contextlib.closing(self.watch(name)) as own:
                return self.fetch(name, positions, max_bytes=max_bytes, timeout=timeout, waiter=own)
        waiter.wait(timeout)
        return self._fetch_available(topic, positions, max_bytes)

    def _fetch_available(self, topic: OpenTopic, positions: Mapping[int, int], max_bytes: int) -> list[LogBatch]:
        return [
            topic.decode(partition, frame, data).from_offset(offset)
            for partition, offset in positions.items()
            for frame, data in self._partition(topic, partition).fetch(offset, max_bytes)
        ]

    def _partition(self, topic: OpenTopic, number: int) -> Partition:
        if not 0 <= number < len(topic.partitions):
            what = f'topic "{topic.definition.name}" has no partition {number}'
            raise BadOffsetError(what, detail=f"it has {len(topic.partitions)}", partition=number)
        return topic.partitions[number]

    def watch(self, name: str, group: str | None = None) -> FileNotifier:
        """Returns a waiter for appends to the topic by any process and for changes of a group."""
        self.release_deleted(name)
        members = [] if group is None else [self.groups.members_folder(group, name)]
        return FileNotifier([self.open_topic(name).state_file.path, *members])

    def watch_event_times(self, names: Sequence[str]) -> FileNotifier:
        """Returns a waiter for events and idle markers of these topics."""
        return FileNotifier([self.open_topic(name).state_file.path for name in names])

    def topic_id(self, name: str) -> str:
        """Returns the id that tells a topic from a later one of the same name; empty for the first."""
        first = self.topic(name).first_version
        return str(first) if first > 1 else ""

    def size(self, name: str) -> int:
        """Returns how many bytes the files of a topic have."""
        folder = self.folder / "topics" / check_name(name)
        if not self.disk.exists(folder / "topic.json"):
            raise unknown_topic_error(name, self.topics())
        return self.disk.folder_size(folder) + self.disk.folder_size(self._memory_folder / name)

    def await_event_time(self, name: str) -> None:
        """Wait until the event time of all present events is known; returns at once in this log."""

    def find_offset(self, name: str, partition: int, start: Start) -> int:
        """Returns the offset to start from.

        Args:
            name: The topic.
            partition: One of its partitions.
            start: "earliest", "latest", an offset, or a time: the first offset at which the partition's event
                time reaches it. Text is read as an offset or a time, too.
        """
        topic = self.open_topic(name)
        state = self._partition(topic, partition).state()
        if start in ("earliest", "latest"):
            return state.start_offset if start == "earliest" else state.next_offset
        if isinstance(start, int) or (isinstance(start, str) and start.isdigit()):
            if int(start) > state.next_offset:
                what = f"offset {start} is beyond the end of partition {partition}, which is {state.next_offset}"
                raise BadOffsetError(what, offset=int(start), end=state.next_offset, partition=partition)
            return int(start)
        time = micros(moment(start, now=self.clock.now()))
        reached = topic.partitions[partition].find_frame_by_time(time)
        if reached is None:
            return state.next_offset
        batch = topic.decode(partition, *reached)
        if not batch.values.num_rows:
            return batch.frame.base_offset
        # Max event times are those before each row, so from the second on they say what the row before it reached.
        rows = np.flatnonzero(batch.max_event_times[1:] >= time)
        return int(batch.offsets[rows[0] if len(rows) else -1])

    def reset_after_fork(self) -> None:
        """Forget all open files in a forked child, which would share its parent's files and locks."""
        self._mutex = threading.RLock()
        if isinstance(self.clock, AnchoredClock):
            self.clock.reset_after_fork()
        opened, self._open_topics = [*self._open_topics.values(), *self._deleted_topics], {}
        self._deleted_topics = weakref.WeakSet()
        for topic in opened:
            topic.close_files()
        self.groups.close_files()
        self.groups = FolderGroups(self.disk, self.clock, self.folder / "groups", self)

    def close(self) -> None:
        """Append what waits in the append buffers and close all files."""
        with self._mutex:
            for topic in (*self._open_topics.values(), *self._deleted_topics):
                topic.close()
            self._open_topics.clear()
            self._deleted_topics.clear()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reset_all_after_fork() -> None:
    for log in _OPEN_LOGS:
        log.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
