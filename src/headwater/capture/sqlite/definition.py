"""What a captured SQLite table looks like: columns, key, and the constraints by which a REPLACE removes rows."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headwater.capture.source import SourceTable, TableShape
from headwater.errors import NotCapturableError, near_names
from headwater.sql.identifiers import quote

__all__ = ["PREFIX", "Column", "TableDefinition", "arrow_type", "list_tables", "read_definition"]

PREFIX: Final = "_hw:"  # of everything that capture creates in a file
_DECIMAL: Final = re.compile(r"(?:DECIMAL|NUMERIC|DEC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_MAX_COLUMNS: Final = 900  # both rows of an update stand in one row, and SQLite allows 2,000 columns


@dataclass(frozen=True)
class Column:
    """A column: its name and its declared type, in capitals."""

    name: str
    declared: str = ""


@dataclass(frozen=True)
class TableDefinition:
    """A table as triggers and readers need it.

    Attributes:
        name: The table.
        columns: The captured columns, in the order of the table.
        key: The columns that identify a row.
        conflicts: For each unique constraint an SQL condition: a row `hw_row` that a row `NEW` would replace.
        changed: The SQL condition that an update changes a column of a unique constraint.
        order: The collation of each key column in the index of the key; "" for the rowid, which has none.
        nullable_added: Names of columns that are NULL in old rows when they are added.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
    changed: str = "0"
    order: tuple[str, ...] = ()
    nullable_added: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    def ordered(self, columns: Sequence[str]) -> str:
        """Returns columns with the values of the key as SQL, in the collations of the key's index.

        Example:
            >>> TableDefinition("t", (), ("a", "b"), order=("NOCASE", "")).ordered(["c0", "c1"])
            'c0 COLLATE "NOCASE", c1'
        """
        pairs = zip(columns, self.order, strict=True)
        return ", ".join(f"{column} COLLATE {quote(one)}" if one else column for column, one in pairs)

    def fingerprint(self) -> str:
        """Returns a text that differs between tables whose rows have different columns or keys."""
        facts = [self.name, [(one.name, one.declared) for one in self.columns], self.key]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def shape(self, version: int) -> TableShape:
        """Returns the shape for the journal."""
        fields = [pa.field(one.name, arrow_type(one.declared), one.name not in self.key) for one in self.columns]
        types = {one.name: one.declared for one in self.columns}
        return TableShape(self.name, version, pa.schema(fields), self.key, types)

    def to_json(self) -> str:
        """Returns columns and key as JSON, for the shadow schema."""
        return json.dumps({"columns": [[one.name, one.declared] for one in self.columns], "key": self.key})

    @classmethod
    def from_json(cls, name: str, text: str) -> TableDefinition:
        """Returns the definition of `to_json`, without constraints."""
        parts = json.loads(text)
        return cls(name, tuple(Column(*one) for one in parts["columns"]), tuple(parts["key"]))


def arrow_type(declared: str) -> pa.DataType:
    """Returns the Arrow type for a declared type, by SQLite's rules of affinity.

    BOOLEAN is a bool and DECIMAL(p,s) a decimal. Dates, times, JSON and numbers without precision are text, as SQLite
    prints it: it has no such types, and stores what the program gives.

    Example:
        >>> [str(arrow_type(name)) for name in ("INTEGER", "VARCHAR(20)", "BLOB", "DOUBLE", "DECIMAL(10,2)", "DATE")]
        ['int64', 'string', 'binary', 'double', 'decimal128(10, 2)', 'string']
    """
    if "INT" in declared:
        return pa.int64()
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return pa.string()
    if "BLOB" in declared:
        return pa.binary()
    if any(word in declared for word in ("REAL", "FLOA", "DOUB")):
        return pa.float64()
    if declared in {"BOOLEAN", "BOOL"}:
        return pa.bool_()
    match = _DECIMAL.fullmatch(declared)
    if match and 0 < int(match[1]) <= 38 and int(match[2] or 0) <= int(match[1]):
        return pa.decimal128(int(match[1]), int(match[2] or 0))
    return pa.string()


