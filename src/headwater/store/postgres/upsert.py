"""Writes rows to the table of a view, and reports what changed.

The rows of a batch are copied to a temporary table. One statement then updates the rows with a known key that differ,
inserts the others, and returns the previous rows for the changelog.

Workers can stage the rows of a large batch in parallel; one commit publishes them. Each part is an unlogged table,
which a server crash empties, so the commit compares row counts before it publishes. The next commit drops the parts
that no commit names: those of a worker that ran twice or of a batch that failed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import UnreachableError
from headwater.sql.identifiers import quote
from headwater.sql.postgres_pool import TABLE_SCHEMA, PostgresSession
from headwater.store.changelog import ChangeSet
from headwater.store.columns import (
    cast_rows,
    from_arrays,
    not_unique_error,
    rows_and_deletes,
    storage_columns,
    timestamp_text,
    to_arrays,
)
from headwater.store.commit.commit import Commit, StagedPart, ViewTable
from headwater.store.commit.row_checks import check_rows
from headwater.store.postgres.columns import column_type, from_csv, to_csv, to_csv_columns
from headwater.store.view_registry import table_name

__all__ = ["PostgresViewWriter", "stage_part"]


def stage_part(session: PostgresSession, table: ViewTable, batch: int, rows: pa.Table) -> StagedPart:
    """Stage rows of a view in an unlogged table; runs in the caller's transaction."""
    rows = cast_rows(table, rows, table.schema)
    check_rows(table, rows)
    columns = to_csv_columns(table, rows)
    keys = [
        column for slot, column in zip(storage_columns(table), columns, strict=True) if slot.view_column in table.key
    ]
    nulls = tuple(bool(key.null_count) for key in keys)
    part = StagedPart(f"staged_{uuid.uuid4().hex}", rows.num_rows, nulls, rows.nbytes)
    described = ", ".join(f"c{number} {column_type(slot.kind)}" for number, slot in enumerate(storage_columns(table)))
    session.execute_raw(f"CREATE UNLOGGED TABLE {_part_table(part)} (n bigint, {described})")
    session.execute("INSERT INTO hw$staged VALUES (?, ?, ?)", (part.table, table.query, batch))
    session.copy_in(_part_table(part), _to_numbered_csv(columns))
    return part


def _check_part(session: PostgresSession, part: StagedPart) -> None:
    """Refuse a part that has lost its rows.

    Raises:
        UnreachableError: The server was restarted since the part was staged; run the batch again.
    """
    rows = 0
    if session.execute("SELECT to_regclass(?)", (_part_table(part),)).fetchone() != (None,):
        # Not through `session.execute`, whose cache is for statements that come again.
        ((rows,),) = session.connection.execute(f"SELECT count(*) FROM {_part_table(part)}".encode()).fetchall()
    if rows != part.rows:
        what = f"{part.rows:,} rows were staged, and the database has {rows:,} of them"
        raise UnreachableError(what, detail="the server was restarted meanwhile", fix="run the batch again")


def _part_table(part: StagedPart) -> str:
    return f"{TABLE_SCHEMA}.{quote(part.table)}"


# Up to this many rows the writer forces the index. Without statistics, the planner assumes that a temporary table is
# large, and reads the whole view to find one row.
_INDEX_LOOKUP_ROWS = 5_000


