"""DuckDB as a calculator over Arrow tables: one thread, nothing on disk, nothing read from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import local
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.grouping import grouped
from headwater.engine.keyed.operator import WEIGHT

if TYPE_CHECKING:
    import duckdb

__all__ = ["evaluated", "net", "plain_schema", "quoted", "shape_of", "type_of", "with_shape", "zoned_schema"]

_SETTINGS = {
    "threads": "1",
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_MINE = local()


def evaluated(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """The result of a query over tables.

    Example:
        >>> evaluated("select x + 1 as y from t", {"t": pa.table({"x": [1, 2]})}).to_pylist()
        [{'y': 2}, {'y': 3}]
    """
    connection = _connection()
    for name, table in tables.items():
        connection.register(name, table)
    try:
        return connection.sql(sql).to_arrow_table()
    finally:
        for name in tables:
            connection.unregister(name)


def shape_of(sql: str, tables: Mapping[str, pa.Schema]) -> pa.Schema:
    """The columns that a query would have.

    Example:
        >>> shape_of("select x / 2 as y from t", {"t": pa.schema([("x", pa.int32())])})
        y: double
    """
    return evaluated(sql, {name: schema.empty_table() for name, schema in tables.items()}).schema


def type_of(sql: str, tables: Mapping[str, pa.Schema]) -> str:
    """DuckDB's name for the type of the only column of a query.

    Example:
        >>> type_of("select coalesce(a, b) from t", {"t": pa.schema([("a", pa.int32()), ("b", pa.int64())])})
        'BIGINT'
    """
    connection = _connection()
    for name, schema in tables.items():
        connection.register(name, schema.empty_table())
    try:
        (kind,) = connection.sql(sql).types
        return str(kind)
    finally:
        for name in tables:
            connection.unregister(name)


def net(rows: pa.Table) -> pa.Table:
    """The changes with weights of equal rows added up; rows of weight 0 are left out.

    Example:
        >>> net(pa.table({"x": [1, 1, 2], WEIGHT: [1, -1, 1]})).to_pylist()
        [{'x': 2, '_hw_weight': 1}]
    """
    if len(rows) < 2:
        return rows
    columns = [field.name for field in rows.schema if field.name != WEIGHT]
    if columns and not any(pa.types.is_nested(rows.schema.field(name).type) for name in columns):
        return _added_up(rows, columns)
    names, weight = ", ".join(map(quoted, columns)), quoted(WEIGHT)
    by = f" group by {names}" if names else ""
    total = f"cast(sum({weight}) as bigint)"
    sql = f"select {names}{', ' if names else ''}{total} as {weight} from t{by} having sum({weight}) <> 0"
    return with_shape(evaluated(sql, {"t": rows}), rows.schema)


def _added_up(rows: pa.Table, columns: list[str]) -> pa.Table:
    """`net` without a query: of few rows, most of a query's time is spent before it begins."""
    found = grouped(rows, columns)
    totals = np.zeros(len(found.columns), np.int64)
    np.add.at(totals, found.at, rows.column(WEIGHT).to_numpy())
    added = found.columns.append_column(WEIGHT, pa.array(totals)).filter(pa.array(totals != 0))
    return added.select(rows.column_names).cast(rows.schema)


def with_shape(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows under other types, column by column.

    Example:
        >>> with_shape(pa.table({"x": [1]}), pa.schema([("x", pa.int32())])).schema
        x: int32
    """
    if rows.schema.equals(schema):
        return rows
    columns = [column.cast(field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def quoted(name: str) -> str:
    """A name as SQL has it.

    Example:
        >>> quoted("order")
        '"order"'
    """
    return '"' + name.replace('"', '""') + '"'


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The types that steps compute with: times in UTC without a zone, and of text and bytes the common form.

    Example:
        >>> plain_schema(pa.schema([("at", pa.timestamp("us", "UTC"))]))
        at: timestamp[us]
    """
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def zoned_schema(schema: pa.Schema) -> pa.Schema:
    """The types that a result has: times with their zone, UTC.

    Example:
        >>> zoned_schema(pa.schema([("at", pa.timestamp("us"))]))
        at: timestamp[us, tz=UTC]
    """
    return pa.schema([pa.field(field.name, _zoned(field.type)) for field in schema])


def _zoned(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _zoned(field.type)) for field in kind])
    return kind


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def _connection() -> duckdb.DuckDBPyConnection:
    """This thread's connection: a connection is for one thread at a time."""
    import duckdb

    found: duckdb.DuckDBPyConnection | None = getattr(_MINE, "connection", None)
    if found is None:
        found = _MINE.connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
        for name, change in (("hw_upper", str.upper), ("hw_lower", str.lower)):
            cast(Any, found).create_function(name, _mapped(change), ["VARCHAR"], "VARCHAR", type="arrow")
    return found


def _mapped(change: Callable[[str], str]) -> Callable[[pa.Array], pa.Array]:
    """Text changed value by value: Python and Java know the same special letters, DuckDB fewer."""

    def run(column: pa.Array) -> pa.Array:
        return pa.array([None if text is None else change(text) for text in column.to_pylist()], pa.string())

    return run
