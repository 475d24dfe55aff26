"""Rows of a table as bytes, one value per row: how `TableRows` keeps the current rows.

A row is its nulls (a byte per column), the values of fixed width, the lengths of the others, and their bytes. Whole
batches are encoded and decoded with numpy: there is no loop over rows. Equal rows have equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["RowEncoding"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Sizes: TypeAlias = npt.NDArray[np.int64]
_LENGTH: Final = 4  # bytes of the length of a value without fixed width


class RowEncoding:
    """Encodes batches of one schema row by row.

    Args:
        schema: The columns.

    Example:
        >>> batch = pa.RecordBatch.from_pydict({"id": pa.array([1, 2], pa.int32()), "name": ["tea", None]})
        >>> encoding = RowEncoding(batch.schema)
        >>> encoding.decode(encoding.encode(batch)).to_pylist()
        [{'id': 1, 'name': 'tea'}, {'id': 2, 'name': None}]
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._widths = [_fixed_width(field.type) for field in schema]
        self._head = len(schema) + sum(width or _LENGTH for width in self._widths)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Returns the bytes of each row."""
        rows = batch.num_rows
        if not rows:
            return []
        heads = np.zeros((rows, self._head), np.uint8)
        tails: list[tuple[Bytes, Sizes, Sizes]] = []
        position = len(self.schema)
        for index, (column, width) in enumerate(zip(batch.columns, self._widths, strict=True)):
            valid = _validity(column)
            heads[:, index] = valid
            if width:
                values = _fixed_values(column, width).copy()
                values[~valid] = 0
                heads[:, position : position + width] = values
                position += width
            else:
                data, starts, lengths = _variable_values(column, valid)
                heads[:, position : position + _LENGTH] = lengths.astype("<u4").view(np.uint8).reshape(rows, _LENGTH)
                tails.append((data, starts, lengths))
                position += _LENGTH
        return self._join(heads, tails)

    def _join(self, heads: Bytes, tails: list[tuple[Bytes, Sizes, Sizes]]) -> list[bytes]:
        rows = len(heads)
        if not tails:
            text = heads.tobytes()
            return [text[start : start + self._head] for start in range(0, len(text), self._head)]
        sizes = self._head + np.sum([lengths for _, _, lengths in tails], axis=0)
        ends = np.cumsum(sizes)
        at = ends - sizes
        out = np.empty(int(ends[-1]), np.uint8)
        out[(at[:, None] + np.arange(self._head)).reshape(-1)] = heads.reshape(-1)
        to = at + self._head
        for data, starts, lengths in tails:
            out[_ranges(to, lengths)] = data[_ranges(starts, lengths)]
            to = to + lengths
        text, cuts = out.tobytes(), [0, *ends.tolist()]
        return [text[cuts[row] : cuts[row + 1]] for row in range(rows)]

    def decode(self, rows: Sequence[bytes]) -> pa.RecordBatch:
        """Returns rows as a batch."""
        data = np.frombuffer(b"".join(rows), np.uint8)
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        at = np.cumsum(sizes) - sizes
        heads = data[at[:, None] + np.arange(self._head)] if len(rows) else np.empty((0, self._head), np.uint8)
        columns, position, to = [], len(self.schema), at + self._head
        for index, (field, width) in enumerate(zip(self.schema, self._widths, strict=True)):
            valid = heads[:, index].astype(bool)
            part = np.ascontiguousarray(heads[:, position : position + (width or _LENGTH)])
            position += width or _LENGTH
            if width:
                columns.append(_fixed_array(field.type, part, valid))
            else:
                lengths = part.view("<u4").reshape(-1).astype(np.int64)
                columns.append(_variable_array(field.type, data[_ranges(to, lengths)], lengths, valid))
                to = to + lengths
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _fixed_width(kind: pa.DataType) -> int:
    """Returns the bytes of a value; 0 if they differ from value to value."""
    if pa.types.is_boolean(kind):
        return 1
    simple = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind)
    return kind.bit_width // 8 if simple else 0


def _ranges(starts: Sizes, lengths: Sizes) -> Sizes:
    """Returns the positions of all bytes of ranges, one range after the other."""
    total = int(lengths.sum())
    begins = np.cumsum(lengths) - lengths
    places: Sizes = np.arange(total) + np.repeat(starts - begins, lengths)
    return places


def _validity(column: pa.Array) -> npt.NDArray[np.bool_]:
    if not column.null_count:
        return np.ones(len(column), bool)
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _fixed_values(column: pa.Array, width: int) -> Bytes:
    """Returns the bytes of each value; those of nulls are arbitrary."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros((len(column), width), np.uint8)
    start = column.offset * width
    return np.frombuffer(buffer, np.uint8)[start : start + len(column) * width].reshape(len(column), width)


def _variable_values(column: pa.Array, valid: npt.NDArray[np.bool_]) -> tuple[Bytes, Sizes, Sizes]:
    """Returns the bytes of a column, and where each value starts and how long it is; nulls have no bytes."""
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        schema = pa.schema([("value", kind)])
        parts = [
            pa.RecordBatch.from_arrays([column.take(pa.array([row]))], schema=schema).serialize().to_pybytes()
            if known
            else None
            for row, known in enumerate(valid.tolist())
        ]
        column = pa.array(parts, pa.binary())
    _, offsets, data = column.buffers()
    known = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.where(valid, np.diff(known), 0)
    return np.frombuffer(data or b"", np.uint8), known[:-1], lengths


def _bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def _fixed_array(kind: pa.DataType, values: Bytes, valid: npt.NDArray[np.bool_]) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array(values.reshape(-1).astype(bool), kind, mask=~valid)
    return pa.Array.from_buffers(kind, len(valid), [_bitmap(valid), pa.py_buffer(values.tobytes())])


def _variable_array(kind: pa.DataType, data: Bytes, lengths: Sizes, valid: npt.NDArray[np.bool_]) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    plain = kind if pa.types.is_string(kind) or pa.types.is_binary(kind) else pa.binary()
    buffers: list[Any] = [_bitmap(valid), pa.py_buffer(offsets.tobytes()), pa.py_buffer(data.tobytes())]
    column = pa.Array.from_buffers(plain, len(valid), buffers)
    if plain == kind:
        return column
    schema = pa.schema([("value", kind)])
    values = [
        None if part is None else pa.ipc.read_record_batch(pa.py_buffer(part), schema).column(0)[0].as_py()
        for part in column.to_pylist()
    ]
    return pa.array(values, kind)
