"""The brokers of one Kafka: their address, the driver's clients, patience, and errors in our own words."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from headwater.errors import (
    BadCredentialsError,
    BadSettingError,
    FencedError,
    HeadwaterError,
    MissingPackageError,
    RefusedError,
    TooLargeError,
    UnknownTopicError,
    UnreachableError,
)

__all__ = ["Brokers", "KafkaAddress", "driver", "let_go", "partition_at", "with_pages"]

T = TypeVar("T")
logger = logging.getLogger("headwater.kafka")
# What the driver says of each connection; what matters of it is said by our errors. Add a handler to see it.
_driver_logger = logging.getLogger("headwater.kafka.driver")
_driver_logger.addHandler(logging.NullHandler())
_driver_logger.propagate = False
_STEP: Final = 3.0  # seconds one try may take before we say that we wait
_PAGES: Final = "headwater.pages"
_OURS: Final = {"replication.factor", "min.insync.replicas"}
_SILENT: Final = (  # codes after which asking again may help
    "_TRANSPORT",
    "_TIMED_OUT",
    "_MSG_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_WAIT_COORD",
    "_NOENT",  # a partition without a leader, as after a restart
    "_RETRY",
    "_STATE",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
    "REQUEST_TIMED_OUT",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "CONCURRENT_TRANSACTIONS",
    "NETWORK_EXCEPTION",
    "NOT_CONTROLLER",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "KAFKA_STORAGE_ERROR",
)
_SECRET: Final = ("password", "secret", "key.pem", "private", "token", "oauth")


def driver() -> Any:
    """The package confluent_kafka, imported when it is first needed.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise MissingPackageError.of("Kafka", "confluent-kafka", "kafka", error) from None
    return confluent_kafka


@dataclass(frozen=True)
class KafkaAddress:
    """Where the brokers are and how to speak to them.

    `topic_settings` are what new topics get: `replication.factor` and `min.insync.replicas` of the URL. Everything else
    behind the question mark is a setting of librdkafka, such as `security.protocol` or `ssl.ca.location`. `pages` is
    for processes that this one starts: see time/pages.py.
    """

    servers: str
    settings: dict[str, str] = field(default_factory=dict, repr=False)
    topic_settings: dict[str, str] = field(default_factory=dict)
    pages: str = field(default="", repr=False)

    @classmethod
    def of(cls, url: str) -> KafkaAddress:
        """From `kafka://[user:password@]host:port[,host:port][?setting=value&…]`.

        Example:
            >>> address = KafkaAddress.of("kafka://ada:pw@a:9092,b:9092?replication.factor=3&client.id=till")
            >>> address
            KafkaAddress(servers='a:9092,b:9092', topic_settings={'replication.factor': '3'})
            >>> str(address), address.settings["client.id"], address.settings["security.protocol"]
            ('kafka://a:9092,b:9092', 'till', 'SASL_SSL')
        """
        parts = urlsplit(url)
        user, _, servers = parts.netloc.rpartition("@")
        if parts.scheme != "kafka" or not servers or any(not host.strip() for host in servers.split(",")):
            shown = f"{parts.scheme}://{servers}"
            raise BadSettingError(f"cannot connect to {shown!r}", fix='hw.connect("kafka://127.0.0.1:9092")')
        given = dict(parse_qsl(parts.query))
        pages = given.pop(_PAGES, "")
        settings = {name: value for name, value in given.items() if name not in _OURS}
        if user:
            name, _, password = user.partition(":")
            login = {"sasl.username": unquote(name), "sasl.password": unquote(password)}
            settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"} | settings | login
        topics = {name: value for name, value in given.items() if name in _OURS}
        return cls(servers, settings, topics, pages)

    def __str__(self) -> str:
        return f"kafka://{self.servers}"

    def without_secrets(self, text: str) -> str:
        """A text of the driver's, with our secrets taken out."""
        for name, value in self.settings.items():
            if value and any(word in name for word in _SECRET):
                text = text.replace(value, "…")
        return text


