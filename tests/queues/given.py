"""Helpers for tests of the embedded queue: brokers, messages, and processes killed at a chosen SQL statement."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater.queues.embedded import EmbeddedBroker, EmbeddedReceiver
from headwater.queues.protocol import Delivery, OutgoingMessage
from headwater.queues.queue import Queue, retry
from tests.faults.processes import fork, wait_for

AT_ONCE = retry(3, backoff="0s", jitter=0)


def opened(folder: Path, **options: Any) -> EmbeddedBroker:
    return declare(EmbeddedBroker(folder), **options)


def declare(broker: EmbeddedBroker, **options: Any) -> EmbeddedBroker:
    """Declare a queue `q`, with retries without a delay unless the options say otherwise; returns the broker."""
    broker.declare(Queue.declare("q", **{"retry": AT_ONCE, **options}))
    return broker


def taken(broker: EmbeddedBroker, most: int = 100, group: str = "") -> tuple[EmbeddedReceiver, list[Delivery]]:
    receiver = broker.receiver("q", group, prefetch=most)
    return receiver, receiver.receive(max_messages=most)


def numbered(first: int, number: int, **about: Any) -> list[OutgoingMessage]:
    return [OutgoingMessage(str(at).encode(), **about) for at in range(first, first + number)]


def killed_at(statement: int, folder: Path, work: Callable[[EmbeddedBroker], Callable[[], object]]) -> bool:
    """Run work in a child that is killed at the SQL statement with this number; returns whether it was.

    `work` prepares, and returns the step whose statements are counted. A child that reaches the end exits with code 7.
    """

    def child() -> None:
        broker = EmbeddedBroker(folder)
        step, seen = work(broker), 0

        def count(_: str) -> None:
            nonlocal seen
            if seen == statement:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        broker._file("q")._connection.set_trace_callback(count)
        step()
        os._exit(7)

    ended = wait_for(fork(child))
    assert ended in (7, -signal.SIGKILL)
    return ended != 7
