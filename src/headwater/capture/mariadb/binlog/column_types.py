"""Column types of MariaDB in the words of MariaDB, and the Arrow type of each."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

__all__ = ["MAX_DECIMAL", "arrow_type", "type_of_column"]

MAX_DECIMAL: Final = 38  # digits of the decimals that topics have; longer ones are text
_PLAIN: Final[dict[str, pa.DataType]] = {
    "tinyint": pa.int8(),
    "tinyint unsigned": pa.int16(),
    "smallint": pa.int16(),
    "smallint unsigned": pa.int32(),
    "mediumint": pa.int32(),
    "mediumint unsigned": pa.int32(),
    "int": pa.int32(),
    "int unsigned": pa.int64(),
    "bigint": pa.int64(),
    "bigint unsigned": pa.decimal128(20, 0),
    "float": pa.float32(),
    "double": pa.float64(),
    "year": pa.int16(),
    "date": pa.date32(),
    "blob": pa.binary(),
    "varbinary": pa.binary(),
    "geometry": pa.binary(),
    "bit(1)": pa.bool_(),
    "bit(64)": pa.decimal128(20, 0),
}
_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS: Final = {"tinytext": "text", "mediumtext": "text", "longtext": "text", "text": "text"}
_BLOBS: Final = {"tinyblob": "blob", "mediumblob": "blob", "longblob": "blob", "blob": "blob"}
_SHAPES: Final = frozenset(
    (
        "geometry",
        "point",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
    )
)


def arrow_type(text: str) -> pa.DataType:
    """Returns the Arrow type of the values of a column type.

    What topics have no type for is text, as MariaDB prints it: DATETIME (a time without zone), TIME, decimals of more
    than 38 digits, ENUM, SET, UUID, INET4 and INET6.

    Example:
        >>> str(arrow_type("decimal(12,2)")), str(arrow_type("int unsigned")), str(arrow_type("datetime(6)"))
        ('decimal128(12, 2)', 'int64', 'string')
    """
    if text in _PLAIN:
        return _PLAIN[text]
    if text.startswith("timestamp"):
        return pa.timestamp("us", "UTC")
    if text.startswith("bit("):
        return pa.int64()
    if text.startswith("binary("):
        return pa.binary()
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", text):
        precision, scale = int(found[1]), int(found[2])
        return pa.decimal128(precision, scale) if precision <= MAX_DECIMAL else pa.string()
    return pa.string()


def type_of_column(data_type: str, column_type: str) -> str:
    """Returns our words for a type, from DATA_TYPE and COLUMN_TYPE of information_schema.COLUMNS.

    Lengths of text and the values of an ENUM do not belong to it: a longer text is no other shape.

    Example:
        >>> type_of_column("int", "int(10) unsigned zerofill"), type_of_column("longtext", "longtext")
        ('int unsigned', 'text')
        >>> type_of_column("decimal", "decimal(12,2) unsigned"), type_of_column("binary", "binary(16)")
        ('decimal(12,2)', 'binary(16)')
    """
    if data_type in _INTEGERS:
        return f"{data_type} unsigned" if "unsigned" in column_type else data_type
    if data_type in ("decimal", "bit", "binary"):
        found = re.match(rf"{data_type}\(([\d,]+)\)", column_type)
        return f"{data_type}({found[1] if found else 1})"
    if data_type in ("time", "datetime", "timestamp"):
        found = re.match(r"\w+\((\d)\)", column_type)
        return f"{data_type}({found[1]})" if found and found[1] != "0" else data_type
    if data_type in _SHAPES:
        return "geometry"
    return _TEXTS.get(data_type) or _BLOBS.get(data_type) or data_type
