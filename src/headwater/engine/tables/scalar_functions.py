"""Scalar functions with the same value in Spark and DuckDB, and the writer that translates them.

`ScalarWriter` has one handler per kind of syntax node. `type_family`, `spark_decimal` and `duckdb_type` describe types:
their family, their precision and scale in Spark's decimals, and their name in DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import pyarrow as pa
from sqlglot import exp

from headwater.engine.tables.evaluation import result_schema
from headwater.pipelines.tables.sql_nodes import QueryRefusal

__all__ = ["FUNCTIONS", "Handler", "ScalarWriter", "duckdb_type", "spark_decimal", "type_family"]

_DUCKDB_NAMES: Final = {
    "TINYINT": "tinyint", "SMALLINT": "smallint", "INT": "integer", "BIGINT": "bigint", "FLOAT": "float",
    "DOUBLE": "double", "TEXT": "varchar", "VARCHAR": "varchar", "CHAR": "varchar", "BOOLEAN": "boolean",
    "DATE": "date", "TIMESTAMP": "timestamp", "TIMESTAMPTZ": "timestamp", "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp",
}  # fmt: skip
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}


def type_family(kind: pa.DataType) -> str:
    """Returns the family of a type, such as number, text or time.

    Example:
        >>> type_family(pa.int32()), type_family(pa.date32()), type_family(pa.large_binary())
        ('number', 'time', 'large_binary')
    """
    checks = {
        "null": pa.types.is_null,
        "boolean": pa.types.is_boolean,
        "number": lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind),
        "text": pa.types.is_string,
        "bytes": pa.types.is_binary,
        "time": lambda kind: pa.types.is_timestamp(kind) or pa.types.is_date(kind),
    }
    return next((name for name, check in checks.items() if check(kind)), str(kind))


def spark_decimal(kind: pa.DataType, node: exp.Expr) -> tuple[int, int]:
    """Returns the precision and scale to which Spark converts a number in an expression with decimals.

    Example:
        >>> spark_decimal(pa.int32(), exp.column("x")), spark_decimal(pa.int32(), exp.Literal.number(12))
        ((10, 0), (2, 0))
    """
    if pa.types.is_decimal(kind):
        return kind.precision, kind.scale
    if isinstance(node, exp.Literal):
        return len(node.name), 0
    if pa.types.is_null(kind):  # NULL fits every type
        return 1, 0
    return _DIGITS[kind.bit_width], 0


def duckdb_type(target: exp.Expr) -> str | None:
    """Returns DuckDB's name of a Spark type; None if there is no equivalent.

    Example:
        >>> duckdb_type(exp.DataType.build("decimal(10, 2)")), duckdb_type(exp.DataType.build("binary"))
        ('decimal(10, 2)', None)
    """
    name = target.this.name if hasattr(target.this, "name") else str(target.this)
    if name == "DECIMAL":
        sizes = [int(each.name) for each in target.expressions] or [10]
        return f"decimal({sizes[0]}, {sizes[1] if len(sizes) > 1 else 0})"
    return _DUCKDB_NAMES.get(name)


_NONDETERMINISTIC = ("Rand", "Randn", "Uuid", "CurrentTimestamp", "CurrentDate", "CurrentTime", "CurrentUser")


class ScalarWriter:
    """Translates expressions over columns of a schema to DuckDB's dialect.

    Args:
        schema: The columns.
        query: For error messages.
        handlers: The functions that translate each kind of node.

    Example:
        >>> handlers = {exp.Column: lambda scalar, node: node.name}
        >>> writer = ScalarWriter(pa.schema([("x", pa.int32())]), QueryRefusal("view", None), handlers)
        >>> writer.value_type(exp.column("x"))
        DataType(int32)
    """

    def __init__(self, schema: pa.Schema, query: QueryRefusal, handlers: Mapping[type[exp.Expr], Handler]) -> None:
        self._handlers = handlers
        self._schema = schema
        self._kinds: dict[str, pa.DataType] = {}
        self.query = query

    def to_sql(self, node: exp.Expr) -> str:
        """Returns the expression in DuckDB's dialect.

        Raises:
            BadSqlError: A part of it has no equivalent in DuckDB, or its types do not match.
        """
        handler = self._handlers.get(type(node))
        if type(node).__name__ in _NONDETERMINISTIC:
            self.query.refuse(node, "its value changes with every call")
        if handler is None:
            self.query.refuse(node, "this function or operator is not supported in views over tables")
        return handler(self, node)

    def value_type(self, node: exp.Expr) -> pa.DataType:
        """Returns the type of its value."""
        text = self.to_sql(node)
        if text not in self._kinds:
            import duckdb

            try:
                (self._kinds[text],) = result_schema(f"select {text} as x from t", {"t": self._schema}).types
            except duckdb.Error as error:
                self.query.refuse(node, str(error).splitlines()[0])
        return self._kinds[text]

    def family(self, node: exp.Expr) -> str:
        """Returns the type family of its value: number, text, time and so on."""
        return type_family(self.value_type(node))

    def require_same_family(self, node: exp.Expr, *parts: exp.Expr | None) -> None:
        """Refuse mixed type families, which Spark and DuckDB cast by different rules.

        Text compared with times, as in `at > '2026-01-01'`, is allowed: both parse it as a time.
        """
        given = [part for part in parts if part is not None]
        times = any(self.family(part) == "time" for part in given)
        given = [part for part in given if not (times and isinstance(part, exp.Literal) and part.is_string)]
        families = {self.family(part) for part in given}
        if len(families - {"null"}) > 1:
            self.query.refuse(node, f"it mixes {' and '.join(sorted(families))}", fix="cast(… as …)")


Handler = Callable[[ScalarWriter, exp.Expr], str]


_UNITS: Final = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week")
"""The units of fixed length; a month or a year has none."""
_TIME_PARTS: Final[dict[type[exp.Expr], str]] = {
    exp.Day: "day", exp.DayOfMonth: "day", exp.Hour: "hour", exp.Minute: "minute", exp.Month: "month",
    exp.Quarter: "quarter", exp.Second: "second", exp.Year: "year",
}  # fmt: skip
_TRUNC_UNITS: Final = ("SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR")


def _unary(template: str, family: str) -> Handler:
    """Returns a handler for a function of one value of a type family."""

    def write(scalar: ScalarWriter, node: exp.Expr) -> str:
        _require_family(scalar, node, node.this, family)
        return template.format(scalar.to_sql(node.this))

    return write


def _require_family(scalar: ScalarWriter, node: exp.Expr, part: exp.Expr, family: str) -> None:
    found = scalar.family(part)
    if found not in (family, "null"):
        scalar.query.refuse(node, f"{part.sql('spark')} is {found}, not {family}")


def _is_whole_literal(part: exp.Expr) -> bool:
    return isinstance(part, exp.Literal) and part.name.isdigit()


def _variadic(template: str) -> Handler:
    """Returns a handler for a function of several values of one type family."""

    def write(scalar: ScalarWriter, node: exp.Expr) -> str:
        parts = [part for part in (node.this, node.expression, *node.expressions) if part is not None]
        scalar.require_same_family(node, *parts)
        return template.format(", ".join(scalar.to_sql(part) for part in parts))

    return write


def _concat(scalar: ScalarWriter, node: exp.Expr) -> str:
    parts = node.expressions if isinstance(node, exp.Concat) else [node.this, node.expression]
    for part in parts:
        _require_family(scalar, node, part, "text")
    return "(" + " || ".join(scalar.to_sql(part) for part in parts) + ")"


def _like(scalar: ScalarWriter, node: exp.Expr) -> str:
    _require_family(scalar, node, node.this, "text")
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or "\\" in pattern.name:
        scalar.query.refuse(node, "the pattern of LIKE must be a text without backslashes")
    return f"({scalar.to_sql(node.this)} like {scalar.to_sql(pattern)})"


def _substring(scalar: ScalarWriter, node: exp.Expr) -> str:
    _require_family(scalar, node, node.this, "text")
    start, length = node.args.get("start"), node.args.get("length")
    for part in (start, length):
        if part is not None and not _is_whole_literal(part):
            scalar.query.refuse(node, "start and length of a substring must be plain numbers")
    if start is None or int(start.name) < 1:
        scalar.query.refuse(node, "a substring starts at 1 or later")
    end = f", {length.name}" if length is not None else ""
    return f"substring({scalar.to_sql(node.this)}, {start.name}{end})"


def _trim(scalar: ScalarWriter, node: exp.Expr) -> str:
    if node.expression is not None or node.args.get("collation"):
        scalar.query.refuse(node, "only spaces can be trimmed")
    _require_family(scalar, node, node.this, "text")
    word = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "trim")
    return f"{word}({scalar.to_sql(node.this)}, ' ')"


def _round(scalar: ScalarWriter, node: exp.Expr) -> str:
    kind = scalar.value_type(node.this)
    digits = node.args.get("decimals")
    if not pa.types.is_decimal(kind):
        reason, fix = "Spark and DuckDB round only decimals alike", "round(cast(… as decimal(18, 6)), 2)"
        scalar.query.refuse(node, reason, fix=fix)
    if digits is not None and not _is_whole_literal(digits):
        scalar.query.refuse(node, "the number of digits must be a plain number")
    scale = min(int(digits.name) if digits is not None else 0, kind.scale)
    precision = min(38, kind.precision - kind.scale + scale + 1)
    return f"cast({scalar.to_sql(node.this)} as decimal({precision}, {scale}))"


def _rounding(word: str) -> Handler:
    def write(scalar: ScalarWriter, node: exp.Expr) -> str:
        kind = scalar.value_type(node.this)
        if node.args.get("decimals") is not None or node.args.get("to") is not None:
            scalar.query.refuse(node, f"{word} has one argument")
        if pa.types.is_decimal(kind):
            precision = min(38, kind.precision - kind.scale + 1)
            return f"cast({word}({scalar.to_sql(node.this)}) as decimal({precision}, 0))"
        _require_family(scalar, node, node.this, "number")
        return f"cast({word}({scalar.to_sql(node.this)}) as bigint)"

    return write


def _date(scalar: ScalarWriter, node: exp.Expr) -> str:
    _require_family(scalar, node, node.this, "time")
    if node.args.get("format"):
        scalar.query.refuse(node, "a format is not supported")
    return f"cast({scalar.to_sql(node.this)} as date)"


def _date_add(scalar: ScalarWriter, node: exp.Expr) -> str:
    _require_family(scalar, node, node.this, "time")
    unit = node.args.get("unit")
    if unit is not None and unit.name.upper() != "DAY":
        scalar.query.refuse(node, "only days can be added to a date", fix="at + interval 1 hour")
    return f"(cast({scalar.to_sql(node.this)} as date) + cast({scalar.to_sql(node.expression)} as integer))"


def _date_difference(scalar: ScalarWriter, node: exp.Expr) -> str:
    if node.args.get("unit") is not None:
        scalar.query.refuse(node, "only the difference in days is supported", fix="datediff(a, b)")
    ends = [f"cast({scalar.to_sql(each)} as date)" for each in (node.expression, node.this)]
    return f"cast(date_diff('day', {', '.join(ends)}) as integer)"


def _date_trunc(scalar: ScalarWriter, node: exp.Expr) -> str:
    unit = node.args["unit"].name.upper()
    if unit not in _TRUNC_UNITS or node.args.get("zone"):
        scalar.query.refuse(node, f"not one of {', '.join(_TRUNC_UNITS)}")
    _require_family(scalar, node, node.this, "time")
    return f"cast(date_trunc('{unit.lower()}', {scalar.to_sql(node.this)}) as timestamp)"


def _interval(scalar: ScalarWriter, node: exp.Expr) -> str:
    unit = node.args.get("unit")
    length = _parse_interval(f"{node.this.name if node.this else ''} {unit.name if unit else ''}")
    if length is None:
        scalar.query.refuse(node, f"an interval is a number of {', '.join(_UNITS)}", fix="interval 1 hour")
    return f"to_microseconds({length // timedelta(microseconds=1)})"


def _parse_interval(text: str) -> timedelta | None:
    """Parse a fixed duration: `1 hour`, `15 minutes`."""
    found = re.fullmatch(r"\s*(-?\d+)\s+([a-zA-Z]+?)[sS]?\s*", text)
    if found is None or found[2].lower() not in _UNITS:
        return None
    return timedelta(**{f"{found[2].lower()}s": int(found[1])})


def _window(scalar: ScalarWriter, node: exp.Expr) -> str:
    """Translate `window(at, '1 hour')`: the interval, aligned to 1970, that contains a time."""
    if node.name.lower() != "window":
        scalar.query.refuse(node, "this function is unknown")
    if len(node.expressions) != 2:
        scalar.query.refuse(node, "only tumbling windows are supported", fix="window(at, '1 hour')")
    time, length = node.expressions
    found = _parse_interval(length.name) if isinstance(length, exp.Literal) else None
    if found is None or found <= timedelta(0):
        scalar.query.refuse(node, "the length of a window must be text such as '1 hour'")
    if not pa.types.is_timestamp(scalar.value_type(time)):
        scalar.query.refuse(node, f"{time.sql('spark')} is not a time")
    size = found // timedelta(microseconds=1)
    micros = f"epoch_us({scalar.to_sql(time)})"
    # A remainder that is not negative, also for times before 1970.
    start = f"({micros} - (({micros} % {size}) + {size}) % {size})"
    members = f'"start" := make_timestamp({start}), "end" := make_timestamp({start} + {size})'
    return f"(case when {scalar.to_sql(time)} is not null then struct_pack({members}) end)"


FUNCTIONS: Final[dict[type[exp.Expr], Handler]] = {
    exp.Abs: _unary("abs({})", "number"),
    exp.Anonymous: _window,
    exp.Ceil: _rounding("ceil"),
    exp.Coalesce: _variadic("coalesce({})"),
    exp.Concat: _concat,
    exp.DPipe: _concat,
    exp.DateDiff: _date_difference,
    exp.Floor: _rounding("floor"),
    exp.Greatest: _variadic("greatest({})"),
    exp.Interval: _interval,
    exp.IsNan: _unary("coalesce(isnan({}), false)", "number"),
    exp.Least: _variadic("least({})"),
    exp.Lower: _unary("hw_lower({})", "text"),
    exp.Upper: _unary("hw_upper({})", "text"),
    exp.Length: _unary("cast(length({}) as integer)", "text"),
    exp.Like: _like,
    exp.Nullif: _variadic("nullif({})"),
    exp.Round: _round,
    exp.Sqrt: _unary("sqrt({})", "number"),
    exp.Substring: _substring,
    exp.TimestampTrunc: _date_trunc,
    exp.Trim: _trim,
    exp.TsOrDsAdd: _date_add,
    exp.TsOrDsToDate: _date,
    **{kind: _unary(f"cast({part}({{}}) as integer)", "time") for kind, part in _TIME_PARTS.items()},
}
"""The handlers of functions; a function without one is refused."""
