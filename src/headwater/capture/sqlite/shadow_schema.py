"""What capture keeps in a SQLite file: the table of changes, the shapes of the captured tables, and the triggers.

`install` compares the tables with what is there and brings triggers up to date, in one transaction. It puts a mark into
the changes where a table gets another shape, so that a reader meets the new shape exactly between the right changes.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.capture.source import SourceTable
from headwater.capture.sqlite.database import CapturedFile
from headwater.capture.sqlite.definition import PREFIX, TableDefinition, read_definition
from headwater.capture.sqlite.triggers import KINDS, MARK, TableTriggers
from headwater.errors import BadQueryError, HeadwaterError, NotCapturableError
from headwater.sql.identifiers import quote

__all__ = ["Identity", "Installed", "ShadowSchema"]

_FORMAT: Final = 1
_MISSING: Final = "triggers of capture were missing"


@dataclass(frozen=True)
class Identity:
    """Which history of changes a file has.

    Attributes:
        id: Made anew with the shadow schema; another one is another history.
        confirmed: Changes up to this sequence number were removed.
        last: The last sequence number that was given.
    """

    id: str
    confirmed: int
    last: int


@dataclass(frozen=True)
class Installed:
    """The outcome of `install` for one table.

    Attributes:
        shape: The id of its shape; 0 if it cannot be captured.
        table: The table; None if it cannot be captured.
        fault: Why it cannot.
    """

    shape: int
    table: TableDefinition | None
    fault: HeadwaterError | None = None


class ShadowSchema:
    """The tables and triggers of one capture in a file.

    Args:
        file: The open file.
        name: The name of the capture; several captures of one file do not disturb each other.
    """

    def __init__(self, file: CapturedFile, name: str) -> None:
        self._file = file
        self.prefix = f"{PREFIX}{name}:"
        self.changes = quote(self.prefix + "changes")
        self._shapes = quote(self.prefix + "shapes")
        self._source = quote(self.prefix + "source")
        self._delivered = 0

    def identify(self) -> Identity | None:
        """Returns the identity of the history; None if there is none."""
        execute = self._file.execute
        found = execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (self.prefix + "source",)).fetchone()
        if found is None:
            return None
        row = execute(f"SELECT id, confirmed FROM {self._source}").fetchone()
        last = execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (self.prefix + "changes",)).fetchone()
        return None if row is None else Identity(row[0], row[1], last[0] if last else 0)

    def begin_history(self) -> None:
        """Remove what an earlier capture left, and begin a history with a new id; in the caller's transaction."""
        self._drop_all()
        execute = self._file.execute
        execute(f"CREATE TABLE {self._source} (id TEXT, confirmed INTEGER, format INTEGER)")
        execute(f"CREATE TABLE {self._shapes} (id INTEGER PRIMARY KEY, name TEXT, version INTEGER, definition TEXT, "
                "fingerprint TEXT, wanted TEXT, active INTEGER)")  # fmt: skip
        columns = "at REAL, op INTEGER, shape INTEGER, c0, c1"
        execute(f"CREATE TABLE {self.changes} (seq INTEGER PRIMARY KEY AUTOINCREMENT, {columns})")
        execute(f"INSERT INTO {self._source} VALUES (?, 0, ?)", (uuid.uuid4().hex, _FORMAT))

    def read_shape(self, shape: int) -> tuple[TableDefinition, int]:
        """Returns a table as it was under a shape, and the version of the shape."""
        statement = f"SELECT name, version, definition FROM {self._shapes} WHERE id = ?"
        name, version, definition = self._file.execute(statement, (shape,)).fetchone()
        return TableDefinition.from_json(name, definition), version

    def wanted(self) -> list[SourceTable]:
        """Returns the tables that have triggers, as they were asked for."""
        rows = self._file.execute(f"SELECT wanted FROM {self._shapes} WHERE active ORDER BY id").fetchall()
        found = [json.loads(text) for (text,) in rows]
        return [SourceTable(one["table"], one["topic"], tuple(one["key"]), tuple(one["columns"])) for one in found]

    def install(self, tables: Sequence[SourceTable], delivered: int) -> dict[str, Installed]:
        """Bring triggers up to date for these tables, and remove those of others; in the caller's transaction.

        Args:
            tables: The tables to capture.
            delivered: Changes up to this sequence number were read before the present state of the tables.
        """
        self._delivered = delivered
        for name in self._active_names() - {one.table for one in tables}:
            self._deactivate(name)
        return {one.table: self._install_table(one) for one in tables}

    def _install_table(self, wanted: SourceTable) -> Installed:
        try:
            table = read_definition(self._file.connection, wanted)
        except NotCapturableError as fault:
            self._deactivate(wanted.table)
            return Installed(0, None, fault)
        old = self._file.execute(
            f"SELECT id, fingerprint FROM {self._shapes} WHERE name = ? AND active", (table.name,)
        ).fetchone()
        if old is not None and old[1] == table.fingerprint():
            self._renew_triggers(TableTriggers(self.prefix, old[0], table))
            return Installed(old[0], table)
        complete = old is not None and len(self._list_triggers(table.name)[0]) == len(KINDS)
        shape = self._add_shape(wanted, table)
        why = "" if old is None else self._needs_load(table, old[0]) if complete else _MISSING
        self._mark(shape, why)
        return Installed(shape, table)

    def _list_triggers(self, name: str) -> tuple[dict[str, str], bool]:
        """Returns the SQL of our triggers on a table by name, and whether another trigger was created after them."""
        prefix = TableTriggers(self.prefix, 0, TableDefinition(name, (), ()))
        names = {prefix.name(kind) for kind in KINDS}
        listed = self._file.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE ORDER BY rowid",
            (name,),
        ).fetchall()
        ours = {one: sql for one, sql in listed if one in names}
        return ours, {one for one, _ in listed[-len(ours) :]} != set(ours)

    def _add_shape(self, wanted: SourceTable, table: TableDefinition) -> int:
        """Store a shape and create the triggers of it."""
        execute = self._file.execute
        self._deactivate(table.name)
        (version,) = execute(f"SELECT count(*) + 1 FROM {self._shapes} WHERE name = ?", (table.name,)).fetchone()
        asked = {"table": wanted.table, "topic": wanted.topic, "key": wanted.key, "columns": wanted.columns}
        shape = execute(
            f"INSERT INTO {self._shapes} (name, version, definition, fingerprint, wanted, active) "
            "VALUES (?, ?, ?, ?, ?, 1)",
            (table.name, version, table.to_json(), table.fingerprint(), json.dumps(asked)),
        ).lastrowid
        assert shape is not None
        self._widen(2 * len(table.columns))
        triggers = TableTriggers(self.prefix, shape, table)
        execute(triggers.pending_table())
        for statement in triggers.statements().values():
            execute(statement)
        return shape

    def _widen(self, width: int) -> None:
        present = len(self._file.execute(f"PRAGMA table_info({self.changes})").fetchall()) - 4
        for place in range(present, width):
            self._file.execute(f"ALTER TABLE {self.changes} ADD COLUMN c{place}")

    def _renew_triggers(self, triggers: TableTriggers) -> None:
        """Create the triggers again if one is missing or differs, or if the program has created one since.

        If changes may have got lost or out of order meanwhile, the table is marked for a new load.
        """
        expected = triggers.statements()
        ours, overtaken = self._list_triggers(triggers.table.name)
        if ours == expected and not overtaken:
            return
        self._drop_of_table(triggers.table.name)
        for statement in (triggers.pending_table(), *expected.values()):
            self._file.execute(statement)
        why = _MISSING if len(ours) < len(expected) else ""
        if not why and overtaken and self._has_unread(triggers.shape):
            why = "a trigger of the program ran before those of capture"
        if why:
            self._mark(triggers.shape, why)

    def _needs_load(self, table: TableDefinition, old: int) -> str:
        """Returns why the rows must be loaded again after a change of columns; "" if the changes tell all."""
        before, _ = self.read_shape(old)
        if before.key != table.key:
            return "the key changed"
        kept = [one for one in before.columns if one in table.columns]
        added = [one for one in table.columns if one not in before.columns]
        if not added:
            return ""
        names = ", ".join(one.name for one in added)
        if len(kept) == len(before.columns) and {one.name for one in added} <= table.nullable_added:
            # Changes that are not read yet may have been made after the column was added, and lack its value.
            return f"column {names} was added while rows changed" if self._has_unread(old) else ""
        return f"rows have other values in {names}"

    def _has_unread(self, shape: int) -> bool:
        statement = f"SELECT EXISTS (SELECT 1 FROM {self.changes} WHERE seq > ? AND shape = ? AND op <> ?)"
        return bool(self._file.execute(statement, (self._delivered, shape, MARK)).fetchone()[0])

    def _mark(self, shape: int, why: str) -> None:
        statement = f"INSERT INTO {self.changes} (at, op, shape, c0) VALUES (julianday('now'), ?, ?, ?)"
        self._file.execute(statement, (MARK, shape, why))

    def _active_names(self) -> set[str]:
        return {name for (name,) in self._file.execute(f"SELECT name FROM {self._shapes} WHERE active")}

    def _deactivate(self, name: str) -> None:
        """Remove the triggers of a table; its recorded changes stay."""
        self._file.execute(f"UPDATE {self._shapes} SET active = 0 WHERE name = ?", (name,))
        self._drop_of_table(name)

    def _drop_of_table(self, name: str) -> None:
        triggers = TableTriggers(self.prefix, 0, TableDefinition(name, (), ()))
        for kind in KINDS:
            self._file.execute(f"DROP TRIGGER IF EXISTS {quote(triggers.name(kind))}")
        self._file.execute(f"DROP TABLE IF EXISTS {quote(triggers.name('pending'))}")

    def alter(self, statement: str) -> list[str]:
        """Run DDL of the program without triggers of capture in its way, and create them for the new columns.

        In the caller's transaction. Returns the tables that can no longer be captured.

        Raises:
            BadQueryError: SQLite refuses the statement.
        """
        wanted = self.wanted()
        for one in wanted:
            self._drop_of_table(one.table)
        try:
            for part in _split(statement):
                self._file.execute(part)
        except (sqlite3.OperationalError, sqlite3.IntegrityError, sqlite3.ProgrammingError) as error:
            raise BadQueryError(f"SQLite refuses the statement: {error}", detail=statement) from None
        for one in wanted:
            self._install_again(one)
        return [one.table for one in wanted if one.table not in self._active_names()]

    def _install_again(self, wanted: SourceTable) -> None:
        try:
            table = read_definition(self._file.connection, wanted)
        except NotCapturableError:
            self._deactivate(wanted.table)
            return
        where = (table.name,)
        old, fingerprint = self._file.execute(
            f"SELECT id, fingerprint FROM {self._shapes} WHERE name = ? AND active", where
        ).fetchone()
        if fingerprint == table.fingerprint():
            triggers = TableTriggers(self.prefix, old, table)
            self._file.execute(triggers.pending_table())
            for statement in triggers.statements().values():
                self._file.execute(statement)
            return
        why = self._needs_load(table, old)
        added_only_null = why.startswith("column ")  # the changes before this statement lack nothing
        self._mark(self._add_shape(wanted, table), "" if added_only_null else why)

    def confirm(self, sequence: int) -> None:
        """Remove the changes up to a sequence number; in the caller's transaction."""
        self._file.execute(f"DELETE FROM {self.changes} WHERE seq <= ?", (sequence,))
        self._file.execute(f"UPDATE {self._source} SET confirmed = max(confirmed, ?)", (sequence,))

    def drop(self) -> None:
        """Remove everything of this capture; in the caller's transaction."""
        self._drop_all()

    def _drop_all(self) -> None:
        for kind in ("trigger", "table"):
            listed = self._file.execute("SELECT name FROM sqlite_schema WHERE type = ?", (kind,)).fetchall()
            for name in self._own(name for (name,) in listed):
                self._file.execute(f"DROP {kind.upper()} {quote(name)}")

    def _own(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name.startswith(self.prefix)]


def _split(statements: str) -> list[str]:
    """Returns the statements of a text.

    Example:
        >>> _split("alter table t add column a default ';'; alter table t drop column b")
        ["alter table t add column a default ';'", 'alter table t drop column b']
    """
    found, current = [], ""
    for piece in statements.split(";"):
        current += piece
        if sqlite3.complete_statement(current + ";"):
            found.append(current.strip())
            current = ""
        else:
            current += ";"
    return [one for one in [*found, current.removesuffix(";").strip()] if one]
