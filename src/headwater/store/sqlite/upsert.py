"""Rows into the table of a view, and what that changed.

Rows with a known key are looked up first, all of a batch in one query: the changelog needs what they were, and a row
that is the same again is not written. Then updates go by row number and new rows are inserted.
"""

from __future__ import annotations

import contextlib
import gc
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import compress
from operator import ne
from typing import Any

import pyarrow as pa

from headwater.errors import KeyNotUniqueError, UsageError
from headwater.events.values import shown
from headwater.store.bookkeeping.registry import table_name
from headwater.store.changes import Changes
from headwater.store.definition import Commit, ViewTable
from headwater.store.slots import Slot, fitted, slots
from headwater.store.sqlite.columns import declared, from_slots, to_slots
from headwater.store.sqlite.connection import quoted
from headwater.store.sqlite.view_tables import ROW

__all__ = ["ViewWrite"]

Columns = list[list[Any]]


class ViewWrite:
    """The rows of one commit on their way into the table of a view.

    Making one converts and checks the rows, so that nothing of it happens while other writers wait; `apply` then
    writes, inside the caller's transaction.

    Raises:
        KeyNotUniqueError: Two rows, or a row and a delete, have one key.
        BadTypeError: The rows do not have the view's columns.
    """

    def __init__(self, table: ViewTable, work: Commit) -> None:
        if work.staged:
            raise UsageError("a store in a file takes the rows of a batch with its commit, not staged")
        self._table = table
        self._name = quoted(table_name(table))
        self._slots = slots(table)
        self._rows = fitted(table, work.rows, table.schema)
        self._values = to_slots(table, self._rows)
        key_schema = pa.schema([field for field in table.schema if field.name in table.key])
        deletes = key_schema.empty_table() if work.deletes is None else work.deletes
        self._deletes = to_slots(table, fitted(table, deletes, key_schema))
        self._keys = [slot for slot in self._slots if slot.column in table.key]
        self._require_unique()

    def apply(self, connection: sqlite3.Connection, finals: tuple[int | None, int] | None) -> Changes:
        """Write the rows and say what changed.

        Args:
            connection: In a transaction.
            finals: The watermark before and now, to find the rows that became final.
        """
        deleted = self._delete(connection)
        inserted, before, after = self._upsert(connection)
        none = self._table.schema.empty_table()
        final = none if finals is None else self._final(connection, *finals)
        return Changes(inserted, before, after, deleted, final)

    # -- writing ---------------------------------------------------------------------------------------------------

    def _upsert(self, connection: sqlite3.Connection) -> tuple[pa.Table, pa.Table, pa.Table]:
        none = self._table.schema.empty_table()
        places, numbers, old = self._known(connection, _keys_of(self._slots, self._keys, self._values))
        if not places:
            self._insert(connection, self._values)
            return self._rows, none, none
        inserted = none
        if len(places) < self._rows.num_rows:
            fresh = bytearray(b"\1") * self._rows.num_rows
            for place in places:
                fresh[place] = 0
            self._insert(connection, [list(compress(column, fresh)) for column in self._values])
            inserted = self._rows.filter(pa.array(fresh, pa.uint8()).cast(pa.bool_()))
        new = _picked(self._values, places, self._rows.num_rows)
        # Mostly a few columns differ, and one comparison in C settles a whole column: the others need no more work.
        differing = [index for index, column in enumerate(old) if column != new[index]]
        if not differing:
            return inserted, none, none
        changed = _changed(old, new, differing)
        old, new = ([list(compress(part[index], changed)) for index in differing] for part in (old, new))
        self._update(connection, differing, new, list(compress(numbers, changed)))
        after = self._rows.take(pa.array(list(compress(places, changed)), pa.int64()))
        return inserted, self._before(after, differing, old), after

    def _before(self, after: pa.Table, differing: list[int], old: Columns) -> pa.Table:
        """Rows as they were: columns in which none differs are as they are now."""
        names = {self._slots[index].column for index in differing}
        if self._table.window in names:  # its two slots belong together, and one of them may not differ
            return self._whole_before(after, differing, old)
        fields = [field for field in self._table.schema if field.name in names]
        part = from_slots(replace(self._table, schema=pa.schema(fields), window=None), old)
        columns = [(part if name in names else after).column(name) for name in after.column_names]
        return pa.Table.from_arrays(columns, schema=self._table.schema)

    def _whole_before(self, after: pa.Table, differing: list[int], old: Columns) -> pa.Table:
        columns = to_slots(self._table, after)
        for index, column in zip(differing, old, strict=True):
            columns[index] = column
        return from_slots(self._table, columns)

    def _insert(self, connection: sqlite3.Connection, columns: Columns) -> None:
        marks = ", ".join("?" * len(self._slots))
        statement = f"INSERT INTO {self._name} VALUES (NULL, {marks})"
        connection.executemany(statement, zip(*columns, strict=True))

    def _update(
        self, connection: sqlite3.Connection, differing: list[int], new: Columns, numbers: list[int]
    ) -> None:
        names = ", ".join(f"{quoted(self._slots[index].name)} = ?" for index in differing)
        statement = f"UPDATE {self._name} SET {names} WHERE {ROW} = ?"
        connection.executemany(statement, zip(*new, numbers, strict=True))

    def _delete(self, connection: sqlite3.Connection) -> pa.Table:
        if not self._deletes or not self._deletes[0]:
            return self._table.schema.empty_table()
        _, numbers, old = self._known(connection, self._deletes)
        rows = ((number,) for number in numbers)
        connection.executemany(f"DELETE FROM {self._name} WHERE {ROW} = ?", rows)
        return from_slots(self._table, old)

    # -- looking ---------------------------------------------------------------------------------------------------

    def _known(self, connection: sqlite3.Connection, keys: Columns) -> tuple[list[int], list[int], Columns]:
        """Which of these keys are in the table: their place in the batch, row number, and columns there."""
        none: Columns = [[] for _ in self._slots]
        empty = connection.execute(f"SELECT 1 FROM {self._name} LIMIT 1").fetchone() is None
        if empty or not keys[0]:
            return [], [], none
        names = [f"k{index}" for index in range(len(keys))]
        described = ", ".join(f"{n} {declared(slot)}" for n, slot in zip(names, self._keys, strict=True))
        connection.execute(f"CREATE TEMP TABLE sought (n INTEGER PRIMARY KEY, {described})")
        try:
            marks = ", ".join("?" * (len(keys) + 1))
            numbered = zip(range(len(keys[0])), *keys, strict=True)
            connection.executemany(f"INSERT INTO sought VALUES ({marks})", numbered)
            return self._joined(connection, names, keys)
        finally:
            connection.execute("DROP TABLE sought")

    def _joined(
        self, connection: sqlite3.Connection, names: list[str], keys: Columns
    ) -> tuple[list[int], list[int], Columns]:
        # IS finds nulls too, and uses the index as = does; CROSS JOIN keeps the order, small batch before large table.
        same = " AND ".join(
            f"v.{quoted(key.name)} IS s.{name}" for key, name in zip(self._keys, names, strict=True)
        )
        others = [slot for slot in self._slots if slot not in self._keys]
        columns = "".join(f", v.{quoted(slot.name)}" for slot in others)
        query = f"SELECT s.n, v.{ROW}{columns} FROM sought s CROSS JOIN {self._name} v ON {same}"
        with _no_collection():
            rows = connection.execute(query).fetchall()
            places, numbers, *read = ([row[i] for row in rows] for i in range(len(others) + 2))
        known = iter(_picked(keys, places, len(keys[0])))
        unknown = iter(read)
        return places, numbers, [next(known if slot in self._keys else unknown) for slot in self._slots]

    def _final(self, connection: sqlite3.Connection, before: int | None, now: int) -> pa.Table:
        """Rows whose window ended after the old watermark and not after the new one."""
        end = quoted(f"{self._table.window}.end")
        columns = ", ".join(quoted(slot.name) for slot in self._slots)
        query = f"SELECT {columns} FROM {self._name} WHERE {end} <= ? AND {end} > ? ORDER BY {end}"
        first = "" if before is None else _moment_text(before)
        return table_of(self._table, connection.execute(query, (_moment_text(now), first)).fetchall())

    def _require_unique(self) -> None:
        columns = _keys_of(self._slots, self._keys, self._values)
        keys = list(_tuples(columns)) + list(_tuples(self._deletes))
        if len(set(keys)) == len(keys):
            return
        seen: set[Any] = set()
        twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        named = twice if len(self._keys) > 1 else (twice,)
        words = ", ".join(f"{slot.name} = {shown(v)}" for slot, v in zip(self._keys, named, strict=True))
        raise KeyNotUniqueError(
            f'view "{self._table.name}" got two rows for one key: {words}',
            detail=f"key: {', '.join(self._table.key)}",
            fix="group by the key, or name a key that tells the rows apart",
            view=self._table.name,
            key=dict(zip([slot.name for slot in self._keys], named, strict=True)),
        )


