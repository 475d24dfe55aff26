"""A topic that is open in this process: its definition and schema history on disk, and its partitions.

The definition is `topic.json` in the topic's folder; each version of the type has a schema file beside it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from headwater.errors import DamagedError
from headwater.events import Clock, Codec
from headwater.log.batch import LogBatch
from headwater.log.reader import FrameDecoder
from headwater.log.storage import Disk, Frame, Partition, StateFile
from headwater.log.topic import Durability, Topic, deleted_topic_error
from headwater.log.write.append_buffer import AppendCounters
from headwater.log.write.topic_writer import TopicWriter

__all__ = ["OpenTopic", "latest_schema_version", "load_schema", "load_topic", "parse_definition", "schema_file_name"]

_FIRST_READ_BYTES: Final = 64 << 10
_MAX_READ_BYTES: Final = 8 << 20


def schema_file_name(version: int) -> str:
    """Returns the name of the file that holds a version of the type."""
    return f"schema-{version:04d}.arrow"


def latest_schema_version(disk: Disk, folder: Path) -> int:
    """Returns the newest version in a topic's folder; 0 when there is none."""
    numbers = [name.removeprefix("schema-").removesuffix(".arrow") for name in disk.names(folder)]
    return max((int(number) for number in numbers if number.isdigit() and len(number) == 4), default=0)


def parse_definition(path: Path, data: bytes) -> Topic:
    """Returns the definition in a `topic.json`, without its schema, which has a file of its own.

    Raises:
        DamagedError: The file is not a definition.
    """
    try:
        return Topic.from_json(data, pa.schema([]))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable_error(path, error) from None


def load_topic(disk: Disk, folder: Path) -> Topic | None:
    """Returns the definition under the newest type; None when the folder holds no topic.

    Raises:
        DamagedError: The definition or its schema cannot be read.
    """
    data = disk.read_file(folder / "topic.json")
    if data is None:
        return None
    bare = parse_definition(folder / "topic.json", data)
    return bare.with_schema(load_schema(disk, folder, bare.version), bare.version)


def load_schema(disk: Disk, folder: Path, version: int) -> pa.Schema:
    """Returns a version of a topic's type.

    Raises:
        DamagedError: The schema's file is missing or unreadable.
    """
    path = folder / schema_file_name(version)
    data = disk.read_file(path)
    if data is None:
        raise _unreadable_error(path, "the file is missing")
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable_error(path, error) from None


def _unreadable_error(path: Path, why: object) -> DamagedError:
    what = f"{path.name} of topic {path.parent.name!r} cannot be read"
    fix = "restore the file from a backup of the data folder"
    return DamagedError(what, detail=f"{path}: {why}", fix=fix, topic=path.parent.name)


class OpenTopic:
    """The state that one process keeps for a topic.

    Args:
        disk: File system access.
        clock: The clock of arrival times.
        folder: The topic's folder.
        memory_folder: The folder of partitions with durability `memory`.
    """

    def __init__(self, disk: Disk, clock: Clock, folder: Path, memory_folder: Path) -> None:
        self.folder = folder
        self._disk = disk
        self._definition_json: bytes | None = None
        self._decoder = self._load_decoder()
        self.state_file = StateFile(disk, folder / "ends")
        in_memory = self.definition.durability is Durability.MEMORY
        partitions_folder = memory_folder / folder.name if in_memory else folder
        self.partitions = [
            Partition(disk, clock, partitions_folder / str(number), self.state_file, number, self.definition)
            for number in range(self.definition.partitions)
        ]
        counters = AppendCounters(disk, folder / "counts")
        self.writer = TopicWriter(self.definition, self.codec_of, self.partitions, clock, counters)

    @property
    def definition(self) -> Topic:
        """The definition as this process read it last."""
        return self._decoder.topic

    @property
    def deleted(self) -> bool:
        """Whether a call found that the topic was deleted."""
        return self.state_file.deleted

    def is_current(self) -> bool:
        """Whether the folder of the log still has this topic, and not none or a later one of its name."""
        return all(partition.is_current() for partition in self.partitions)

    def reload(self) -> Topic:
        """Read the definition again, which another process may have changed, and return it."""
        before, self._decoder = self._decoder, self._load_decoder()
        if self._decoder is not before:
            self.writer.update_definition(self.definition)
            for partition in self.partitions:
                partition.definition = self.definition
        return self.definition

    def _load_decoder(self) -> FrameDecoder:
        """Returns a decoder for the definition on disk; the present one if the definition has not changed.

        A new definition means a new decoder, so a thread that decodes meanwhile never sees half of each type.
        """
        path = self.folder / "topic.json"
        data = self._disk.read_file(path)
        if data is None:
            raise deleted_topic_error(self.folder.name)
        if data == self._definition_json:
            return self._decoder
        bare = parse_definition(path, data)
        load = partial(load_schema, self._disk, self.folder)
        decoder = FrameDecoder(bare.with_schema(load(bare.version), bare.version), load)
        self._definition_json = data
        return decoder

    def codec_of(self, version: int) -> Codec:
        """Returns the codec of the topic's type at this version."""
        return self._decoder.codec_of(version)

    def decode(self, partition: int, frame: Frame, data: memoryview) -> LogBatch:
        """Returns a frame as a batch of the topic's current type; its checksum was compared before."""
        if frame.schema > self.definition.version:
            self.reload()
        return self._decoder.decode(partition, frame, data)

    def batches(self, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """Yields the events of offsets `[start, end)` as stored, without idle markers."""
        # The size of the range in bytes is unknown: a small first read keeps a short range cheap.
        max_bytes = _FIRST_READ_BYTES
        while start < end:
            found = self.partitions[partition].fetch(start, max_bytes)
            if not found:
                return
            max_bytes = min(2 * max_bytes, _MAX_READ_BYTES)
            for frame, data in found:
                if frame.base_offset >= end:
                    return
                if frame.count:
                    batch = self.decode(partition, frame, data)
                    whole = start <= frame.base_offset and frame.next_offset <= end
                    yield batch if whole else batch.select((batch.offsets >= start) & (batch.offsets < end))
                start = frame.next_offset

    def close(self) -> None:
        """Append what waits in the append buffer and close the files."""
        self.writer.buffer.close()
        self.close_files()

    def close_files(self) -> None:
        """Close only the files: in a forked child, the append buffer and its entries belong to the parent."""
        for partition in self.partitions:
            partition.close()
        with contextlib.suppress(OSError):
            self.state_file.close()
            self.writer.counters.close()
