"""Routes on the hot path: the request goes straight to its function, and the description is written by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from headwater.errors import UsageError

__all__ = ["DirectRoute", "parameters", "query"]


class DirectRoute(APIRoute):
    """A route whose function takes the request alone; FastAPI's reading of parameters costs as much as an append."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function itself."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


def parameters(query: dict[str, str]) -> list[dict[str, Any]]:
    """The description of a topic in the path and of these parameters in the query, all optional text."""
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    return [
        name,
        *(
            {
                "name": key,
                "in": "query",
                "required": False,
                "description": about,
                "schema": {"type": "string"},
            }
            for key, about in query.items()
        ),
    ]


def query(request: Request, known: dict[str, str], several: Collection[str] = ()) -> dict[str, str]:
    """The parameters of the query; of those that may stand there several times, the last.

    Raises:
        UsageError: One of them is unknown, or stands there twice.
    """
    if not request.scope["query_string"]:
        return {}
    given = request.query_params.multi_items()
    found = dict(given)
    for name in found:
        if name not in known:
            what = f"there is no parameter {name[:80]!r}"
            raise UsageError(what, detail=f"parameters: {', '.join(known) or 'none'}", parameter=name[:80])
    if len({*found} - {*several}) < sum(name not in several for name, _ in given):
        raise UsageError("a parameter stands in the query twice", fix="say it once")
    return found
