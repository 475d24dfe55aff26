"""The OpenAPI description: every route declares its parameters and answers.

Routes on the hot path bypass the framework's decoding; their description is written by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from headwater import __version__
from headwater.errors import HeadwaterError, UsageError
from headwater.server.problems import PROBLEM
from headwater.server.serializers import documents

__all__ = [
    "JSON",
    "DirectRoute",
    "Route",
    "body",
    "describe_parameters",
    "install",
    "list_of",
    "one_of",
    "parse_query",
    "router_of",
]


class DirectRoute(APIRoute):
    """A route whose function takes the request alone; FastAPI's reading of parameters costs as much as an append."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function itself."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


def describe_parameters(query: dict[str, str]) -> list[dict[str, Any]]:
    """The description of a topic in the path and of these parameters in the query, all optional text."""
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    return [
        name,
        *(
            {"name": key, "in": "query", "required": False, "description": about, "schema": {"type": "string"}}
            for key, about in query.items()
        ),
    ]


def parse_query(request: Request, known: dict[str, str], repeatable: Collection[str] = ()) -> dict[str, str]:
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
    if len({*found} - {*repeatable}) < sum(name not in repeatable for name, _ in given):
        raise UsageError("a parameter stands in the query twice", fix="say it once")
    return found


JSON: Final = "application/json"
_PROBLEM: Final = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_DESCRIPTION: Final = (
    "The node of a Headwater data folder: topics, events, consumer groups. It serves this machine only. "
    "Errors are application/problem+json with a code, the detail and a fix."
)


@dataclass(frozen=True)
class Route:
    """One address of the gateway, and what it says about itself.

    Attributes:
        method: Of HTTP.
        path: With its parameters in braces.
        handler: The name of the function that answers.
        summary: One line.
        response_body: The answer's schema by media type, from `body` or `list_of`; none: an empty answer.
        errors: What it refuses with, besides what any request can be refused with.
        request_body: The request's schema by media type.
        query: For a route on the hot path, which FastAPI does not look into: its parameters and what they mean.
        status: Of the usual answer.
    """

    method: str
    path: str
    handler: str
    summary: str
    response_body: dict[str, Any] = field(default_factory=dict)
    errors: tuple[type[HeadwaterError], ...] = ()
    request_body: dict[str, Any] | None = None
    query: dict[str, str] | None = None
    status: int = 200

    def responses(self) -> dict[int | str, Any]:
        """All answers, for the description."""
        usual: dict[str, Any] = {"description": self.summary}
        found: dict[int | str, Any] = {
            self.status: usual | ({"content": self.response_body} if self.response_body else {}),
            "default": {
                "description": "A problem: bad parameters, a foreign host, or a fault of the node",
                "content": _PROBLEM,
            },
        }
        codes: dict[int, list[str]] = defaultdict(list)
        for error in self.errors:
            codes[error.status].append(error.code)
        for number, names in codes.items():
            found[number] = {"description": ", ".join(names), "content": _PROBLEM}
        return found

    def openapi_extra(self) -> dict[str, Any]:
        """What FastAPI cannot find out by itself."""
        found: dict[str, Any] = {}
        if self.request_body:
            found["requestBody"] = {"required": True, "content": self.request_body}
        if self.query is not None:
            found["parameters"] = describe_parameters(self.query)
        return found


def router_of(handlers: object, tag: str, routes: Iterable[Route]) -> APIRouter:
    """The routes of these addresses, answered by the functions of an object."""
    router = APIRouter(tags=[tag])
    for route in routes:
        router.add_api_route(
            route.path,
            getattr(handlers, route.handler),
            methods=[route.method],
            summary=route.summary,
            status_code=route.status,
            responses=route.responses(),
            openapi_extra=route.openapi_extra(),
            response_class=Response,
            response_model=None,
            route_class_override=None if route.query is None else DirectRoute,
        )
    return router


def body(of: type | None = None, media: str = JSON) -> dict[str, Any]:
    """A body of this media type: a document, or bytes that JSON Schema has no words for."""
    schema = {"type": "string", "format": "binary"} if of is None else _reference(of)
    return {media: {"schema": schema}}


def one_of(*documents: type) -> dict[str, Any]:
    """One of several documents."""
    return {JSON: {"schema": {"oneOf": [_reference(of) for of in documents]}}}


def list_of(name: str, of: type) -> dict[str, Any]:
    """An object with a list of documents under this name."""
    items = {"type": "array", "items": _reference(of)}
    return {JSON: {"schema": {"type": "object", "properties": {name: items}, "required": [name]}}}


def _reference(of: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{of.__name__}"}


def install(app: FastAPI) -> None:
    """Let the app describe itself, documents included."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title="Headwater", version=__version__, description=_DESCRIPTION, routes=app.routes)
            known = [getattr(documents, name) for name in documents.__all__]
            structs = [one for one in known if isinstance(one, type)]
            _, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
            made["components"] = {"schemas": dict(sorted(components.items()))}
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]
