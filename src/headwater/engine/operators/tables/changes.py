"""Changes put together, and weights as bytes: what the operators of this room share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["changes", "described", "weight_of", "weight_to"]

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(int).decode


def changes(
    parts: Iterable[tuple[pa.Table, int | Sequence[int] | npt.NDArray[np.int64]]], schema: pa.Schema
) -> pa.Table:
    """Rows and their weights (one for all, or one each) as one table of changes.

    Example:
        >>> schema = pa.schema([("x", pa.int64()), ("_hw_weight", pa.int64())])
        >>> changes([(pa.table({"x": [1]}), -1), (pa.table({"x": [2]}), [3])], schema).to_pylist()
        [{'x': 1, '_hw_weight': -1}, {'x': 2, '_hw_weight': 3}]
    """
    tables = []
    for rows, weight in parts:
        if len(rows):
            weights = (
                pa.repeat(pa.scalar(weight, pa.int64()), len(rows)) if isinstance(weight, int) else weight
            )
            columns = [*rows.columns, pa.array(weights, pa.int64())]
            tables.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def described(schema: pa.Schema) -> str:
    """Columns in words, for the form of a state.

    Example:
        >>> described(pa.schema([("x", pa.int64()), ("y", pa.string())]))
        'x int64, y string'
    """
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def weight_of(value: bytes | None) -> int:
    """A weight that was kept; 0 for none.

    Example:
        >>> weight_of(weight_to(3)), weight_of(None)
        (3, 0)
    """
    return 0 if value is None else _DECODE(value)


def weight_to(weight: int) -> bytes | None:
    r"""A weight as it is kept; None, which takes it away, for 0.

    Example:
        >>> weight_to(1), weight_to(0)
        (b'\x01', None)
    """
    return _ENCODE(weight) if weight else None
