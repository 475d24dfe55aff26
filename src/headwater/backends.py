"""Which log, store, broker and views a folder or a URL means.

This is the only module that chooses an implementation. It imports each one inside the function that opens it, so that a
process loads only what it uses: a Spark worker reads the log and needs neither SQLite nor RabbitMQ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.errors import BadSettingError
from headwater.profiles import Profile, redact

if TYPE_CHECKING:
    from headwater.events import Clock
    from headwater.log.inspection import LogInspector
    from headwater.log.protocol import TimedLog
    from headwater.queues.protocol import Broker
    from headwater.queues.request_reply.dispatcher import Answer
    from headwater.queues.request_reply.protocol import Requester, Responder
    from headwater.store.protocol import Store, StoreInspection
    from headwater.store.sql_store import SqlStore
    from headwater.store.views.store_views import StoreViews
    from headwater.store.views.view_reader import ViewReader

__all__ = [
    "broker_url",
    "inspect_log",
    "inspect_store",
    "open_broker",
    "open_log",
    "open_requester",
    "open_responder",
    "open_store",
    "open_view_reader",
    "open_views",
    "ping_log",
    "ping_store",
]

_INSPECT_TIMEOUT: Final = timedelta(seconds=5)  # for brokers to answer an inspection
_PING_TIMEOUT: Final = timedelta(seconds=2)


# -- log -----------------------------------------------------------------------------------------------------------


def open_log(
    url: str,
    clock: Clock | None = None,
    *,
    data: Path | None = None,
    index_time: bool = False,
    cache: Path | None = None,
) -> TimedLog:
    """Open the log of a folder or a URL, for pipelines.

    Args:
        url: A folder, or `kafka://…`.
        clock: The source of the current time; that of the data folder, if left out.
        data: The data folder of a log on Kafka, for its clock; without it, the wall clock counts.
        index_time: Whether this process writes the event-time index of the Kafka topics it reads. Only the process
            that runs the pipelines does.
        cache: Folder for batches read from Kafka, shared with the Spark workers of this machine.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> open_log(folder).url == folder
        True
    """
    if url.startswith("kafka://"):
        from headwater.log.kafka import KafkaLog

        if clock is None and data is not None:
            from headwater.log.storage.anchored_clock import folder_clock

            clock = folder_clock(data)
        return KafkaLog(url, clock=clock, index_time=index_time, cache=cache)
    from headwater.log.event_log import EventLog

    return EventLog(Path(url), clock=clock)


def inspect_log(url: str) -> LogInspector:
    """Inspect the log of a folder or a URL. Creates and changes nothing.

    Example:
        >>> inspect_log("nowhere").inspect_topic("orders").partitions
        0
    """
    if url.startswith("kafka://"):
        from headwater.log.kafka.kafka_log import KafkaInspector

        return KafkaInspector(url, patience=_INSPECT_TIMEOUT)
    from headwater.log.inspection import FolderInspector

    return FolderInspector(Path(url))


def ping_log(url: str) -> None:
    """Return if the brokers of a URL answer; a folder always does.

    Raises:
        UnreachableError: They do not answer within two seconds.
        BadCredentialsError: They refuse our credentials.
    """
    if url.startswith("kafka://"):
        from headwater.log.kafka import KafkaLog

        with KafkaLog(url, patience=_PING_TIMEOUT) as log:
            log.kafka_topics.partition_counts()


# -- store ---------------------------------------------------------------------------------------------------------


def open_store(
    url: str | None, data: Path, clock: Clock | None = None, before_commit: Callable[[], None] | None = None
) -> SqlStore:
    """Open the store of a URL; without one, the store of the data folder.

    Args:
        url: `postgresql://…`, or None.
        data: The data folder.
        clock: The source of the current time.
        before_commit: Called when a batch is written and not yet committed.

    Example:
        >>> import tempfile
        >>> store = open_store(None, Path(tempfile.mkdtemp()))
        >>> open_view_reader(store).names()
        []
        >>> store.close()
    """
    from headwater.store.sql_store import SqlStore

    if url is None:
        from headwater.store.sqlite import SqliteDialect

        return SqlStore(SqliteDialect(data / "store"), clock, before_commit)
    from headwater.store.postgres import PostgresDialect  # needs the extra postgres

    return SqlStore(PostgresDialect(url), clock, before_commit)


def open_view_reader(store: Store) -> ViewReader:
    """Open a reader for the views of a store."""
    from headwater.store.sql_store import SqlStore
    from headwater.store.views.view_reader import ViewReader

    assert isinstance(store, SqlStore)
    return ViewReader(store)


def open_views(log: TimedLog, url: str | None = None, data: Path | None = None) -> StoreViews:
    """Open the views of a log: those in the store of a URL, or in the data folder. The store is opened on first use.

    Args:
        log: The log whose events the views are made of.
        url: `postgresql://…`, or None for the data folder.
        data: The data folder; the log's folder if left out.

    Example:
        >>> import tempfile
        >>> with open_log(tempfile.mkdtemp()) as log:
        ...     open_views(log).views()
        []
    """
    from headwater.store.views.store_views import StoreViews

    folder = data or Path(log.url)

    def open_existing() -> SqlStore | None:
        if url is None and not (folder / "store" / "store.db").exists():
            return None
        return open_store(url, folder, log.clock)

    return StoreViews(log, open_existing, str(folder))


def inspect_store(url: str | None, data: Path) -> StoreInspection:
    """Inspect the store of a URL, or of the data folder. Creates and changes nothing.

    Example:
        >>> inspect_store(None, Path("nowhere")).format
        0
    """
    if url is None:
        from headwater.store.sqlite.migrations import inspect_sqlite

        return inspect_sqlite(data / "store")
    from headwater.store.postgres.migrations import inspect_postgres

    return inspect_postgres(url)


def ping_store(url: str) -> None:
    """Return if the database of a URL answers and accepts our credentials.

    Raises:
        UnreachableError: It does not answer.
        BadCredentialsError: It refuses our credentials.
    """
    from headwater.sql.postgres_pool import PostgresPool

    with contextlib.closing(PostgresPool(url)) as pool:
        pool.open().connection.close()


# -- queues, requests and replies ----------------------------------------------------------------------------------


def broker_url(profile: Profile, data: str | Path) -> str:
    """Return the URL of the profile's broker, or the data folder if it names none.

    Example:
        >>> broker_url(Profile("embedded"), "shop-data")
        'shop-data'
    """
    return profile.queues.resolve() if profile.queues else str(data)


def open_broker(url: str, clock: Clock | None = None) -> Broker:
    """Open the broker of a data folder or a URL.

    Args:
        url: The data folder, or `amqp://…`.
        clock: The source of the current time; RabbitMQ has its own.

    Raises:
        BadSettingError: It is neither.

    Example:
        >>> import tempfile
        >>> broker = open_broker(tempfile.mkdtemp())
        >>> broker.queues()
        []
        >>> broker.close()
    """
    if _is_rabbitmq(url):
        from headwater.queues.rabbitmq import RabbitBroker

        return RabbitBroker(url)
    from headwater.queues.embedded import EmbeddedBroker

    return EmbeddedBroker(Path(url) / "queues", clock)


def open_requester(url: str) -> Requester:
    """Open the requester that sends requests through a data folder or a URL.

    Args:
        url: The data folder, or `amqp://…`.

    Raises:
        BadSettingError: It is neither.

    Example:
        >>> import tempfile
        >>> requester = open_requester(tempfile.mkdtemp())
        >>> requester.close()
    """
    if _is_rabbitmq(url):
        from headwater.queues.rabbitmq.requester import RabbitRequester

        return RabbitRequester(url)
    from headwater.queues.request_reply.sockets import SocketRequester

    return SocketRequester(Path(url))


def open_responder(url: str, answers: Sequence[Answer]) -> Responder:
    """Answer the requests that come through a data folder or a URL.

    Args:
        url: The data folder, or `amqp://…`.
        answers: The functions that answer, with their subjects.

    Raises:
        BadSettingError: It is neither.
        UnreachableError: The broker does not answer.
    """
    if _is_rabbitmq(url):
        from headwater.queues.rabbitmq.responder import RabbitResponder

        return RabbitResponder(url, answers)
    from headwater.queues.request_reply.sockets import SocketResponder

    return SocketResponder(Path(url), answers)


def _is_rabbitmq(url: str) -> bool:
    if url.startswith(("amqp://", "amqps://")):
        return True
    if "://" in url:
        raise BadSettingError(
            f"there is no broker for {redact(url)!r}",
            detail="supported: a folder, or amqp://host:port",
            fix='hw.connect(".headwater")',
        )
    return False
