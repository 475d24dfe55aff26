"""One connection to RabbitMQ: reconnects, and translates errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

from headwater.backoff import Backoff
from headwater.errors import BadCredentialsError, BadSettingError, MissingPackageError, RefusedError, UnreachableError
from headwater.profiles import redact

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection

__all__ = ["CONNECTION_ERRORS", "RabbitConnection", "driver", "parse_addresses"]

logger = logging.getLogger("headwater.rabbitmq")
# What the driver says of each connection; what matters of it is said by our errors. Add a handler to see it.
for _name in ("aio_pika", "aiormq"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False
T = TypeVar("T")
_RETRY_PAUSE: Final = 0.1  # seconds before something is asked again
# Jitter spreads the clients of a RabbitMQ that comes back.
_BACKOFF: Final = Backoff(timedelta(milliseconds=15), timedelta(milliseconds=750), jitter=1 / 3)
_CONNECT_TIMEOUT: Final = 10.0  # seconds that one try to connect may take
_HEARTBEAT: Final = 10  # seconds; a connection that was cut off without a word is noticed after about two of them
CONNECTION_ERRORS: Final = (ConnectionError, OSError, RuntimeError, asyncio.TimeoutError)
"""What the driver raises when a connection or channel is not there any more; its other errors are `AMQPError`."""


def driver() -> Any:
    """The package aio_pika, imported when it is first needed.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        import aio_pika
    except ImportError as error:
        raise MissingPackageError.of("RabbitMQ", "aio-pika", "rabbitmq", error) from None
    return aio_pika


def parse_addresses(url: str) -> list[str]:
    """One address for each broker of a URL, `amqp://[user:password@]host[:port][,host…][/vhost][?setting=value&…]`.

    Example:
        >>> parse_addresses("amqp://ada:pw@a:5672,b/shop")
        ['amqp://ada:pw@a:5672/shop?heartbeat=10', 'amqp://ada:pw@b/shop?heartbeat=10']

    Raises:
        BadSettingError: It is no such URL.
    """
    parts = urlsplit(url)
    user, mark, hosts = parts.netloc.rpartition("@")
    if parts.scheme not in ("amqp", "amqps") or not all(host.strip() for host in hosts.split(",")):
        what = f"cannot connect to {redact(url)!r}"
        raise BadSettingError(what, fix="amqp://user:${PASSWORD}@host:5672")
    query = parts.query if "heartbeat=" in parts.query else f"{parts.query}&heartbeat={_HEARTBEAT}".lstrip("&")
    return [urlunsplit((parts.scheme, f"{user}{mark}{host}", parts.path, query, "")) for host in hosts.split(",")]


class RabbitConnection:
    """A connection for one purpose; all calls come from one event loop.

    Args:
        url: Where the brokers are; the first that answers is taken.
        purpose: Shown by RabbitMQ's own tools.
        patience: How long to go on while none of them answers.
    """

    def __init__(self, url: str, purpose: str, patience: timedelta) -> None:
        self._addresses = parse_addresses(url)
        self._purpose = purpose
        self.patience = patience.total_seconds()
        self.redacted_url = redact(url)
        self._driver = driver()
        self._lock = asyncio.Lock()
        self._connection: AbstractConnection | None = None

    async def open_channel(self, *, patience: float | None = None) -> AbstractChannel:
        """Returns a new channel, with confirms, on the connection there is or a new one.

        Raises:
            UnreachableError: No broker answered in time.
            BadCredentialsError: The broker does not let us in.
        """
        end = asyncio.get_running_loop().time() + (self.patience if patience is None else patience)
        attempt = 0
        while True:
            attempt += 1
            delay = _BACKOFF.delay(attempt).total_seconds()
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    connection = await self._connect()
                    return await connection.channel(publisher_confirms=True, on_return_raises=False)
            except self._auth_errors() as error:
                detail = str(error) or "the user or the password is wrong"
                what = f"RabbitMQ at {self.redacted_url} does not let us in"
                raise BadCredentialsError(what, detail=detail, fix="look at the user and the password") from None
            except (*CONNECTION_ERRORS, self._driver.exceptions.AMQPError) as error:
                if asyncio.get_running_loop().time() + delay > end:
                    raise self._unreachable(error) from None
                await asyncio.sleep(delay)

    async def run_with_retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives; it is done again when the connection was lost meanwhile, so twice must be as good as once.

        Raises:
            UnreachableError: No broker answered in time.
            RefusedError: RabbitMQ does not allow it, or does not have what it is about.
        """
        end = asyncio.get_running_loop().time() + self.patience
        known = self._driver.exceptions
        while True:
            try:
                return await work()
            except (known.ChannelNotFoundEntity, known.ChannelPreconditionFailed) as error:
                what = f"RabbitMQ at {self.redacted_url} refuses"
                raise RefusedError(what, detail=str(error), fix="declare the queue again") from None
            except (*CONNECTION_ERRORS, known.AMQPError) as error:
                if asyncio.get_running_loop().time() > end:
                    raise self._unreachable(error) from None
                await asyncio.sleep(_RETRY_PAUSE)

    async def is_blocked(self) -> bool:
        """Whether RabbitMQ takes nothing over this connection now, because it is low on memory or disk."""
        transport = None if self._connection is None else self._connection.transport
        if transport is None:
            return False
        try:
            await asyncio.wait_for(transport.ready(), 0.05)
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        """Close the connection; what its channels have not settled goes back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*CONNECTION_ERRORS, self._driver.exceptions.AMQPError):  # it may be gone
                await asyncio.wait_for(connection.close(), 5.0)

    async def _connect(self) -> AbstractConnection:
        async with self._lock:
            if self._connection is not None and _is_open(self._connection):
                return self._connection
            await self.close()
            error: Exception | None = None
            for address in self._addresses:
                try:
                    self._connection = await self._driver.connect(
                        address, client_properties={"connection_name": f"headwater {self._purpose}"}
                    )
                    return self._connection
                except (*CONNECTION_ERRORS, self._driver.exceptions.AMQPError) as failed:
                    if isinstance(failed, self._auth_errors()):
                        raise
                    error = failed
            raise error or ConnectionError("no address")

    def _auth_errors(self) -> tuple[type[Exception], ...]:
        known = self._driver.exceptions
        return (known.AuthenticationError, known.ProbableAuthenticationError)

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"no RabbitMQ answers at {self.redacted_url}",
            detail=str(error) or type(error).__name__,
            fix="look whether it runs, and at the address",
        )


def _is_open(connection: AbstractConnection) -> bool:
    """Whether it can be used; what the driver calls open may have lost its socket."""
    transport = connection.transport
    return not connection.is_closed and transport is not None and not transport.connection.is_closed
