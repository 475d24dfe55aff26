"""Types of values: what sort they are, how Spark widens them, how DuckDB calls them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from sqlglot import exp

__all__ = ["family", "spark_decimal", "sql_type"]

_NAMES: Final = {
    "TINYINT": "tinyint", "SMALLINT": "smallint", "INT": "integer", "BIGINT": "bigint", "FLOAT": "float",
    "DOUBLE": "double", "TEXT": "varchar", "VARCHAR": "varchar", "CHAR": "varchar", "BOOLEAN": "boolean",
    "DATE": "date", "TIMESTAMP": "timestamp", "TIMESTAMPTZ": "timestamp", "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp",
}  # fmt: skip
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}


def family(kind: pa.DataType) -> str:
    """What sort of value a type is for.

    Example:
        >>> family(pa.int32()), family(pa.date32()), family(pa.large_binary())
        ('number', 'time', 'large_binary')
    """
    checks = {
        "null": pa.types.is_null,
        "boolean": pa.types.is_boolean,
        "number": lambda kind: (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        ),
        "text": pa.types.is_string,
        "bytes": pa.types.is_binary,
        "time": lambda kind: pa.types.is_timestamp(kind) or pa.types.is_date(kind),
    }
    return next((name for name, check in checks.items() if check(kind)), str(kind))


def spark_decimal(kind: pa.DataType, node: exp.Expr) -> tuple[int, int]:
    """Digits and digits behind the point that Spark gives a number beside a decimal.

    Example:
        >>> spark_decimal(pa.int32(), exp.column("x")), spark_decimal(pa.int32(), exp.Literal.number(12))
        ((10, 0), (2, 0))
    """
    if pa.types.is_decimal(kind):
        return kind.precision, kind.scale
    if isinstance(node, exp.Literal):
        return len(node.name), 0
    return _DIGITS[kind.bit_width], 0


def sql_type(target: exp.Expr) -> str | None:
    """DuckDB's name of a type of Spark's; None for one that has no equal.

    Example:
        >>> sql_type(exp.DataType.build("decimal(10, 2)")), sql_type(exp.DataType.build("binary"))
        ('decimal(10, 2)', None)
    """
    name = target.this.name if hasattr(target.this, "name") else str(target.this)
    if name == "DECIMAL":
        sizes = [int(each.name) for each in target.expressions] or [10]
        return f"decimal({sizes[0]}, {sizes[1] if len(sizes) > 1 else 0})"
    return _NAMES.get(name)
