"""A Kafka topic as pipelines read it, with the event time of every offset range.

`TimedKafkaTopic` combines the event time index (event_time_index.py) with the topic's records. `BatchCache`
keeps decoded offset ranges as Arrow files, written by the process that runs the `EventTimeIndexer`, so
pipelines on the same machine decode each record once. A reader that finds no file, on another machine or after
removal, reads the records from the brokers, with the same result.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from headwater.errors import DataGoneError
from headwater.log.batch import LogBatch
from headwater.log.kafka.event_time_index import EventTimeEnd, EventTimeIndex, index_topic, read_ranges
from headwater.log.kafka.event_time_indexer import EventTimeIndexer
from headwater.log.storage.frame import Frame
from headwater.log.topic import Topic

if TYPE_CHECKING:
    from headwater.log.kafka.kafka_log import KafkaLog
    from headwater.log.kafka.records import RecordCodec

__all__ = ["BatchCache", "EventTimeWaiter", "TimedKafkaPartition", "TimedKafkaTopic"]

logger = logging.getLogger("headwater.kafka")
_MAX_BYTES: Final = 1 << 30  # of all files
_FRAME_KEY: Final = b"frame"
_ENVELOPE_PREFIX: Final = "_hw."
_CHECK_INTERVAL: Final = 1.0  # seconds between checks of the topic id


class BatchCache:
    """A folder of cached offset ranges; one process writes it, others read.

    Args:
        folder: The folder.
        max_bytes: Limit of all files together; the oldest are removed first.
    """

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES) -> None:
        self.folder = folder.resolve()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # guards _files
        self._files: deque[tuple[Path, int]] = deque()  # path and bytes, oldest first

    def clear(self, topic: str = ".") -> None:
        """Remove the files of a topic, or of all topics.

        Files of an earlier process may belong to a deleted topic of the same name.
        """
        with self._lock:
            gone = (self.folder / topic).resolve()
            shutil.rmtree(gone, ignore_errors=True)
            self._files = deque(page for page in self._files if not page[0].is_relative_to(gone))

    def put(self, base: int, batch: LogBatch) -> None:
        """Store the range that starts at an offset; if that fails, as on a full disk, readers use the brokers."""
        path = self._path(batch.topic, batch.partition, base)
        columns = dict(zip(batch.values.schema.names, batch.values.columns, strict=True)) | batch.envelope
        kept = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        kept = kept.replace_schema_metadata({_FRAME_KEY: msgspec.json.encode(batch.frame)})
        unfinished = path.with_suffix(".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with pa.ipc.new_file(str(unfinished), kept.schema) as file:
                file.write_batch(kept)
            unfinished.replace(path)  # atomic: readers of other processes never see a part of a file
        except OSError as error:
            logger.warning("%s: a batch was not cached: %s", batch.topic.name, error)
            return
        with self._lock:
            self._files.append((path, kept.nbytes))
            while sum(size for _, size in self._files) > self._max_bytes:
                self._files.popleft()[0].unlink(missing_ok=True)

    def get(self, codec: RecordCodec, partition: int, base: int) -> LogBatch | None:
        """Returns the range that starts at an offset, under the topic's current type; None if not cached."""
        try:
            with pa.memory_map(str(self._path(codec.topic, partition, base))) as file:
                reader = pa.ipc.open_file(file)
                columns = reader.get_batch(0)
        except (OSError, pa.ArrowInvalid):
            return None
        frame = msgspec.json.decode(reader.schema.metadata[_FRAME_KEY], type=Frame)
        own = {name: columns.column(name) for name in columns.schema.names if name.startswith(_ENVELOPE_PREFIX)}
        schema = codec.stored_schema
        values = pa.RecordBatch.from_arrays([columns.column(name) for name in schema.names], schema=schema)
        return LogBatch(codec.topic, partition, frame, values, own, codec.codec)

    def _path(self, topic: Topic, partition: int, base: int) -> Path:
        return self.folder / topic.name / str(partition) / f"{base}-{topic.version}.arrow"


