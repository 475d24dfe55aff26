"""The first rows of an order: `row_number() … <= k`, and `order by … limit k`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlglot import exp

from headwater.pipelines.tables.refusal import Asked
from headwater.pipelines.tables.relation import Order, Project, Relation, Top
from headwater.pipelines.tables.spelling import column

__all__ = ["bounds_of", "limited", "ranked"]

_FIX = (
    "select * from (select *, row_number() over (partition by … order by …) as place from …) where place <= 3"
)


def bounds_of(conditions: Iterable[exp.Expr]) -> dict[tuple[str, str], int]:
    """For (alias, column), the highest value that conditions let through.

    Example:
        >>> from sqlglot import parse_one
        >>> bounds_of([parse_one("t.place <= 3"), parse_one("t.x = 'a'")])
        {('t', 'place'): 3}
    """
    found: dict[tuple[str, str], int] = {}
    for condition in conditions:
        bare = condition.unnest()
        if isinstance(bare, exp.Between):
            bare = exp.LTE(this=bare.this, expression=bare.args["high"])
        if isinstance(bare, (exp.GTE, exp.GT)):
            turned = exp.LTE if isinstance(bare, exp.GTE) else exp.LT
            bare = turned(this=bare.expression, expression=bare.this)
        highest = _highest(bare)
        if highest is not None:
            found[bare.this.table, bare.this.name] = highest
    return found


def _highest(bare: exp.Expr) -> int | None:
    if not isinstance(bare, (exp.LTE, exp.LT, exp.EQ)) or not isinstance(bare.this, exp.Column):
        return None
    number = _number(bare.expression)
    return number - 1 if number is not None and isinstance(bare, exp.LT) else number


def _number(literal: exp.Expr) -> int | None:
    whole = isinstance(literal, exp.Literal) and not literal.is_string and literal.name.isdigit()
    return int(literal.name) if whole else None


def ranked(
    rows: Relation, items: list[tuple[str, exp.Expr]], bounds: Mapping[str, int], asked: Asked
) -> tuple[Relation, list[tuple[str, exp.Expr]]]:
    """The first rows of each partition where an item is a row number that the query around bounds.

    Raises:
        BadSqlError: Another window function, or a row number without a bound.

    Example:
        >>> from sqlglot import parse_one
        >>> from headwater.pipelines.tables.relation import Scan
        >>> items = [("place", parse_one("row_number() over (order by x desc)"))]
        >>> rows, changed = ranked(Scan("a", ("x",)), items, {"place": 3}, Asked("view", None))
        >>> rows.count, rows.rank, changed[0][1].sql()
        (3, 'rank.place', '"rank.place"')
    """
    changed = []
    for name, item in items:
        for window in item.find_all(exp.Window):
            if window is not item or not isinstance(window.this, exp.RowNumber):
                asked.refuse(window, "of window functions only row_number() is supported", fix=_FIX)
            if name not in bounds:
                asked.refuse(window, "every row's number would change with each row", fix=_FIX)
            rows = _top(rows, window, name, bounds[name], asked)
        changed.append((name, column(f"rank.{name}") if isinstance(item, exp.Window) else item))
    return rows, changed


def _top(rows: Relation, window: exp.Window, name: str, count: int, asked: Asked) -> Relation:
    order = window.args.get("order")
    if order is None or window.args.get("spec"):
        asked.refuse(window, "row_number() needs ORDER BY, and no frame")
    per = [
        (f"per.{name}.{number}", each) for number, each in enumerate(window.args.get("partition_by") or ())
    ]
    by = [(f"by.{name}.{number}", each.this) for number, each in enumerate(order.expressions)]
    below = Project(rows, (*((each, column(each)) for each in rows.columns), *per, *by))
    return Top(
        below,
        tuple(each for each, _ in per),
        _orders(order, [each for each, _ in by]),
        count,
        rank=f"rank.{name}",
    )


def limited(rows: Relation, tree: exp.Expr, by: tuple[str, ...], asked: Asked) -> Relation:
    """ORDER BY … LIMIT of a query whose order is by these columns.

    Raises:
        BadSqlError: One without the other.

    Example:
        >>> from sqlglot import parse_one
        >>> from headwater.pipelines.tables.relation import Scan
        >>> tree = parse_one("select x from a order by x desc limit 3")
        >>> limited(Scan("a", ("x",)), tree, ("x",), Asked("view", None)).count
        3
    """
    limit, order = tree.args.get("limit"), tree.args.get("order")
    if limit is None and order is None:
        return rows
    if limit is None:
        asked.refuse(order or "ORDER BY", "a view has no order", fix="order by … limit 10, or no order by")
    count = _number(limit.expression) if isinstance(limit, exp.Limit) else None
    if order is None or count is None:
        asked.refuse(
            limit or "LIMIT",
            "LIMIT needs ORDER BY and a plain number: which rows would stay?",
            fix="order by …",
        )
    names = by or tuple(each.this.name for each in order.expressions)
    for name in names:
        if name not in rows.columns:
            asked.refuse(order, "it must name columns of the result")
    return Top(rows, (), _orders(order, names), count)


def _orders(order: exp.Expr, names: Iterable[str]) -> tuple[Order, ...]:
    return tuple(
        Order(name, bool(each.args.get("desc")), bool(each.args.get("nulls_first")))
        for name, each in zip(names, order.expressions, strict=True)
    )
