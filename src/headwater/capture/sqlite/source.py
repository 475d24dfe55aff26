"""`SqliteSource`: the changes of a SQLite file, which triggers record in the file itself.

SQLite has one writer at a time, so the order of the recorded changes is that of the commits, and every read ends at a
commit. A load of a table reads a part of its rows in the same read transaction in which the changes end, so that each
part is exactly as old as the changes before it.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from headwater.capture.source import (
    ChangeBatch,
    Inspection,
    Progress,
    Record,
    RecordKind,
    Remedy,
    Resume,
    SourceTable,
    TableShape,
)
from headwater.capture.sqlite.batches import ChangeRows, change_batch, snapshot_batch
from headwater.capture.sqlite.database import BUSY_TIMEOUT, CapturedFile, CommitWatch, parse_path
from headwater.capture.sqlite.definition import TableDefinition, list_tables, read_definition
from headwater.capture.sqlite.position import SqlitePosition, TablePosition
from headwater.capture.sqlite.shadow_schema import Identity, ShadowSchema
from headwater.capture.sqlite.triggers import MARK
from headwater.capture.sqlite.values import BadText, decode_text
from headwater.errors import NotCapturableError, SlotLostError, SourceReplacedError, UnreachableError
from headwater.sql.identifiers import quote

__all__ = ["SqliteSource"]

_MAX_CHANGES: Final = 20_000  # in one call of `poll`
_MAX_BYTES: Final = 4 << 20
_FETCH: Final = 64  # rows between looks at the size
_SIZED: Final = {str, bytes, BadText}
_POSITION_INTERVAL: Final = 1.0  # seconds
_CONFIRM_INTERVAL: Final = 1.0  # seconds
_CONFIRM_CHANGES: Final = 5_000
_CONFIRM_TIMEOUT: Final = 0.05  # seconds to wait for a writer; the next call tries again
_NEW_EPOCH: Final = "headwater capture snapshot --all"


class SqliteSource:
    """A captured SQLite file.

    Args:
        url: The file, as sqlite:///shop.db or as a path.
        name: The name of the capture.
        busy_timeout: Seconds to wait for a transaction of another program.
        chunk_rows: The most rows of a table that are read at once.

    Example:
        >>> import sqlite3, tempfile
        >>> path = tempfile.mkdtemp() + "/shop.db"
        >>> shop = sqlite3.connect(path, isolation_level=None)
        >>> _ = shop.execute("create table products (id integer primary key, name text)")
        >>> source = SqliteSource(path, "shop")
        >>> source.open(None, [SourceTable("products", "products")])
        >>> [str(record.kind) for record in source.poll(0)]
        ['epoch', 'shape', 'snapshot done']
        >>> _ = shop.execute("insert into products values (1, 'pen')")
        >>> source.poll(1)[0].batch.changes["after"].to_pylist()
        [{'id': 1, 'name': 'pen'}]
        >>> source.close(); shop.close()
    """

    def __init__(
        self, url: str, name: str, *, busy_timeout: float = BUSY_TIMEOUT, chunk_rows: int = _MAX_CHANGES
    ) -> None:
        self.path = parse_path(url)
        self.name = name
        self._busy_timeout = busy_timeout
        self._chunk_rows = chunk_rows
        self._file: CapturedFile | None = None
        self._end: int | None = None
        self._done = self._total = 0

    # Looking

    def inspect(self, tables: Sequence[SourceTable] = ()) -> Inspection:
        """Check the file and its tables; changes nothing. Without tables: all of the database."""
        with contextlib.closing(CapturedFile(self.path, self._busy_timeout)) as file, file.read():
            shapes, remedies = [], []
            wanted = tables or [SourceTable(name, name) for name in list_tables(file.connection)]
            for one in wanted:
                try:
                    shapes.append(read_definition(file.connection, one).shape(1))
                except NotCapturableError as error:
                    what = error.what + (f" ({error.detail})" if error.detail else "")
                    remedies.append(Remedy(error.code, what, error.fix or "", blocking=True, table=one.table))
            schema = ShadowSchema(file, self.name)
            identity = schema.identify()
            remedies += _check_file(file, identity)
            facts = {
                "journal mode": str(file.pragma("journal_mode")),
                "size": f"{file.pragma('page_count') * file.pragma('page_size')} bytes",
                "triggers": "present" if identity else "none yet",
                "changes not confirmed": str(identity.last - identity.confirmed if identity else 0),
            }
            version = file.execute("SELECT sqlite_version()").fetchone()[0]
            return Inspection(f"SQLite {version}", "trigger", tuple(shapes), tuple(remedies), facts)

    # Beginning and ending

    def open(self, resume: Resume | None, tables: Sequence[SourceTable]) -> None:
        """Open the file, create the triggers, and continue at a resume point; None begins the first epoch."""
        self.close()
        self._file = file = CapturedFile(self.path, self._busy_timeout)
        try:
            self._schema = ShadowSchema(file, self.name)
            self._wanted = {one.table: one for one in tables}
            self._announced = resume is not None
            self._definitions: dict[str, TableDefinition] = {}
            self._shapes: dict[int, TableShape] = {}
            self._fresh: list[str] = []  # tables that stopped, to be reported
            self._known_schema = -1
            self._position_at = self._confirmed_at = 0.0
            with file.write():
                if resume is None:
                    self._schema.begin_history()
                self.position = self._take_position(resume)
                self._install()
            self._watch = CommitWatch(file)
        except BaseException:
            self.close()
            raise

    def _take_position(self, resume: Resume | None) -> SqlitePosition:
        identity = self._schema.identify()
        if resume is None:
            assert identity is not None
            position = SqlitePosition(identity.id, tables={})
        else:
            position = SqlitePosition.from_resume(resume)
            self._check_history(position, identity)
        kept = {name: one for name, one in position.tables.items() if name in self._wanted}
        position.tables = kept | {name: TablePosition() for name in self._wanted if name not in kept}
        return position

    def _check_history(self, position: SqlitePosition, identity: Identity | None) -> None:
        facts: dict[str, Any] = {"path": str(self.path), "sequence": position.sequence}
        if identity is None or identity.id != position.id:
            raise SourceReplacedError(
                f"the SQLite file {self.path} has another history of changes than the capture {self.name!r} began with",
                detail="it is another file, a restored copy, or another installation captures it under this name",
                fix=_NEW_EPOCH,
                **facts,
            )
        if identity.last < position.sequence or identity.confirmed < position.confirmed:
            raise SourceReplacedError(
                f"the SQLite file {self.path} is older than the capture {self.name!r}",
                detail=f"its last change is {identity.last}, the capture has change {position.sequence}",
                fix=_NEW_EPOCH,
                **facts,
            )
        if identity.confirmed > position.sequence:
            raise SlotLostError(
                f"changes {position.sequence + 1} to {identity.confirmed} of {self.path} were removed as delivered",
                detail="the log is older than the file: it was restored from a copy",
                fix=_NEW_EPOCH,
                **facts,
            )

    def _install(self) -> None:
        """Bring triggers up to date with the tables; in a write transaction."""
        assert self._file is not None
        position = self.position
        installed = self._schema.install(list(self._wanted.values()), position.sequence)
        for name, one in installed.items():
            state = position.tables[name]
            if one.fault is not None:
                if not state.stopped:
                    state.stopped = one.fault.what
                    self._fresh.append(name)
                continue
            assert one.table is not None
            if state.stopped:
                position.tables[name] = state = TablePosition()
            self._definitions[name] = one.table
        self._known_schema = self._schema_version()

    def _schema_version(self) -> int:
        assert self._file is not None
        return int(self._file.pragma("schema_version"))

    def close(self) -> None:
        """Close the file; its triggers go on recording changes."""
        if self._file is not None:
            file, self._file = self._file, None
            if hasattr(self, "_watch"):
                self._watch.close()
            file.close()

    def drop(self) -> None:
        """Remove the triggers and the recorded changes from the file."""
        opened = self._file or CapturedFile(self.path, self._busy_timeout)
        try:
            with opened.write():
                ShadowSchema(opened, self.name).drop()
        finally:
            if opened is not self._file:
                opened.close()

    def alter(self, statement: str) -> list[str]:
        """Change a captured table: SQLite refuses some DDL while triggers name the columns.

        Runs the statements and creates the triggers for the new columns, in one transaction. Works with or without
        `open`. Returns the tables that can no longer be captured.

        Raises:
            BadQueryError: SQLite refuses the statement; nothing was changed.
        """
        opened = self._file or CapturedFile(self.path, self._busy_timeout)
        try:
            with opened.write():
                return ShadowSchema(opened, self.name).alter(statement)
        finally:
            if opened is not self._file:
                opened.close()

    # Reading

    def poll(self, timeout: float) -> list[Record]:
        """Returns the next records; waits up to `timeout` seconds for the first."""
        deadline = time.monotonic() + timeout
        while True:
            self._watch.mark()
            records = self._read()
            if records:
                return records
            now = time.monotonic()
            if now >= self._position_at:
                self._position_at = now + _POSITION_INTERVAL
                return [self._record(RecordKind.POSITION, at=self.position.at)]
            if now >= deadline:
                return []
            self._watch.wait(min(deadline, self._position_at) - now)

    def _read(self) -> list[Record]:
        file = self._opened()
        file.check_current()
        while True:
            now = time.time_ns() // 1000
            with file.read():
                if self._schema_version() == self._known_schema:
                    return list(self._read_records(now))
            with file.write():
                self._check_history(self.position, self._schema.identify())
                self._install()

    def _opened(self) -> CapturedFile:
        if self._file is None:
            raise UnreachableError(f"the SQLite file {self.path} is not open")
        return self._file

    def _record(self, kind: RecordKind, **rest: Any) -> Record:
        return Record(kind, self.position.to_resume(), **rest)

    def _read_records(self, now: int) -> Iterator[Record]:
        identity = self._schema.identify()
        self._check_history(self.position, identity)
        assert identity is not None
        if not self._announced:
            self._announced = True
            for one in self.position.tables.values():
                one.begun = True
            yield self._record(RecordKind.EPOCH)
        while self._fresh:
            name = self._fresh.pop()
            yield self._record(RecordKind.QUARANTINE, table=name, detail=self.position.tables[name].stopped)
        yield from self._read_changes(identity.last, now)
        if self.position.sequence == identity.last:
            yield from self._read_load(now)

    def _read_changes(self, last: int, now: int) -> Iterator[Record]:
        """Yields what was committed, at most about 20,000 changes."""
        position = self.position
        limit = position.sequence + _MAX_CHANGES
        while position.sequence < min(last, limit):
            if position.end <= position.sequence:
                position.first, position.end = position.sequence + 1, last
            to = min(position.end, limit)
            mark = self._opened().execute(
                f"SELECT seq, shape, c0 FROM {self._schema.changes} WHERE seq > ? AND seq <= ? AND op = ? LIMIT 1",
                (position.sequence, to, MARK),
            ).fetchone()  # fmt: skip
            if mark is None or mark[0] > position.sequence + 1:
                if not (yield from self._read_part(mark[0] - 1 if mark else to, now)):
                    return
            else:
                yield from self._change_shape(*mark)
        if position.end <= position.sequence:
            position.at = max(position.at, now)

    def _change_shape(self, sequence: int, shape: int, why: str | None) -> Iterator[Record]:
        """Yields the new shape of a table."""
        position = self.position
        table, version = self._schema.read_shape(shape)
        self._shapes[shape] = table.shape(version)
        position.sequence, position.ahead = sequence, {}
        state = position.tables.get(table.name)
        if state is None or state.stopped:
            return
        if state.shape != shape:
            state.shape = shape
            yield self._record(
                RecordKind.SHAPE, table=table.name, shape=self._shapes[shape], open=sequence < position.end
            )
        if why:
            state.load()
            yield self._record(RecordKind.BACKFILL, table=table.name, detail=why, open=sequence < position.end)

    def _read_part(self, to: int, now: int) -> Generator[Record, None, bool]:
        """Yields the changes up to a sequence number, as one batch for each table; there is no mark among them.

        Returns False if the records have become large enough.
        """
        position = self.position
        read, reached = self._fetch_part(to)
        done = reached == position.end
        last = max((rows[-1][0] for _, rows in read if rows), default=0) if done else 0
        found = [(shape, rows) for shape, rows in read if rows]
        for place, (shape, rows) in enumerate(found):
            final = place == len(found) - 1
            changes = ChangeRows(shape, rows, position.first, position.end, last, position.at, now)
            decoded = change_batch(changes)
            # Before the changes: after a crash between the two it comes again, but it is not lost.
            for text in decoded.refused:
                yield self._record(RecordKind.QUARANTINE, table=shape.table, detail=text, open=True)
            if final:
                self._advance(reached, now if done else int(changes.times()[-1]))
            else:
                position.ahead[shape.table] = reached
            if decoded.batch is not None or final:
                yield self._changes(shape, decoded.batch, more=not (final and done))
        if not found:
            self._advance(reached, position.at)
        return reached == to

    def _changes(self, shape: TableShape, batch: ChangeBatch | None, *, more: bool) -> Record:
        if batch is None:
            return self._record(RecordKind.POSITION, at=self.position.at, open=more)
        return self._record(RecordKind.CHANGES, table=shape.table, batch=batch, at=self.position.at, open=more)

    def _advance(self, sequence: int, at: int) -> None:
        position = self.position
        position.sequence, position.at = sequence, max(position.at, at)
        position.ahead = {name: one for name, one in position.ahead.items() if one > sequence}

    def _fetch_part(self, to: int) -> tuple[list[tuple[TableShape, list[tuple[Any, ...]]]], int]:
        """Returns the rows of each table, and the sequence number that they reach."""
        position, found, size = self.position, [], 0
        present = self._opened().execute(
            f"SELECT shape, max(seq) FROM {self._schema.changes} WHERE seq > ? AND seq <= ? GROUP BY shape",
            (position.sequence, to),
        ).fetchall()  # fmt: skip
        for shape, newest in sorted(present, key=lambda one: one[1]):
            table = self._shape(shape)
            state = position.tables.get(table.table)
            if state is None or state.stopped:
                continue
            columns = ", ".join(f"c{place}" for place in range(2 * len(table.schema)))
            since = max(position.sequence, position.ahead.get(table.table, 0))
            rows, used = self._fetch(
                f"SELECT seq, at, op, {columns} FROM {self._schema.changes} "
                "WHERE seq > ? AND seq <= ? AND shape = ? ORDER BY seq",
                (since, to, shape),
                _MAX_BYTES - size,
            )
            size += used
            if used >= _MAX_BYTES - (size - used) and rows[-1][0] < min(newest, to):
                to = rows[-1][0]
            found.append((table, rows))
        return [(table, rows[: bisect_right(rows, to, key=lambda row: int(row[0]))]) for table, rows in found], to

    def _fetch(self, statement: str, parameters: tuple[Any, ...], limit: int) -> tuple[list[tuple[Any, ...]], int]:
        """Returns rows of about that many bytes, at least one, and the bytes of their texts and blobs."""
        connection = self._opened().connection
        try:
            return _fetch_rows(connection.execute(statement, parameters), limit)
        except Exception as error:
            if "decode to UTF-8" not in str(error):
                raise
            connection.text_factory = decode_text
            try:
                return _fetch_rows(connection.execute(statement, parameters), limit)
            finally:
                connection.text_factory = str

    def _shape(self, shape: int) -> TableShape:
        if shape not in self._shapes:
            table, version = self._schema.read_shape(shape)
            self._shapes[shape] = table.shape(version)
        return self._shapes[shape]

    # Loading

    def _read_load(self, now: int) -> Iterator[Record]:
        """Yields the next rows of the first table that is being loaded, as of the last change that was delivered."""
        for name, state in self.position.tables.items():
            if state.loading and not state.stopped and state.shape:
                yield from self._read_rows(name, state, now)
                return

    def _read_rows(self, name: str, state: TablePosition, now: int) -> Iterator[Record]:
        if not state.begun:
            state.begun = True
            self.position.epoch += 1
            yield self._record(RecordKind.EPOCH, table=name)
        shape = self._shape(state.shape)
        if state.after is None:
            (self._total,) = self._opened().execute(f"SELECT count(*) FROM {quote(name)}").fetchone()
            self._done = 0
            unkeyed = " OR ".join(f"{quote(one)} IS NULL" for one in shape.key)
            for text in snapshot_batch(shape, self._fetch_load(shape, f"WHERE {unkeyed}", ()), now).refused:
                yield self._record(RecordKind.QUARANTINE, table=name, detail=text)
        rows = self._fetch_load(shape, *self._after(shape, state))
        if rows:
            decoded = snapshot_batch(shape, rows, now)
            for text in decoded.refused:
                yield self._record(RecordKind.QUARANTINE, table=name, detail=text)
            state.after = tuple(rows[-1][shape.schema.get_field_index(one)] for one in shape.key)
            self._done += len(rows)
            if decoded.batch is not None:
                yield self._record(RecordKind.SNAPSHOT, table=name, batch=decoded.batch)
        if not rows or not self._fetch_load(shape, *self._after(shape, state), limit=1):
            state.loading, state.after = False, None
            yield self._record(RecordKind.SNAPSHOT_DONE, table=name)

    def _fetch_load(
        self, shape: TableShape, where: str, parameters: tuple[Any, ...], limit: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Returns rows of a table in the order of its key."""
        columns = ", ".join(quote(one) for one in shape.schema.names)
        order = self._definitions[shape.table].ordered([quote(one) for one in shape.key])
        statement = (
            f"SELECT {columns} FROM {quote(shape.table)} {where} ORDER BY {order} LIMIT {limit or self._chunk_rows}"
        )
        return self._fetch(statement, parameters, _MAX_BYTES)[0]

    def _after(self, shape: TableShape, state: TablePosition) -> tuple[str, tuple[Any, ...]]:
        """Returns the condition for the rows that the load has not reached."""
        if state.after is None:
            return "WHERE " + " AND ".join(f"{quote(one)} IS NOT NULL" for one in shape.key), ()
        order = self._definitions[shape.table].ordered([quote(one) for one in shape.key])
        return f"WHERE ({order}) > ({', '.join('?' * len(shape.key))})", state.after

    def request_snapshot(self, table: str) -> None:
        """Load a captured table again, beside its changes."""
        if table not in self.position.tables:
            what = f"table {table!r} is not captured"
            raise NotCapturableError(what, detail=f"captured: {', '.join(self.position.tables)}", table=table)
        self.position.tables[table].load()

    # Answering

    def confirm(self, resume: Resume) -> None:
        """Remove the changes before a resume point from the file; about once a second."""
        position = self.position
        sequence, now = SqlitePosition.from_resume(resume).sequence, time.monotonic()
        waiting = sequence - position.confirmed
        if not waiting or (waiting < _CONFIRM_CHANGES and now < self._confirmed_at + _CONFIRM_INTERVAL):
            return
        self._confirmed_at = now
        file = self._opened()
        file.execute(f"PRAGMA busy_timeout = {int(_CONFIRM_TIMEOUT * 1000)}")
        try:
            while position.confirmed < sequence:  # in steps, so that the program's writers do not wait long
                step = min(sequence, position.confirmed + _MAX_CHANGES)
                with file.write():
                    self._check_history(replace(position, sequence=sequence), self._schema.identify())
                    self._schema.confirm(step)
                position.confirmed = step
        except UnreachableError:
            pass  # a writer is at work; the next call removes them
        finally:
            file.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout * 1000)}")

    def progress(self) -> Progress:
        """Returns how far it is."""
        position = self.position
        loading = next((name for name, one in position.tables.items() if one.loading and not one.stopped), "")
        with self._opened().read():
            identity = self._schema.identify()
        behind = max(0, (identity.last if identity else 0) - position.sequence)
        held = max(0, (identity.last if identity else 0) - position.confirmed)
        phase = "snapshot" if loading else "streaming"
        detail = f"{behind} changes to read, {held} kept in the file"
        return Progress(phase, loading, self._done if loading else 0, self._total if loading else 0, -1, -1, detail)

    def reached_end(self) -> bool:
        """Whether all loads are done and everything that was committed when it was last asked is delivered."""
        if self._end is None:
            with self._opened().read():
                identity = self._schema.identify()
            self._end = identity.last if identity else 0
        loading = any(one.loading and not one.stopped for one in self.position.tables.values())
        if loading or self.position.sequence < self._end:
            return False
        self._end = None
        return True


