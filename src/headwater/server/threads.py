"""Where calls of the log run: in threads, never on the event loop, and with a bound for each kind of call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio import to_thread

__all__ = ["Threads"]

R = TypeVar("R")


class Threads:
    """Appends that wait for the disk do not keep readers from a thread, and the other way round.

    Args:
        appends: As many senders share one sync of the disk.
        reads: Reading is work for the processor; more threads would not make it faster.
        queries: Reading views may take seconds; then other views wait, and nothing else.
    """

    def __init__(self, appends: int = 64, reads: int = 16, queries: int = 6) -> None:
        self._appends = anyio.CapacityLimiter(appends)
        self._reads = anyio.CapacityLimiter(reads)
        self._queries = anyio.CapacityLimiter(queries)

    async def append(self, call: Callable[..., R], *args: Any, **options: Any) -> R:
        """Run a call that may wait for the disk or for room at a door."""
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._appends)

    async def read(self, call: Callable[..., R], *args: Any, **options: Any) -> R:
        """Run a call that comes back soon."""
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._reads)

    async def query(self, call: Callable[..., R], *args: Any, **options: Any) -> R:
        """Run a call that reads views."""
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._queries)
