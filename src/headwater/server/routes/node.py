"""Routes of the node itself: health, version, and the web console built from `console/`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from fastapi import APIRouter, HTTPException, Request, Response

from headwater import __version__
from headwater.console import ASSETS
from headwater.events.values import format_moment
from headwater.server.gateway import Gateway, json_response
from headwater.server.routes.openapi import Route, body, router_of
from headwater.server.serializers.documents import Health, Version

__all__ = ["page_routes", "routes"]

# Scripts and styles come from files of the node alone. Whatever would make markup of text is stopped by the browser
# too; the one policy is Svelte's own, for the templates that were compiled into the page.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
)
_MEDIA_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".md": "text/plain",
    ".svg": "image/svg+xml",
}
# The name of a file has a hash of its content in it, so a browser may keep it for ever.
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_HASHED_SUFFIXES: Final = frozenset({".css", ".js", ".svg"})

_PAGE_ROUTES: Final = (
    Route("GET", "/", "page", "The page of the node", body(None, "text/html")),
    Route("GET", "/assets/{name}", "asset", "A file that the page loads", body(None, "text/javascript")),
)


def page_routes(_: Gateway) -> APIRouter:
    """The routes of the page."""
    return router_of(_PageRoutes(), "node", _PAGE_ROUTES)


class _Asset(NamedTuple):
    content: bytes
    suffix: str


@lru_cache(maxsize=1)
def _load_assets() -> Mapping[str, _Asset]:
    """All files by name: what is not among them is not looked for on the disk."""
    return {path.name: _Asset(path.read_bytes(), path.suffix) for path in ASSETS.iterdir() if path.is_file()}


class _PageRoutes:
    async def page(self) -> Response:
        """The document itself; scripts and styles are files beside it, and nothing is inline."""
        headers = {"content-security-policy": _POLICY}
        return Response(_load_assets()["index.html"].content, headers=headers, media_type="text/html")

    async def asset(self, name: str) -> Response:
        """One built file."""
        found = _load_assets().get(name)
        if found is None or found.suffix not in _MEDIA_TYPES:
            raise HTTPException(404)
        headers = {"cache-control": _IMMUTABLE} if found.suffix in _HASHED_SUFFIXES else {}
        return Response(found.content, headers=headers, media_type=_MEDIA_TYPES[found.suffix])


_ROUTES = (
    Route("GET", "/api/health", "health", "How the node is", body(Health)),
    Route("GET", "/api/version", "version", "Which version answers", body(Version)),
)


def routes(gateway: Gateway) -> APIRouter:
    """The routes of the node itself."""
    return router_of(_NodeRoutes(gateway), "node", _ROUTES)


class _NodeRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def health(self, request: Request) -> Response:
        """Answers as long as the node can read its folder."""
        gateway = self._gateway
        topics = await gateway.threads.read(gateway.log.topics)
        connection = request.scope.get("state", {}).get("connection")
        return json_response(
            Health(
                "stopping" if gateway.notifier.stopping else "ok",
                os.getpid(),
                format_moment(gateway.started_at),
                round(time.monotonic() - gateway.started, 3),
                len(topics),
                len(gateway.sessions),
                0 if connection is None else len(connection.connections),
            )
        )

    async def version(self) -> Response:
        """Name and version."""
        return json_response(Version("headwater", __version__))
