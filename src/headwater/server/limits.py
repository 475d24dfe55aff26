"""Limits per client, and the thread pools that run calls of the log.

Calls of the log block, so they run in threads and never on the event loop. Each kind of call has its own
bound, so one client or one kind of call cannot exhaust the node.
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
    """Sizes in bytes; a request beyond one of them is refused before memory grows.

    Attributes:
        body: One request's JSON or NDJSON.
        frames: One append of typed rows, as our own client sends them.
        buffered: The bodies of all requests that are being worked on, together; beyond it: 429.
        line: One JSON event.
        headers: A request's line and headers; beyond it: 431.
        connections: Clients at the same time; beyond it: 503.
        partitions: Of one topic.
        header_timeout: How long a client may take to send its headers.
        body_timeout: How long a client may pause inside a body.
        body_rate: Bytes per second a body must come in with, on average, once the first `body_timeout` is over.
        keep_alive_timeout: How long a connection may lie still between requests; longer than our own clients keep
            theirs.
        send_timeout: A client that takes nothing of its answer for this long is cut off; it resumes where it was.
        heartbeat: A live stream without events sends a comment this often.
        max_wait: The longest a request may ask to wait for events.
        session_timeout: A group member of which nothing was heard for this long loses its partitions.
        grace: The same, once its connection was lost.
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
    """Thread pools by kind of call: blocked appends do not keep readers from a thread, nor the reverse.

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
        """Run a call that may wait for the disk or for space in an append buffer."""
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._appends)

    async def read(self, call: Callable[..., R], *args: Any, **options: Any) -> R:
        """Run a call that returns soon."""
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._reads)

    async def query(self, call: Callable[..., R], *args: Any, **options: Any) -> R:
        """Run a call that reads views."""
        return await to_thread.run_sync(partial(call, *args, **options), limiter=self._queries)
