"""A message as an AMQP message, and back; messages published by other clients are read too.

The body, `message_id` and `timestamp` are AMQP's own. The headers are those of the publisher, and ours: `hw-key`,
`hw-words`, `hw-published-at`, `hw-expires-at` and `traceparent`; after a first delivery also `hw-deliveries`,
`hw-failures` and `hw-history`; on a dead letter also `hw-why` and `hw-died-at`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractIncomingMessage

from headwater.errors import BadEventError
from headwater.events import check_traceparent
from headwater.queues.protocol import Attempt, OutgoingMessage

__all__ = ["Envelope"]

T = TypeVar("T")
_RESERVED_PREFIXES: Final = ("hw-", "x-")
_MAX_STACK: Final = 8_000  # characters kept of one stack
_MAX_HISTORY: Final = 64_000  # bytes of JSON: all headers must fit into one frame of 128 KiB
_HISTORY_DECODER: Final = msgspec.json.Decoder(tuple[Attempt, ...])
_DEATH_REASONS: Final = {"expired": "expired", "rejected": "rejected", "maxlen": "full", "delivery_limit": "failed"}


@dataclass(frozen=True)
class Envelope:
    """A message and what happened to it in one group.

    Args:
        message: The published message.
        published_at: The time of publishing.
        expires_at: When the message expires if it was not delivered before.
        deliveries: The number of deliveries so far.
        failures: The number of failed deliveries.
        history: The failed deliveries.
        why: The reason of a dead letter: "rejected", "failed", "expired" or "full".
        died_at: When it became a dead letter.
    """

    message: OutgoingMessage
    published_at: datetime
    expires_at: datetime | None = None
    deliveries: int = 0
    failures: int = 0
    history: tuple[Attempt, ...] = ()
    why: str = ""
    died_at: datetime | None = None

    @classmethod
    def new(cls, message: OutgoingMessage, ttl: timedelta | None) -> Envelope:
        """Returns the envelope of a message published now; generates an id if it has none."""
        now = datetime.now(UTC)
        short = min((span for span in (ttl, message.ttl) if span is not None), default=None)
        named = message if message.id is not None else replace(message, id=uuid.uuid4().hex)
        return cls(named, now, None if short is None else now + message.delay + short)

    @classmethod
    def from_amqp(cls, incoming: AbstractIncomingMessage, exchange: str) -> Envelope:
        """Returns the envelope of a received message, which any AMQP client may have published.

        Args:
            incoming: The received message.
            exchange: The exchange of its queue, to which other clients publish.
        """
        headers: Mapping[str, Any] = incoming.headers
        now = datetime.now(UTC)
        # RabbitMQ counts how often it requeued the message because its consumer was gone.
        lost = int(headers.get("x-delivery-count", 0))
        message = OutgoingMessage(
            body=incoming.body,
            id=incoming.message_id,
            routing_key=_routing_key(incoming, headers, exchange),
            key=_parse(headers.get("hw-key"), str),
            headers={
                name: str(value)
                for name, value in headers.items()
                if name != "traceparent" and not name.startswith(_RESERVED_PREFIXES)
            },
            traceparent=_parse(headers.get("traceparent"), check_traceparent),
        )
        deaths = headers.get("x-death") or [{}]
        return cls(
            message,
            _parse(headers.get("hw-published-at"), datetime.fromisoformat) or incoming.timestamp or now,
            _parse(headers.get("hw-expires-at"), datetime.fromisoformat),
            deliveries=int(headers.get("hw-deliveries", 0)) + lost,
            failures=int(headers.get("hw-failures", 0)) + lost,
            history=_parse(headers.get("hw-history"), _HISTORY_DECODER.decode) or (),
            why=_parse(headers.get("hw-why"), str) or _DEATH_REASONS.get(str(deaths[0].get("reason")), "rejected"),
            died_at=_parse(headers.get("hw-died-at"), datetime.fromisoformat) or deaths[0].get("time"),
        )

    def add_failure(self, attempt: Attempt) -> Envelope:
        """Returns the envelope after one more failure."""
        kept = replace(attempt, stack=attempt.stack[-_MAX_STACK:])
        return replace(self, deliveries=attempt.number, failures=self.failures + 1, history=(*self.history, kept))

    def to_amqp(self, *, expires: bool = False) -> Message:
        """Returns the message as it is published to RabbitMQ.

        Args:
            expires: Let RabbitMQ expire the message. In a delay queue that would end the delay, so not there.
        """
        message = self.message
        facts: dict[str, Any] = {
            "hw-key": message.key,
            "hw-words": message.routing_key or None,
            "hw-published-at": self.published_at.isoformat(),
            "hw-expires-at": self.expires_at and self.expires_at.isoformat(),
            "hw-deliveries": self.deliveries or None,
            "hw-failures": self.failures or None,
            "hw-history": _encode_history(self.history) if self.history else None,
            "hw-why": self.why or None,
            "hw-died-at": self.died_at and self.died_at.isoformat(),
            "traceparent": message.traceparent,
        }
        return Message(
            message.body,
            headers=message.headers | {name: value for name, value in facts.items() if value is not None},
            content_type="application/json",
            delivery_mode=DeliveryMode.PERSISTENT,
            message_id=message.id,
            timestamp=self.published_at,
            expiration=self.expires_at - self.published_at if expires and self.expires_at else None,
        )


def _routing_key(incoming: AbstractIncomingMessage, headers: Mapping[str, Any], exchange: str) -> str:
    if "hw-words" in headers:
        return str(headers["hw-words"])
    for death in headers.get("x-death") or ():
        if death.get("exchange") == exchange:
            return str((death.get("routing-keys") or [""])[0])
    return incoming.routing_key or "" if incoming.exchange == exchange else ""


def _parse(header: object, parse: Callable[[str], T]) -> T | None:
    """Returns the value of a header; None if it is missing, or if another client wrote something else there."""
    try:
        return None if header is None else parse(str(header))
    except (ValueError, BadEventError):
        return None


def _encode_history(history: Sequence[Attempt]) -> str:
    """Returns the history as JSON; if it is too long, the stacks of the oldest failures are dropped first."""
    kept = list(history)
    text = msgspec.json.encode(kept)
    for index, attempt in enumerate(history[:-1]):
        if len(text) <= _MAX_HISTORY:
            break
        kept[index] = replace(attempt, stack="")
        text = msgspec.json.encode(kept)
    return (text if len(text) <= _MAX_HISTORY else msgspec.json.encode(kept[-1:])).decode()
