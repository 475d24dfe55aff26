"""GROUP BY and aggregates: expressions over rows below the group, expressions over its values above."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlglot import exp

from headwater.pipelines.tables.refusal import Asked
from headwater.pipelines.tables.relation import Aggregate, Group, Kind, Project, Relation, Where
from headwater.pipelines.tables.spelling import column, located

__all__ = ["grouped", "has_aggregates"]

Items = list[tuple[str, exp.Expr]]
_KINDS: Final[dict[type[exp.Expr], Kind]] = {
    exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max", exp.CountIf: "count",
    exp.LogicalOr: "max", exp.LogicalAnd: "min",
}  # fmt: skip
_SAME: Final = "its value depends on the order of rows, or cannot be kept up to date in small steps"


def has_aggregates(trees: Iterable[exp.Expr | None]) -> bool:
    """Whether an aggregate stands in one of the expressions, other than over a window.

    Example:
        >>> from sqlglot import parse_one
        >>> has_aggregates([parse_one("1 + count(*)")]), has_aggregates([parse_one("sum(x) over ()")])
        (True, False)
    """
    found = (each for tree in trees if tree is not None for each in tree.find_all(exp.AggFunc))
    return any(not each.find_ancestor(exp.Window) for each in found)


def grouped(
    rows: Relation, tree: exp.Select, items: Items, sorting: list[exp.Expr], asked: Asked
) -> tuple[Relation, Items, list[exp.Expr]]:
    """The groups of a SELECT, and its items and ORDER BY in terms of them.

    Raises:
        BadSqlError: An aggregate that is not known, or a column outside of one that is no part of GROUP BY.

    Example:
        >>> from sqlglot import parse_one
        >>> from headwater.pipelines.tables.relation import Scan
        >>> tree = parse_one("select p.author, count(*) + 1 as n from posts p group by p.author")
        >>> items = [(item.alias_or_name, item.unalias()) for item in tree.expressions]
        >>> groups, above, _ = grouped(Scan("posts", ("p.author",)), tree, items, [], Asked("view", None))
        >>> groups.columns, [(name, item.sql()) for name, item in above]
        (('group.0', 'aggregate.0'), [('author', '"group.0"'), ('n', '"aggregate.0" + 1')])
    """
    over = _Over(_keys(tree, items, asked), asked)
    above = [(name, over.rewritten(item)) for name, item in items]
    having = tree.args.get("having")
    condition = over.rewritten(having.this) if having else None
    shown = {name for name, _ in items}
    ordered = [each if _names_output(each, shown) else over.rewritten(each) for each in sorting]
    below = Project(
        rows, tuple((f"group.{number}", key) for number, key in enumerate(over.keys)) + over.values
    )
    groups: Relation = Group(
        below, tuple(f"group.{number}" for number in range(len(over.keys))), over.aggregates
    )
    return (Where(groups, condition) if condition is not None else groups), above, ordered


def _names_output(each: exp.Expr, shown: set[str]) -> bool:
    return isinstance(each, exp.Column) and not each.table and each.name in shown


def _keys(tree: exp.Select, items: Items, asked: Asked) -> list[exp.Expr]:
    group = tree.args.get("group")
    if group is None:
        return []
    for clause in ("grouping_sets", "cube", "rollup", "totals"):
        if group.args.get(clause):
            asked.refuse(group, f"{clause.replace('_', ' ').upper()} is not supported")
    for each in group.expressions:
        if isinstance(each, (exp.Rollup, exp.Cube, exp.GroupingSets)):
            asked.refuse(each, "only plain columns and expressions can be grouped by")
    if group.args.get("all"):
        return [located(item, asked) for _, item in items if not has_aggregates([item])]
    return list(dict.fromkeys(located(each, asked) for each in group.expressions))


class _Over:
    """Expressions in terms of groups: keys and aggregates become columns."""

    def __init__(self, keys: list[exp.Expr], asked: Asked) -> None:
        self.keys = keys
        self._asked = asked
        self._known = {key: f"group.{number}" for number, key in enumerate(keys)}
        self._values: dict[exp.Expr, str] = {}
        self._aggregates: dict[tuple[Kind, str | None], Aggregate] = {}

    @property
    def values(self) -> tuple[tuple[str, exp.Expr], ...]:
        return tuple((name, value) for value, name in self._values.items())

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(self._aggregates.values())

    def rewritten(self, tree: exp.Expr) -> exp.Expr:
        return self._node(located(tree, self._asked))

    def _node(self, node: exp.Expr) -> exp.Expr:
        if node in self._known:
            return column(self._known[node])
        if isinstance(node, exp.Filter):
            return self._aggregate(node.this, node.expression.this)
        if isinstance(node, exp.AggFunc) and not isinstance(node.parent, exp.Window):
            return self._aggregate(node, None)
        if isinstance(node, exp.Column):
            name = node.name.split(".")[-1]
            fix = f"group by {name}, or max({name})"
            self._asked.refuse(name, "it is neither in GROUP BY nor inside an aggregate", fix=fix)
        for child in list(node.iter_expressions()):
            changed = self._node(child)
            if changed is not child:
                child.replace(changed)
        return node

    def _aggregate(self, node: exp.Expr, condition: exp.Expr | None) -> exp.Expr:
        kind = _KINDS.get(type(node))
        if kind is None:
            self._asked.refuse(node, _SAME, fix="count, sum, avg, min, max or count(distinct …)")
        if has_aggregates(node.iter_expressions()):
            self._asked.refuse(node, "an aggregate inside an aggregate")
        value: exp.Expr | None = node.this
        if isinstance(value, exp.Distinct):
            if kind in ("sum", "avg"):
                self._asked.refuse(node, f"{kind} of distinct values is not supported")
            kind = "distinct" if kind == "count" else kind
            value = _one(value.expressions)
        elif kind == "count" and node.expressions:
            self._asked.refuse(node, "count of several columns is not supported", fix="count(*)")
        if isinstance(node, exp.CountIf):
            value = _if(value, exp.Literal.number(1))
        return column(self._named(kind, value, condition))

    def _named(self, kind: Kind, value: exp.Expr | None, condition: exp.Expr | None) -> str:
        if isinstance(value, exp.Star) or (kind == "count" and isinstance(value, exp.Literal)):
            value = None
        if condition is not None:
            value = _if(condition, value if value is not None else exp.Literal.number(1))
        place = None if value is None else self._values.setdefault(value, f"value.{len(self._values)}")
        known = self._aggregates.get((kind, place))
        if known is None:
            known = Aggregate(f"aggregate.{len(self._aggregates)}", kind, place)
            self._aggregates[kind, place] = known
        return known.name


def _one(values: list[exp.Expr]) -> exp.Expr:
    """Several values as one; null if one of them is: such rows are not counted."""
    if len(values) == 1:
        return values[0]
    there = exp.and_(*(exp.Not(this=exp.Is(this=each.copy(), expression=exp.Null())) for each in values))
    members = [
        exp.PropertyEQ(this=exp.to_identifier(f"m{number}"), expression=each)
        for number, each in enumerate(values)
    ]
    return _if(there, exp.Struct(expressions=members))


def _if(condition: exp.Expr | None, value: exp.Expr) -> exp.Expr:
    return exp.Case(ifs=[exp.If(this=condition, true=value)])
