"""Translates the parts of a condition that have the same value in every engine to the SQL of a store.

DuckDB defines the meaning of a condition. A store evaluates only those parts whose value cannot differ: comparisons of
a column, or of its remainder, with a constant of its type, `IS NULL`, `IN`, `BETWEEN` and `LIKE`, joined by AND, OR and
NOT. All other parts (arithmetic, casts, functions) are left to `Filter`, which runs over the rows that the store
returns. For some of them the store evaluates a weaker condition, which leaves `Filter` fewer rows.

No part that is pushed down can fail, and each is written so that the engines agree: text is compared by its bytes,
`LIKE` is case-sensitive, decimals are compared as numbers, times as moments in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import pyarrow as pa
from sqlglot import exp
from sqlglot.expressions import Expr

from headwater.sql.guard import DECIMAL_COLLATION, Condition, StoreEngine

__all__ = ["Pushdown", "push_down"]

_COMPARISONS: dict[type[Expr], tuple[str, str]] = {  # the operator, and the one with both sides exchanged
    exp.EQ: ("=", "="),
    exp.NEQ: ("<>", "<>"),
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
}
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(rf"({_DATE.pattern})(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{{1,6}})?)?(Z|[+-]\d\d(?::\d\d)?)?)?")
_ZONED: Final = (exp.DType.TIMESTAMPTZ, None)  # casts of a constant for a time with zone; None: a plain string
_UNZONED: Final = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ, None)
_MAX_DECIMAL_DIGITS = 38
_EXACT_DIGITS = 15  # with more, engines may read different doubles from one text
# The time of a pattern search grows with each wildcard, and SQLite cannot interrupt it.
_MAX_WILDCARDS = 3
_MAX_PATTERN_LENGTH = 100
_WILDCARDS = {"%": "*", "_": "?"}  # of LIKE, and the same in SQLite's GLOB
_SHAPES = {"starts_with": "=%", "prefix": "=%", "ends_with": "%=", "suffix": "%=", "contains": "%=%"}


@dataclass(frozen=True)
class Pushdown:
    """The part of a condition that a store evaluates.

    Attributes:
        sql: A condition in the store's SQL that holds for every row that the whole condition holds for.
        complete: Whether it is the whole condition.
    """

    sql: str
    complete: bool


def push_down(condition: Condition, engine: StoreEngine, columns: Mapping[str, tuple[str, pa.DataType]]) -> Pushdown:
    """Returns the part of a condition that a store can evaluate.

    Args:
        condition: The condition.
        engine: The engine of the store.
        columns: The stored column and its Arrow type for each name that a condition can use, in lower case.

    Example:
        >>> from headwater.sql.guard import parse_condition
        >>> push_down(parse_condition("n > 5 and n * 2 > 20"), "sqlite", {"n": ("n", pa.int64())})
        Pushdown(sql='("n" > 5)', complete=False)
    """
    writer = _Writer(engine, columns)
    parts = _conjuncts(condition.tree)
    exact = [writer.boolean(part) for part in parts]
    wider = [writer.necessary(part) for part, written in zip(parts, exact, strict=True) if written is None]
    pushed = [part for part in (*exact, *wider) if part is not None]
    return Pushdown(" AND ".join(f"({part})" for part in pushed) or "TRUE", complete=not wider)


def _conjuncts(tree: Expr) -> list[Expr]:
    plain = tree.unnest()
    if not isinstance(plain, exp.And):
        return [plain]
    return [part for side in plain.flatten() for part in _conjuncts(side)]


class _Writer:
    """Writes parts of a condition in the SQL of one engine; a method returns None for a part that it cannot write."""

    def __init__(self, engine: StoreEngine, columns: Mapping[str, tuple[str, pa.DataType]]) -> None:
        self._engine = engine
        self._columns = columns

    def boolean(self, node: Expr) -> str | None:
        node = node.unnest()
        if isinstance(node, exp.Connector):
            parts = [self.boolean(side) for side in node.flatten()]
            sign = " AND " if isinstance(node, exp.And) else " OR "
            known = isinstance(node, (exp.And, exp.Or)) and None not in parts
            return sign.join(f"({part})" for part in parts) if known else None
        if isinstance(node, exp.Not):
            inner = self.boolean(node.this)
            return None if inner is None else f"NOT ({inner})"
        if isinstance(node, exp.Boolean):
            return node.sql().upper()
        if isinstance(node, exp.Column):
            found = self._column(node)
            return found[0] if found is not None and pa.types.is_boolean(found[1]) else None
        return self._predicate(node)

    def necessary(self, node: Expr) -> str | None:
        """Returns a condition that holds wherever the part holds, and perhaps on other rows."""
        found = self._like(node)
        if found is None:
            return self._lower(node)
        # SQLite's GLOB stops at a NUL inside a text, as its length() does; such texts are left to DuckDB.
        name, matching = found
        whole = f"length(CAST({name} AS BLOB))"
        return f"{matching} OR length(CAST(substr({name}, 1, length({name})) AS BLOB)) <> {whole}"

    def _lower(self, node: Expr) -> str | None:
        """Returns `lower(column) = 'text'` with the engine's function, which agrees with DuckDB's on ASCII alone."""
        call, operands = node.this, node.expressions if isinstance(node, exp.In) else [node.expression]
        if not isinstance(node, (exp.EQ, exp.In)) or not isinstance(call, exp.Anonymous) or len(call.expressions) != 1:
            return None
        found = self._column(call.expressions[0])
        function = {"lower": "lower", "lcase": "lower", "upper": "upper", "ucase": "upper"}.get(call.name.lower())
        if found is None or function is None or not pa.types.is_string(found[1]) or not operands:
            return None
        constants = [self._constant(operand.unnest(), found[1]) for operand in operands]
        if None in constants:
            return None
        name = f"{found[0]}{self._collation(found[1])}"
        size = f"length(CAST({found[0]} AS BLOB))" if self._engine == "sqlite" else f"octet_length({name})"
        same = f"{function}({name}) IN ({', '.join(map(str, constants))})"
        return f"{same} OR {size} <> length({name})"

    def _predicate(self, node: Expr) -> str | None:
        if type(node) in _COMPARISONS:
            return self._comparison(node)
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, (exp.NullSafeEQ, exp.NullSafeNEQ)):
            same = {"sqlite": ("IS", "IS NOT"), "postgres": ("IS NOT DISTINCT FROM", "IS DISTINCT FROM")}[self._engine]
            return self._operation(node.this, same[isinstance(node, exp.NullSafeNEQ)] + " {}", node.expression)
        if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
            marks = ", ".join("{}" for _ in node.expressions)
            return self._operation(node.this, f"IN ({marks})", *node.expressions)
        if isinstance(node, exp.Between) and not node.args.get("symmetric"):
            return self._operation(node.this, "BETWEEN {} AND {}", node.args["low"], node.args["high"])
        found = self._like(node) if self._engine == "postgres" else None
        return None if found is None else found[1]

    def _comparison(self, node: Expr) -> str | None:
        sign, exchanged = _COMPARISONS[type(node)]
        left, right = node.this.unnest(), node.expression.unnest()
        if self._operand(right) is not None and self._operand(left) is None:
            return self._operation(right, exchanged + " {}", left)
        return self._operation(left, sign + " {}", right)

    def _is(self, node: Expr) -> str | None:
        found = self._column(node.this)
        truth = isinstance(node.expression, exp.Boolean) and found is not None and pa.types.is_boolean(found[1])
        if found is None or not (truth or isinstance(node.expression, exp.Null)):
            return None
        return f"{found[0]} IS {node.expression.sql().upper()}"

    def _operation(self, column: Expr, form: str, *operands: Expr) -> str | None:
        """Returns an operation on a column and constants of its type, in the engine's order of values."""
        found = self._operand(column)
        if found is None:
            return None
        name, kind = found
        constants = [self._constant(operand.unnest(), kind) for operand in operands]
        if None in constants:
            return None
        return f"{name}{self._collation(kind)} {form.format(*constants)}"

    def _operand(self, node: Expr) -> tuple[str, pa.DataType] | None:
        """Returns a column, or its remainder by a positive constant, to which all engines give the same sign."""
        node = node.unnest()
        if not isinstance(node, exp.Mod):
            return self._column(node)
        found, divisor = self._column(node.this), node.expression.unnest()
        if found is None or not pa.types.is_integer(found[1]) or not isinstance(divisor, exp.Literal):
            return None
        number = self._number(divisor, pa.int32())
        return None if number is None or not 0 < int(number) < 2**31 else (f"({found[0]} % {number})", found[1])

    def _column(self, node: Expr | None) -> tuple[str, pa.DataType] | None:
        node = None if node is None else node.unnest()
        if not isinstance(node, exp.Column):
            return None
        found = self._columns.get(".".join(part.name for part in node.parts).casefold())
        return None if found is None else (exp.to_identifier(found[0], quoted=True).sql(self._engine), found[1])

    def _collation(self, kind: pa.DataType) -> str:
        if self._engine == "sqlite":
            textual = pa.types.is_string(kind) or pa.types.is_temporal(kind)
            return f" COLLATE {DECIMAL_COLLATION}" if pa.types.is_decimal(kind) else " COLLATE BINARY" * textual
        # The cast is for columns of system views that the server keeps as JSON; on text it does nothing.
        return '::text COLLATE "C"' if pa.types.is_string(kind) else ""

    def _constant(self, node: Expr, kind: pa.DataType) -> str | None:
        """Returns a constant of a column's type; None for another type, which each engine converts in its own way."""
        if pa.types.is_boolean(kind):
            return node.sql().upper() if isinstance(node, exp.Boolean) else None
        if pa.types.is_integer(kind) or kind == pa.float64() or pa.types.is_decimal(kind):
            return self._number(node, kind)
        text, cast = _string(node)
        if text is None:
            return None
        if pa.types.is_string(kind):
            return None if cast else self._quote(text)
        if kind == pa.date32():
            return self._date(text) if cast in (exp.DType.DATE, None) else None
        return self._timestamp(text, cast, kind) if pa.types.is_timestamp(kind) and kind.unit == "us" else None

    def _number(self, node: Expr, kind: pa.DataType) -> str | None:
        negative = isinstance(node, exp.Neg)
        literal = node.this.unnest() if negative else node
        if not isinstance(literal, exp.Literal) or literal.is_string or not re.fullmatch(r"\d+(\.\d+)?", literal.name):
            return None
        value = -Decimal(literal.name) if negative else Decimal(literal.name)
        scale = len(literal.name.partition(".")[2])
        if pa.types.is_integer(kind):
            fits = scale == 0 and -(2**63) < value < 2**63 and kind != pa.uint64()
            return str(value) if fits else None
        if kind == pa.float64():
            text = repr(float(value))
            exact = len(literal.name.replace(".", "").lstrip("0")) <= _EXACT_DIGITS
            return None if not exact else text if self._engine == "sqlite" else f"'{text}'::double precision"
        # DuckDB compares both as decimals with as many digits before and after the point as either has.
        whole = max(kind.precision - kind.scale, len(literal.name.partition(".")[0]) if scale else 19)
        # DuckDB has no decimals of more than 38 digits, so there is nothing to agree with.
        longest = _MAX_DECIMAL_DIGITS if pa.types.is_decimal128(kind) else 2 * _MAX_DECIMAL_DIGITS
        if whole + max(kind.scale, scale) > longest or abs(value) >= 2**63:
            return None
        return f"'{value:f}'" if self._engine == "sqlite" else f"{value:f}"

    def _date(self, text: str) -> str | None:
        if not _DATE.fullmatch(text) or _parse_time(text) is None:
            return None
        return self._quote(text) if self._engine == "sqlite" else f"DATE {self._quote(text)}"

    def _timestamp(self, text: str, cast: exp.DType | None, kind: pa.DataType) -> str | None:
        read = _TIMESTAMP.fullmatch(text)
        value = _parse_time(text) if read else None
        if read is None or value is None:
            return None
        zoned, dated = read[2] is not None, _DATE.fullmatch(text) is not None
        fits = cast in ((*_ZONED, *_UNZONED) if kind.tz and not zoned else _ZONED if kind.tz else _UNZONED)
        if not (fits or (cast is exp.DType.DATE and dated)) or (zoned and not kind.tz):
            return None
        stored = f"'{value.year:04}-{value:%m-%dT%H:%M:%S.%f}Z'"
        return stored if self._engine == "sqlite" else f"TIMESTAMPTZ {stored}"

    def _like(self, node: Expr) -> tuple[str, str] | None:
        """Returns a column and a search for a pattern in it."""
        column, pattern, negated = _read_pattern(node)
        found = None if column is None else self._column(column)
        if found is None or pattern is None or not pa.types.is_string(found[1]):
            return None
        if len(pattern) > _MAX_PATTERN_LENGTH or pattern.count("%") > _MAX_WILDCARDS:
            return None
        return found[0], f"{found[0]}{self._collation(found[1])} {'NOT ' * negated}{self._pattern(pattern)}"

    def _pattern(self, pattern: list[str]) -> str:
        if self._engine == "postgres":
            parts = (part if part in _WILDCARDS else re.sub(r"([!%_])", r"!\1", part[1:]) for part in pattern)
            return f"LIKE {self._quote(''.join(parts))} ESCAPE '!'"
        # SQLite's LIKE ignores case; its GLOB does not.
        parts = (_WILDCARDS.get(part) or re.sub(r"([*?[])", r"[\1]", part[1:]) for part in pattern)
        return f"GLOB {self._quote(''.join(parts))}"

    def _quote(self, text: str) -> str:
        return exp.Literal.string(text).sql(self._engine)


