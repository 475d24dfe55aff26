"""How the rows of each table lie in the log, from its table maps, and which shape they get."""

from __future__ import annotations

from typing import Final

from headwater.capture.mariadb.binlog.binlog_events import BinlogColumn, parse_table_map
from headwater.capture.mariadb.binlog.column_readers import ColumnReader, UnknownColumnError
from headwater.capture.mariadb.binlog.row_changes import TableLayout
from headwater.capture.mariadb.cascades import Parent, find_parents, read_foreign_keys
from headwater.capture.mariadb.charsets import Charsets
from headwater.capture.mariadb.connection import Connection
from headwater.capture.mariadb.resume_point import TableState
from headwater.capture.mariadb.snapshot import read_shape
from headwater.capture.source import SourceTable
from headwater.errors import NotCapturableError

__all__ = ["Layouts"]

# The log does not say which bytes are addresses.
_DOUBTFUL: Final = {"binary(16)": ("uuid", "inet6"), "binary(4)": ("inet4",)}


class Layouts:
    """Finds layouts of tables.

    Args:
        connection: A session to ask for what the log does not say.
        wanted: The captured tables.
    """

    def __init__(self, connection: Connection, wanted: dict[str, SourceTable]) -> None:
        self._connection = connection
        self._wanted = wanted
        self._charsets = Charsets(connection)
        self._doubted: set[str] = set()
        self._parents: dict[str, Parent] | None = None

    def parent(self, name: str) -> Parent | None:
        """Returns what is known of a table whose changes can change captured tables."""
        if self._parents is None:
            self._parents = find_parents(read_foreign_keys(self._connection), set(self._wanted))
        return self._parents.get(name)

    def watch(self, body: bytes, parent: Parent) -> None:
        """Learn how the rows of a parent lie, if a change of them matters."""
        found = parse_table_map(body)
        types = {one.name: one.type_text() for one in found.columns}
        watched = {name: types[name] for name in parent.on_update if name in types}
        if watched:
            state = TableState(types=watched, key=tuple(watched), version=1)
            readers = tuple(self._reader(one, types[one.name]) for one in found.columns)
            parent.layout = TableLayout(state.shape(found.table), readers)

    def forget(self) -> None:
        """Note that some statement may have changed foreign keys."""
        self._parents = None

    @staticmethod
    def name(body: bytes) -> str:
        """Returns "database.table" of a table map, from its ninth byte on."""
        end = 1 + body[0]
        return f"{body[1:end].decode()}.{body[end + 2 : end + 2 + body[end + 1]].decode()}"

    def doubt(self, table: str) -> None:
        """Note that types of columns may have changed."""
        self._doubted.add(table)

    def find(self, body: bytes, state: TableState) -> tuple[TableLayout, TableState]:
        """Returns the layout of a table map, and what is known of the table with it.

        Raises:
            NotCapturableError: The server does not write full metadata, or a column is of an unknown type.
        """
        found = parse_table_map(body)
        if not found.named:
            raise NotCapturableError(
                f"rows of {found.table} come without the names of their columns",
                detail="the server or a session writes the binary log with another binlog_row_metadata than FULL",
                fix="SET GLOBAL binlog_row_metadata = 'FULL'",
                table=found.table,
            )
        types = self._types(found.table, found.columns, state)
        source = self._wanted.get(found.table)
        chosen = {
            name: kind for name, kind in types.items() if source is None or not source.columns or name in source.columns
        }
        key = (source.key if source else ()) or found.key
        if not key or not set(key) <= set(chosen):
            raise NotCapturableError(
                f"{found.table} has no key any more: {', '.join(key) or 'no primary key'}",
                fix=f"ALTER TABLE {found.table} ADD PRIMARY KEY (...), or leave the table out",
                table=found.table,
            )
        state = state.reshape(chosen, tuple(key))
        try:
            readers = tuple(self._reader(one, types[one.name]) for one in found.columns)
        except UnknownColumnError as error:
            raise NotCapturableError(f"{found.table}: {error}", table=found.table) from None
        return TableLayout(state.shape(found.table), readers), state

    def _reader(self, column: BinlogColumn, kind: str) -> ColumnReader:
        return ColumnReader(column, kind, self._charsets.name(column.collation), self._charsets.decode)

    def _types(self, table: str, columns: tuple[BinlogColumn, ...], state: TableState) -> dict[str, str]:
        types = {one.name: one.type_text() for one in columns}
        doubtful = {name: _DOUBTFUL[kind] for name, kind in types.items() if kind in _DOUBTFUL}
        known = state.types if table not in self._doubted else {}
        if not doubtful.keys() <= known.keys():
            # After DDL only the server knows; a column that is gone by now stays bytes.
            known, _ = read_shape(self._connection, table)
        self._doubted.discard(table)
        return types | {name: known[name] for name, one in doubtful.items() if known.get(name) in one}
