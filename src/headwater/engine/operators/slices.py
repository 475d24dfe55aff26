"""Rows that wait for a time: kept in slices of many rows in the order of time, not one by one.

A slice is one entry and one deadline, so rows that wait cost next to nothing for each. A slice that the watermark has
passed in part is written anew with what is left of it.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.due import forget, remind
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import PLACE, mark, times_at, times_of

__all__ = ["hold", "release"]

_MOST: Final = 4096
"""Rows of a slice: what is read and written again at most when the watermark stands inside one."""


def hold(state: State, space: str, rows: pa.Table) -> None:
    """Keep rows until the watermark is above their `TIME`; the same rows once more change nothing.

    Args:
        state: Where to.
        space: What is kept there is of one schema.
        rows: Any columns, `TIME` among them.
    """
    ordered = rows.take(np.argsort(times_of(rows), kind="stable"))
    times = times_of(ordered).tolist()
    starts = range(0, len(ordered), _MOST)
    slices = [_packed(ordered.slice(start, _MOST)) for start in starts]
    names = [
        mark(times[start]) + hashlib.blake2b(packed, digest_size=PLACE - 8).digest()
        for start, packed in zip(starts, slices, strict=True)
    ]
    state.put(space, [b""] * len(slices), names, slices)
    remind(state, [times[start] + 1 for start in starts], [space.encode()] * len(slices))


def release(state: State, space: str, watermark: int) -> pa.Table | None:
    """Take out the rows whose `TIME` is below the watermark; None when there is none.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> state = MemoryState()
        >>> hold(state, "waiting", pa.table({"_hw_time": [7, 3, 5], "id": [1, 2, 3]}))
        >>> release(state, "waiting", 6)["id"].to_pylist(), release(state, "waiting", 7)
        ([2, 3], None)
        >>> release(state, "waiting", 8)["id"].to_pylist(), len(list(state.entries("waiting", b"")))
        ([1], 0)
    """
    found = state.entries(space, b"", high=mark(watermark))
    if not found:
        return None
    state.put(space, [b""] * len(found), [name for name, _ in found], [None] * len(found))
    starts = times_at([name for name, _ in found])
    forget(state, (starts + 1).tolist(), [space.encode()] * len(found))
    rows = pa.concat_tables([pa.ipc.open_stream(packed).read_all() for _, packed in found])
    over = times_of(rows) < watermark
    if not over.all():
        hold(state, space, rows.take(np.flatnonzero(~over)))
        rows = rows.take(np.flatnonzero(over))
    return rows


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows.combine_chunks())
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
