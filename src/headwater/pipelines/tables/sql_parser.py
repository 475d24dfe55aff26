"""Parses SQL text to a relation with sqlglot: resolves names, translates clauses to steps, and refuses the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp
from sqlglot.errors import OptimizeError, SqlglotError
from sqlglot.optimizer.qualify import qualify

from headwater.errors import BadSqlError, SourceLocation
from headwater.pipelines.sql_text import parse, tables_of
from headwater.pipelines.tables.pushdown import push_down
from headwater.pipelines.tables.relation import Distinct, Project, Relation, Scan, Union, Where
from headwater.pipelines.tables.sql_clauses import (
    apply_limit,
    group_rows,
    has_aggregates,
    join_relations,
    output_name,
    rank_rows,
    upper_bounds,
)
from headwater.pipelines.tables.sql_nodes import (
    QueryRefusal,
    column,
    conjuncts,
    expand_windows,
    flatten_columns,
    refuse_subqueries,
)

__all__ = ["parse_relation"]

_UNSUPPORTED_CLAUSES = {
    "laterals": "lateral views are not supported",
    "windows": "named windows are not supported",
    "qualify": "QUALIFY is not supported; use row_number() in a subquery and a condition on it",
    "pivots": "PIVOT is not supported",
    "sort": "SORT BY has no meaning in a view",
    "cluster": "CLUSTER BY has no meaning in a view",
    "distribute": "DISTRIBUTE BY has no meaning in a view",
    "offset": "OFFSET cannot be kept up to date",
    "match": "MATCH_RECOGNIZE is for streams",
    "sample": "a sample changes with every run",
}


def parse_relation(
    sql: str, tables: Mapping[str, tuple[str, ...]], *, what: str = "the query", location: SourceLocation | None = None
) -> Relation:
    """Parse a query to a relation.

    Args:
        sql: One query, in Spark's dialect.
        tables: The columns of each table that it may read.
        what: The declaration, for error messages.
        location: The source location of the declaration.

    Raises:
        BadSqlError: The query is invalid, or a part of it cannot be maintained incrementally.

    Example:
        >>> found = parse_relation("select id from posts where likes > 3", {"posts": ("id", "likes", "text")})
        >>> found.columns, found.input.input.input
        (('id',), Scan(table='posts', columns=('id', 'likes')))
    """
    refusal = QueryRefusal(what, location)
    spellings = {name.lower(): name for name in tables}
    columns = {name.lower(): {each.lower(): each for each in tables[name]} for name in tables}
    for name, found in columns.items():
        if len(found) != len(tables[spellings[name]]):
            refusal.refuse(spellings[name], "two of its columns differ only in upper and lower case")
    tree = expand_windows(parse(sql, what, location))
    for name in tables_of(sql, what=what, location=location):
        if name.lower() not in columns:
            refusal.refuse(name, "there is no table of this name", fix=", ".join(sorted(tables)))
    try:
        schema: dict[str, object] = {name: dict.fromkeys(found, "string") for name, found in columns.items()}
        # The types do not matter for resolving names; DuckDB derives them later.
        tree = qualify(tree, dialect="spark", schema=schema, quote_identifiers=False)
    except SqlglotError as error:
        data = {"part": str(error)} if isinstance(error, OptimizeError) else {}
        raise BadSqlError(f"the sql of {what} cannot be read: {error}", location=location, **data) from error
    parser = _QueryParser(refusal, {name: Scan(spellings[name], tuple(columns[name].values())) for name in columns})
    relation = parser.parse_query(tree, {})
    for name in relation.columns:
        if relation.columns.count(name) > 1:
            refusal.refuse(name, "two columns of the result have this name", fix=f"{name} as other_name")
    return push_down(relation)


@dataclass(frozen=True)
class _QueryParser:
    """Parses one query; `ctes` are the WITH queries in scope, each with the parser of its own scope."""

    refusal: QueryRefusal
    tables: Mapping[str, Scan]
    ctes: Mapping[str, tuple[exp.Expr, _QueryParser]] = field(default_factory=dict)

    def parse_query(self, tree: exp.Expr, bounds: Mapping[str, int]) -> Relation:
        """Returns the relation of a SELECT or UNION; `bounds` are the upper bounds that the outer query sets."""
        if isinstance(tree, exp.Subquery):
            return self.parse_query(tree.this, bounds)
        inner = self.with_ctes(tree.args.get("with_") or tree.args.get("with"))
        if isinstance(tree, exp.Select):
            return inner.parse_select(tree, bounds)
        if isinstance(tree, exp.Union):
            return inner.parse_union(tree)
        self.refusal.refuse(tree, f"{tree.key.upper()} is not supported")

    def with_ctes(self, clause: exp.Expr | None) -> _QueryParser:
        if clause is None:
            return self
        if clause.args.get("recursive"):
            self.refusal.refuse(clause, "recursion is not supported")
        parser = self
        for cte in clause.expressions:
            parser = replace(parser, ctes={**parser.ctes, cte.alias: (cte.this, parser)})
        return parser

    def parse_union(self, tree: exp.Union) -> Relation:
        if tree.args.get("by_name"):
            self.refusal.refuse(tree, "BY NAME is not supported")
        left, right = self.parse_query(tree.this, {}), self.parse_query(tree.expression, {})
        if len(left.columns) != len(right.columns):
            self.refusal.refuse(tree, "the two sides have different numbers of columns")
        first = left.inputs if isinstance(left, Union) else (left,)
        both: Relation = Union((*first, right))
        if tree.args.get("distinct"):
            both = Distinct(both)
        return apply_limit(both, tree, (), self.refusal)

    def parse_select(self, tree: exp.Select, bounds: Mapping[str, int]) -> Relation:
        for clause, reason in _UNSUPPORTED_CLAUSES.items():
            if found := tree.args.get(clause):
                self.refusal.refuse(found if isinstance(found, exp.Expr) else clause.upper(), reason)
        where = tree.args.get("where")
        conditions = conjuncts(where.this) if where else []
        rows, conditions = self.parse_from(tree, conditions)
        if conditions:
            rows = Where(rows, flatten_columns(exp.and_(*conditions), self.refusal))
        items = [(item.alias_or_name, item.unalias()) for item in tree.expressions]
        order = tree.args.get("order")
        sorting = [each.this for each in order.expressions] if order else []
        having = tree.args.get("having")
        for each in (*tree.expressions, *sorting, *([having] if having else ())):
            refuse_subqueries(each, self.refusal)
        if tree.args.get("group") or has_aggregates([*(item for _, item in items), *sorting, having]):
            rows, items, sorting = group_rows(rows, tree, items, sorting, self.refusal)
        else:
            if having:
                self.refusal.refuse(having, "HAVING without GROUP BY", fix="where")
            items = [(name, flatten_columns(item, self.refusal)) for name, item in items]
            sorting = [flatten_columns(each, self.refusal) for each in sorting]
        rows, items = rank_rows(rows, items, bounds, self.refusal)
        return self.project(rows, tree, items, sorting)

    def project(
        self, rows: Relation, tree: exp.Select, items: list[tuple[str, exp.Expr]], sorting: list[exp.Expr]
    ) -> Relation:
        """Translate SELECT, DISTINCT, ORDER BY and LIMIT."""
        shown = dict(items)
        hidden = [(f"order.{number}", shown.get(output_name(each) or "", each)) for number, each in enumerate(sorting)]
        if tree.args.get("distinct"):
            if tree.args["distinct"].args.get("on"):
                self.refusal.refuse("distinct on", "DISTINCT ON is not supported")
            rows = Distinct(Project(rows, tuple(items)))
            by_value = {expression: name for name, expression in items}
            for _, each in hidden:
                if each not in by_value:
                    self.refusal.refuse(each, "ORDER BY of SELECT DISTINCT needs a selected column")
            return apply_limit(rows, tree, tuple(by_value[each] for _, each in hidden), self.refusal)
        rows = Project(rows, tuple(items + hidden))
        rows = apply_limit(rows, tree, tuple(name for name, _ in hidden), self.refusal)
        return Project(rows, tuple((name, column(name)) for name, _ in items)) if hidden else rows

    def parse_from(self, tree: exp.Select, conditions: list[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
        """Translate FROM and its joins; returns the remaining conditions of WHERE."""
        start = tree.args.get("from_") or tree.args.get("from")
        if start is None:
            self.refusal.refuse(tree, "it reads no table")
        bounds = upper_bounds(conditions)
        rows = self.parse_source(start.this, bounds)
        known = frozenset([start.this.alias_or_name])
        for join in [*start.this.args.get("joins", ()), *tree.args.get("joins", ())]:
            other = frozenset([join.this.alias_or_name])
            right = self.parse_source(join.this, bounds)
            rows, conditions = join_relations(rows, right, join, conditions, (known, other), self.refusal)
            known |= other
        return rows, conditions

    def parse_source(self, tree: exp.Expr, bounds: Mapping[tuple[str, str], int]) -> Relation:
        """Translate one source, its columns named `alias.column`."""
        alias = tree.alias_or_name
        own_bounds = {name: bound for (table, name), bound in bounds.items() if table == alias}
        for clause in ("sample", "pivots", "changes", "when", "version"):
            if tree.args.get(clause):
                self.refusal.refuse(tree, "only a plain table or subquery can be read")
        if isinstance(tree, exp.Subquery):
            rows = self.parse_query(tree.this, own_bounds)
        elif not isinstance(tree, exp.Table) or not isinstance(tree.this, exp.Identifier):
            self.refusal.refuse(tree, "only tables and subqueries can be read")
        elif tree.name in self.ctes:
            body, parser = self.ctes[tree.name]
            rows = parser.parse_query(body, own_bounds)
        else:
            rows = self.tables[tree.name]
            items = ((f"{alias}.{name.lower()}", column(name)) for name in rows.columns)
            return Project(rows, tuple(items))
        names = tuple(each.name for each in tree.args["alias"].columns) if tree.args.get("alias") else ()
        if names and len(names) != len(rows.columns):
            self.refusal.refuse(tree, "its list of columns has the wrong length")
        pairs = zip(names or rows.columns, rows.columns, strict=True)
        return Project(rows, tuple((f"{alias}.{name}", column(inner)) for name, inner in pairs))
