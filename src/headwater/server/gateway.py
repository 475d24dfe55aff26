"""The gateway: what the routes share, and the group members of remote clients."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import Response
from fastapi.responses import StreamingResponse

from headwater.backends import open_views
from headwater.errors import HeadwaterError
from headwater.log import EventLog, Membership
from headwater.memory import process_memory
from headwater.server.limits import Limits, ThreadLimits
from headwater.server.middleware import RequestBodies
from headwater.server.notifier import Notifier
from headwater.server.serializers.requests import EventIngest
from headwater.server.sse import EventStream
from headwater.store.status import MemoryReport, read_engine_memory

__all__ = ["Gateway", "GroupSessions", "json_response", "stream_response"]

logger = logging.getLogger("headwater.server")
_CHECK_INTERVAL = 0.5  # seconds
_MEMORY_INTERVAL = 10.0  # seconds, as the engine samples its own


@dataclass
class _Session:
    membership: Membership
    expires_at: float  # monotonic seconds


class GroupSessions:
    """The group members that joined over HTTP. A member that sends no heartbeat loses its partitions.

    All calls run on the event loop, so there is no lock. The log's own session timeout applies in addition.
    """

    def __init__(self, log: EventLog, threads: ThreadLimits, limits: Limits) -> None:
        self._log = log
        self._threads = threads
        self._timeout = limits.session_timeout.total_seconds()
        self._grace = limits.grace.total_seconds()
        self._sessions: dict[str, _Session] = {}
        self._expiry_task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, membership: Membership) -> None:
        """Start the session of a new member."""
        self._sessions[membership.member] = _Session(membership, time.monotonic() + self._timeout)
        if self._expiry_task is None or self._expiry_task.done():
            self._expiry_task = asyncio.create_task(self._expire())

    def renew(self, *members: str) -> None:
        """Restart the session timeout of these members; unknown ones are ignored."""
        for member in members:
            if session := self._sessions.get(member):
                session.expires_at = time.monotonic() + self._timeout

    def expire_soon(self, *members: str) -> None:
        """Shorten the sessions of these members to the grace period, after their connection was lost."""
        for member in members:
            if session := self._sessions.get(member):
                session.expires_at = min(session.expires_at, time.monotonic() + self._grace)

    def remove(self, member: str) -> None:
        """Remove a member."""
        self._sessions.pop(member, None)

    async def _expire(self) -> None:
        while self._sessions:
            await asyncio.sleep(_CHECK_INTERVAL)
            now = time.monotonic()
            for member in [member for member, session in self._sessions.items() if session.expires_at < now]:
                expired = self._sessions.pop(member).membership
                logger.info("session of member %s of group %s expired", member, expired.group)
                try:
                    await self._threads.read(self._log.groups.leave, expired)
                except (HeadwaterError, OSError):
                    logger.exception("member %s could not be removed", member)

    async def close(self) -> None:
        """Remove all members from their groups: this node will not receive their heartbeats any more."""
        if self._expiry_task is not None:
            self._expiry_task.cancel()
        for session in list(self._sessions.values()):
            await self._threads.read(self._log.groups.leave, session.membership)
        self._sessions.clear()


class Gateway:
    """The state that all routes of a node share.

    Args:
        log: The log to serve.
        limits: The limits per client and request.
        store: The URL of the database with the views; None if they are in the log's folder.
    """

    def __init__(self, log: EventLog, limits: Limits, store: str | None = None) -> None:
        self.log = log
        self.limits = limits
        self.threads = ThreadLimits()
        self.bodies = RequestBodies(limits)
        self.ingest = EventIngest(log, limits.line)
        self.views = open_views(log, store)
        self.notifier = Notifier(log, self.threads)
        self.streams = EventStream(self.notifier, limits)
        self.sessions = GroupSessions(log, self.threads, limits)
        self.started_at = datetime.now(UTC)
        self.started = time.monotonic()  # for the uptime, which a change of the system's clock must not affect
        self._memory = MemoryReport(0)
        self._memory_sampled_at = -_MEMORY_INTERVAL

    def cap_wait(self, wanted: float) -> float:
        """Returns how many seconds a request may wait: what it asks for, up to the limit."""
        return max(0.0, min(wanted, self.limits.max_wait.total_seconds()))

    def memory(self) -> MemoryReport:
        """Returns the memory of this node and of the engine, at most ten seconds old."""
        if time.monotonic() - self._memory_sampled_at >= _MEMORY_INTERVAL:
            self._memory = MemoryReport(process_memory(os.getpid()), read_engine_memory(self.log.folder))
            self._memory_sampled_at = time.monotonic()
        return self._memory

    async def close(self) -> None:
        """Remove the remote group members, and close the watches and views."""
        await self.sessions.close()
        self.notifier.close()
        self.views.close()


def json_response(document: Any, status: int = 200) -> Response:
    """Returns a document as JSON."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")


async def stream_response(
    run: Callable[..., Awaitable[bytes | None]],
    chunks: Iterator[bytes],
    media: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Returns a response that makes its chunks one by one, in threads.

    The first chunk is made before the response begins, so that an error in it still gets its own status.

    Args:
        run: Runs a call in a thread: a method of `ThreadLimits`.
        chunks: Makes the chunks; each may block.
        media: The media type.
        headers: Further headers.
    """
    first = await run(next, chunks, None)

    async def send_chunks() -> AsyncIterator[bytes]:
        chunk = first
        while chunk is not None:
            yield chunk
            chunk = await run(next, chunks, None)

    return StreamingResponse(send_chunks(), headers=headers, media_type=media)
