"""Pushdown: moves conditions towards the tables and removes unused columns; the result stays the same."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from headwater.pipelines.tables.relation import Distinct, GroupBy, Join, Project, Relation, Scan, Top, Union, Where
from headwater.pipelines.tables.sql_nodes import conjuncts

__all__ = ["columns_in", "push_down"]


def push_down(relation: Relation) -> Relation:
    """Push conditions down as far as possible, and remove unused columns.

    Example:
        >>> posts = Scan("posts", ("id", "likes", "text"))
        >>> push_down(Project(posts, (("id", exp.column("id")),))).input
        Scan(table='posts', columns=('id',))
    """
    return _prune(_push_filters(relation), frozenset(relation.columns))


def columns_in(tree: exp.Expr) -> frozenset[str]:
    """Returns the columns that an expression reads.

    Example:
        >>> from sqlglot import parse_one
        >>> sorted(columns_in(parse_one("a + b * a")))
        ['a', 'b']
    """
    return frozenset(found.name for found in tree.find_all(exp.Column))


def _push_filters(relation: Relation) -> Relation:
    if isinstance(relation, Where):
        return _add_conditions(_push_filters(relation.input), conjuncts(relation.condition))
    if isinstance(relation, Scan):
        return relation
    if isinstance(relation, Union):
        return Union(tuple(_push_filters(each) for each in relation.inputs))
    if isinstance(relation, Join):
        return replace(relation, left=_push_filters(relation.left), right=_push_filters(relation.right))
    return replace(relation, input=_push_filters(relation.input))


def _add_conditions(relation: Relation, parts: list[exp.Expr]) -> Relation:
    """Add conditions; a condition that reads columns of one join side only moves below the join, where that is valid.

    A condition must not move to the side of an outer join that gets nulls: it would no longer drop those rows.
    """
    if not parts:
        return relation
    if isinstance(relation, Where):
        return _add_conditions(relation.input, [*conjuncts(relation.condition), *parts])
    if not isinstance(relation, Join):
        return Where(relation, exp.and_(*parts))
    left, right, rest = [], [], []
    for part in parts:
        names = columns_in(part)
        if relation.how in ("inner", "left", "semi", "anti") and names <= set(relation.left.columns):
            left.append(part)
        elif relation.how in ("inner", "right") and names <= set(relation.right.columns):
            right.append(part)
        else:
            rest.append(part)
    join = replace(relation, left=_add_conditions(relation.left, left), right=_add_conditions(relation.right, right))
    return Where(join, exp.and_(*rest)) if rest else join


def _prune(relation: Relation, used: frozenset[str]) -> Relation:
    if isinstance(relation, Scan):
        # A row needs a column: one stays even if no column is used, as in `count(*)`.
        return Scan(relation.table, tuple(name for name in relation.columns if name in used) or relation.columns[:1])
    if isinstance(relation, Join):
        left, right = ({pair[side] for pair in relation.on} for side in (0, 1))
        return replace(
            relation,
            left=_prune(relation.left, used.intersection(relation.left.columns) | left),
            right=_prune(relation.right, used.intersection(relation.right.columns) | right),
            columns=tuple(name for name in relation.columns if name in used),
        )
    if isinstance(relation, Union):
        positions = [number for number, name in enumerate(relation.columns) if name in used]
        names = [frozenset(each.columns[position] for position in positions) for each in relation.inputs]
        return Union(tuple(map(_prune, relation.inputs, names)))
    if isinstance(relation, Project):
        relation = replace(relation, items=tuple((name, tree) for name, tree in relation.items if name in used))
    return replace(relation, input=_prune(relation.input, _columns_below(relation, used)))


def _columns_below(relation: Where | Project | GroupBy | Top | Distinct, used: frozenset[str]) -> frozenset[str]:
    """Returns the columns of its input that a relation reads."""
    if isinstance(relation, Where):
        return used | columns_in(relation.condition)
    if isinstance(relation, Project):
        return frozenset(name for _, tree in relation.items for name in columns_in(tree))
    if isinstance(relation, GroupBy):
        return frozenset([*relation.keys, *(each.column for each in relation.aggregates if each.column is not None)])
    if isinstance(relation, Top):
        return used.intersection(relation.input.columns) | set(relation.per) | {by.column for by in relation.by}
    return frozenset(relation.columns)
