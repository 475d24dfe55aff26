"""Compiles a relation to dataflow nodes: adjacent stateless steps become one SQL statement, others become operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from sqlglot.expressions import Expr

from headwater.engine.state.encoding import require_keys
from headwater.engine.state.state import WEIGHT, Operator
from headwater.engine.tables.evaluation import cast_columns, evaluate, plain_schema, result_schema, result_type
from headwater.engine.tables.expressions import scalar_writer
from headwater.engine.tables.group import ZSetGroup
from headwater.engine.tables.integrate import Integrate, ZSetDistinct
from headwater.engine.tables.join import ZSetJoin
from headwater.engine.tables.scalar_functions import ScalarWriter, type_family
from headwater.engine.tables.top import ZSetTop
from headwater.pipelines.tables import relation as asked_for
from headwater.pipelines.tables.relation import Relation
from headwater.pipelines.tables.sql_nodes import QueryRefusal
from headwater.sql.identifiers import quote

__all__ = ["Compiler", "KeyedTable", "Statement"]


class KeyedTable(Protocol):
    """A table that can be read; see `TableInput`."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row."""


@dataclass(frozen=True)
class Statement:
    """A stateless step: one SQL statement.

    Args:
        sql: A query over tables `i0`, `i1` and so on.
        schema: The columns of its result, the weight among them.
        columns: If it does no more than choose and rename columns of one input: their names there.

    Example:
        >>> statement = Statement("select x + 1 as y from i0", pa.schema([("y", pa.int64())]))
        >>> statement.run([pa.table({"x": [1]})]).to_pylist()
        [{'y': 2}]
    """

    sql: str
    schema: pa.Schema
    columns: tuple[str, ...] | None = None

    def run(self, given: Sequence[pa.Table]) -> pa.Table:
        """Run the statement."""
        if self.columns is not None:
            chosen = [given[0].column(name) for name in self.columns]
            return pa.Table.from_arrays(chosen, schema=self.schema)
        if not any(map(len, given)):
            return self.schema.empty_table()
        found = evaluate(self.sql, {f"i{number}": rows for number, rows in enumerate(given)})
        return cast_columns(found, self.schema)


@dataclass(frozen=True)
class _RelationSql:
    """The rows of a relation as SQL over results of nodes, named n0, n1 and so on."""

    sql: str
    inputs: tuple[int, ...]
    schema: pa.Schema
    columns: tuple[str, ...] | None = None


