"""The gateway: what the routes share, and group members of remote clients.

A remote member that sends no heartbeat loses its partitions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from fastapi import Response

from headwater.backends import open_views
from headwater.errors import HeadwaterError
from headwater.events import moments_of
from headwater.events.values import format_moment
from headwater.log import EventLog, Membership
from headwater.server.limits import Limits, ThreadLimits
from headwater.server.middleware import RequestBodies
from headwater.server.notifier import Notifier
from headwater.server.serializers.requests import EventIngest
from headwater.store.status import read_engine_status

__all__ = ["Gateway", "GroupSessions", "json_response"]

logger = logging.getLogger("headwater.server")
_CHECK_INTERVAL = 0.5  # seconds


@dataclass
class _Session:
    membership: Membership
    expires_at: float  # monotonic seconds


class GroupSessions:
    """The members that joined over HTTP; the log's own session timeout applies in addition."""

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
        """Keep a new member alive for one session."""
        self._sessions[membership.member] = _Session(membership, time.monotonic() + self._timeout)
        if self._expiry_task is None or self._expiry_task.done():
            self._expiry_task = asyncio.create_task(self._expire())

    def renew(self, member: str) -> None:
        """Renew the session of this member."""
        known = self._sessions.get(member)
        if known is not None:
            known.expires_at = time.monotonic() + self._timeout

    def expire_soon(self, member: str) -> None:
        """Shorten the session after a lost connection."""
        known = self._sessions.get(member)
        if known is not None:
            known.expires_at = min(known.expires_at, time.monotonic() + self._grace)

    def remove(self, member: str) -> None:
        """Remove a member."""
        self._sessions.pop(member, None)

    async def _expire(self) -> None:
        while self._sessions:
            await asyncio.sleep(_CHECK_INTERVAL)
            now = time.monotonic()
            for member in [member for member, known in self._sessions.items() if known.expires_at < now]:
                gone = self._sessions.pop(member).membership
                logger.info("member %s of group %s is gone", member, gone.group)
                try:
                    await self._threads.read(self._log.groups.leave, gone)
                except (HeadwaterError, OSError):
                    logger.exception("member %s could not be removed", member)

    async def close(self) -> None:
        """Release the partitions of all members, because no heartbeat can reach this node any more."""
        if self._expiry_task is not None:
            self._expiry_task.cancel()
        for known in list(self._sessions.values()):
            await self._threads.read(self._log.groups.leave, known.membership)
        self._sessions.clear()


class Gateway:
    """The state that all routes of a node share.

    Args:
        log: What is served.
        limits: What clients may ask of it.
        store: The database that has the views, if they are not in the log's folder.
    """

    def __init__(self, log: EventLog, limits: Limits, store: str | None = None) -> None:
        self.log = log
        self.limits = limits
        self.threads = ThreadLimits()
        self.bodies = RequestBodies(limits)
        self.ingest = EventIngest(log, limits.line)
        self.views = open_views(log, store)
        self.notifier = Notifier(log, self.threads)
        self.sessions = GroupSessions(log, self.threads, limits)
        self.started_at = datetime.now(UTC)
        self.started = time.monotonic()

    def engine(self) -> dict[str, Any] | None:
        """Returns the state of the engine, as {"state", "detail", "since"}; None when none ever ran on this folder."""
        known = read_engine_status(self.log.folder)
        if known is None:
            return None
        since = format_moment(moments_of(np.array([known.since]))[0])
        return {"state": known.state, "detail": known.detail, "since": since}

    def cap_wait(self, wanted: float) -> float:
        """Returns the wait a request is granted, in seconds."""
        return max(0.0, min(wanted, self.limits.max_wait.total_seconds()))

    def stop(self) -> None:
        """End all live streams and waits, so that connections can close."""
        self.notifier.stop()

    async def close(self) -> None:
        """Close members and watches."""
        await self.sessions.close()
        self.notifier.close()
        self.views.close()


def json_response(document: Any, status: int = 200) -> Response:
    """Returns a document as JSON."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")
