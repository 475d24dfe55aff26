"""The OpenAPI description: every route says what it takes and gives, in one way."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi

from headwater import __version__
from headwater.errors import HeadwaterError
from headwater.server.edge.problems import PROBLEM
from headwater.server.forms import documents

__all__ = ["JSON", "body", "described", "install", "listed", "one_of"]

JSON: Final = "application/json"
_PROBLEM: Final = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_ABOUT: Final = (
    "The node of a Headwater data folder: topics, events, consumer groups. It serves this machine only. "
    "Errors are application/problem+json with a code, the detail and a fix."
)


def described(
    summary: str,
    gives: dict[str, Any],
    *errors: type[HeadwaterError],
    takes: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
    status: int = 200,
) -> dict[str, Any]:
    """What a route says about itself, as arguments of `add_api_route`.

    Args:
        summary: One line.
        gives: The answer's schema by media type, from `body` or `listed`.
        errors: What it refuses with, besides what any request can be refused with.
        takes: The request's schema by media type.
        parameters: Those that FastAPI cannot find by itself.
        status: Of the answer.
    """
    responses: dict[int | str, Any] = {
        status: {"description": summary, "content": gives} if gives else {"description": summary},
        "default": {
            "description": "A problem: bad parameters, a foreign host, or a fault of the node",
            "content": _PROBLEM,
        },
    }
    codes: dict[int, list[str]] = defaultdict(list)
    for error in errors:
        codes[error.status].append(error.code)
    for number, names in codes.items():
        responses[number] = {"description": ", ".join(names), "content": _PROBLEM}
    extra: dict[str, Any] = {"requestBody": {"required": True, "content": takes}} if takes else {}
    if parameters:
        extra["parameters"] = parameters
    return {
        "summary": summary,
        "responses": responses,
        "status_code": status,
        "response_class": Response,
        "response_model": None,
        "openapi_extra": extra,
    }


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
