"""Publishes the output of a pipeline to its topic: the changes of a view, or the rows of a stream."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.build.build import BuiltQuery
from headwater.engine.failpoints import failpoint
from headwater.errors import BadRowError, SequenceGapError, TooLargeError
from headwater.events import storage_schema
from headwater.log import Topic, WriteBatch
from headwater.log.protocol import TimedLog, TimedPartition
from headwater.log.topic import MAX_EVENT_BYTES
from headwater.log.write.write_batch import Origin
from headwater.pipelines import PipelineKind
from headwater.store import OutboxEntry, Store, ViewTable
from headwater.store.changelog import ChangeSet, change_schema, changelog_topic
from headwater.store.commit.row_checks import bad_row_error, find_large_rows

__all__ = ["check_event_sizes", "output_topic", "publish", "unchecked_size"]

_TIME: Final = pa.timestamp("us", "UTC")
_BATCH_STEP: Final = 1 << 32  # sequence numbers per batch, more than a batch has rows
_EXPANSION: Final = 8  # no format makes an event that many times as large as its columns, apart from elements of lists
_BOOLEAN_EXPANSION: Final = 48  # "false," takes six bytes in JSON, and a bit in a column
_OFFSET_BYTES: Final = 4  # of a text or list in a column


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
        fix=f"stop the app; headwater backfill {query.rpartition('@')[0]}",
        producer=query,
        sequence=published * _BATCH_STEP,
        previous=published * _BATCH_STEP,
        last=last,
    )


def _append(log: TimedLog, topic: Topic, built: BuiltQuery, outgoing: OutboxEntry, previous: int) -> None:
    plain = _to_write_batch(topic, built, _split_large_updates(log, topic, built, outgoing.changes))
    first, entry = outgoing.batch * _BATCH_STEP, outgoing.entry  # the same sequence numbers at every attempt
    origin = None if entry is None else Origin(entry.batch, entry.epoch, msgspec.json.encode(entry.ranges()).decode())
    batch = replace(
        plain,
        partition=0,
        producer=outgoing.query,
        sequence=first,
        previous=previous,
        sent_at=outgoing.committed_at,
        origin=origin,
    )
    try:
        log.append(topic.name, batch)
    except TooLargeError as error:  # committed by an older version, which did not check the size before
        what, name = f"{built.pipeline} cannot publish a committed row: {error.what}", built.pipeline.name
        fix = f"stop the app; headwater run app.py --rebuild {name}"
        raise BadRowError(what, detail="a rebuild refuses it", fix=fix, pipeline=name) from None


def _to_write_batch(topic: Topic, built: BuiltQuery, changes: pa.Table) -> WriteBatch:
    rows = _to_topic_batch(changes, storage_schema(topic.schema), built)
    envelope: dict[str, Any] = {}
    if built.pipeline.kind is PipelineKind.STREAM and topic.time is None and built.window is not None:
        # One microsecond before the end, so that the row of a minute lies in the hour that contains the minute.
        ends = pc.struct_field(rows.column(built.window), "end")
        envelope["_hw.occurred_at"] = pc.cast(pc.subtract(pc.cast(ends, pa.int64()), 1), _TIME)
    return WriteBatch(rows, topic.version, envelope)


def check_event_sizes(
    log: TimedLog, topic: Topic | None, built: BuiltQuery, rows: pa.Table, changes: pa.Table | None = None
) -> None:
    """Check that rows of a stream, or the changes of a view, are within the log's limit for one event.

    Called before the commit: later, the outbox could never be published. An update that is too large becomes two
    events, so it is enough that each row of a view fits into one.

    Args:
        log: The log.
        topic: The output topic; None if there is none.
        built: The query.
        rows: Rows of its view or stream.
        changes: The changes of the view, if they are known.

    Raises:
        BadRowError: A row is too large for an event.
    """
    out = rows if changes is None else changes
    large = [] if topic is None else list(find_large_rows(out, unchecked_size(out.schema)))
    if topic is None or not large:
        return
    known, none = log.topic(topic.name), built.schema.empty_table()
    view = ViewTable(built.pipeline.name, 1, built.schema, built.pipeline.key, built.window)
    for row in (out.slice(index, 1) for index in large):
        inserted = built.pipeline.kind is PipelineKind.VIEW and changes is None
        outgoing = ChangeSet(row, none, none, none, none).to_table(view, 0) if inserted else row
        try:
            batch = _to_write_batch(known, built, _split_large_updates(log, known, built, outgoing))
            log.check_sizes(topic.name, batch)
        except TooLargeError as error:
            raise bad_row_error(view, row, f"as an event of {topic.name}, {error.what}") from None


def unchecked_size(schema: pa.Schema) -> int:
    """Returns the bytes up to which a row needs no exact check: in every format, its event is within the limit.

    Example:
        >>> unchecked_size(pa.schema([("name", pa.string())]))
        524288
        >>> unchecked_size(pa.schema([("flags", pa.list_(pa.bool_()))]))
        87381
    """
    return MAX_EVENT_BYTES // max(_EXPANSION, *(_expansion(field.type, element=False) for field in schema))


def _expansion(kind: pa.DataType, *, element: bool) -> int:
    """Returns how many bytes of JSON a byte of a column becomes, at most; `element`: the values are those of a list."""
    if pa.types.is_map(kind):
        return _expansion(pa.struct([("key", kind.key_type), ("value", kind.item_type)]), element=True)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _expansion(kind.value_type, element=True)
    if pa.types.is_struct(kind):
        members = [kind.field(at) for at in range(kind.num_fields)]
        inner = max((_expansion(member.type, element=element) for member in members), default=_EXPANSION)
        # Each element of a list repeats the names of its members, with quotes, colon and comma.
        names = sum(len(member.name) + 6 for member in members) if element else 0
        return inner + math.ceil(names / max(1 / 8, sum(_width(member.type) for member in members)))
    return _BOOLEAN_EXPANSION if element and pa.types.is_boolean(kind) else _EXPANSION


def _width(kind: pa.DataType) -> float:
    """Returns the bytes that a value takes in a column, at least."""
    if pa.types.is_struct(kind):
        return sum(_width(kind.field(at).type) for at in range(kind.num_fields))
    try:
        return float(kind.bit_width / 8)
    except ValueError:
        return _OFFSET_BYTES


def _split_large_updates(log: TimedLog, topic: Topic, built: BuiltQuery, changes: pa.Table) -> pa.Table:
    """Returns the changes with each update that is too large for an event as a deletion and an insertion."""
    if built.pipeline.kind is not PipelineKind.VIEW:
        return changes
    parts: list[pa.Table] = []
    done = 0
    for index in find_large_rows(changes, unchecked_size(changes.schema)):
        row = changes.slice(index, 1)
        if row.column("op")[0].as_py() == "update" and not _is_within_limit(log, topic, built, row):
            parts += [changes.slice(done, index - done), _one_side(row, "delete"), _one_side(row, "insert")]
            done = index + 1
    return pa.concat_tables([*parts, changes.slice(done)]) if parts else changes


def _is_within_limit(log: TimedLog, topic: Topic, built: BuiltQuery, row: pa.Table) -> bool:
    try:
        log.check_sizes(topic.name, _to_write_batch(topic, built, row))
    except TooLargeError:
        return False
    return True


def _one_side(update: pa.Table, op: str) -> pa.Table:
    """Returns the deletion or the insertion of an update."""
    gone = "after" if op == "delete" else "before"
    values = {"op": pa.array([op]), gone: pa.nulls(1, update.schema.field(gone).type)}
    columns = [values.get(name, update.column(name)) for name in update.column_names]
    return pa.Table.from_arrays(columns, schema=update.schema)


def _to_topic_batch(changes: pa.Table, schema: pa.Schema, built: BuiltQuery) -> pa.RecordBatch:
    """Returns one batch with exactly the topic's columns; a change gets the event time of its row, if it has one."""
    if built.pipeline.kind is PipelineKind.VIEW and built.time is not None and built.window is None:
        rows = pc.coalesce(*(pc.struct_field(changes.column(side), built.time) for side in ("after", "before")))
        times = pc.coalesce(rows.cast(_TIME), changes.column("at"))
        changes = changes.set_column(changes.schema.get_field_index("at"), "at", times)
    batches = changes.select(schema.names).cast(schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema)
