"""What an operator with state per key is, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import pyarrow as pa

from headwater.engine.keyed.state import State

__all__ = ["DELETED", "INPUT_BITS", "OFFSET", "PARTITION", "REFUSED", "SINCE", "TIME", "WEIGHT", "Operator"]

TIME: Final = "_hw_time"
"""The event time of a row that arrived: microseconds since 1970, an int64 that is never null."""
PARTITION: Final = "_hw_partition"
OFFSET: Final = "_hw_offset"
"""Where a row stands in its topic; rows of one time are taken in the order of partition and offset."""
INPUT_BITS: Final = 32
"""Behind so many bits, a partition says which input of the query its topic is."""
DELETED: Final = "_hw_deleted"
"""Of a table's row: whether the key has no row any more; then only the columns of the key are filled."""
SINCE: Final = "_hw_since"
"""Of a table's row: since when it holds. One that comes late holds from where its topic was complete already.

An operator whose result has it, beside weights, gives every version of every row, in order; others what became of all
changes of a batch together.
"""
WEIGHT: Final = "_hw_weight"
"""Of a change: -1 for a row that is no longer, +1 for one that is now, an int64; other numbers for several."""
REFUSED: Final = "_hw_refused"
"""Of an event that an operator gives back, to be kept aside: why; null for every other row."""


class Operator(Protocol):
    """A step that remembers something for each key.

    It is pure: of equal states, equal rows and an equal watermark it makes equal states and equal rows. It is pickled
    into Spark's workers, so it holds plain data only.

    """

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """For each input, the columns whose values are the key.

        Rows of one key reach one place; `step` may touch state of the keys of the rows it was given, and of those that
        are due, and no other.
        """

    @property
    def schema(self) -> pa.Schema:
        """The columns of its result, hidden ones (`WEIGHT`) among them."""

    @property
    def form(self) -> str:
        """What its state looks like, in words; a state that was written under other words cannot be read."""

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take what arrived, and what became due by the watermark.

        Args:
            state: What is remembered; changed in place.
            arrived: One table for each input, perhaps empty; its rows in the order of time, partition and offset.
            watermark: Event time up to which all inputs are complete, in microseconds since 1970.

        Returns:
            Rows of exactly `schema`.
        """
