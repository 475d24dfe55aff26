"""What queues support on each backend, as shown in the documentation, and the checks that refuse the rest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from headwater.errors import RefusedError
from headwater.log.topic import WhenFull
from headwater.queues.protocol import OutgoingMessage
from headwater.queues.queue import Queue
from headwater.queues.rabbitmq.topology import MAX_DELAY

__all__ = ["CAPABILITIES", "check_message_support", "check_queue"]

# Capability: (data folder, RabbitMQ).
CAPABILITIES: Final[dict[str, tuple[str, str]]] = {
    "a confirmed message survives `kill -9` and a power cut": (
        'yes, with `durability="durable"`',
        "yes: it is on the disks of a majority of the queue's members; `durability=` is stored but has no effect",
    ),
    "each message goes to one worker of every group": ("yes", "yes: a quorum queue for each group"),
    "ack, nack, reject": ("yes", "yes"),
    "a late or second ack changes nothing": ("yes", "yes"),
    "`visibility_timeout`, `extend`": (
        "yes",
        "enforced by the receiver's process; RabbitMQ itself requeues a message when the connection ends, and after "
        "its `consumer_timeout` (30 minutes)",
    ),
    "redelivery after a receiver died": ("after `visibility_timeout`", "at once; after 20 s if its machine is lost"),
    "attempts": (
        "counted at each delivery",
        "counted at each delivery; when a process dies, messages that it had only prefetched also count as failed",
    ),
    "backoff between attempts": ("exact", "up to a quarter longer: each delay is a queue in RabbitMQ"),
    "dead letters with reason, stack, history": ("yes", "yes; up to 64 KB of history: the oldest stacks are dropped"),
    "a duplicate after a crash during a nack": (
        "never",
        "possible, with the same id: RabbitMQ has no transaction over two queues",
    ),
    "delay": ("exact", "up to a tenth longer, at most 49 days"),
    "ttl": ("yes", "yes; a message behind others that live longer becomes a dead letter only at the head of the queue"),
    "priority": ("yes", "refused: quorum queues of RabbitMQ 3 have none"),
    "a second message with the same id": (
        "discarded",
        "accepted: RabbitMQ does not compare ids; `deduplication_window=` is refused",
    ),
    "`ordered`": ("yes", "refused: RabbitMQ has no order per key with several receivers"),
    "groups by routing key and headers": ("yes", "yes, by RabbitMQ; header names that begin with `x-` are refused"),
    "groups by SQL": (
        "evaluated before a message is stored",
        "evaluated by the receiver before delivery; until then the message counts as waiting",
    ),
    "`limit`": ("exact", "for one group only, and approximate: RabbitMQ notices a little later"),
    "overload": ("all policies", "backpressure and drop newest; RabbitMQ cannot drop others without losing messages"),
    "counts": (
        "of all processes",
        "waiting and dead of all processes; delayed, in flight and totals of this process: AMQP reports no more",
    ),
    "a lost connection": ("has none", "reopened; unconfirmed messages are sent again with the same id"),
    "low on memory": ("has no such limit", "publish waits and logs a warning; OVERLOADED after 30 s"),
    "other clients": ("none", "any AMQP client publishes and receives"),
}
_FIX: Final = "leave it out, or keep the queue in the data folder"


def check_queue(queue: Queue) -> None:
    """Raises if a queue has an option that RabbitMQ does not support.

    Raises:
        RefusedError: With the reason.
    """
    for option, why in _find_unsupported(queue):
        what = f'queue "{queue.name}" cannot have {option} on RabbitMQ'
        raise RefusedError(what, detail=why, fix=_FIX, location=queue.location, queue=queue.name)


def check_message_support(queue: str, message: OutgoingMessage) -> None:
    """Raises if a message has an option that RabbitMQ does not support.

    Raises:
        RefusedError: With the reason.
    """
    reserved = next((name for name in message.headers if name.startswith(("hw-", "x-"))), None)
    if message.priority:
        option, why = "a priority", "its quorum queues have none"
    elif reserved is not None:
        option, why = f"the header {reserved}", "names that begin with hw- are Headwater's, those with x- RabbitMQ's"
    elif max(message.ttl or timedelta(0), message.delay) > MAX_DELAY:
        option, why = "such a ttl or delay", f"the longest on RabbitMQ is {MAX_DELAY}"
    else:
        return
    what = f'a message of queue "{queue}" cannot have {option} on RabbitMQ'
    raise RefusedError(what, detail=why, fix=_FIX, queue=queue)


def _find_unsupported(queue: Queue) -> Iterator[tuple[str, str]]:
    """Yields options of a queue that RabbitMQ does not support, and why."""
    if queue.ordered:
        yield "ordered", "RabbitMQ has no order per key with several receivers"
    if "deduplication_window" in (queue.given or ()) and queue.deduplication_window:
        yield "deduplication_window", "RabbitMQ accepts every message, whatever its id"
    if queue.limit is not None and len(queue.groups) > 1:
        yield "limit", "with several groups, one could store a message that another has refused"
    if queue.limit is not None and queue.overload.when_full not in (WhenFull.WAIT, WhenFull.DROP_NEWEST):
        yield "overload", "without losing other messages, RabbitMQ can only drop the newest message or none"
    for name in (name for group in queue.groups for name in group.headers if name.startswith("x-")):
        yield name, "RabbitMQ does not compare headers that begin with x-"
    if max(queue.retry.longest * (1 + queue.retry.jitter), queue.ttl or timedelta(0)) > MAX_DELAY:
        yield "such a ttl or retry", f"the longest delay on RabbitMQ is {MAX_DELAY}"
