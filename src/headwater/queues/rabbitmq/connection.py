"""One connection to RabbitMQ: reconnects on demand and translates errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ProbableAuthenticationError,
)

from headwater.backoff import Backoff
from headwater.errors import BadCredentialsError, BadSettingError, RefusedError, UnreachableError
from headwater.profiles import redact

__all__ = ["LOST_ERRORS", "RabbitConnection", "parse_addresses"]

logger = logging.getLogger("headwater.rabbitmq")
# The driver logs each lost connection with a traceback; our errors report what matters. Add a handler to see it.
for _name in ("aio_pika", "aiormq"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False
T = TypeVar("T")
LOST_ERRORS: Final = (ConnectionError, OSError, RuntimeError, asyncio.TimeoutError, AMQPError)
"""The errors of the driver when a connection or channel is lost."""
_AUTH_ERRORS: Final = (AuthenticationError, ProbableAuthenticationError)
_RETRY_PAUSE: Final = 0.1  # seconds between two attempts of `run_with_retry`
# Jitter spreads the reconnects of many clients after a restart of RabbitMQ.
_BACKOFF: Final = Backoff(timedelta(milliseconds=15), timedelta(milliseconds=750), jitter=1 / 3)
_CONNECT_TIMEOUT: Final = 10.0  # seconds for one attempt to connect
_HEARTBEAT: Final = 10  # seconds; a silently broken connection is noticed after about two heartbeats


def parse_addresses(url: str) -> list[str]:
    """Returns one address per broker of `amqp://[user:password@]host[:port][,host…][/vhost][?setting=value&…]`.

    Example:
        >>> parse_addresses("amqp://ada:pw@a:5672,b/shop")
        ['amqp://ada:pw@a:5672/shop?heartbeat=10', 'amqp://ada:pw@b/shop?heartbeat=10']

    Raises:
        BadSettingError: The URL has another form.
    """
    parts = urlsplit(url)
    user, mark, hosts = parts.netloc.rpartition("@")
    if parts.scheme not in ("amqp", "amqps") or not all(host.strip() for host in hosts.split(",")):
        raise BadSettingError(f"cannot connect to {redact(url)!r}", fix="amqp://user:${PASSWORD}@host:5672")
    query = parts.query if "heartbeat=" in parts.query else f"{parts.query}&heartbeat={_HEARTBEAT}".lstrip("&")
    return [urlunsplit((parts.scheme, f"{user}{mark}{host}", parts.path, query, "")) for host in hosts.split(",")]


class RabbitConnection:
    """A connection for one purpose; all calls come from one event loop. It connects on first use.

    Args:
        url: The brokers; the first that answers is used.
        purpose: The connection's name in RabbitMQ's tools.
        patience: How long to retry while no broker answers.
    """

    def __init__(self, url: str, purpose: str, patience: timedelta) -> None:
        self._addresses = parse_addresses(url)
        self._purpose = purpose
        self.patience = patience.total_seconds()
        self.redacted_url = redact(url)
        self._lock = asyncio.Lock()  # held while connecting, so that concurrent callers share one new connection
        self._connection: AbstractConnection | None = None

    async def open_channel(self, *, patience: float | None = None) -> AbstractChannel:
        """Returns a new channel with publisher confirms; reconnects if the connection is lost.

        Raises:
            UnreachableError: No broker answered in time.
            BadCredentialsError: The broker refused the user or the password.
        """
        now = asyncio.get_running_loop().time
        end = now() + (self.patience if patience is None else patience)
        attempt = 0
        while True:
            attempt += 1
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    connection = await self._connect()
                    return await connection.channel(publisher_confirms=True, on_return_raises=False)
            except _AUTH_ERRORS as error:
                what = f"RabbitMQ at {self.redacted_url} refused the login"
                detail = str(error) or "the user or the password is wrong"
                raise BadCredentialsError(what, detail=detail, fix="check the user and the password") from None
            except LOST_ERRORS as error:  # includes the timeout of this attempt
                delay = _BACKOFF.delay(attempt).total_seconds()
                if now() + delay > end:
                    raise self._unreachable(error) from None
                await asyncio.sleep(delay)

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[AbstractChannel]:
        """Open a channel for a block; messages that the block has not acknowledged are requeued at its end."""
        channel = await self.open_channel()
        try:
            yield channel
        finally:
            if not channel.is_closed:
                await channel.close()

    async def run_with_retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `work`, which must be idempotent: it runs again when the connection was lost.

        Raises:
            UnreachableError: No broker answered in time.
            RefusedError: A queue or exchange is missing, or exists with other arguments.
        """
        end = asyncio.get_running_loop().time() + self.patience
        while True:
            try:
                return await work()
            except (ChannelNotFoundEntity, ChannelPreconditionFailed) as error:
                what = f"RabbitMQ at {self.redacted_url} refused the operation"
                raise RefusedError(what, detail=str(error), fix="declare the queue again") from None
            except LOST_ERRORS as error:
                if asyncio.get_running_loop().time() > end:
                    raise self._unreachable(error) from None
                await asyncio.sleep(_RETRY_PAUSE)

    async def is_blocked(self) -> bool:
        """Whether RabbitMQ has stopped reading from this connection because it is low on memory or disk."""
        transport = None if self._connection is None else self._connection.transport
        if transport is None:
            return False
        try:
            await asyncio.wait_for(transport.ready(), 0.05)
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        """Close the connection; RabbitMQ requeues the unacknowledged messages of its channels."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*LOST_ERRORS):
                await asyncio.wait_for(connection.close(), 5.0)

    async def _connect(self) -> AbstractConnection:
        async with self._lock:
            if self._connection is not None and _is_open(self._connection):
                return self._connection
            await self.close()
            error: Exception = ConnectionError("no address")
            for address in self._addresses:
                try:
                    name = f"headwater {self._purpose}"
                    self._connection = await aio_pika.connect(address, client_properties={"connection_name": name})
                    return self._connection
                except _AUTH_ERRORS:
                    raise
                except LOST_ERRORS as failed:
                    error = failed
            raise error

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"no RabbitMQ answers at {self.redacted_url}",
            detail=str(error) or type(error).__name__,
            fix="check that it runs, and the address",
        )


def _is_open(connection: AbstractConnection) -> bool:
    # A connection that the driver calls open may have lost its socket.
    transport = connection.transport
    return not connection.is_closed and transport is not None and not transport.connection.is_closed
