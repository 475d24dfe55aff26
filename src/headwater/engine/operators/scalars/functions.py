"""Functions whose value is the same in Spark and DuckDB, and how they are written for DuckDB."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headwater.engine.operators.scalars.scalar import Handler, Scalar

__all__ = ["FUNCTIONS"]

_UNITS: Final = {
    "MICROSECOND": timedelta(microseconds=1),
    "MILLISECOND": timedelta(milliseconds=1),
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
    "WEEK": timedelta(weeks=1),
}
_TRUNCATED: Final = ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")


def _of(form: str, *sorts: str) -> Handler:
    """A function of one value of these sorts."""

    def write(scalar: Scalar, node: exp.Expr) -> str:
        _require(scalar, node, node.this, *sorts)
        return form.format(scalar.text(node.this))

    return write


def _require(scalar: Scalar, node: exp.Expr, part: exp.Expr, *sorts: str) -> None:
    found = scalar.family(part)
    if found not in (*sorts, "null"):
        scalar.asked.refuse(node, f"{part.sql('spark')} is {found}, not {' or '.join(sorts)}")


def _several(form: str) -> Handler:
    """A function of values of one sort."""

    def write(scalar: Scalar, node: exp.Expr) -> str:
        parts = [part for part in (node.this, *node.expressions) if part is not None]
        scalar.same(node, *parts)
        return form.format(", ".join(scalar.text(part) for part in parts))

    return write


def _nullif(scalar: Scalar, node: exp.Expr) -> str:
    scalar.same(node, node.this, node.expression)
    return f"nullif({scalar.text(node.this)}, {scalar.text(node.expression)})"


def _concatenated(scalar: Scalar, node: exp.Expr) -> str:
    parts = node.expressions if isinstance(node, exp.Concat) else [node.this, node.expression]
    for part in parts:
        _require(scalar, node, part, "text")
    return "(" + " || ".join(scalar.text(part) for part in parts) + ")"


def _like(scalar: Scalar, node: exp.Expr) -> str:
    _require(scalar, node, node.this, "text")
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or "\\" in pattern.name:
        scalar.asked.refuse(node, "the pattern of LIKE must be a text without backslashes")
    return f"({scalar.text(node.this)} like {scalar.text(pattern)})"


def _substring(scalar: Scalar, node: exp.Expr) -> str:
    _require(scalar, node, node.this, "text")
    start, length = node.args.get("start"), node.args.get("length")
    for part in (start, length):
        if part is not None and not (isinstance(part, exp.Literal) and part.name.isdigit()):
            scalar.asked.refuse(node, "start and length of a substring must be plain numbers")
    if start is None or int(start.name) < 1:
        scalar.asked.refuse(node, "a substring starts at 1 or later")
    end = f", {length.name}" if length is not None else ""
    return f"substring({scalar.text(node.this)}, {start.name}{end})"


def _trim(scalar: Scalar, node: exp.Expr) -> str:
    if node.expression is not None or node.args.get("collation"):
        scalar.asked.refuse(node, "only spaces can be trimmed")
    _require(scalar, node, node.this, "text")
    word = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
    return f"{word}({scalar.text(node.this)}, ' ')"


def _round(scalar: Scalar, node: exp.Expr) -> str:
    kind = scalar.kind(node.this)
    digits = node.args.get("decimals")
    if not pa.types.is_decimal(kind):
        scalar.asked.refuse(
            node, "only decimals are rounded the same everywhere", fix="round(cast(… as decimal(18, 6)), 2)"
        )
    if digits is not None and not (isinstance(digits, exp.Literal) and digits.name.isdigit()):
        scalar.asked.refuse(node, "the number of digits must be a plain number")
    places = min(int(digits.name) if digits is not None else 0, kind.scale)
    wide = min(38, kind.precision - kind.scale + places + 1)
    return f"cast({scalar.text(node.this)} as decimal({wide}, {places}))"


def _whole(word: str) -> Handler:
    def write(scalar: Scalar, node: exp.Expr) -> str:
        kind = scalar.kind(node.this)
        if node.args.get("decimals") is not None or node.args.get("to") is not None:
            scalar.asked.refuse(node, f"{word} has one argument")
        if pa.types.is_decimal(kind):
            wide = min(38, kind.precision - kind.scale + 1)
            return f"cast({word}({scalar.text(node.this)}) as decimal({wide}, 0))"
        _require(scalar, node, node.this, "number")
        return f"cast({word}({scalar.text(node.this)}) as bigint)"

    return write


def _date(scalar: Scalar, node: exp.Expr) -> str:
    _require(scalar, node, node.this, "time")
    if node.args.get("format"):
        scalar.asked.refuse(node, "a format is not supported")
    return f"cast({scalar.text(node.this)} as date)"


def _date_add(scalar: Scalar, node: exp.Expr) -> str:
    _require(scalar, node, node.this, "time")
    unit = node.args.get("unit")
    if unit is not None and unit.name.upper() != "DAY":
        scalar.asked.refuse(node, "only days can be added to a date", fix="at + interval 1 hour")
    return f"(cast({scalar.text(node.this)} as date) + cast({scalar.text(node.expression)} as integer))"


def _date_difference(scalar: Scalar, node: exp.Expr) -> str:
    if node.args.get("unit") is not None:
        scalar.asked.refuse(node, "only the difference in days is supported", fix="datediff(a, b)")
    ends = [f"cast({scalar.text(each)} as date)" for each in (node.expression, node.this)]
    return f"cast(date_diff('day', {', '.join(ends)}) as integer)"


def _truncated(scalar: Scalar, node: exp.Expr) -> str:
    unit = node.args["unit"].name.upper()
    if unit not in _TRUNCATED or node.args.get("zone"):
        scalar.asked.refuse(node, f"not one of {', '.join(_TRUNCATED)}")
    _require(scalar, node, node.this, "time")
    return f"cast(date_trunc('{unit.lower()}', {scalar.text(node.this)}) as timestamp)"


def _interval(scalar: Scalar, node: exp.Expr) -> str:
    length = _length(
        f"{node.this.name if node.this else ''} {node.args['unit'].name if node.args.get('unit') else ''}"
    )
    if length is None:
        scalar.asked.refuse(
            node, f"an interval is a number of {', '.join(_UNITS).lower()}", fix="interval 1 hour"
        )
    return f"to_microseconds({length // timedelta(microseconds=1)})"


def _length(text: str) -> timedelta | None:
    """A fixed length of time: `1 hour`, `15 minutes`."""
    found = re.fullmatch(r"\s*(-?\d+)\s+([a-zA-Z]+?)s?\s*", text)
    unit = _UNITS.get(found[2].upper()) if found else None
    return int(found[1]) * unit if found and unit else None


def _window(scalar: Scalar, node: exp.Expr) -> str:
    """`window(at, '1 hour')`: the interval, aligned to 1970, that a time lies in."""
    if node.name.lower() != "window":
        scalar.asked.refuse(node, "this function is not known")
    if len(node.expressions) != 2:
        scalar.asked.refuse(
            node, "only windows that follow one another are supported", fix="window(at, '1 hour')"
        )
    time, length = node.expressions
    found = _length(length.name) if isinstance(length, exp.Literal) else None
    if found is None or found <= timedelta(0):
        scalar.asked.refuse(node, "the length of a window is a text such as '1 hour'")
    if not pa.types.is_timestamp(scalar.kind(time)):
        scalar.asked.refuse(node, f"{time.sql('spark')} is not a time")
    size = found // timedelta(microseconds=1)
    now = f"epoch_us({scalar.text(time)})"
    start = f"({now} - (({now} % {size}) + {size}) % {size})"
    members = f'"start" := make_timestamp({start}), "end" := make_timestamp({start} + {size})'
    return f"(case when {scalar.text(time)} is not null then struct_pack({members}) end)"


FUNCTIONS: Final[dict[type[exp.Expr], Handler]] = {
    exp.Abs: _of("abs({})", "number"),
    exp.Anonymous: _window,
    exp.Ceil: _whole("ceil"),
    exp.Coalesce: _several("coalesce({})"),
    exp.Concat: _concatenated,
    exp.DPipe: _concatenated,
    exp.DateDiff: _date_difference,
    exp.Day: _of("cast(day({}) as integer)", "time"),
    exp.DayOfMonth: _of("cast(day({}) as integer)", "time"),
    exp.Floor: _whole("floor"),
    exp.Greatest: _several("greatest({})"),
    exp.Hour: _of("cast(hour({}) as integer)", "time"),
    exp.Interval: _interval,
    exp.IsNan: _of("coalesce(isnan({}), false)", "number"),
    exp.Least: _several("least({})"),
    exp.Lower: _of("hw_lower({})", "text"),
    exp.Upper: _of("hw_upper({})", "text"),
    exp.Length: _of("cast(length({}) as integer)", "text"),
    exp.Like: _like,
    exp.Minute: _of("cast(minute({}) as integer)", "time"),
    exp.Month: _of("cast(month({}) as integer)", "time"),
    exp.Nullif: _nullif,
    exp.Quarter: _of("cast(quarter({}) as integer)", "time"),
    exp.Round: _round,
    exp.Second: _of("cast(second({}) as integer)", "time"),
    exp.Sqrt: _of("sqrt({})", "number"),
    exp.Substring: _substring,
    exp.TimestampTrunc: _truncated,
    exp.Trim: _trim,
    exp.TsOrDsAdd: _date_add,
    exp.TsOrDsToDate: _date,
    exp.Year: _of("cast(year({}) as integer)", "time"),
}
"""How each function is written; one that is not here is refused."""
