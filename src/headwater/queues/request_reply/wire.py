"""Wire format of request/reply: JSON documents, one per line over a local socket."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Any, Final

import msgspec

from headwater.errors import NoAnswerError, TooLargeError

__all__ = ["LineConnection", "Reply", "Request", "decline", "encode_reply", "encode_request", "is_disconnected"]

_MAX_DOCUMENT: Final = 16 << 20  # bytes
_CHUNK_SIZE: Final = 1 << 16  # bytes
_MIN_TIMEOUT: Final = 0.001  # seconds; 0 would make the socket non-blocking


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request: its number on this connection, subject, value, and remaining seconds."""

    number: int
    subject: str
    value: msgspec.Raw
    left: float


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request, or the error that prevented it."""

    number: int
    value: msgspec.Raw = msgspec.Raw(b"null")
    problem: dict[str, Any] | None = None


def encode_request(request: Request) -> bytes:
    """Returns a request as JSON.

    Raises:
        TooLargeError: It is larger than 16 MiB.
    """
    return _check_size(msgspec.json.encode(request))


def encode_reply(reply: Reply) -> bytes:
    """Returns a reply as JSON; if it is larger than 16 MiB, the reply with that error instead.

    Example:
        >>> encode_reply(Reply(1, msgspec.Raw(b"42")))
        b'{"number":1,"value":42}'
    """
    try:
        return _check_size(msgspec.json.encode(reply))
    except TooLargeError as error:
        return msgspec.json.encode(Reply(reply.number, problem=error.problem()))


def _check_size(document: bytes) -> bytes:
    if len(document) > _MAX_DOCUMENT:
        what = f"a request or reply of {len(document):,} bytes is larger than {_MAX_DOCUMENT:,}"
        raise TooLargeError(what, limit=_MAX_DOCUMENT)
    return document


def decline(request: Request) -> Reply:
    """Returns the reply of a stopping responder to a request that it has not started; the requester may ask another."""
    error = NoAnswerError(f'the responder of "{request.subject}" is stopping', subject=request.subject, sent=False)
    return Reply(request.number, problem=error.problem())


class LineConnection:
    """Documents over one connection; one thread reads, one thread writes."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = bytearray()

    def send(self, document: bytes) -> None:
        """Write one document.

        Raises:
            OSError: The peer has closed the connection.
        """
        self.connection.sendall(document + b"\n")

    def receive(self, deadline: float | None = None) -> bytes | None:
        """Returns the next document; None when the peer has closed the connection.

        Args:
            deadline: When to give up, on the monotonic clock; None waits without a limit.

        Raises:
            TimeoutError: The deadline has passed.
        """
        while (end := self._buffer.find(b"\n")) < 0:
            self.set_deadline(deadline)
            chunk = self.connection.recv(_CHUNK_SIZE)
            if not chunk or len(self._buffer) > _MAX_DOCUMENT + _CHUNK_SIZE:
                return None
            self._buffer += chunk
        document = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return document

    def set_deadline(self, deadline: float | None) -> None:
        """Limit the following socket operations to the deadline."""
        left = None if deadline is None else max(_MIN_TIMEOUT, deadline - time.monotonic())
        self.connection.settimeout(left)

    def close(self) -> None:
        """End the connection, also under a reader in another thread."""
        with contextlib.suppress(OSError):  # closed by the peer
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def is_disconnected(connection: socket.socket) -> bool:
    """Whether the peer has closed the connection and nothing is left to read.

    Example:
        >>> one, other = socket.socketpair()
        >>> is_disconnected(one)
        False
        >>> other.close(); is_disconnected(one)
        True
        >>> one.close()
    """
    readable = select.poll()
    try:
        readable.register(connection, select.POLLIN)
        return bool(readable.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):  # a closed socket has no descriptor
        return True
