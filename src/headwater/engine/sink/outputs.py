"""The topic a pipeline feeds: the changes of a view, or the rows of a stream."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.building.build import Built
from headwater.engine.points import reach
from headwater.events import storage_schema
from headwater.log import Rows, Topic
from headwater.log.protocol import TimedLog, TimedPartition
from headwater.log.rows import Origin
from headwater.pipelines import Kind
from headwater.store import Outgoing, Store

__all__ = ["changelog_name", "output_topic", "publish"]

_TIME: Final = pa.timestamp("us", "UTC")
_BATCH_STEP: Final = 1 << 32


def changelog_name(view: str, version: int = 1) -> str:
    """The topic that has every change of a version of a view.

    Example:
        >>> changelog_name("revenue"), changelog_name("revenue", 2)
        ('revenue.changes', 'revenue.changes.2')
    """
    return f"{view}.changes" if version == 1 else f"{view}.changes.{version}"


def output_topic(built: Built, version: int) -> Topic | None:
    """The definition of the topic a pipeline feeds; None when it feeds none.

    Where rows carry event time, the topic is clocked: its time is the pipeline's watermark, which knows of all
    partitions behind it, and not what its own rows say.
    """
    pipeline, timed = built.pipeline, built.window is not None or built.time is not None or built.dated
    if pipeline.kind is Kind.FILES:
        return None
    place = pipeline.place
    if pipeline.kind is Kind.STREAM:
        return Topic.declare(
            pipeline.name, built.schema, place=place, key=pipeline.key or None, time=built.time,
            lateness="0 seconds", clocked=timed,
        )  # fmt: skip
    row = pa.struct(list(built.schema))
    schema = pa.schema(
        [
            pa.field("op", pa.string(), nullable=False),
            pa.field("before", row),
            pa.field("after", row),
            pa.field("at", _TIME, nullable=False),
        ]
    )
    lateness = "0 seconds" if timed else "10 seconds"
    return Topic.declare(
        changelog_name(pipeline.name, version),
        schema,
        place=place,
        time="at",
        lateness=lateness,
        clocked=timed,
    )


def publish(store: Store, log: TimedLog, built: Built, topic: Topic | None, query: str) -> None:
    """Append what the store has ready to the pipeline's topic, each batch once, and move the topic's time on."""
    if topic is None:
        return
    partition = log.opened(topic.name).partitions[0]
    for outgoing in store.pending(query):
        _append(log, log.topic(topic.name), built, outgoing)
        reach("in-publish")
        _mark(partition, topic, outgoing.watermark)
        store.published(query, outgoing.batch, {0: partition.slot().next_offset})
    last = store.last(query) if topic.clocked else None
    _mark(partition, topic, last.watermark if last else None)


def _mark(partition: TimedPartition, topic: Topic, watermark: int | None) -> None:
    if topic.clocked and watermark is not None and watermark > partition.slot().running_max:
        partition.mark(watermark)


def _append(log: TimedLog, topic: Topic, built: Built, outgoing: Outgoing) -> None:
    rows = _shaped(outgoing.changes, storage_schema(topic.schema), built)
    envelope: dict[str, Any] = {}
    if built.pipeline.kind is Kind.STREAM and topic.time is None and built.window is not None:
        ends = pc.struct_field(rows.column(built.window), "end")
        envelope["_hw.occurred_at"] = pc.cast(pc.subtract(pc.cast(ends, pa.int64()), 1), _TIME)
    first, entry = outgoing.batch * _BATCH_STEP, outgoing.entry
    origin = (
        None
        if entry is None
        else Origin(entry.batch, entry.epoch, msgspec.json.encode(entry.ranges()).decode())
    )
    send = Rows(
        rows, topic.version, envelope, 0, outgoing.query, first, sent_at=outgoing.committed_at, origin=origin
    )
    log.append(topic.name, send)


def _shaped(changes: pa.Table, schema: pa.Schema, built: Built) -> pa.RecordBatch:
    """One batch of exactly the topic's columns; a change happened when its row did, if the row says when."""
    if built.pipeline.kind is Kind.VIEW and built.time is not None and built.window is None:
        rows = pc.coalesce(
            *(pc.struct_field(changes.column(side), built.time) for side in ("after", "before"))
        )
        times = pc.coalesce(rows.cast(_TIME), changes.column("at"))
        changes = changes.set_column(changes.schema.get_field_index("at"), "at", times)
    whole = changes.select(schema.names).cast(schema).combine_chunks()
    batches = whole.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema)
