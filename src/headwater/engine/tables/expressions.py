"""Translates scalar expressions from Spark's dialect to DuckDB's.

Only expressions with the same value in both are translated; others are refused by name.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from sqlglot import exp

from headwater.engine.tables.evaluation import result_schema
from headwater.engine.tables.scalar_functions import (
    FUNCTIONS,
    Handler,
    ScalarWriter,
    duckdb_type,
    spark_decimal,
    type_family,
)
from headwater.pipelines.tables.sql_nodes import QueryRefusal
from headwater.sql.identifiers import literal, quote

__all__ = ["scalar_writer"]

_COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "is not distinct from", exp.NullSafeNEQ: "is distinct from",
}  # fmt: skip


def scalar_writer(schema: pa.Schema, query: QueryRefusal) -> ScalarWriter:
    """Returns the writer of expressions over these columns.

    Example:
        >>> from sqlglot import parse_one
        >>> scalar = scalar_writer(pa.schema([("price", pa.decimal128(10, 2))]), QueryRefusal("view", None))
        >>> scalar.to_sql(parse_one("price > 3"))
        '("price" > cast(3 as integer))'
        >>> scalar.value_type(parse_one("price * 2"))
        Decimal128Type(decimal128(12, 2))
    """
    return ScalarWriter(schema, query, {**_OPERATORS, **FUNCTIONS})


def _column(scalar: ScalarWriter, node: exp.Expr) -> str:
    return quote(node.name)


def _literal(scalar: ScalarWriter, node: exp.Expr) -> str:
    text = node.name
    if node.is_string:
        return literal(text)
    if not text.isdigit():
        return text
    return f"cast({text} as {'integer' if int(text) < 1 << 31 else 'bigint' if int(text) < 1 << 63 else 'hugeint'})"


def _comparison(scalar: ScalarWriter, node: exp.Expr) -> str:
    scalar.require_same_family(node, node.this, node.expression)
    return f"({scalar.to_sql(node.this)} {_COMPARISONS[type(node)]} {scalar.to_sql(node.expression)})"


def _is(scalar: ScalarWriter, node: exp.Expr) -> str:
    return f"({scalar.to_sql(node.this)} is {scalar.to_sql(node.expression)})"


def _between(scalar: ScalarWriter, node: exp.Expr) -> str:
    low, high = node.args["low"], node.args["high"]
    scalar.require_same_family(node, node.this, low, high)
    return f"({scalar.to_sql(node.this)} between {scalar.to_sql(low)} and {scalar.to_sql(high)})"


def _in(scalar: ScalarWriter, node: exp.Expr) -> str:
    if not node.expressions:
        scalar.query.refuse(node, "IN needs a list of values")
    scalar.require_same_family(node, node.this, *node.expressions)
    return f"({scalar.to_sql(node.this)} in ({', '.join(scalar.to_sql(each) for each in node.expressions)}))"


def _logical(word: str) -> Handler:
    def write(scalar: ScalarWriter, node: exp.Expr) -> str:
        for part in (node.this, node.expression):
            if scalar.family(part) not in ("boolean", "null"):
                scalar.query.refuse(part, "it is not a condition")
        return f"({scalar.to_sql(node.this)} {word} {scalar.to_sql(node.expression)})"

    return write


def _case(scalar: ScalarWriter, node: exp.Expr) -> str:
    branches = node.args.get("ifs") or [node]
    other = node.args.get("default") or node.args.get("false")
    scalar.require_same_family(node, *(each.args["true"] for each in branches), other)
    if isinstance(node, exp.Case) and node.this is not None:
        scalar.require_same_family(node, node.this, *(each.this for each in branches))
    start = scalar.to_sql(node.this) if isinstance(node, exp.Case) and node.this is not None else ""
    whens = " ".join(f"when {scalar.to_sql(each.this)} then {scalar.to_sql(each.args['true'])}" for each in branches)
    end = f" else {scalar.to_sql(other)}" if other is not None else ""
    return f"(case {start} {whens}{end} end)"


def _sum(sign: str) -> Handler:
    def write(scalar: ScalarWriter, node: exp.Expr) -> str:
        left, right = node.this, node.expression
        if isinstance(right, exp.Interval) and scalar.family(left) == "time":
            return f"(cast({scalar.to_sql(left)} as timestamp) {sign} {scalar.to_sql(right)})"
        _require_numbers(scalar, node)
        kinds = scalar.value_type(left), scalar.value_type(right)
        if not any(map(pa.types.is_decimal, kinds)) or any(map(pa.types.is_floating, kinds)):
            return f"({scalar.to_sql(left)} {sign} {scalar.to_sql(right)})"
        (first, one), (second, two) = (
            spark_decimal(kind, part) for kind, part in zip(kinds, (left, right), strict=True)
        )
        scale = max(one, two)
        precision = max(first - one, second - two) + scale + 1
        _require_digits(scalar, node, precision)
        wide = f"decimal({max(precision, 19)}, {scale})"
        text = f"cast({scalar.to_sql(left)} as {wide}) {sign} cast({scalar.to_sql(right)} as {wide})"
        return f"cast({text} as decimal({precision}, {scale}))"

    return write


def _product(scalar: ScalarWriter, node: exp.Expr) -> str:
    _require_numbers(scalar, node)
    left, right = node.this, node.expression
    kinds = scalar.value_type(left), scalar.value_type(right)
    if not any(map(pa.types.is_decimal, kinds)) or any(map(pa.types.is_floating, kinds)):
        return f"({scalar.to_sql(left)} * {scalar.to_sql(right)})"
    (first, one), (second, two) = (spark_decimal(kind, part) for kind, part in zip(kinds, (left, right), strict=True))
    _require_digits(scalar, node, first + second + 1)
    # The wider left side makes DuckDB compute in 128 bits: in 64 it would report an overflow.
    wide, narrow = f"decimal({38 - second}, {one})", f"decimal({second}, {two})"
    text = f"cast({scalar.to_sql(left)} as {wide}) * cast({scalar.to_sql(right)} as {narrow})"
    return f"cast({text} as decimal({first + second + 1}, {one + two}))"


def _division(sign: str) -> Handler:
    def write(scalar: ScalarWriter, node: exp.Expr) -> str:
        _require_numbers(scalar, node)
        kinds = scalar.value_type(node.this), scalar.value_type(node.expression)
        if any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_floating, kinds)):
            scalar.query.refuse(node, "division of decimals is not supported", fix="cast(… as double)")
        if sign == "//" and any(map(pa.types.is_floating, kinds)):
            scalar.query.refuse(node, "DIV is for whole numbers")
        upper, lower = scalar.to_sql(node.this), scalar.to_sql(node.expression)
        if isinstance(node, exp.SafeDivide):
            return f"({upper} / nullif({lower}, 0))"
        # Spark stops at a division by zero; DuckDB would answer null or infinity.
        return f"(case when {lower} = 0 then error('division by zero') else {upper} {sign} {lower} end)"

    return write


def _require_numbers(scalar: ScalarWriter, node: exp.Expr) -> None:
    for part in (node.this, node.expression):
        if scalar.family(part) not in ("number", "null"):
            scalar.query.refuse(node, f"{part.sql('spark')} is not a number", fix="cast(… as …)")


def _require_digits(scalar: ScalarWriter, node: exp.Expr, precision: int) -> None:
    if precision > 38:
        reason = f"its exact value may need {precision} digits, and decimals have 38 at most"
        scalar.query.refuse(node, reason, fix="cast(… as decimal(18, 2))")


def _cast(scalar: ScalarWriter, node: exp.Expr) -> str:
    inner, target = node.this, node.args["to"]
    wanted = duckdb_type(target)
    source = scalar.value_type(inner)
    if wanted is None or node.args.get("safe") or node.args.get("format"):
        scalar.query.refuse(node, "this conversion is not supported")
    from_, to = (
        type_family(source),
        type_family(result_schema(f"select cast(null as {wanted}) as x", {}).field("x").type),
    )
    text = scalar.to_sql(inner)
    spelled = isinstance(inner, exp.Literal) and inner.is_string and to == "time"
    exact = not pa.types.is_floating(source)
    whole = to == "number" and "decimal" not in wanted and wanted not in ("double", "float")
    if from_ == "null" or spelled or from_ == to == "text" or from_ == to == "time":
        return f"cast({text} as {wanted})"
    if from_ == to == "number" and whole and not pa.types.is_integer(source):
        return f"cast(trunc({text}) as {wanted})"
    allowed = (
        (from_ == to == "number" and (exact or "decimal" not in wanted))
        or (to == "text" and (from_ == "boolean" or (from_ == "number" and exact) or pa.types.is_date(source)))
        or (from_ == "boolean" and whole)
        or from_ == to == "boolean"
    )
    if not allowed:
        scalar.query.refuse(node, f"Spark and DuckDB turn {source} into {wanted} by different rules")
    return f"cast({text} as {wanted})"


def _dot(scalar: ScalarWriter, node: exp.Expr) -> str:
    return f"struct_extract({scalar.to_sql(node.this)}, '{node.expression.name.replace(chr(39), chr(39) * 2)}')"


def _struct(scalar: ScalarWriter, node: exp.Expr) -> str:
    members = []
    for number, each in enumerate(node.expressions):
        name = each.this.name if isinstance(each, exp.PropertyEQ) else f"col{number + 1}"
        value = each.expression if isinstance(each, exp.PropertyEQ) else each
        members.append(f"{quote(name)} := {scalar.to_sql(value)}")
    return f"struct_pack({', '.join(members)})"


def _template(form: str) -> Handler:
    return lambda scalar, node: form.format(scalar.to_sql(node.this))


_OPERATORS: Final[dict[type[exp.Expr], Handler]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda scalar, node: "true" if node.this else "false",
    exp.Null: lambda scalar, node: "null",
    exp.And: _logical("and"),
    exp.Or: _logical("or"),
    exp.Not: _template("(not {})"),
    exp.Paren: _template("({})"),
    exp.Is: _is,
    exp.Between: _between,
    exp.In: _in,
    exp.Case: _case,
    exp.If: _case,
    exp.Neg: _template("(- {})"),
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
    **dict.fromkeys(_COMPARISONS, _comparison),
}
