"""Limits of requests and clients, and of the threads that run calls of the log.

Calls of the log block, so they run in threads and never on the event loop. Each kind of call has a limit of its own,
so that one kind cannot exhaust the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio import to_thread

__all__ = ["Limits", "ThreadLimits"]


@dataclass(frozen=True)
class Limits:
    """The limits of requests and clients. A request beyond one is refused before memory grows. Sizes are in bytes.

    Attributes:
        body: The size of a JSON or NDJSON body.
        frames: The size of an append in the binary format of our own client.
        buffered: The size of all bodies in memory together; beyond it: 429.
        line: The size of one JSON event.
        headers: The size of the request line and headers; beyond it: 431.
        connections: The number of open connections; beyond it: 503.
        partitions: The number of partitions of a topic.
        header_timeout: The time in which a client must send its headers.
        body_timeout: The longest pause within a body.
        body_rate: The lowest average rate of a body in bytes per second, after the first `body_timeout`.
        keep_alive_timeout: The longest time between two requests on a connection; longer than our own clients keep an
            idle one.
        send_timeout: The time after which a client that reads nothing is disconnected; it can resume its stream.
        heartbeat: The longest time without a byte on a live stream; then it sends a comment.
        max_wait: The longest time that a request may wait for events.
        session_timeout: The time after which a group member without a heartbeat loses its partitions.
        grace: The same, after its connection was lost.
    """

    body: int = 16 << 20
    frames: int = 64 << 20
    buffered: int = 256 << 20
    line: int = 1 << 20
    headers: int = 32 << 10
    connections: int = 1000
    partitions: int = 1024
    header_timeout: timedelta = timedelta(seconds=10)
    body_timeout: timedelta = timedelta(seconds=30)
    body_rate: int = 1024
    keep_alive_timeout: timedelta = timedelta(seconds=60)
    send_timeout: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=15)
    max_wait: timedelta = timedelta(seconds=30)
    session_timeout: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=2)


R = TypeVar("R")


class ThreadLimits:
    """Thread limits by kind of call: blocked appends leave threads for readers, and the reverse.

    Args:
        appends: The number of concurrent appends; they share one sync of the disk.
        reads: The number of concurrent reads. They use the processor; more threads would not make them faster.
        queries: The number of concurrent reads of views. One may take seconds; only other views wait for it.
    """

    def __init__(self, appends: int = 64, reads: int = 16, queries: int = 6) -> None:
        self._appends = anyio.CapacityLimiter(appends)
        self._reads = anyio.CapacityLimiter(reads)
        self._queries = anyio.CapacityLimiter(queries)

    async def append(self, call: Callable[..., R], *args: Any, **options: Any) -> R:
        """Run a call that may wait for the disk or for space in an append buffer."""
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._appends)

    async def read(self, call: Callable[..., R], *args: Any, **options: Any) -> R:
        """Run a call that returns soon."""
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._reads)

    async def query(self, call: Callable[..., R], *args: Any, **options: Any) -> R:
        """Run a call that reads views."""
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._queries)
