"""The cost of growing state: batches of the same size into more and more keys, with the state in the store."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from headwater.engine.state.state import TIME, StatefulStep
from headwater.engine.state.store_state import PageCache, StoreState
from headwater.store import Commit, LedgerEntry, SqliteDialect, SqlStore

__all__ = ["StateCost", "measure_growth"]

_QUERY = "counted@1"
_FILL = 250_000


@dataclass(frozen=True)
class StateCost:
    """The cost of batches with `keys` keys.

    Attributes:
        keys: The number of keys with state.
        batch_cpu: CPU seconds of one batch, after the first.
        batch_wall: Wall time of it in seconds.
        restart: Seconds from opening the store to the end of the first batch.
        file: The size of the store in bytes.
        memory: The peak memory of this process so far, in bytes.
    """

    keys: int
    batch_cpu: float
    batch_wall: float
    restart: float
    file: int
    memory: int


def measure_growth(
    folder: Path, sizes: list[int], batch: int, batches: int, operator: StatefulStep
) -> Iterator[StateCost]:
    """Fill the state to each size, reopen the store as after a restart, and run batches on random keys."""
    random, filled, number = np.random.default_rng(3), 0, 0
    shutil.rmtree(folder, ignore_errors=True)
    for keys in sizes:
        run = _Run(folder, operator, number)
        for start in range(filled, keys, _FILL):
            run(np.arange(start, min(start + _FILL, keys)))
        filled, number = keys, run.close()
        begun = time.perf_counter()
        run = _Run(folder, operator, number)
        run(random.integers(0, keys, batch))
        restart = time.perf_counter() - begun
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(batches):
            run(random.integers(0, keys, batch))
        cpu, wall = (time.process_time() - cpu) / batches, (time.perf_counter() - wall) / batches
        number = run.close()
        file = sum(path.stat().st_size for path in folder.iterdir())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield StateCost(keys, cpu, wall, restart, file, memory)


class _Run:
    """The batches between opening and closing a store, as in one process."""

    def __init__(self, folder: Path, operator: StatefulStep, number: int) -> None:
        self._store = SqlStore(SqliteDialect(folder))
        self._epoch = self._store.open_epoch(_QUERY)
        self._operator = operator
        self._recent = PageCache()
        self._number = number

    def __call__(self, customers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        amounts = (customers % 100).astype(np.float64)
        rows = pa.table({"customer": customers.astype(np.int32), "amount": amounts, TIME: np.arange(len(customers))})
        state = StoreState(self._store.state_store(_QUERY), self._recent)
        self._operator.step(state, [rows], 0)
        entry = LedgerEntry(_QUERY, self._number, self._epoch, (), None, committed_at=0)
        self._store.commit(Commit(entry, None, rows.slice(0, 0), states=state.build_writes()))
        state.on_commit()
        self._number += 1

    def close(self) -> int:
        self._store.close()
        return self._number
