"""Every error as the same application/problem+json, whoever raised it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as AnyHTTPException

from headwater.errors import HeadwaterError, TooLargeError, UsageError

__all__ = ["PROBLEM", "answer", "headers_too_long", "install", "problem_bytes", "refused", "unexpected"]

PROBLEM = "application/problem+json"
logger = logging.getLogger("headwater.server")
_TRY_AGAIN = {429: "1", 503: "1", 507: "5"}  # seconds
_WORDS = {404: "there is nothing at this address", 405: "this address does not take that method"}


def refused(status: int, what: str, *, detail: str | None = None, fix: str | None = None) -> HTTPException:
    """A refusal for which HTTP has a finer status than our errors have, such as 415."""
    return HTTPException(status, UsageError(what, detail=detail, fix=fix))


def problem_bytes(error: HeadwaterError, status: int | None = None) -> bytes:
    """The error's document, under another status if one is given."""
    document = error.problem()
    if status is not None:
        document["status"] = status
    return msgspec.json.encode(document, enc_hook=str)


def answer(
    error: HeadwaterError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The error as an answer; one that may pass says when to try again."""
    code = status or error.status
    extra = dict(headers or {})
    if code in _TRY_AGAIN:
        extra["retry-after"] = _TRY_AGAIN[code]
    return Response(problem_bytes(error, code), code, extra, PROBLEM)


def headers_too_long(limit: int) -> TooLargeError:
    """A request's line and headers are over their limit."""
    return TooLargeError(f"the request's line and headers are longer than {limit:,} bytes", limit=limit)


def unexpected() -> HeadwaterError:
    """What a client is told of a fault of ours: nothing that could be secret."""
    return HeadwaterError("the node failed on this request", detail="its diagnostics say why")


def install(app: FastAPI) -> None:
    """Let the app answer all of its errors in this form."""
    app.add_exception_handler(HeadwaterError, _ours)
    app.add_exception_handler(AnyHTTPException, _of_http)
    app.add_exception_handler(RequestValidationError, _of_parameters)
    app.add_exception_handler(Exception, _unexpected)


async def _ours(_: Request, error: Exception) -> Response:
    assert isinstance(error, HeadwaterError)
    return answer(error)


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHTTPException)
    told: Any = error.detail
    if not isinstance(told, HeadwaterError):
        what = _WORDS.get(error.status_code, str(error.detail))
        told = UsageError(what, detail=f"{request.method} {request.url.path}", fix="see /api/openapi.json")
    return answer(told, error.status_code, error.headers)


async def _of_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    what = f"the parameter {field!r} cannot be used: {first['msg']}"
    return answer(UsageError(what, fix="see /api/openapi.json", parameter=field))


async def _unexpected(request: Request, error: Exception) -> Response:
    # Names come from outside: repr keeps control characters out of the diagnostics.
    logger.error("%s %r failed", request.method, request.url.path, exc_info=error)
    return answer(unexpected())