def list_tables(connection: sqlite3.Connection) -> list[str]:
    """Returns the names of the tables of a database, without SQLite's and ours."""
    found = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    return [name for (name,) in found if not name.startswith(("sqlite_", PREFIX))]


def read_definition(connection: sqlite3.Connection, wanted: SourceTable) -> TableDefinition:
    """Returns what a table looks like now.

    Raises:
        NotCapturableError: There is no such table, it cannot have triggers, or nothing identifies its rows.
    """
    name = wanted.table
    _check_exists(connection, name)
    listed = connection.execute(f"PRAGMA table_xinfo({quote(name)})").fetchall()
    names = [one[1] for one in listed]  # with generated columns: SQLite gives triggers their values like any other
    constraints = list(_read_unique(connection, name))
    primary = tuple(one[1] for one in sorted((one for one in listed if one[5]), key=lambda one: one[5]))
    key = _choose_key(wanted, primary, constraints, {one[1] for one in listed if one[3]} | set(primary))
    kept = {*wanted.columns, *key} if wanted.columns else {*names}
    columns = tuple(Column(one[1], (one[2] or "").upper()) for one in listed if one[1] in kept)
    _check_columns(wanted, names, columns)
    conflicts = [one.condition(names) for one in constraints]
    changing = [quote(one) for one in _unique_columns(constraints, names)]
    rowid = _rowid_name(connection, name, names)
    if rowid:
        conflicts.append(f"hw_row.{rowid} = NEW.{rowid}")
        changing.append(rowid)
    return TableDefinition(
        name,
        columns,
        key,
        conflicts=tuple(conflicts),
        changed=" OR ".join(f"NEW.{one} IS NOT OLD.{one}" for one in changing),
        order=_key_order(key, constraints),
        nullable_added=frozenset(one[1] for one in listed if one[4] is None and one[6] == 0),
    )


def _check_exists(connection: sqlite3.Connection, name: str) -> None:
    row = connection.execute(
        "SELECT type, sql FROM sqlite_schema WHERE name = ? AND type IN ('table', 'view')", (name,)
    )
    found = row.fetchone()
    tables = list_tables(connection)
    if found is None:
        near = near_names(name, tables) or tables[:10]
        what = f"there is no table {name!r} in the database"
        raise NotCapturableError(what, detail=f"there are: {', '.join(near) or 'no tables'}", table=name)
    if found[0] == "view" or (found[1] or "").upper().lstrip().startswith("CREATE VIRTUAL"):
        kind = "view" if found[0] == "view" else "virtual table"
        raise NotCapturableError(f"{name!r} is a {kind}, and SQLite has no triggers on its rows", table=name)


@dataclass(frozen=True)
class _Unique:
    """A unique constraint or index."""

    parts: tuple[tuple[str | None, str], ...]  # the column, or None for an expression; the collation
    sql: str  # of the index; "" for a constraint of the table
    partial: bool

    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.parts if name is not None)

    def is_plain(self) -> bool:
        return not self.partial and all(name is not None for name, _ in self.parts)

    def condition(self, names: Sequence[str]) -> str:
        """Returns the condition that the row `hw_row` stands in the way of `NEW`."""
        terms, predicate = _index_terms(self.sql) if self.sql else ((), "")
        row = ", ".join(f"NEW.{quote(one)} AS {quote(one)}" for one in names)
        found = []
        for place, (name, collation) in enumerate(self.parts):
            if name is not None:
                found.append(f"hw_row.{quote(name)} = NEW.{quote(name)} COLLATE {quote(collation)}")
            else:
                found.append(
                    f"({terms[place]}) = (SELECT ({terms[place]}) FROM (SELECT {row})) COLLATE {quote(collation)}"
                )
        return " AND ".join([*found, *([f"({predicate})"] if predicate else [])])


def _read_unique(connection: sqlite3.Connection, name: str) -> Iterator[_Unique]:
    for _, index, unique, _, partial in connection.execute(f"PRAGMA index_list({quote(name)})").fetchall():
        if not unique:
            continue
        listed = connection.execute(f"PRAGMA index_xinfo({quote(index)})").fetchall()
        parts = tuple((one[2] if one[1] >= 0 else None, one[4]) for one in listed if one[5])
        found = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?", (index,)
        ).fetchone()
        yield _Unique(parts, (found[0] or "") if found else "", bool(partial))