class Brokers:
    """Makes clients of the driver and asks with patience; safe to share between threads.

    Args:
        address: Where the brokers are.
        patience: How long to go on while none of them answers.
    """

    def __init__(self, address: KafkaAddress, patience: timedelta) -> None:
        self.address = address
        self.patience = patience.total_seconds()
        self._kafka = driver()
        self._lock = threading.Lock()
        self._admin: Any = None
        self._last_fault: Any = None
        codes = self._kafka.KafkaError
        self._denied = {code for name, code in vars(codes).items() if name.endswith("AUTHORIZATION_FAILED")}
        self._refused = {codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED}
        self._fenced = {codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH}
        self._absent = {codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION}
        self.silent = {getattr(codes, name) for name in _SILENT}

    @property
    def admin(self) -> Any:
        """The client for topics, groups and offsets."""
        with self._lock:
            if self._admin is None:
                self._admin = self._made(self._kafka.admin.AdminClient, {})
            return self._admin

    def producer(self, settings: dict[str, Any]) -> Any:
        """A new producer: acknowledged by all in-sync replicas, and repeats of its own sends are told apart."""
        return self._made(
            self._kafka.Producer,
            {
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": "lz4",
                "message.max.bytes": 8 << 20,
                "queue.buffering.max.messages": 0,
                "queue.buffering.max.kbytes": 1 << 18,
                "delivery.timeout.ms": max(1000, int(self.patience * 1000)),
            }
            | settings,
        )

    def consumer(self, settings: dict[str, Any] | None = None) -> Any:
        """A new consumer that sees committed transactions only and commits nothing by itself."""
        return self._made(
            self._kafka.Consumer,
            {
                "group.id": "headwater",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": 32 << 10,
            }
            | (settings or {}),
        )

    def _made(self, kind: Any, settings: dict[str, Any]) -> Any:
        whole = {
            "bootstrap.servers": self.address.servers,
            "error_cb": self._remember,
            "log_level": 2,
            "allow.auto.create.topics": False,  # asking for a topic must not make it, with settings that are not ours
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.propagation.max.ms": 5000,
        }
        try:
            return kind(whole | settings | self.address.settings, logger=_driver_logger)
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            what = f"a setting of {self.address} cannot be: {_words(error)}"
            raise BadSettingError(self.address.without_secrets(what)) from None

    def _remember(self, error: Any) -> None:
        self._last_fault = error

    # -- asking --------------------------------------------------------------------------------------------------

    def ask(self, call: Callable[[float], T], patience: float | None = None) -> T:
        """The answer to a call that is given seconds to wait; repeated until the patience is over.

        Raises:
            UnreachableError: No broker answered.
            BadCredentialsError: They do not accept us.
        """
        began = time.monotonic()
        deadline = began + (self.patience if patience is None else patience)
        said = False
        while True:
            left = deadline - time.monotonic()
            try:
                return call(max(0.2, min(_STEP, left)))
            except self._kafka.KafkaException as error:
                self._refuse_if_final(error)
                if time.monotonic() >= deadline:
                    raise self.error(error) from None
            if not said and time.monotonic() - began > 1:
                said = True
                logger.warning("no Kafka broker answers at %s: waiting", self.address)
            time.sleep(min(0.2, max(0.0, left)))

    def _refuse_if_final(self, error: Any) -> None:
        """Waiting helps against silence, not against a no."""
        code = _code(error)
        if self._admin is not None:
            self._admin.poll(0)  # it hears of refused credentials when it is asked only
        fault = self._last_fault
        if fault is not None and fault.code() in self._refused:
            raise self.error(fault) from None
        if code not in self.silent:
            raise self.error(error) from None

    def error(self, error: Any) -> HeadwaterError:
        """What the driver said, as one of our errors."""
        code = _code(error)
        words = self.address.without_secrets(_words(error))
        if code in self._refused:
            what = f"{self.address} does not accept the credentials"
            return BadCredentialsError(what, detail=words, fix="check user and password")
        if code in self._denied:
            return BadCredentialsError(f"{self.address} does not allow it", detail=words)
        if code in self._fenced:
            return FencedError("another producer under the same id has taken over", detail=words)
        if code in (self._kafka.KafkaError.MSG_SIZE_TOO_LARGE, self._kafka.KafkaError.RECORD_LIST_TOO_LARGE):
            return TooLargeError("an event is larger than the topic takes", detail=words, limit=0)
        if code in self._absent:
            return UnknownTopicError("Kafka has no such topic or partition", detail=words)
        if code not in self.silent:
            return RefusedError(f"{self.address} refuses it: {words}", kafka=str(code))
        return UnreachableError(
            f"no Kafka broker answers at {self.address}",
            detail=words,
            fix="start the brokers, or check the address",
            url=str(self.address),
            sent=False,
        )

    def futures(
        self, ask: Callable[[Any, float], dict[Any, Any]], patience: float | None = None
    ) -> dict[Any, Any]:
        """The answers to a request of the admin client, which gives one future for each thing asked about."""

        def call(seconds: float) -> dict[Any, Any]:
            return {key: future.result() for key, future in ask(self.admin, seconds).items()}

        return self.ask(call, patience)


def let_go(producer: Any) -> None:
    """Close a producer whatever state it is in; a fenced one fails while it closes."""
    with contextlib.suppress(Exception):
        producer.close(1)


def with_pages(url: str, folder: Path) -> str:
    """The URL for processes that this one starts, which find there what it has read.

    Example:
        >>> with_pages("kafka://a:9092", Path("/var/pages"))
        'kafka://a:9092?headwater.pages=%2Fvar%2Fpages'
    """
    return f"{url}{'&' if '?' in url else '?'}{_PAGES}={quote(str(folder), safe='')}"


def partition_at(topic: str, partition: int, offset: int | None = None) -> Any:
    """A partition, and an offset in it, as the driver has them."""
    kafka = driver()
    return (
        kafka.TopicPartition(topic, partition)
        if offset is None
        else kafka.TopicPartition(topic, partition, offset)
    )


def _kafka_error(error: Any) -> Any:
    return error.args[0] if isinstance(error, Exception) and error.args else error


def _code(error: Any) -> Any:
    inner = _kafka_error(error)
    return inner.code() if hasattr(inner, "code") else None


def _words(error: Any) -> str:
    inner = _kafka_error(error)
    return inner.str() if hasattr(inner, "str") else str(inner)
