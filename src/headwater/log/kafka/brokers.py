"""The Kafka brokers: their address, the driver's clients, retries and error translation."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
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

__all__ = ["Brokers", "KafkaAddress", "close_quietly", "driver", "topic_partition", "with_batch_cache"]

T = TypeVar("T")
logger = logging.getLogger("headwater.kafka")
# The driver logs every connection attempt. Our errors report the ones that matter; add a handler to see all.
_driver_logger = logging.getLogger("headwater.kafka.driver")
_driver_logger.addHandler(logging.NullHandler())
_driver_logger.propagate = False
_ATTEMPT_TIMEOUT: Final = 3.0  # seconds of one attempt
_CACHE_SETTING: Final = "headwater.pages"
_TOPIC_SETTINGS: Final = {"replication.factor", "min.insync.replicas"}
# Error codes after which a retry may succeed. The driver's own `retriable()` covers transactions only.
# `_NOENT` is a partition without a leader, as after a broker's restart.
_RETRIABLE_CODES: Final = (
    "_TRANSPORT",
    "_TIMED_OUT",
    "_MSG_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_WAIT_COORD",
    "_NOENT",
    "_RETRY",
    "_STATE",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
    "REQUEST_TIMED_OUT",
    "NETWORK_EXCEPTION",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "NOT_CONTROLLER",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "CONCURRENT_TRANSACTIONS",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "KAFKA_STORAGE_ERROR",
)
_SECRET_NAMES: Final = ("password", "secret", "key.pem", "private", "token", "oauth")


def driver() -> Any:
    """Returns the package `confluent_kafka`, imported on first use.

    Raises:
        MissingPackageError: The package is not installed.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise MissingPackageError.of("Kafka", "confluent-kafka", "kafka", error) from None
    return confluent_kafka


