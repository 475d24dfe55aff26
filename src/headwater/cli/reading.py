"""A range of a topic for `cat` and `tail`: positions resolved, a condition applied, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headwater.errors import BadOffsetError, BadSettingError
from headwater.log import LogBatch
from headwater.log.reader import Reader

if TYPE_CHECKING:
    from headwater.events import Where
    from headwater.log import Start, Topic
    from headwater.log.protocol import Log

__all__ = ["Selection", "condition", "read"]

_FOLLOW = 3600.0  # seconds of one wait while following
_ZONED = pa.timestamp("us", "UTC")
_HEADERS = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class Selection:
    """What to read.

    Args:
        topic: Its topic.
        start: Where to begin.
        stop: Where to end; None to follow for ever.
        where: Which events; all if None.
        partition: One partition; all if None.
        limit: How many events at most.
    """

    topic: str
    start: Start
    stop: Start | None = None
    where: Where | None = None
    partition: int | None = None
    limit: int | None = None


def condition(text: str | None) -> Where | None:
    """The condition behind `--where`."""
    if text is None:
        return None
    from headwater.events import Where

    return Where(text)


def read(log: Log, selection: Selection) -> Iterator[LogBatch]:
    """Batches of the selection, in order within each partition; those in which nothing fits are left out.

    Raises:
        BadFilterError: The condition does not fit the topic, which is found out before anything is read.
        BadOffsetError: The topic has no such partition, or no such offset.
    """
    topic = log.topic(selection.topic)
    if selection.limit is not None and selection.limit < 1:
        raise BadSettingError(f"a limit of {selection.limit} events", fix="--limit 10")
    if selection.where is not None:
        selection.where.mask(_empty(topic.schema), _envelope_of_none(topic))
    numbers = _partitions(topic, selection.partition)
    positions = {number: log.find(topic.name, number, selection.start) for number in numbers}
    stops = None
    if selection.stop is not None:
        stops = {number: log.find(topic.name, number, selection.stop) for number in numbers}
    reader = Reader(log, topic.name, positions, stops)
    try:
        yield from _limited(_chosen(_batches(reader, follow=stops is None), selection.where), selection.limit)
    finally:
        reader.close()


def _partitions(topic: Topic, chosen: int | None) -> list[int]:
    if chosen is None:
        return list(range(topic.partitions))
    if not 0 <= chosen < topic.partitions:
        what = f'topic "{topic.name}" has no partition {chosen}'
        raise BadOffsetError(what, detail=f"it has 0 to {topic.partitions - 1}", partition=chosen)
    return [chosen]


def _batches(reader: Reader, *, follow: bool) -> Iterator[LogBatch]:
    if not follow:
        yield from reader
        return
    while True:
        yield from reader.next(_FOLLOW)


def _chosen(batches: Iterator[LogBatch], where: Where | None) -> Iterator[LogBatch]:
    for batch in batches:
        if not batch.values.num_rows:
            continue  # a time mark
        if where is None:
            yield batch
            continue
        mask = where.mask(batch.values, _envelope(batch))
        if mask.any():
            yield batch if mask.all() else batch.select(mask)


def _limited(batches: Iterator[LogBatch], limit: int | None) -> Iterator[LogBatch]:
    if limit is None:
        yield from batches
        return
    left = limit
    for batch in batches:
        rows = batch.values.num_rows
        yield batch if rows <= left else batch.select(np.arange(rows) < left)
        left -= rows
        if left <= 0:
            return


def _envelope(batch: LogBatch) -> dict[str, pa.Array]:
    """What a condition may name besides the fields of the value."""
    rows = batch.values.num_rows
    headers = batch.envelope.get("_hw.headers")
    return {
        "key": _keys(batch),
        "partition": pa.array(np.full(rows, batch.partition)),
        "offset": pa.array(batch.offsets),
        "occurred_at": pa.array(batch.occurred).cast(_ZONED),
        "received_at": pa.array(batch.received).cast(_ZONED),
        "headers": pa.nulls(rows, _HEADERS) if headers is None else headers,
        "late": pa.array(batch.late()),
    }


def _keys(batch: LogBatch) -> pa.Array:
    if len(batch.topic.key) == 1:
        return batch.values.column(batch.topic.key[0])
    keys = batch.key_bytes
    if keys is None:
        return pa.nulls(batch.values.num_rows, pa.string())
    return pa.array(
        [None if key is None else key.decode(errors="replace") for key in keys.to_pylist()], pa.string()
    )


def _envelope_of_none(topic: Topic) -> dict[str, pa.Array]:
    key = topic.schema.field(topic.key[0]).type if len(topic.key) == 1 else pa.string()
    kinds = {"key": key, "partition": pa.int64(), "offset": pa.int64(), "occurred_at": _ZONED}
    kinds |= {"received_at": _ZONED, "headers": _HEADERS, "late": pa.bool_()}
    return {name: pa.nulls(0, kind) for name, kind in kinds.items()}


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], names=schema.names)
