"""Functional dependencies of a relation: finds which columns identify a row.

The rules relate columns and row ids. A row id stands for a row of a table, a group or a union. A set of columns
identifies a row of the relation if it determines all row ids of the relation.

Names with # are internal: `#3` is a row id, `#4.price` a column that a projection hides, `window#start` the start of a
window, `#either.a|b` the value of `coalesce(a, b)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

from sqlglot import exp

from headwater.pipelines.tables.pushdown import columns_in
from headwater.pipelines.tables.relation import Distinct, GroupBy, Join, Project, Relation, Scan, Top, Union, Where
from headwater.pipelines.tables.sql_nodes import QueryRefusal, conjuncts, is_window

__all__ = ["identifies", "require_key"]

Names = frozenset[str]
Keys = Mapping[str, tuple[str, ...]]
_FIXED_UNITS: Final = ("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK")
Rules = list[tuple[list[str], list[str]]]
"""Dependencies: the first names determine the second."""


def require_key(
    relation: Relation, key: tuple[str, ...], tables: Keys, refusal: QueryRefusal, windows: Keys | None = None
) -> None:
    """Refuse a key that is not in the result, or that does not identify its rows.

    Args:
        relation: The requested result.
        key: The declared key.
        tables: The key of each table.
        refusal: For error messages.
        windows: The window columns of each table. A window is determined by its start, and by its end.

    Raises:
        BadSqlError: The key does not identify a row of the result.

    Example:
        >>> require_key(Scan("posts", ("id", "author")), ("id",), {"posts": ("id",)}, QueryRefusal("view", None))
    """
    names = {name.lower(): name for name in relation.columns}
    for name in key:
        if name.lower() not in names:
            refusal.refuse(name, "the key is not among the columns of the result", fix=", ".join(relation.columns))
    if not identifies(relation, [names[name.lower()] for name in key], tables, windows):
        better = _minimal_key(relation, tables, windows)
        named = repr(better[0]) if len(better) == 1 else repr(tuple(better))
        fix = f"key={named}" if better else "select the keys of the tables as well"
        refusal.refuse(f"key {', '.join(key)}", "two rows of the result could have the same key", fix=fix)


def identifies(relation: Relation, columns: Iterable[str], tables: Keys, windows: Keys | None = None) -> bool:
    """Returns whether these columns identify the rows of a relation.

    Args:
        relation: The relation.
        columns: Some of its columns.
        tables: The key of each table.
        windows: As in `require_key`.

    Example:
        >>> posts = Scan("posts", ("id", "author"))
        >>> identifies(posts, ["id"], {"posts": ("id",)}), identifies(posts, ["author"], {"posts": ("id",)})
        (True, False)
    """
    known = _DependencyAnalysis(tables, windows or {}).analyze(relation)
    return known.row_ids <= known.closure(columns)


def _minimal_key(relation: Relation, tables: Keys, windows: Keys | None) -> list[str]:
    """Returns a small set of columns that identifies a row; empty if not even all columns do."""
    columns = list(relation.columns)
    if not identifies(relation, columns, tables, windows):
        return []
    for name in relation.columns:
        fewer = [each for each in columns if each != name]
        if identifies(relation, fewer, tables, windows):
            columns = fewer
    return columns


@dataclass(frozen=True)
class _Dependencies:
    """Functional dependencies of a relation, and the row ids that together identify its row."""

    rules: tuple[tuple[Names, Names], ...]
    row_ids: Names

    def closure(self, names: Iterable[str]) -> Names:
        found = frozenset(names)
        while True:  # until no rule adds a name
            more = found.union(*(then for given, then in self.rules if given <= found))
            if more == found:
                return found
            found = more

    def with_rules(self, *rules: tuple[Iterable[str], Iterable[str]]) -> _Dependencies:
        """Returns the dependencies with more rules."""
        added = tuple((frozenset(given), frozenset(then)) for given, then in rules)
        return _Dependencies((*self.rules, *added), self.row_ids)

    def with_nulls(self) -> _Dependencies:
        """Returns the dependencies of the nullable side of an outer join, whose constants may be null as well."""
        return _Dependencies(tuple(rule for rule in self.rules if rule[0]), self.row_ids)

    def restrict_to(self, names: Iterable[str], row_id: str) -> _Dependencies:
        """Returns the dependencies between some columns after rows were merged into rows with a new id."""
        given_names = frozenset(names)
        named = frozenset(name for rule in self.rules for part in rule for name in part)
        kept = given_names | {name for name in named if name.split("#")[0] in given_names}
        sources = {given for given, _ in self.rules if given <= kept} | {frozenset([name]) for name in kept}
        rules = tuple((given, self.closure(given) & kept) for given in sources)
        return _Dependencies(rules, frozenset([row_id]))


class _DependencyAnalysis:
    """Derives the dependencies of a relation; every node has private names for the columns it hides."""

    def __init__(self, tables: Keys, windows: Keys) -> None:
        self._tables = tables
        self._windows = windows
        self._numbers = count()

    def analyze(self, relation: Relation) -> _Dependencies:
        if isinstance(relation, Scan):
            row_id = self._new_row_id()
            windows = [rule for name in self._windows.get(relation.table, ()) for rule in _window_rules(name)]
            row = ((self._tables[relation.table], [row_id]), ([row_id], relation.columns))
            return _Dependencies((), frozenset([row_id])).with_rules(*row, *windows)
        if isinstance(relation, Where):
            return self.analyze(relation.input).with_rules(*_equality_rules(relation.condition))
        if isinstance(relation, Project):
            return self._project(relation)
        if isinstance(relation, Join):
            return self._join(relation)
        if isinstance(relation, Top):
            return self._top(relation)
        return self._combine(relation)

    def _combine(self, relation: Union | Distinct | GroupBy) -> _Dependencies:
        row_id = self._new_row_id()
        if isinstance(relation, Union):
            known = _Dependencies((), frozenset([row_id])).with_rules(([row_id], relation.columns))
            return known.with_rules(*((key, [row_id]) for key in self._union_keys(relation)))
        keys = relation.columns if isinstance(relation, Distinct) else relation.keys
        known = self.analyze(relation.input).restrict_to(keys, row_id)
        return known.with_rules((keys, [row_id]), ([row_id], relation.columns))

    def _union_keys(self, relation: Union) -> list[list[str]]:
        """Returns the keys of a union: a column with another constant in each part, and the keys of all parts."""
        positions = [
            number
            for number in range(len(relation.columns))
            if len({_constant_at(part, number) for part in relation.inputs} - {None}) == len(relation.inputs)
        ]
        keys = [_minimal_key(part, self._tables, self._windows) for part in relation.inputs]
        if not all(keys):
            return []
        parts = zip(relation.inputs, keys, strict=True)
        key_positions = {part.columns.index(name) for part, key in parts for name in key}
        return [[relation.columns[number] for number in sorted(key_positions | {position})] for position in positions]

    def _new_row_id(self) -> str:
        return f"#{next(self._numbers)}"

    def _project(self, relation: Project) -> _Dependencies:
        below = self.analyze(relation.input)
        hidden = f"#{next(self._numbers)}."
        rules = [
            (frozenset(hidden + name for name in given), frozenset(hidden + name for name in then))
            for given, then in below.rules
        ]
        known = _Dependencies(tuple(rules), frozenset(hidden + mark for mark in below.row_ids))
        for name, tree in relation.items:
            sources = [hidden + each for each in columns_in(tree)]
            known = known.with_rules(
                (sources, [name]), *(([name], [hidden + same]) for same in _invertible_names(tree))
            )
            if is_window(tree):
                known = known.with_rules(*_window_rules(name))
            if isinstance(tree, exp.Column):  # start and end of a renamed window are renamed as well
                names = {each for rule in below.rules for part in rule for each in part}
                members = sorted(each for each in names if each.startswith(f"{tree.name}#"))
                pairs = [(name + each[len(tree.name) :], hidden + each) for each in members]
                known = known.with_rules(*_equal_rules(pairs))
        return known

    def _join(self, relation: Join) -> _Dependencies:
        left, right = self.analyze(relation.left), self.analyze(relation.right)
        if relation.how in ("semi", "anti"):
            return left
        left = left if relation.how in ("inner", "left") else left.with_nulls()
        right = right if relation.how in ("inner", "right") else right.with_nulls()
        known = _Dependencies((*left.rules, *right.rules), left.row_ids | right.row_ids)
        lefts, rights = ([pair[side] for pair in relation.on] for side in (0, 1))
        # A row without a partner has nulls on the other side: they are determined by its own key, not the reverse.
        if relation.how == "inner":
            known = known.with_rules(*_equal_rules(relation.on))
        if relation.how == "left":
            known = known.with_rules((lefts, rights))
        if relation.how == "right":
            known = known.with_rules((rights, lefts))
        # With one pair of key columns, all rows of a key value have a partner or none has. So the value of
        # `coalesce(left, right)` determines both columns, also in an outer join.
        if relation.how == "inner" or len(relation.on) == 1:
            known = known.with_rules(*(([_coalesce_name(*pair)], pair) for pair in relation.on))
        # The other side is null or equal, so `coalesce` is the column of the side that keeps all its rows.
        if relation.how in ("left", "right"):
            kept = lefts if relation.how == "left" else rights
            named = zip(relation.on, kept, strict=True)
            known = known.with_rules(*(([_coalesce_name(*pair)], [name]) for pair, name in named))
        return known

    def _top(self, relation: Top) -> _Dependencies:
        known = self.analyze(relation.input)
        if relation.count == 1:  # the group has one row
            known = known.with_rules((relation.per, known.row_ids))
        if relation.rank is not None:
            known = known.with_rules(([*relation.per, relation.rank], known.row_ids), (known.row_ids, [relation.rank]))
        return known


def _equal_rules(pairs: Iterable[tuple[str, str]]) -> Rules:
    """Returns the rules of equal names: each determines the other."""
    return [rule for one, other in pairs for rule in (([one], [other]), ([other], [one]))]


def _equality_rules(condition: exp.Expr) -> Rules:
    """Returns the rules of a condition such as `a = b` or `a = 3`."""
    rules: Rules = []
    for part in conjuncts(condition):
        if not isinstance(part, exp.EQ):
            continue
        for one, other in ((part.this, part.expression), (part.expression, part.this)):
            if isinstance(one, exp.Column) and isinstance(other, (exp.Column, exp.Literal)):
                rules.append((sorted(columns_in(other)), [one.name]))
    return rules


def _invertible_names(tree: exp.Expr) -> list[str]:
    """Returns names whose values can be recovered from the value of an expression."""
    if isinstance(tree, exp.Column):
        return [tree.name]
    if isinstance(tree, exp.Dot) and isinstance(tree.this, exp.Column):
        return [f"{tree.this.name}#{tree.expression.name}"]
    if isinstance(tree, exp.Add | exp.Sub) and _is_fixed_interval(tree.expression):
        return _invertible_names(tree.this)
    if isinstance(tree, exp.Struct):
        members = [each.expression if isinstance(each, exp.PropertyEQ) else each for each in tree.expressions]
        return [name for member in members for name in _invertible_names(member)]
    if isinstance(tree, exp.Coalesce) and len(tree.expressions) == 1:
        parts = [tree.this, *tree.expressions]
        if all(isinstance(part, exp.Column) for part in parts):
            return [_coalesce_name(*(part.name for part in parts))]
    return []


def _is_fixed_interval(tree: exp.Expr) -> bool:
    """Returns whether an interval has the same length at any time, unlike a month."""
    unit = tree.text("unit").upper().removesuffix("S") if isinstance(tree, exp.Interval) else ""
    return isinstance(tree.this, exp.Literal) and unit in _FIXED_UNITS


def _constant_at(relation: Relation, number: int) -> exp.Expr | None:
    """Returns the constant value of a column, if it has one."""
    tree = relation.items[number][1] if isinstance(relation, Project) else None
    return tree if isinstance(tree, exp.Literal) else None


def _window_rules(name: str) -> Rules:
    """Returns the rules of a window: it determines its start and end, and each of them determines it."""
    ends = [f"{name}#start", f"{name}#end"]
    return [([name], ends), *(([end], [name]) for end in ends)]


def _coalesce_name(one: str, other: str) -> str:
    """Returns the name of `coalesce(one, other)` over both sides of a join."""
    return "#either." + "|".join(sorted((one, other)))
