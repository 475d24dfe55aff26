"""The same relation with less in it: conditions go down to the rows they look at, unused columns are left out."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from headwater.pipelines.tables.relation import (
    Distinct,
    Group,
    Join,
    Project,
    Relation,
    Scan,
    Top,
    Union,
    Where,
)
from headwater.pipelines.tables.spelling import conjuncts, together

__all__ = ["names_in", "narrowed"]


def narrowed(relation: Relation) -> Relation:
    """The relation with conditions as far down as they can be, and without columns that nobody uses.

    Example:
        >>> posts = Scan("posts", ("id", "likes", "text"))
        >>> narrowed(Project(posts, (("id", exp.column("id")),))).input
        Scan(table='posts', columns=('id',))
    """
    return _pruned(_pushed(relation), frozenset(relation.columns))


def names_in(tree: exp.Expr) -> frozenset[str]:
    """The columns that an expression looks at.

    Example:
        >>> from sqlglot import parse_one
        >>> sorted(names_in(parse_one("a + b * a")))
        ['a', 'b']
    """
    return frozenset(found.name for found in tree.find_all(exp.Column))


def _pushed(relation: Relation) -> Relation:
    if isinstance(relation, Where):
        return _with(_pushed(relation.input), conjuncts(relation.condition))
    if isinstance(relation, Scan):
        return relation
    if isinstance(relation, Union):
        return Union(tuple(_pushed(each) for each in relation.inputs))
    if isinstance(relation, Join):
        left, right = _pushed(relation.left), _pushed(relation.right)
        return Join(left, right, relation.how, relation.on, relation.columns)
    if isinstance(relation, Project):
        return Project(_pushed(relation.input), relation.items)
    if isinstance(relation, Group):
        return Group(_pushed(relation.input), relation.keys, relation.aggregates)
    if isinstance(relation, Top):
        return Top(_pushed(relation.input), relation.per, relation.by, relation.count, relation.rank)
    return Distinct(_pushed(relation.input))


def _with(relation: Relation, parts: list[exp.Expr]) -> Relation:
    """The relation with conditions, each put on the side of a join that alone it looks at, where that is the same."""
    if not parts:
        return relation
    if isinstance(relation, Where):
        return _with(relation.input, [*conjuncts(relation.condition), *parts])
    if not isinstance(relation, Join):
        return Where(relation, together(parts))
    left, right, rest = [], [], []
    for part in parts:
        names = names_in(part)
        if relation.how in ("inner", "left", "semi", "anti") and names <= set(relation.left.columns):
            left.append(part)
        elif relation.how in ("inner", "right") and names <= set(relation.right.columns):
            right.append(part)
        else:
            rest.append(part)
    sides = _with(relation.left, left), _with(relation.right, right)
    narrow: Relation = Join(*sides, relation.how, relation.on, relation.columns)
    return Where(narrow, together(rest)) if rest else narrow


def _pruned(relation: Relation, used: frozenset[str]) -> Relation:
    if isinstance(relation, Scan):
        # A row without columns would be no row: one column stays, also for `count(*)`.
        return Scan(relation.table, _kept(relation.columns, used) or relation.columns[:1])
    if isinstance(relation, Where):
        return Where(_pruned(relation.input, used | names_in(relation.condition)), relation.condition)
    if isinstance(relation, Project):
        items = tuple((name, tree) for name, tree in relation.items if name in used)
        below = frozenset(name for _, tree in items for name in names_in(tree))
        return Project(_pruned(relation.input, below), items)
    if isinstance(relation, Join):
        return _pruned_join(relation, used)
    if isinstance(relation, Union):
        places = [number for number, name in enumerate(relation.columns) if name in used]
        return Union(tuple(_pruned(each, _at(each, places)) for each in relation.inputs))
    if isinstance(relation, Group):
        values = {aggregate.column for aggregate in relation.aggregates if aggregate.column is not None}
        below = frozenset(relation.keys) | values
        return Group(_pruned(relation.input, below), relation.keys, relation.aggregates)
    if isinstance(relation, Top):
        below = (
            used.intersection(relation.input.columns) | set(relation.per) | {by.column for by in relation.by}
        )
        return Top(_pruned(relation.input, below), relation.per, relation.by, relation.count, relation.rank)
    return Distinct(_pruned(relation.input, frozenset(relation.columns)))


def _pruned_join(relation: Join, used: frozenset[str]) -> Join:
    left, right = ({pair[side] for pair in relation.on} for side in (0, 1))
    return Join(
        _pruned(relation.left, used.intersection(relation.left.columns) | left),
        _pruned(relation.right, used.intersection(relation.right.columns) | right),
        relation.how,
        relation.on,
        _kept(relation.columns, used),
    )


def _at(relation: Relation, places: Iterable[int]) -> frozenset[str]:
    return frozenset(relation.columns[place] for place in places)


def _kept(names: Iterable[str], used: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in used)
