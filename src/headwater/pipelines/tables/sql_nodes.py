"""Functions over sqlglot's syntax tree: column names, conjunctions, windows, and the error for refused parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn, cast

from sqlglot import exp

from headwater.errors import BadSqlError, SourceLocation

__all__ = [
    "QueryRefusal",
    "aliases_in",
    "column",
    "conjuncts",
    "expand_windows",
    "flatten_columns",
    "is_window",
    "refuse_subqueries",
]


@dataclass(frozen=True)
class QueryRefusal:
    """The declaration that a refused query belongs to, for error messages.

    Example:
        >>> from sqlglot import parse_one
        >>> try:
        ...     QueryRefusal('view "top"', None).refuse(parse_one("rand()"), "its value changes with every call")
        ... except BadSqlError as error:
        ...     print(error.what, error.data)
        the sql of view "top" cannot be kept up to date: RAND(): its value changes with every call {'part': 'RAND()'}
    """

    what: str
    location: SourceLocation | None

    def refuse(self, part: exp.Expr | str, reason: str, fix: str | None = None) -> NoReturn:
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
    root = exp.Paren(this=tree.copy())  # so that every node has a parent, which `replace` needs
    for paren in list(root.this.find_all(exp.Paren)):
        paren.replace(paren.this)
    for found in list(root.this.find_all(exp.Column)):
        if found.table:
            found.replace(column(f"{found.table}.{found.name}"))
    return cast(exp.Expr, root.this)


def refuse_subqueries(tree: exp.Expr, refusal: QueryRefusal) -> None:
    """Refuse a subquery inside an expression: IN, EXISTS, or a scalar subquery.

    Raises:
        BadSqlError: The expression contains a subquery.

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
        group = select.args.get("group")
        windows = [each for each in (group.expressions if group else ()) if is_window(each)]
        if len(windows) == 1:
            for part in (*select.expressions, select.args.get("having"), select.args.get("order")):
                if part is not None:
                    _expand_window(part, windows[0])
    return tree


def is_window(tree: exp.Expr) -> bool:
    """Returns whether an expression is a call of `window`."""
    return isinstance(tree, exp.Anonymous) and tree.name.lower() == "window"


def _expand_window(part: exp.Expr, window: exp.Expr) -> None:
    for found in list(part.find_all(exp.Column)):
        if found.name.lower() == "window" and not found.table:
            name, expanded = "window", window.copy()
        elif found.table.lower() == "window" and not found.args.get("db"):
            name, expanded = found.name, exp.Dot(this=window.copy(), expression=exp.to_identifier(found.name))
        else:
            continue
        found.replace(exp.alias_(expanded, name) if found is part else expanded)
