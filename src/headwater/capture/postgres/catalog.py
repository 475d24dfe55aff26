"""What PostgreSQL's catalog says about captured tables: columns, keys, types, publication; and layouts made of that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headwater.capture.postgres.column_types import PostgresType, arrow_type
from headwater.capture.postgres.connection import Connection
from headwater.capture.postgres.pgoutput import Relation
from headwater.capture.source import SourceTable, TableShape

__all__ = ["Catalog", "CatalogColumn", "CatalogTable", "Layout", "Publication"]

_TABLES: Final = """
    SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
           c.relispartition, greatest(c.reltuples, 0)::bigint, row_security_active(c.oid),
           has_table_privilege(c.oid, 'SELECT'), pg_has_role(c.relowner, 'USAGE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
      AND n.nspname NOT LIKE 'pg\\_toast%%' AND n.nspname NOT LIKE 'pg\\_temp%%'
"""
_ALL: Final = " AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 2, 3"
_NAMED: Final = " AND n.nspname || '.' || c.relname = ANY(%s) ORDER BY 1"
_COLUMNS: Final = """
    SELECT a.attrelid::bigint, a.attname, a.atttypid::bigint, a.atttypmod, a.attnum::int, a.attndims::int,
           format_type(a.atttypid, a.atttypmod), a.attgenerated <> '', a.atthasdef OR a.atthasmissing
    FROM pg_attribute a WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum
"""
_KEYS: Final = """
    SELECT i.indrelid::bigint, i.indisprimary, i.indisreplident, i.indisunique AND i.indimmediate AND i.indpred IS NULL,
           array(SELECT a.attname FROM unnest(i.indkey[:i.indnkeyatts - 1]) WITH ORDINALITY k(number, place)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number ORDER BY place)::text[],
           (SELECT bool_and(a.attnotnull) FROM unnest(i.indkey[:i.indnkeyatts - 1]) k(number)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number), i.indexprs IS NULL
    FROM pg_index i WHERE i.indrelid = ANY(%s::oid[]) AND i.indisvalid ORDER BY i.indexrelid
"""
_TYPES: Final = """
    SELECT oid::bigint, CASE typtype WHEN 'd' THEN typbasetype ELSE 0 END::bigint, typtypmod,
           CASE WHEN typcategory = 'A' AND typtype = 'b' THEN typelem ELSE 0 END::bigint, typdelim::text
    FROM pg_type WHERE oid = %s::oid
"""
_PUBLICATION: Final = """
    SELECT p.oid::bigint, puballtables, pubviaroot, pubinsert AND pubupdate AND pubdelete AND pubtruncate,
           pg_has_role(pubowner, 'USAGE'), coalesce(to_jsonb(p) ->> 'pubgencols', 'n') = 's'
    FROM pg_publication p WHERE pubname = %s
"""
# Not pg_publication_tables: it waits for a table that somebody has locked.
_MEMBERS: Final = """
    SELECT r.prrelid::bigint, r.oid::bigint, CASE WHEN r.prattrs IS NOT NULL THEN
             array(SELECT a.attname FROM unnest(r.prattrs::int2[]) n(number)
                   JOIN pg_attribute a ON a.attrelid = r.prrelid AND a.attnum = n.number)::text[] END,
           r.prqual IS NOT NULL
    FROM pg_publication_rel r WHERE r.prpubid = %(oid)s::oid
    UNION ALL
    SELECT c.oid::bigint, 0, NULL, false FROM pg_class c
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
      AND NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = %(oid)s::oid AND r.prrelid = c.oid)
      AND (%(all)s OR c.relnamespace IN (SELECT pnnspid FROM pg_publication_namespace WHERE pnpubid = %(oid)s::oid))
