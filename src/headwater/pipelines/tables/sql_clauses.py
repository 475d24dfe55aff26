"""Translates SQL clauses to relational steps: GROUP BY with aggregates, JOIN, and top-N.

GROUP BY is split into expressions over the input rows and expressions over the group's values. JOIN is split into the
columns that must be equal and the remaining conditions. Top-N is `row_number() … <= k` or `order by … limit k`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

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
from headwater.pipelines.tables.sql_nodes import (
    QueryRefusal,
    aliases_in,
    column,
    conjunction,
    conjuncts,
    flatten_columns,
)

__all__ = ["apply_limit", "group_rows", "has_aggregates", "join_relations", "rank_rows", "upper_bounds"]

SelectItems = list[tuple[str, exp.Expr]]
_AGGREGATE_KINDS: Final[dict[type[exp.Expr], AggregateKind]] = {
    exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.CountIf: "count",
    exp.LogicalOr: "max", exp.LogicalAnd: "min",
}  # fmt: skip
_NOT_INCREMENTAL: Final = "its value depends on the order of rows, or cannot be kept up to date in small steps"


def has_aggregates(trees: Iterable[exp.Expr | None]) -> bool:
    """Returns whether one of the expressions contains an aggregate, other than over a window.

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
    """Returns the groups of a SELECT, and its items and ORDER BY in terms of them.

    Raises:
        BadSqlError: An aggregate that is not known, or a column outside of one that is no part of GROUP BY.

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
    shown = {name for name, _ in items}
    ordered = [each if _names_output(each, shown) else rewriter.rewrite(each) for each in sorting]
    below = Project(rows, tuple((f"group.{number}", key) for number, key in enumerate(rewriter.keys)) + rewriter.values)
    groups: Relation = GroupBy(
        below, tuple(f"group.{number}" for number in range(len(rewriter.keys))), rewriter.aggregates
    )
    return (Where(groups, condition) if condition is not None else groups), above, ordered


def _names_output(each: exp.Expr, shown: set[str]) -> bool:
    return isinstance(each, exp.Column) and not each.table and each.name in shown


def _group_keys(tree: exp.Select, items: SelectItems, refusal: QueryRefusal) -> list[exp.Expr]:
    group = tree.args.get("group")
    if group is None:
        return []
    for clause in ("grouping_sets", "cube", "rollup", "totals"):
        if group.args.get(clause):
            refusal.refuse(group, f"{clause.replace('_', ' ').upper()} is not supported")
    for each in group.expressions:
        if isinstance(each, (exp.Rollup, exp.Cube, exp.GroupingSets)):
            refusal.refuse(each, "only plain columns and expressions can be grouped by")
    if group.args.get("all"):
        return [flatten_columns(item, refusal) for _, item in items if not has_aggregates([item])]
    return list(dict.fromkeys(flatten_columns(each, refusal) for each in group.expressions))


class _GroupRewriter:
    """Rewrites expressions in terms of groups: keys and aggregates become columns."""

    def __init__(self, keys: list[exp.Expr], refusal: QueryRefusal) -> None:
        self.keys = keys
        self._refusal = refusal
        self._key_columns = {key: f"group.{number}" for number, key in enumerate(keys)}
        self._values: dict[exp.Expr, str] = {}
        self._aggregates: dict[tuple[AggregateKind, str | None], Aggregate] = {}

    @property
    def values(self) -> tuple[tuple[str, exp.Expr], ...]:
        return tuple((name, value) for value, name in self._values.items())

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(self._aggregates.values())

    def rewrite(self, tree: exp.Expr) -> exp.Expr:
        return self._rewrite_node(flatten_columns(tree, self._refusal))

    def _rewrite_node(self, node: exp.Expr) -> exp.Expr:
        if node in self._key_columns:
            return column(self._key_columns[node])
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
            self._refusal.refuse(node, "an aggregate inside an aggregate")
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
        if isinstance(value, exp.Star) or (kind == "count" and isinstance(value, exp.Literal)):
            value = None
        if condition is not None:
            value = _case_when(condition, value if value is not None else exp.Literal.number(1))
        value_column = None if value is None else self._values.setdefault(value, f"value.{len(self._values)}")
        aggregate = self._aggregates.get((kind, value_column))
        if aggregate is None:
            aggregate = Aggregate(f"aggregate.{len(self._aggregates)}", kind, value_column)
            self._aggregates[kind, value_column] = aggregate
        return aggregate.name


def _combine_values(values: list[exp.Expr]) -> exp.Expr:
    """Returns several values as one; null if one of them is null, because such rows are not counted."""
    if len(values) == 1:
        return values[0]
    all_present = exp.and_(*(exp.Not(this=exp.Is(this=each.copy(), expression=exp.Null())) for each in values))
    members = [
        exp.PropertyEQ(this=exp.to_identifier(f"m{number}"), expression=each) for number, each in enumerate(values)
    ]
    return _case_when(all_present, exp.Struct(expressions=members))


def _case_when(condition: exp.Expr | None, value: exp.Expr) -> exp.Expr:
    return exp.Case(ifs=[exp.If(this=condition, true=value)])


Sides = tuple[frozenset[str], frozenset[str]]
Equality = tuple[exp.Expr, exp.Expr, exp.Expr]
"""An expression of the left side, one of the right, and the condition that says they are equal."""


def join_relations(
    left: Relation, right: Relation, join: exp.Join, conditions: list[exp.Expr], sides: Sides, refusal: QueryRefusal
) -> tuple[Relation, list[exp.Expr]]:
    """Returns the join of two relations whose columns are named `alias.column`.

    Args:
        left: What stands before JOIN.
        right: What stands after it.
        join: The clause.
        conditions: The conditions of WHERE: a join without ON takes its equalities from there.
        sides: The aliases that stand before columns of either.
        refusal: For error messages.

    Returns:
        The join, and the conditions of WHERE that are left.

    Raises:
        BadSqlError: No columns of the two sides must be equal, or a row's partners cannot be found by equality alone.

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
    equal, rest, conditions = _split_conditions(join, how, conditions, sides)
    if not equal:
        fix = "on left.column = right.column"
        refusal.refuse(join, "a join needs a column of each side that must be equal", fix=fix)
    pairs = [(flatten_columns(mine, refusal), flatten_columns(other, refusal)) for mine, other, _ in equal]
    if how != "inner":
        left, right, rest = _filter_sides(left, right, how, rest, sides, refusal)
        pairs = _null_unmatched_keys(pairs, rest, sides, refusal)
    both: Relation = _join_on_keys(left, right, how, pairs)
    if how == "inner" and rest:
        both = Where(both, flatten_columns(conjunction(rest), refusal))
    return both, conditions


