"""A message in a receiver's hands: its value, and the four things that can become of it."""

from __future__ import annotations

import traceback
from datetime import datetime, timedelta
from typing import Any

from headwater.queues.body import Bodies
from headwater.queues.protocol import Delivery, Receiver, Settled
from headwater.units import duration

__all__ = ["Message", "Reject", "failure"]


class Reject(Exception):
    """Raised by a worker's function: this message can never succeed. It is dead at once, with this reason.

    Example:
        >>> str(Reject("no such customer"))
        'no such customer'
    """


class Message:
    """A message that was handed out: this receiver's until `until`, then anybody's again, unless it is settled.

    As a context manager it is acknowledged at the end of the block, and given back when the block raises.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> _ = client.create_queue("emails")
        >>> with client.queue("emails") as queue:
        ...     _ = queue.publish({"to": "ada@example.com"}, headers={"from": "shop"})
        ...     with queue.receive(timeout=5) as message:
        ...         print(message.value, message.headers, message.attempt)
        {'to': 'ada@example.com'} {'from': 'shop'} 1
        >>> client.close()
    """

    def __init__(self, receiver: Receiver, delivery: Delivery, bodies: Bodies) -> None:
        self._receiver = receiver
        self._delivery = delivery
        self._bodies = bodies
        self._settled = False

    @property
    def value(self) -> Any:
        """What was published: a dict, or an instance of the class that was asked for.

        Raises:
            BadEventError: It does not fit the type.
        """
        return self._bodies.decode(self._delivery.message.body)

    @property
    def id(self) -> str:
        """Says which message this is, however often it is delivered."""
        return self._delivery.message.id or ""

    @property
    def key(self) -> str | None:
        """What it is about, in queues that keep the order per key."""
        return self._delivery.message.key

    @property
    def words(self) -> str:
        """What it is about, in words separated by dots."""
        return self._delivery.message.words

    @property
    def headers(self) -> dict[str, str]:
        """Short texts by name."""
        return dict(self._delivery.message.headers)

    @property
    def published_at(self) -> datetime:
        """When it was published."""
        return self._delivery.published_at

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self._delivery.attempt

    @property
    def redelivered(self) -> bool:
        """Whether it was handed out before: what it asks for may be done already, in part or in full."""
        return self._delivery.redelivered

    @property
    def until(self) -> datetime:
        """When it goes to another receiver, as known when it was received."""
        return self._delivery.until

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged, given back or rejected."""
        return self._settled

    def ack(self) -> bool:
        """It is done and never delivered again; False when it was not this receiver's any more."""
        return self._settle(self._receiver.ack([self._delivery])[0])

    def nack(self, why: str = "", *, stack: str = "", delay: str | timedelta | None = None) -> bool:
        """It failed: it comes again after the queue's backoff, or after `delay`; when it failed too often, it is dead.

        Args:
            why: The reason, for whoever looks at it later.
            stack: Where the code failed.
            delay: How long to wait before it comes again.
        """
        wait = None if delay is None else duration(delay)
        return self._settle(self._receiver.nack(self._delivery, why, stack=stack, delay=wait))

    def reject(self, why: str = "", *, stack: str = "") -> bool:
        """It can never succeed: it is dead at once, and kept with the reason."""
        return self._settle(self._receiver.reject(self._delivery, why, stack=stack))

    def extend(self, by: str | timedelta | None = None) -> bool:
        """Keep it longer, from now on: for the queue's visibility time, or `by`."""
        length = None if by is None else duration(by)
        return self._receiver.extend(self._delivery, length) is Settled.DONE

    def _settle(self, came: Settled) -> bool:
        self._settled = True
        return came is Settled.DONE

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if self._settled:
            return isinstance(error, Reject)
        if error is None:
            self.ack()
        elif isinstance(error, Reject):
            self.reject(str(error), stack=failure(error))
        else:
            self.nack(f"{type(error).__name__}: {error}".rstrip(": "), stack=failure(error))
        return isinstance(error, Reject)

    def __repr__(self) -> str:
        return f"Message({self.id!r}, attempt={self.attempt})"


def failure(error: BaseException) -> str:
    r"""Where a user's code failed, as Python prints it.

    Example:
        >>> failure(ValueError("no address"))
        'ValueError: no address\n'
    """
    return "".join(traceback.format_exception(error))
