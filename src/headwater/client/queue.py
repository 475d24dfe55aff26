"""Queues in a client: `OpenQueue` to publish, receive and inspect, and the queue and request calls of the client."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict, Unpack

from headwater.backends import open_broker, open_requester
from headwater.errors import BadEventError, BadSettingError, HeadwaterError, SourceLocation
from headwater.events import Clock, check_headers, check_traceparent, to_row
from headwater.queues import Queue, QueueOptions
from headwater.queues.message import Message, MessageCodec, edit_message, key_text
from headwater.queues.protocol import Broker, DeadLetter, GroupCounts, OutgoingMessage, PublishConfirm, Receiver
from headwater.queues.request_reply.protocol import PendingRequest, Replies, Requester, ask_all
from headwater.units import duration, to_seconds

__all__ = ["OpenQueue", "PublishOptions", "QueueMethods"]


class PublishOptions(TypedDict, total=False):
    """The options of a published message."""

    id: str
    """The message's id; a second message with the same id is dropped."""
    key: Any
    """The key; the value of the queue's key field if left out."""
    routing_key: str
    """Words separated by dots, for groups that select messages by pattern."""
    headers: dict[str, str]
    """Strings by name."""
    priority: int
    """0 to 9; messages with a higher priority are delivered first."""
    delay: str | timedelta
    """The time before the first delivery."""
    ttl: str | timedelta
    """The time to live; an undelivered message then becomes a dead letter."""
    traceparent: str
    """The W3C trace that the message belongs to."""


