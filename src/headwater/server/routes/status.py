"""How the node is, and which version it is."""

from __future__ import annotations

import os
import time

from fastapi import APIRouter, Request, Response

from headwater import __version__
from headwater.events.values import moment_text
from headwater.server.forms.documents import Health, Version
from headwater.server.gateway import Gateway, json_answer
from headwater.server.routes.openapi import Address, body, router_of

__all__ = ["routes"]


_ADDRESSES = (
    Address("GET", "/api/health", "health", "How the node is", body(Health)),
    Address("GET", "/api/version", "version", "Which version answers", body(Version)),
)


def routes(gateway: Gateway) -> APIRouter:
    """The routes of the node itself."""
    return router_of(_Status(gateway), "node", _ADDRESSES)


class _Status:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, request: Request) -> Response:
        """Answers as long as the node can read its folder."""
        gateway = self._gateway
        topics = await gateway.threads.read(gateway.log.topics)
        connection = request.scope.get("state", {}).get("connection")
        return json_answer(
            Health(
                "stopping" if gateway.wakes.stopping else "ok",
                os.getpid(),
                moment_text(gateway.started_at),
                round(time.monotonic() - gateway.started, 3),
                len(topics),
                len(gateway.members),
                0 if connection is None else len(connection.connections),
            )
        )

    async def version(self) -> Response:
        """Name and version."""
        return json_answer(Version("headwater", __version__))
