"""Helpers for sqlglot's syntax tree: column names, conjunctions, windows, and the error for refused parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, cast

from sqlglot import exp

from headwater.errors import BadSqlError, SourceLocation

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

__all__ = [
    "QueryRefusal",
    "aliases_in",
    "column",
    "conjunction",
    "conjuncts",
    "expand_windows",
    "flatten_columns",
    "refuse_subqueries",
]


@dataclass(frozen=True)
class QueryRefusal:
    """The declaration that a refused query belongs to, for error messages.

    Example:
        >>> from sqlglot import parse_one
        >>> try:
        ...     QueryRefusal('view "top"', None).refuse(parse_one("rand()"), "its value is another each time")
        ... except BadSqlError as error:
        ...     print(error.what, error.data)
        the sql of view "top" cannot be kept up to date: RAND(): its value is another each time {'part': 'RAND()'}
    """

    what: str
    location: SourceLocation | None

    def refuse(self, part: Expr | str, reason: str, fix: str | None = None) -> NoReturn:
        """Raise an error that names the refused part of the query and the reason.

        Raises:
            BadSqlError: Always; `data` has the `part`.
        """
        text = part if isinstance(part, str) else re.sub(r"`([\w.]+)`", r"\1", part.sql("spark"))
        if len(text) > 120:
            text = text[:119] + "…"
        message = f"the sql of {self.what} cannot be kept up to date: {text}: {reason}"
        raise BadSqlError(message, fix=fix, location=self.location, part=text)


_QUERIES = (exp.Subquery, exp.Select, exp.SetOperation, exp.Exists)


def column(name: str) -> exp.Column:
    """Returns a reference to a column of a relation.

    Example:
        >>> column("p.id").sql("spark")
        '`p.id`'
    """
    return exp.column(exp.to_identifier(name, quoted=True))


def flatten_columns(tree: exp.Expr, refusal: QueryRefusal) -> exp.Expr:
    """Returns the expression with each `table.column` as one name and without parentheses; refuses subqueries.

    Example:
        >>> from sqlglot import parse_one
        >>> flatten_columns(parse_one("(p.price) > 3"), QueryRefusal("view", None)).sql("spark")
        '`p.price` > 3'
    """
    refuse_subqueries(tree, refusal)

    root = exp.Paren(this=tree.copy())  # so that every node has a parent in which it can be replaced
    for paren in list(root.this.find_all(exp.Paren)):
        paren.replace(paren.this)
    for found in list(root.this.find_all(exp.Column)):
        if found.table:
            found.replace(column(f"{found.table}.{found.name}"))
    return cast(exp.Expr, root.this)


def refuse_subqueries(tree: exp.Expr, refusal: QueryRefusal) -> None:
    """Refuse a query inside an expression: IN, EXISTS, or one in place of a value.

    Raises:
        BadSqlError: There is one.

    Example:
        >>> from sqlglot import parse_one
        >>> refuse_subqueries(parse_one("a in (1, 2)"), QueryRefusal("view", None))
    """
    for node in tree.find_all(*_QUERIES):
        refusal.refuse(node, "a subquery inside an expression is not supported", fix="join …")


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """Returns the parts of a conjunction.

    Example:
        >>> from sqlglot import parse_one
        >>> [part.sql() for part in conjuncts(parse_one("a and (b or c) and d"))]
        ['a', 'b OR c', 'd']
    """
    bare = condition.unnest()
    return list(bare.flatten()) if isinstance(bare, exp.And) else [condition]


def conjunction(parts: Sequence[exp.Expr]) -> exp.Expr:
    """Returns the conjunction of the parts.

    Example:
        >>> from sqlglot import parse_one
        >>> conjunction([parse_one("a"), parse_one("b or c")]).sql()
        'a AND (b OR c)'
    """
    return exp.and_(*parts)


def aliases_in(tree: exp.Expr) -> frozenset[str]:
    """Returns the table aliases in an expression.

    Example:
        >>> from sqlglot import parse_one
        >>> sorted(aliases_in(parse_one("a.x + b.y > a.z")))
        ['a', 'b']
    """
    return frozenset(found.table for found in tree.find_all(exp.Column))


def expand_windows(tree: exp.Expr) -> exp.Expr:
    """Expand `window` and `window.start` where Spark resolves them to the window of GROUP BY.

    Example:
        >>> from headwater.pipelines.sql_text import parse
        >>> query = parse("select window.start from a group by window(at, '1 hour')", "view", None)
        >>> expand_windows(query).sql("spark")
        "SELECT WINDOW(at, '1 hour').start AS start FROM a GROUP BY WINDOW(at, '1 hour')"
    """
    for select in tree.find_all(exp.Select):
        window = _group_window(select)
        if window is not None:
            for part in (*select.expressions, select.args.get("having"), select.args.get("order")):
                _expand_window(part, window)
    return tree


def _group_window(select: exp.Select) -> exp.Expr | None:
    group = select.args.get("group")
    found = [each for each in (group.expressions if group else ()) if _is_window(each)]
    return found[0] if len(found) == 1 else None


def _is_window(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Anonymous) and tree.name.lower() == "window"


def _expand_window(part: exp.Expr | None, window: exp.Expr) -> None:
    for found in list(_columns_of(part)):
        if found.name.lower() == "window" and not found.table:
            expanded = exp.alias_(window.copy(), "window") if found is part else window.copy()
            found.replace(expanded)
        elif found.table.lower() == "window" and not found.args.get("db"):
            dot = exp.Dot(this=window.copy(), expression=exp.to_identifier(found.name))
            found.replace(exp.alias_(dot, found.name) if found is part else dot)


def _columns_of(part: exp.Expr | None) -> Iterable[exp.Column]:
    return part.find_all(exp.Column) if part is not None else ()
