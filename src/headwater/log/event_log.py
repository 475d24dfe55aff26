"""The embedded log: a folder of topics that several processes append to and read at once."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from headwater.errors import BadOffsetError, DamagedError, NewerFormatError
from headwater.events import Clock, Receipt, SystemClock, merge
from headwater.log.batch import LogBatch
from headwater.log.definition import (
    Topic,
    brought_up,
    check_name,
    check_producer,
    refuse_clash,
    unknown_topic,
)
from headwater.log.door import Entry
from headwater.log.groups import Groups
from headwater.log.receipts import Receipts
from headwater.log.rows import Row, Rows
from headwater.log.schemas import last_version, read_schema, schema_name
from headwater.log.storage import Disk, Partition
from headwater.log.storage.segment import FORMAT
from headwater.log.topic import OpenTopic
from headwater.log.wakeup import Waiter, Wakeup
from headwater.units import micros, moment

__all__ = ["EventLog", "PartitionRange", "Start"]

Start = str | int | datetime
_LOGS: weakref.WeakSet[EventLog] = weakref.WeakSet()


@dataclass(frozen=True)
class PartitionRange:
    """What a partition holds: offsets `[start, end)`, its event time, and when the last batch arrived.

    `running_max` and `appended_at` are microseconds since 1970.
    """

    partition: int
    start: int
    end: int
    running_max: int
    appended_at: int


class _Identity(msgspec.Struct):
    """What `log.json` holds."""

    format: int
    id: str = ""


class EventLog:
    """Topics in a folder.

    Args:
        folder: Created when it does not exist.
        disk: How files are touched; tests put faulty ones here.
        clock: What time it is; tests put their own here.

    Example:
        >>> import tempfile
        >>> log = EventLog(tempfile.mkdtemp())
        >>> topic = log.create(Topic.declare("orders", "order_id string, amount int"))
        >>> log.topics()
        ['orders']
    """

    def __init__(self, folder: str | Path, *, disk: Disk | None = None, clock: Clock | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.disk = disk or Disk()
        self.clock = clock or SystemClock()
        self._open: dict[str, OpenTopic] = {}
        self._mutex = threading.RLock()
        self.disk.make_folder(self.folder / "topics")
        self.id = self._identity()
        shared = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else self.folder / "memory"
        self._memory = shared / f"headwater-{self.id}"
        self.groups = Groups(self.disk, self.clock, self.folder / "groups", self)
        _LOGS.add(self)

    @property
    def where(self) -> str:
        """What another process opens the same log by."""
        return str(self.folder)

    def _identity(self) -> str:
        path = self.folder / "log.json"
        data = self.disk.read_file(path)
        if data is None:
            with self._locked():  # of several processes that come at once, the first one names the log
                data = self.disk.read_file(path)
                if data is None:
                    data = msgspec.json.encode(_Identity(FORMAT, os.urandom(8).hex()))
                    self.disk.write_file(path, data)
        try:
            known = msgspec.json.decode(data, type=_Identity)
        except msgspec.DecodeError as error:
            fix = f"delete {path.name}; a new one is made, and topics in memory begin anew"
            raise DamagedError("log.json cannot be read", detail=f"{path}: {error}", fix=fix) from None
        if known.format > FORMAT:
            raise NewerFormatError(
                f"{self.folder} was written by a newer version (format {known.format}, this one reads {FORMAT})",
                fix="pip install --upgrade headwater",
                format=known.format,
            )
        return known.id

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Names of all topics."""
        names = self.disk.names(self.folder / "topics")
        return [name for name in names if self.disk.exists(self.folder / "topics" / name / "topic.json")]

    def topic(self, name: str) -> Topic:
        """A topic's definition under its newest type."""
        return self.opened(name).reload()

    def create(self, topic: Topic) -> Topic:
        """Create a topic, or bring an existing one up to this definition.

        Raises:
            SchemaConflictError: Old events could not be read under the new type.
            TopicExistsError: The partitions, the key or the time column differ.
        """
        check_name(topic.name)
        with self._locked():
            if topic.name in self.topics():
                known = self.topic(topic.name)
                new = brought_up(known, topic)
                return known if new == known else self._write(new)
            refuse_clash(topic.name, self.topics())
            return self._write(self._first_version(topic))

    def _first_version(self, topic: Topic) -> Topic:
        """Version 1; or behind those of a topic that has events but lost its definition."""
        folder = self.folder / "topics" / topic.name
        version = last_version(self.disk, folder)
        if not version or not self.disk.exists(folder / "0"):
            return topic.with_schema(topic.schema, 1)
        last = read_schema(self.disk, folder, version)
        schema = merge(last, topic.schema)
        return topic.with_schema(schema, version + (not schema.equals(last, check_metadata=True)))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the log's lock across threads and processes."""
        with self._mutex:
            handle = self.disk.open(self.folder / "lock")
            try:
                self.disk.lock(handle)
                yield
            finally:
                self.disk.close(handle)

    def _write(self, topic: Topic) -> Topic:
        folder = self.folder / "topics" / topic.name
        self.disk.make_folder(folder)
        schema = folder / schema_name(topic.version)
        self.disk.write_file(schema, topic.schema.serialize().to_pybytes())
        self.disk.write_file(folder / "topic.json", topic.to_json())
        self.disk.sync_folder(self.folder / "topics")
        if topic.name in self._open:
            self._open[topic.name].reload()
        return topic

    def opened(self, name: str) -> OpenTopic:
        """The topic with its partitions; opened once per process."""
        found = self._open.get(name)
        if found is not None:
            return found
        with self._mutex:
            if name not in self._open:
                folder = self.folder / "topics" / check_name(name)
                if not self.disk.exists(folder / "topic.json"):
                    raise unknown_topic(name, self.topics())
                self._open[name] = OpenTopic(self.disk, self.clock, folder, self._memory)
            return self._open[name]

    # -- in ------------------------------------------------------------------------------------------------------

    def append(self, name: str, rows: Rows) -> Receipts:
        """Append rows; comes back when they are as safe as the topic's durability says."""
        topic = self.opened(name)
        return topic.receipts(topic.pass_through(rows))

    def append_one(self, name: str, row: Row) -> Receipt:
        """Append one event; with others that come at the same time it shares a batch and a sync."""
        topic = self.opened(name)
        return topic.receipt(topic.pass_through(row))

    def put(self, name: str, row: Row) -> Entry:
        """Hand one event to the door and come back at once; `finish` waits."""
        return self.opened(name).put(row)

    def finish(self, name: str, entry: Entry) -> Receipt:
        """Wait for an event that was `put`."""
        topic = self.opened(name)
        topic.door.finish(entry)
        return topic.receipt(entry)

    def last_sequences(self, name: str, producer: str) -> list[int]:
        """Highest sequence of a producer in each partition; -1 where it has none."""
        check_producer(producer)
        return [partition.last_sequence(producer) for partition in self.opened(name).partitions]

    def counts(self, name: str) -> dict[str, int]:
        """What the topic's door decided so far, over all processes."""
        return self.opened(name).counts.read()

    # -- out -----------------------------------------------------------------------------------------------------

    def ends(self, name: str) -> list[PartitionRange]:
        """What each partition holds now."""
        slots = [(partition.number, partition.slot()) for partition in self.opened(name).partitions]
        return [
            PartitionRange(number, slot.start_offset, slot.next_offset, slot.running_max, slot.appended_at)
            for number, slot in slots
        ]

    def fetch(
        self,
        name: str,
        positions: Mapping[int, int],
        *,
        max_bytes: int = 1 << 20,
        timeout: float = 0,
        waiter: Waiter | None = None,
    ) -> list[LogBatch]:
        """Batches from these offsets on, partition by partition; waits up to `timeout` seconds for a change.

        Comes back with nothing when the change was another one: look again.

        Args:
            name: The topic.
            positions: Offset to read from, per partition.
            max_bytes: About how much to read of each partition.
            timeout: Seconds to wait when there is nothing.
            waiter: From `watch`; saves making one for each call.
        """
        topic = self.opened(name)
        found = self._look(topic, positions, max_bytes)
        if found or timeout <= 0:
            return found
        own = None if waiter else self.watch(name)
        try:
            (waiter or own or self.watch(name)).wait(timeout)
        finally:
            if own:
                own.close()
        return self._look(topic, positions, max_bytes)

    def _look(self, topic: OpenTopic, positions: Mapping[int, int], max_bytes: int) -> list[LogBatch]:
        return [
            topic.decode(partition, frame, data).since(offset)
            for partition, offset in positions.items()
            for frame, data in self._partition(topic, partition).fetch(offset, max_bytes)
        ]

    def _partition(self, topic: OpenTopic, number: int) -> Partition:
        if not 0 <= number < len(topic.partitions):
            what = f'topic "{topic.definition.name}" has no partition {number}'
            raise BadOffsetError(what, detail=f"it has {len(topic.partitions)}", partition=number)
        return topic.partitions[number]

    def watch(self, name: str, group: str | None = None) -> Wakeup:
        """A wake-up for every append to the topic, by any process, and for changes of a group."""
        members = [] if group is None else [self.groups.folder(group, name)]
        return Wakeup([self.opened(name).ends.path, *members])

    def watch_times(self, names: Sequence[str]) -> Wakeup:
        """A wake-up for everything that moves the time of one of these topics: events and time marks."""
        return Wakeup([self.opened(name).ends.path for name in names])

    def incarnation(self, name: str) -> str:
        """What tells a topic from another one that was made later under the same name: here none is."""
        return ""

    def settle(self, name: str) -> None:
        """Return when the event time of everything that is in a topic now is known: here it always is."""

    def find(self, name: str, partition: int, start: Start) -> int:
        """The offset to start from.

        Args:
            name: The topic.
            partition: One of its partitions.
            start: "earliest", "latest", an offset, or a time: the first offset at which the partition's event
                time reaches it. Text is read as an offset or a time, too.
        """
        topic = self.opened(name)
        slot = self._partition(topic, partition).slot()
        if start in ("earliest", "latest"):
            return slot.start_offset if start == "earliest" else slot.next_offset
        if isinstance(start, int) or (isinstance(start, str) and start.isdigit()):
            if int(start) > slot.next_offset:
                what = (
                    f"offset {start} is beyond the end of partition {partition}, which is {slot.next_offset}"
                )
                raise BadOffsetError(what, offset=int(start), end=slot.next_offset, partition=partition)
            return int(start)
        time = micros(moment(start, now=self.clock.now()))
        reached = topic.partitions[partition].reach(time)
        if reached is None:
            return slot.next_offset
        batch = topic.decode(partition, *reached)
        rows = np.flatnonzero(batch.running_max[1:] >= time)
        if not batch.values.num_rows:
            return batch.frame.base_offset
        return int(batch.offsets[rows[0] if len(rows) else -1])

    def reopen(self) -> None:
        """Start with no open files: a forked child would share its parent's, and with them its locks."""
        self._mutex = threading.RLock()
        opened, self._open = self._open, {}
        for topic in opened.values():
            topic.abandon()
        self.groups.abandon()
        self.groups = Groups(self.disk, self.clock, self.folder / "groups", self)

    def close(self) -> None:
        """Append what waits at the doors and close all files."""
        with self._mutex:
            for topic in self._open.values():
                topic.close()
            self._open.clear()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reopen_all() -> None:
    for log in _LOGS:
        log.reopen()


os.register_at_fork(after_in_child=_reopen_all)
