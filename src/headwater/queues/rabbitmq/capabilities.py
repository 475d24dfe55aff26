"""What a queue can do on each backend: the table of the documentation, and the checks that refuse the rest."""

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
    "confirmed = survives kill -9 and a power cut": (
        "yes, at `durable`",
        "yes: on the disks of a majority of the queue's members; `durability=` is kept and changes nothing",
    ),
    "one worker of a group, every group": ("yes", "yes: a quorum queue for each group"),
    "ack, nack, reject": ("yes", "yes"),
    "a late or second ack changes nothing": ("yes", "yes"),
    "`visibility_timeout`, `extend`": (
        "yes",
        "kept by the receiver's process; RabbitMQ itself takes a message back when the connection ends, and after its "
        "`consumer_timeout` (30 minutes)",
    ),
    "a receiver that died": ("after `visibility_timeout`", "at once; after 20 s when its machine fell silent"),
    "attempts": (
        "counted when handed out",
        "the same; when a process dies, what it had prefetched counts as handed out and failed, too",
    ),
    "backoff between attempts": ("exact", "up to a quarter longer: each length is a queue in RabbitMQ"),
    "dead letters with reason, stack, history": ("yes", "yes; 64 KB of history, the oldest stacks are left out first"),
    "a copy after a crash while a message is given back": (
        "never",
        "possible, with the same id: RabbitMQ has no transaction over two queues",
    ),
    "delay": ("exact", "up to a tenth longer, at most 49 days"),
    "ttl": ("yes", "yes; one behind others that live longer is counted as dead when it comes to the head"),
    "priority": ("yes", "refused: quorum queues of RabbitMQ 3 have none"),
    "a second message of one id": (
        "not taken",
        "taken: RabbitMQ does not look at ids; `deduplication_window=` is refused",
    ),
    "`ordered`": ("yes", "refused: RabbitMQ has no order per key with several receivers"),
    "groups by routing key and headers": ("yes", "yes, by RabbitMQ; a header beginning with `x-` is refused"),
    "groups by SQL": (
        "before a message is kept",
        "by the receiver, before it is handed out; until then it counts as waiting",
    ),
    "`limit`": ("exact", "one group only, and about: RabbitMQ notices a little later"),
    "overload": ("all policies", "backpressure and drop newest; RabbitMQ cannot drop others and lose none"),
    "counts": (
        "of all processes",
        "waiting and dead of all; delayed, in flight and totals of this process: AMQP tells no more",
    ),
    "a connection that breaks": ("has none", "made anew; what was not confirmed is sent again with the same id"),
    "low on memory": ("has no such limit", "publish waits and says so; OVERLOADED after 30 s"),
    "clients of others": ("none", "any AMQP client publishes and receives"),
}


def check_queue(queue: Queue) -> None:
    """Refuse what RabbitMQ cannot do.

    Raises:
        RefusedError: With the reason.
    """
    for option, why in _find_unsupported(queue):
        raise RefusedError(
            f'queue "{queue.name}" cannot have {option} on RabbitMQ',
            detail=why,
            fix="leave it out, or keep the queue in the data folder",
            location=queue.location,
            queue=queue.name,
        )


def check_message_support(queue: str, message: OutgoingMessage) -> None:
    """Refuse what RabbitMQ cannot do with a message.

    Raises:
        RefusedError: With the reason.
    """
    ours = next((name for name in message.headers if name.startswith(("hw-", "x-"))), None)
    if message.priority:
        what, why = "a priority", "its quorum queues have none"
    elif ours is not None:
        what, why = f"the header {ours}", "names that begin with hw- are ours, those with x- RabbitMQ's"
    elif max(message.ttl or timedelta(0), message.delay) > MAX_DELAY:
        what, why = "such a ttl or delay", f"RabbitMQ keeps no message longer than {MAX_DELAY} for that"
    else:
        return
    fix = "leave it out, or keep the queue in the data folder"
    raise RefusedError(f'a message of queue "{queue}" cannot have {what} on RabbitMQ', detail=why, fix=fix, queue=queue)


def _find_unsupported(queue: Queue) -> Iterator[tuple[str, str]]:
    """Options that RabbitMQ cannot do, and why."""
    if queue.ordered:
        yield "ordered", "RabbitMQ has no order per key with several receivers"
    if "deduplication_window" in (queue.given or ()) and queue.deduplication_window:
        yield "deduplication_window", "RabbitMQ takes every message, whatever its id"
    if queue.limit is not None and len(queue.groups) > 1:
        yield "limit", "with several groups, one could take a message that another has refused"
    if queue.limit is not None and queue.overload.when_full not in (WhenFull.WAIT, WhenFull.DROP_NEWEST):
        yield "overload", "RabbitMQ drops the newest message or none, if it is to lose no other"
    for name in (name for group in queue.groups for name in group.headers if name.startswith("x-")):
        yield name, "RabbitMQ does not compare headers that begin with x-"
    if max(queue.retry.longest * (1 + queue.retry.jitter), queue.ttl or timedelta(0)) > MAX_DELAY:
        yield "ttl or retry", f"RabbitMQ keeps no message longer than {MAX_DELAY} for that"
