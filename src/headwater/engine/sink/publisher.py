"""Publishes the output of a pipeline to its topic: the changes of a view, or the rows of a stream."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.build.build import BuiltQuery
from headwater.engine.failpoints import failpoint
from headwater.errors import SequenceGapError
from headwater.events import storage_schema
from headwater.log import Topic, WriteBatch
from headwater.log.protocol import TimedLog, TimedPartition
from headwater.log.write_batch import Origin
from headwater.pipelines import PipelineKind
from headwater.store import OutboxEntry, Store, ViewTable
from headwater.store.changelog import change_schema, changelog_topic

__all__ = ["output_topic", "publish"]

_TIME: Final = pa.timestamp("us", "UTC")
_BATCH_STEP: Final = 1 << 32  # sequence numbers per batch, more than a batch has rows


def output_topic(built: BuiltQuery, version: int) -> Topic | None:
    """Returns the definition of the pipeline's output topic; None if it has none.

    If rows carry event time, the topic's event time is kept externally: it is the pipeline's watermark, which covers
    all upstream partitions, and not the time of the topic's own rows.
    """
    pipeline, timed = built.pipeline, built.window is not None or built.time is not None or built.emits_versions
    if pipeline.kind is PipelineKind.FILES:
        return None
    if pipeline.kind is PipelineKind.STREAM:
        return Topic.declare(
            pipeline.name, built.schema, location=pipeline.location, key=pipeline.key or None, time=built.time,
            lateness="0 seconds", external_time=timed,
        )  # fmt: skip
    view = ViewTable(pipeline.name, version, built.schema, pipeline.key)
    return Topic.declare(
        changelog_topic(view.name, version), change_schema(view), location=pipeline.location, time="at",
        lateness="0 seconds" if timed else "10 seconds", external_time=timed,
    )  # fmt: skip


def publish(store: Store, log: TimedLog, built: BuiltQuery, topic: Topic | None, query: str) -> None:
    """Append the outbox to the pipeline's topic, each batch once, and advance the topic's event time.

    May be called again after a crash at any point. The log drops a batch that it has, because query and batch number
    determine the producer and the sequence numbers. An entry leaves the outbox only after its batch is in the log.
    """
    if topic is None:
        return
    partition = log.open_topic(topic.name).partitions[0]
    for outgoing in store.outbox(query):
        _append(log, log.topic(topic.name), built, outgoing, _find_previous(store, log, topic.name, query))
        failpoint("in-publish")
        _advance_time(partition, topic, outgoing.watermark)
        store.mark_published(query, outgoing.batch, {0: partition.state().next_offset})
    last = store.last_entry(query) if topic.external_time else None
    _advance_time(partition, topic, last.watermark if last else None)


def _advance_time(partition: TimedPartition, topic: Topic, watermark: int | None) -> None:
    if topic.external_time and watermark is not None and watermark > partition.state().max_event_time:
        partition.append_idle_marker(watermark)


def _find_previous(store: Store, log: TimedLog, topic: str, query: str) -> int:
    """Returns the last sequence number of the query in its topic.

    Raises:
        SequenceGapError: The topic lacks a batch that was published.
    """
    last, published = log.last_sequences(topic, query)[0], store.last_published(query)
    # A topic without any number of the query has forgotten it, or was created again.
    if published is None or last < 0 or last // _BATCH_STEP >= published:
        return last
    raise SequenceGapError(
        f'batch {published} of "{query}" was published, and is not in topic "{topic}"',
        detail=f"the last batch in the topic is {last // _BATCH_STEP}: the topic was restored from an older copy",
        fix=f"headwater backfill {query.rpartition('@')[0]}",
        producer=query,
        sequence=published * _BATCH_STEP,
        previous=published * _BATCH_STEP,
        last=last,
    )


def _append(log: TimedLog, topic: Topic, built: BuiltQuery, outgoing: OutboxEntry, previous: int) -> None:
    rows = _to_topic_batch(outgoing.changes, storage_schema(topic.schema), built)
    envelope: dict[str, Any] = {}
    if built.pipeline.kind is PipelineKind.STREAM and topic.time is None and built.window is not None:
        # One microsecond before the end, so that the row of a minute lies in the hour that contains the minute.
        ends = pc.struct_field(rows.column(built.window), "end")
        envelope["_hw.occurred_at"] = pc.cast(pc.subtract(pc.cast(ends, pa.int64()), 1), _TIME)
    first, entry = outgoing.batch * _BATCH_STEP, outgoing.entry  # the same sequence numbers at every attempt
    origin = None if entry is None else Origin(entry.batch, entry.epoch, msgspec.json.encode(entry.ranges()).decode())
    batch = WriteBatch(
        rows, topic.version, envelope, 0, outgoing.query, first, previous, sent_at=outgoing.committed_at, origin=origin
    )
    log.append(topic.name, batch)


def _to_topic_batch(changes: pa.Table, schema: pa.Schema, built: BuiltQuery) -> pa.RecordBatch:
    """Returns one batch with exactly the topic's columns; a change gets the event time of its row, if it has one."""
    if built.pipeline.kind is PipelineKind.VIEW and built.time is not None and built.window is None:
        rows = pc.coalesce(*(pc.struct_field(changes.column(side), built.time) for side in ("after", "before")))
        times = pc.coalesce(rows.cast(_TIME), changes.column("at"))
        changes = changes.set_column(changes.schema.get_field_index("at"), "at", times)
    batches = changes.select(schema.names).cast(schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema)
