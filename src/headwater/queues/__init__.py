"""Messages handed out one by one: each to one worker of a group, again until it is acknowledged, then gone.

In come messages, each confirmed once it is safe; out come deliveries that are acknowledged, given back or rejected.
Enter at `protocol.py`: what every broker does. `embedded/` keeps messages in the data folder; `declared.py` has
what an app says about a queue, `message.py` what a receiver holds.
"""

from headwater.queues.declared import DeclaredQueue, QueueOptions
from headwater.queues.definition import Group, Queue, Retry, group, retry
from headwater.queues.feed import Feed, Into
from headwater.queues.message import Message, Reject
from headwater.queues.places import broker_place, open_broker
from headwater.queues.protocol import (
    Attempt,
    Broker,
    Confirmed,
    DeadLetter,
    Delivery,
    GroupCounts,
    Outgoing,
    Receiver,
    Settled,
)
from headwater.queues.worker import Worker

__all__ = [
    "Attempt",
    "Broker",
    "Confirmed",
    "DeadLetter",
    "DeclaredQueue",
    "Delivery",
    "Feed",
    "Group",
    "GroupCounts",
    "Into",
    "Message",
    "Outgoing",
    "Queue",
    "QueueOptions",
    "Receiver",
    "Reject",
    "Retry",
    "Settled",
    "Worker",
    "broker_place",
    "group",
    "open_broker",
    "retry",
]
