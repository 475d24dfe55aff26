"""What goes between who asks and who answers: one JSON document per line, over a socket of this machine."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Any, Final

import msgspec

from headwater.errors import TooLargeError

__all__ = ["Ask", "Line", "Reply", "hung_up"]

_LARGEST: Final = 16 << 20
_PIECE: Final = 1 << 16
_SHORTEST: Final = 0.001  # seconds; 0 would mean not to wait at all


class Ask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question: its number on this connection, its subject and value, and the seconds that are left for it."""

    number: int
    subject: str
    value: msgspec.Raw
    left: float


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a question, or the problem that kept it from being answered."""

    number: int
    value: msgspec.Raw = msgspec.Raw(b"null")
    problem: dict[str, Any] | None = None


class Line:
    """Documents over one connection; one thread reads, one thread writes."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = bytearray()

    def send(self, document: msgspec.Struct) -> None:
        """Write one document.

        Raises:
            TooLargeError: It is over the limit; nothing was sent.
            OSError: The other side is gone.
        """
        data = msgspec.json.encode(document)
        if len(data) > _LARGEST:
            raise TooLargeError(
                f"{len(data)} bytes in a question or answer, more than {_LARGEST}", limit=_LARGEST
            )
        self.connection.sendall(data + b"\n")

    def receive(self, deadline: float | None = None) -> bytes | None:
        """The next document; None when the other side is gone.

        Args:
            deadline: How long to wait for it, on the monotonic clock; None waits for ever.

        Raises:
            TimeoutError: It did not come in time.
        """
        while (end := self._rest.find(b"\n")) < 0:
            self.limit(deadline)
            piece = self.connection.recv(_PIECE)
            if not piece or len(self._rest) > _LARGEST + _PIECE:
                return None
            self._rest += piece
        document = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return document

    def limit(self, deadline: float | None) -> None:
        """Let what follows take until the deadline at most."""
        left = None if deadline is None else max(_SHORTEST, deadline - time.monotonic())
        self.connection.settimeout(left)

    def close(self) -> None:
        """End the connection, also under a reader in another thread."""
        with contextlib.suppress(OSError):  # the other side may have been faster
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def hung_up(connection: socket.socket) -> bool:
    """Whether the other side has ended the connection and left nothing to read.

    Example:
        >>> one, other = socket.socketpair()
        >>> hung_up(one)
        False
        >>> other.close(); hung_up(one)
        True
        >>> one.close()
    """
    readable = select.poll()
    try:
        readable.register(connection, select.POLLIN)
        return bool(readable.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):  # the number of a connection that is closed is no number
        return True
