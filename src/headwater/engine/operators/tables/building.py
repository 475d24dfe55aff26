"""A relation becomes nodes: steps without state that follow one another are one SQL statement, the others operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from sqlglot.expressions import Expr

from headwater.engine.keyed.keys import require_keys
from headwater.engine.keyed.operator import WEIGHT, Operator
from headwater.engine.operators.scalars.evaluation import (
    evaluated,
    plain_schema,
    quoted,
    shape_of,
    type_of,
    with_shape,
)
from headwater.engine.operators.scalars.expressions import scalar_over
from headwater.engine.operators.scalars.kinds import family
from headwater.engine.operators.scalars.scalar import Scalar
from headwater.engine.operators.tables.distinct import Distinct
from headwater.engine.operators.tables.group import Group
from headwater.engine.operators.tables.integrate import Integrate
from headwater.engine.operators.tables.join import Join
from headwater.engine.operators.tables.top import Top
from headwater.pipelines.tables import relation as asked_for
from headwater.pipelines.tables.refusal import Asked
from headwater.pipelines.tables.relation import Relation

__all__ = ["Building", "Statement", "Table"]


class Table(Protocol):
    """A table that can be read; see `TableInput`."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row."""


@dataclass(frozen=True)
class Statement:
    """A step without state.

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
        """Its result."""
        if self.columns is not None:
            chosen = [given[0].column(name) for name in self.columns]
            return pa.Table.from_arrays(chosen, schema=self.schema)
        if not any(map(len, given)):
            return self.schema.empty_table()
        found = evaluated(self.sql, {f"i{number}": rows for number, rows in enumerate(given)})
        return with_shape(found, self.schema)


@dataclass(frozen=True)
class _Rows:
    """Rows that a statement would make: SQL over results of nodes, named n0, n1 and so on."""

    sql: str
    inputs: tuple[int, ...]
    schema: pa.Schema
    columns: tuple[str, ...] | None = None


class Building:
    """Nodes made of a relation.

    Args:
        relation: What is asked for.
        tables: The tables that it reads.
        asked: For errors.

    Example:
        >>> from headwater.engine.operators.tables.dataflow import TableInput
        >>> posts = TableInput(pa.schema([("id", pa.int64())]), ("id",))
        >>> building = Building(asked_for.Scan("posts", ("id",)), {"posts": posts}, Asked("view", None))
        >>> building.tables, building.words, [inputs for _, inputs in building.nodes]
        (('posts',), ['rows of posts by id'], [(0,)])
    """

    def __init__(self, relation: Relation, tables: Mapping[str, Table], asked: Asked) -> None:
        self._asked = asked
        self._known: dict[Relation, _Rows] = {}
        used = _used(relation)
        self.tables = tuple(used)
        self.nodes: list[tuple[Statement | Operator, tuple[int, ...]]] = []
        self.words: list[str] = []
        self._scans: dict[str, int] = {}
        for number, (name, columns) in enumerate(used.items()):
            self._scans[name] = self._integrated(number, name, columns, tables[name])
        last = self._rows(relation)
        self._node(last)
        self.schema = pa.schema([field for field in last.schema if field.name != WEIGHT])

    def _integrated(self, number: int, name: str, columns: Sequence[str], table: Table) -> int:
        rows = pa.schema([table.schema.field(each) for each in columns])
        key = pa.schema([table.schema.field(each) for each in table.key])
        self._require_keys(plain_schema(key), f"the key of {name}")
        return self._added(Integrate(name, rows, key), (number,), f"rows of {name} by {', '.join(table.key)}")

    def _added(self, work: Statement | Operator, inputs: tuple[int, ...], words: str | None = None) -> int:
        self.nodes.append((work, inputs))
        if words:
            self.words.append(words)
        return len(self.tables) + len(self.nodes) - 1

    def _node(self, rows: _Rows) -> int:
        """The number of the node that makes these rows."""
        plain = rows.columns is not None
        if (
            plain
            and rows.columns == tuple(rows.schema.names)
            and self._schema_of(rows.inputs[0]) == rows.schema
        ):
            return rows.inputs[0]
        sql = rows.sql
        for place, number in enumerate(rows.inputs):
            sql = sql.replace(f'"\x01{number}\x01"', f"i{place}")
        statement = Statement(sql, rows.schema, rows.columns)
        known = [number for number, node in enumerate(self.nodes) if node == (statement, rows.inputs)]
        return len(self.tables) + known[0] if known else self._added(statement, rows.inputs)

    def _schema_of(self, number: int) -> pa.Schema:
        return self.nodes[number - len(self.tables)][0].schema

    def _rows(self, relation: Relation) -> _Rows:
        """The rows of a relation; of equal relations the same."""
        if relation not in self._known:
            makers = {
                asked_for.Scan: self._scan, asked_for.Where: self._where, asked_for.Project: self._project,
                asked_for.Union: self._union, asked_for.Join: self._join, asked_for.Group: self._group,
                asked_for.Top: self._top, asked_for.Distinct: self._distinct,
            }  # fmt: skip
            self._known[relation] = makers[type(relation)](relation)  # type: ignore[operator]
        return self._known[relation]

    def _of_node(self, number: int, names: Sequence[str] | None = None) -> _Rows:
        schema = self._schema_of(number)
        columns = (*(names if names is not None else schema.names[:-1]), WEIGHT)
        chosen = ", ".join(map(quoted, columns))
        fields = pa.schema([schema.field(name) for name in columns])
        return _Rows(f'select {chosen} from "\x01{number}\x01"', (number,), fields, columns)

    def _scan(self, scan: asked_for.Scan) -> _Rows:
        return self._of_node(self._scans[scan.table], scan.columns)

    def _where(self, where: asked_for.Where) -> _Rows:
        rows = self._rows(where.input)
        scalar = scalar_over(rows.schema, self._asked)
        if scalar.family(where.condition) not in ("boolean", "null"):
            self._asked.refuse(where.condition, "it is not a condition")
        sql = f"select * from ({rows.sql}) where {scalar.text(where.condition)}"
        return _Rows(sql, rows.inputs, rows.schema)

    def _project(self, project: asked_for.Project) -> _Rows:
        rows = self._rows(project.input)
        scalar = scalar_over(rows.schema, self._asked)
        fields = [pa.field(name, scalar.kind(tree)) for name, tree in project.items]
        schema = pa.schema([*fields, pa.field(WEIGHT, pa.int64())])
        items = [f"{_written(scalar, tree)} as {quoted(name)}" for name, tree in project.items]
        sql = f"select {', '.join([*items, quoted(WEIGHT)])} from ({rows.sql})"
        columns = None
        if rows.columns is not None and all(type(tree).__name__ == "Column" for _, tree in project.items):
            below = dict(zip(rows.schema.names, rows.columns, strict=True))
            columns = (*(below[tree.name] for _, tree in project.items), WEIGHT)
        return _Rows(sql, rows.inputs, schema, columns)

    def _union(self, union: asked_for.Union) -> _Rows:
        parts = [self._rows(each) for each in union.inputs]
        for column, kinds in zip(
            union.columns, zip(*(part.schema.types[:-1] for part in parts), strict=True), strict=True
        ):
            if len({family(kind) for kind in kinds} - {"null"}) > 1:
                self._asked.refuse(column, f"UNION of {' and '.join(map(str, kinds))}", fix="cast(… as …)")
        sql = " union all ".join(f"select * from ({part.sql})" for part in parts)
        inputs = tuple(dict.fromkeys(number for part in parts for number in part.inputs))
        names = {f"\x01{number}\x01": self._schema_of(number) for number in inputs}
        found = shape_of(sql, names)
        schema = pa.schema(
            [pa.field(name, field.type) for name, field in zip((*union.columns, WEIGHT), found, strict=True)]
        )
        return _Rows(sql, inputs, schema)

    def _join(self, join: asked_for.Join) -> _Rows:
        sides = [self._rows(join.left), self._rows(join.right)]
        left, right = (
            _stored(side.schema, join.columns, key) for side, key in zip(sides, join.on[0], strict=True)
        )
        on: list[tuple[str, str]] = []
        for names in join.on:
            sides, keys = self._of_one_kind(sides, names)
            on.append(keys)
        operator = Join(join.how, left, right, (tuple(key for key, _ in on), tuple(key for _, key in on)))
        by = ", ".join(dict.fromkeys(self._spelled(join.left, name) for name, _ in join.on))
        number = self._added(
            operator, tuple(self._node(side) for side in sides), f"{_WORDS[join.how]} by {by}"
        )
        return self._of_node(number, join.columns)

    def _of_one_kind(self, sides: list[_Rows], names: tuple[str, str]) -> tuple[list[_Rows], tuple[str, str]]:
        """The sides with key columns of one type, so that equal values have equal bytes; and their names."""
        kinds = [side.schema.field(name).type for side, name in zip(sides, names, strict=True)]
        part = " = ".join(names)
        if len({family(kind) for kind in kinds} - {"null"}) > 1:
            self._asked.refuse(part, f"it compares {kinds[0]} with {kinds[1]}", fix="cast(… as …)")
        self._require_keys(pa.schema(list(zip(("left", "right"), kinds, strict=True))), part)
        if kinds[0] == kinds[1]:
            return sides, names
        common = type_of("select coalesce(a, b) from t", {"t": pa.schema([("a", kinds[0]), ("b", kinds[1])])})
        return [_with_cast(side, name, common) for side, name in zip(sides, names, strict=True)], (
            f"key.{names[0]}",
            f"key.{names[1]}",
        )

    def _group(self, group: asked_for.Group) -> _Rows:
        rows = self._rows(group.input)
        schema = pa.schema([field for field in rows.schema if field.name != WEIGHT])
        kept = {each.column for each in group.aggregates if each.kind in ("min", "max", "distinct")}
        for name in (*group.keys, *kept):
            if name is not None:
                self._require_keys(pa.schema([schema.field(name)]), self._spelled(group.input, name))
        operator = Group(schema, group.keys, group.aggregates)
        try:
            operator.schema  # noqa: B018 - types that cannot be added up show here
        except TypeError as error:
            self._asked.refuse("sum or avg", str(error))
        by = ", ".join(self._spelled(group.input, name) for name in group.keys)
        number = self._added(
            operator, (self._node(rows),), f"groups by {by}" if by else "one group of all rows"
        )
        return self._of_node(number)

    def _top(self, top: asked_for.Top) -> _Rows:
        rows = self._rows(top.input)
        schema = pa.schema([field for field in rows.schema if field.name != WEIGHT])
        for name in (*top.per, *(by.column for by in top.by)):
            self._require_keys(pa.schema([schema.field(name)]), self._spelled(top.input, name))
        operator = Top(schema, top.per, top.by, top.count, top.rank)
        per = ", ".join(self._spelled(top.input, name) for name in top.per)
        words = f"rows in order, for the first {top.count}" + (f" per {per}" if per else "")
        return self._of_node(self._added(operator, (self._node(rows),), words))

    def _distinct(self, distinct: asked_for.Distinct) -> _Rows:
        rows = self._rows(distinct.input)
        schema = pa.schema([field for field in rows.schema if field.name != WEIGHT])
        self._require_keys(schema, "distinct")
        number = self._added(Distinct(schema), (self._node(rows),), "distinct rows")
        return self._of_node(number)

    def _spelled(self, below: Relation, name: str) -> str:
        """A key column as the user wrote it."""
        items = dict(below.items) if isinstance(below, asked_for.Project) else {}
        if name not in items:
            return name.rsplit(".", 1)[-1]
        return re.sub(r"`(?:[^`]*\.)?([^`.]+)`", r"\1", items[name].sql("spark"))

    def _require_keys(self, schema: pa.Schema, part: str) -> None:
        try:
            require_keys(schema)
        except TypeError as error:
            self._asked.refuse(part, str(error))


_WORDS = {
    "inner": "join", "left": "left join", "right": "right join", "full": "full join", "semi": "semi join",
    "anti": "anti join",
}  # fmt: skip


def _written(scalar: Scalar, tree: Expr) -> str:
    """An item of a projection; a float that was computed is 0.0 where it would be -0.0, as those of tables are."""
    computed = type(tree).__name__ != "Column" and pa.types.is_floating(scalar.kind(tree))
    return f"({scalar.text(tree)} + cast(0 as double))" if computed else scalar.text(tree)


def _stored(schema: pa.Schema, used: Sequence[str], key: str) -> pa.Schema:
    """The columns of one side of a join that are kept: a column of the key, if no other is used."""
    found = [field for field in schema if field.name in used]
    return pa.schema(found or [schema.field(key)])


def _with_cast(rows: _Rows, name: str, kind: str) -> _Rows:
    """The rows with one more column: another one, under a type."""
    cast = f"cast({quoted(name)} as {kind})"
    sql = f"select *, {cast} as {quoted(f'key.{name}')} from ({rows.sql})"
    found = shape_of(f"select {cast} as x from t", {"t": rows.schema}).field("x").type
    return _Rows(sql, rows.inputs, rows.schema.append(pa.field(f"key.{name}", found)))


def _used(relation: Relation) -> dict[str, tuple[str, ...]]:
    """The columns of each table that a relation reads, in the order of the tables' first reading."""
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
