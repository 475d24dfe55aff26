"""What the routes share: the log, and everything that stands between it and the requests."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from fastapi import Response

from headwater.client.views import FolderViews
from headwater.events import moments_of
from headwater.events.values import moment_text
from headwater.log import EventLog
from headwater.server.edge.bodies import Bodies
from headwater.server.forms.intake import Intake
from headwater.server.limits import Limits
from headwater.server.members import Members
from headwater.server.threads import Threads
from headwater.server.wakes import Wakes
from headwater.store.engine_state import read_engine_state

__all__ = ["Gateway", "json_answer"]


class Gateway:
    """One per node.

    Args:
        log: What is served.
        limits: What clients may ask of it.
        store: The database that has the views, if they are not in the log's folder.
    """

    def __init__(self, log: EventLog, limits: Limits, store: str | None = None) -> None:
        self.log = log
        self.limits = limits
        self.threads = Threads()
        self.bodies = Bodies(limits)
        self.intake = Intake(log, limits.line)
        self.views = FolderViews(log, url=store)
        self.wakes = Wakes(log, self.threads)
        self.members = Members(log, self.threads, limits)
        self.started_at = datetime.now(UTC)
        self.started = time.monotonic()

    def engine(self) -> dict[str, Any] | None:
        """The state of the engine, as {"state", "detail", "since"}; None when none ever ran on this folder."""
        known = read_engine_state(self.log.folder)
        if known is None:
            return None
        since = moment_text(moments_of(np.array([known.since]))[0])
        return {"state": known.state, "detail": known.detail, "since": since}

    def waiting(self, wanted: float) -> float:
        """How long a request may wait that would like to wait so long (seconds)."""
        return max(0.0, min(wanted, self.limits.longest_wait.total_seconds()))

    def stop(self) -> None:
        """End all live streams and waits, so that connections can close."""
        self.wakes.stop()

    async def close(self) -> None:
        """Let go of members and watches."""
        await self.members.close()
        self.wakes.close()
        self.views.close()


def json_answer(document: Any, status: int = 200) -> Response:
    """A document as JSON."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")
