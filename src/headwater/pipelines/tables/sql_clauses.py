"""Translates SQL clauses to relational steps: GROUP BY with aggregates, JOIN, and top-N.

GROUP BY is split into expressions over the input rows and expressions over the group's values. JOIN is split into the
columns that must be equal and the remaining conditions. Top-N is `row_number() … <= k` or `order by … limit k`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sqlglot import exp

from headwater.pipelines.tables.relation import (
    Aggregate,
    AggregateKind,
    GroupBy,
    Join,
    JoinType,
    Project,
    Relation,
    SortKey,
    Top,
    Where,
)
from headwater.pipelines.tables.sql_nodes import QueryRefusal, aliases_in, column, conjuncts, flatten_columns

__all__ = ["apply_limit", "group_rows", "has_aggregates", "join_relations", "output_name", "rank_rows", "upper_bounds"]

SelectItems = list[tuple[str, exp.Expr]]
_AGGREGATE_KINDS: Final[dict[type[exp.Expr], AggregateKind]] = {
    exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.CountIf: "count",
    exp.LogicalOr: "max", exp.LogicalAnd: "min",
}  # fmt: skip
_NOT_INCREMENTAL: Final = "its value depends on the order of rows, or cannot be maintained incrementally"


def has_aggregates(trees: Iterable[exp.Expr | None]) -> bool:
    """Returns whether one of the expressions contains an aggregate that is no window function.

    Example:
        >>> from sqlglot import parse_one
        >>> has_aggregates([parse_one("1 + count(*)")]), has_aggregates([parse_one("sum(x) over ()")])
        (True, False)
    """
    found = (each for tree in trees if tree is not None for each in tree.find_all(exp.AggFunc))
    return any(not each.find_ancestor(exp.Window) for each in found)


def group_rows(
    rows: Relation, tree: exp.Select, items: SelectItems, sorting: list[exp.Expr], refusal: QueryRefusal
) -> tuple[Relation, SelectItems, list[exp.Expr]]:
    """Returns the groups of a SELECT, and its items and ORDER BY in terms of the groups.

    Raises:
        BadSqlError: An aggregate is not supported, or a column is neither in GROUP BY nor inside an aggregate.

    Example:
        >>> from sqlglot import parse_one
        >>> from headwater.pipelines.tables.relation import Scan
        >>> tree = parse_one("select p.author, count(*) + 1 as n from posts p group by p.author")
        >>> items = [(item.alias_or_name, item.unalias()) for item in tree.expressions]
        >>> groups, above, _ = group_rows(Scan("posts", ("p.author",)), tree, items, [], QueryRefusal("view", None))
        >>> groups.columns, [(name, item.sql()) for name, item in above]
        (('group.0', 'aggregate.0'), [('author', '"group.0"'), ('n', '"aggregate.0" + 1')])
    """
    rewriter = _GroupRewriter(_group_keys(tree, items, refusal), refusal)
    above = [(name, rewriter.rewrite(item)) for name, item in items]
    having = tree.args.get("having")
    condition = rewriter.rewrite(having.this) if having else None
    outputs = {name for name, _ in items}
    ordered = [each if output_name(each) in outputs else rewriter.rewrite(each) for each in sorting]
    keys = tuple((name, key) for key, name in rewriter.keys.items())
    values = tuple((name, value) for value, name in rewriter.values.items())
    aggregates = tuple(rewriter.aggregates.values())
    groups: Relation = GroupBy(Project(rows, keys + values), tuple(name for name, _ in keys), aggregates)
    return (Where(groups, condition) if condition is not None else groups), above, ordered


def output_name(tree: exp.Expr) -> str | None:
    """Returns the result column that an item of ORDER BY names, which has no table qualifier; None for others."""
    return tree.name if isinstance(tree, exp.Column) and not tree.table and "." not in tree.name else None


def _group_keys(tree: exp.Select, items: SelectItems, refusal: QueryRefusal) -> list[exp.Expr]:
    group = tree.args.get("group")
    if group is None:
        return []
    if group.find(exp.Rollup, exp.Cube, exp.GroupingSets):
        refusal.refuse(group, "only plain columns and expressions can be grouped by")
    if group.args.get("all"):
        return [flatten_columns(item, refusal) for _, item in items if not has_aggregates([item])]
    return list(dict.fromkeys(flatten_columns(each, refusal) for each in group.expressions))


class _GroupRewriter:
    """Rewrites expressions in terms of groups: keys and aggregates become columns."""

    def __init__(self, keys: list[exp.Expr], refusal: QueryRefusal) -> None:
        self._refusal = refusal
        self.keys = {key: f"group.{number}" for number, key in enumerate(keys)}
        self.values: dict[exp.Expr, str] = {}
        self.aggregates: dict[tuple[AggregateKind, str | None], Aggregate] = {}

    def rewrite(self, tree: exp.Expr) -> exp.Expr:
        return self._rewrite_node(flatten_columns(tree, self._refusal))

    def _rewrite_node(self, node: exp.Expr) -> exp.Expr:
        if node in self.keys:
            return column(self.keys[node])
        if isinstance(node, exp.Filter):
            return self._rewrite_aggregate(node.this, node.expression.this)
        if isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window):
            return self._rewrite_aggregate(node, None)
        if isinstance(node, exp.Column):
            name = node.name.split(".")[-1]
            fix = f"group by {name}, or max({name})"
            self._refusal.refuse(name, "it is neither in GROUP BY nor inside an aggregate", fix=fix)
        for child in list(node.iter_expressions()):
            changed = self._rewrite_node(child)
            if changed is not child:
                child.replace(changed)
        return node

    def _rewrite_aggregate(self, node: exp.Expr, condition: exp.Expr | None) -> exp.Expr:
        kind = _AGGREGATE_KINDS.get(type(node))
        if kind is None:
            self._refusal.refuse(node, _NOT_INCREMENTAL, fix="count, sum, avg, min, max or count(distinct …)")
        if has_aggregates(node.iter_expressions()):
            self._refusal.refuse(node, "an aggregate inside an aggregate is not supported")
        value: exp.Expr | None = node.this
        if isinstance(value, exp.Distinct):
            if kind in ("sum", "avg"):
                self._refusal.refuse(node, f"{kind} of distinct values is not supported")
            kind = "distinct" if kind == "count" else kind
            value = _combine_values(value.expressions)
        elif kind == "count" and node.expressions:
            self._refusal.refuse(node, "count of several columns is not supported", fix="count(*)")
        if isinstance(node, exp.CountIf):
            value = _case_when(value, exp.Literal.number(1))
        return column(self._aggregate_name(kind, value, condition))

    def _aggregate_name(self, kind: AggregateKind, value: exp.Expr | None, condition: exp.Expr | None) -> str:
        """Returns the column of an aggregate; equal aggregates share one."""
        if isinstance(value, exp.Star) or (kind == "count" and isinstance(value, exp.Literal)):
            value = None
        if condition is not None:
            value = _case_when(condition, value if value is not None else exp.Literal.number(1))
        source = None if value is None else self.values.setdefault(value, f"value.{len(self.values)}")
        new = Aggregate(f"aggregate.{len(self.aggregates)}", kind, source)
        return self.aggregates.setdefault((kind, source), new).name


def _combine_values(values: list[exp.Expr]) -> exp.Expr:
    """Returns several values as one; null if one of them is null, because such rows are not counted."""
    if len(values) == 1:
        return values[0]
    present = exp.and_(*(exp.Not(this=exp.Is(this=each.copy(), expression=exp.Null())) for each in values))
    names = [exp.to_identifier(f"m{number}") for number in range(len(values))]
    members = [exp.PropertyEQ(this=name, expression=each) for name, each in zip(names, values, strict=True)]
    return _case_when(present, exp.Struct(expressions=members))


def _case_when(condition: exp.Expr | None, value: exp.Expr) -> exp.Expr:
    """Returns the value where the condition is true, and null elsewhere."""
    return exp.Case(ifs=[exp.If(this=condition, true=value)])


Sides = tuple[frozenset[str], frozenset[str]]
Equality = tuple[exp.Expr, exp.Expr]
"""An expression of the left side and an expression of the right side that must be equal."""


def join_relations(
    left: Relation, right: Relation, join: exp.Join, conditions: list[exp.Expr], sides: Sides, refusal: QueryRefusal
) -> tuple[Relation, list[exp.Expr]]:
    """Returns the join of two relations whose columns are named `alias.column`.

    Args:
        left: The rows before JOIN.
        right: The rows after JOIN.
        join: The clause.
        conditions: The conditions of WHERE: a join without ON takes its equalities from them.
        sides: The table aliases of each side.
        refusal: For error messages.

    Returns:
        The join, and the remaining conditions of WHERE.

    Raises:
        BadSqlError: The join has no equality between both sides, or a condition of an outer join reads both sides.

    Example:
        >>> from sqlglot import parse_one
        >>> from headwater.pipelines.tables.relation import Scan
        >>> (clause,) = parse_one("select 1 from posts p join users u on p.author = u.name").args["joins"]
        >>> sides = frozenset(["p"]), frozenset(["u"])
        >>> posts, users = Scan("posts", ("p.author",)), Scan("users", ("u.name",))
        >>> rows, left = join_relations(posts, users, clause, [], sides, QueryRefusal("view", None))
        >>> rows.on, left
        ((('p.author', 'u.name'),), [])
    """
    how = _join_type(join, refusal)
    given = join.args.get("on")
    if given is None and how == "inner":
        rest: list[exp.Expr] = []
        equal, conditions = _split_equalities(conditions, sides)
    else:
        equal, rest = _split_equalities(conjuncts(given) if given else [], sides)
    if not equal:
        fix = "on left.column = right.column"
        refusal.refuse(join, "a join needs a column of each side that must be equal", fix=fix)
    pairs = [(flatten_columns(mine, refusal), flatten_columns(other, refusal)) for mine, other in equal]
    if how != "inner":
        left, right, rest = _filter_sides(left, right, how, rest, sides, refusal)
        pairs = _null_unmatched_keys(pairs, rest, sides, refusal)
    columns = left.columns if how in ("semi", "anti") else (*left.columns, *right.columns)
    left, left_keys = _add_key_columns(left, [mine for mine, _ in pairs], "left")
    right, right_keys = _add_key_columns(right, [other for _, other in pairs], "right")
    joined: Relation = Join(left, right, how, tuple(zip(left_keys, right_keys, strict=True)), columns)
    if how == "inner" and rest:
        joined = Where(joined, flatten_columns(exp.and_(*rest), refusal))
    return joined, conditions


def _join_type(join: exp.Join, refusal: QueryRefusal) -> JoinType:
    if join.args.get("method"):
        refusal.refuse(join, f"a {join.args['method'].lower()} join is not supported", fix="join … on …")
    clause = (join.side.upper(), join.kind.upper())
    join_types: dict[tuple[str, str], JoinType] = {
        ("", ""): "inner", ("", "INNER"): "inner", ("", "CROSS"): "inner", ("LEFT", ""): "left",
        ("LEFT", "OUTER"): "left", ("RIGHT", ""): "right", ("RIGHT", "OUTER"): "right", ("FULL", ""): "full",
        ("FULL", "OUTER"): "full", ("LEFT", "SEMI"): "semi", ("", "SEMI"): "semi", ("LEFT", "ANTI"): "anti",
        ("", "ANTI"): "anti",
    }  # fmt: skip
    if clause not in join_types:
        refusal.refuse(join, "this kind of join is not supported", fix="inner, left, right or full join")
    return join_types[clause]


def _split_equalities(parts: Iterable[exp.Expr], sides: Sides) -> tuple[list[Equality], list[exp.Expr]]:
    """Returns the equalities between both sides, and all other conditions."""
    equal: list[Equality] = []
    rest = []
    for part in parts:
        bare = part.unnest()
        one, other = (bare.this, bare.expression) if type(bare) is exp.EQ else (bare, bare)
        ones, others = aliases_in(one), aliases_in(other)
        if ones and others and ones <= sides[0] and others <= sides[1]:
            equal.append((one, other))
        elif ones and others and ones <= sides[1] and others <= sides[0]:
            equal.append((other, one))
        else:
            rest.append(part)
    return equal, rest


def _filter_sides(
    left: Relation, right: Relation, how: JoinType, rest: list[exp.Expr], sides: Sides, refusal: QueryRefusal
) -> tuple[Relation, Relation, list[exp.Expr]]:
    """Apply conditions on the side whose unmatched rows are dropped; returns both sides and the other conditions."""
    side = {"left": 1, "semi": 1, "anti": 1, "right": 0}.get(how)
    if side is None:
        return left, right, rest
    mine = [part for part in rest if aliases_in(part) <= sides[side]]
    rows = [left, right]
    if mine:
        rows[side] = Where(rows[side], flatten_columns(exp.and_(*mine), refusal))
    return rows[0], rows[1], [part for part in rest if not any(part is each for each in mine)]


def _null_unmatched_keys(
    pairs: list[tuple[exp.Expr, exp.Expr]], rest: list[exp.Expr], sides: Sides, refusal: QueryRefusal
) -> list[tuple[exp.Expr, exp.Expr]]:
    """Returns keys of an outer join, null where a further condition fails: such a row has no partner."""
    for part in rest:
        tables = aliases_in(part)
        condition = flatten_columns(part, refusal)
        mine, other = pairs[0]
        if tables <= sides[0]:
            pairs = [(_case_when(condition, mine), other), *pairs[1:]]
        elif tables <= sides[1]:
            pairs = [(mine, _case_when(condition, other)), *pairs[1:]]
        else:
            refusal.refuse(part, "apart from equalities, a condition of an outer join may read one side only")
    return pairs


def _add_key_columns(rows: Relation, keys: list[exp.Expr], side: str) -> tuple[Relation, list[str]]:
    """Returns the rows with their keys as columns; keys that are columns already are reused."""
    names = [key.name if isinstance(key, exp.Column) else f"{side}.{number}" for number, key in enumerate(keys)]
    added = [(name, key) for name, key in zip(names, keys, strict=True) if not isinstance(key, exp.Column)]
    if not added:
        return rows, names
    return Project(rows, (*((name, column(name)) for name in rows.columns), *added)), names


_TOP_FIX = "select * from (select *, row_number() over (partition by … order by …) as place from …) where place <= 3"


def upper_bounds(conditions: Iterable[exp.Expr]) -> dict[tuple[str, str], int]:
    """Returns the upper bound that conditions set for each (alias, column).

    Example:
        >>> from sqlglot import parse_one
        >>> upper_bounds([parse_one("t.place <= 3"), parse_one("t.x = 'a'")])
        {('t', 'place'): 3}
    """
    found: dict[tuple[str, str], int] = {}
    for condition in conditions:
        bare = condition.unnest()
        if isinstance(bare, exp.Between):
            bare = exp.LTE(this=bare.this, expression=bare.args["high"])
        if isinstance(bare, (exp.GTE, exp.GT)):
            turned = exp.LTE if isinstance(bare, exp.GTE) else exp.LT
            bare = turned(this=bare.expression, expression=bare.this)
        if isinstance(bare, (exp.LTE, exp.LT, exp.EQ)) and isinstance(bare.this, exp.Column):
            number = _integer_literal(bare.expression)
            if number is not None:
                found[bare.this.table, bare.this.name] = number - isinstance(bare, exp.LT)
    return found


def _integer_literal(literal: exp.Expr) -> int | None:
    whole = isinstance(literal, exp.Literal) and not literal.is_string and literal.name.isdigit()
    return int(literal.name) if whole else None


def rank_rows(
    rows: Relation, items: list[tuple[str, exp.Expr]], bounds: Mapping[str, int], refusal: QueryRefusal
) -> tuple[Relation, list[tuple[str, exp.Expr]]]:
    """Translate a bounded `row_number()` to the first rows of each partition.

    Raises:
        BadSqlError: The query has another window function, or a row number without an upper bound.

    Example:
        >>> from sqlglot import parse_one
        >>> from headwater.pipelines.tables.relation import Scan
        >>> items = [("place", parse_one("row_number() over (order by x desc)"))]
        >>> rows, changed = rank_rows(Scan("a", ("x",)), items, {"place": 3}, QueryRefusal("view", None))
        >>> rows.count, rows.rank, changed[0][1].sql()
        (3, 'rank.place', '"rank.place"')
    """
    changed = []
    for name, item in items:
        for window in item.find_all(exp.Window):
            if window is not item or not isinstance(window.this, exp.RowNumber):
                refusal.refuse(window, "of window functions only row_number() is supported", fix=_TOP_FIX)
            if name not in bounds:
                refusal.refuse(
                    window, "without an upper bound, a new row changes the number of every other row", fix=_TOP_FIX
                )
            rows = _to_top(rows, window, name, bounds[name], refusal)
        changed.append((name, column(f"rank.{name}") if isinstance(item, exp.Window) else item))
    return rows, changed


def _to_top(rows: Relation, window: exp.Window, name: str, count: int, refusal: QueryRefusal) -> Relation:
    order = window.args.get("order")
    if order is None or window.args.get("spec"):
        refusal.refuse(window, "row_number() needs ORDER BY, and no frame")
    per = [(f"per.{name}.{number}", each) for number, each in enumerate(window.args.get("partition_by") or ())]
    by = [(f"by.{name}.{number}", each.this) for number, each in enumerate(order.expressions)]
    below = Project(rows, (*((each, column(each)) for each in rows.columns), *per, *by))
    sort_keys = _sort_keys(order, [each for each, _ in by])
    return Top(below, tuple(each for each, _ in per), sort_keys, count, rank=f"rank.{name}")


def apply_limit(rows: Relation, tree: exp.Expr, by: tuple[str, ...], refusal: QueryRefusal) -> Relation:
    """Translate ORDER BY … LIMIT.

    Args:
        rows: The rows.
        tree: The query with the clauses.
        by: The columns of the order; empty if ORDER BY names columns of the rows.
        refusal: For error messages.

    Raises:
        BadSqlError: The query has ORDER BY without LIMIT, or LIMIT without ORDER BY.

    Example:
        >>> from sqlglot import parse_one
        >>> from headwater.pipelines.tables.relation import Scan
        >>> tree = parse_one("select x from a order by x desc limit 3")
        >>> apply_limit(Scan("a", ("x",)), tree, ("x",), QueryRefusal("view", None)).count
        3
    """
    limit, order = tree.args.get("limit"), tree.args.get("order")
    if limit is None and order is None:
        return rows
    if limit is None:
        refusal.refuse(order or "ORDER BY", "a view has no order", fix="order by … limit 10, or no order by")
    count = _integer_literal(limit.expression) if isinstance(limit, exp.Limit) else None
    if order is None or count is None:
        refusal.refuse(limit or "LIMIT", "LIMIT needs ORDER BY and a plain number", fix="order by … limit 10")
    names = by or tuple(each.this.name for each in order.expressions)
    for name in names:
        if name not in rows.columns:
            refusal.refuse(order, "it must name columns of the result")
    return Top(rows, (), _sort_keys(order, names), count)


def _sort_keys(order: exp.Expr, names: Iterable[str]) -> tuple[SortKey, ...]:
    return tuple(
        SortKey(name, bool(each.args.get("desc")), bool(each.args.get("nulls_first")))
        for name, each in zip(names, order.expressions, strict=True)
    )
