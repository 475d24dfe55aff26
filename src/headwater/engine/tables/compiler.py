"""Compiles a relation to dataflow nodes: adjacent stateless steps become one SQL statement, others become operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot.expressions import Column

from headwater.engine.state.encoding import require_keys
from headwater.engine.state.state import WEIGHT, StatefulStep
from headwater.engine.tables.evaluation import cast_columns, evaluate, plain_schema, result_schema
from headwater.engine.tables.expressions import scalar_writer
from headwater.engine.tables.group import ZSetGroup
from headwater.engine.tables.integrate import Integrate, ZSetDistinct
from headwater.engine.tables.join import ZSetJoin
from headwater.engine.tables.scalar_functions import type_family
from headwater.engine.tables.top import ZSetTop
from headwater.engine.tables.zset import without_weight
from headwater.pipelines.tables import relation as relations
from headwater.pipelines.tables.relation import Relation
from headwater.pipelines.tables.sql_nodes import QueryRefusal
from headwater.sql.identifiers import quote

__all__ = ["Compiler", "DataflowNode", "Statement", "TableInput"]


@dataclass(frozen=True)
class TableInput:
    """A table that a query may read.

    Args:
        schema: Its columns.
        key: The columns that identify a row.

    Example:
        >>> TableInput(pa.schema([("id", pa.int64())]), ("id",)).key
        ('id',)
    """

    schema: pa.Schema
    key: tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """A stateless step: one SQL statement.

    Args:
        sql: A query over tables `i0`, `i1` and so on.
        schema: The columns of its result, including the weight.
        columns: If the statement only selects and renames columns of one input, their names in the input.

    Example:
        >>> statement = Statement("select x + 1 as y from i0", pa.schema([("y", pa.int64())]))
        >>> statement.run([pa.table({"x": [1]})]).to_pylist()
        [{'y': 2}]
    """

    sql: str
    schema: pa.Schema
    columns: tuple[str, ...] | None = None

    def run(self, inputs: Sequence[pa.Table]) -> pa.Table:
        """Returns the result of the statement; runs no query where none is needed."""
        if self.columns is not None:
            return pa.Table.from_arrays([inputs[0].column(name) for name in self.columns], schema=self.schema)
        if not any(map(len, inputs)):
            return self.schema.empty_table()
        result = evaluate(self.sql, {f"i{number}": rows for number, rows in enumerate(inputs)})
        return cast_columns(result, self.schema)


@dataclass(frozen=True)
class DataflowNode:
    """One step: a stateless SQL statement, or a stateful operator.

    Args:
        operator: The statement or operator.
        inputs: The numbers of its inputs: tables are numbered from 0, nodes after them.

    Example:
        >>> DataflowNode(Statement("select x from i0", pa.schema([("x", pa.int64())])), (0,)).inputs
        (0,)
    """

    operator: Statement | StatefulStep
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class _RelationSql:
    """The rows of a relation as SQL over nodes; a node is named by its number between two control characters (1)."""

    sql: str
    inputs: tuple[int, ...]
    schema: pa.Schema
    columns: tuple[str, ...] | None = None


class Compiler:
    """Compiles a relation to nodes.

    Args:
        relation: The requested result.
        tables: The tables that it may read.
        refusal: For error messages.

    Example:
        >>> posts = TableInput(pa.schema([("id", pa.int64())]), ("id",))
        >>> compiler = Compiler(relations.Scan("posts", ("id",)), {"posts": posts}, QueryRefusal("view", None))
        >>> compiler.tables, compiler.descriptions, [node.inputs for node in compiler.nodes]
        (('posts',), ['rows of posts by id'], [(0,)])
    """

    def __init__(self, relation: Relation, tables: Mapping[str, TableInput], refusal: QueryRefusal) -> None:
        self._refusal = refusal
        self._compiled: dict[Relation, _RelationSql] = {}
        used: dict[str, dict[str, None]] = {}
        for scan in _scans(relation):
            used.setdefault(scan.table, {}).update(dict.fromkeys(scan.columns))
        self.tables = tuple(used)
        self.nodes: list[DataflowNode] = []
        self.descriptions: list[str] = []
        self._scan_nodes: dict[str, int] = {}
        for number, (name, columns) in enumerate(used.items()):
            table = tables[name]
            rows, key = (pa.schema([table.schema.field(each) for each in names]) for names in (columns, table.key))
            self._require_keys(plain_schema(key), f"the key of {name}")
            description = f"rows of {name} by {', '.join(table.key)}"
            self._scan_nodes[name] = self._add_node(Integrate(name, rows, key), (number,), description)
        result = self._compile(relation)
        self._node_for(result)
        self.schema = without_weight(result.schema)

    def _add_node(
        self, operator: Statement | StatefulStep, inputs: tuple[int, ...], description: str | None = None
    ) -> int:
        self.nodes.append(DataflowNode(operator, inputs))
        if description:
            self.descriptions.append(description)
        return len(self.tables) + len(self.nodes) - 1

    def _add_operator(self, operator: StatefulStep, rows: _RelationSql, description: str) -> _RelationSql:
        return self._select_from(self._add_node(operator, (self._node_for(rows),), description))

    def _node_for(self, rows: _RelationSql) -> int:
        """Returns the number of the node that computes these rows; adds one if there is none."""
        # No new node if the rows are the unchanged result of one.
        if rows.columns == tuple(rows.schema.names) and self._schema_of(rows.inputs[0]) == rows.schema:
            return rows.inputs[0]
        sql = rows.sql
        for index, number in enumerate(rows.inputs):
            sql = sql.replace(f'"\x01{number}\x01"', f"i{index}")
        # Equal statements share a node: a relation that is used twice is computed once.
        node = DataflowNode(Statement(sql, rows.schema, rows.columns), rows.inputs)
        if node in self.nodes:
            return len(self.tables) + self.nodes.index(node)
        return self._add_node(node.operator, node.inputs)

    def _schema_of(self, number: int) -> pa.Schema:
        return self.nodes[number - len(self.tables)].operator.schema

    def _compile(self, relation: Relation) -> _RelationSql:
        """Compile a relation; equal relations share their result."""
        if relation not in self._compiled:
            methods = {
                relations.Scan: self._scan, relations.Where: self._where, relations.Project: self._project,
                relations.Union: self._union, relations.Join: self._join, relations.GroupBy: self._group,
                relations.Top: self._top, relations.Distinct: self._distinct,
            }  # fmt: skip
            self._compiled[relation] = methods[type(relation)](relation)  # type: ignore[operator]
        return self._compiled[relation]

    def _select_from(self, number: int, names: Sequence[str] | None = None) -> _RelationSql:
        schema = self._schema_of(number)
        columns = (*(names if names is not None else schema.names[:-1]), WEIGHT)
        sql = f'select {", ".join(map(quote, columns))} from "\x01{number}\x01"'
        return _RelationSql(sql, (number,), pa.schema([schema.field(name) for name in columns]), columns)

    def _scan(self, scan: relations.Scan) -> _RelationSql:
        return self._select_from(self._scan_nodes[scan.table], scan.columns)

    def _where(self, where: relations.Where) -> _RelationSql:
        rows = self._compile(where.input)
        scalar = scalar_writer(rows.schema, self._refusal)
        if scalar.family(where.condition) not in ("boolean", "null"):
            self._refusal.refuse(where.condition, "it is not a condition")
        sql = f"select * from ({rows.sql}) where {scalar.to_sql(where.condition)}"
        return _RelationSql(sql, rows.inputs, rows.schema)

    def _project(self, project: relations.Project) -> _RelationSql:
        rows = self._compile(project.input)
        scalar = scalar_writer(rows.schema, self._refusal)
        fields, items = [], []
        for name, tree in project.items:
            kind, sql = scalar.value_type(tree), scalar.to_sql(tree)
            if pa.types.is_floating(kind) and not isinstance(tree, Column):
                sql = f"({sql} + cast(0 as double))"  # a computed -0.0 becomes 0.0, as in tables
            fields.append(pa.field(name, kind))
            items.append(f"{sql} as {quote(name)}")
        columns = None
        if rows.columns is not None and all(isinstance(tree, Column) for _, tree in project.items):
            below = dict(zip(rows.schema.names, rows.columns, strict=True))
            columns = (*(below[tree.name] for _, tree in project.items), WEIGHT)
        select = f"select {', '.join([*items, quote(WEIGHT)])} from ({rows.sql})"
        return _RelationSql(select, rows.inputs, pa.schema([*fields, pa.field(WEIGHT, pa.int64())]), columns)

    def _union(self, union: relations.Union) -> _RelationSql:
        parts = [self._compile(each) for each in union.inputs]
        types = zip(*(part.schema.types[:-1] for part in parts), strict=True)
        for column, kinds in zip(union.columns, types, strict=True):
            if len({type_family(kind) for kind in kinds} - {"null"}) > 1:
                self._refusal.refuse(column, f"UNION of {' and '.join(map(str, kinds))}", fix="cast(… as …)")
        sql = " union all ".join(f"select * from ({part.sql})" for part in parts)
        inputs = tuple(dict.fromkeys(number for part in parts for number in part.inputs))
        found = result_schema(sql, {f"\x01{number}\x01": self._schema_of(number) for number in inputs})
        return _RelationSql(sql, inputs, pa.schema(list(zip((*union.columns, WEIGHT), found.types, strict=True))))

    def _join(self, join: relations.Join) -> _RelationSql:
        sides = [self._compile(join.left), self._compile(join.right)]
        stored = []
        for side, key in zip(sides, join.on[0], strict=True):
            used = [field for field in side.schema if field.name in join.columns]
            stored.append(pa.schema(used or [side.schema.field(key)]))  # a row needs at least one column
        on: list[tuple[str, str]] = []
        for names in join.on:
            sides, keys = self._align_key_types(sides, names)
            on.append(keys)
        left, right = stored
        operator = ZSetJoin(join.how, left, right, (tuple(key for key, _ in on), tuple(key for _, key in on)))
        by = ", ".join(dict.fromkeys(self._column_text(join.left, name) for name, _ in join.on))
        description = f"{join.how} join by {by}" if join.how != "inner" else f"join by {by}"
        number = self._add_node(operator, tuple(self._node_for(side) for side in sides), description)
        return self._select_from(number, join.columns)

    def _align_key_types(
        self, sides: list[_RelationSql], names: tuple[str, str]
    ) -> tuple[list[_RelationSql], tuple[str, str]]:
        """Cast key columns of both sides to one type, so that equal values have equal bytes."""
        kinds = [side.schema.field(name).type for side, name in zip(sides, names, strict=True)]
        part = " = ".join(names)
        if len({type_family(kind) for kind in kinds} - {"null"}) > 1:
            self._refusal.refuse(part, f"it compares {kinds[0]} with {kinds[1]}", fix="cast(… as …)")
        self._require_keys(pa.schema(list(zip(("left", "right"), kinds, strict=True))), part)
        if kinds[0] == kinds[1]:
            return sides, names
        nulls = pa.table({"a": pa.nulls(1, kinds[0]), "b": pa.nulls(1, kinds[1])})
        (common,) = evaluate("select typeof(coalesce(a, b)) as x from t", {"t": nulls}).column("x").to_pylist()
        cast_sides = [_add_cast(side, name, common) for side, name in zip(sides, names, strict=True)]
        return cast_sides, (f"key.{names[0]}", f"key.{names[1]}")

    def _group(self, group: relations.GroupBy) -> _RelationSql:
        rows = self._compile(group.input)
        schema = without_weight(rows.schema)
        stored = [each.column for each in group.aggregates if each.kind in ("min", "max", "distinct")]
        for name in (*group.keys, *stored):
            if name is not None:
                self._require_keys(pa.schema([schema.field(name)]), self._column_text(group.input, name))
        operator = ZSetGroup(schema, group.keys, group.aggregates)
        try:
            operator.schema  # noqa: B018 - raises for types without a sum
        except TypeError as error:
            self._refusal.refuse("sum or avg", str(error))
        by = ", ".join(self._column_text(group.input, name) for name in group.keys)
        return self._add_operator(operator, rows, f"groups by {by}" if by else "one group of all rows")

    def _top(self, top: relations.Top) -> _RelationSql:
        rows = self._compile(top.input)
        schema = without_weight(rows.schema)
        for name in (*top.per, *(by.column for by in top.by)):
            self._require_keys(pa.schema([schema.field(name)]), self._column_text(top.input, name))
        operator = ZSetTop(schema, top.per, top.by, top.count, top.rank)
        per = ", ".join(self._column_text(top.input, name) for name in top.per)
        description = f"rows in order, for the first {top.count}" + (f" per {per}" if per else "")
        return self._add_operator(operator, rows, description)

    def _distinct(self, distinct: relations.Distinct) -> _RelationSql:
        rows = self._compile(distinct.input)
        schema = without_weight(rows.schema)
        self._require_keys(schema, "distinct")
        return self._add_operator(ZSetDistinct(schema), rows, "distinct rows")

    def _column_text(self, below: Relation, name: str) -> str:
        """Returns a key column as the user wrote it."""
        items = dict(below.items) if isinstance(below, relations.Project) else {}
        if name not in items:
            return name.rsplit(".", 1)[-1]
        return re.sub(r"`(?:[^`]*\.)?([^`.]+)`", r"\1", items[name].sql("spark"))

    def _require_keys(self, schema: pa.Schema, part: str) -> None:
        try:
            require_keys(schema)
        except TypeError as error:
            self._refusal.refuse(part, str(error))


def _add_cast(rows: _RelationSql, name: str, kind: str) -> _RelationSql:
    """Returns the rows with one more column: another column, cast to a type."""
    cast = f"cast({quote(name)} as {kind})"
    sql = f"select *, {cast} as {quote(f'key.{name}')} from ({rows.sql})"
    found = result_schema(f"select {cast} as x from t", {"t": rows.schema}).field("x").type
    return _RelationSql(sql, rows.inputs, rows.schema.append(pa.field(f"key.{name}", found)))


def _scans(relation: Relation) -> list[relations.Scan]:
    if isinstance(relation, relations.Scan):
        return [relation]
    if isinstance(relation, relations.Join):
        return [*_scans(relation.left), *_scans(relation.right)]
    if isinstance(relation, relations.Union):
        return [scan for each in relation.inputs for scan in _scans(each)]
    return _scans(relation.input)
