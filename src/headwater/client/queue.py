"""A queue in a program's hands: publish, receive, look."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from headwater.errors import BadEventError
from headwater.events import checked_headers, checked_traceparent, to_row
from headwater.queues.body import Bodies, key_text
from headwater.queues.message import Message
from headwater.queues.protocol import Broker, Confirmed, DeadLetter, GroupCounts, Outgoing, Receiver
from headwater.queues.repair import edited
from headwater.units import duration

__all__ = ["About", "OpenQueue", "seconds_of"]


class About(TypedDict, total=False):
    """What may be said about a message besides its value."""

    id: str
    """Says which message it is: a second one of the same id is not taken."""
    key: Any
    """What it is about; if left out, it is taken from the queue's key field."""
    words: str
    """What it is about, in words separated by dots, for groups that choose by pattern."""
    headers: dict[str, str]
    """Short texts by name."""
    priority: int
    """0 to 9; higher ones are handed out first."""
    delay: str | timedelta
    """Not handed out before this time has passed."""
    ttl: str | timedelta
    """Dead after this time, if nobody has taken it."""
    traceparent: str
    """The trace it belongs to."""


class OpenQueue:
    """A queue, open for publishing and receiving. Made by `client.queue`; closing it gives back what is not settled.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> _ = client.create_queue("emails")
        >>> with client.queue("emails", timeout="1 second") as queue:
        ...     _ = queue.publish({"to": "ada"}), queue.publish({"to": "bob"})
        ...     for message in queue:
        ...         print(message.value["to"], message.ack())
        ada True
        bob True
        >>> client.close()
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        *,
        group: str | None = None,
        as_: type | None = None,
        prefetch: int = 10,
        timeout: timedelta | None = None,
    ) -> None:
        self._broker = broker
        self.definition = broker.queue(name)
        self._group = self.definition.groups[0].name if group is None else group
        self._bodies = Bodies(self.definition.schema, as_)
        self._prefetch = prefetch
        self._timeout = timeout
        self._receiver: Receiver | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.definition.name

    # -- in ------------------------------------------------------------------------------------------------------

    def publish(self, value: Any, **about: Unpack[About]) -> Confirmed:
        """Publish one message and wait until it is as safe as the queue's durability says.

        Args:
            value: A dict, or an instance of the queue's type.
            about: See `About`: `id`, `key`, `words`, `headers`, `priority`, `delay`, `ttl`, `traceparent`.

        Raises:
            BadEventError: The value does not fit the queue's type; nothing was published.
            OverloadedError: The queue is full.
        """
        return self._broker.publish(self.name, self._outgoing([value], about))[0]

    def publish_many(self, values: Iterable[Any], **about: Unpack[About]) -> list[Confirmed]:
        """Publish many messages at once, which is much faster than one by one; `about` holds for each of them."""
        if "id" in about:
            what = "several messages cannot have one id"
            raise BadEventError(what, fix="queue.publish(value, id=…) for each", field="id")
        return self._broker.publish(self.name, self._outgoing(list(values), about))

    def _outgoing(self, values: Sequence[Any], about: About) -> list[Outgoing]:
        if unknown := sorted(set(about) - set(About.__annotations__)):
            known = f"it can have: {', '.join(About.__annotations__)}"
            raise BadEventError(f"a message has no attribute {unknown[0]!r}", detail=known, field=unknown[0])
        delay, ttl, trace = about.get("delay"), about.get("ttl"), about.get("traceparent")
        same: dict[str, Any] = {
            "id": about.get("id"),
            "words": about.get("words", ""),
            "headers": checked_headers(about.get("headers") or {}),
            "priority": about.get("priority", 0),
            "delay": duration(delay) if delay is not None else timedelta(0),
            "ttl": None if ttl is None else duration(ttl),
            "traceparent": None if trace is None else checked_traceparent(trace),
        }
        bodies = self._bodies.encode_many(values)
        return [
            Outgoing(body, key=self._key(value, about.get("key")), **same)
            for body, value in zip(bodies, values, strict=True)
        ]

    def _key(self, value: Any, given: Any) -> str | None:
        field = self.definition.key
        found = to_row(value).get(field) if given is None and field is not None else given
        return None if found is None else key_text(found)

    # -- out -----------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | str | timedelta | None = 0) -> Message | None:
        """The next message; None after `timeout` (in seconds, if it is a number) without any.

        Args:
            timeout: How long to wait; None waits for ever.
        """
        found = self._received().receive(seconds_of(timeout), 1)
        return Message(self._received(), found[0], self._bodies) if found else None

    def __iter__(self) -> Iterator[Message]:
        while not self._closed:
            message = self.receive(self._timeout)
            if message is None:
                return
            yield message

    def _received(self) -> Receiver:
        if self._receiver is None:
            worker = f"{socket.gethostname()}/{os.getpid()}"
            self._receiver = self._broker.receiver(
                self.name, self._group, worker=worker, prefetch=self._prefetch
            )
        return self._receiver

    # -- around --------------------------------------------------------------------------------------------------

    def counts(self) -> list[GroupCounts]:
        """How each group stands."""
        return self._broker.counts(self.name)

    def dead(self, group: str | None = None) -> Iterator[DeadLetter]:
        """Dead letters, oldest first, with reason, stack and history."""
        return self._broker.dead(self.name, group)

    def retry(
        self, letters: Iterable[DeadLetter] | None = None, *, edit: Mapping[str, Any] | None = None
    ) -> int:
        """Put dead letters back in line, for another round of attempts; how many there were.

        Args:
            letters: Which; all of them, if left out.
            edit: New values for fields of their messages; `a.b` is the field `b` in `a`.

        Raises:
            BadEventError: A message would not fit the queue's type after the edit; none was put back.
        """
        chosen = list(self.dead() if letters is None else letters)
        return self._broker.revive(
            self.name, [edited(self.definition, letter, edit or {}) for letter in chosen]
        )

    def close(self) -> None:
        """Stop receiving; what was received and not settled goes to others at once."""
        self._closed = True
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def __enter__(self) -> OpenQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"OpenQueue({self.name!r})"


def seconds_of(timeout: float | str | timedelta | None) -> float | None:
    """A length of time in seconds; a number is one already.

    Example:
        >>> seconds_of("2 minutes"), seconds_of(0.5), seconds_of(None)
        (120.0, 0.5, None)
    """
    return duration(timeout).total_seconds() if isinstance(timeout, str | timedelta) else timeout