@dataclass(frozen=True)
class TimedKafkaPartition:
    """One partition, with its event time at the last refresh of the index."""

    number: int
    _index: EventTimeIndex
    _indexer: EventTimeIndexer | None
    _compacted: bool = False

    def state(self) -> EventTimeEnd:
        """Returns the offset and max event time up to which the partition is indexed."""
        return self._index.end(self.number)

    def size(self, start: int, end: int) -> int:
        """Returns the bytes of the events of `[start, end)` in memory, as the indexer has measured them."""
        return sum(each.size for each in self._index.ranges(self.number, start, end))

    def frame_headers(self, start: int, end: int) -> Iterator[Frame]:
        """Returns the ranges that hold offsets in `[start, end)` as frame headers, with idle markers.

        Those of a compacted topic are marked as `needs_read`: the brokers may have removed some of the records that
        the index has counted.
        """
        for each in self._index.ranges(self.number, start, end):
            yield replace(each, needs_read=True).frame if self._compacted else each.frame

    def append_idle_marker(self, time: int) -> None:
        """Append an idle marker; only in a process that indexes event time, which asks another one if that leads."""
        assert self._indexer is not None, "this process does not index event time"
        self._indexer.append_idle_marker(self.number, time)
        self._index.refresh()


class TimedKafkaTopic:
    """A topic with its event time index.

    Args:
        log: The log.
        name: The topic.
        index_time: Whether this process indexes its event time.
    """

    def __init__(self, log: KafkaLog, name: str, *, index_time: bool) -> None:
        self._log = log
        self._name = name
        self.topic_id = log.topic_id(name)
        self._compacted = log.kafka_topics.is_compacted(name)
        self._checked_at = time.monotonic()
        index = index_topic(name, self.topic_id)
        self._indexer = EventTimeIndexer(log, name, index) if index_time else None
        self.index = EventTimeIndex(log.kafka_topics, index)

    @property
    def definition(self) -> Topic:
        """The definition under the newest type."""
        return self._log.topic(self._name)

    @property
    def partitions(self) -> Sequence[TimedKafkaPartition]:
        """The partitions, with their event time refreshed.

        Raises:
            UnknownTopicError: The topic was deleted.
            DataGoneError: The topic was deleted and created again.
        """
        self._check_topic()
        self.index.refresh()
        numbers = range(self.index.partitions)
        return [TimedKafkaPartition(number, self.index, self._indexer, self._compacted) for number in numbers]

    def _check_topic(self) -> None:
        if time.monotonic() - self._checked_at > _CHECK_INTERVAL:
            if self._log.topic_id(self._name) != self.topic_id:
                raise DataGoneError(f'topic "{self._name}" was deleted and created again', topic=self._name)
            self._compacted = self._log.kafka_topics.is_compacted(self._name)
            self._checked_at = time.monotonic()

    def await_event_time(self) -> None:
        """Wait until the event time of all present events is known; returns at once if another process indexes."""
        if self._indexer is not None:
            self._indexer.await_event_time()

    def batches(self, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """Yields the events of offsets `[start, end)`, each with the max event time before it.

        Those of a compacted topic are read from the brokers, so that all readers see the records that are left.
        """
        self._check_topic()
        ranges = list(self.index.ranges(partition, start, end))
        return read_ranges(self._log, self._name, partition, ranges, start, end, use_cache=not self._compacted)

    def close(self) -> None:
        """Stop indexing and close connections."""
        if self._indexer is not None:
            self._indexer.stop()
        self.index.close()


class EventTimeWaiter:
    """Waits until the event time of one of several topics advances; polls their side topics in turn.

    Args:
        indexes: The indexes of the topics.
    """

    def __init__(self, indexes: Sequence[EventTimeIndex]) -> None:
        self._indexes = indexes

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as one index has a new record."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        pause = 1.0 if len(self._indexes) == 1 else 0.02  # seconds per index; short if others are polled after it
        while True:
            if any(index.wait(max(0.0, min(pause, deadline - time.monotonic()))) for index in self._indexes):
                return True
            if time.monotonic() >= deadline:
                return False

    def close(self) -> None:
        """Do nothing: the connections belong to the topics."""
