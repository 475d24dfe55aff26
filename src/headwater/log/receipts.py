"""What an append answers with: where each row went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from headwater.events import Receipt

__all__ = ["Receipts"]


@dataclass(frozen=True, eq=False)
class Receipts(Sequence[Receipt]):
    """One `Receipt` per row, in the order of the rows; cheap however many there are.

    Example:
        >>> receipts = Receipts("orders", np.array([0, 0]), np.array([7, 8]), np.array([False, False]))
        >>> len(receipts), receipts[1].offset, receipts.duplicates
        (2, 8, 0)
    """

    topic: str
    partitions: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    repeated: npt.NDArray[np.bool_]
    dropped: str | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...

    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Receipt(
            self.topic,
            int(self.partitions[index]),
            int(self.offsets[index]),
            duplicate=bool(self.repeated[index]),
            dropped=self.dropped,
        )

    def __iter__(self) -> Iterator[Receipt]:
        return (self[index] for index in range(len(self)))

    @property
    def duplicates(self) -> int:
        """How many rows were in the log already."""
        return int(self.repeated.sum())

    @property
    def ends(self) -> dict[int, int]:
        """The highest offset per partition."""
        return {
            int(partition): int(self.offsets[self.partitions == partition].max())
            for partition in np.unique(self.partitions)
            if partition >= 0
        }
