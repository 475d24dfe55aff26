"""Which columns identify a row of a relation: from what determines what, step by step.

Beside columns there are marks: the mark of a table's row stands for the row itself. A set of columns identifies a row
when it determines all marks of the relation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from sqlglot import exp

from headwater.pipelines.tables.narrowing import names_in
from headwater.pipelines.tables.refusal import Asked
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
from headwater.pipelines.tables.spelling import conjuncts

__all__ = ["identifies", "require_key"]

Names = frozenset[str]
Keys = Mapping[str, tuple[str, ...]]


def require_key(
    relation: Relation, key: tuple[str, ...], tables: Keys, asked: Asked, windows: Keys | None = None
) -> None:
    """Refuse a key that is not a column of the result, or of which two rows could have the same.

    Args:
        relation: What is asked for.
        key: The declared key.
        tables: The key of each table.
        asked: For errors.
        windows: The columns of each table that are windows: its start determines a window, and so does its end.

    Raises:
        BadSqlError: The key does not identify a row of the result.

    Example:
        >>> require_key(Scan("posts", ("id", "author")), ("id",), {"posts": ("id",)}, Asked("view", None))
    """
    names = {name.lower(): name for name in relation.columns}
    for name in key:
        if name.lower() not in names:
            asked.refuse(
                name, "the key is not among the columns of the result", fix=", ".join(relation.columns)
            )
    if not identifies(relation, [names[name.lower()] for name in key], tables, windows):
        better = _smallest(relation, tables, windows)
        named = repr(better[0]) if len(better) == 1 else repr(tuple(better))
        fix = f"key={named}" if better else "select the keys of the tables as well"
        asked.refuse(f"key {', '.join(key)}", "two rows of the result could have the same key", fix=fix)


def identifies(relation: Relation, columns: Iterable[str], tables: Keys, windows: Keys | None = None) -> bool:
    """Whether no two rows of a relation can agree in these columns.

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
    known = _Reading(tables, windows or {}).of(relation)
    return known.marks <= known.determined(columns)


def _smallest(relation: Relation, tables: Keys, windows: Keys | None) -> list[str]:
    """Columns that do identify a row, few of them; none if not even all of them do."""
    columns = list(relation.columns)
    if not identifies(relation, columns, tables, windows):
        return []
    for name in relation.columns:
        fewer = [each for each in columns if each != name]
        if identifies(relation, fewer, tables, windows):
            columns = fewer
    return columns


@dataclass(frozen=True)
class _Known:
    """What determines what, and the marks that together are the row."""

    rules: tuple[tuple[Names, Names], ...]
    marks: Names

    def determined(self, names: Iterable[str]) -> Names:
        found = frozenset(names)
        while True:
            more = found.union(*(then for given, then in self.rules if given <= found))
            if more == found:
                return found
            found = more

    def but(self, *rules: tuple[Iterable[str], Iterable[str]]) -> _Known:
        """The same with more rules."""
        added = tuple((frozenset(given), frozenset(then)) for given, then in rules)
        return _Known((*self.rules, *added), self.marks)

    def with_nulls(self) -> _Known:
        """What still holds when there may be rows of nulls as well: nothing is the same in all rows any more."""
        return _Known(tuple(rule for rule in self.rules if rule[0]), self.marks)

    def among(self, names: Iterable[str], mark: str) -> _Known:
        """What still holds of some columns when rows were put together and have a new mark."""
        given_names = frozenset(names)
        named = frozenset(name for rule in self.rules for part in rule for name in part)
        kept = given_names | {name for name in named if name.split("#")[0] in given_names}
        sources = {given for given, _ in self.rules if given <= kept} | {frozenset([name]) for name in kept}
        rules = tuple((given, self.determined(given) & kept) for given in sources)
        return _Known(rules, frozenset([mark]))


