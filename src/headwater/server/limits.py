"""What one client may ask of the node, so that no client can make it fall over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """Sizes in bytes; a request beyond one of them is refused before memory grows.

    Attributes:
        body: One request's JSON or NDJSON.
        frames: One append of typed rows, as our own client sends them.
        held: The bodies of all requests that are being worked on, together; beyond it: 429.
        line: One JSON event.
        headers: A request's line and headers; beyond it: 431.
        connections: Clients at the same time; beyond it: 503.
        partitions: Of one topic.
        header_time: How long a client may take to send its headers.
        silence: How long a client may pause inside a body.
        body_rate: Bytes per second a body must come in with, on average, once the first `silence` is over.
        idle: How long a connection may lie still between requests; longer than our own clients keep theirs.
        stall: A client that takes nothing of its answer for this long is cut off; it resumes where it was.
        heartbeat: A live stream without events sends a comment this often.
        longest_wait: The longest a request may ask to wait for events.
        session: A group member of which nothing was heard for this long loses its partitions.
        grace: The same, once its connection was lost.
    """

    body: int = 16 << 20
    frames: int = 64 << 20
    held: int = 256 << 20
    line: int = 1 << 20
    headers: int = 32 << 10
    connections: int = 1000
    partitions: int = 1024
    header_time: timedelta = timedelta(seconds=10)
    silence: timedelta = timedelta(seconds=30)
    body_rate: int = 1024
    idle: timedelta = timedelta(seconds=60)
    stall: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=15)
    longest_wait: timedelta = timedelta(seconds=30)
    session: timedelta = timedelta(seconds=30)
    grace: timedelta = timedelta(seconds=2)
