"""Converts Arrow, pandas and Polars frames to a schema, column by column, without loss.

The rules are those for dicts: text is accepted for times and decimals, any integer in range, and floats for
decimals, by their shortest digits. Text is never cast to a number, and nothing is rounded.
"""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.events.validator import (
    InvalidValueError,
    RowValidator,
    exponent_too_large,
    field_default,
    first_out_of_range,
    first_rejected,
    struct_column,
)
from headwater.events.values import preview

__all__ = ["fit_dataframe"]

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARIES = (pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
_NUMBERS = (pa.types.is_integer, pa.types.is_floating)
# The type of a field, and the types of columns that it accepts besides its own.
_CONVERSIONS: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    (pa.types.is_integer, (pa.types.is_integer,)),
    (pa.types.is_floating, _NUMBERS),
    (pa.types.is_decimal, (*_NUMBERS, pa.types.is_decimal, *_TEXTS)),
    (pa.types.is_timestamp, (pa.types.is_timestamp, *_TEXTS)),
    (pa.types.is_date, (pa.types.is_date, *_TEXTS)),
    (pa.types.is_string, _TEXTS),
    (pa.types.is_binary, _BINARIES),
)


def fit_dataframe(frame: Any, schema: pa.Schema) -> list[pa.Array]:
    """Returns the columns of a frame in the order, types and nullability of a schema.

    Example:
        >>> schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
        >>> [str(column.type) for column in fit_dataframe(pa.table({"id": pa.array([1], pa.int8())}), schema)]
        ['int64', 'string']

    Raises:
        InvalidValueError: A column is unknown, missing or of another type, or a value is out of range.
    """
    batch = _to_batch(frame)
    return _fit_fields(batch.schema.names, batch.columns, list(schema), batch.num_rows)


def _to_batch(frame: Any) -> pa.RecordBatch:
    if isinstance(frame, pa.RecordBatch):
        return frame
    try:
        table = frame if isinstance(frame, pa.Table) else _to_table(frame)
        batches = table.combine_chunks().to_batches()
    except InvalidValueError:
        raise
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidValueError(f"{type(frame).__name__} cannot be read as a data frame: {error}", None) from None
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], table.schema)


def _to_table(frame: Any) -> pa.Table:
    """Read an object with Arrow's stream protocol; leaves out the unnamed index that pandas exports."""
    if not hasattr(frame, "__arrow_c_stream__"):
        raise TypeError("it has no Arrow stream")
    if type(frame).__module__.partition(".")[0] == "pandas":
        _check_decimals(frame)
    table = pa.table(frame)
    indexes = [name for name in table.schema.names if name.startswith("__index_level_")]
    return table.drop_columns(indexes) if indexes else table


def _check_decimals(frame: Any) -> None:
    """Refuse decimals in a pandas frame whose exponent would make Arrow exhaust memory."""
    for index, kind in enumerate(frame.dtypes):
        for row, value in enumerate(frame.iloc[:, index] if kind.kind == "O" else ()):
            if isinstance(value, Decimal) and exponent_too_large(value):
                raise InvalidValueError(f"{preview(value)} has too many digits", row, str(frame.columns[index]))


def _fit_fields(names: list[str], columns: list[pa.Array], fields: list[pa.Field], rows: int) -> list[pa.Array]:
    """Returns one array per field: the column, or the field's default if there is none."""
    given = dict(zip(names, columns, strict=True))
    if len(given) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValueError("the column occurs twice", None, twice)
    known = {field.name for field in fields}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidValueError("not a field of the type", None, unknown[0])
    return [_fit_field(field, given.get(field.name), rows) for field in fields]


def _fit_field(field: pa.Field, column: pa.Array | None, rows: int) -> pa.Array:
    if column is not None:
        try:
            return _fit_values(column, field)
        except InvalidValueError as misfit:
            raise misfit.with_parent(field.name) from None
    if field_default(field) is not None:
        validator = RowValidator([field])
        default = validator.to_columns([msgspec.convert({}, validator.struct)])[0]
        return default.take(pa.array(np.zeros(rows, np.int64)))
    if not field.nullable:
        raise InvalidValueError("required, but missing", None, field.name)
    return pa.nulls(rows, field.type)


def _fit_values(column: pa.Array, field: pa.Field) -> pa.Array:
    fit = _fit_column(column, field.type)
    if not field.nullable and fit.null_count:
        raise InvalidValueError("required, but null", _first_true(fit.is_null()))
    return fit