class _Reading:
    """Works out what is known of a relation; every node gets names of its own for what it hides."""

    def __init__(self, tables: Keys, windows: Keys) -> None:
        self._tables = tables
        self._windows = windows
        self._numbers = count()

    def of(self, relation: Relation) -> _Known:
        if isinstance(relation, Scan):
            mark = self._mark()
            known = _Known((), frozenset([mark]))
            known = known.but((self._tables[relation.table], [mark]), ([mark], relation.columns))
            return known.but(
                *(rule for name in self._windows.get(relation.table, ()) for rule in _of_window(name))
            )
        if isinstance(relation, Where):
            return self.of(relation.input).but(*_equalities(relation.condition))
        if isinstance(relation, Project):
            return self._project(relation)
        if isinstance(relation, Join):
            return self._join(relation)
        if isinstance(relation, Top):
            return self._top(relation)
        return self._together(relation)

    def _together(self, relation: Union | Distinct | Group) -> _Known:
        mark = self._mark()
        if isinstance(relation, Union):
            known = _Known((), frozenset([mark])).but(([mark], relation.columns))
            return known.but(*((key, [mark]) for key in self._union_keys(relation)))
        keys = relation.columns if isinstance(relation, Distinct) else relation.keys
        known = self.of(relation.input).among(keys, mark)
        return known.but((keys, [mark]), ([mark], relation.columns))

    def _union_keys(self, relation: Union) -> list[list[str]]:
        """If a column is another constant in each part: that column, and the key of each part."""
        places = [
            number
            for number in range(len(relation.columns))
            if len({_constant(part, number) for part in relation.inputs} - {None}) == len(relation.inputs)
        ]
        keys = [_smallest(part, self._tables, self._windows) for part in relation.inputs]
        if not all(keys):
            return []
        parts = zip(relation.inputs, keys, strict=True)
        together = {part.columns.index(name) for part, key in parts for name in key}
        return [[relation.columns[number] for number in sorted(together | {place})] for place in places]

    def _mark(self) -> str:
        return f"#{next(self._numbers)}"

    def _project(self, relation: Project) -> _Known:
        below = self.of(relation.input)
        hidden = f"#{next(self._numbers)}."
        rules = [
            (frozenset(hidden + name for name in given), frozenset(hidden + name for name in then))
            for given, then in below.rules
        ]
        known = _Known(tuple(rules), frozenset(hidden + mark for mark in below.marks))
        for name, tree in relation.items:
            sources = [hidden + each for each in names_in(tree)]
            known = known.but(
                (sources, [name]), *(([name], [hidden + same]) for same in _readable_back(tree))
            )
            if _is_window(tree):
                known = known.but(*_of_window(name))
            if isinstance(tree, exp.Column):
                known = known.but(*_members(below, tree.name, name, hidden))
        return known

    def _join(self, relation: Join) -> _Known:
        left, right = self.of(relation.left), self.of(relation.right)
        if relation.how in ("semi", "anti"):
            return left
        left = left if relation.how in ("inner", "left") else left.with_nulls()
        right = right if relation.how in ("inner", "right") else right.with_nulls()
        known = _Known((*left.rules, *right.rules), left.marks | right.marks)
        lefts, rights = ([pair[side] for pair in relation.on] for side in (0, 1))
        # A row without a partner has nulls on the other side: they are determined by its own key, not the reverse.
        if relation.how == "inner":
            known = known.but(
                *(rule for pair in relation.on for rule in (([pair[0]], [pair[1]]), ([pair[1]], [pair[0]])))
            )
        if relation.how == "left":
            known = known.but((lefts, rights))
        if relation.how == "right":
            known = known.but((rights, lefts))
        if relation.how == "inner" or len(relation.on) == 1:
            known = known.but(*(([_either(*pair)], pair) for pair in relation.on))
        return known

    def _top(self, relation: Top) -> _Known:
        known = self.of(relation.input)
        if relation.count == 1:
            known = known.but((relation.per, known.marks))
        if relation.rank is not None:
            known = known.but(([*relation.per, relation.rank], known.marks), (known.marks, [relation.rank]))
        return known


def _equalities(condition: exp.Expr) -> list[tuple[list[str], list[str]]]:
    """What a condition determines: `a = b`, `a = 3`."""
    rules: list[tuple[list[str], list[str]]] = []
    for part in conjuncts(condition):
        if not isinstance(part, exp.EQ):
            continue
        for one, other in ((part.this, part.expression), (part.expression, part.this)):
            if isinstance(one, exp.Column) and isinstance(other, (exp.Column, exp.Literal)):
                rules.append((sorted(names_in(other)), [one.name]))
    return rules


def _readable_back(tree: exp.Expr) -> list[str]:
    """Names whose values can be read back from the value of an expression."""
    if isinstance(tree, exp.Column):
        return [tree.name]
    if isinstance(tree, exp.Dot) and isinstance(tree.this, exp.Column):
        return [f"{tree.this.name}#{tree.expression.name}"]
    if isinstance(tree, exp.Struct):
        members = [each.expression if isinstance(each, exp.PropertyEQ) else each for each in tree.expressions]
        return [name for member in members for name in _readable_back(member)]
    if isinstance(tree, exp.Coalesce) and len(tree.expressions) == 1:
        parts = [tree.this, *tree.expressions]
        if all(isinstance(part, exp.Column) for part in parts):
            return [_either(*(part.name for part in parts))]
    return []


def _constant(relation: Relation, number: int) -> exp.Expr | None:
    """The constant that a column is, if it is one."""
    tree = relation.items[number][1] if isinstance(relation, Project) else None
    return tree if isinstance(tree, exp.Literal) else None


def _of_window(name: str) -> list[tuple[list[str], list[str]]]:
    """A window determines its start and its end, and each of them the window."""
    ends = [f"{name}#start", f"{name}#end"]
    return [([name], ends), *(([end], [name]) for end in ends)]


def _is_window(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Anonymous) and tree.name.lower() == "window"


def _members(below: _Known, old: str, new: str, hidden: str) -> list[tuple[list[str], list[str]]]:
    """The start and end of a window are the same under the window's new name."""
    named = {name for rule in below.rules for part in rule for name in part if name.startswith(f"{old}#")}
    pairs = [(f"{new}#{name[len(old) + 1 :]}", hidden + name) for name in sorted(named)]
    return [rule for one, other in pairs for rule in (([one], [other]), ([other], [one]))]


def _either(one: str, other: str) -> str:
    """The name of what `coalesce(one, other)` is, of a join of both."""
    return "#either." + "|".join(sorted((one, other)))
