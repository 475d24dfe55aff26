"""A logical replication stream: commands, packets, keepalives and status updates, without blocking."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

import psycopg
from psycopg import pq

from headwater.capture.postgres.connection import Server, format_lsn, quote_text
from headwater.capture.postgres.pgoutput import POSTGRES_EPOCH
from headwater.errors import HeadwaterError
from headwater.sql.identifiers import quote

__all__ = ["KEEPALIVE", "ReplicationStream", "decode_keepalive"]

KEEPALIVE: Final = 107
"""The letter k, the first byte of a keepalive; changes begin with w."""
_KEEPALIVE: Final = Struct(">QqB")
_STATUS: Final = Struct(">cQQQqB")


class ReplicationStream:
    """A replication connection. `start` begins the stream; then `packets` and `wait` in turns.

    Args:
        server: Where to connect.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = server.connect(replication=True)
        self._pgconn = self._connection.pgconn
        self._poller = select.poll()
        self._poller.register(self._pgconn.socket, select.POLLIN)
        self._flushed = 0

    def identify(self) -> tuple[str, int]:
        """Returns the system id of the server and its timeline."""
        row = self._command("IDENTIFY_SYSTEM")
        return row[0], int(row[1])

    def create_slot(self, slot: str) -> str:
        """Create a logical slot; returns its consistent point. Waits for transactions that are running."""
        return str(self._command(f"CREATE_REPLICATION_SLOT {quote(slot)} LOGICAL pgoutput NOEXPORT_SNAPSHOT")[1])

    def start(self, slot: str, publication: str, position: int) -> None:
        """Start the stream at a position.

        Raises:
            LockedError: Another process reads the slot; `data` has its `pid`.
            SlotLostError: The slot does not exist, or the server has removed its log.
        """
        options = f"proto_version '1', publication_names {quote_text(quote(publication)).strip()}"
        command = f"START_REPLICATION SLOT {quote(slot)} LOGICAL {format_lsn(position)} ({options})"
        result = self._pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._server.result_error(self._connection, result, "the replication stream does not start")
        self._pgconn.nonblocking = 1
        self._flushed = position

    def packets(self) -> Iterator[memoryview | bytes]:
        """Yields the packets that have arrived; ends when the socket is empty."""
        get = self._pgconn.get_copy_data
        while True:
            try:
                size, packet = get(1)
            except psycopg.Error as error:
                raise self._ended(error) from None
            if size > 0:
                yield packet
            elif size == 0:
                if not self._receive():
                    return
            else:
                raise self._ended(None)

    def wait(self, timeout: float) -> bool:
        """Wait until bytes arrive; returns whether any have."""
        return bool(self._poller.poll(max(0, timeout) * 1000))

    def send_status(self, flushed: int, *, reply: bool = False) -> None:
        """Tell the server up to where changes are on disk; with `reply`, ask for a keepalive."""
        self._flushed = max(self._flushed, flushed)
        now = int(time.time() * 1e6) - POSTGRES_EPOCH
        message = _STATUS.pack(b"r", self._flushed, self._flushed, self._flushed, now, reply)
        try:
            self._pgconn.put_copy_data(message)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise self._ended(error) from None

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def _receive(self) -> bool:
        """Take what the socket has; returns whether there was anything."""
        if not self._poller.poll(0):
            return False
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise self._ended(error) from None
        # A closed socket is always readable; libpq notes its end while it parses.
        return True

    def _ended(self, error: psycopg.Error | None) -> HeadwaterError:
        """Returns why the stream has ended: the server's last message, or the loss of the connection."""
        result = None
        with contextlib.suppress(psycopg.Error):
            result = self._pgconn.get_result()
        if result is not None and not result.error_message:
            with contextlib.suppress(psycopg.Error):
                result = self._pgconn.get_result()
        if result is not None and result.error_message:
            return self._server.result_error(self._connection, result, "the replication stream ended with an error")
        if error is not None:
            return self._server.translate(error, "the replication stream ended with an error")
        return self._server.result_error(self._connection, None, "the replication stream has ended")

    def _command(self, command: str) -> list[Any]:
        result = self._pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise self._server.result_error(
                self._connection, result, f"the command {command.split(maxsplit=1)[0]} failed"
            )
        values = [result.get_value(0, column) for column in range(result.nfields)]
        return [None if value is None else value.decode() for value in values]


def decode_keepalive(packet: memoryview | bytes) -> tuple[int, bool]:
    """Returns the position that the server has reached, and whether it wants a reply at once."""
    position, _, reply = _KEEPALIVE.unpack_from(packet, 1)
    return position, bool(reply)