def _index_terms(sql: str) -> tuple[tuple[str, ...], str]:
    """Returns the indexed terms and the WHERE condition of CREATE INDEX.

    Example:
        >>> _index_terms("CREATE UNIQUE INDEX i ON t (lower(a), b DESC) WHERE c > ')'")
        (('lower(a)', 'b'), "c > ')'")
    """
    tokens = re.findall(
        r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|\[[^]]*\]|--[^\n]*|/\*.*?\*/|.", sql, re.DOTALL
    )
    depth, terms, rest = 0, [""], ""
    for token in tokens:
        depth -= token == ")"
        if rest or (token == ")" and depth == 0):
            rest += token
        elif token == "," and depth == 1:
            terms.append("")
        elif depth:
            terms[-1] += token
        depth += token == "("
    predicate = re.sub(r"(?is)^\s*\)\s*(?:WHERE\b)?", "", rest).strip()
    return tuple(re.sub(r"(?i)\s+(?:ASC|DESC)\s*$", "", term).strip() for term in terms), predicate


def _unique_columns(constraints: Sequence[_Unique], names: Sequence[str]) -> list[str]:
    """Returns the columns whose change may make a row stand in another's way; all, if an index has expressions."""
    if any(not one.is_plain() for one in constraints):
        return list(names)
    return list(dict.fromkeys(name for one in constraints for name in one.columns()))


def _rowid_name(connection: sqlite3.Connection, name: str, names: Sequence[str]) -> str | None:
    """Returns a name of the rowid that no column has taken; None for a table WITHOUT ROWID."""
    if any(one[1] == name and one[4] for one in connection.execute(f"PRAGMA table_list({quote(name)})")):
        return None
    taken = {one.lower() for one in names}
    return next((one for one in ("rowid", "_rowid_", "oid") if one not in taken), None)


def _key_order(key: tuple[str, ...], constraints: Sequence[_Unique]) -> tuple[str, ...]:
    for one in constraints:
        if one.is_plain() and set(one.columns()) == set(key):
            collations = {name: collation for name, collation in one.parts if name is not None}
            return tuple(collations[name] for name in key)
    return ("",) * len(key)


def _choose_key(
    wanted: SourceTable, primary: tuple[str, ...], constraints: Sequence[_Unique], not_null: set[str]
) -> tuple[str, ...]:
    unique = [one.columns() for one in constraints if one.is_plain()]
    candidates = [primary] if primary else []
    candidates += [one for one in unique if set(one) <= not_null]
    if wanted.key:
        if any(set(wanted.key) == set(one) for one in [*candidates, *unique]):
            return tuple(wanted.key)
        what = f"{', '.join(wanted.key)} does not identify a row of {wanted.table!r}: no unique index has these columns"
        columns = ", ".join(map(quote, wanted.key))
        fix = f"CREATE UNIQUE INDEX {quote(wanted.table + '_key')} ON {quote(wanted.table)} ({columns})"
        raise NotCapturableError(what, fix=fix, table=wanted.table)
    if candidates:
        return candidates[0]
    raise NotCapturableError(
        f"nothing identifies a row of {wanted.table!r}: it has no primary key and no unique index on NOT NULL columns",
        detail="a rowid is no key: VACUUM gives rows other ones",
        fix=f"ALTER TABLE {quote(wanted.table)} RENAME TO old; then create it with a primary key and copy the rows",
        table=wanted.table,
    )


def _check_columns(wanted: SourceTable, names: Sequence[str], columns: Sequence[Column]) -> None:
    for name in wanted.columns:
        if name not in names:
            near = near_names(name, names) or names
            what = f"table {wanted.table!r} has no column {name!r}"
            raise NotCapturableError(what, detail=f"it has: {', '.join(near)}", table=wanted.table)
    if len(columns) > _MAX_COLUMNS:
        what = f"table {wanted.table!r} has {len(columns)} columns; capture takes {_MAX_COLUMNS}"
        raise NotCapturableError(what, detail="name those you need", table=wanted.table)
