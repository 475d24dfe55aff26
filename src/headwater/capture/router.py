"""Routes the journal of a capture to the topics of its tables: whole rows, and tombstones for deletions.

The topics are not synced by each append. A commit syncs them, then writes rows and position (`TableRows`). After a
crash routing resumes at that position. Producer and sequence numbers follow from the offset in the journal, so the
log drops what it has, and what it lost comes again at the same offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.capture.journal import JournalEntry, journal_identity, quarantine_topic
from headwater.capture.outbox_events import encode_events, find_events, runs_of_topics
from headwater.capture.source import ChangeBatch, Record, RecordKind, SourceTable, TableShape
from headwater.capture.table_rows import TableRows, fit_columns
from headwater.capture.table_topic import define_table_topic, merge_shape
from headwater.capture.whole_rows import TRUNCATE, WholeRows, complete_rows, find_first_versions, select_new_rows
from headwater.errors import (
    BadKeyError,
    BadTypeError,
    HeadwaterError,
    NotCapturableError,
    SchemaConflictError,
    TooLargeError,
    TopicExistsError,
    UnknownTopicError,
)
from headwater.events import flags_column, partitions_of, storage_schema, times_column
from headwater.events.change import OPS
from headwater.events.values import to_json_value
from headwater.log import Topic, WriteBatch
from headwater.log.event_log import PartitionRange
from headwater.log.protocol import TimedLog
from headwater.log.topic import MAX_EVENT_BYTES

__all__ = ["SINCE_ALWAYS", "Router", "TableState"]

logger = logging.getLogger("headwater.capture")

SINCE_ALWAYS: Final = -62_135_596_800_000_000
"""The event time of the first version of rows that are older than the capture, in microseconds: the first moment that
Python and Spark know."""
_MARKER_INTERVAL: Final = 100_000  # microseconds of the source's time between two idle markers of a table
_ADOPTED: Final = -1  # the epoch of rows that another writer has left: before every load
_PART_BITS: Final = 24  # of a sequence number: the appends that one journal record may become
_PART_BYTES: Final = 8 << 20
_MAX_RAW: Final = 1 << 20
_TABLE_ERRORS: Final = (
    SchemaConflictError,
    TopicExistsError,
    BadKeyError,
    BadTypeError,
    NotCapturableError,
    pa.ArrowException,
)
_QUARANTINE_SCHEMA: Final = pa.schema(
    [
        pa.field("table", pa.string()),
        pa.field("op", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("reason", pa.string()),
        pa.field("position", pa.string()),
        pa.field("change", pa.string()),  # JSON
    ]
)


class TableState(msgspec.Struct):
    """What the router knows of a table.

    Attributes:
        topic: Its topic.
        epoch: The load that is complete or in progress.
        loaded: Whether a snapshot of it was complete once.
        loading: Whether a snapshot of it is not complete yet.
        marked: The time of its last idle marker, in microseconds; None before the first.
        columns: The type of its topic as an Arrow schema; empty before the first row.
        key: The key columns.
        stopped: Why it is no longer delivered, as a problem document.
        backfill: Why a new snapshot is needed.
        quarantined: The number of changes in quarantine.
        left: Whether the app captures it no longer.
    """

    topic: str
    epoch: int = 0
    loaded: bool = False
    loading: bool = True
    marked: int | None = None
    columns: bytes = b""
    key: tuple[str, ...] = ()
    stopped: dict[str, Any] | None = None
    backfill: str = ""
    quarantined: int = 0
    left: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The type of its topic."""
        return pa.ipc.read_schema(pa.py_buffer(self.columns))


class RouterState(msgspec.Struct):
    """The state that is committed with the rows.

    Attributes:
        position: The offset of the next journal record.
        epoch: The number of loads that have begun.
        known: The time up to which the source is known, in microseconds.
        tables: The tables by name.
    """

    position: int = 0
    epoch: int = 0
    known: int = 0
    tables: dict[str, TableState] = msgspec.field(default_factory=dict)


