"""Rows into the table of a view, and what that changed.

The rows of a batch are copied into a temporary table. One statement then finds the rows with a known key, updates those
that differ, inserts the others, and answers with what was there before: the changelog needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import KeyNotUniqueError
from headwater.events.values import shown
from headwater.store.bookkeeping.registry import table_name
from headwater.store.changes import Changes
from headwater.store.definition import Commit, ViewTable
from headwater.store.postgres.columns import arrays_of, csv_of, declared, written
from headwater.store.postgres.connection import PostgresSession, literal, quoted
from headwater.store.postgres.staging import require_whole, source_of
from headwater.store.postgres.view_tables import table_of_version
from headwater.store.slots import fitted, from_arrays, moments_of, slots, to_arrays

__all__ = ["ViewWrite"]

# Rows up to which each is looked up by the index, whatever the server guesses: it takes a temporary table that it never
# measured for a large one, and would read a whole view to find one row.
_FEW = 5_000


class ViewWrite:
    """The rows of one commit on their way into the table of a view.

    Making one converts and checks the rows; `stage` sends them while nobody waits; `apply` then writes them. Both
    inside one transaction of the caller, `prepare` before it.

    Raises:
        KeyNotUniqueError: Two rows, or a row and a delete, have one key.
        BadTypeError: The rows do not have the view's columns.
    """

    def __init__(self, table: ViewTable, work: Commit) -> None:
        self._table = table
        self._name = table_of_version(table)
        self._slots = slots(table)
        self._keys = [number for number, slot in enumerate(self._slots) if slot.column in table.key]
        self._others = [number for number, slot in enumerate(self._slots) if slot.column not in table.key]
        self._rows = fitted(table, work.rows, table.schema)
        key_schema = pa.schema([field for field in table.schema if field.name in table.key])
        gone = key_schema.empty_table() if work.deletes is None else fitted(table, work.deletes, key_schema)
        columns, self._gone = written(table, self._rows), written(table, gone)
        keys = [columns[number] for number in self._keys]
        _require_unique(table, keys, self._gone)
        self._parts, self._distinct = work.staged, work.distinct
        self._null_keys = [
            bool(key.null_count or other.null_count or any(part.null_keys[number] for part in self._parts))
            for number, (key, other) in enumerate(zip(keys, self._gone, strict=True))
        ]
        self._data = _numbered(columns)

    def prepare(self, session: PostgresSession) -> None:
        """Make the temporary tables of this connection, unless they are there; outside of a transaction."""
        for target, numbers in ((self._staged, range(len(self._slots))), (self._staged_gone, self._keys)):
            columns = ", ".join(f"c{number} {declared(self._slots[number].kind)}" for number in numbers)
            statement = f"CREATE TEMP TABLE {target} (n bigint, {columns}) ON COMMIT DELETE ROWS"
            if statement not in session.staging:
                session.run(f"DROP TABLE IF EXISTS pg_temp.{target}")
                session.run(statement)
                session.staging.add(statement)

    def stage(self, session: PostgresSession) -> None:
        """Send the rows."""
        if self._rows.num_rows:
            session.copy_in(f"pg_temp.{self._staged}", self._data)
        if len(self._gone[0]):
            session.copy_in(f"pg_temp.{self._staged_gone}", _numbered(self._gone))

    def apply(self, session: PostgresSession, finals: tuple[int | None, int] | None) -> Changes:
        """Write the rows and say what changed.

        Args:
            session: In the transaction in which they were staged.
            finals: The watermark before and now, to find the rows that became final.
        """
        if self._parts:
            require_whole(session, self._parts)
            self._require_unique_parts(session)
        if max(self._count, len(self._gone[0])) <= _FEW:
            session.run("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        none = self._table.schema.empty_table()
        deleted = self._delete(session) if len(self._gone[0]) else none
        inserted, before, after = self._upsert(session) if self._count else (none, none, none)
        final = none if finals is None else self._final(session, *finals)
        return Changes(inserted, before, after, deleted, final)

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _count(self) -> int:
        return int(self._rows.num_rows) + sum(part.rows for part in self._parts)

    @property
    def _source(self) -> str:
        if not self._parts:
            return f"pg_temp.{self._staged}"
        return source_of(self._parts, len(self._slots) if self._distinct else 0)

    @property
    def _staged(self) -> str:
        return quoted(table_name(self._table))

    @property
    def _staged_gone(self) -> str:
        return quoted(f"{table_name(self._table)}$gone")

    def _upsert(self, session: PostgresSession) -> tuple[pa.Table, pa.Table, pa.Table]:
        kinds = [self._slots[number].kind for number in self._others]
        kinds += [slot.kind for slot in self._slots] if self._parts else []
        number, fresh, *rest = arrays_of(
            session.copy_out(self._upserting()), [pa.int64(), pa.bool_(), *kinds]
        )
        if self._parts:  # the rows are not here: they come back beside what they were
            rows = from_arrays(self._table, rest[len(self._others) :])
        else:
            order = pc.sort_indices(number)
            fresh, rest = fresh.take(order), [column.take(order) for column in rest]
            rows = self._rows.take(number.take(order))
        changed = pc.invert(fresh)
        after = rows.filter(changed)
        old = [column.filter(changed) for column in rest[: len(self._others)]]
        return rows.filter(fresh), self._before(after, old), after

    def _upserting(self) -> str:
        """One statement: find, update, insert, and tell each row that was new or differed with what was there."""
        names = [quoted(slot.name) for slot in self._slots]
        old = "".join(f", v.{names[number]} AS o{number}" for number in self._others)
        told = "".join(f", o{number}" for number in self._others)
        there = ", ".join(f"v.{names[number]}" for number in self._others)
        new = ", ".join(f"s.c{number}" for number in self._others)
        differs = f"({there}) IS DISTINCT FROM ({new})" if self._others else "false"
        put = ", ".join(f"{names[number]} = old.c{number}" for number in self._others)
        update = f"UPDATE {self._name} t SET {put} FROM old WHERE t.ctid = old.place AND old.differs"
        columns = ", ".join(f"c{number}" for number in range(len(names)))
        told += f", {columns}" if self._parts else ""
        return f"""
            WITH old AS MATERIALIZED (
                SELECT s.*, v.ctid AS place, {differs} AS differs{old}
                FROM {self._source} s LEFT JOIN {self._name} v ON {self._same_key()}
            ), updated AS ({update if put else "SELECT"}), inserted AS (
                INSERT INTO {self._name} ({", ".join(names)}) SELECT {columns} FROM old WHERE place IS NULL ORDER BY n
            )
            SELECT n, place IS NULL{told} FROM old WHERE place IS NULL OR differs
        """

    def _require_unique_parts(self, session: PostgresSession) -> None:
        """Rows of several workers are first seen together here."""
        keys = ", ".join(f"c{number}" for number in self._keys)
        gone = f"UNION ALL SELECT {keys} FROM pg_temp.{self._staged_gone}"
        query = f"SELECT {keys} FROM (SELECT {keys} FROM {self._source} s {gone}) k"
        found = session.copy_out(f"{query} GROUP BY {keys} HAVING count(*) > 1 LIMIT 1")
        columns = arrays_of(found, [self._slots[number].kind for number in self._keys])
        if len(columns[0]):
            names = [self._slots[number].name for number in self._keys]
            raise _not_unique(
                self._table, dict(zip(names, (column[0].as_py() for column in columns), strict=True))
            )

    def _same_key(self) -> str:
        parts = []
        for number, nulls in zip(self._keys, self._null_keys, strict=True):
            there, here = f"v.{quoted(self._slots[number].name)}", f"s.c{number}"
            # Only = is found by the index, so nulls are asked for only where a batch has some.
            either = f"({there} = {here} OR {there} IS NULL AND {here} IS NULL)"
            parts.append(either if nulls else f"{there} = {here}")
        return " AND ".join(parts)

    def _before(self, after: pa.Table, old: Sequence[pa.Array]) -> pa.Table:
        """Rows as they were: keys are as they are now."""
        columns = [array for _, array in to_arrays(self._table, after)]
        for number, column in zip(self._others, old, strict=True):
            columns[number] = column
        return from_arrays(self._table, columns)

    def _delete(self, session: PostgresSession) -> pa.Table:
        names = ", ".join(f"v.{quoted(slot.name)}" for slot in self._slots)
        number, *columns = arrays_of(
            session.copy_out(
                f"DELETE FROM {self._name} v USING pg_temp.{self._staged_gone} s"
                f" WHERE {self._same_key()} RETURNING s.n, {names}"
            ),
            [pa.int64(), *(slot.kind for slot in self._slots)],
        )
        return from_arrays(self._table, [column.take(pc.sort_indices(number)) for column in columns])

    def _final(self, session: PostgresSession, before: int | None, now: int) -> pa.Table:
        """Rows whose window ended after the old watermark and not after the new one."""
        end = quoted(f"{self._table.window}.end")
        names = ", ".join(quoted(slot.name) for slot in self._slots)
        keys = ", ".join(quoted(self._slots[number].name) for number in self._keys)
        since = "" if before is None else f"AND {end} > {_moment(before)}"
        query = (
            f"SELECT {names} FROM {self._name} WHERE {end} <= {_moment(now)} {since} ORDER BY {end}, {keys}"
        )
        return from_arrays(
            self._table, arrays_of(session.copy_out(query), [slot.kind for slot in self._slots])
        )


def _numbered(columns: Sequence[pa.Array]) -> memoryview:
    return csv_of([pa.array(range(len(columns[0])), pa.int64()), *columns])


def _moment(micros: int) -> str:
    text = moments_of(pa.array([micros], pa.timestamp("us", "UTC")), "watermark").cast(pa.string())[0].as_py()
    return f"timestamptz {literal(text)}"


def _require_unique(table: ViewTable, keys: Sequence[pa.Array], gone: Sequence[pa.Array]) -> None:
    names = [slot.name for slot in slots(table) if slot.column in table.key]
    both = pa.Table.from_arrays(
        [pa.concat_arrays([key, other]) for key, other in zip(keys, gone, strict=True)], names=names
    )
    counted = both.group_by(names, use_threads=False).aggregate([([], "count_all")])
    if counted.num_rows == both.num_rows:
        return
    twice = (
        counted.filter(pc.greater(counted.column("count_all"), 1)).select(names).slice(0, 1).to_pylist()[0]
    )
    raise _not_unique(table, twice)


def _not_unique(table: ViewTable, twice: dict[str, Any]) -> KeyNotUniqueError:
    return KeyNotUniqueError(
        f'view "{table.name}" got two rows for one key: '
        + ", ".join(f"{name} = {shown(value)}" for name, value in twice.items()),
        detail=f"key: {', '.join(table.key)}",
        fix="group by the key, or name a key that tells the rows apart",
        view=table.name,
        key=twice,
    )
