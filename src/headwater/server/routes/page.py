"""The page at the node's address, and the files it loads: built from `console/`, served as they are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from fastapi import APIRouter, HTTPException, Response

from headwater.console import ASSETS
from headwater.server.gateway import Gateway
from headwater.server.routes.openapi import Address, body, router_of

__all__ = ["routes"]

# Scripts and styles come from files of the node alone. Whatever would make markup of text is stopped by the browser
# too; the one policy is Svelte's own, for the templates that were compiled into the page.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
)
_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".md": "text/plain",
    ".svg": "image/svg+xml",
}
# The name of a file has a hash of its content in it, so a browser may keep it for ever.
_KEEP: Final = "public, max-age=31536000, immutable"
_HASHED: Final = frozenset({".css", ".js", ".svg"})

_ADDRESSES: Final = (
    Address("GET", "/", "page", "The page of the node", body(None, "text/html")),
    Address("GET", "/assets/{name}", "asset", "A file that the page loads", body(None, "text/javascript")),
)


def routes(_: Gateway) -> APIRouter:
    """The routes of the page."""
    return router_of(_Page(), "node", _ADDRESSES)


class _File(NamedTuple):
    content: bytes
    suffix: str


@lru_cache(maxsize=1)
def _files() -> Mapping[str, _File]:
    """All files by name: what is not among them is not looked for on the disk."""
    return {path.name: _File(path.read_bytes(), path.suffix) for path in ASSETS.iterdir() if path.is_file()}


class _Page:
    async def page(self) -> Response:
        """The document itself; scripts and styles are files beside it, and nothing is inline."""
        headers = {"content-security-policy": _POLICY}
        return Response(_files()["index.html"].content, headers=headers, media_type="text/html")

    async def asset(self, name: str) -> Response:
        """One built file."""
        found = _files().get(name)
        if found is None or found.suffix not in _TYPES:
            raise HTTPException(404)
        headers = {"cache-control": _KEEP} if found.suffix in _HASHED else {}
        return Response(found.content, headers=headers, media_type=_TYPES[found.suffix])