class Router:
    """Routes journal entries in order.

    After an error, close the router and its `TableRows`, and make new ones: they resume at the last commit.

    Args:
        log: The log.
        name: The name of the capture.
        rows: The current rows; the router begins at their position.
        tables: The captured tables.
        options: Options of topics that are created, by table.
    """

    def __init__(
        self,
        log: TimedLog,
        name: str,
        rows: TableRows,
        tables: Sequence[SourceTable],
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.name = name
        self.state = msgspec.convert(rows.state, RouterState, strict=False)
        self._log = log
        self._rows = rows
        self._captured = {table.table: table for table in tables}
        self._options = options or {}
        self._identity = journal_identity(log, name)
        self._producer = f"capture/{self._identity}"
        self._previous: dict[str, list[int]] = {}
        self._unsynced: set[str] = set()
        self._targets: dict[str, Topic] = {}
        self._schemas: dict[str, pa.Schema] = {}
        self._part = 0
        self._offset = 0
        self._committed = self.state.position
        for table, state in self.state.tables.items():
            state.left = state.left or table not in self._captured

    @property
    def position(self) -> int:
        """The offset of the next journal record."""
        return self.state.position

    def route(self, entries: Iterable[JournalEntry]) -> None:
        """Append the rows of journal entries to the topics of their tables; skips entries that are routed."""
        for entry in entries:
            if entry.offset < self.state.position:
                continue
            self._offset, self._part = entry.offset, 0
            self._apply(entry.record)
            self.state.position = entry.offset + 1

    def commit(self) -> None:
        """Sync the topics that got rows, then write rows and position."""
        if self.state.position == self._committed:
            return
        for topic in sorted(self._unsynced):
            self._log.sync(topic)
        self._unsynced.clear()
        self._rows.commit(msgspec.to_builtins(self.state))
        self._committed = self.state.position

    def take_over(self) -> None:
        """Fence a former owner of the capture, which may have been stopped in the middle of an append."""
        there = set(self._log.topics())
        for topic in {*(table.topic for table in self._captured.values()), quarantine_topic(self.name)} & there:
            self._previous[topic] = self._log.last_sequences(topic, self._producer)

    def find_returned_tables(self) -> list[str]:
        """Returns the captured tables that were left out for a time: they need a load of their own."""
        return [name for name, state in self.state.tables.items() if state.left and name in self._captured]

    def adopt_topics(self) -> None:
        """Take over the rows of topics that another writer has filled, such as a capture that was dropped.

        Rows that the first snapshot does not bring are then deleted, and equal ones give no event. Call it before the
        first entry is routed; it commits.
        """
        adopted = False
        for name, chosen in self._captured.items():
            if name in self.state.tables or chosen.topic not in self._log.topics():
                continue
            ends = self._log.ends(chosen.topic)
            written = max(self._log.last_sequences(chosen.topic, self._producer), default=-1) >= 0
            if not written and any(end.end > end.start for end in ends):
                self._adopt_topic(name, chosen.topic, ends)
                adopted = True
        if adopted:
            self._rows.commit(msgspec.to_builtins(self.state))

    def _adopt_topic(self, name: str, topic: str, ends: Sequence[PartitionRange]) -> None:
        definition, table = self._log.topic(topic), self._table(name)
        table.columns, table.key = definition.schema.serialize().to_pybytes(), definition.key
        marked = max(end.max_event_time for end in ends)
        if marked > SINCE_ALWAYS:
            table.loaded, table.loading, table.marked = True, False, marked
        rows = self._rows.table(name)
        for end in ends:
            offset = end.start
            while offset < end.end and (
                found := self._log.fetch(topic, {end.partition: offset}, max_bytes=_PART_BYTES, timeout=0, waiter=None)
            ):
                for batch in found:
                    keys = batch.key_bytes
                    if keys is not None and batch.values.num_rows:
                        rows.put(keys.to_pylist(), batch.values, batch.tombstones, _ADOPTED)
                offset = found[-1].next_offset

    # -- records -------------------------------------------------------------------------------------------------

    def _apply(self, record: Record) -> None:
        if record.kind is RecordKind.EPOCH:
            self._begin_epoch(record.table)
        elif record.kind is RecordKind.QUARANTINE:
            self._quarantine_text(record)
        elif record.table and record.table in self._captured:
            table = self._table(record.table)
            try:
                self._apply_to_table(table, record)
            except _TABLE_ERRORS as error:
                self._stop_table(table, record, error)
        self._advance_time(record)

    def _table(self, name: str) -> TableState:
        if name not in self.state.tables:
            self.state.tables[name] = TableState(self._captured[name].topic, self.state.epoch)
        table = self.state.tables[name]
        table.left, table.topic = False, self._captured[name].topic
        return table

    def _begin_epoch(self, name: str) -> None:
        self.state.epoch += 1
        for table in [self._table(name)] if name else self.state.tables.values():
            table.epoch, table.stopped, table.loading = self.state.epoch, None, True

    def _apply_to_table(self, table: TableState, record: Record) -> None:
        if table.stopped is not None:
            self._quarantine_changes(table, record, str(table.stopped.get("title")))
            return
        match record.kind:
            case RecordKind.SHAPE if record.shape is not None:
                self._adopt_shape(table, record.shape)
            case RecordKind.SNAPSHOT if record.batch is not None:
                self._route_snapshot(table, record.batch)
            case RecordKind.CHANGES if record.batch is not None:
                self._route_changes(table, record.batch)
            case RecordKind.SNAPSHOT_DONE:
                self._finish_load(table, record)
            case RecordKind.BACKFILL:
                table.backfill = record.detail

    def _adopt_shape(self, table: TableState, shape: TableShape) -> None:
        """Bring the topic of a table to a new shape; creates the topic before the first row."""
        chosen = self._captured[shape.table]
        try:
            known = self._log.topic(table.topic)
        except UnknownTopicError:
            options = self._options.get(shape.table)
            known = self._log.create(define_table_topic(table.topic, shape, chosen.key, options))
        # By the journal alone, not by what the topic has become since: a replay must give equal rows.
        if chosen.outbox and known.key != ("id",):
            what, fix = f"table {shape.table!r} is no outbox: its key is not id", "create it as hw.outbox().ddl(…) says"
            raise NotCapturableError(what, fix=fix, table=shape.table)
        before = table.schema if table.columns else known.schema
        merged = merge_shape(before, shape, known.key)
        table.columns, table.key = merged.serialize().to_pybytes(), known.key
        wider = merge_shape(known.schema, shape, known.key)
        if not wider.equals(known.schema):
            known = self._log.create(replace(known, schema=wider, given=frozenset()))
        self._targets[table.topic] = known
        self._schemas.pop(table.topic, None)

    def _route_snapshot(self, table: TableState, batch: ChangeBatch) -> None:
        rows = self._rows.table(batch.shape.table)
        schema = self._ensure_schema(table, batch.shape)
        self._route_events(table, batch)
        whole, differs = select_new_rows(batch.changes, schema, table.key, rows)
        new = whole if differs.all() else whole.take(np.flatnonzero(differs))
        prefix = f"{self._identity}/{self.state.epoch}/{batch.shape.table}/"
        at = SINCE_ALWAYS if not table.loaded else max(self.state.known, table.marked or 0)
        times = np.full(len(new.gone), at, np.int64)
        kept = self._append_rows(table, batch, new, _join_text(prefix, new.keys), times)
        if kept is not None:  # some were too large: the others keep their place
            lost = set(np.flatnonzero(differs)[~kept].tolist())
            whole = whole.take(np.array([row for row in range(len(whole.gone)) if row not in lost], np.int64))
        rows.put(whole.keys.to_pylist(), whole.values, whole.gone, table.epoch)

    def _route_changes(self, table: TableState, batch: ChangeBatch) -> None:
        cuts = np.flatnonzero(batch.changes.column("op").to_numpy() == TRUNCATE).tolist()
        start = 0
        for cut in [*cuts, batch.changes.num_rows]:
            if cut > start:
                self._route_segment(table, ChangeBatch(batch.shape, batch.changes.slice(start, cut - start)))
            if cut < batch.changes.num_rows:
                truncate = batch.changes.slice(cut, 1)
                at = max(truncate.column("at").cast(pa.int64())[0].as_py(), table.marked or SINCE_ALWAYS)
                place = f"{truncate.column('commit')[0]}.{truncate.column('index')[0]}"
                self._delete_rows(table, batch.shape, f"{self._identity}/{self.state.epoch}:{place}/", at, None)
            start = cut + 1

    def _route_segment(self, table: TableState, batch: ChangeBatch) -> None:
        rows = self._rows.table(batch.shape.table)
        schema = self._ensure_schema(table, batch.shape)
        self._route_events(table, batch)
        whole = complete_rows(batch.changes, schema, table.key, rows)
        # While a table loads, the snapshot brings the rows that are not known yet after such a change.
        for row, reason in whole.rejected.items() if not table.loading else ():
            table.backfill = table.backfill or reason
            self._quarantine(table, batch, [row], reason)
        if not len(whole.gone):
            return
        source = pa.array(whole.source)
        parts = [batch.changes.column(name).take(source).cast(pa.string()) for name in ("commit", "index")]
        suffix = pa.array(np.where(whole.moved, "/old", ""), pa.string()) if whole.moved.any() else ""
        ids = pc.binary_join_element_wise(f"{self._identity}/{self.state.epoch}:", parts[0], ".", parts[1], suffix, "")
        times = batch.changes.column("at").cast(pa.int64()).to_numpy()[whole.source]
        if table.marked is not None:
            times = np.maximum(times, table.marked)
        if not table.loaded:
            times = np.where(find_first_versions(batch.changes, whole, rows), SINCE_ALWAYS, times)
        kept = self._append_rows(table, batch, whole, ids, times)
        if kept is not None:
            whole = whole.take(np.flatnonzero(kept))
        rows.put(whole.keys.to_pylist(), whole.values, whole.gone, table.epoch)

    def _route_events(self, table: TableState, batch: ChangeBatch) -> None:
        """Append the events that new rows of an outbox hold to their topics; before the rows are put."""
        if not self._captured[batch.shape.table].outbox:
            return
        schema, rows = self._ensure_schema(table, batch.shape), self._rows.table(batch.shape.table)
        events, refused = find_events(batch, rows, schema)
        for name, run in runs_of_topics(events):
            try:
                encoded = encode_events(self._target(name), run, self.state.known)
            except UnknownTopicError as error:
                refused |= dict.fromkeys((event.id for event in run), error.what)
                continue
            if encoded.batch is not None:
                self._append(name, encoded.batch, encoded.keys)
            refused |= encoded.refused
        if refused:
            ids = [None if row is None else str(row["id"]) for row in batch.changes.column("after").to_pylist()]
            for id_, reason in refused.items():
                self._quarantine(table, batch, [ids.index(id_)], reason)

    def _finish_load(self, table: TableState, record: Record) -> None:
        """Delete the rows that the load has not brought; from now on the event time of the table advances."""
        at = max(self.state.known, table.marked or SINCE_ALWAYS) if table.loaded else SINCE_ALWAYS
        if table.columns:
            shape = TableShape(record.table, 0, table.schema, table.key)
            prefix = f"{self._identity}/{self.state.epoch}/{record.table}/gone/"
            self._delete_rows(table, shape, prefix, at, table.epoch)
        table.loaded, table.loading, table.backfill = True, False, ""

    def _delete_rows(self, table: TableState, shape: TableShape, prefix: str, at: int, before: int | None) -> None:
        """Append tombstones for all rows, or those of epochs before one, and remove the rows."""
        rows = self._rows.table(shape.table)
        schema = self._ensure_schema(table, shape)
        for keys, batch in rows.scan(schema, before):
            count = batch.num_rows
            columns = [
                column if field.name in table.key else pa.nulls(count, field.type)
                for field, column in zip(schema, batch.columns, strict=True)
            ]
            values, found = pa.RecordBatch.from_arrays(columns, schema=schema), pa.array(keys, pa.binary())
            gone, none = np.ones(count, bool), np.zeros(count, bool)
            whole = WholeRows(values, found, gone, np.arange(count), none)
            self._append_rows(table, None, whole, _join_text(prefix, found), np.full(count, at, np.int64))
        rows.remove(before)

    def _ensure_schema(self, table: TableState, shape: TableShape) -> pa.Schema:
        """Returns the columns of the table's topic as the log stores them."""
        if not table.columns:  # a source may leave the first shape record out
            self._adopt_shape(table, shape)
        if table.topic not in self._schemas:
            self._schemas[table.topic] = storage_schema(table.schema)
        return self._schemas[table.topic]

    # -- appends -------------------------------------------------------------------------------------------------

    def _append_rows(
        self, table: TableState, batch: ChangeBatch | None, rows: WholeRows, ids: pa.Array, times: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_] | None:
        """Append rows to the topic of a table; returns which were kept if some are too large for an event."""
        if not len(rows.gone):
            return None
        target = self._target(table.topic)
        envelope = {"_hw.id": ids, "_hw.occurred_at": times_column(times)}
        if rows.gone.any():
            envelope["_hw.deleted"] = flags_column(rows.gone)
        values = fit_columns(rows.values, storage_schema(target.schema))
        whole = WriteBatch(values, target.version, envelope)
        kept = self._drop_large_rows(table, batch, rows, whole)
        if kept is not None:
            whole, places = _take(whole, kept), np.flatnonzero(kept)
            rows = rows.take(places)
        self._append(table.topic, whole, rows.keys)
        return kept

    def _target(self, topic: str) -> Topic:
        """Returns the definition of a topic; its type may be later than that of the rows while the journal repeats."""
        if topic not in self._targets:
            self._targets[topic] = self._log.topic(topic)
        return self._targets[topic]

    def _drop_large_rows(
        self, table: TableState, batch: ChangeBatch | None, rows: WholeRows, whole: WriteBatch
    ) -> npt.NDArray[np.bool_] | None:
        """Returns which rows fit into an event if some do not; the others go into quarantine."""
        kept = np.ones(whole.row_count, bool)
        while whole.nbytes > MAX_EVENT_BYTES:
            left = np.flatnonzero(kept)
            try:
                self._log.check_sizes(table.topic, whole if kept.all() else _take(whole, kept))
                break
            except TooLargeError as error:
                row = int(left[int(error.data.get("row", 0))])
                kept[row] = False
                if batch is not None:
                    self._quarantine(table, batch, [int(rows.source[row])], error.what)
        return None if kept.all() else kept

    def _append(self, topic: str, batch: WriteBatch, keys: pa.Array | None = None) -> None:
        """Append a batch to the partitions of its keys, in parts; sequence numbers follow from the journal's offset."""
        if not batch.row_count:
            return
        if topic not in self._previous:
            self._previous[topic] = self._log.last_sequences(topic, self._producer)
        partitions = len(self._previous[topic])
        owners = partitions_of(keys, partitions) if keys is not None and partitions > 1 else None
        for partition in range(partitions) if owners is not None else (0,):
            mine = batch if owners is None else _take(batch, owners == partition)
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

    def _advance_time(self, record: Record) -> None:
        """Append idle markers up to the time the source is known, so that joins need not wait for a change.

        When a marker is due follows from the journal alone: markers take offsets, too.
        """
        if record.open or record.kind not in (RecordKind.CHANGES, RecordKind.POSITION) or not record.at:
            return
        self.state.known = max(self.state.known, record.at)
        for name, table in self.state.tables.items():
            if name not in self._captured or not table.loaded or table.stopped is not None or not table.columns:
                continue
            if table.marked is None or self.state.known - table.marked >= _MARKER_INTERVAL:
                table.marked = self.state.known
                self._log.append_idle_markers(table.topic, table.marked)
                self._unsynced.add(table.topic)

    # -- what cannot be delivered --------------------------------------------------------------------------------

    def _stop_table(self, table: TableState, record: Record, error: Exception) -> None:
        """Stop one table; its changes go into quarantine from here on, and the other tables go on."""
        if isinstance(error, HeadwaterError):
            table.stopped = error.problem()
        else:
            table.stopped = SchemaConflictError(f"a row of {record.table} does not fit: {error}").problem()
        logger.error("capture %s: table %s has stopped: %s", self.name, record.table, error)
        self._quarantine_changes(table, record, str(table.stopped["title"]))

    def _quarantine_changes(self, table: TableState, record: Record, reason: str) -> None:
        if record.batch is not None:
            self._quarantine(table, record.batch, list(range(record.batch.changes.num_rows)), reason)

    def _quarantine(self, table: TableState, batch: ChangeBatch, rows: list[int], reason: str) -> None:
        table.quarantined += len(rows)
        self._append_quarantined(
            {
                "table": batch.shape.table,
                "op": OPS[change["op"]],
                "at": change["at"],
                "reason": reason,
                "position": f"{change['commit']}.{change['index']}",
                "change": msgspec.json.encode(to_json_value(change)).decode()[:_MAX_RAW],
            }
            for change in batch.changes.take(pa.array(rows)).to_pylist()
        )

    def _quarantine_text(self, record: Record) -> None:
        if record.table in self._captured:
            self._table(record.table).quarantined += 1
        at = record.at or None
        row = {"table": record.table, "at": at, "reason": "the change cannot be decoded", "change": record.detail}
        self._append_quarantined([row])

    def _append_quarantined(self, changes: Iterable[dict[str, Any]]) -> None:
        topic = quarantine_topic(self.name)
        if topic not in self._targets:
            definition = Topic.declare(topic, _QUARANTINE_SCHEMA, time="at", durability="fast")
            self._targets[topic] = self._log.create(definition)
        values = pa.RecordBatch.from_pylist(list(changes), schema=_QUARANTINE_SCHEMA)
        self._append(topic, WriteBatch(values, self._targets[topic].version))


def _join_text(prefix: str, keys: pa.Array) -> pa.Array:
    """Returns ids of a prefix and a key."""
    try:
        text = keys.cast(pa.string())
    except pa.ArrowInvalid:  # a binary key
        text = pa.array([key.hex() for key in keys.to_pylist()], pa.string())
    return pc.binary_join_element_wise(prefix, text, "")


def _take(batch: WriteBatch, mask: npt.NDArray[np.bool_]) -> WriteBatch:
    keep = flags_column(mask)
    envelope = {name: column.filter(keep) for name, column in batch.envelope.items()}
    return replace(batch, values=batch.values.filter(keep), envelope=envelope)
