"""Rows as bytes, and back: how operators keep whole rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

__all__ = ["RowCodec", "plain_columns", "restored", "unpacked_columns"]

_PIECE: Final = 500


class RowCodec:
    """Turns rows of one schema into bytes, one row each, and back; equal rows have equal bytes.

    Example:
        >>> codec = RowCodec(pa.schema([("id", pa.int64()), ("price", pa.decimal128(10, 2))]))
        >>> rows = codec.encode(pa.table({"id": [7], "price": ["1.50"]}).cast(codec.schema))
        >>> codec.decode(rows).to_pylist()
        [{'id': 7, 'price': Decimal('1.50')}]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def encode(self, table: pa.Table) -> list[bytes]:
        """Each row as bytes; columns are taken by name, others are left out."""
        columns = plain_columns([table.column(name) for name in self.schema.names])
        encode = msgspec.msgpack.Encoder().encode
        return [encode(row) for row in zip(*columns, strict=True)]

    def decode(self, rows: Sequence[bytes]) -> pa.Table:
        """The rows as columns."""
        columns = unpacked_columns(rows, len(self.schema))
        return pa.Table.from_arrays(restored(columns, self.schema), schema=self.schema)


def unpacked_columns(rows: Sequence[bytes], width: int) -> list[list[Any]]:
    """Lists kept as MessagePack, column by column.

    Example:
        >>> unpacked_columns([msgspec.msgpack.encode([1, "a"]), msgspec.msgpack.encode([2, "b"])], 2)
        [[1, 2], ['a', 'b']]
    """
    columns: list[list[Any]] = [[] for _ in range(width)]
    decode = msgspec.msgpack.Decoder(list[Any]).decode
    # In small pieces: many lists at once would make Python look for garbage in all of the state, again and again.
    for start in range(0, len(rows), _PIECE):
        piece = zip(*map(decode, rows[start : start + _PIECE]), strict=True)
        for column, values in zip(columns, piece, strict=True):
            column.extend(values)
    return columns


def plain_columns(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Iterator[list[Any]]:
    """Values that MessagePack knows: times as numbers, decimals as text."""
    for column in columns:
        kind = _plain(column.type)
        yield (column if kind == column.type else column.cast(kind)).to_pylist()


def restored(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    """The columns that `plain_columns` took apart."""
    return [
        pa.array(_with_pairs(values, field.type), _plain(field.type)).cast(field.type)
        for values, field in zip(columns, schema, strict=True)
    ]


def _with_pairs(values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """The values with entries of maps as pairs, as Arrow wants them; MessagePack knows only lists."""
    if pa.types.is_map(kind):
        return [value if value is None else [tuple(pair) for pair in value] for value in values]
    return values


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.string()
    if (
        pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_date64(kind)
    ):
        return pa.int64()
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), kind.item_field.with_type(_plain(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind
