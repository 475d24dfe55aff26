"""FROM … JOIN: which columns must be equal, and what becomes of the other conditions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from sqlglot import exp

from headwater.pipelines.tables.refusal import Asked
from headwater.pipelines.tables.relation import How, Join, Project, Relation, Where
from headwater.pipelines.tables.spelling import column, conjuncts, located, tables_in, together

__all__ = ["joined"]

Sides = tuple[frozenset[str], frozenset[str]]
Equality = tuple[exp.Expr, exp.Expr, exp.Expr]
"""An expression of the left side, one of the right, and the condition that says they are equal."""


def joined(
    left: Relation,
    right: Relation,
    join: exp.Join,
    conditions: list[exp.Expr],
    sides: Sides,
    asked: Asked,
) -> tuple[Relation, list[exp.Expr]]:
    """The join of two relations whose columns are named `alias.column`.

    Args:
        left: What stands before JOIN.
        right: What stands after it.
        join: The clause.
        conditions: The conditions of WHERE: a join without ON takes its equalities from there.
        sides: The aliases that stand before columns of either.
        asked: For errors.

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
        >>> rows, left = joined(posts, users, clause, [], sides, Asked("view", None))
        >>> rows.on, left
        ((('p.author', 'u.name'),), [])
    """
    how = _how(join, asked)
    equal, rest, conditions = _conditions(join, how, conditions, sides)
    if not equal:
        fix = "on left.column = right.column"
        asked.refuse(join, "a join needs a column of each side that must be equal", fix=fix)
    pairs = [(located(mine, asked), located(other, asked)) for mine, other, _ in equal]
    if how != "inner":
        left, right, rest = _filtered(left, right, how, rest, sides, asked)
        pairs = _narrowed(pairs, rest, sides, asked)
    both: Relation = _by_keys(left, right, how, pairs)
    if how == "inner" and rest:
        both = Where(both, located(together(rest), asked))
    return both, conditions


def _conditions(
    join: exp.Join, how: How, conditions: list[exp.Expr], sides: Sides
) -> tuple[list[Equality], list[exp.Expr], list[exp.Expr]]:
    """What must be equal, the rest of what the join says, and the conditions of WHERE that are left."""
    given = join.args.get("on")
    if given is None and how == "inner":
        equal, _ = _split(conditions, sides)
        return equal, [], [part for part in conditions if not any(part is pair[2] for pair in equal)]
    equal, rest = _split(conjuncts(given) if given else [], sides)
    return equal, rest, conditions


def _by_keys(left: Relation, right: Relation, how: How, pairs: list[tuple[exp.Expr, exp.Expr]]) -> Join:
    """The join of two relations by expressions over either."""
    kept = left.columns if how in ("semi", "anti") else (*left.columns, *right.columns)
    left, mine_names = _with_keys(left, [mine for mine, _ in pairs], "left")
    right, other_names = _with_keys(right, [other for _, other in pairs], "right")
    return Join(left, right, how, tuple(zip(mine_names, other_names, strict=True)), kept)


def _how(join: exp.Join, asked: Asked) -> How:
    if join.args.get("method"):
        asked.refuse(join, f"a {join.args['method'].lower()} join is not supported", fix="join … on …")
    words = (join.side.upper(), join.kind.upper())
    known: dict[tuple[str, str], How] = {
        ("", ""): "inner", ("", "INNER"): "inner", ("", "CROSS"): "inner", ("LEFT", ""): "left",
        ("LEFT", "OUTER"): "left", ("RIGHT", ""): "right", ("RIGHT", "OUTER"): "right", ("FULL", ""): "full",
        ("FULL", "OUTER"): "full", ("LEFT", "SEMI"): "semi", ("", "SEMI"): "semi", ("LEFT", "ANTI"): "anti",
        ("", "ANTI"): "anti",
    }  # fmt: skip
    if words not in known:
        asked.refuse(join, "this kind of join is not supported", fix="inner, left, right or full join")
    return known[words]


def _split(parts: Iterable[exp.Expr], sides: Sides) -> tuple[list[Equality], list[exp.Expr]]:
    """The equalities between the two sides, left first, each with the condition it came from; and all other parts."""
    equal, rest = [], []
    for part in parts:
        bare = part.unnest()
        found = _sides_of(bare, sides) if type(bare) is exp.EQ else None
        if found is None:
            rest.append(part)
        else:
            equal.append((*found, part))
    return equal, rest


def _sides_of(equality: exp.Expr, sides: Sides) -> tuple[exp.Expr, exp.Expr] | None:
    one, other = cast(exp.Expr, equality.this), cast(exp.Expr, equality.expression)
    ones, others = tables_in(one), tables_in(other)
    if not ones or not others:
        return None
    if ones <= sides[0] and others <= sides[1]:
        return one, other
    return (other, one) if ones <= sides[1] and others <= sides[0] else None


def _filtered(
    left: Relation, right: Relation, how: How, rest: list[exp.Expr], sides: Sides, asked: Asked
) -> tuple[Relation, Relation, list[exp.Expr]]:
    """The sides, of the one that is not kept whole only the rows that can be partners; and the conditions left."""
    side = {"left": 1, "semi": 1, "anti": 1, "right": 0}.get(how)
    if side is None:
        return left, right, rest
    mine = [part for part in rest if tables_in(part) <= sides[side]]
    rows = [left, right]
    if mine:
        rows[side] = Where(rows[side], located(together(mine), asked))
    return rows[0], rows[1], [part for part in rest if not any(part is each for each in mine)]


def _narrowed(
    pairs: list[tuple[exp.Expr, exp.Expr]], rest: list[exp.Expr], sides: Sides, asked: Asked
) -> list[tuple[exp.Expr, exp.Expr]]:
    """The keys of an outer join, null where a further condition on one side fails: such a row has no partner."""
    for part in rest:
        tables = tables_in(part)
        condition = located(part, asked)
        mine, other = pairs[0]
        if tables <= sides[0]:
            pairs = [(_if(condition, mine), other), *pairs[1:]]
        elif tables <= sides[1]:
            pairs = [(mine, _if(condition, other)), *pairs[1:]]
        else:
            asked.refuse(part, "beside equality, a condition of an outer join may look at one side only")
    return pairs


def _if(condition: exp.Expr, value: exp.Expr) -> exp.Expr:
    return exp.Case(ifs=[exp.If(this=condition, true=value)])


def _with_keys(rows: Relation, keys: list[exp.Expr], side: str) -> tuple[Relation, list[str]]:
    """The rows with their keys as columns; keys that are columns already stay what they are."""
    names = [
        key.name if isinstance(key, exp.Column) else f"{side}.{number}" for number, key in enumerate(keys)
    ]
    added = [(name, key) for name, key in zip(names, keys, strict=True) if not isinstance(key, exp.Column)]
    if not added:
        return rows, names
    return Project(rows, (*((name, column(name)) for name in rows.columns), *added)), names
