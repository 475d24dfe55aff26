"""Reads a topic: decodes stored frames as batches, and reads several partitions as one stream.

`FrameDecoder` decodes frames of any version of the topic's type as batches of the current one.
`TopicReader` reads from given offsets, to given offsets or without an end, and keeps its position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.errors import BadOffsetError, DataGoneError
from headwater.events import Clock, Codec, storage_schema, upgrade
from headwater.log.batch import LogBatch
from headwater.log.storage.frame import Frame, FrameKind, decode_columns
from headwater.log.tombstones import check_tombstones
from headwater.log.topic import Topic, replaced_topic_error

if TYPE_CHECKING:
    from headwater.log.protocol import Log

__all__ = ["FrameDecoder", "TopicReader", "age_of_oldest"]


class FrameDecoder:
    """Decodes frames of one topic under one definition; immutable, so threads may share it.

    Args:
        topic: The definition under the current type.
        load_schema: Returns the schema of an older version of the type; called once for each.
    """

    def __init__(self, topic: Topic, load_schema: Callable[[int], pa.Schema]) -> None:
        self.topic = topic
        self._codecs = {topic.version: Codec(topic.schema)}
        self._stored_schema = storage_schema(topic.schema)
        self._load_schema = load_schema

    def codec_of(self, version: int) -> Codec:
        """Returns the codec of the topic's type at this version."""
        codec = self._codecs.get(version)
        if codec is None:
            codec = self._codecs[version] = Codec(self._load_schema(version))
        return codec

    def decode(self, partition: int, frame: Frame, data: memoryview) -> LogBatch:
        """Returns a frame as a batch of the current type, without copying columns that need no upgrade.

        Args:
            partition: The partition of the frame.
            frame: Its header; the version of its type is at most the decoder's.
            data: The bytes of the whole frame; their checksum was compared before.
        """
        topic, codec = self.topic, self._codecs[self.topic.version]
        if frame.kind is not FrameKind.EVENTS:
            return LogBatch(topic, partition, frame, pa.RecordBatch.from_pylist([], self._stored_schema), {}, codec)
        current = frame.schema == topic.version
        schema = self._stored_schema if current else storage_schema(self.codec_of(frame.schema).schema)
        stored = decode_columns(frame, data[frame.body_at :], schema)
        width = len(schema)
        values = pa.RecordBatch.from_arrays(stored.columns[:width], schema=schema)
        envelope = dict(zip(stored.schema.names[width:], stored.columns[width:], strict=True))
        return LogBatch(
            topic, partition, frame, values if current else upgrade(values, self._stored_schema), envelope, codec
        )


class TopicReader:
    """Reads batches from several partitions and keeps its position.

    Args:
        log: The log.
        topic: The topic.
        positions: Next offset per partition; may be changed between reads.
        stops: Offset to stop at, per partition; None to read without an end.
        group: A consumer group whose changes also end a wait.
        marks: What `TombstoneHorizon.fresh` was when a partition was begun at its start, per partition.

    Raises:
        DataGoneError: Compaction has removed tombstones that are not read yet, or the topic was deleted and created
            again; also raised by `next`.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        positions: Mapping[int, int],
        stops: Mapping[int, int] | None = None,
        group: str | None = None,
        marks: Mapping[int, int] | None = None,
    ) -> None:
        self.positions = dict(positions)
        self.marks = dict(marks or {})
        self._log = log
        self._topic = topic
        self._stops = stops
        self._group = group
        definition = log.topic(topic)
        self._compacted = definition.compact
        self._first_version = definition.first_version
        horizons = log.tombstone_horizons(topic)
        check_tombstones(topic, horizons, self.positions, self.marks)
        # At offset 0 nothing was read yet.
        self.marks |= {horizon.partition: horizon.fresh for horizon in horizons if not positions.get(horizon.partition)}
        self._waiter = None if stops is not None else log.watch(topic, group)

    def next(self, timeout: float = 0, max_bytes: int = 1 << 20) -> list[LogBatch]:
        """Returns the next batches; an empty list if none arrive within `timeout` seconds, or at the stops."""
        wanted = self._open_positions()
        if not wanted:
            return []
        found = self._fetch(wanted, max_bytes, timeout)
        if self._compacted:
            check_tombstones(self._topic, self._log.tombstone_horizons(self._topic), wanted, self.marks)
        for batch in found:
            self.positions[batch.partition] = max(self.positions[batch.partition], batch.next_offset)
        if self._stops is None:
            return found
        if not found:  # compaction removed everything left below the stops
            self.positions.update({partition: self._stops[partition] for partition in wanted})
        return [
            batch if batch.next_offset <= stop else batch.select(batch.offsets < stop)
            for batch in found
            for stop in [self._stops[batch.partition]]
        ]

    def _fetch(self, wanted: Mapping[int, int], max_bytes: int, timeout: float) -> list[LogBatch]:
        try:
            found = self._log.fetch(self._topic, wanted, max_bytes=max_bytes, timeout=timeout, waiter=self._waiter)
        except BadOffsetError:
            self._check_same_topic(self._log.topic(self._topic))
            raise
        for batch in found:
            self._check_same_topic(batch.topic)
        return found

    def _check_same_topic(self, topic: Topic) -> None:
        if topic.first_version != self._first_version:
            raise replaced_topic_error(topic.name)

    def _open_positions(self) -> dict[int, int]:
        if self._stops is None:
            return self.positions
        return {p: offset for p, offset in self.positions.items() if offset < self._stops[p]}

    def __iter__(self) -> Iterator[LogBatch]:
        while self._stops is None or self._open_positions():
            yield from self.next(timeout=3600 if self._stops is None else 0)

    def close(self) -> None:
        """Stop waiting."""
        if self._waiter is not None:
            self._waiter.close()


def age_of_oldest(log: Log, clock: Clock, topic: str, partition: int, offset: int) -> timedelta:
    """Returns how long ago the event at an offset arrived; zero when there is none yet."""
    try:
        unread = log.fetch(topic, {partition: offset}, max_bytes=1, timeout=0, waiter=None)
    except DataGoneError:  # retention removed the event since its offset was read
        return timedelta(0)
    if not unread:
        return timedelta(0)
    received = unread[0].arrival_times
    first = int(received[0]) if len(received) else unread[0].frame.appended_at
    return max(timedelta(0), timedelta(microseconds=clock.micros() - first))
