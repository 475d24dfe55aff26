"""Translates scalar operators from Spark's dialect to DuckDB's; `scalar_functions` translates functions.

Only expressions with the same value in both are translated; all others are refused.
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


def scalar_writer(schema: pa.Schema, refusal: QueryRefusal) -> ScalarWriter:
    """Returns the writer of expressions over these columns.

    Example:
        >>> from sqlglot import parse_one
        >>> scalar = scalar_writer(pa.schema([("price", pa.decimal128(10, 2))]), QueryRefusal("view", None))
        >>> scalar.to_sql(parse_one("price > 3"))
        '("price" > cast(3 as integer))'
        >>> scalar.value_type(parse_one("price * 2"))
        Decimal128Type(decimal128(12, 2))
    """
    return ScalarWriter(schema, refusal, {**_OPERATORS, **FUNCTIONS})


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
    subject = node.this if isinstance(node, exp.Case) else None
    if subject is not None:
        scalar.require_same_family(node, subject, *(each.this for each in branches))
    start = scalar.to_sql(subject) if subject is not None else ""
    whens = " ".join(f"when {scalar.to_sql(each.this)} then {scalar.to_sql(each.args['true'])}" for each in branches)
    end = f" else {scalar.to_sql(other)}" if other is not None else ""
    return f"(case {start} {whens}{end} end)"


def _sum(sign: str) -> Handler:
    def write(scalar: ScalarWriter, node: exp.Expr) -> str:
        left, right = node.this, node.expression
        if isinstance(right, exp.Interval) and scalar.family(left) == "time":
            return f"(cast({scalar.to_sql(left)} as timestamp) {sign} {scalar.to_sql(right)})"
        sizes = _decimal_sizes(scalar, node)
        if sizes is None:
            return f"({scalar.to_sql(left)} {sign} {scalar.to_sql(right)})"
        (left_precision, left_scale), (right_precision, right_scale) = sizes
        scale = max(left_scale, right_scale)
        precision = max(left_precision - left_scale, right_precision - right_scale) + scale + 1
        _require_digits(scalar, node, precision)
        # From 19 digits on, DuckDB computes in 128 bits: in 64 it would report an overflow.
        wide = f"decimal({max(precision, 19)}, {scale})"
        text = f"cast({scalar.to_sql(left)} as {wide}) {sign} cast({scalar.to_sql(right)} as {wide})"
        return f"cast({text} as decimal({precision}, {scale}))"

    return write


def _product(scalar: ScalarWriter, node: exp.Expr) -> str:
    left, right = scalar.to_sql(node.this), scalar.to_sql(node.expression)
    sizes = _decimal_sizes(scalar, node)
    if sizes is None:
        return f"({left} * {right})"
    (left_precision, left_scale), (right_precision, right_scale) = sizes
    precision = left_precision + right_precision + 1
    _require_digits(scalar, node, precision)
    # The wider left side makes DuckDB compute in 128 bits: in 64 it would report an overflow.
    wide, narrow = f"decimal({38 - right_precision}, {left_scale})", f"decimal({right_precision}, {right_scale})"
    text = f"cast({left} as {wide}) * cast({right} as {narrow})"
    return f"cast({text} as decimal({precision}, {left_scale + right_scale}))"


def _decimal_sizes(scalar: ScalarWriter, node: exp.Expr) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Returns precision and scale of both operands if Spark computes in decimals; None if it does not."""
    for part in (node.this, node.expression):
        if scalar.family(part) not in ("number", "null"):
            scalar.query.refuse(node, f"{part.sql('spark')} is not a number", fix="cast(… as …)")
    kinds = scalar.value_type(node.this), scalar.value_type(node.expression)
    if not any(map(pa.types.is_decimal, kinds)) or any(map(pa.types.is_floating, kinds)):
        return None
    return spark_decimal(kinds[0], node.this), spark_decimal(kinds[1], node.expression)


def _division(sign: str) -> Handler:
    def write(scalar: ScalarWriter, node: exp.Expr) -> str:
        if _decimal_sizes(scalar, node) is not None:
            scalar.query.refuse(node, "division of decimals is not supported", fix="cast(… as double)")
        kinds = scalar.value_type(node.this), scalar.value_type(node.expression)
        if sign == "//" and any(map(pa.types.is_floating, kinds)):
            scalar.query.refuse(node, "DIV needs whole numbers")
        upper, lower = scalar.to_sql(node.this), scalar.to_sql(node.expression)
        if isinstance(node, exp.SafeDivide):
            return f"({upper} / nullif({lower}, 0))"
        # Spark fails at a division by zero; DuckDB would return null or infinity.
        return f"(case when {lower} = 0 then error('division by zero') else {upper} {sign} {lower} end)"

    return write


def _require_digits(scalar: ScalarWriter, node: exp.Expr, precision: int) -> None:
    if precision > 38:
        reason = f"its exact value may need {precision} digits, and decimals have 38 at most"
        scalar.query.refuse(node, reason, fix="cast(… as decimal(18, 2))")


def _cast(scalar: ScalarWriter, node: exp.Expr) -> str:
    inner = node.this
    wanted, source = duckdb_type(node.args["to"]), scalar.value_type(inner)
    if wanted is None or node.args.get("safe") or node.args.get("format"):
        scalar.query.refuse(node, "this conversion is not supported")
    from_, to = type_family(source), type_family(result_schema(f"select cast(null as {wanted}) as x", {}).types[0])
    text = scalar.to_sql(inner)
    exact = not pa.types.is_floating(source)
    whole = to == "number" and "decimal" not in wanted and wanted not in ("double", "float")
    if from_ == to == "number" and whole and not pa.types.is_integer(source):
        return f"cast(trunc({text}) as {wanted})"  # Spark truncates, DuckDB rounds
    allowed = (
        from_ == "null"
        or (from_ == to and to in ("text", "time", "boolean"))
        or (to == "time" and isinstance(inner, exp.Literal) and inner.is_string)
        or (from_ == to == "number" and (exact or "decimal" not in wanted))
        or (to == "text" and (from_ == "boolean" or (from_ == "number" and exact) or pa.types.is_date(source)))
        or (from_ == "boolean" and whole)
    )
    if not allowed:
        scalar.query.refuse(node, f"Spark and DuckDB convert {source} to {wanted} by different rules")
    return f"cast({text} as {wanted})"


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
    exp.Column: lambda scalar, node: quote(node.name),
    exp.Literal: _literal,
    exp.Boolean: lambda scalar, node: "true" if node.this else "false",
    exp.Null: lambda scalar, node: "null",
    exp.And: _logical("and"),
    exp.Or: _logical("or"),
    exp.Not: _template("(not {})"),
    exp.Paren: _template("({})"),
    exp.Is: lambda scalar, node: f"({scalar.to_sql(node.this)} is {scalar.to_sql(node.expression)})",
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
    exp.Dot: lambda scalar, node: f"struct_extract({scalar.to_sql(node.this)}, {literal(node.expression.name)})",
    exp.Struct: _struct,
    **dict.fromkeys(_COMPARISONS, _comparison),
}
