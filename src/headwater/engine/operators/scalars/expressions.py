"""Scalar expressions from Spark's dialect to DuckDB's: those whose value is the same; others are refused by name."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from sqlglot import exp

from headwater.engine.operators.scalars.evaluation import quoted, shape_of
from headwater.engine.operators.scalars.functions import FUNCTIONS
from headwater.engine.operators.scalars.kinds import family, spark_decimal, sql_type
from headwater.engine.operators.scalars.scalar import Handler, Scalar
from headwater.pipelines.tables.refusal import Asked

__all__ = ["scalar_over"]

_COMPARED: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "is not distinct from", exp.NullSafeNEQ: "is distinct from",
}  # fmt: skip


def scalar_over(schema: pa.Schema, asked: Asked) -> Scalar:
    """What writes expressions over these columns.

    Example:
        >>> from sqlglot import parse_one
        >>> scalar = scalar_over(pa.schema([("price", pa.decimal128(10, 2))]), Asked("view", None))
        >>> scalar.text(parse_one("price > 3"))
        '("price" > cast(3 as integer))'
        >>> scalar.kind(parse_one("price * 2"))
        Decimal128Type(decimal128(12, 2))
    """
    return Scalar(schema, asked, {**_OPERATORS, **FUNCTIONS})


def _column(scalar: Scalar, node: exp.Expr) -> str:
    return quoted(node.name)


def _literal(scalar: Scalar, node: exp.Expr) -> str:
    text = node.name
    if node.is_string:
        return "'" + text.replace("'", "''") + "'"
    if not text.isdigit():
        return text
    return f"cast({text} as {'integer' if int(text) < 1 << 31 else 'bigint' if int(text) < 1 << 63 else 'hugeint'})"


def _compared(scalar: Scalar, node: exp.Expr) -> str:
    scalar.same(node, node.this, node.expression)
    return f"({scalar.text(node.this)} {_COMPARED[type(node)]} {scalar.text(node.expression)})"


def _is(scalar: Scalar, node: exp.Expr) -> str:
    return f"({scalar.text(node.this)} is {scalar.text(node.expression)})"


def _between(scalar: Scalar, node: exp.Expr) -> str:
    low, high = node.args["low"], node.args["high"]
    scalar.same(node, node.this, low, high)
    return f"({scalar.text(node.this)} between {scalar.text(low)} and {scalar.text(high)})"


def _in(scalar: Scalar, node: exp.Expr) -> str:
    if not node.expressions:
        scalar.asked.refuse(node, "IN needs a list of values")
    scalar.same(node, node.this, *node.expressions)
    return f"({scalar.text(node.this)} in ({', '.join(scalar.text(each) for each in node.expressions)}))"


def _logical(word: str) -> Handler:
    def write(scalar: Scalar, node: exp.Expr) -> str:
        for part in (node.this, node.expression):
            if scalar.family(part) not in ("boolean", "null"):
                scalar.asked.refuse(part, "it is not a condition")
        return f"({scalar.text(node.this)} {word} {scalar.text(node.expression)})"

    return write


def _case(scalar: Scalar, node: exp.Expr) -> str:
    branches = node.args.get("ifs") or [node]
    other = node.args.get("default") or node.args.get("false")
    scalar.same(node, *(each.args["true"] for each in branches), other)
    if isinstance(node, exp.Case) and node.this is not None:
        scalar.same(node, node.this, *(each.this for each in branches))
    start = scalar.text(node.this) if isinstance(node, exp.Case) and node.this is not None else ""
    whens = " ".join(
        f"when {scalar.text(each.this)} then {scalar.text(each.args['true'])}" for each in branches
    )
    end = f" else {scalar.text(other)}" if other is not None else ""
    return f"(case {start} {whens}{end} end)"


def _sum(sign: str) -> Handler:
    def write(scalar: Scalar, node: exp.Expr) -> str:
        left, right = node.this, node.expression
        if isinstance(right, exp.Interval) and scalar.family(left) == "time":
            return f"(cast({scalar.text(left)} as timestamp) {sign} {scalar.text(right)})"
        _require_numbers(scalar, node)
        kinds = scalar.kind(left), scalar.kind(right)
        if not any(map(pa.types.is_decimal, kinds)) or any(map(pa.types.is_floating, kinds)):
            return f"({scalar.text(left)} {sign} {scalar.text(right)})"
        (first, one), (second, two) = (
            spark_decimal(kind, part) for kind, part in zip(kinds, (left, right), strict=True)
        )
        scale = max(one, two)
        precision = max(first - one, second - two) + scale + 1
        _require_digits(scalar, node, precision)
        wide = f"decimal({max(precision, 19)}, {scale})"
        text = f"cast({scalar.text(left)} as {wide}) {sign} cast({scalar.text(right)} as {wide})"
        return f"cast({text} as decimal({precision}, {scale}))"

    return write


def _product(scalar: Scalar, node: exp.Expr) -> str:
    _require_numbers(scalar, node)
    left, right = node.this, node.expression
    kinds = scalar.kind(left), scalar.kind(right)
    if not any(map(pa.types.is_decimal, kinds)) or any(map(pa.types.is_floating, kinds)):
        return f"({scalar.text(left)} * {scalar.text(right)})"
    (first, one), (second, two) = (
        spark_decimal(kind, part) for kind, part in zip(kinds, (left, right), strict=True)
    )
    _require_digits(scalar, node, first + second + 1)
    # The wider left side makes DuckDB compute in 128 bits: in 64 it would report an overflow.
    wide, narrow = f"decimal({38 - second}, {one})", f"decimal({second}, {two})"
    text = f"cast({scalar.text(left)} as {wide}) * cast({scalar.text(right)} as {narrow})"
    return f"cast({text} as decimal({first + second + 1}, {one + two}))"


def _division(sign: str) -> Handler:
    def write(scalar: Scalar, node: exp.Expr) -> str:
        _require_numbers(scalar, node)
        kinds = scalar.kind(node.this), scalar.kind(node.expression)
        if any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_floating, kinds)):
            scalar.asked.refuse(node, "division of decimals is not supported", fix="cast(… as double)")
        if sign == "//" and any(map(pa.types.is_floating, kinds)):
            scalar.asked.refuse(node, "DIV is for whole numbers")
        upper, lower = scalar.text(node.this), scalar.text(node.expression)
        if isinstance(node, exp.SafeDivide):
            return f"({upper} / nullif({lower}, 0))"
        # Spark stops at a division by zero; DuckDB would answer null or infinity.
        return f"(case when {lower} = 0 then error('division by zero') else {upper} {sign} {lower} end)"

    return write


def _require_numbers(scalar: Scalar, node: exp.Expr) -> None:
    for part in (node.this, node.expression):
        if scalar.family(part) not in ("number", "null"):
            scalar.asked.refuse(node, f"{part.sql('spark')} is not a number", fix="cast(… as …)")


def _require_digits(scalar: Scalar, node: exp.Expr, precision: int) -> None:
    if precision > 38:
        reason = f"its exact value may need {precision} digits, and decimals have 38 at most"
        scalar.asked.refuse(node, reason, fix="cast(… as decimal(18, 2))")


def _cast(scalar: Scalar, node: exp.Expr) -> str:
    inner, target = node.this, node.args["to"]
    wanted = sql_type(target)
    source = scalar.kind(inner)
    if wanted is None or node.args.get("safe") or node.args.get("format"):
        scalar.asked.refuse(node, "this conversion is not supported")
    from_, to = family(source), family(shape_of(f"select cast(null as {wanted}) as x", {}).field("x").type)
    text = scalar.text(inner)
    spelled = isinstance(inner, exp.Literal) and inner.is_string and to == "time"
    exact = not pa.types.is_floating(source)
    whole = to == "number" and "decimal" not in wanted and wanted not in ("double", "float")
    if from_ == "null" or spelled or from_ == to == "text" or from_ == to == "time":
        return f"cast({text} as {wanted})"
    if from_ == to == "number" and whole and not pa.types.is_integer(source):
        return f"cast(trunc({text}) as {wanted})"
    allowed = (
        (from_ == to == "number" and (exact or "decimal" not in wanted))
        or (
            to == "text" and (from_ == "boolean" or (from_ == "number" and exact) or pa.types.is_date(source))
        )
        or (from_ == "boolean" and whole)
        or from_ == to == "boolean"
    )
    if not allowed:
        scalar.asked.refuse(node, f"Spark and DuckDB turn {source} into {wanted} by different rules")
    return f"cast({text} as {wanted})"


def _dot(scalar: Scalar, node: exp.Expr) -> str:
    return f"struct_extract({scalar.text(node.this)}, '{node.expression.name.replace(chr(39), chr(39) * 2)}')"


def _struct(scalar: Scalar, node: exp.Expr) -> str:
    members = []
    for number, each in enumerate(node.expressions):
        name = each.this.name if isinstance(each, exp.PropertyEQ) else f"col{number + 1}"
        value = each.expression if isinstance(each, exp.PropertyEQ) else each
        members.append(f"{quoted(name)} := {scalar.text(value)}")
    return f"struct_pack({', '.join(members)})"


def _simple(form: str) -> Handler:
    return lambda scalar, node: form.format(scalar.text(node.this))


_OPERATORS: Final[dict[type[exp.Expr], Handler]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda scalar, node: "true" if node.this else "false",
    exp.Null: lambda scalar, node: "null",
    exp.And: _logical("and"),
    exp.Or: _logical("or"),
    exp.Not: _simple("(not {})"),
    exp.Paren: _simple("({})"),
    exp.Is: _is,
    exp.Between: _between,
    exp.In: _in,
    exp.Case: _case,
    exp.If: _case,
    exp.Neg: _simple("(- {})"),
    exp.Add: _sum("+"),
    exp.Sub: _sum("-"),
    exp.Mul: _product,
    exp.Div: _division("/"),
    exp.SafeDivide: _division("/"),
    exp.IntDiv: _division("//"),
    exp.Mod: _division("%"),
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Dot: _dot,
    exp.Struct: _struct,
    **dict.fromkeys(_COMPARED, _compared),
}
