"""Events that were given out and may still be corrected: by key and place, until the watermark is above their time."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from headwater.engine.keyed.operator import TIME
from headwater.engine.keyed.state import State
from headwater.engine.operators.arrivals import (
    Grouped,
    Numbers,
    decode_rows,
    encode_rows,
    marks,
    places,
    times_of,
)
from headwater.engine.operators.slices import hold, release

__all__ = ["affected", "remember"]

_GIVEN: Final = "given"
_ENDS: Final = "known"
_END: Final = pa.schema([("key", pa.binary()), ("name", pa.binary()), (TIME, pa.int64())])


def remember(state: State, found: Grouped, events: pa.Table, watermark: int) -> None:
    """Remember events whose answer may still change, and forget those whose answer is final now.

    Args:
        state: Where to.
        found: Their keys; an event without a key is not remembered.
        events: What was given out.
        watermark: Events below it are final.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> from headwater.engine.operators.arrivals import grouped
        >>> state = MemoryState()
        >>> rows = pa.table({"id": [1, 1], "_hw_time": [5, 7], "_hw_partition": [0, 0], "_hw_offset": [0, 1]})
        >>> remember(state, grouped(rows, ["id"]), rows, watermark=5)
        >>> later = grouped(rows.slice(1), ["id"])
        >>> affected(state, later, np.array([6]), rows.schema)["_hw_offset"].to_pylist()
        [1]
    """
    later = np.flatnonzero((times_of(events) >= watermark) & (found.codes >= 0))
    rows, keys = events.take(later), [found.keys[code] for code in found.codes[later].tolist()]
    names = places(rows)
    state.put(_GIVEN, keys, names, encode_rows(rows.schema, rows), kinds=found.kinds)
    hold(state, _ENDS, pa.table({"key": keys, "name": names, TIME: rows.column(TIME)}, _END))
    over = release(state, _ENDS, watermark)
    if over is not None:
        owners, names = over.column("key").to_pylist(), over.column("name").to_pylist()
        state.put(_GIVEN, owners, names, [None] * len(owners))


def affected(state: State, found: Grouped, times: Numbers, schema: pa.Schema) -> pa.Table:
    """Events that were given out and are not before the first of some records of their key.

    Args:
        state: Where events are.
        found: Keys of the records.
        times: Their times.
        schema: What events look like.
    """
    first = np.full(len(found.keys) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, found.codes, times)
    state.load(_GIVEN, found.keys)
    since = zip(found.keys, marks(first[:-1]), strict=True)
    return decode_rows(schema, [row for key, low in since for _, row in state.entries(_GIVEN, key, low)])
