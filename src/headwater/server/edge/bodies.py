"""Request bodies: counted while they come in, refused before memory grows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from headwater.errors import BadJsonError, OverloadedError, TooLargeError, UsageError
from headwater.server.edge.problems import refused
from headwater.server.limits import Limits

__all__ = ["Bodies", "as_json", "media_type"]

T = TypeVar("T")


class Bodies:
    """Reads bodies, and knows how many bytes of them are in memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.held = 0

    @contextlib.asynccontextmanager
    async def of(self, request: Request, limit: int | None = None) -> AsyncIterator[bytes]:
        """The whole body of a request; its bytes count as held until the block ends.

        Raises:
            TooLargeError: It is longer than `limit` (the general one if left out), as announced or as counted.
            OverloadedError: The bodies of other requests fill the memory meant for them.
        """
        most = self._limits.body if limit is None else limit
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            raise _too_large(most)
        taken = 0
        parts: list[bytes] = []
        try:
            async for part in self._parts(request):
                taken += len(part)
                self.held += len(part)
                if taken > most:
                    raise _too_large(most)
                if self.held > self._limits.held:
                    raise OverloadedError(
                        "the node holds as many bytes of requests as it may",
                        detail="nothing of this request was done",
                        fix="send again later",
                        limit=self._limits.held,
                    )
                parts.append(part)
            yield parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self.held -= taken

    async def _parts(self, request: Request) -> AsyncIterator[bytes]:
        """The parts as they come; a client that stops sending, or sends too slowly, is told so."""
        silence = self._limits.silence.total_seconds()
        began, taken = time.monotonic(), 0
        parts = request.stream()
        while True:
            try:
                async with asyncio.timeout(silence):
                    part = await anext(parts)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise refused(408, f"nothing of the body came for {silence:g} seconds") from None
            except ClientDisconnect:
                raise refused(400, "the client went away before its body was whole") from None
            if part:
                yield part
            taken += len(part)
            spent = time.monotonic() - began
            if spent > silence and taken < self._limits.body_rate * (spent - silence):
                raise refused(408, f"the body comes more slowly than {self._limits.body_rate} bytes a second")


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"the body is longer than {limit:,} bytes",
        detail="nothing of it was done",
        fix="send it in parts",
        limit=limit,
    )


def media_type(request: Request) -> str:
    """The content type without its parameters, in lower case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def as_json(data: bytes, type_: type[T]) -> T:
    """The body as a document of this type.

    Raises:
        BadJsonError: It is not JSON.
        UsageError: It is another document.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError as error:
        what = f"the request does not fit: {error}"
        raise UsageError(what, fix="see /api/openapi.json") from None
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError) as error:
        reason: Any = "it is nested too deep" if isinstance(error, RecursionError) else error
        what = f"the body is not JSON: {reason}"
        raise BadJsonError(what, row=0) from None
