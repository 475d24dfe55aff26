"""Messages of a queue: waiting, then acknowledged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.growth.figures import Figure, cost, disk_row, memory_rows
from benchmarks.growth.log_cases import Case
from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.protocol import OutgoingMessage
from headwater.queues.queue import Queue

__all__ = ["MESSAGES"]

_BLOCK = 1_000


def _create(folder: Path, size: int) -> None:
    broker = EmbeddedBroker(folder)
    broker.declare(Queue.declare("work"))
    body = b"x" * 200
    for start in range(0, size, _BLOCK):
        broker.publish("work", [OutgoingMessage(body) for _ in range(min(_BLOCK, size - start))])
    broker.close()


def _measure(folder: Path, size: int, quick: bool) -> Iterator[Figure]:
    repeats = 3 if quick else 50
    yield disk_row("queue on disk", folder)
    yield cost("broker, start", lambda: EmbeddedBroker(folder).close(), repeats)
    broker = EmbeddedBroker(folder)
    receiver = broker.receiver("work", prefetch=_BLOCK)

    def round_trip() -> None:
        broker.publish("work", [OutgoingMessage(b"y" * 200)])
        receiver.ack(receiver.receive(timeout=10, max_messages=1))

    yield cost("publish, receive and acknowledge", round_trip, repeats)
    yield cost("counts", lambda: broker.counts("work"), repeats)
    yield from memory_rows("broker", [os.getpid()])
    left = size
    while left > 0:
        taken = receiver.receive(timeout=10, max_messages=_BLOCK)
        receiver.ack(taken)
        left -= len(taken)
    yield cost("the same after all were acknowledged", round_trip, repeats)
    receiver.close()
    broker.close()
    yield disk_row("queue on disk after all were acknowledged", folder)


MESSAGES: Case = (_create, _measure)