class PostgresViewWriter:
    """Writes the rows of one commit to the table of a view.

    The construction converts and checks the rows. `prepare` runs before the transaction, `stage`, `apply` and `finish`
    in it. Only `apply` and `finish` run under the lock of the query.

    Raises:
        KeyNotUniqueError: Two rows, or a row and a delete, have one key.
        BadTypeError: The rows do not have the view's columns.
    """

    def __init__(self, table: ViewTable, commit: Commit) -> None:
        self._table = table
        self._name = f"{TABLE_SCHEMA}.{quote(table_name(table))}"
        self._columns = storage_columns(table)
        self._keys = [number for number, slot in enumerate(self._columns) if slot.view_column in table.key]
        self._values = [number for number, slot in enumerate(self._columns) if slot.view_column not in table.key]
        self._rows_table, self._deletes_table = quote(table_name(table)), quote(f"{table_name(table)}$gone")
        self._query, self._batch = commit.entry.query, commit.entry.batch
        self._rows, deletes = rows_and_deletes(commit, table)
        columns, self._deletes = to_csv_columns(table, self._rows), to_csv_columns(table, deletes)
        keys = [columns[number] for number in self._keys]
        _require_unique(table, self._rows, keys, self._deletes)
        self._parts, self._distinct = commit.staged, commit.distinct
        self._count = self._rows.num_rows + sum(part.rows for part in self._parts)
        self._null_keys = [
            bool(key.null_count or other.null_count or any(part.null_keys[number] for part in self._parts))
            for number, (key, other) in enumerate(zip(keys, self._deletes, strict=True))
        ]
        self._data = _to_numbered_csv(columns)

    def prepare(self, session: PostgresSession) -> None:
        """Create the temporary tables of this connection if they are missing; outside of a transaction."""
        for target, numbers in ((self._rows_table, range(len(self._columns))), (self._deletes_table, self._keys)):
            columns = ", ".join(f"c{number} {column_type(self._columns[number].kind)}" for number in numbers)
            statement = f"CREATE TEMP TABLE {target} (n bigint, {columns}) ON COMMIT DELETE ROWS"
            if statement not in session.temp_tables:
                session.execute_raw(f"DROP TABLE IF EXISTS pg_temp.{target}")
                session.execute_raw(statement)
                session.temp_tables.add(statement)

    def stage(self, session: PostgresSession) -> None:
        """Copy the rows to the temporary tables."""
        if self._rows.num_rows:
            session.copy_in(f"pg_temp.{self._rows_table}", self._data)
        if len(self._deletes[0]):
            session.copy_in(f"pg_temp.{self._deletes_table}", _to_numbered_csv(self._deletes))

    def apply(self, session: PostgresSession, watermarks: tuple[int | None, int] | None) -> ChangeSet:
        """Write the rows and return what changed.

        Args:
            session: The session on which the rows were staged.
            watermarks: The watermark before and now, to find the rows that became final.
        """
        for part in self._parts:
            _check_part(session, part)
        if self._parts:
            self._require_unique_parts(session)
        if max(self._count, len(self._deletes[0])) <= _INDEX_LOOKUP_ROWS:
            session.execute_raw("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        none = self._table.schema.empty_table()
        deleted = self._delete(session) if len(self._deletes[0]) else none
        inserted, before, after = self._upsert(session) if self._count else (none, none, none)
        final = none if watermarks is None else self._final_rows(session, *watermarks)
        return ChangeSet(inserted, before, after, deleted, final)

    def finish(self, session: PostgresSession) -> None:
        """Drop everything that was staged for this batch or an earlier one."""
        if self._parts:
            removed = "DELETE FROM hw$staged WHERE query = ? AND batch <= ? RETURNING name"
            for (name,) in session.execute(removed, (self._query, self._batch)).fetchall():
                session.execute_raw(f"DROP TABLE IF EXISTS {TABLE_SCHEMA}.{quote(name)}")

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _source(self) -> str:
        """SQL for the rows of the batch; equal rows of several parts count as one if the commit is `distinct`."""
        if not self._parts:
            return f"pg_temp.{self._rows_table}"
        rows = f"({' UNION ALL '.join(f'SELECT * FROM {_part_table(part)}' for part in self._parts)})"
        columns = ", ".join(f"c{number}" for number in range(len(self._columns)))
        return f"(SELECT min(n) AS n, {columns} FROM {rows} r GROUP BY {columns})" if self._distinct else rows

    def _upsert(self, session: PostgresSession) -> tuple[pa.Table, pa.Table, pa.Table]:
        kinds = [self._columns[number].kind for number in self._values]
        kinds += [slot.kind for slot in self._columns] if self._parts else []
        number, fresh, *rest = from_csv(session.copy_out(self._upsert_sql()), [pa.int64(), pa.bool_(), *kinds])
        if self._parts:  # the rows are only on the server, which returns them beside the previous ones
            rows = from_arrays(self._table, rest[len(self._values) :])
        else:
            order = pc.sort_indices(number)
            fresh, rest = fresh.take(order), [column.take(order) for column in rest]
            rows = self._rows.take(number.take(order))
        changed = pc.invert(fresh)
        after = rows.filter(changed)
        old = [column.filter(changed) for column in rest[: len(self._values)]]
        return rows.filter(fresh), self._rows_before(after, old), after

    def _upsert_sql(self) -> str:
        """Returns one statement that updates, inserts, and returns each new or changed row with its previous values."""
        names = [quote(slot.name) for slot in self._columns]
        old = "".join(f", v.{names[number]} AS o{number}" for number in self._values)
        returned = "".join(f", o{number}" for number in self._values)
        stored = ", ".join(f"v.{names[number]}" for number in self._values)
        new = ", ".join(f"s.c{number}" for number in self._values)
        differs = f"({stored}) IS DISTINCT FROM ({new})" if self._values else "false"
        put = ", ".join(f"{names[number]} = old.c{number}" for number in self._values)
        update = f"UPDATE {self._name} t SET {put} FROM old WHERE t.ctid = old.place AND old.differs"
        columns = ", ".join(f"c{number}" for number in range(len(names)))
        returned += f", {columns}" if self._parts else ""
        # All parts of a statement see the snapshot before it, so `old` has the previous rows. The ctid of a row cannot
        # change meanwhile: the lock of the query excludes every other writer.
        return f"""
            WITH old AS MATERIALIZED (
                SELECT s.*, v.ctid AS place, {differs} AS differs{old}
                FROM {self._source} s LEFT JOIN {self._name} v ON {self._key_condition()}
            ), updated AS ({update if put else "SELECT"}), inserted AS (
                INSERT INTO {self._name} ({", ".join(names)}) SELECT {columns} FROM old WHERE place IS NULL ORDER BY n
            )
            SELECT n, place IS NULL{returned} FROM old WHERE place IS NULL OR differs
        """

    def _require_unique_parts(self, session: PostgresSession) -> None:
        """Check for duplicate keys in the staged parts, in all of them together; workers do not check their parts."""
        keys = ", ".join(f"c{number}" for number in self._keys)
        gone = f"UNION ALL SELECT {keys} FROM pg_temp.{self._deletes_table}"
        query = f"SELECT {keys} FROM (SELECT {keys} FROM {self._source} s {gone}) k"
        found = session.copy_out(f"{query} GROUP BY {keys} HAVING count(*) > 1 LIMIT 1")
        columns = from_csv(found, [self._columns[number].kind for number in self._keys])
        if len(columns[0]):
            pairs = zip(self._keys, columns, strict=True)
            key = {self._columns[number].name: column[0].as_py() for number, column in pairs}
            raise not_unique_error(self._table, key)

    def _key_condition(self) -> str:
        parts = []
        for number, nulls in zip(self._keys, self._null_keys, strict=True):
            there, here = f"v.{quote(self._columns[number].name)}", f"s.c{number}"
            # The index serves only =, so the condition covers nulls only if the batch has some.
            either = f"({there} = {here} OR {there} IS NULL AND {here} IS NULL)"
            parts.append(either if nulls else f"{there} = {here}")
        return " AND ".join(parts)

    def _rows_before(self, after: pa.Table, old: Sequence[pa.Array]) -> pa.Table:
        """Returns the previous rows; the key columns are unchanged."""
        columns = [array for _, array in to_arrays(self._table, after)]
        for number, column in zip(self._values, old, strict=True):
            columns[number] = column
        return from_arrays(self._table, columns)

    def _delete(self, session: PostgresSession) -> pa.Table:
        names = ", ".join(f"v.{quote(slot.name)}" for slot in self._columns)
        gone = f"DELETE FROM {self._name} v USING pg_temp.{self._deletes_table} s WHERE {self._key_condition()}"
        kinds = [pa.int64(), *(slot.kind for slot in self._columns)]
        number, *columns = from_csv(session.copy_out(f"{gone} RETURNING s.n, {names}"), kinds)
        return from_arrays(self._table, [column.take(pc.sort_indices(number)) for column in columns])

    def _final_rows(self, session: PostgresSession, before: int | None, now: int) -> pa.Table:
        """Returns the rows whose window ended after the old watermark and not after the new one."""
        end = quote(f"{self._table.window}.end")
        names = ", ".join(quote(slot.name) for slot in self._columns)
        keys = ", ".join(quote(self._columns[number].name) for number in self._keys)
        since = "" if before is None else f"AND {end} > timestamptz '{timestamp_text(before)}'"
        closed = f"{end} <= timestamptz '{timestamp_text(now)}' {since}"
        query = f"SELECT {names} FROM {self._name} WHERE {closed} ORDER BY {end}, {keys}"
        return from_arrays(self._table, from_csv(session.copy_out(query), [slot.kind for slot in self._columns]))


def _to_numbered_csv(columns: Sequence[pa.Array]) -> memoryview:
    return to_csv([pa.array(range(len(columns[0])), pa.int64()), *columns])


def _require_unique(table: ViewTable, rows: pa.Table, keys: Sequence[pa.Array], deletes: Sequence[pa.Array]) -> None:
    names = [slot.name for slot in storage_columns(table) if slot.view_column in table.key]
    both = pa.Table.from_arrays(
        [pa.concat_arrays([key, other]) for key, other in zip(keys, deletes, strict=True)], names=names
    )
    counts = both.group_by(names, use_threads=False).aggregate([([], "count_all")])
    if counts.num_rows == both.num_rows:
        return
    twice = counts.filter(pc.greater(counts.column("count_all"), 1)).select(names).slice(0, 1).to_pylist()[0]
    same = [index for index, key in enumerate(both.slice(0, rows.num_rows).to_pylist()) if key == twice]
    raise not_unique_error(table, twice, rows.take(same[:2]))
