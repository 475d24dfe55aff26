"""`PostgresTriggerSource`: a PostgreSQL database by triggers, where the right to read the log is missing.

Transactions commit in another order than their changes are numbered. What is new is what the database snapshot of this
read sees and that of the previous one did not, so nothing is lost and nothing comes twice. A transaction becomes
visible as a whole, so it is in one read. Changes of one row are in the order of their numbers, because its second
writer waits for the first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa

from headwater.capture.postgres.catalog import Catalog, CatalogTable, Layout
from headwater.capture.postgres.changes import Places, snapshot_batch, truncate_batch
from headwater.capture.postgres.connection import Connection, Server, quote_text
from headwater.capture.postgres.triggers.outbox_rows import ChangeHead, OutboxRows, ShapeChanged
from headwater.capture.postgres.triggers.trigger_outbox import TriggerOutbox, latest, qualify
from headwater.capture.postgres.triggers.trigger_position import NOTHING_SEEN, TriggerPosition, TriggerTable
from headwater.capture.source import ChangeBatch, Inspection, Progress, Record, RecordKind, Remedy, Resume, SourceTable
from headwater.errors import NotCapturableError, SlotLostError, SourceReplacedError, UnreachableError
from headwater.sql.identifiers import quote

__all__ = ["PostgresTriggerSource"]

_MAX_CHANGES: Final = 20_000
_MAX_BYTES: Final = 4 << 20
_CONFIRM_EVERY: Final = 0.5  # seconds
_NEW_EPOCH: Final = "headwater capture snapshot --all"
_TRUNCATE: Final = 4
_OLDEST: Final = 140_000  # has CREATE OR REPLACE TRIGGER


class PostgresTriggerSource:
    """Captures a PostgreSQL database with triggers on its tables.

    The user needs SELECT and TRIGGER on the tables, and a schema to create a table in. An insert, update or delete
    takes the program two to three times as long.

    Args:
        url: `postgresql://user:password@host:port/database`.
        name: The name of the capture.
        schema: The schema for the table of changes; made if the user may.
        chunk_rows: The most rows of a table that are read in one database snapshot.
        poll_interval: Seconds between two reads while nothing changes.
        position_interval: Seconds after which an idle source gives a POSITION.
        check_interval: Seconds between two looks at the catalog, for columns and triggers that changed.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        schema: str = "headwater",
        chunk_rows: int = 10_000,
        poll_interval: float = 0.05,
        position_interval: float = 1.0,
        check_interval: float = 1.0,
    ) -> None:
        self._server = Server(url)
        self.name, self._schema = name, schema
        self._chunk_rows, self._poll_interval, self._interval = chunk_rows, poll_interval, position_interval
        self._check_interval = check_interval
        self._sql: Connection | None = None

    def inspect(self, tables: Sequence[SourceTable] = ()) -> Inspection:
        """Check rights and tables; changes nothing. Without tables: all of the database."""
        with contextlib.closing(self._server.connect()) as sql, self._translate():
            catalog = Catalog(sql)
            found = catalog.tables([one.table for one in tables] if tables else None)
            wanted = tables or [SourceTable(name, name) for name in found]
            shapes, remedies = [], []
            for one in wanted:
                there = found.get(one.table)
                faults = _check_table(sql, one, there)
                remedies += faults
                if there is not None and not any(fault.blocking for fault in faults):
                    shapes.append(catalog.layout(one, there, None, 1).shape)
            what = (
                "triggers record each change in a table: an insert, update or delete takes two to three times as long"
            )
            remedies.append(Remedy("", what))
            (version,) = sql.execute("SHOW server_version").fetchone() or ("",)
            facts = {"database": sql.info.dbname, "user": sql.info.user, "schema": self._schema}
            return Inspection(f"PostgreSQL {version}", "trigger", tuple(shapes), tuple(remedies), facts)

    # -- opening

    def open(self, resume: Resume | None, tables: Sequence[SourceTable]) -> None:
        """Connect, create the triggers, and continue at a resume point; None begins the first epoch."""
        self.close()
        self._queue: list[Record] = []
        self._wanted = {one.table: one for one in tables}
        self._found: dict[str, CatalogTable] = {}
        self._layouts: dict[str, Layout] = {}
        self._end: int | None = None
        self._snapshots = self._delivered = 0
        self._checked_at = self._recorded_at = self._confirmed_at = 0.0
        self._confirmed = ""
        try:
            with self._translate():
                self._sql = self._server.connect()
                if self._sql.info.server_version < _OLDEST:
                    what = "capture by triggers needs PostgreSQL 14 or newer"
                    raise NotCapturableError(what, detail=f"the server is {self._sql.info.server_version // 10_000}")
                self._outbox = TriggerOutbox(self._sql, self._schema, self.name)
                self._rows = OutboxRows(self._sql, self._outbox.changes)
                self._catalog = Catalog(self._sql)
                self.position = self._take_position(resume)
                self._refresh()
        except BaseException:
            self.close()
            raise

    def _take_position(self, resume: Resume | None) -> TriggerPosition:
        if resume is None:
            found = self._catalog.tables(list(self._wanted))
            for one in self._wanted.values():
                fault = next(
                    (each for each in _check_table(self._opened(), one, found.get(one.table)) if each.blocking), None
                )
                if fault is not None:
                    raise NotCapturableError(fault.what, fix=fault.fix, table=one.table)
            position = TriggerPosition(self._outbox.begin_history())
            self._queue.append(Record(RecordKind.EPOCH, position.to_resume()))
        else:
            position = TriggerPosition.from_resume(resume)
            self._check_history(position)
        removed = [name for name in position.tables if name not in self._wanted]
        self._outbox.drop_triggers(list(self._catalog.tables(removed).values()))
        kept = {name: one for name, one in position.tables.items() if name in self._wanted}
        position.tables = {name: kept.get(name) or TriggerTable(begun=resume is None) for name in self._wanted}
        return position

    def _check_history(self, position: TriggerPosition) -> None:
        identity = self._outbox.identify()
        row = self._outbox.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        if identity is None or identity.id != position.id or latest(row[0]) < latest(position.since):
            raise SourceReplacedError(
                f"the database has another history of changes than the capture {self.name!r} began with",
                detail="it is another one, a restored copy, or another installation captures it under this name",
                fix=_NEW_EPOCH,
            )
        if latest(identity.confirmed) > latest(position.since):
            raise SlotLostError(
                f"changes that the capture {self.name!r} needs were removed as delivered",
                detail="the log is older than the database: it was restored from a copy",
                fix=_NEW_EPOCH,
            )

    def _refresh(self) -> None:
        """Compare triggers and columns with the catalog; what is new comes as records."""
        self._checked_at = time.monotonic()
        found = self._catalog.tables(list(self._wanted))
        for name, table in self._wanted.items():
            state, there = self.position.tables[name], found.get(name)
            faults = [one.what for one in _check_table(self._opened(), table, there) if one.blocking]
            if there is None or faults:
                if not state.gone:
                    state.gone = faults[0]
                    kinds = RecordKind.QUARANTINE, RecordKind.BACKFILL  # a snapshot captures it again
                    self._queue += [self._record(kind, table=name, detail=state.gone) for kind in kinds]
                continue
            if state.gone:
                state.gone = ""
                state.load()
            self._found[name] = there
            self._check_triggers(state, there)
            self._check_shape(state, table, there)

    def _check_triggers(self, state: TriggerTable, there: CatalogTable) -> None:
        if state.oid == there.oid and self._outbox.has_triggers(there):
            return
        self._outbox.install(there)
        if state.oid:
            state.load()
            detail = "triggers of capture were missing" if state.oid == there.oid else "the table was made anew"
            self._queue.append(self._record(RecordKind.BACKFILL, table=there.name, detail=detail))
        state.oid = there.oid

    def _check_shape(self, state: TriggerTable, table: SourceTable, there: CatalogTable) -> None:
        layout = self._catalog.layout(table, there, None, state.version or 1)
        before = self._layouts.get(there.name)
        if layout.fingerprint == state.fingerprint:
            self._layouts[there.name] = layout
            return
        if state.version:
            layout = self._catalog.layout(table, there, None, state.version + 1)
        why = _needs_load(before, layout, there) if state.version else ""
        state.version, state.fingerprint = layout.shape.version, layout.fingerprint
        self._layouts[there.name] = layout
        self._rows.forget_columns(there.name)
        self._queue.append(self._record(RecordKind.SHAPE, table=there.name, shape=layout.shape))
        if why:
            state.load()
            self._queue.append(self._record(RecordKind.BACKFILL, table=there.name, detail=why))

    # -- reading

    def poll(self, timeout: float) -> list[Record]:
        """Returns the next records; waits up to `timeout` seconds for the first."""
        deadline = time.monotonic() + timeout
        while True:
            with self._translate():
                records = self._poll()
            now = time.monotonic()
            if not records and now >= self._recorded_at + self._interval:
                records = [self._record(RecordKind.POSITION, at=self.position.at)]
            if records:
                self._recorded_at = now
                return records
            if now >= deadline:
                return []
            time.sleep(max(0.0, min(self._poll_interval, deadline - now)))

    def _poll(self) -> list[Record]:
        if not self._queue and time.monotonic() >= self._checked_at + self._check_interval:
            self._refresh()
        if self._queue:
            records, self._queue = self._queue, []
            return records
        before = self.position.to_resume()
        try:
            with self._opened().transaction():
                self._opened().execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return list(self._read())
        except (ShapeChanged, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedTable):
            self.position = TriggerPosition.from_resume(before)
            self._refresh()
            records, self._queue = self._queue, []
            return records

    def _read(self) -> Iterator[Record]:
        row = self._outbox.execute(
            "SELECT (extract(epoch FROM statement_timestamp()) * 1000000)::bigint, pg_current_snapshot()::text"
        ).fetchone()
        assert row is not None
        now, snapshot = row
        self._check_history(self.position)
        position = self.position
        if not position.until:
            position.until, position.sequence, position.index, position.ahead = snapshot, 0, 0, {}
            self._snapshots += 1
        heads, done = self._read_heads()
        if heads and position.index == 0 and not position.ahead and position.sequence == 0:
            position.read += 1
        yield from self._deliver(heads, done, now)
        if done:
            current = position.until == snapshot
            self._finish_read(now)
            if current:
                yield from self._load(now)

    def _finish_read(self, now: int) -> None:
        position = self.position
        if position.until:
            position.since, position.until, position.sequence, position.index = position.until, "", 0, 0
            position.ahead, position.at = {}, max(position.at, now)
            self._delivered = self._snapshots

    def _new(self) -> str:
        """Returns the condition for changes of the present read."""
        position = self.position
        return (
            f"NOT pg_visible_in_snapshot(xid, {quote_text(position.since)}::pg_snapshot)"
            f" AND pg_visible_in_snapshot(xid, {quote_text(position.until)}::pg_snapshot)"
        )

    def _read_heads(self) -> tuple[list[ChangeHead], bool]:
        """Returns the next changes, and whether they are the last of this read."""
        rows = self._outbox.execute(
            "SELECT seq, tbl, op, coalesce(pg_column_size(before), 0) + coalesce(pg_column_size(after), 0), "
            f"xid::text::bigint, (extract(epoch FROM at) * 1000000)::bigint FROM {self._outbox.changes} "
            f"WHERE seq > {self.position.sequence} AND {self._new()} ORDER BY seq LIMIT {_MAX_CHANGES + 1}"
        ).fetchall()
        heads, size = [], 0
        for row in rows[:_MAX_CHANGES]:
            heads.append(ChangeHead(*row))
            size += row[3]
            if size > _MAX_BYTES:
                break
        return heads, len(heads) == len(rows)

    def _deliver(self, heads: list[ChangeHead], done: bool, now: int) -> Iterator[Record]:
        """Yields changes: between two truncates, one batch for each table."""
        places = self._places(heads, self._last_changes(heads, done), now)
        segments: list[list[int]] = [[]]
        for place, head in enumerate(heads):
            if head.op == _TRUNCATE:
                segments += [[place], []]
            else:
                segments[-1].append(place)
        base, filled = self.position.index, [one for one in segments if one]
        for number, segment in enumerate(filled, 1):
            end, final = (heads[segment[-1]].sequence, base + segment[-1] + 1), done and number == len(filled)
            by_table = self._by_table(heads, segment)
            for count, (name, chosen) in enumerate(by_table.items(), 1):
                batch, refused = self._batch(name, [heads[one] for one in chosen], places.select(np.array(chosen)))
                for text in refused:
                    yield self._record(RecordKind.QUARANTINE, table=name, detail=text, open=True)
                if count < len(by_table):
                    self.position.ahead[name] = end[0]
                else:
                    self._advance(*end, final=final, now=now)
                yield self._changes(name, batch, more=not (final and count == len(by_table)))
            if not by_table:
                self._advance(*end, final=final, now=now)

    def _by_table(self, heads: list[ChangeHead], segment: list[int]) -> dict[str, list[int]]:
        """Returns the places of the changes of captured tables that are not delivered yet."""
        names = {state.oid: name for name, state in self.position.tables.items() if not state.gone}
        found: dict[str, list[int]] = {}
        for place in segment:
            name = names.get(heads[place].table)
            if name is not None and heads[place].sequence > self.position.ahead.get(name, 0):
                found.setdefault(name, []).append(place)
        return found

    def _changes(self, name: str, batch: ChangeBatch | None, *, more: bool) -> Record:
        if batch is None:
            return self._record(RecordKind.POSITION, at=self.position.at, open=more)
        return self._record(RecordKind.CHANGES, table=name, batch=batch, at=self.position.at, open=more)

    def _advance(self, sequence: int, index: int, *, final: bool, now: int) -> None:
        position = self.position
        position.sequence, position.index = sequence, index
        position.ahead = {name: one for name, one in position.ahead.items() if one > sequence}
        if final:
            self._finish_read(now)

    def _last_changes(self, heads: list[ChangeHead], done: bool) -> set[int]:
        """Returns the sequence numbers of the last change of each transaction."""
        lasts = {head.transaction: head.sequence for head in heads}
        if not done and heads:
            rest = self._outbox.execute(
                f"SELECT DISTINCT xid::text::bigint FROM {self._outbox.changes} "
                f"WHERE seq > {heads[-1].sequence} AND {self._new()}"
            ).fetchall()
            for (transaction,) in rest:
                lasts.pop(transaction, None)
        return set(lasts.values())

    def _places(self, heads: list[ChangeHead], lasts: set[int], now: int) -> Places:
        """Returns where changes stand. Their commit came after the previous read, which did not see it."""
        count, position = len(heads), self.position
        times = np.array([head.at for head in heads], np.int64)
        return Places(
            np.full(count, position.read, np.uint64),
            np.arange(position.index, position.index + count).astype(np.uint32),
            np.array([head.transaction for head in heads], np.uint64),
            np.clip(times, position.at, max(position.at, now)),
            np.array([head.sequence in lasts for head in heads], bool),
        )

    def _batch(self, name: str, heads: list[ChangeHead], places: Places) -> tuple[ChangeBatch | None, list[str]]:
        if heads[0].op == _TRUNCATE:
            return truncate_batch(self._layouts[name], places), []
        loading = self.position.tables[name].loading
        return self._rows.read_batch(self._found[name], self._layouts[name], heads, places, loading=loading)

    # -- loading

    def _load(self, now: int) -> Iterator[Record]:
        """Yields the next rows of a table that is being loaded, as of the snapshot whose changes are delivered."""
        chosen = next(((name, one) for name, one in self.position.tables.items() if one.loading and not one.gone), None)
        if chosen is None:
            return
        name, state = chosen
        if not state.begun:
            state.begun = True
            yield self._record(RecordKind.EPOCH, table=name)
        layout = self._layouts[name]
        result = self._outbox.execute(self._chunk(name, layout, state)).pgresult
        assert result is not None
        count = result.ntuples
        if count:
            columns = [[result.get_value(row, column) for row in range(count)] for column in range(result.nfields)]
            names = layout.shape.schema.names
            batch, refused = snapshot_batch(layout, [pa.array(one, pa.binary()) for one in columns], now)
            for text in refused:
                yield self._record(RecordKind.QUARANTINE, table=name, detail=text)
            state.last = [_decode(columns[names.index(one)][-1]) for one in layout.shape.key]
            if batch is not None:
                yield self._record(RecordKind.SNAPSHOT, table=name, batch=batch)
        if count < self._chunk_rows:
            state.loading, state.last = False, None
            yield self._record(RecordKind.SNAPSHOT_DONE, table=name)

    def _chunk(self, name: str, layout: Layout, state: TriggerTable) -> str:
        found = self._found[name]
        columns = ", ".join(quote(one) for one in layout.shape.schema.names)
        key = ", ".join(quote(one) for one in layout.shape.key)
        types = {one.name: one.type_text for one in found.columns}
        where = ""
        if state.last is not None:
            pairs = zip(layout.shape.key, state.last, strict=True)
            where = (
                f"WHERE ({key}) > ({', '.join(f'{quote_text(text or str())}::{types[one]}' for one, text in pairs)})"
            )
        table = qualify(found.schema, found.relation)
        return f"SELECT {columns} FROM {table} {where} ORDER BY {key} LIMIT {self._chunk_rows}"

    def request_snapshot(self, table: str) -> None:
        """Load a captured table again, beside its changes."""
        if table not in self.position.tables:
            what = f"table {table!r} is not captured"
            raise NotCapturableError(what, detail=f"captured: {', '.join(self.position.tables)}", table=table)
        self.position.tables[table].load()

    # -- answering

    def confirm(self, resume: Resume) -> None:
        """Remove delivered changes from the database, at most twice a second."""
        since, now = str(resume["since"]), time.monotonic()
        if since in (self._confirmed, NOTHING_SEEN) or now < self._confirmed_at + _CONFIRM_EVERY:
            return
        self._confirmed, self._confirmed_at = since, now
        with self._translate():
            self._outbox.confirm(since)

    def progress(self) -> Progress:
        """Returns how far it is."""
        loading = next((name for name, one in self.position.tables.items() if one.loading and not one.gone), "")
        with self._translate():
            row = self._outbox.execute(f"SELECT pg_total_relation_size({quote_text(self._outbox.changes)})").fetchone()
        return Progress("snapshot" if loading else "streaming", loading, held_bytes=int(row[0]) if row else -1)

    def reached_end(self) -> bool:
        """Whether all loads are done and everything that was committed when it was last asked is delivered."""
        if self._end is None:
            self._end = self._snapshots
        loading = any(one.loading and not one.gone for one in self.position.tables.values())
        if loading or self._queue or self._delivered <= self._end:
            return False
        self._end = None
        return True

    def drop(self) -> None:
        """Remove triggers, function and tables of this capture."""
        sql = self._sql or self._server.connect()
        try:
            with self._translate():
                TriggerOutbox(sql, self._schema, self.name).drop()
        finally:
            if sql is not self._sql:
                sql.close()

    def close(self) -> None:
        """Close the connection; the triggers go on recording changes."""
        if self._sql is not None:
            self._sql.close()
            self._sql = None

    def _opened(self) -> Connection:
        if self._sql is None:
            raise UnreachableError("the capture is not open")
        return self._sql

    def _record(self, kind: RecordKind, **rest: Any) -> Record:
        return Record(kind, self.position.to_resume(), **rest)

    @contextlib.contextmanager
    def _translate(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._server.translate(error) from None


def _check_table(sql: Connection, table: SourceTable, found: CatalogTable | None) -> list[Remedy]:
    def refuse(what: str, fix: str) -> list[Remedy]:
        return [Remedy("NOT_CAPTURABLE", what, fix, True, table.table)]

    if found is None:
        return refuse(f"there is no table {table.table}", "write it as schema.table")
    name = qualify(found.schema, found.relation)
    if found.kind != "r" or found.partition:
        return refuse(
            f"{table.table} is partitioned, a partition or a view; triggers capture ordinary tables", "mode=log"
        )
    row = sql.execute("SELECT has_table_privilege(%s::oid, 'TRIGGER')", [found.oid]).fetchone()
    if not found.readable or row is None or not row[0]:
        return refuse(
            f"the user may not read {table.table} or create triggers on it", f"GRANT SELECT, TRIGGER ON {name}"
        )
    if found.row_security:
        return refuse(f"row security hides rows of {table.table} from the user", "ALTER ROLE user_of_capture BYPASSRLS")
    columns = {one.name for one in found.columns}
    unknown = [one for one in (*table.columns, *table.key) if one not in columns]
    if unknown:
        return refuse(f"{table.table} has no column {', '.join(unknown)}", f"its columns: {', '.join(sorted(columns))}")
    if not found.key_of(table):
        return refuse(f"{table.table} has no primary key", f"ALTER TABLE {name} ADD PRIMARY KEY (…), or give key=")
    return []


def _needs_load(before: Layout | None, after: Layout, found: CatalogTable) -> str:
    """Returns why rows must be loaded again after a change of columns; "" if the changes tell all."""
    if before is None:
        return "the columns changed while capture did not run"
    defaults = {one.name for one in found.columns if one.default}
    old = dict(zip(before.shape.schema.names, before.shape.schema, strict=True))
    added = [one for one in after.shape.schema.names if one not in old]
    if before.shape.key != after.shape.key:
        return "the key changed"
    if any(one in defaults for one in added) or (added and len(old) > len(after.shape.schema) - len(added)):
        return f"rows have other values in {', '.join(added)}"
    retyped = [one for one in after.shape.schema.names if one in old and before.types[one] != after.types[one]]
    return f"the type of {', '.join(retyped)} changed" if retyped else ""


def _decode(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
