"""Events of a captured outbox as batches for their topics.

`find_events` finds the rows that are new events, and `encode_events` encodes a run of events of one topic. What cannot
be an event of its topic is given back with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from headwater.capture.outbox import OutboxEvent, decode_events
from headwater.capture.routing.table_rows import CurrentRows
from headwater.capture.source import ChangeBatch
from headwater.errors import BadEventError
from headwater.events import key_bytes, keys_of, times_column
from headwater.log import Topic, WriteBatch
from headwater.log.write.write_batch import EventEncoder
from headwater.units import micros

__all__ = ["EncodedEvents", "encode_events", "find_events", "runs_of_topics"]


def find_events(batch: ChangeBatch, rows: CurrentRows, schema: pa.Schema) -> tuple[list[OutboxEvent], dict[str, str]]:
    """Returns the events of a batch of changes, in order, and the rows that hold none: the reason by id.

    A row whose id the table has already was an event before; a snapshot brings it again.

    Args:
        batch: Changes of the outbox.
        rows: The rows before them.
        schema: The columns of the outbox's topic.
    """
    places = np.flatnonzero(batch.changes.column("after").is_valid().to_numpy(zero_copy_only=False))
    after = batch.changes.column("after").take(pa.array(places))
    ids = after.field("id")
    positions, _ = rows.find(keys_of([ids]).to_pylist(), schema)
    known = {str(id_) for id_, position in zip(ids.to_pylist(), positions.tolist(), strict=True) if position >= 0}
    events, refused = decode_events(batch, known)
    return events, {str(error.data.get("id")): error.what for error in refused}


def runs_of_topics(events: Sequence[OutboxEvent]) -> Iterator[tuple[str, list[OutboxEvent]]]:
    """Yields consecutive events of one topic.

    Example:
        >>> events = [OutboxEvent(str(number), topic, {}) for number, topic in enumerate(["a", "a", "b", "a"])]
        >>> [(topic, len(run)) for topic, run in runs_of_topics(events)]
        [('a', 2), ('b', 1), ('a', 1)]
    """
    for topic, run in groupby(events, lambda event: event.topic):
        yield topic, list(run)


@dataclass(frozen=True)
class EncodedEvents:
    """Events as a batch of their topic.

    Attributes:
        batch: The batch; None if no event fits.
        keys: What decides the partition of each event.
        refused: The events that do not fit the topic: the reason by id.
    """

    batch: WriteBatch | None
    keys: pa.Array
    refused: dict[str, str]


def encode_events(topic: Topic, events: Sequence[OutboxEvent], committed_at: int) -> EncodedEvents:
    """Encode events for a topic.

    An event without a key goes to the partition of its aggregate, so that events of one aggregate stay in order.

    Args:
        topic: The topic.
        events: The events.
        committed_at: The commit time, for events that do not say when they were added, in microseconds.
    """
    encoder = EventEncoder(topic)
    good, refused = _select_valid(encoder, events)
    if not good:
        return EncodedEvents(None, pa.nulls(0, pa.binary()), refused)
    values = encoder.codec.encode([event.value for event in good])
    times = [committed_at if event.occurred_at is None else micros(event.occurred_at) for event in good]
    envelope = {
        "_hw.id": pa.array([event.id for event in good], pa.string()),
        "_hw.occurred_at": times_column(np.array(times, np.int64)),
    }
    if any(event.headers for event in good):
        headers = [list(event.headers.items()) or None for event in good]
        envelope["_hw.headers"] = pa.array(headers, pa.map_(pa.string(), pa.string()))
    if topic.key:
        keys = keys_of([values.column(name) for name in topic.key])
    else:
        keys = pa.array([key_bytes(event.key or event.aggregate or event.id) for event in good], pa.binary())
        given = [None if event.key is None else key_bytes(event.key) for event in good]
        if any(key is not None for key in given):
            envelope["_hw.key"] = pa.array(given, pa.binary())
    return EncodedEvents(WriteBatch(values, topic.version, envelope), keys, refused)


def _select_valid(encoder: EventEncoder, events: Sequence[OutboxEvent]) -> tuple[list[OutboxEvent], dict[str, str]]:
    """Returns the events that fit the topic, and the reason by id of those that do not."""
    refused: dict[str, str] = {}
    try:
        encoder.codec.validate([event.value for event in events])
    except BadEventError:  # only then one by one
        for event in events:
            try:
                encoder.codec.validate([event.value])
            except BadEventError as error:
                refused[event.id] = error.what
    for event in events:
        lacking = [name for name in encoder.topic.key if event.value.get(name) is None]
        if lacking:
            refused.setdefault(event.id, f"the event has no value for the key column {lacking[0]!r}")
    return [event for event in events if event.id not in refused], refused
