"""Small changes to the tree that sqlglot makes of SQL: how columns are named, how conditions are taken apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from sqlglot import exp

from headwater.pipelines.tables.refusal import Asked

__all__ = ["column", "conjuncts", "located", "named_windows", "refuse_subqueries", "tables_in", "together"]

_QUERIES = (exp.Subquery, exp.Select, exp.SetOperation, exp.Exists)


def column(name: str) -> exp.Column:
    """A reference to a column of a relation.

    Example:
        >>> column("p.id").sql("spark")
        '`p.id`'
    """
    return exp.column(exp.to_identifier(name, quoted=True))


def located(tree: exp.Expr, asked: Asked) -> exp.Expr:
    """The expression with each `table.column` as one name, without parentheses; subqueries are refused.

    Example:
        >>> from sqlglot import parse_one
        >>> located(parse_one("(p.price) > 3"), Asked("view", None)).sql("spark")
        '`p.price` > 3'
    """
    refuse_subqueries(tree, asked)

    root = exp.Paren(this=tree.copy())  # so that every node has a parent in which it can be replaced
    for paren in list(root.this.find_all(exp.Paren)):
        paren.replace(paren.this)
    for found in list(root.this.find_all(exp.Column)):
        if found.table:
            found.replace(column(f"{found.table}.{found.name}"))
    return cast(exp.Expr, root.this)


def refuse_subqueries(tree: exp.Expr, asked: Asked) -> None:
    """Refuse a query inside an expression: IN, EXISTS, or one in place of a value.

    Raises:
        BadSqlError: There is one.

    Example:
        >>> from sqlglot import parse_one
        >>> refuse_subqueries(parse_one("a in (1, 2)"), Asked("view", None))
    """
    for node in tree.find_all(*_QUERIES):
        asked.refuse(node, "a subquery inside an expression is not supported", fix="join …")


def conjuncts(condition: exp.Expr) -> list[exp.Expr]:
    """The parts of a condition that must all be true.

    Example:
        >>> from sqlglot import parse_one
        >>> [part.sql() for part in conjuncts(parse_one("a and (b or c) and d"))]
        ['a', 'b OR c', 'd']
    """
    bare = condition.unnest()
    return list(bare.flatten()) if isinstance(bare, exp.And) else [condition]


def together(parts: Sequence[exp.Expr]) -> exp.Expr:
    """The condition that all parts are true.

    Example:
        >>> from sqlglot import parse_one
        >>> together([parse_one("a"), parse_one("b or c")]).sql()
        'a AND (b OR c)'
    """
    return exp.and_(*parts)


def tables_in(tree: exp.Expr) -> frozenset[str]:
    """The aliases before the columns of an expression.

    Example:
        >>> from sqlglot import parse_one
        >>> sorted(tables_in(parse_one("a.x + b.y > a.z")))
        ['a', 'b']
    """
    return frozenset(found.table for found in tree.find_all(exp.Column))


def named_windows(tree: exp.Expr) -> exp.Expr:
    """The query with `window` and `window.start` written out, where Spark takes them for the window of GROUP BY.

    Example:
        >>> from headwater.pipelines.query import parsed
        >>> query = parsed("select window.start from a group by window(at, '1 hour')", "view", None)
        >>> named_windows(query).sql("spark")
        "SELECT WINDOW(at, '1 hour').start AS start FROM a GROUP BY WINDOW(at, '1 hour')"
    """
    for select in tree.find_all(exp.Select):
        window = _window_of(select)
        if window is not None:
            for part in (*select.expressions, select.args.get("having"), select.args.get("order")):
                _write_out(part, window)
    return tree


def _window_of(select: exp.Select) -> exp.Expr | None:
    group = select.args.get("group")
    found = [each for each in (group.expressions if group else ()) if _is_window(each)]
    return found[0] if len(found) == 1 else None


def _is_window(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Anonymous) and tree.name.lower() == "window"


def _write_out(part: exp.Expr | None, window: exp.Expr) -> None:
    for found in list(_own_columns(part)):
        if found.name.lower() == "window" and not found.table:
            written = exp.alias_(window.copy(), "window") if found is part else window.copy()
            found.replace(written)
        elif found.table.lower() == "window" and not found.args.get("db"):
            dot = exp.Dot(this=window.copy(), expression=exp.to_identifier(found.name))
            found.replace(exp.alias_(dot, found.name) if found is part else dot)


def _own_columns(part: exp.Expr | None) -> Iterable[exp.Column]:
    return part.find_all(exp.Column) if part is not None else ()
