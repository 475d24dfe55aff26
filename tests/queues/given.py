"""What tests of the embedded queue start from: processes that take turns with it and are killed at a chosen step."""

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
    """A broker with a queue `q`; retries are at once unless the options say otherwise."""
    broker = EmbeddedBroker(folder)
    broker.declare(Queue.declare("q", **{"retry": AT_ONCE, **options}))
    return broker


def declare(broker: EmbeddedBroker, **options: Any) -> EmbeddedBroker:
    broker.declare(Queue.declare("q", **{"retry": AT_ONCE, **options}))
    return broker


def taken(broker: EmbeddedBroker, most: int = 100, group: str = "") -> tuple[EmbeddedReceiver, list[Delivery]]:
    receiver = broker.receiver("q", group, prefetch=most)
    return receiver, receiver.receive(max_messages=most)


def numbered(first: int, number: int, **about: Any) -> list[OutgoingMessage]:
    return [OutgoingMessage(str(at).encode(), **about) for at in range(first, first + number)]


def killed_at(statement: int, folder: Path, work: Callable[[EmbeddedBroker], Callable[[], object]]) -> bool:
    """Run work in a child that is killed when it comes to its so-manieth statement; True if it was.

    `work` prepares, and returns the step that is counted. A child that comes to the end is killed too.
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
