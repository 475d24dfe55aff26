"""Writes rows to the table of a view, and reports what changed.

One query first reads the stored rows of all keys of the batch, because the changelog needs the previous rows, and
unchanged rows are not written. Then known rows are updated by row number and new rows are inserted.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import chain, compress
from operator import ne, or_
from typing import Any

import pyarrow as pa

from headwater.errors import UsageError
from headwater.sql.identifiers import quote
from headwater.sql.sqlite_file import SqliteSession
from headwater.store.changelog import ChangeSet
from headwater.store.columns import not_unique_error, rows_and_deletes, storage_columns, timestamp_text
from headwater.store.commit.commit import Commit, ViewTable
from headwater.store.sqlite.columns import column_type, decode_columns, decode_rows, encode_columns
from headwater.store.view_registry import table_name

__all__ = ["ROW_ID", "SqliteViewWriter"]

ROW_ID = "hw$row"
"""The column with the number of a row in its table. Unlike `rowid`, no column of a view can have this name."""
Columns = list[list[Any]]


class SqliteViewWriter:
    """Writes the rows of one commit to the table of a view.

    The construction converts and checks the rows, before the transaction; `apply` writes them.

    Raises:
        KeyNotUniqueError: Two rows, or a row and a delete, have one key.
        BadTypeError: The rows do not have the view's columns.
    """

    def __init__(self, table: ViewTable, commit: Commit) -> None:
        if commit.staged:
            raise UsageError("a store in a file does not accept staged rows", fix="pass the rows with the commit")
        self._table = table
        self._name = quote(table_name(table))
        self._columns = storage_columns(table)
        self._rows, deletes = rows_and_deletes(commit, table)
        self._values, self._deletes = encode_columns(table, self._rows), encode_columns(table, deletes)
        self._key_columns = [slot for slot in self._columns if slot.view_column in table.key]
        pairs = zip(self._columns, self._values, strict=True)
        self._keys = [column for slot, column in pairs if slot in self._key_columns]
        self._require_unique()

    def prepare(self, session: SqliteSession) -> None:
        """Do nothing: the connection needs no preparation."""

    def stage(self, session: SqliteSession) -> None:
        """Do nothing: the rows are in the process that writes the file."""

    def finish(self, session: SqliteSession) -> None:
        """Do nothing: nothing was staged."""

    def apply(self, session: SqliteSession, watermarks: tuple[int | None, int] | None) -> ChangeSet:
        """Write the rows and return what changed.

        Args:
            session: A session in a transaction.
            watermarks: The watermark before and now, to find the rows that became final.
        """
        deleted = self._delete(session)
        inserted, before, after = self._upsert(session)
        none = self._table.schema.empty_table()
        final = none if watermarks is None else self._final_rows(session, *watermarks)
        return ChangeSet(inserted, before, after, deleted, final)

    # -- writing ---------------------------------------------------------------------------------------------------

    def _upsert(self, session: SqliteSession) -> tuple[pa.Table, pa.Table, pa.Table]:
        none = self._table.schema.empty_table()
        positions, numbers, old = self._find_existing(session, self._keys)
        if not positions:
            self._insert(session, self._values)
            return self._rows, none, none
        inserted = none
        if len(positions) < self._rows.num_rows:
            fresh = bytearray(b"\1") * self._rows.num_rows
            for position in positions:
                fresh[position] = 0
            self._insert(session, [list(compress(column, fresh)) for column in self._values])
            inserted = self._rows.filter(pa.array(fresh, pa.uint8()).cast(pa.bool_()))
        new = _pick_rows(self._values, positions, self._rows.num_rows)
        # Usually few columns differ. One comparison of lists, at the speed of C, finds those that need more work.
        differing = [index for index, column in enumerate(old) if column != new[index]]
        if not differing:
            return inserted, none, none
        unequal = (map(ne, old[index], new[index]) for index in differing)
        changed = list(reduce(lambda one, other: map(or_, one, other), unequal))  # per row, at the speed of C
        old, new = ([list(compress(part[index], changed)) for index in differing] for part in (old, new))
        names = ", ".join(f"{quote(self._columns[index].name)} = ?" for index in differing)
        rows = zip(*new, compress(numbers, changed), strict=True)
        session.executemany(f"UPDATE {self._name} SET {names} WHERE {ROW_ID} = ?", rows)
        after = self._rows.take(pa.array(list(compress(positions, changed)), pa.int64()))
        return inserted, self._rows_before(after, differing, old), after

    def _rows_before(self, after: pa.Table, differing: list[int], old: Columns) -> pa.Table:
        """Returns the previous rows; columns in which no row differs are taken from the new rows."""
        names = {self._columns[index].view_column for index in differing}
        if self._table.window in names:  # a window has two stored columns, of which perhaps only one differs
            stored = encode_columns(self._table, after)
            for index, column in zip(differing, old, strict=True):
                stored[index] = column
            return decode_columns(self._table, stored)
        fields = [field for field in self._table.schema if field.name in names]
        part = decode_columns(replace(self._table, schema=pa.schema(fields), window=None), old)
        columns = [(part if name in names else after).column(name) for name in after.column_names]
        return pa.Table.from_arrays(columns, schema=self._table.schema)

    def _insert(self, session: SqliteSession, columns: Columns) -> None:
        marks = ", ".join("?" * len(self._columns))
        session.executemany(f"INSERT INTO {self._name} VALUES (NULL, {marks})", zip(*columns, strict=True))

    def _delete(self, session: SqliteSession) -> pa.Table:
        if not self._deletes[0]:
            return self._table.schema.empty_table()
        _, numbers, old = self._find_existing(session, self._deletes)
        session.executemany(f"DELETE FROM {self._name} WHERE {ROW_ID} = ?", zip(numbers, strict=True))
        return decode_columns(self._table, old)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _find_existing(self, session: SqliteSession, keys: Columns) -> tuple[list[int], list[int], Columns]:
        """Returns which keys exist: index in the batch, row number, and stored columns."""
        empty = session.execute(f"SELECT 1 FROM {self._name} LIMIT 1").fetchone() is None
        if empty or not keys[0]:
            return [], [], [[] for _ in self._columns]
        names = [f"k{index}" for index in range(len(keys))]
        described = ", ".join(f"{n} {column_type(slot.kind)}" for n, slot in zip(names, self._key_columns, strict=True))
        # Temporary tables are in memory: `open_writer` sets temp_store.
        session.execute(f"CREATE TEMP TABLE sought (n INTEGER PRIMARY KEY, {described})")
        try:
            marks = ", ".join("?" * (len(keys) + 1))
            numbered = zip(range(len(keys[0])), *keys, strict=True)
            session.executemany(f"INSERT INTO sought VALUES ({marks})", numbered)
            return self._join_existing(session, names, keys)
        finally:
            session.execute("DROP TABLE sought")

    def _join_existing(
        self, session: SqliteSession, names: list[str], keys: Columns
    ) -> tuple[list[int], list[int], Columns]:
        # IS also finds nulls, and uses the index as = does. CROSS JOIN keeps the order: the small batch first.
        same = " AND ".join(
            f"v.{quote(key.name)} IS s.{name}" for key, name in zip(self._key_columns, names, strict=True)
        )
        others = [slot for slot in self._columns if slot not in self._key_columns]
        columns = "".join(f", v.{quote(slot.name)}" for slot in others)
        query = f"SELECT s.n, v.{ROW_ID}{columns} FROM sought s CROSS JOIN {self._name} v ON {same}"
        with _pause_gc():
            rows = session.execute(query).fetchall()
            positions, numbers, *read = ([row[i] for row in rows] for i in range(len(others) + 2))
        known = iter(_pick_rows(keys, positions, len(keys[0])))
        unknown = iter(read)
        return (positions, numbers, [next(known if slot in self._key_columns else unknown) for slot in self._columns])

    def _final_rows(self, session: SqliteSession, before: int | None, now: int) -> pa.Table:
        """Returns the rows whose window ended after the old watermark and not after the new one."""
        end = quote(f"{self._table.window}.end")
        columns = ", ".join(quote(slot.name) for slot in self._columns)
        query = f"SELECT {columns} FROM {self._name} WHERE {end} <= ? AND {end} > ? ORDER BY {end}"
        first = "" if before is None else timestamp_text(before)  # no text sorts before the empty one
        return decode_rows(self._table, session.execute(query, (timestamp_text(now), first)).fetchall())

    def _require_unique(self) -> None:
        single = len(self._keys) == 1  # plain values hash faster than tuples of one
        both = (self._keys, self._deletes)
        keys = list(chain.from_iterable(part[0] if single else zip(*part, strict=True) for part in both))
        if len(set(keys)) == len(keys):
            return
        seen: set[Any] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        named = dict(zip([slot.name for slot in self._key_columns], (twice,) if single else twice, strict=True))
        same = [index for index, key in enumerate(keys[: self._rows.num_rows]) if key == twice]
        raise not_unique_error(self._table, named, self._rows.take(same[:2]))


def _pick_rows(columns: Columns, positions: list[int], count: int) -> Columns:
    """Returns the rows at these ascending indexes, out of `count` rows."""
    return columns if len(positions) == count else [[column[position] for position in positions] for column in columns]


@contextlib.contextmanager
def _pause_gc() -> Iterator[None]:
    """Pause the garbage collector, which would otherwise scan a hundred thousand new tuples repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
