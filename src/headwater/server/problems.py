"""Renders every error as application/problem+json."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as AnyHTTPException

from headwater.errors import HeadwaterError, TooLargeError, UsageError

__all__ = [
    "PROBLEM",
    "headers_too_long",
    "http_problem",
    "install",
    "internal_error",
    "problem_bytes",
    "problem_response",
]

PROBLEM = "application/problem+json"
logger = logging.getLogger("headwater.server")
_RETRY_AFTER = {429: "1", 503: "1", 507: "5"}  # seconds
_MESSAGES = {404: "no such address", 405: "this address does not support the method"}


def http_problem(status: int, what: str, *, detail: str | None = None, fix: str | None = None) -> HTTPException:
    """Returns a usage error with a status that no error class has, such as 415."""
    return HTTPException(status, UsageError(what, detail=detail, fix=fix))


def problem_bytes(error: HeadwaterError, status: int | None = None) -> bytes:
    """Returns the error as a JSON document; `status` replaces the status of its class."""
    document = error.problem()
    if status is not None:
        document["status"] = status
    return msgspec.json.encode(document, enc_hook=str)


def problem_response(
    error: HeadwaterError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns the error as a response; temporary ones have a Retry-After header."""
    code = status or error.status
    extra = dict(headers or {})
    if code in _RETRY_AFTER:
        extra["retry-after"] = _RETRY_AFTER[code]
    return Response(problem_bytes(error, code), code, extra, PROBLEM)


def headers_too_long(limit: int) -> TooLargeError:
    """Returns the error for a request whose line and headers exceed the limit."""
    return TooLargeError(f"the request line and headers are longer than {limit:,} bytes", limit=limit)


def internal_error() -> HeadwaterError:
    """Returns the error for a fault of the node; it tells no details, which could be secret."""
    return HeadwaterError("the node failed on this request", detail="see the diagnostics of the node")


def install(app: FastAPI) -> None:
    """Let the app render all errors as problem documents."""

    @app.exception_handler(HeadwaterError)
    async def handle_headwater_error(_: Request, error: HeadwaterError) -> Response:
        return problem_response(error)

    @app.exception_handler(AnyHTTPException)
    async def handle_http_error(request: Request, error: AnyHTTPException) -> Response:
        reported: Any = error.detail  # a `HeadwaterError` if it comes from `http_problem`
        if not isinstance(reported, HeadwaterError):
            what = _MESSAGES.get(error.status_code, str(error.detail))
            reported = UsageError(what, detail=f"{request.method} {request.url.path}", fix="see /api/openapi.json")
        return problem_response(reported, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def handle_validation_error(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        what = f"invalid parameter {field!r}: {first['msg']}"
        return problem_response(UsageError(what, fix="see /api/openapi.json", parameter=field))

    @app.exception_handler(Exception)
    async def handle_unexpected(request: Request, error: Exception) -> Response:
        # The path comes from the client: repr keeps control characters out of the diagnostics.
        logger.error("%s %r failed", request.method, request.url.path, exc_info=error)
        return problem_response(internal_error())
