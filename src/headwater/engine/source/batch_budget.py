"""The bytes of events that a batch of one query may hold.

The heap of Java decides the limit. After a batch that needed more memory than there is, the query has a smaller budget,
which grows back while batches succeed. The budget is in a file of the query: the processes that plan batches read it,
and it survives the end of Java or of the engine. The file also names the batch to plan again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

__all__ = ["BatchBudget", "SmallerBudget"]

_PATIENCE: Final = 16
"""The number of batches that must succeed before the budget doubles; it doubles itself with every failure."""
_MAX_PATIENCE: Final = 4_096


class SmallerBudget(msgspec.Struct, frozen=True):
    """The content of the file.

    Attributes:
        size: The bytes of a batch.
        batch: The planned batch that needed too much memory and is to be planned again; None if it was.
        patience: The number of batches that must succeed before the budget doubles.
        ends: How often memory was short at a batch that cannot be divided.
    """

    size: int
    batch: int | None = None
    patience: int = _PATIENCE
    ends: int = 0


class BatchBudget:
    """The budget of one query.

    Args:
        path: The file of the smaller budget; it exists only while the budget is smaller.
        limit: The bytes of a batch without failures.

    Example:
        >>> import tempfile
        >>> budget = BatchBudget(Path(tempfile.mkdtemp(), "budget"), 64)
        >>> budget.size
        64
        >>> budget.shrink(batch=7, size=20)
        >>> budget.size, budget.smaller.batch
        (10, 7)
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._successes = 0

    @property
    def smaller(self) -> SmallerBudget | None:
        """The smaller budget after a failure, if there is one."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=SmallerBudget)
        except (OSError, msgspec.DecodeError):
            return None

    @property
    def size(self) -> int:
        """The bytes that a batch may hold now; a batch holds at least one frame of each input."""
        smaller = self.smaller
        return self._limit if smaller is None else min(smaller.size, self._limit)

    def shrink(self, batch: int, size: int) -> None:
        """Halve the budget after a batch of this size that needed too much memory; the batch is to be planned again."""
        before = self.smaller
        patience = _PATIENCE if before is None else min(2 * before.patience, _MAX_PATIENCE)
        self._write(SmallerBudget(max(1, min(size, self.size) // 2), batch, patience))

    def record_end(self) -> int:
        """Record that memory was short at a batch that cannot be divided; returns how often it was."""
        before = self.smaller or SmallerBudget(self._limit)
        self._write(SmallerBudget(before.size, before.batch, before.patience, before.ends + 1))
        return before.ends + 1

    def record_discard(self) -> None:
        """Record that the plan of the batch was discarded."""
        before = self.smaller
        if before is not None and before.batch is not None:
            self._write(SmallerBudget(before.size, None, before.patience))

    def record_success(self) -> None:
        """Record a committed batch; after enough of them the budget doubles, up to the limit."""
        before = self.smaller
        if before is None:
            return
        self._successes += 1
        if before.ends or before.batch is not None:
            before = SmallerBudget(before.size, None, before.patience)
            self._write(before)
        if self._successes >= before.patience:
            self._successes = 0
            if 2 * before.size >= self._limit:
                self._path.unlink(missing_ok=True)
            else:
                self._write(SmallerBudget(2 * before.size, None, before.patience))

    def _write(self, budget: SmallerBudget) -> None:
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(budget))
        temporary.replace(self._path)
