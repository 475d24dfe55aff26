"""Message queues: a group delivers each message to one worker, and again until it is acknowledged.

Published messages are confirmed once they are durable. Deliveries are acknowledged, nacked or rejected. Enter at
protocol.py, which declares `Broker`; `embedded` implements it in the data folder and `rabbitmq` on RabbitMQ.
queue.py and declarations.py hold what an app declares, message.py what a receiver gets; `request_reply` is for
requests and answers.
"""

from headwater.queues.declarations import Bridge, DeclaredQueue, QueueOptions, TargetKind, Worker
from headwater.queues.message import Message, Reject
from headwater.queues.protocol import (
    Attempt,
    Broker,
    DeadLetter,
    GroupCounts,
    OutgoingMessage,
    PublishConfirm,
    Receiver,
)
from headwater.queues.queue import Group, Queue, Retry, group, retry

__all__ = [
    "Attempt",
    "Bridge",
    "Broker",
    "DeadLetter",
    "DeclaredQueue",
    "Group",
    "GroupCounts",
    "Message",
    "OutgoingMessage",
    "PublishConfirm",
    "Queue",
    "QueueOptions",
    "Receiver",
    "Reject",
    "Retry",
    "TargetKind",
    "Worker",
    "group",
    "retry",
]