class OpenQueue:
    """A queue, open for publishing and receiving. Created by `client.queue`; closing it requeues unsettled messages.

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
        self._codec = MessageCodec(self.definition.schema, as_)
        self._prefetch = prefetch
        self._timeout = timeout
        self._receiver: Receiver | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.definition.name

    # -- publish -------------------------------------------------------------------------------------------------

    def publish(self, value: Any, **options: Unpack[PublishOptions]) -> PublishConfirm:
        """Publish one message and wait until it is as safe as the queue's durability promises.

        Args:
            value: A dict, or an instance of the queue's type.
            options: See `PublishOptions`: `id`, `key`, `routing_key`, `headers`, `priority`, `delay`, `ttl`,
                `traceparent`.

        Raises:
            BadEventError: The value does not match the queue's type; nothing was published.
            OverloadedError: The queue is full.
        """
        return self._broker.publish(self.name, self._to_messages([value], options))[0]

    def publish_many(self, values: Iterable[Any], **options: Unpack[PublishOptions]) -> list[PublishConfirm]:
        """Publish many messages at once, much faster than one by one; `options` apply to each."""
        if "id" in options:
            what = "several messages cannot have the same id"
            raise BadEventError(what, fix="queue.publish(value, id=…) for each", field="id")
        return self._broker.publish(self.name, self._to_messages(list(values), options))

    def _to_messages(self, values: Sequence[Any], options: PublishOptions) -> list[OutgoingMessage]:
        if unknown := sorted(set(options) - set(PublishOptions.__annotations__)):
            known = f"attributes: {', '.join(PublishOptions.__annotations__)}"
            raise BadEventError(f"a message has no attribute {unknown[0]!r}", detail=known, field=unknown[0])
        delay, ttl, trace = options.get("delay"), options.get("ttl"), options.get("traceparent")
        same: dict[str, Any] = {
            "id": options.get("id"),
            "routing_key": options.get("routing_key", ""),
            "headers": check_headers(options.get("headers") or {}),
            "priority": options.get("priority", 0),
            "delay": duration(delay) if delay is not None else timedelta(0),
            "ttl": None if ttl is None else duration(ttl),
            "traceparent": None if trace is None else check_traceparent(trace),
        }
        bodies = self._codec.encode_many(values)
        return [
            OutgoingMessage(body, key=self._key_text(value, options.get("key")), **same)
            for body, value in zip(bodies, values, strict=True)
        ]

    def _key_text(self, value: Any, given: Any) -> str | None:
        field = self.definition.key
        found = to_row(value).get(field) if given is None and field is not None else given
        return None if found is None else key_text(found)

    # -- receive -------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | str | timedelta | None = 0) -> Message | None:
        """Returns the next message; None if there is none within the timeout.

        Args:
            timeout: How long to wait; a number is in seconds, None waits without a limit.
        """
        found = self._open_receiver().receive(None if timeout is None else to_seconds(timeout), 1)
        return Message(self._open_receiver(), found[0], self._codec) if found else None

    def __iter__(self) -> Iterator[Message]:
        while not self._closed:
            message = self.receive(self._timeout)
            if message is None:
                return
            yield message

    def _open_receiver(self) -> Receiver:
        if self._receiver is None:
            worker = f"{socket.gethostname()}/{os.getpid()}"
            self._receiver = self._broker.receiver(self.name, self._group, worker=worker, prefetch=self._prefetch)
        return self._receiver

    # -- inspect -------------------------------------------------------------------------------------------------

    def counts(self) -> list[GroupCounts]:
        """Returns the counts of each group."""
        return self._broker.counts(self.name)

    def dead_letters(self, group: str | None = None) -> Iterator[DeadLetter]:
        """Returns dead letters, oldest first, with reason, stack and history."""
        return self._broker.dead_letters(self.name, group)

    def redrive(self, letters: Iterable[DeadLetter] | None = None, *, edit: Mapping[str, Any] | None = None) -> int:
        """Return dead letters to their groups for another round of attempts; returns how many.

        Args:
            letters: The dead letters; all of them if left out.
            edit: New values for fields of the messages; `a.b` is the field `b` in `a`.

        Raises:
            BadEventError: A message does not match the queue's type after the edit; none was redriven.
        """
        chosen = list(self.dead_letters() if letters is None else letters)
        return self._broker.redrive(self.name, [edit_message(self.definition, letter, edit or {}) for letter in chosen])

    def close(self) -> None:
        """Stop receiving; unsettled messages are requeued at once."""
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


class QueueMethods:
    """The queue and request methods of a client; the broker is opened on first use.

    Args:
        folder: The data folder; None for a client that has none.
        queues: The broker's URL; None for queues in the data folder.
        clock: The clock.
    """

    def __init__(self, folder: Path | None, queues: str | None, clock: Clock) -> None:
        self._folder = folder
        self._queues = queues
        self._clock = clock
        self._broker: Broker | None = None
        self._requester: Requester | None = None
        self._lock = threading.Lock()  # held while broker or requester open, so that each opens once

    def create_queue(self, name: str, type_: object = None, /, **options: Unpack[QueueOptions]) -> Queue:
        """Create a queue, or update an existing one to this type and these options.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: The type of the values; any dict that JSON can represent if left out.
            options: `groups`, `key`, `ordered`, `retry`, `visibility_timeout`, `ttl`, `deduplication_window`, `limit`,
                `overload`, `durability`; see `QueueOptions`.

        Example:
            >>> import headwater as hw, tempfile
            >>> with hw.connect(tempfile.mkdtemp()) as client:
            ...     _ = client.create_queue("emails", "to string", retry=hw.retry(3, backoff="1s"))
            ...     client.queues()
            ['emails']
        """
        location = SourceLocation.of_caller()
        try:
            return self.broker.declare(Queue.declare(name, type_, location=location, **options))
        except HeadwaterError as error:
            error.location = error.location or location
            raise

    def queues(self) -> list[str]:
        """Returns the names of all queues."""
        return self.broker.queues()

    def queue(
        self,
        name: str,
        *,
        group: str | None = None,
        as_: type | None = None,
        prefetch: int = 10,
        timeout: str | timedelta | None = None,
    ) -> OpenQueue:
        """Returns a queue for publishing and receiving.

        Args:
            name: Which one.
            group: The group to receive for; the first if left out.
            as_: The class of the values; dicts if left out.
            prefetch: The maximum number of unsettled messages.
            timeout: The time without messages after which iteration ends; never if left out.

        Raises:
            UnknownQueueError: There is no such queue.
        """
        wait = None if timeout is None else duration(timeout)
        return OpenQueue(self.broker, name, group=group, as_=as_, prefetch=prefetch, timeout=wait)

    # -- requests ------------------------------------------------------------------------------------------------

    def ask(
        self, subject: str, value: Any = None, *, timeout: float | str | timedelta = 5, as_: type | None = None
    ) -> Any:
        """Send a request and wait for the reply of the function declared with `@app.answer(subject)`.

        Requests are not stored: the function is called at most once, and not at all if the timeout passes first.

        Args:
            subject: The subject, such as "prices.quote".
            value: The argument of the function.
            timeout: How long to wait; a number is in seconds.
            as_: The class of the reply; plain values if left out.

        Raises:
            NoAnswerError: No reply came within the timeout.
            AnswerFailedError: The function raised an error; `data` has its type, message and stack.
            OverloadedError: Too many requests are waiting.
            UnreachableError: The connection to RabbitMQ was lost; the function may have run.

        Example:
            >>> import headwater as hw, tempfile
            >>> with hw.connect(tempfile.mkdtemp()) as client:
            ...     client.ask("prices.quote", {"article": "tea"}, timeout=0.01)
            Traceback (most recent call last):
            headwater.errors.NoAnswerError: NO_ANSWER: no answer to "prices.quote" within 0.01 seconds
            ...
        """
        return self.request(subject, value, timeout=timeout, as_=as_).answer()

    def ask_all(
        self, subject: str, values: Iterable[Any], *, timeout: float | str | timedelta = 5, as_: type | None = None
    ) -> Replies:
        """Send several requests at the same time and collect the replies.

        Args:
            subject: The subject of all requests.
            values: The argument of the function, for each request.
            timeout: How long to wait for all replies; a number is in seconds.
            as_: The class of the replies; plain values if left out.
        """
        return ask_all(self._open_requester(), subject, list(values), to_seconds(timeout), as_)

    def request(
        self, subject: str, value: Any, *, timeout: float | str | timedelta = 5, as_: type | None = None
    ) -> PendingRequest:
        """Returns a request that another thread can cancel."""
        return self._open_requester().request(subject, value, to_seconds(timeout), as_)

    def _open_requester(self) -> Requester:
        with self._lock:
            if self._requester is None:
                self._requester = open_requester(self._queues or str(self._require_folder()))
            return self._requester

    @property
    def broker(self) -> Broker:
        """The broker of the data folder or of the profile."""
        with self._lock:
            if self._broker is None:
                self._broker = open_broker(self._queues or str(self._require_folder()), self._clock)
            return self._broker

    def _require_folder(self) -> Path:
        if self._folder is None:
            what = "this connection has no queues and requests"
            detail = "a node serves topics and views; queues are in the data folder, or at the broker of a profile"
            raise BadSettingError(what, detail=detail, fix='hw.connect(".headwater"), with the data folder')
        return self._folder

    def close_queues(self) -> None:
        """Close the broker and the requester, if they were used."""
        with self._lock:
            for opened in (self._requester, self._broker):
                if opened is not None:
                    opened.close()
            self._requester = self._broker = None