def _string(node: Expr) -> tuple[str | None, exp.DType | None]:
    """Returns the text of a string constant, and the type of a constant such as DATE '2026-01-01'."""
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        return _string(node.this)[0], node.to.this
    plain = isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string)
    return (node.name if plain else None), None


def _parse_time(text: str) -> datetime | None:
    try:
        read = datetime.fromisoformat(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _read_pattern(node: Expr) -> tuple[Expr | None, list[str] | None, bool]:
    """Returns the column, the pattern and the negation of LIKE, or of a function such as `starts_with`.

    A pattern is a list of `%`, `_` and, for each other sign, "=" and the sign. It is None if DuckDB refuses it.
    """
    escape: str | None = ""
    if isinstance(node, exp.Escape):
        escape, node = _string(node.expression)[0], node.this
    if isinstance(node, exp.Like) and escape is not None and len(escape) <= 1:
        text, cast = _string(node.expression)
        return node.this, None if text is None or cast else _parse_pattern(text, escape), bool(node.args.get("negate"))
    shape = _SHAPES.get(node.name.lower()) if isinstance(node, exp.Anonymous) and len(node.expressions) == 2 else None
    if shape is None:
        return None, None, False
    text, cast = _string(node.expressions[1])
    before, after = shape.split("=")
    return node.expressions[0], None if text is None or cast else [*before, *(f"={s}" for s in text), *after], False


def _parse_pattern(text: str, escape: str) -> list[str] | None:
    found: list[str] = []
    escaped = False
    for sign in text:
        if escaped or (sign != escape and sign not in _WILDCARDS):
            found.append(f"={sign}")
            escaped = False
        elif sign == escape:
            escaped = True
        else:
            found.append(sign)
    return None if escaped else found
