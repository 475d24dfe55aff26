"""A PostgreSQL database as a source: the stream of its slot and snapshots beside it, as records with resume points."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import psycopg

from headwater.capture.postgres.catalog import Catalog, Layout, Publication
from headwater.capture.postgres.changes import Places, change_batch, truncate_batch
from headwater.capture.postgres.connection import Connection, Server, format_lsn, parse_lsn
from headwater.capture.postgres.log.captured import CapturedTable, why_gone
from headwater.capture.postgres.log.check import inspect_database, refuse_unusable
from headwater.capture.postgres.log.delivered import Delivered
from headwater.capture.postgres.log.gathering import Gatherer, Group, Segment
from headwater.capture.postgres.log.loading import Loader
from headwater.capture.postgres.log.replication import ReplicationStream
from headwater.capture.postgres.log.slot import (
    Slot,
    check_origin,
    check_slot,
    prepare_publication,
    start_stream,
)
from headwater.capture.postgres.log.snapshot import insert_position
from headwater.capture.postgres.pgoutput import Relation
from headwater.capture.postgres.pgoutput_columns import Packets, decode_columns
from headwater.capture.source import Inspection, Progress, Record, RecordKind, Resume, SourceTable
from headwater.errors import NotCapturableError, SlotLostError
from headwater.sql.identifiers import quote

__all__ = ["PostgresSource"]

_MARGIN: Final = 1_000_000  # microseconds by which commit times may be out of the order of commits
_CHECK_EVERY: Final = 10.0  # seconds between checks that the tables are still published
_STATUS_EVERY: Final = 0.2  # seconds between two status updates
_CLOCK: Final = "SELECT pg_current_wal_insert_lsn()::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_LOAD_POLL: Final = 0.005  # seconds to wait for changes while rows of a snapshot could be read
_BAD_NAME: Final = re.compile(r"[^a-z0-9_]+")


class PostgresSource:
    """Captures a PostgreSQL database from its write-ahead log, without writing to it.

    Args:
        url: `postgresql://user:password@host:port/database`; the user needs the attribute REPLICATION.
        name: The name of the capture; slot and publication have it, with the prefix `headwater_`.
        slot: Another name of the slot.
        publication: Another name of the publication, such as that of one made by an administrator.
        chunk_rows: The most rows of a table that are read in one database snapshot.
        position_interval: Seconds after which an idle stream gives a POSITION.
        slot_wait: Seconds to wait while another process reads the slot.
        evict: Whether to end the connection of that process if its changes are in the journal: it is then a former
            owner of the capture, which may be stopped.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        slot: str | None = None,
        publication: str | None = None,
        chunk_rows: int = 100_000,
        position_interval: float = 2.0,
        slot_wait: float = 10.0,
        evict: bool = False,
    ) -> None:
        plain = _BAD_NAME.sub("_", name.lower())[:50]
        self._server = Server(url)
        self._slot_name = slot or f"headwater_{plain}"
        self._publication_name = publication or f"headwater_{plain}"
        self._chunk_rows = chunk_rows
        self._interval = position_interval
        self._slot_wait = slot_wait
        self._evict = evict
        self._sql: Connection | None = None
        self._stream: ReplicationStream | None = None
        self._loader: Loader | None = None

    def inspect(self, tables: Sequence[SourceTable] = ()) -> Inspection:
        """Check server, rights, settings and tables; changes nothing."""
        return inspect_database(self._server, self._slot_name, self._publication_name, tables)

    # -- opening

    def open(self, resume: Resume | None, tables: Sequence[SourceTable]) -> None:
        """Connect and continue at a resume point; None begins an epoch.

        Raises:
            NotCapturableError: A table, a right or a setting is missing.
            SlotLostError: The server no longer has the changes after the resume point.
            SourceReplacedError: It is another server, or it has another history.
            LockedError: Another process reads the slot.
            UnreachableError: The server is unreachable; try again.
        """
        self.close()
        self._reset()
        try:
            self._open(resume, tables)
        except psycopg.Error as error:
            self.close()
            raise self._server.translate(error) from None
        except BaseException:
            self.close()
            raise

    def _reset(self) -> None:
        self._queue: list[Record] = []
        self._tables: dict[str, CapturedTable] = {}
        self._by_oid: dict[int, CapturedTable] = {}
        self._tables_json: dict[str, Any] = {}
        self._delivered = Delivered()
        self._is_open = False
        self._known_at = 0
        self._confirmed = self._sent = 0
        self._sent_at = self._recorded_at = self._checked_at = time.monotonic()
        self._probe: tuple[int, int] | None = None
        self._end: int | None = None

    def _open(self, resume: Resume | None, tables: Sequence[SourceTable]) -> None:
        sql = self._sql = self._server.connect()
        catalog = self._catalog = Catalog(sql)
        found = catalog.tables([one.table for one in tables])
        known = resume["tables"] if resume else {}
        refuse_unusable(sql, [one for one in tables if one.table not in known], found)
        commands = ReplicationStream(self._server)
        try:
            system, timeline = commands.identify()
            slot = Slot(sql, self._slot_name if resume is None else resume["slot"])
            if resume is None:
                resume = self._begin_epoch(commands, slot, found, system, timeline)
                self._queue.append(Record(RecordKind.EPOCH, resume, at=0))
        finally:
            commands.close()
        check_origin(resume, system, timeline)
        self._base = {
            one: resume[one] for one in ("epoch", "system", "timeline", "slot", "publication", "publication_oid")
        }
        self._lsn = parse_lsn(resume["lsn"])
        self._delivered = Delivered(resume.get("part"))
        # The last record of the journal is a part of transactions whose other part is still to come.
        self._is_open = bool(self._delivered)
        self._known_at = resume.get("at", 0)
        check_slot(slot, self._lsn)
        if self._evict:
            slot.evict()
        publication = self._publication(resume, found, known)
        self._adopt(tables, found, known, publication)
        self._slot = slot
        self._begin_stream()
        self._confirmed = self._sent = self._lsn
        self._loader = Loader(self._server, sql, self._chunk_rows)
        for one in self._tables.values():
            if one.loading:
                self._loader.require_barrier()

    def _begin_stream(self) -> None:
        name = self._publication_name_of()
        self._stream = start_stream(self._server, self._slot, name, self._lsn, self._slot_wait)
        self._gatherer = Gatherer(self._stream, self._lsn)

    def _begin_epoch(
        self, commands: ReplicationStream, slot: Slot, found: dict[str, Any], system: str, timeline: int
    ) -> Resume:
        """Make publication and slot, in this order: a slot cannot decode what a later publication has not."""
        assert self._sql is not None
        prepare_publication(self._sql, self._catalog, self._publication_name, found, ())
        made = self._catalog.publication(self._publication_name)
        assert made is not None
        slot.drop(wait=self._slot_wait)
        position = commands.create_slot(slot.name)
        return {
            "epoch": time.time_ns() // 1_000_000,
            "system": system,
            "timeline": timeline,
            "slot": slot.name,
            "publication": self._publication_name,
            "publication_oid": made.oid,
            "lsn": position,
            "tables": {},
        }

    def _publication(self, resume: Resume, found: dict[str, Any], known: dict[str, Any]) -> Publication:
        """Returns the publication with all tables as members.

        Raises:
            SlotLostError: It was dropped, or made again.
        """
        assert self._sql is not None
        name = resume["publication"]
        there = self._catalog.publication(name)
        if there is None or there.oid != resume["publication_oid"]:
            what = f'the publication "{name}" was dropped' + (" and made again" if there else "")
            raise SlotLostError(what, detail="changes made in between are lost", fix="headwater capture snapshot --all")
        return prepare_publication(self._sql, self._catalog, name, found, known)

    def _adopt(
        self,
        tables: Sequence[SourceTable],
        found: dict[str, Any],
        known: dict[str, Any],
        publication: Publication,
    ) -> None:
        """Take over the state of known tables; begin with new ones."""
        for one in tables:
            there = found.get(one.table)
            state = known.get(one.table)
            entry = publication.members.get(there.oid) if there else None
            if state is not None:
                table = CapturedTable.from_json(one, state)
                self._tables[one.table] = table
                self._store(table)
                if not table.gone and (
                    there is None or entry is None or (there.oid, entry[0]) != (table.oid, table.member)
                ):
                    self._queue += self._give_up(table, why_gone(table, there is not None, entry is not None))
                continue
            assert there is not None
            if entry is None:
                raise NotCapturableError(f"{one.table} is not in the publication", table=one.table)
            layout = self._catalog.layout(one, there, publication, 1)
            table = CapturedTable(one, there.oid, entry[0], layout=layout, version=1, fingerprint=layout.fingerprint)
            table.begin_load()
            self._tables[one.table] = table
            self._store(table)
            self._queue.append(self._record(RecordKind.SHAPE, table=one.table, shape=layout.shape))

    # -- records

    def poll(self, timeout: float) -> list[Record]:
        """Returns the next records; waits up to `timeout` seconds for the first."""
        if self._queue:
            records, self._queue = self._queue, []
            return records
        try:
            return self._poll(timeout)
        except psycopg.Error as error:
            raise self._server.translate(error) from None

    def _poll(self, timeout: float) -> list[Record]:
        assert self._loader is not None
        deadline = time.monotonic() + timeout
        while True:
            self._send_status()
            loading = next((one for one in self._tables.values() if one.loading and not one.gone), None)
            remaining = max(0.0, deadline - time.monotonic())
            wait = min(remaining, _LOAD_POLL if loading else self._patience())
            records = self._deliver(self._gatherer.gather(0 if loading and self._loader.ready(self._lsn) else wait))
            if loading:
                records += self._load(loading)
            records += self._idle(bool(records))
            if records or time.monotonic() >= deadline:
                break
        if records:
            self._recorded_at = time.monotonic()
        return records

    def _patience(self) -> float:
        """Returns how long to wait for changes before something else is due."""
        if self._end is not None or self._probe is not None:
            self._ask_position()
            return 0.05
        due = [self._recorded_at + self._interval]
        if self._sent < self._confirmed:
            due.append(self._sent_at + _STATUS_EVERY)
        return max(0.01, min(due) - time.monotonic())

    def _ask_position(self) -> None:
        target = max(self._end or 0, self._probe[0] if self._probe else 0)
        if self._gatherer.position < target:
            self._gatherer.ask_reply()

    def _deliver(self, group: Group) -> list[Record]:
        """Returns the records of a group of transactions, and moves the position."""
        records: list[Record] = []
        for segment in group.segments:
            if segment.relation is not None:
                records += self._announce(segment.relation)
            if segment.truncated:
                records += self._truncate(segment)
            elif segment.packets:
                records += self._changes(segment)
        if not records and (group.partial or not self._is_open or group.position <= self._lsn):
            if not group.partial and not self._is_open:
                self._lsn = max(self._lsn, group.position)
            return records
        self._is_open = group.partial is not None
        self._lsn = max(self._lsn, group.position)
        self._delivered.advance(group.partial or (group.position, 0))
        self._known_at = max(self._known_at, group.at)
        if records and records[-1].kind is RecordKind.CHANGES:
            last = records.pop()
            records.append(replace(last, resume=self._resume(), at=self._known_at, open=self._is_open))
        else:
            records.append(self._record(RecordKind.POSITION, at=self._known_at, open=self._is_open))
        return records

    def _changes(self, segment: Segment) -> list[Record]:
        """Returns the changes of a segment by table; a restart behind any of these records delivers the others."""
        places, numbers = segment.places()
        packets = Packets.of(segment.packets)
        ids = packets.relations()
        present = dict.fromkeys(ids.tolist())
        captured = np.isin(ids, [oid for oid in present if oid in self._by_oid])
        places.mark_last(segment.commits, numbers, captured)
        end = (int(places.commit[-1]), int(places.index[-1]) + 1)
        records: list[Record] = []
        for oid in present:
            table = self._by_oid.get(oid)
            if table is None:
                continue
            rows = np.flatnonzero(ids == oid)
            rows = rows[self._delivered.lacks(table.name, places.commit[rows], places.index[rows])]
            if len(rows):
                records += self._table_changes(table, packets, rows, places, end)
        self._delivered.advance(end)
        self._delivered.forget_before(end[0])
        return records

    def _table_changes(
        self, table: CapturedTable, packets: Packets, rows: Any, places: Places, end: tuple[int, int]
    ) -> list[Record]:
        wire = table.wire
        assert wire is not None
        records = self._reshape(table, wire) if wire.fingerprint != table.fingerprint else []
        columns = decode_columns(packets, rows, len(wire.names))
        places = places if len(rows) == len(places.index) else places.select(rows)
        if table.loading:
            table.note_changes(columns, places)
        batch, raw = change_batch(replace(wire, shape=table.current.shape), columns, places)
        records += [self._record(RecordKind.QUARANTINE, table=table.name, detail=one, open=True) for one in raw]
        self._delivered.advance_table(table.name, end)
        if batch is not None:
            records.append(
                self._record(RecordKind.CHANGES, table=table.name, batch=batch, at=self._known_at, open=True)
            )
        return records

    def _truncate(self, segment: Segment) -> list[Record]:
        ((_, begin, index),) = segment.starts
        records: list[Record] = []
        tables = [(place, self._by_oid[oid]) for place, oid in enumerate(segment.truncated) if oid in self._by_oid]
        places, _ = replace(segment, packets=[b""] * len(segment.truncated)).places()
        for place, table in tables:
            one = places.select(np.array([place]))
            if segment.ended and (place, table) == tables[-1]:
                one.last[:] = True
            if table.loading:
                table.keys.truncates.add(begin.xid)
            if self._delivered.lacks(table.name, one.commit, one.index).all():
                self._delivered.advance_table(table.name, (begin.commit, index + place + 1))
                batch = truncate_batch(table.current, one)
                records.append(
                    self._record(RecordKind.CHANGES, table=table.name, batch=batch, at=self._known_at, open=True)
                )
        self._delivered.advance((begin.commit, index + len(segment.truncated)))
        return records

    # -- shapes

    def _announce(self, relation: Relation) -> list[Record]:
        """Note the columns that the rows of a table have from here on."""
        table = self._tables.get(f"{relation.schema}.{relation.name}")
        if table is None or table.gone:
            return []
        if relation.oid != table.oid:
            return self._give_up(table, "it was dropped and made again")
        found = self._catalog.table(table.name)
        wire = self._catalog.layout_of_relation(table.table, relation, found, table.version)
        if not wire.shape.key or not set(wire.shape.key) <= set(wire.names):
            return self._give_up(table, "its key columns are gone")
        self._by_oid[relation.oid] = table
        table.wire = wire
        if wire.fingerprint == table.fingerprint:
            table.layout = wire
            return []
        return self._reshape(table, wire, found)

    def _reshape(self, table: CapturedTable, layout: Layout, found: Any = None) -> list[Record]:
        """Begin a version of a table's shape."""
        before = table.layout
        table.version += 1
        table.layout = replace(layout, shape=replace(layout.shape, version=table.version))
        table.fingerprint = layout.fingerprint
        self._store(table)
        records = [self._record(RecordKind.SHAPE, table=table.name, shape=table.layout.shape, open=self._is_open)]
        why = layout.rewritten_since(before, found)
        if why and not table.loading:
            records.append(self._record(RecordKind.BACKFILL, table=table.name, detail=why, open=self._is_open))
        return records

    def _give_up(self, table: CapturedTable, why: str) -> list[Record]:
        """Deliver no more changes of a table; the others go on."""
        table.gone = why
        table.end_load()
        self._by_oid.pop(table.oid, None)
        self._store(table)
        if self._loader is not None:
            self._loader.cancel()
        detail = f"{table.name} is no longer captured: {why}"
        kinds = RecordKind.QUARANTINE, RecordKind.BACKFILL  # a snapshot captures it again
        return [self._record(kind, table=table.name, detail=detail, open=self._is_open) for kind in kinds]

    # -- snapshots

    def _load(self, table: CapturedTable) -> list[Record]:
        """Returns rows of the snapshot of a table, once the stream has passed the position at which it was taken."""
        assert self._loader is not None
        try:
            step = self._loader.step(table, self._catalog, self._publication_name_of(), self._lsn)
        except NotCapturableError as error:
            return self._give_up(table, error.what)
        if step is None:
            if not self._is_open:
                self._gatherer.ask_reply()
            return []
        records: list[Record] = []
        if step.layout.fingerprint != table.fingerprint:
            records += self._reshape(table, step.layout)
        elif table.layout is None:  # since a restart the stream has not announced the table
            table.layout = replace(step.layout, shape=replace(step.layout.shape, version=table.version))
        batch, raw = step.build(table.current)
        records += [
            self._record(RecordKind.QUARANTINE, table=table.name, detail=one, open=self._is_open) for one in raw
        ]
        self._store(table)
        if batch is not None:
            records.append(self._record(RecordKind.SNAPSHOT, table=table.name, batch=batch, open=self._is_open))
        if step.done:
            table.end_load()
            self._store(table)
            records.append(self._record(RecordKind.SNAPSHOT_DONE, table=table.name, open=self._is_open))
        return records

    def request_snapshot(self, table: str) -> None:
        """Load a captured table again, beside its changes; also one that was dropped and made again.

        Raises:
            NotCapturableError: It is not captured, or cannot be.
        """
        captured = self._tables.get(table)
        if captured is None:
            raise NotCapturableError(f"{table} is not captured", table=table)
        assert self._loader is not None
        if captured.loading:
            self._loader.cancel()
        if captured.gone:
            try:
                self._capture_again(captured)
            except psycopg.Error as error:
                raise self._server.translate(error) from None
        captured.begin_load()
        self._loader.require_barrier()
        self._store(captured)

    def _capture_again(self, table: CapturedTable) -> None:
        """Publish a table again and begin an epoch of it: rows that its load does not bring are gone."""
        assert self._sql is not None
        assert self._stream is not None
        found = self._catalog.tables(list(self._tables))
        refuse_unusable(self._sql, [table.table], found)
        there = found[table.name]
        publication = prepare_publication(self._sql, self._catalog, self._publication_name_of(), found, ())
        layout = self._catalog.layout(table.table, there, publication, table.version)
        table.oid, table.member, table.gone = there.oid, publication.members[there.oid][0], ""
        table.begin_load()
        self._store(table)
        self._queue.append(self._record(RecordKind.EPOCH, table=table.name, open=self._is_open))
        self._queue += self._reshape(table, layout)
        # A new stream announces the table before its next row, which the old one may have done already.
        self._stream.close()
        self._delivered = Delivered(self._delivered.to_json())
        self._begin_stream()

    def _publication_name_of(self) -> str:
        return str(self._base["publication"])

    # -- positions

    def _idle(self, busy: bool) -> list[Record]:
        """Returns a POSITION when nothing was delivered for a while, and checks that the tables are published."""
        now = time.monotonic()
        records: list[Record] = []
        assert self._sql is not None
        if now - self._checked_at > _CHECK_EVERY:
            self._checked_at = now
            records += self._check_members()
        if busy or self._is_open:
            self._probe = None
            return records
        if self._probe is None and now - self._recorded_at >= self._interval:
            row = self._sql.execute(_CLOCK).fetchone()
            assert row is not None
            self._probe = (insert_position(row[0]), int(row[1]))
        if self._probe is not None and self._lsn >= self._probe[0]:
            self._known_at = max(self._known_at, self._probe[1] - _MARGIN)
            self._probe = None
            records.append(self._record(RecordKind.POSITION, at=self._known_at))
        return records

    def _check_members(self) -> list[Record]:
        name = self._publication_name_of()
        publication = self._catalog.publication(name)
        if publication is None or publication.oid != self._base["publication_oid"]:
            what = f'the publication "{name}" was dropped'
            raise SlotLostError(what, detail="later changes cannot be read", fix="headwater capture snapshot --all")
        records: list[Record] = []
        for table in self._tables.values():
            entry = publication.members.get(table.oid)
            if not table.gone and (entry is None or entry[0] != table.member):
                there = self._catalog.table(table.name)
                records += self._give_up(table, why_gone(table, there is not None, entry is not None))
        return records

    def confirm(self, resume: Resume) -> None:
        """Let the server release everything before a resume point."""
        self._confirmed = max(self._confirmed, parse_lsn(resume["lsn"]))
        self._send_status()

    def _send_status(self) -> None:
        now = time.monotonic()
        if self._stream is not None and self._sent < self._confirmed and now - self._sent_at >= _STATUS_EVERY:
            self._stream.send_status(self._confirmed)
            self._sent, self._sent_at = self._confirmed, now

    def progress(self) -> Progress:
        """Returns how far it is."""
        if self._sql is None:
            return Progress("waiting", detail="not connected")
        held, behind, alarm = -1, -1, ""
        try:
            state = self._slot.state()
            row = self._sql.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            if state is not None and row is not None:
                held, behind = state.held_bytes, max(0, insert_position(row[0]) - self._lsn)
                alarm = state.alarm
        except psycopg.Error as error:
            raise self._server.translate(error) from None
        loading = next((one for one in self._tables.values() if one.loading and not one.gone), None)
        if loading is None:
            return Progress("streaming", behind_bytes=behind, held_bytes=held, detail=alarm)
        assert self._loader is not None
        waiting = self._loader.waiting_for
        return Progress(
            "waiting" if waiting else "snapshot",
            loading.name,
            loading.rows_done,
            loading.rows_total,
            behind,
            held,
            "; ".join(filter(None, [waiting, alarm])),
        )

    def reached_end(self) -> bool:
        """Whether all snapshots are done and what was committed when it was last asked is delivered."""
        if self._sql is None:
            return False
        if self._end is None:
            row = self._sql.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            self._end = insert_position(row[0])
        loading = any(one.loading and not one.gone for one in self._tables.values())
        if loading or self._queue or self._is_open or self._lsn < self._end:
            return False
        self._end = None
        return True

    # -- ending

    def drop(self) -> None:
        """Drop the slot and the publication."""
        self.close()
        connection = self._server.connect()
        try:
            Slot(connection, self._slot_name).drop(wait=self._slot_wait)
            connection.execute(f"DROP PUBLICATION IF EXISTS {quote(self._publication_name)}".encode())
        except psycopg.Error as error:
            raise self._server.translate(error, "the slot or the publication cannot be dropped") from None
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connections. The slot stays, and the server keeps its log."""
        for one in (self._stream, self._loader, self._sql):
            if one is not None:
                one.close()
        self._stream = self._loader = self._sql = None

    # -- resume points

    def _store(self, table: CapturedTable) -> None:
        # Copied, because records that were returned keep the dict.
        self._tables_json = {**self._tables_json, table.name: table.to_json()}

    def _resume(self) -> Resume:
        resume = {**self._base, "lsn": format_lsn(self._lsn), "tables": self._tables_json, "at": self._known_at}
        if self._delivered:
            resume["part"] = self._delivered.to_json()
        return resume

    def _record(self, kind: RecordKind, **fields: Any) -> Record:
        return Record(kind, self._resume(), **fields)