def _fit_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if pa.types.is_nested(kind):
        return _fit_nested(column, kind)
    if column.type != kind:
        column = _cast(column, kind)
    row = first_out_of_range(column)
    if row is not None:
        raise InvalidValueError(f"{_format_scalar(column[row])} does not fit {kind}", row)
    return column


def _format_scalar(value: pa.Scalar) -> str:
    try:
        return str(value)
    except (OverflowError, ValueError):  # a time outside the range of a Python datetime
        return f"{value.value} {value.type}"


def _first_true(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast between types of the same meaning, without loss.

    Numbers become decimals by their shortest digits: 12.1 becomes 12.10, not 12.0999999999999996.
    """
    if not _is_convertible(column.type, kind):
        naive = pa.types.is_timestamp(column.type) and pa.types.is_timestamp(kind)
        raise InvalidValueError(
            "it has no time zone" if naive else f"a column of {column.type} does not fit {kind}", None
        )
    if pa.types.is_decimal(kind) and (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        row = first_out_of_range(column)
        if row is not None:
            raise InvalidValueError(f"{_format_scalar(column[row])} does not fit {kind}", row)
        column = column.cast(pa.string())
    if pa.types.is_decimal(kind) and _is_text(column.type):
        column = column.cast(pa.string())
        # Arrow allocates memory for the exponent: refuse exponents of four digits before the cast.
        too_large = pc.match_substring_regex(column, r"[eE][+-]?0*[1-9][0-9]{3}")
        if pc.any(too_large).as_py():
            raise InvalidValueError(f"a number does not fit {kind}", _first_true(too_large))
    try:
        return column.cast(kind)
    except (pa.ArrowException, ValueError):
        row = first_rejected(len(column), lambda start, end: column.slice(start, end - start).cast(kind))
        raise InvalidValueError(f"{_format_scalar(column[row])} does not fit {kind}", row) from None


def _is_text(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _TEXTS)


def _is_convertible(source: pa.DataType, kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(source) and source.tz is None:
        return False
    return any(test(kind) and any(found(source) for found in sources) for test, sources in _CONVERSIONS)


def _fit_nested(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Fit structs by member, lists and maps by their items."""
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        return _fit_struct(column, kind)
    if pa.types.is_map(kind):
        return _fit_map(column, kind)
    if pa.types.is_list(kind) and _is_list(column.type):
        column = _drop_hidden(_as_list(column))
        items = _fit_items(column, column.flatten(), kind.value_field)
        return pa.ListArray.from_arrays(_offsets(column), items, type=kind, mask=_mask(column))
    raise InvalidValueError(f"a column of {column.type} does not fit {kind}", None)


def _is_list(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _fit_struct(column: pa.Array, kind: pa.StructType) -> pa.Array:
    names = [field.name for field in column.type]
    # Required members need a value only in rows where the struct itself is not null.
    present = column.drop_null() if column.null_count else column
    members = partial(_fit_fields, names, present.flatten(), list(kind), len(present))
    return struct_column(kind, column.is_valid(), members)


def _fit_map(column: pa.Array, kind: pa.MapType) -> pa.Array:
    if pa.types.is_map(column.type):
        column = _drop_hidden(column)
        keys, items = column.keys, column.items
    elif _is_list(column.type) and pa.types.is_struct(column.type.value_type):
        column = _drop_hidden(_as_list(column))
        keys, items = column.values.flatten()[:2]
    else:
        raise InvalidValueError(f"a column of {column.type} does not fit {kind}; send the rows as dicts", None)
    start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys = _fit_items(column, keys.slice(start, end - start), kind.key_field)
    items = _fit_items(column, items.slice(start, end - start), kind.item_field)
    return pa.MapArray.from_arrays(_offsets(column), keys, items, type=kind, mask=_mask(column))


def _as_list(column: pa.Array) -> pa.Array:
    return column if pa.types.is_list(column.type) else column.cast(pa.list_(column.type.value_field))


def _drop_hidden(column: pa.Array) -> pa.Array:
    """Returns the column without values behind nulls: a null list may still span values."""
    return column.take(pa.array(np.arange(len(column)))) if column.null_count else column


def _offsets(column: pa.Array) -> pa.Array:
    return pc.subtract(column.offsets, column.offsets[0])


def _mask(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _fit_items(column: pa.Array, items: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return _fit_values(items, field)
    except InvalidValueError as misfit:
        row = None
        if misfit.row is not None:
            row = int(np.searchsorted(_offsets(column).to_numpy(), misfit.row, side="right")) - 1
        raise misfit.with_parent("[]", row) from None
