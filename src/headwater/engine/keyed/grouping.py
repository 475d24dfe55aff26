"""Rows by key: which rows have one key, without a step of Python for each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.keyed.keys import encode_keys

__all__ = ["Grouped", "grouped", "python_values"]

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Grouped:
    """Rows by key, keys in the order in which they first appear.

    Attributes:
        at: Of each row, the number of its key.
        columns: The columns of the keys, one row for each key.
    """

    at: Places
    columns: pa.Table

    @cached_property
    def keys(self) -> list[bytes]:
        """Each key as bytes."""
        return encode_keys(self.columns.columns)

    @cached_property
    def order(self) -> Places:
        """The rows sorted by key; rows of one key stay in their order."""
        small = len(self.columns) <= 1 << 16
        # Numbers of 16 bits are sorted in one pass over them.
        return np.argsort(self.at.astype(np.uint16) if small else self.at, kind="stable")

    @cached_property
    def starts(self) -> Places:
        """Where the rows of each key begin in `order`, and where the last end."""
        counts = np.bincount(self.at, minlength=len(self.columns))
        return np.concatenate(([0], np.cumsum(counts)))


def grouped(table: pa.Table, by: Sequence[str]) -> Grouped:
    """The rows of a table by the values of some columns; equal as `encode_keys` has it.

    Example:
        >>> found = grouped(pa.table({"k": ["b", "a", None, "b"]}), ["k"])
        >>> found.at.tolist(), found.columns.to_pylist(), found.order.tolist(), found.starts.tolist()
        ([0, 1, 2, 0], [{'k': 'b'}, {'k': 'a'}, {'k': None}], [0, 3, 1, 2], [0, 2, 3, 4])
    """
    columns = [table.column(name) for name in by]
    at = _codes(columns[0])
    for column in columns[1:]:
        more = _codes(column)
        at = _numbered(at * (int(more.max(initial=0)) + 1) + more)
    first = np.empty(int(at.max(initial=-1)) + 1, np.int64)
    # Of several rows of one key the one that is set last stays: the first.
    first[at[::-1]] = np.arange(len(at) - 1, -1, -1)
    return Grouped(at, table.select(list(by)).take(pa.array(first)))


def python_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """The values as Python has them, like `to_pylist`; numbers and times without a look at each.

    Example:
        >>> python_values(pa.array([1.5, 2.0])), python_values(pa.array([1, None]))
        ([1.5, 2.0], [1, None])
    """
    kind = column.type
    if column.null_count or kind == pa.float16():
        return list(column.to_pylist())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return list(column.to_numpy().tolist())
    if kind == pa.timestamp("us", "UTC"):
        naive = column.cast(pa.int64()).to_numpy().view("datetime64[us]").tolist()
        return [time.replace(tzinfo=UTC) for time in naive]
    return list(column.to_pylist())


def _codes(column: pa.ChunkedArray) -> Places:
    """A number for each row, the same where values are equal."""
    kind = column.type
    if pa.types.is_nested(kind):
        column = pa.chunked_array([pa.array(encode_keys([column]), pa.binary())])
    if pa.types.is_floating(kind):
        # -0.0 becomes 0.0, and every NaN the same NaN.
        column = pc.if_else(pc.is_nan(column), math.nan, pc.add(column, pa.scalar(0.0, kind)))
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    found: Places = codes.indices.to_numpy().astype(np.int64)
    return found


def _numbered(codes: Places) -> Places:
    """The same, numbered by the order of appearance without gaps."""
    found: Places = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return found