"""


@dataclass(frozen=True)
class CatalogColumn:
    """A column in the catalog."""

    name: str
    type_oid: int
    modifier: int
    number: int
    dimensions: int
    type_text: str
    generated: bool
    default: bool


@dataclass(frozen=True)
class CatalogTable:
    """A table in the catalog.

    Attributes:
        oid: Its number.
        schema: Its schema.
        relation: Its name without the schema.
        kind: r: a table, p: a partitioned table; v, m and f: views and foreign tables.
        persistence: p: written to the log; u and t are not.
        identity: Its replica identity: d, i, f or n.
        partition: Whether it is a partition.
        estimate: How many rows the statistics say.
        row_security: Whether policies hide rows from the user.
        readable: Whether the user may read it.
        owned: Whether the user is its owner.
        columns: Its columns.
        primary_key: The columns of its primary key.
        identity_key: The columns that updates and deletes send of the old row, unless it is the whole row.
        unique_keys: Columns of unique indexes without NULL.
    """

    oid: int
    schema: str
    relation: str
    kind: str
    persistence: str
    identity: str
    partition: bool
    estimate: int
    row_security: bool
    readable: bool
    owned: bool
    columns: tuple[CatalogColumn, ...] = ()
    primary_key: tuple[str, ...] = ()
    identity_key: tuple[str, ...] = ()
    unique_keys: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        """Its name with the schema."""
        return f"{self.schema}.{self.relation}"

    def key_of(self, table: SourceTable) -> tuple[str, ...]:
        """Returns the key of the captured rows: the one given, the primary key, or that of the replica identity."""
        return table.key or self.primary_key or self.identity_key

    @property
    def partitioned(self) -> bool:
        """Whether its rows are in partitions."""
        return self.kind == "p"


@dataclass(frozen=True)
class Publication:
    """A publication in the catalog.

    Attributes:
        oid: Its number.
        all_tables: Whether it has all tables of the database.
        via_root: Whether changes of partitions have the name of the partitioned table.
        complete: Whether it publishes inserts, updates, deletes and truncates.
        owned: Whether the user is its owner.
        generated: Whether it has generated columns.
        members: For each table its entry in the catalog, its published columns (None: all), and whether rows are
            filtered.
    """

    oid: int
    all_tables: bool
    via_root: bool
    complete: bool
    owned: bool
    generated: bool
    members: dict[int, tuple[int, tuple[str, ...] | None, bool]]

    def columns_of(self, table: CatalogTable) -> tuple[str, ...]:
        """Returns the columns of a table that it publishes."""
        _, names, _ = self.members.get(table.oid, (0, None, False))
        return tuple(
            one.name
            for one in table.columns
            if (one.name in names if names is not None else self.generated or not one.generated)
        )


@dataclass(frozen=True)
class Layout:
    """The columns of a table as the stream sends them, and the shape of the rows that are captured.

    Attributes:
        names: All columns that the server sends.
        wanted: The positions of the captured ones.
        shape: Their Arrow types.
        fingerprint: Differs when anything of that differs.
        types: Type and modifier of each captured column.
    """

    names: tuple[str, ...]
    wanted: tuple[int, ...]
    shape: TableShape
    fingerprint: str
    types: dict[str, tuple[int, int]]

    @property
    def key_positions(self) -> tuple[int, ...]:
        """The positions of the key among the columns that the server sends."""
        return tuple(self.names.index(name) for name in self.shape.key)

    def rewritten_since(self, before: Layout | None, found: CatalogTable | None) -> str:
        """Returns why stored rows may differ from the table's although no event said so; "" if they do not.

        Args:
            before: The layout that the stored rows have; None if it is not known.
            found: What the catalog says about the table now.
        """
        if before is None:
            return "its columns changed while it was not read"
        known = {one.name: one for one in found.columns} if found else {}
        added = [name for name in self.types if name not in before.types]
        dropped = [name for name in before.types if name not in self.types]
        # A name that appears while another vanishes may be a renamed column, whose values are under the old name.
        filled = [name for name in added if dropped or name not in known or known[name].default]
        if filled:
            return f"added or renamed columns whose rows have values: {', '.join(filled)}"
        old, new = before.shape.schema, self.shape.schema
        rewritten = [
            name
            for name, kind in self.types.items()
            if name in before.types
            and (before.types[name][0] != kind[0] or old.field(name).type != new.field(name).type)
        ]
        return f"columns with another type: {', '.join(rewritten)}" if rewritten else ""


class Catalog:
    """Reads the catalog over one connection.

    Args:
        connection: A connection for queries; not in a transaction.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._types: dict[int, PostgresType | None] = {}

    def tables(self, names: Sequence[str] | None) -> dict[str, CatalogTable]:
        """Returns the tables of these names, or all that can be captured."""
        if names is None:
            rows = self._connection.execute(_TABLES + _ALL).fetchall()
        else:
            rows = self._connection.execute(_TABLES + _NAMED, [list(names)]).fetchall()
        bare = {row[0]: CatalogTable(*row) for row in rows}
        return {one.name: one for one in self._complete(bare)}

    def table(self, name: str) -> CatalogTable | None:
        """Returns the table of this name; None if there is none."""
        return self.tables([name]).get(name)

    def publication(self, name: str) -> Publication | None:
        """Returns the publication of this name; None if there is none."""
        row = self._connection.execute(_PUBLICATION, [name]).fetchone()
        if row is None:
            return None
        oid, all_tables, via_root, complete, owned, generated = row
        members = self._connection.execute(_MEMBERS, {"oid": oid, "all": all_tables}).fetchall()
        entries = {one: (entry, tuple(names) if names else None, bool(some)) for one, entry, names, some in members}
        return Publication(oid, all_tables, via_root, complete, owned, generated, entries)

    def layout(self, table: SourceTable, found: CatalogTable, publication: Publication | None, version: int) -> Layout:
        """Returns the layout of a table as the catalog has it now.

        Args:
            table: The captured table.
            found: What the catalog says about it.
            publication: What publishes it; None: all columns that are not generated.
            version: The version of the shape.
        """
        names = publication.columns_of(found) if publication else None
        columns = [
            (one.name, one.type_oid, one.modifier)
            for one in found.columns
            if (one.name in names if names is not None else not one.generated)
        ]
        return self._layout(table, columns, found.key_of(table), found, version)

    def layout_of_relation(
        self, table: SourceTable, relation: Relation, found: CatalogTable | None, version: int
    ) -> Layout:
        """Returns the layout of a table as the stream announces it, which may be older than the catalog."""
        columns = [(one.name, one.type_oid, one.modifier) for one in relation.columns]
        names = {one.name for one in relation.columns}
        key = found.key_of(table) if found else table.key
        if not key or not set(key) <= names:
            marked = tuple(one.name for one in relation.columns if one.identity)
            key = table.key or (marked if relation.identity in "di" else ())
        return self._layout(table, columns, key, found, version)

    def type_text(self, oid: int, modifier: int) -> str:
        """Returns a type as PostgreSQL writes it."""
        row = self._connection.execute("SELECT format_type(%s::oid, %s)", [oid, modifier]).fetchone()
        return str(row[0]) if row else str(oid)

    def _layout(
        self,
        table: SourceTable,
        columns: Sequence[tuple[str, int, int]],
        key: tuple[str, ...],
        found: CatalogTable | None,
        version: int,
    ) -> Layout:
        dimensions = {one.name: one.dimensions for one in found.columns} if found else {}
        texts = {(one.type_oid, one.modifier): one.type_text for one in found.columns} if found else {}
        wanted = [
            place
            for place, (name, _, _) in enumerate(columns)
            if not table.columns or name in table.columns or name in key
        ]
        fields, types, described = [], {}, {}
        for place in wanted:
            name, oid, modifier = columns[place]
            kind = arrow_type(oid, modifier, dimensions.get(name, 0), self._look_up)
            fields.append(pa.field(name, kind, nullable=name not in key))
            types[name] = (oid, modifier)
            described[name] = texts.get((oid, modifier)) or self.type_text(oid, modifier)
        shape = TableShape(table.table, version, pa.schema(fields), key, described)
        content = [[list(one) for one in columns], wanted, list(key), [str(field.type) for field in fields]]
        fingerprint = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
        return Layout(tuple(name for name, _, _ in columns), tuple(wanted), shape, fingerprint, types)

    def _complete(self, tables: dict[int, CatalogTable]) -> Iterable[CatalogTable]:
        oids = list(tables)
        columns: dict[int, list[CatalogColumn]] = {oid: [] for oid in oids}
        for oid, *values in self._connection.execute(_COLUMNS, [oids]).fetchall():
            columns[oid].append(CatalogColumn(*values))
        keys: dict[int, list[tuple[Any, ...]]] = {oid: [] for oid in oids}
        for oid, *values in self._connection.execute(_KEYS, [oids]).fetchall():
            keys[oid].append(tuple(values))
        for oid, table in tables.items():
            primary = next((tuple(names) for is_primary, _, _, names, _, _ in keys[oid] if is_primary), ())
            by_index = next((tuple(names) for _, chosen, _, names, _, _ in keys[oid] if chosen), ())
            unique = tuple(tuple(names) for _, _, sure, names, filled, plain in keys[oid] if sure and filled and plain)
            identity = {"d": primary, "i": by_index}.get(table.identity, ())
            yield CatalogTable(
                **{
                    **table.__dict__,
                    "columns": tuple(columns[oid]),
                    "primary_key": primary,
                    "identity_key": identity,
                    "unique_keys": unique,
                }
            )

    def _look_up(self, oid: int) -> PostgresType | None:
        if oid not in self._types:
            row = self._connection.execute(_TYPES, [oid]).fetchone()
            self._types[oid] = PostgresType(*row) if row else None
        return self._types[oid]