class Compiler:
    """Compiles a relation to nodes.

    Args:
        relation: The requested result.
        tables: The tables that it reads.
        query: For error messages.

    Example:
        >>> from headwater.engine.tables.dataflow import TableInput
        >>> posts = TableInput(pa.schema([("id", pa.int64())]), ("id",))
        >>> building = Compiler(asked_for.Scan("posts", ("id",)), {"posts": posts}, QueryRefusal("view", None))
        >>> building.tables, building.descriptions, [inputs for _, inputs in building.nodes]
        (('posts',), ['rows of posts by id'], [(0,)])
    """

    def __init__(self, relation: Relation, tables: Mapping[str, KeyedTable], query: QueryRefusal) -> None:
        self._query = query
        self._compiled: dict[Relation, _RelationSql] = {}
        used = _scan_columns(relation)
        self.tables = tuple(used)
        self.nodes: list[tuple[Statement | Operator, tuple[int, ...]]] = []
        self.descriptions: list[str] = []
        self._scans: dict[str, int] = {}
        for number, (name, columns) in enumerate(used.items()):
            self._scans[name] = self._add_table(number, name, columns, tables[name])
        last = self._compile(relation)
        self._node_for(last)
        self.schema = pa.schema([field for field in last.schema if field.name != WEIGHT])

    def _add_table(self, number: int, name: str, columns: Sequence[str], table: KeyedTable) -> int:
        rows = pa.schema([table.schema.field(each) for each in columns])
        key = pa.schema([table.schema.field(each) for each in table.key])
        self._require_keys(plain_schema(key), f"the key of {name}")
        return self._add_node(Integrate(name, rows, key), (number,), f"rows of {name} by {', '.join(table.key)}")

    def _add_node(self, work: Statement | Operator, inputs: tuple[int, ...], description: str | None = None) -> int:
        self.nodes.append((work, inputs))
        if description:
            self.descriptions.append(description)
        return len(self.tables) + len(self.nodes) - 1

    def _node_for(self, rows: _RelationSql) -> int:
        """Returns the number of the node that makes these rows."""
        plain = rows.columns is not None
        if plain and rows.columns == tuple(rows.schema.names) and self._schema_of(rows.inputs[0]) == rows.schema:
            return rows.inputs[0]
        sql = rows.sql
        for place, number in enumerate(rows.inputs):
            sql = sql.replace(f'"\x01{number}\x01"', f"i{place}")
        statement = Statement(sql, rows.schema, rows.columns)
        known = [number for number, node in enumerate(self.nodes) if node == (statement, rows.inputs)]
        return len(self.tables) + known[0] if known else self._add_node(statement, rows.inputs)

    def _schema_of(self, number: int) -> pa.Schema:
        return self.nodes[number - len(self.tables)][0].schema

    def _compile(self, relation: Relation) -> _RelationSql:
        """Compile a relation; equal relations share their result."""
        if relation not in self._compiled:
            makers = {
                asked_for.Scan: self._scan, asked_for.Where: self._where, asked_for.Project: self._project,
                asked_for.Union: self._union, asked_for.Join: self._join, asked_for.GroupBy: self._group,
                asked_for.Top: self._top, asked_for.Distinct: self._distinct,
            }  # fmt: skip
            self._compiled[relation] = makers[type(relation)](relation)  # type: ignore[operator]
        return self._compiled[relation]

    def _select_from(self, number: int, names: Sequence[str] | None = None) -> _RelationSql:
        schema = self._schema_of(number)
        columns = (*(names if names is not None else schema.names[:-1]), WEIGHT)
        chosen = ", ".join(map(quote, columns))
        fields = pa.schema([schema.field(name) for name in columns])
        return _RelationSql(f'select {chosen} from "\x01{number}\x01"', (number,), fields, columns)

    def _scan(self, scan: asked_for.Scan) -> _RelationSql:
        return self._select_from(self._scans[scan.table], scan.columns)

    def _where(self, where: asked_for.Where) -> _RelationSql:
        rows = self._compile(where.input)
        scalar = scalar_writer(rows.schema, self._query)
        if scalar.family(where.condition) not in ("boolean", "null"):
            self._query.refuse(where.condition, "it is not a condition")
        sql = f"select * from ({rows.sql}) where {scalar.to_sql(where.condition)}"
        return _RelationSql(sql, rows.inputs, rows.schema)

    def _project(self, project: asked_for.Project) -> _RelationSql:
        rows = self._compile(project.input)
        scalar = scalar_writer(rows.schema, self._query)
        fields = [pa.field(name, scalar.value_type(tree)) for name, tree in project.items]
        schema = pa.schema([*fields, pa.field(WEIGHT, pa.int64())])
        items = [f"{_projection_sql(scalar, tree)} as {quote(name)}" for name, tree in project.items]
        sql = f"select {', '.join([*items, quote(WEIGHT)])} from ({rows.sql})"
        columns = None
        if rows.columns is not None and all(type(tree).__name__ == "Column" for _, tree in project.items):
            below = dict(zip(rows.schema.names, rows.columns, strict=True))
            columns = (*(below[tree.name] for _, tree in project.items), WEIGHT)
        return _RelationSql(sql, rows.inputs, schema, columns)

    def _union(self, union: asked_for.Union) -> _RelationSql:
        parts = [self._compile(each) for each in union.inputs]
        for column, kinds in zip(
            union.columns, zip(*(part.schema.types[:-1] for part in parts), strict=True), strict=True
        ):
            if len({type_family(kind) for kind in kinds} - {"null"}) > 1:
                self._query.refuse(column, f"UNION of {' and '.join(map(str, kinds))}", fix="cast(… as …)")
        sql = " union all ".join(f"select * from ({part.sql})" for part in parts)
        inputs = tuple(dict.fromkeys(number for part in parts for number in part.inputs))
        names = {f"\x01{number}\x01": self._schema_of(number) for number in inputs}
        found = result_schema(sql, names)
        schema = pa.schema(
            [pa.field(name, field.type) for name, field in zip((*union.columns, WEIGHT), found, strict=True)]
        )
        return _RelationSql(sql, inputs, schema)

    def _join(self, join: asked_for.Join) -> _RelationSql:
        sides = [self._compile(join.left), self._compile(join.right)]
        left, right = (
            _columns_to_store(side.schema, join.columns, key) for side, key in zip(sides, join.on[0], strict=True)
        )
        on: list[tuple[str, str]] = []
        for names in join.on:
            sides, keys = self._align_key_types(sides, names)
            on.append(keys)
        operator = ZSetJoin(join.how, left, right, (tuple(key for key, _ in on), tuple(key for _, key in on)))
        by = ", ".join(dict.fromkeys(self._column_text(join.left, name) for name, _ in join.on))
        number = self._add_node(
            operator, tuple(self._node_for(side) for side in sides), f"{_JOIN_NAMES[join.how]} by {by}"
        )
        return self._select_from(number, join.columns)

    def _align_key_types(
        self, sides: list[_RelationSql], names: tuple[str, str]
    ) -> tuple[list[_RelationSql], tuple[str, str]]:
        """Cast key columns of both sides to one type, so that equal values have equal bytes."""
        kinds = [side.schema.field(name).type for side, name in zip(sides, names, strict=True)]
        part = " = ".join(names)
        if len({type_family(kind) for kind in kinds} - {"null"}) > 1:
            self._query.refuse(part, f"it compares {kinds[0]} with {kinds[1]}", fix="cast(… as …)")
        self._require_keys(pa.schema(list(zip(("left", "right"), kinds, strict=True))), part)
        if kinds[0] == kinds[1]:
            return sides, names
        common = result_type("select coalesce(a, b) from t", {"t": pa.schema([("a", kinds[0]), ("b", kinds[1])])})
        return [_add_cast(side, name, common) for side, name in zip(sides, names, strict=True)], (
            f"key.{names[0]}",
            f"key.{names[1]}",
        )

    def _group(self, group: asked_for.GroupBy) -> _RelationSql:
        rows = self._compile(group.input)
        schema = pa.schema([field for field in rows.schema if field.name != WEIGHT])
        kept = {each.column for each in group.aggregates if each.kind in ("min", "max", "distinct")}
        for name in (*group.keys, *kept):
            if name is not None:
                self._require_keys(pa.schema([schema.field(name)]), self._column_text(group.input, name))
        operator = ZSetGroup(schema, group.keys, group.aggregates)
        try:
            operator.schema  # noqa: B018 - types that cannot be added up show here
        except TypeError as error:
            self._query.refuse("sum or avg", str(error))
        by = ", ".join(self._column_text(group.input, name) for name in group.keys)
        number = self._add_node(operator, (self._node_for(rows),), f"groups by {by}" if by else "one group of all rows")
        return self._select_from(number)

    def _top(self, top: asked_for.Top) -> _RelationSql:
        rows = self._compile(top.input)
        schema = pa.schema([field for field in rows.schema if field.name != WEIGHT])
        for name in (*top.per, *(by.column for by in top.by)):
            self._require_keys(pa.schema([schema.field(name)]), self._column_text(top.input, name))
        operator = ZSetTop(schema, top.per, top.by, top.count, top.rank)
        per = ", ".join(self._column_text(top.input, name) for name in top.per)
        description = f"rows in order, for the first {top.count}" + (f" per {per}" if per else "")
        return self._select_from(self._add_node(operator, (self._node_for(rows),), description))

    def _distinct(self, distinct: asked_for.Distinct) -> _RelationSql:
        rows = self._compile(distinct.input)
        schema = pa.schema([field for field in rows.schema if field.name != WEIGHT])
        self._require_keys(schema, "distinct")
        number = self._add_node(ZSetDistinct(schema), (self._node_for(rows),), "distinct rows")
        return self._select_from(number)

    def _column_text(self, below: Relation, name: str) -> str:
        """Returns a key column as the user wrote it."""
        items = dict(below.items) if isinstance(below, asked_for.Project) else {}
        if name not in items:
            return name.rsplit(".", 1)[-1]
        return re.sub(r"`(?:[^`]*\.)?([^`.]+)`", r"\1", items[name].sql("spark"))

    def _require_keys(self, schema: pa.Schema, part: str) -> None:
        try:
            require_keys(schema)
        except TypeError as error:
            self._query.refuse(part, str(error))


