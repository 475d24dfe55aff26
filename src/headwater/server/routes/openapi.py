"""Routes and their OpenAPI description.

The decorator `Route` makes a method of a `Routes` class a route, and declares its address, responses and errors.
FastAPI builds the description from that, from the method's docstring and from its parameters. The JSON documents are
msgspec structs and dataclasses; msgspec makes their schemas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from headwater import __version__
from headwater.errors import HeadwaterError, UsageError
from headwater.server.gateway import Gateway
from headwater.server.problems import PROBLEM
from headwater.server.serializers import documents
from headwater.server.serializers.responses import JSON

__all__ = ["DirectRoute", "Route", "Routes", "body", "install", "list_of", "one_of", "parse_query"]

H = TypeVar("H", bound=Callable[..., Any])
_PROBLEM: Final = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_DESCRIPTION: Final = (
    "The node of a Headwater data folder: topics, events, consumer groups. It serves this machine only. "
    "Errors are application/problem+json with a code, the detail and a fix."
)


@dataclass(frozen=True)
class Route:
    """Declares that a method of a `Routes` class answers requests to an address; used as a decorator.

    Attributes:
        method: The HTTP method.
        path: The path, with its parameters in braces.
        summary: One line for the description.
        response_body: The schema of the response by media type, from `body`, `one_of` or `list_of`; empty for a
            response without a body.
        errors: The errors of this route, besides those that any request can get.
        request_body: The schema of the request body by media type.
        query: The query parameters of a `DirectRoute` with their descriptions; None for a route whose parameters
            FastAPI parses.
        status: The status of a successful response.
    """

    method: str
    path: str
    summary: str
    response_body: dict[str, Any] = field(default_factory=dict)
    errors: tuple[type[HeadwaterError], ...] = ()
    request_body: dict[str, Any] | None = None
    query: dict[str, str] | None = None
    status: int = 200

    def __call__(self, handler: H) -> H:
        """Declare the route on its method."""
        handler.__dict__["route"] = self
        return handler

    def add_to(self, router: APIRouter, handler: Callable[..., Any]) -> None:
        """Add the route to a router."""
        router.add_api_route(
            self.path,
            handler,
            methods=[self.method],
            summary=self.summary,
            status_code=self.status,
            responses=self._responses(),
            openapi_extra=self._openapi_extra(),
            response_class=Response,
            response_model=None,
            route_class_override=None if self.query is None else DirectRoute,
        )

    def _responses(self) -> dict[int | str, Any]:
        success = {"content": self.response_body} if self.response_body else {}
        found: dict[int | str, Any] = {
            self.status: {"description": self.summary, **success},
            "default": {
                "description": "A problem: bad parameters, a foreign host, or a fault of the node",
                "content": _PROBLEM,
            },
        }
        codes: dict[int, list[str]] = defaultdict(list)
        for error in self.errors:
            codes[error.status].append(error.code)
        for status, names in codes.items():
            found[status] = {"description": ", ".join(names), "content": _PROBLEM}
        return found

    def _openapi_extra(self) -> dict[str, Any]:
        """Returns what FastAPI cannot see: bodies that the method reads itself, and parameters of direct routes."""
        found: dict[str, Any] = {}
        if self.request_body:
            found["requestBody"] = {"required": True, "content": self.request_body}
        if self.query is not None:
            text = {"schema": {"type": "string"}}
            found["parameters"] = [{"name": "name", "in": "path", "required": True, **text}] + [
                {"name": name, "in": "query", "required": False, "description": about, **text}
                for name, about in self.query.items()
            ]
        return found


class DirectRoute(APIRoute):
    """A route whose method gets the bare request: parsing its parameters with FastAPI takes as long as an append."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the method itself."""
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


class Routes:
    """The routes of one family of URLs. A subclass declares each with `Route`; `tag` groups them in the description."""

    tag: ClassVar[str]

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._log = gateway.log
        self._views = gateway.views
        self._threads = gateway.threads
        self._notifier = gateway.notifier

    def router(self) -> APIRouter:
        """Returns the routes in the order of their methods."""
        router = APIRouter(tags=[self.tag])
        for name, member in vars(type(self)).items():
            if route := getattr(member, "route", None):
                route.add_to(router, getattr(self, name))
        return router


def parse_query(request: Request, known: Collection[str], repeatable: Collection[str] = ()) -> dict[str, str]:
    """Returns the query parameters of a direct route; of repeated ones, the last.

    Raises:
        UsageError: A parameter is unknown, or is repeated and may not be.
    """
    if not request.scope["query_string"]:
        return {}
    given = request.query_params.multi_items()
    found = dict(given)
    for name in found:
        if name not in known:
            what = f"unknown parameter {name[:80]!r}"
            raise UsageError(what, detail=f"parameters: {', '.join(known) or 'none'}", parameter=name[:80])
    if len({*found} - {*repeatable}) < sum(name not in repeatable for name, _ in given):
        raise UsageError("a parameter is given twice", fix="give each parameter once")
    return found


def body(of: type | None = None, media: str = JSON) -> dict[str, Any]:
    """Returns the schema of a body: of a JSON document, or of bytes in another media type."""
    schema = {"type": "string", "format": "binary"} if of is None else _reference(of)
    return {media: {"schema": schema}}


def one_of(*documents: type) -> dict[str, Any]:
    """Returns the schema of a body that is one of several documents."""
    return {JSON: {"schema": {"oneOf": [_reference(of) for of in documents]}}}


def list_of(name: str, of: type) -> dict[str, Any]:
    """Returns the schema of an object with one member: a list of documents."""
    items = {"type": "array", "items": _reference(of)}
    return {JSON: {"schema": {"type": "object", "properties": {name: items}, "required": [name]}}}


def _reference(of: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{of.__name__}"}


def install(app: FastAPI) -> None:
    """Let the app serve the description, with the schemas of all documents."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title="Headwater", version=__version__, description=_DESCRIPTION, routes=app.routes)
            known = [getattr(documents, name) for name in documents.__all__]
            structs = [document for document in known if isinstance(document, type)]
            _, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
            made["components"] = {"schemas": dict(sorted(components.items()))}
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]
