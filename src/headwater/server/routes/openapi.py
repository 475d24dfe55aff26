"""The OpenAPI description: every route says what it takes and gives, in one way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI, Response
from fastapi.openapi.utils import get_openapi

from headwater import __version__
from headwater.errors import HeadwaterError
from headwater.server.edge.problems import PROBLEM
from headwater.server.forms import documents
from headwater.server.routes.direct import DirectRoute, parameters

__all__ = ["JSON", "Address", "body", "install", "listed", "one_of", "router_of"]

JSON: Final = "application/json"
_PROBLEM: Final = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_ABOUT: Final = (
    "The node of a Headwater data folder: topics, events, consumer groups. It serves this machine only. "
    "Errors are application/problem+json with a code, the detail and a fix."
)


@dataclass(frozen=True)
class Address:
    """One address of the gateway, and what it says about itself.

    Attributes:
        method: Of HTTP.
        path: With its parameters in braces.
        call: The name of the function that answers.
        summary: One line.
        gives: The answer's schema by media type, from `body` or `listed`; none: an empty answer.
        errors: What it refuses with, besides what any request can be refused with.
        takes: The request's schema by media type.
        query: For a route on the hot path, which FastAPI does not look into: its parameters and what they mean.
        status: Of the usual answer.
    """

    method: str
    path: str
    call: str
    summary: str
    gives: dict[str, Any] = field(default_factory=dict)
    errors: tuple[type[HeadwaterError], ...] = ()
    takes: dict[str, Any] | None = None
    query: dict[str, str] | None = None
    status: int = 200

    def responses(self) -> dict[int | str, Any]:
        """All answers, for the description."""
        usual: dict[str, Any] = {"description": self.summary}
        found: dict[int | str, Any] = {
            self.status: usual | ({"content": self.gives} if self.gives else {}),
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

    def extra(self) -> dict[str, Any]:
        """What FastAPI cannot find out by itself."""
        found: dict[str, Any] = {}
        if self.takes:
            found["requestBody"] = {"required": True, "content": self.takes}
        if self.query is not None:
            found["parameters"] = parameters(self.query)
        return found


def router_of(answering: object, tag: str, addresses: Iterable[Address]) -> APIRouter:
    """The routes of these addresses, answered by the functions of an object."""
    router = APIRouter(tags=[tag])
    for address in addresses:
        router.add_api_route(
            address.path,
            getattr(answering, address.call),
            methods=[address.method],
            summary=address.summary,
            status_code=address.status,
            responses=address.responses(),
            openapi_extra=address.extra(),
            response_class=Response,
            response_model=None,
            route_class_override=None if address.query is None else DirectRoute,
        )
    return router


def body(of: type | None = None, media: str = JSON) -> dict[str, Any]:
    """A body of this media type: a document, or bytes that JSON Schema has no words for."""
    schema = {"type": "string", "format": "binary"} if of is None else _reference(of)
    return {media: {"schema": schema}}


def one_of(*documents: type) -> dict[str, Any]:
    """One of several documents."""
    return {JSON: {"schema": {"oneOf": [_reference(of) for of in documents]}}}


def listed(name: str, of: type) -> dict[str, Any]:
    """An object with a list of documents under this name."""
    items = {"type": "array", "items": _reference(of)}
    return {JSON: {"schema": {"type": "object", "properties": {name: items}, "required": [name]}}}


def _reference(of: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{of.__name__}"}


def install(app: FastAPI) -> None:
    """Let the app describe itself, documents included."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title="Headwater", version=__version__, description=_ABOUT, routes=app.routes)
            known = [getattr(documents, name) for name in documents.__all__]
            structs = [one for one in known if isinstance(one, type)]
            _, components = msgspec.json.schema_components(
                structs, ref_template="#/components/schemas/{name}"
            )
            made["components"] = {"schemas": dict(sorted(components.items()))}
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]
