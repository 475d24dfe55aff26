"""A Kafka topic as pipelines read it: event time is known at every offset range.

`TimedKafkaTopic` combines the event time index (event_time_index.py) with the topic's records. `BatchCache`
keeps decoded offset ranges as Arrow files, written by the process that runs the `EventTimeIndexer`, so
pipelines on the same machine decode each record once. It is only a cache: a reader that finds no file, on
another machine or after removal, reads the records from the brokers.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from headwater.errors import DataGoneError
from headwater.log.batch import LogBatch
from headwater.log.kafka.event_time_index import EventTimeEnd, EventTimeIndex, frame_headers, index_topic, walk
from headwater.log.kafka.event_time_indexer import EventTimeIndexer
from headwater.log.storage.frame import Frame
from headwater.log.topic import Topic

if TYPE_CHECKING:
    from headwater.log.kafka.kafka_log import KafkaLog
    from headwater.log.kafka.records import RecordCodec

__all__ = ["BatchCache", "EventTimeWaiter", "TimedKafkaPartition", "TimedKafkaTopic"]

logger = logging.getLogger("headwater.kafka")
_MAX_BYTES: Final = 1 << 30  # bytes of all pages
_FRAME_KEY: Final = b"frame"
_ENVELOPE_PREFIX: Final = "_hw."


class BatchCache:
    """A folder of cached offset ranges; one process writes it, others read.

    Args:
        folder: Where they are.
        max_bytes: How many bytes they may take; the oldest go first.
    """

    def __init__(self, folder: Path, max_bytes: int = _MAX_BYTES) -> None:
        self.folder = folder.resolve()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._files: deque[tuple[Path, int]] = deque()

    def clear(self, topic: str = ".") -> None:
        """Remove the files of a topic, or all files that an earlier process left.

        A topic's name may have stood for another topic before.
        """
        with self._lock:
            gone = (self.folder / topic).resolve()
            shutil.rmtree(gone, ignore_errors=True)
            self._files = deque(page for page in self._files if not page[0].is_relative_to(gone))

    def put(self, base: int, batch: LogBatch) -> None:
        """Store the range that starts at an offset; if the disk is full, readers use Kafka."""
        path = self._path(batch.topic, batch.partition, base)
        columns = dict(zip(batch.values.schema.names, batch.values.columns, strict=True)) | batch.envelope
        kept = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        try:
            _write_file(path, kept.replace_schema_metadata({_FRAME_KEY: msgspec.json.encode(batch.frame)}))
        except OSError as error:
            logger.warning("%s: a page was not kept: %s", batch.topic.name, error)
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
        own = [name for name in columns.schema.names if name.startswith(_ENVELOPE_PREFIX)]
        values = pa.RecordBatch.from_arrays(
            [columns.column(f.name) for f in codec.stored_schema], schema=codec.stored_schema
        )
        return LogBatch(codec.topic, partition, frame, values, {n: columns.column(n) for n in own}, codec.codec)

    def _path(self, topic: Topic, partition: int, base: int) -> Path:
        return self.folder / topic.name / str(partition) / f"{base}-{topic.version}.arrow"


def _write_file(path: Path, kept: pa.RecordBatch) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    with pa.ipc.new_file(str(beside), kept.schema) as file:
        file.write_batch(kept)
    beside.replace(path)


_CHECK_INTERVAL: Final = 1.0  # seconds between two looks whether it is still the same topic


@dataclass(frozen=True)
class TimedKafkaPartition:
    """One partition, with the event time known when it was requested."""

    number: int
    _index: EventTimeIndex
    _indexer: Callable[[], EventTimeIndexer]

    def state(self) -> EventTimeEnd:
        """Returns where it ends, for readers that go by event time."""
        return self._index.end(self.number)

    def frame_headers(self, start: int, end: int) -> Iterator[Frame]:
        """Returns the ranges that hold offsets in `[start, end)` as frame headers, with idle markers."""
        return frame_headers(self._index.ranges(self.number, start, end), end)

    def append_idle_marker(self, time: int) -> None:
        """Append an idle marker; only in a process that indexes event time."""
        self._indexer().append_idle_marker(self.number, time)
        self._index.refresh()


class TimedKafkaTopic:
    """One topic.

    Args:
        log: Where it is.
        name: Its name.
        index_time: Whether this process indexes its event time.
    """

    def __init__(self, log: KafkaLog, name: str, *, index_time: bool) -> None:
        self._log = log
        self._name = name
        self.topic_id = log.topic_id(name)
        self._checked_at = time.monotonic()
        index = index_topic(name, self.topic_id)
        self._indexer = EventTimeIndexer(log, name, index) if index_time else None
        self.index = EventTimeIndex(log.brokers, log.kafka_topics, index)

    @property
    def definition(self) -> Topic:
        """Its definition under its newest type."""
        return self._log.topic(self._name)

    @property
    def partitions(self) -> Sequence[TimedKafkaPartition]:
        """Its partitions, with what is known of their time now.

        Raises:
            UnknownTopicError: It was deleted.
            DataGoneError: It was deleted, and made again under the same name.
        """
        self._check_topic_id()
        self.index.refresh()
        return [TimedKafkaPartition(p, self.index, self.indexer) for p in range(self.index.partitions)]

    def _check_topic_id(self) -> None:
        if time.monotonic() - self._checked_at > _CHECK_INTERVAL:
            if self._log.topic_id(self._name) != self.topic_id:
                what = f'topic "{self._name}" was deleted and made again'
                raise DataGoneError(what, topic=self._name)
            self._checked_at = time.monotonic()

    def indexer(self) -> EventTimeIndexer:
        """Returns the event time indexer of this process."""
        assert self._indexer is not None, "only the process that runs pipelines keeps time"
        return self._indexer

    def await_event_time(self) -> None:
        """Wait until the event time of all present events is known."""
        if self._indexer is not None:
            self._indexer.await_event_time()

    def batches(self, partition: int, start: int, end: int) -> Iterator[LogBatch]:
        """Yields the events of offsets `[start, end)`, each with the max event time before it."""
        headers = frame_headers(self.index.ranges(partition, start, end), end)
        # Behind all idle markers at the start.
        first = next((frame for frame in headers if frame.count), None)
        if first is None:
            return
        # Never from behind the start: what is missing there is gone, and the brokers say so.
        at = min(start, first.base_offset)
        for batch in walk(self._log, self._name, partition, at, end, first.max_event_time_before):
            yield batch if batch.frame.base_offset >= start else batch.select(batch.offsets >= start)

    def close(self) -> None:
        """Stop indexing and close connections."""
        if self._indexer is not None:
            self._indexer.stop()
        self.index.close()


class EventTimeWaiter:
    """Waits until the event time of some topics advances; checks them in turn, one connection each.

    Args:
        indexes: The side topics.
    """

    def __init__(self, indexes: Sequence[EventTimeIndex]) -> None:
        self._indexes = indexes

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as one of them has something new."""
        slice_ = (1.0 if timeout is None else timeout) / len(self._indexes)
        if len(self._indexes) > 1:
            slice_ = min(slice_, 0.02)
        left = timeout if timeout is not None else float("inf")
        while True:
            for index in self._indexes:
                if index.wait(slice_):
                    return True
                left -= slice_
            if left <= 0:
                return False

    def close(self) -> None:
        """Nothing: the connections are the topics'."""