@dataclass(frozen=True)
class KafkaAddress:
    """The address of the brokers and the client settings.

    `topic_settings` are the URL's `replication.factor` and `min.insync.replicas`, which apply to new topics. All
    other parameters are settings of librdkafka, such as `security.protocol` or `ssl.ca.location`.
    `cache_folder` is for child processes: see `BatchCache` in timed_topic.py.
    """

    servers: str
    settings: dict[str, str] = field(default_factory=dict, repr=False)
    topic_settings: dict[str, str] = field(default_factory=dict)
    cache_folder: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> KafkaAddress:
        """Parse `kafka://[user:password@]host:port[,host:port][?setting=value&…]`.

        Example:
            >>> address = KafkaAddress.parse("kafka://ada:pw@a:9092,b:9092?replication.factor=3&client.id=till")
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
        cache_folder = given.pop(_CACHE_SETTING, "")
        topic_settings = {name: given.pop(name) for name in list(given) if name in _TOPIC_SETTINGS}
        if user:
            name, _, password = user.partition(":")
            login = {"sasl.username": unquote(name), "sasl.password": unquote(password)}
            given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"} | given | login
        return cls(servers, given, topic_settings, cache_folder)

    def __str__(self) -> str:
        return f"kafka://{self.servers}"

    def redact(self, text: str) -> str:
        """Returns a message of the driver with the secrets of this address replaced by `…`."""
        for name, value in self.settings.items():
            if value and any(word in name for word in _SECRET_NAMES):
                text = text.replace(value, "…")
        return text


class Brokers:
    """Creates clients of the driver and retries calls; safe to share between threads.

    Args:
        address: The address of the brokers.
        patience: How long to retry while no broker answers.
    """

    def __init__(self, address: KafkaAddress, patience: timedelta) -> None:
        self.address = address
        self.patience = patience.total_seconds()
        self.kafka = driver()
        self._lock = threading.Lock()  # guards the creation of _admin
        self._admin: Any = None
        self._last_error: Any = None
        codes = self.kafka.KafkaError
        self._authorization_codes = {
            code for name, code in vars(codes).items() if name.endswith("AUTHORIZATION_FAILED")
        }
        self._authentication_codes = {codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED}
        self._fenced_codes = {codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH}
        self._unknown_topic_codes = {codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION}
        self.retriable_codes = {getattr(codes, name) for name in _RETRIABLE_CODES}

    @property
    def admin(self) -> Any:
        """The admin client, for topics, groups and offsets."""
        with self._lock:
            if self._admin is None:
                self._admin = self._create_client(self.kafka.admin.AdminClient, {})
            return self._admin

    def create_producer(self, settings: dict[str, Any]) -> Any:
        """Returns a new idempotent producer whose writes all in-sync replicas acknowledge."""
        return self._create_client(
            self.kafka.Producer,
            {
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": "lz4",
                "message.max.bytes": 8 << 20,  # of a request; a topic's own limit is max.message.bytes
                "queue.buffering.max.messages": 0,  # no limit: the queue is limited by size, to 256 MiB
                "queue.buffering.max.kbytes": 1 << 18,
                "delivery.timeout.ms": max(1000, int(self.patience * 1000)),
            }
            | settings,
        )

    def create_consumer(self, settings: dict[str, Any] | None = None) -> Any:
        """Returns a new consumer that reads committed transactions only and does not commit offsets by itself."""
        return self._create_client(
            self.kafka.Consumer,
            {
                "group.id": "headwater",  # the driver demands one; only the members of real groups join theirs
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,  # commit markers are not delivered: this event shows the end behind them
                "auto.offset.reset": "error",  # an offset that retention removed must not become a silent gap
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": 32 << 10,
            }
            | (settings or {}),
        )

    def _create_client(self, kind: Any, settings: dict[str, Any]) -> Any:
        whole = {
            "bootstrap.servers": self.address.servers,
            "error_cb": partial(setattr, self, "_last_error"),
            "log_level": 2,
            "allow.auto.create.topics": False,  # a lookup must not create a topic with the brokers' default settings
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.propagation.max.ms": 5000,
        }
        try:
            return kind(whole | settings | self.address.settings, logger=_driver_logger)
        except (self.kafka.KafkaException, ValueError, TypeError) as error:
            what = f"a setting of {self.address} is not valid: {_code_and_message(error)[1]}"
            raise BadSettingError(self.address.redact(what)) from None

    # -- calls ---------------------------------------------------------------------------------------------------

    def retry(self, call: Callable[[float], T]) -> T:
        """Return the result of a call; retry it within the patience while no broker answers.

        Args:
            call: Receives the timeout of the attempt, in seconds.

        Raises:
            UnreachableError: No broker answered.
            BadCredentialsError: The brokers refuse the credentials.
        """
        began = time.monotonic()
        deadline = began + self.patience
        warned = False
        while True:
            left = deadline - time.monotonic()
            # At least one attempt of 0.2 seconds, also without patience.
            try:
                return call(max(0.2, min(_ATTEMPT_TIMEOUT, left)))
            except self.kafka.KafkaException as error:
                self._raise_if_fatal(error)
                if time.monotonic() >= deadline:
                    raise self.translate_error(error) from None
            if not warned and time.monotonic() - began > 1:
                warned = True
                logger.warning("no Kafka broker answers at %s; retrying", self.address)
            time.sleep(min(0.2, max(0.0, left)))

    def _raise_if_fatal(self, error: Any) -> None:
        """Raise errors that a retry cannot resolve."""
        if self._admin is not None:
            self._admin.poll(0)  # refused credentials are reported only through a poll
        fault = self._last_error
        if fault is not None and fault.code() in self._authentication_codes:
            raise self.translate_error(fault) from None
        if _code_and_message(error)[0] not in self.retriable_codes:
            raise self.translate_error(error) from None

    def translate_error(self, error: Any) -> HeadwaterError:
        """Returns the Headwater error for an error of the driver."""
        code, text = _code_and_message(error)
        message = self.address.redact(text)
        if code in self._authentication_codes:
            what = f"{self.address} refuses the credentials"
            return BadCredentialsError(what, detail=message, fix="check user and password")
        if code in self._authorization_codes:
            return BadCredentialsError(f"{self.address} does not allow the operation", detail=message)
        if code in self._fenced_codes:
            return FencedError("another producer with the same id has taken over", detail=message)
        if code in (self.kafka.KafkaError.MSG_SIZE_TOO_LARGE, self.kafka.KafkaError.RECORD_LIST_TOO_LARGE):
            return TooLargeError("an event exceeds the topic's max.message.bytes", detail=message, limit=0)
        if code in self._unknown_topic_codes:
            return UnknownTopicError("Kafka has no such topic or partition", detail=message)
        if code not in self.retriable_codes:
            return RefusedError(f"{self.address} refuses the request: {message}", kafka=str(code))
        return self.unreachable_error(message)

    def unreachable_error(self, detail: str | None = None) -> UnreachableError:
        """Returns the error for brokers that do not answer within the patience."""
        return UnreachableError(
            f"no Kafka broker answers at {self.address}",
            detail=detail,
            fix="start the brokers, or check the address",
            url=str(self.address),
            sent=False,
        )

    def call_admin(self, request: Callable[..., dict[Any, Any]], *args: Any, **options: Any) -> dict[Any, Any]:
        """Call a method of `admin` that returns one future per resource, as `retry` does, and return the results."""
        return self.retry(
            lambda seconds: {
                key: future.result() for key, future in request(*args, **options, request_timeout=seconds).items()
            }
        )


def close_quietly(producer: Any) -> None:
    """Close a producer, or nothing if it is None. Errors are ignored: closing a fenced producer raises one."""
    if producer is not None:
        with contextlib.suppress(Exception):
            producer.close(1)


def with_batch_cache(url: str, folder: Path) -> str:
    """Returns the URL for child processes, extended by the folder of this process's `BatchCache`.

    Example:
        >>> with_batch_cache("kafka://a:9092", Path("/var/pages"))
        'kafka://a:9092?headwater.pages=%2Fvar%2Fpages'
    """
    return f"{url}{'&' if '?' in url else '?'}{_CACHE_SETTING}={quote(str(folder), safe='')}"


def topic_partition(topic: str, partition: int, offset: int | None = None) -> Any:
    """Returns the driver's `TopicPartition`."""
    kafka = driver()
    return kafka.TopicPartition(topic, partition, kafka.OFFSET_INVALID if offset is None else offset)


def _code_and_message(error: Any) -> tuple[Any, str]:
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return (inner.code(), inner.str()) if hasattr(inner, "code") else (None, str(inner))