def table_of(table: ViewTable, rows: list[tuple[Any, ...]]) -> pa.Table:
    """Rows of all slots as the view's columns."""
    return from_slots(table, list(zip(*rows, strict=True)) if rows else [[] for _ in slots(table)])


def _keys_of(columns: list[Slot], keys: list[Slot], values: Columns) -> Columns:
    return [column for slot, column in zip(columns, values, strict=True) if slot in keys]


def _picked(columns: Columns, places: list[int], count: int) -> Columns:
    """The rows at these places, of `count` rows; places ascend."""
    return columns if len(places) == count else [[column[place] for place in places] for column in columns]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No search for garbage meanwhile: it would look at every one of a hundred thousand new tuples, again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _tuples(columns: Columns) -> Iterable[Any]:
    return columns[0] if len(columns) == 1 else zip(*columns, strict=True)


def _changed(old: Columns, new: Columns, differing: list[int]) -> list[bool]:
    """For each row whether any of these columns differs."""
    first, *others = (list(map(ne, old[index], new[index])) for index in differing)
    for other in others:
        first = [one or two for one, two in zip(first, other, strict=True)]
    return first


def _moment_text(micros: int) -> str:
    array = pa.array([micros], pa.timestamp("us", "UTC"))
    schema = pa.schema([("at", array.type)])
    return str(to_slots(ViewTable("", 0, schema, ()), pa.table({"at": array}))[0][0])
