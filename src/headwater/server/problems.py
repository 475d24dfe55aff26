"""Every error as the same application/problem+json, whoever raised it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from headwater.errors import HeadwaterError, UsageError

__all__ = ["PROBLEM", "answer", "install", "problem_bytes", "refusal"]

PROBLEM = "application/problem+json"
logger = logging.getLogger("headwater.server")
_TRY_AGAIN = {429: "1", 503: "1", 507: "5"}  # seconds


def problem_bytes(error: HeadwaterError, status: int | None = None) -> bytes:
    """The error's document; `status` when HTTP knows a finer one than the error's class."""
    document = error.problem()
    if status is not None:
        document["status"] = status
    return msgspec.json.encode(document, enc_hook=str)


def answer(
    error: HeadwaterError, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The error as an answer; those that may pass say when to try again."""
    code = status or error.status
    extra = dict(headers or {})
    if code in _TRY_AGAIN:
        extra["retry-after"] = _TRY_AGAIN[code]
    return Response(problem_bytes(error, code), code, extra, PROBLEM)


class refusal(Exception):  # noqa: N801, N818 - reads as `raise refusal(415, ...)`
    """A request that HTTP itself has a word for, such as 415 or 408."""
