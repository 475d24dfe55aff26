"""Routes of the node itself: health, version, and the web console built from `console/`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Final, NamedTuple

from fastapi import HTTPException, Request, Response

from headwater import __version__
from headwater.client.disk_usage import DiskUsage, measure_disk
from headwater.console import ASSETS
from headwater.events.values import format_moment
from headwater.server.gateway import json_response
from headwater.server.routes.openapi import Route, Routes, body
from headwater.server.serializers.documents import Health, Version

__all__ = ["NodeRoutes"]

# Scripts and styles are loaded from the node only. Trusted Types stop any code that turns text into markup; the one
# policy allowed is Svelte's own, for the templates compiled into the page.
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
# File names contain a hash of the content, so a browser may cache them without an end.
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_HASHED_SUFFIXES: Final = frozenset({".css", ".js", ".svg"})


class NodeRoutes(Routes):
    """Serves health, version and the console."""

    tag = "node"

    @Route("GET", "/api/health", "Get the health of the node", body(Health))
    async def health(self, request: Request) -> Response:
        """Responds as long as the node can read its folder."""
        topics = await self._threads.read(self._log.topics)
        connection = request.scope.get("state", {}).get("connection")
        return json_response(
            Health(
                "stopping" if self._notifier.stopping else "ok",
                os.getpid(),
                format_moment(self._gateway.started_at),
                round(time.monotonic() - self._gateway.started, 3),
                len(topics),
                len(self._gateway.sessions),
                0 if connection is None else len(connection.connections),
                await self._threads.read(self._gateway.memory),
            )
        )

    @Route("GET", "/api/disk", "Get the size of everything in the data folder", body(DiskUsage))
    async def disk(self) -> Response:
        """Returns sizes by part, how long each is kept, and the groups for which retention keeps unread events."""
        call = partial(measure_disk, self._log, self._log.clock, self._views, self._log.folder)
        return json_response(await self._threads.read(call))

    @Route("GET", "/api/version", "Get the version of the node", body(Version))
    async def version(self) -> Response:
        """Returns name and version."""
        return json_response(Version("headwater", __version__))

    @Route("GET", "/", "Get the console", body(None, "text/html"))
    async def page(self) -> Response:
        """Returns the HTML document. Scripts and styles are separate files; nothing is inline."""
        headers = {"content-security-policy": _POLICY}
        return Response(_load_assets()["index.html"].content, headers=headers, media_type="text/html")

    @Route("GET", "/assets/{name}", "Get a file of the console", body(None, "text/javascript"))
    async def asset(self, name: str) -> Response:
        """Returns one built file."""
        found = _load_assets().get(name)
        if found is None or found.suffix not in _MEDIA_TYPES:
            raise HTTPException(404)
        headers = {"cache-control": _IMMUTABLE} if found.suffix in _HASHED_SUFFIXES else {}
        return Response(found.content, headers=headers, media_type=_MEDIA_TYPES[found.suffix])


class _Asset(NamedTuple):
    content: bytes
    suffix: str


@lru_cache(maxsize=1)
def _load_assets() -> Mapping[str, _Asset]:
    """Returns all files by name. Other names are never looked up on disk."""
    return {path.name: _Asset(path.read_bytes(), path.suffix) for path in ASSETS.iterdir() if path.is_file()}
