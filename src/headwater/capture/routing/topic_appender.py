"""Appends rows of a journal to topics: each row once, though the journal may be routed again after a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import TooLargeError
from headwater.events import flags_column, partitions_of
from headwater.log import Topic, WriteBatch
from headwater.log.protocol import TimedLog
from headwater.log.topic import MAX_EVENT_BYTES

__all__ = ["TopicAppender", "take_rows"]

_PART_BITS: Final = 24  # of a sequence number: the appends that one journal record may become
_PART_BYTES: Final = 8 << 20


class TopicAppender:
    """Appends to topics, with sequence numbers that follow from the offset in the journal.

    Args:
        log: The log.
        producer: The id of the producer.
    """

    def __init__(self, log: TimedLog, producer: str) -> None:
        self._log = log
        self._producer = producer
        self._definitions: dict[str, Topic] = {}
        self._previous: dict[str, list[int]] = {}  # the last sequence number of each partition
        self._unsynced: set[str] = set()
        self._offset = self._part = 0

    def begin(self, offset: int) -> None:
        """Begin the appends that follow from the journal record at an offset."""
        self._offset, self._part = offset, 0

    def define(self, topic: Topic) -> None:
        """Note the definition of a topic, as the log returned it."""
        self._definitions[topic.name] = topic

    def has(self, topic: str) -> bool:
        """Whether the definition of a topic is known here."""
        return topic in self._definitions

    def definition(self, topic: str) -> Topic:
        """Returns the definition of a topic; its type may be later than that of the rows while the journal repeats."""
        if topic not in self._definitions:
            self._definitions[topic] = self._log.topic(topic)
        return self._definitions[topic]

    def has_written(self, topic: str) -> bool:
        """Whether this producer has ever appended to a topic."""
        return max(self._log.last_sequences(topic, self._producer), default=-1) >= 0

    def take_over(self, topic: str) -> None:
        """Fence a former owner of the producer, which may have been stopped in the middle of an append."""
        self._previous[topic] = self._log.last_sequences(topic, self._producer)

    def find_too_large(self, topic: str, batch: WriteBatch) -> dict[int, str]:
        """Returns the rows that are too large for an event, with the reason."""
        found: dict[int, str] = {}
        kept = np.ones(batch.row_count, bool)
        while batch.nbytes > MAX_EVENT_BYTES:
            left = np.flatnonzero(kept)
            try:
                self._log.check_sizes(topic, batch if kept.all() else take_rows(batch, kept))
                break
            except TooLargeError as error:
                row = int(left[int(error.data.get("row", 0))])
                kept[row] = False
                found[row] = error.what
        return found

    def append(self, topic: str, batch: WriteBatch, keys: pa.Array | None = None) -> None:
        """Append a batch to the partitions of its keys, in parts."""
        if not batch.row_count:
            return
        if topic not in self._previous:
            self._previous[topic] = self._log.last_sequences(topic, self._producer)
        partitions = len(self._previous[topic])
        owners = partitions_of(keys, partitions) if keys is not None and partitions > 1 else None
        for partition in range(partitions) if owners is not None else (0,):
            mine = batch if owners is None else take_rows(batch, owners == partition)
            step = max(1, mine.row_count * _PART_BYTES // max(mine.nbytes, 1))
            for start in range(0, mine.row_count, step):
                self._append_part(topic, partition, mine.slice(start, step))
        self._unsynced.add(topic)

    def _append_part(self, topic: str, partition: int, batch: WriteBatch) -> None:
        sequence = (self._offset << _PART_BITS) + self._part
        self._part += 1
        previous = self._previous[topic][partition]
        numbered = replace(
            batch, partition=partition, producer=self._producer, sequence=sequence, previous=previous, per_row=False
        )
        self._log.append(topic, numbered)
        self._previous[topic][partition] = max(previous, sequence)

    def mark_idle(self, topic: str, at: int) -> None:
        """Advance the event time of all partitions of a topic, in microseconds."""
        self._log.append_idle_markers(topic, at)
        self._unsynced.add(topic)

    def sync(self) -> None:
        """Sync the topics that were appended to."""
        for topic in sorted(self._unsynced):
            self._log.sync(topic)
        self._unsynced.clear()


def take_rows(batch: WriteBatch, mask: npt.NDArray[np.bool_]) -> WriteBatch:
    """Returns the rows of a batch where the mask is true."""
    keep = flags_column(mask)
    envelope = {name: column.filter(keep) for name, column in batch.envelope.items()}
    return replace(batch, values=batch.values.filter(keep), envelope=envelope)
