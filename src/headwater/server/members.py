"""Group members that live in other processes: whoever is not heard of any more gives its partitions back."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from headwater.errors import HeadwaterError
from headwater.log import EventLog, Membership
from headwater.server.limits import Limits
from headwater.server.threads import Threads

__all__ = ["Members"]

logger = logging.getLogger("headwater.server")
_LOOK_EVERY = 0.5  # seconds


@dataclass
class _Member:
    membership: Membership
    until: float  # monotonic seconds


class Members:
    """The members that joined over HTTP. The log's own session rule (how often a consumer must ask) comes on top."""

    def __init__(self, log: EventLog, threads: Threads, limits: Limits) -> None:
        self._log = log
        self._threads = threads
        self._session = limits.session.total_seconds()
        self._grace = limits.grace.total_seconds()
        self._known: dict[str, _Member] = {}
        self._watcher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._known)

    def joined(self, membership: Membership) -> None:
        """Keep a new member alive for one session."""
        self._known[membership.member] = _Member(membership, time.monotonic() + self._session)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())

    def heard(self, member: str) -> None:
        """Somebody spoke for this member."""
        known = self._known.get(member)
        if known is not None:
            known.until = time.monotonic() + self._session

    def lost(self, member: str) -> None:
        """Its connection broke: it has a short time to come back."""
        known = self._known.get(member)
        if known is not None:
            known.until = min(known.until, time.monotonic() + self._grace)

    def left(self, member: str) -> None:
        """It is gone."""
        self._known.pop(member, None)

    async def _watch(self) -> None:
        while self._known:
            await asyncio.sleep(_LOOK_EVERY)
            now = time.monotonic()
            for member in [member for member, known in self._known.items() if known.until < now]:
                gone = self._known.pop(member).membership
                logger.info("member %s of group %s is gone", member, gone.group)
                try:
                    await self._threads.read(self._log.groups.leave, gone)
                except (HeadwaterError, OSError):
                    logger.exception("member %s could not be removed", member)

    async def close(self) -> None:
        """Give back the partitions of all members, since nobody here can speak for them any more."""
        if self._watcher is not None:
            self._watcher.cancel()
        for known in list(self._known.values()):
            await self._threads.read(self._log.groups.leave, known.membership)
        self._known.clear()