def _fetch_rows(cursor: Any, limit: int) -> tuple[list[tuple[Any, ...]], int]:
    rows: list[tuple[Any, ...]] = []
    size = 0
    while part := cursor.fetchmany(_FETCH):
        rows += part
        for column in zip(*part, strict=True):
            kinds = set(map(type, column))
            if not kinds.isdisjoint(_SIZED):
                size += sum(len(value) for value in column if isinstance(value, (str, bytes, BadText)))
        if size >= limit:
            break
    return rows, size


def _check_file(file: CapturedFile, identity: Identity | None) -> list[Remedy]:
    found = []
    mode = str(file.pragma("journal_mode"))
    if mode != "wal":
        what = f"the journal mode is {mode}: a writer waits while changes are read, and the other way round"
        found.append(Remedy("", what, "PRAGMA journal_mode = WAL"))
    try:
        file.connection.execute("PRAGMA query_only").fetchone()
        with file.path.open("r+b"):
            pass
    except OSError as error:
        what = f"the file cannot be written, and capture needs triggers in it: {error.strerror}"
        found.append(Remedy("BAD_CREDENTIALS", what, f"chmod u+w {file.path}", blocking=True))
    if identity is None:
        what = (
            "triggers record each change in the file: an insert, update or delete costs its program two to three times"
        )
        found.append(Remedy("", what))
    return found
