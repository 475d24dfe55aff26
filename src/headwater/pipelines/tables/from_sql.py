"""SQL text → relation, through sqlglot: names are resolved, clauses become steps, and what has no step is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp
from sqlglot.errors import OptimizeError, SqlglotError
from sqlglot.optimizer.qualify import qualify

from headwater.errors import BadSqlError, Place
from headwater.pipelines.query import parsed, tables_of
from headwater.pipelines.tables.grouping import grouped, has_aggregates
from headwater.pipelines.tables.joining import joined
from headwater.pipelines.tables.narrowing import narrowed
from headwater.pipelines.tables.ranking import bounds_of, limited, ranked
from headwater.pipelines.tables.refusal import Asked
from headwater.pipelines.tables.relation import Distinct, Project, Relation, Scan, Union, Where
from headwater.pipelines.tables.spelling import (
    column,
    conjuncts,
    located,
    named_windows,
    refuse_subqueries,
    together,
)

__all__ = ["relation_of"]

_REFUSED = {
    "laterals": "lateral views are not supported",
    "windows": "named windows are not supported",
    "qualify": "QUALIFY is not supported; use row_number() in a subquery and a condition on it",
    "pivots": "PIVOT is not supported",
    "sort": "SORT BY has no meaning in a view",
    "cluster": "CLUSTER BY has no meaning in a view",
    "distribute": "DISTRIBUTE BY has no meaning in a view",
    "offset": "OFFSET cannot be kept up to date",
    "match": "MATCH_RECOGNIZE is for streams",
    "sample": "a sample is another each time",
}


def relation_of(
    sql: str,
    tables: Mapping[str, tuple[str, ...]],
    *,
    what: str = "the query",
    place: Place | None = None,
) -> Relation:
    """What a query asks for.

    Args:
        sql: One query, in Spark's dialect.
        tables: The columns of each table that it may read.
        what: What is being declared, for errors.
        place: Where the user wrote it.

    Raises:
        BadSqlError: It cannot be read, or a part of it cannot be kept right while tables change.

    Example:
        >>> found = relation_of("select id from posts where likes > 3", {"posts": ("id", "likes", "text")})
        >>> found.columns, found.input.input.input
        (('id',), Scan(table='posts', columns=('id', 'likes')))
    """
    asked = Asked(what, place)
    spelled = {name.lower(): name for name in tables}
    columns = {name.lower(): {each.lower(): each for each in tables[name]} for name in tables}
    for name, found in columns.items():
        if len(found) != len(tables[spelled[name]]):
            asked.refuse(spelled[name], "two of its columns differ only in upper and lower case")
    tree = named_windows(parsed(sql, what, place))
    for name in tables_of(sql, what=what, place=place):
        if name.lower() not in columns:
            asked.refuse(name, "there is no table of this name", fix=", ".join(sorted(tables)))
    try:
        schema: dict[str, object] = {name: dict.fromkeys(found, "string") for name, found in columns.items()}
        tree = qualify(tree, dialect="spark", schema=schema, quote_identifiers=False)
    except OptimizeError as error:
        reason = str(error)
        raise BadSqlError(f"the sql of {what} cannot be read: {reason}", place=place, part=reason) from error
    except SqlglotError as error:
        raise BadSqlError(f"the sql of {what} cannot be read: {error}", place=place) from error
    reading = _Reading(asked, {name: Scan(spelled[name], tuple(columns[name].values())) for name in columns})
    found_relation = reading.query(tree, {})
    _require_different_names(found_relation, asked)
    return narrowed(found_relation)


def _require_different_names(relation: Relation, asked: Asked) -> None:
    names = relation.columns
    for name in names:
        if names.count(name) > 1:
            asked.refuse(name, "two columns of the result have this name", fix=f"{name} as other_name")


@dataclass(frozen=True)
class _Reading:
    """Reads one query; `ctes` are the queries that WITH has named so far."""

    asked: Asked
    tables: Mapping[str, Scan]
    ctes: Mapping[str, tuple[exp.Expr, _Reading]] = field(default_factory=dict)

    def query(self, tree: exp.Expr, bounds: Mapping[str, int]) -> Relation:
        """The relation of a SELECT or UNION; `bounds` are upper limits of its columns that the query around sets."""
        if isinstance(tree, exp.Subquery):
            return self.query(tree.this, bounds)
        inner = self.knowing(tree.args.get("with_") or tree.args.get("with"))
        if isinstance(tree, exp.Select):
            return inner.select(tree, bounds)
        if isinstance(tree, exp.Union):
            return inner.union(tree)
        self.asked.refuse(tree, f"{tree.key.upper()} is not supported")

    def knowing(self, clause: exp.Expr | None) -> _Reading:
        if clause is None:
            return self
        if clause.args.get("recursive"):
            self.asked.refuse(clause, "recursion is not supported")
        known = self
        for cte in clause.expressions:
            known = replace(known, ctes={**known.ctes, cte.alias: (cte.this, known)})
        return known

    def union(self, tree: exp.Union) -> Relation:
        if tree.args.get("by_name"):
            self.asked.refuse(tree, "BY NAME is not supported")
        left, right = self.query(tree.this, {}), self.query(tree.expression, {})
        if len(left.columns) != len(right.columns):
            self.asked.refuse(tree, "the two sides have different numbers of columns")
        first = left.inputs if isinstance(left, Union) else (left,)
        both: Relation = Union((*first, right))
        if tree.args.get("distinct"):
            both = Distinct(both)
        return limited(both, tree, (), self.asked)

    def select(self, tree: exp.Select, bounds: Mapping[str, int]) -> Relation:
        self.refuse_clauses(tree)
        where = tree.args.get("where")
        conditions = conjuncts(where.this) if where else []
        rows, conditions = self.sources(tree, conditions)
        if conditions:
            rows = Where(rows, located(together(conditions), self.asked))
        items = [(item.alias_or_name, item.unalias()) for item in tree.expressions]
        order = tree.args.get("order")
        sorting = [each.this for each in order.expressions] if order else []
        having = tree.args.get("having")
        for each in (*tree.expressions, *sorting, *([having] if having else ())):
            refuse_subqueries(each, self.asked)
        if tree.args.get("group") or has_aggregates([*(item for _, item in items), *sorting, having]):
            rows, items, sorting = grouped(rows, tree, items, sorting, self.asked)
        else:
            if having:
                self.asked.refuse(having, "HAVING without GROUP BY", fix="where")
            items = [(name, located(item, self.asked)) for name, item in items]
            sorting = [located(each, self.asked) for each in sorting]
        rows, items = ranked(rows, items, bounds, self.asked)
        return self.result(rows, tree, items, sorting)

    def result(
        self, rows: Relation, tree: exp.Select, items: list[tuple[str, exp.Expr]], sorting: list[exp.Expr]
    ) -> Relation:
        """SELECT, DISTINCT, ORDER BY and LIMIT."""
        shown = dict(items)
        hidden = [
            (f"order.{number}", shown.get(_output_name(each) or "", each))
            for number, each in enumerate(sorting)
        ]
        if tree.args.get("distinct"):
            if tree.args["distinct"].args.get("on"):
                self.asked.refuse("distinct on", "DISTINCT ON is not supported")
            rows = Distinct(Project(rows, tuple(items)))
            by_value = {expression: name for name, expression in items}
            for _, each in hidden:
                if each not in by_value:
                    self.asked.refuse(each, "ORDER BY of SELECT DISTINCT needs a selected column")
            return limited(rows, tree, tuple(by_value[each] for _, each in hidden), self.asked)
        rows = Project(rows, tuple(items + hidden))
        rows = limited(rows, tree, tuple(name for name, _ in hidden), self.asked)
        return Project(rows, tuple((name, column(name)) for name, _ in items)) if hidden else rows

    def sources(self, tree: exp.Select, conditions: list[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        """FROM and its joins, and the conditions of WHERE that are left."""
        start = tree.args.get("from_") or tree.args.get("from")
        if start is None:
            self.asked.refuse(tree, "it reads no table")
        bounds = bounds_of(conditions)
        rows = self.source(start.this, bounds)
        known = frozenset([start.this.alias_or_name])
        for join in [*start.this.args.get("joins", ()), *tree.args.get("joins", ())]:
            other = frozenset([join.this.alias_or_name])
            right = self.source(join.this, bounds)
            rows, conditions = joined(rows, right, join, conditions, (known, other), self.asked)
            known |= other
        return rows, conditions

    def source(self, tree: exp.Expr, bounds: Mapping[tuple[str, str], int]) -> Relation:
        """One source, its columns named `alias.column`."""
        alias = tree.alias_or_name
        mine = {name: bound for (table, name), bound in bounds.items() if table == alias}
        names: tuple[str, ...]
        for clause in ("sample", "pivots", "changes", "when", "version"):
            if tree.args.get(clause):
                self.asked.refuse(tree, "only a plain table or subquery can be read")
        if isinstance(tree, exp.Subquery):
            rows = self.query(tree.this, mine)
        elif not isinstance(tree, exp.Table) or not isinstance(tree.this, exp.Identifier):
            self.asked.refuse(tree, "only tables and subqueries can be read")
        elif tree.name in self.ctes:
            body, known = self.ctes[tree.name]
            rows = known.query(body, mine)
        else:
            rows = self.tables[tree.name]
            spelled = ((f"{alias}.{name.lower()}", column(name)) for name in rows.columns)
            return Project(rows, tuple(spelled))
        names = tuple(each.name for each in tree.args["alias"].columns) if tree.args.get("alias") else ()
        if names and len(names) != len(rows.columns):
            self.asked.refuse(tree, "its list of columns has the wrong length")
        pairs = zip(names or rows.columns, rows.columns, strict=True)
        return Project(rows, tuple((f"{alias}.{name}", column(inner)) for name, inner in pairs))

    def refuse_clauses(self, tree: exp.Select) -> None:
        for clause, reason in _REFUSED.items():
            found = tree.args.get(clause)
            if found:
                self.asked.refuse(found if isinstance(found, exp.Expr) else clause.upper(), reason)


def _output_name(each: exp.Expr) -> str | None:
    """The column of the result that ORDER BY names; such columns have no table before them."""
    return each.name if isinstance(each, exp.Column) and not each.table and "." not in each.name else None
