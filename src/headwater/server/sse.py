"""Server-sent events: one loop for all live streams, over sources that know what to send.

A source is pulled: it reads the next events only after the previous ones were sent. A slow client therefore
stays behind in the log and costs no memory.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final, Protocol

from fastapi.responses import StreamingResponse

from headwater.errors import HeadwaterError
from headwater.server.limits import Limits
from headwater.server.notifier import Notifier
from headwater.server.problems import problem_bytes

__all__ = ["EVENT_STREAM", "EventSource", "EventStream", "format_event"]

EVENT_STREAM: Final = "text/event-stream"


class EventSource(Protocol):
    """Where the events of one live stream come from."""

    async def next(self, timeout: float) -> list[bytes]:
        """Returns events that are due, as formatted text.

        Waits up to `timeout` seconds for the first one. It may return an empty list earlier; the stream then calls it
        again.

        Raises:
            HeadwaterError: The stream cannot go on. The client gets it as the last event.
        """


class EventStream:
    """Sends the events of a source until the client leaves, the source fails or the node stops.

    Args:
        notifier: Tells when the node stops.
        limits: Its `heartbeat` is the longest time without a byte.
    """

    def __init__(self, notifier: Notifier, limits: Limits) -> None:
        self._notifier = notifier
        self._heartbeat = limits.heartbeat.total_seconds()

    def response(self, source: EventSource) -> StreamingResponse:
        """Returns the endless response that sends the events of a source."""
        return StreamingResponse(self._send(source), media_type=EVENT_STREAM)

    async def _send(self, source: EventSource) -> AsyncIterator[bytes]:
        # Browsers reconnect after one second. The comment makes them see an open stream at once.
        yield b"retry: 1000\n: following\n\n"
        sent_at = time.monotonic()
        try:
            while not self._notifier.stopping:
                chunks = await source.next(max(0.0, sent_at + self._heartbeat - time.monotonic()))
                if not chunks and time.monotonic() - sent_at >= self._heartbeat:
                    chunks = [b": heartbeat\n\n"]
                for chunk in chunks:
                    yield chunk
                    sent_at = time.monotonic()
        except HeadwaterError as error:  # the status line is sent already, so the error becomes an event
            yield format_event(problem_bytes(error), event="problem")


def format_event(data: bytes, *, event: str = "", id: str = "") -> bytes:
    r"""Returns one event as text; `data` is a single line.

    Example:
        >>> format_event(b"{}", event="rows", id="totals.changes@0:7")
        b'event: rows\nid: totals.changes@0:7\ndata: {}\n\n'
    """
    lines = [f"{name}: {value}\n".encode() for name, value in (("event", event), ("id", id)) if value]
    return b"".join([*lines, b"data: ", data, b"\n\n"])
