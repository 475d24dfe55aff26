"""Pushdown: moves conditions towards the tables and removes unused columns; the result stays the same."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from headwater.pipelines.tables.relation import Distinct, GroupBy, Join, Project, Relation, Scan, Top, Union, Where
from headwater.pipelines.tables.sql_nodes import conjunction, conjuncts

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
        left, right = _push_filters(relation.left), _push_filters(relation.right)
        return Join(left, right, relation.how, relation.on, relation.columns)
    if isinstance(relation, Project):
        return Project(_push_filters(relation.input), relation.items)
    if isinstance(relation, GroupBy):
        return GroupBy(_push_filters(relation.input), relation.keys, relation.aggregates)
    if isinstance(relation, Top):
        return Top(_push_filters(relation.input), relation.per, relation.by, relation.count, relation.rank)
    return Distinct(_push_filters(relation.input))


def _add_conditions(relation: Relation, parts: list[exp.Expr]) -> Relation:
    """Add conditions, each to the join side whose columns alone it reads, where that is equivalent."""
    if not parts:
        return relation
    if isinstance(relation, Where):
        return _add_conditions(relation.input, [*conjuncts(relation.condition), *parts])
    if not isinstance(relation, Join):
        return Where(relation, conjunction(parts))
    left, right, rest = [], [], []
    for part in parts:
        names = columns_in(part)
        if relation.how in ("inner", "left", "semi", "anti") and names <= set(relation.left.columns):
            left.append(part)
        elif relation.how in ("inner", "right") and names <= set(relation.right.columns):
            right.append(part)
        else:
            rest.append(part)
    sides = _add_conditions(relation.left, left), _add_conditions(relation.right, right)
    join: Relation = Join(*sides, relation.how, relation.on, relation.columns)
    return Where(join, conjunction(rest)) if rest else join


def _prune(relation: Relation, used: frozenset[str]) -> Relation:
    if isinstance(relation, Scan):
        # A row without columns would be no row: one column stays, also for `count(*)`.
        return Scan(relation.table, _keep_columns(relation.columns, used) or relation.columns[:1])
    if isinstance(relation, Where):
        return Where(_prune(relation.input, used | columns_in(relation.condition)), relation.condition)
    if isinstance(relation, Project):
        items = tuple((name, tree) for name, tree in relation.items if name in used)
        below = frozenset(name for _, tree in items for name in columns_in(tree))
        return Project(_prune(relation.input, below), items)
    if isinstance(relation, Join):
        return _prune_join(relation, used)
    if isinstance(relation, Union):
        positions = [number for number, name in enumerate(relation.columns) if name in used]
        return Union(tuple(_prune(each, _columns_at(each, positions)) for each in relation.inputs))
    if isinstance(relation, GroupBy):
        values = {aggregate.column for aggregate in relation.aggregates if aggregate.column is not None}
        below = frozenset(relation.keys) | values
        return GroupBy(_prune(relation.input, below), relation.keys, relation.aggregates)
    if isinstance(relation, Top):
        below = used.intersection(relation.input.columns) | set(relation.per) | {by.column for by in relation.by}
        return Top(_prune(relation.input, below), relation.per, relation.by, relation.count, relation.rank)
    return Distinct(_prune(relation.input, frozenset(relation.columns)))


def _prune_join(relation: Join, used: frozenset[str]) -> Join:
    left, right = ({pair[side] for pair in relation.on} for side in (0, 1))
    return Join(
        _prune(relation.left, used.intersection(relation.left.columns) | left),
        _prune(relation.right, used.intersection(relation.right.columns) | right),
        relation.how,
        relation.on,
        _keep_columns(relation.columns, used),
    )


def _columns_at(relation: Relation, positions: Iterable[int]) -> frozenset[str]:
    return frozenset(relation.columns[position] for position in positions)


def _keep_columns(names: Iterable[str], used: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in used)
