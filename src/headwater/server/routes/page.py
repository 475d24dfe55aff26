"""The page at the node's address: topics with their rates, and a live tail."""

from __future__ import annotations

import secrets
from functools import lru_cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response

from headwater import __version__
from headwater.server.gateway import Gateway
from headwater.server.routes.openapi import Address, body, router_of

__all__ = ["routes"]

_FOLDER: Final = Path(__file__).parents[1] / "page"


_ADDRESSES: Final = (Address("GET", "/", "page", "The page of the node", body(None, "text/html")),)


def routes(_: Gateway) -> APIRouter:
    """The route of the page."""
    return router_of(_Page(), "node", _ADDRESSES)


@lru_cache(maxsize=1)
def _parts() -> tuple[str, str, str]:
    html, css, js = (
        (_FOLDER / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    return html, css, js


class _Page:
    async def page(self) -> Response:
        """Everything it needs is in it; scripts and styles run only with the nonce of this answer."""
        nonce = secrets.token_urlsafe(18)
        html, css, js = _parts()
        text = (
            html.replace("{{nonce}}", nonce)
            .replace("{{version}}", __version__)
            .replace("{{style}}", css)
            .replace("{{script}}", js)
        )
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return Response(text, headers={"content-security-policy": policy}, media_type="text/html")