def _split_conditions(
    join: exp.Join, how: JoinType, conditions: list[exp.Expr], sides: Sides
) -> tuple[list[Equality], list[exp.Expr], list[exp.Expr]]:
    """Returns the equalities, the other join conditions, and the remaining conditions of WHERE."""
    given = join.args.get("on")
    if given is None and how == "inner":
        equal, _ = _split_equalities(conditions, sides)
        return equal, [], [part for part in conditions if not any(part is pair[2] for pair in equal)]
    equal, rest = _split_equalities(conjuncts(given) if given else [], sides)
    return equal, rest, conditions


def _join_on_keys(left: Relation, right: Relation, how: JoinType, pairs: list[tuple[exp.Expr, exp.Expr]]) -> Join:
    """Returns the join of two relations by key expressions."""
    kept = left.columns if how in ("semi", "anti") else (*left.columns, *right.columns)
    left, mine_names = _add_key_columns(left, [mine for mine, _ in pairs], "left")
    right, other_names = _add_key_columns(right, [other for _, other in pairs], "right")
    return Join(left, right, how, tuple(zip(mine_names, other_names, strict=True)), kept)


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
    """Returns the equalities between both sides with their conditions, and all other conditions."""
    equal, rest = [], []
    for part in parts:
        bare = part.unnest()
        found = _match_sides(bare, sides) if type(bare) is exp.EQ else None
        if found is None:
            rest.append(part)
        else:
            equal.append((*found, part))
    return equal, rest


def _match_sides(equality: exp.Expr, sides: Sides) -> tuple[exp.Expr, exp.Expr] | None:
    one, other = cast(exp.Expr, equality.this), cast(exp.Expr, equality.expression)
    ones, others = aliases_in(one), aliases_in(other)
    if not ones or not others:
        return None
    if ones <= sides[0] and others <= sides[1]:
        return one, other
    return (other, one) if ones <= sides[1] and others <= sides[0] else None


def _filter_sides(
    left: Relation, right: Relation, how: JoinType, rest: list[exp.Expr], sides: Sides, refusal: QueryRefusal
) -> tuple[Relation, Relation, list[exp.Expr]]:
    """Filter the side that is not preserved; returns both sides and the remaining conditions."""
    side = {"left": 1, "semi": 1, "anti": 1, "right": 0}.get(how)
    if side is None:
        return left, right, rest
    mine = [part for part in rest if aliases_in(part) <= sides[side]]
    rows = [left, right]
    if mine:
        rows[side] = Where(rows[side], flatten_columns(conjunction(mine), refusal))
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
            pairs = [(_null_unless(condition, mine), other), *pairs[1:]]
        elif tables <= sides[1]:
            pairs = [(mine, _null_unless(condition, other)), *pairs[1:]]
        else:
            refusal.refuse(part, "beside equality, a condition of an outer join may look at one side only")
    return pairs


def _null_unless(condition: exp.Expr, value: exp.Expr) -> exp.Expr:
    return exp.Case(ifs=[exp.If(this=condition, true=value)])


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
        highest = _upper_bound(bare)
        if highest is not None:
            found[bare.this.table, bare.this.name] = highest
    return found


def _upper_bound(bare: exp.Expr) -> int | None:
    if not isinstance(bare, (exp.LTE, exp.LT, exp.EQ)) or not isinstance(bare.this, exp.Column):
        return None
    number = _integer_literal(bare.expression)
    return number - 1 if number is not None and isinstance(bare, exp.LT) else number


def _integer_literal(literal: exp.Expr) -> int | None:
    whole = isinstance(literal, exp.Literal) and not literal.is_string and literal.name.isdigit()
    return int(literal.name) if whole else None


def rank_rows(
    rows: Relation, items: list[tuple[str, exp.Expr]], bounds: Mapping[str, int], refusal: QueryRefusal
) -> tuple[Relation, list[tuple[str, exp.Expr]]]:
    """Translate a bounded `row_number()` to the first rows of each partition.

    Raises:
        BadSqlError: Another window function, or a row number without a bound.

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
                refusal.refuse(window, "every row's number would change with each row", fix=_TOP_FIX)
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
    return Top(
        below, tuple(each for each, _ in per), _sort_keys(order, [each for each, _ in by]), count, rank=f"rank.{name}"
    )


def apply_limit(rows: Relation, tree: exp.Expr, by: tuple[str, ...], refusal: QueryRefusal) -> Relation:
    """Translate ORDER BY … LIMIT of a query with this order.

    Raises:
        BadSqlError: One without the other.

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
        refusal.refuse(
            limit or "LIMIT", "LIMIT needs ORDER BY and a plain number: which rows would stay?", fix="order by …"
        )
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