_JOIN_NAMES = {
    "inner": "join", "left": "left join", "right": "right join", "full": "full join", "semi": "semi join",
    "anti": "anti join",
}  # fmt: skip


def _projection_sql(scalar: ScalarWriter, tree: Expr) -> str:
    """Returns the SQL of a projected item; a computed -0.0 becomes 0.0, as in tables."""
    computed = type(tree).__name__ != "Column" and pa.types.is_floating(scalar.value_type(tree))
    return f"({scalar.to_sql(tree)} + cast(0 as double))" if computed else scalar.to_sql(tree)


def _columns_to_store(schema: pa.Schema, used: Sequence[str], key: str) -> pa.Schema:
    """Returns the columns of one side of a join that are stored: a key column, if no other is used."""
    found = [field for field in schema if field.name in used]
    return pa.schema(found or [schema.field(key)])


def _add_cast(rows: _RelationSql, name: str, kind: str) -> _RelationSql:
    """Returns the rows with one more column: another column, cast to a type."""
    cast = f"cast({quote(name)} as {kind})"
    sql = f"select *, {cast} as {quote(f'key.{name}')} from ({rows.sql})"
    found = result_schema(f"select {cast} as x from t", {"t": rows.schema}).field("x").type
    return _RelationSql(sql, rows.inputs, rows.schema.append(pa.field(f"key.{name}", found)))


def _scan_columns(relation: Relation) -> dict[str, tuple[str, ...]]:
    """Returns the columns that a relation reads of each table, in order of first use."""
    found: dict[str, dict[str, None]] = {}
    for scan in _scans(relation):
        found.setdefault(scan.table, {}).update(dict.fromkeys(scan.columns))
    return {name: tuple(columns) for name, columns in found.items()}


def _scans(relation: Relation) -> list[asked_for.Scan]:
    if isinstance(relation, asked_for.Scan):
        return [relation]
    if isinstance(relation, asked_for.Join):
        return [*_scans(relation.left), *_scans(relation.right)]
    if isinstance(relation, asked_for.Union):
        return [scan for each in relation.inputs for scan in _scans(each)]
    return _scans(relation.input)
