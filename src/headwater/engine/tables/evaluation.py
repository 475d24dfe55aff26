"""Evaluates SQL over Arrow tables with DuckDB: one thread, in memory, without external access."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import local
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from headwater.engine.state.grouping import group_by_key
from headwater.engine.state.state import WEIGHT
from headwater.sql.identifiers import quote

if TYPE_CHECKING:
    import duckdb

__all__ = ["cast_columns", "consolidate", "evaluate", "plain_schema", "result_schema", "utc_schema"]

# One thread: queries are small, and several pipelines run in one process. No file, network or extension access.
_SETTINGS = {
    "threads": "1",
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_THREAD = local()


def evaluate(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Returns the result of a query over tables.

    Example:
        >>> evaluate("select x + 1 as y from t", {"t": pa.table({"x": [1, 2]})}).to_pylist()
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


def result_schema(sql: str, tables: Mapping[str, pa.Schema]) -> pa.Schema:
    """Returns the columns of a query's result.

    Example:
        >>> result_schema("select x / 2 as y from t", {"t": pa.schema([("x", pa.int32())])})
        y: double
    """
    return evaluate(sql, {name: schema.empty_table() for name, schema in tables.items()}).schema


def consolidate(rows: pa.Table) -> pa.Table:
    """Sum the weights of equal rows, and drop rows of weight 0.

    Example:
        >>> consolidate(pa.table({"x": [1, 1, 2], WEIGHT: [1, -1, 1]})).to_pylist()
        [{'x': 2, '_hw_weight': 1}]
    """
    if len(rows) < 2:
        return rows
    columns = [field.name for field in rows.schema if field.name != WEIGHT]
    if columns and not any(pa.types.is_nested(rows.schema.field(name).type) for name in columns):
        # Without a query, whose fixed cost would dominate: most changes are few rows.
        by_key = group_by_key(rows, columns)
        totals = np.zeros(len(by_key.key_columns), np.int64)
        np.add.at(totals, by_key.codes, rows.column(WEIGHT).to_numpy())
        summed = by_key.key_columns.append_column(WEIGHT, pa.array(totals)).filter(pa.array(totals != 0))
        return summed.select(rows.column_names).cast(rows.schema)
    weight = quote(WEIGHT)
    items = ", ".join([*map(quote, columns), f"cast(sum({weight}) as bigint) as {weight}"])
    by = f" group by {', '.join(map(quote, columns))}" if columns else ""
    return cast_columns(evaluate(f"select {items} from t{by} having sum({weight}) <> 0", {"t": rows}), rows.schema)


def cast_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast the columns to the types and names of a schema, in order.

    Example:
        >>> cast_columns(pa.table({"x": [1]}), pa.schema([("x", pa.int32())])).schema
        x: int32
    """
    if rows.schema.equals(schema):
        return rows
    columns = [column.cast(field.type) for column, field in zip(rows.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns as DuckDB computes with them: UTC times without a zone, one type each for text and binary.

    Example:
        >>> plain_schema(pa.schema([("at", pa.timestamp("us", "UTC"))]))
        at: timestamp[us]
    """
    return pa.schema([pa.field(field.name, _plain_type(field.type)) for field in schema])


def utc_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the columns of a result: times have the zone UTC.

    Example:
        >>> utc_schema(pa.schema([("at", pa.timestamp("us"))]))
        at: timestamp[us, tz=UTC]
    """
    return pa.schema([pa.field(field.name, _utc_type(field.type)) for field in schema])


def _utc_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _utc_type(field.type)) for field in kind])
    return kind


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    return kind


def _connection() -> duckdb.DuckDBPyConnection:
    """Returns the connection of this thread; DuckDB's connections are not thread-safe."""
    import duckdb

    found: duckdb.DuckDBPyConnection | None = getattr(_THREAD, "connection", None)
    if found is None:
        found = _THREAD.connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
        for name, change in (("hw_upper", str.upper), ("hw_lower", str.lower)):
            cast(Any, found).create_function(name, _elementwise(change), ["VARCHAR"], "VARCHAR", type="arrow")
    return found


def _elementwise(change: Callable[[str], str]) -> Callable[[pa.Array], pa.Array]:
    """Apply a function to each text in Python, whose case rules match Java's; DuckDB's cover fewer characters."""

    def run(column: pa.Array) -> pa.Array:
        return pa.array([None if text is None else change(text) for text in column.to_pylist()], pa.string())

    return run
