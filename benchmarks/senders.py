"""Concurrent senders: threads that start together and send one event after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["send_at_once"]


def send_at_once(send: Callable[[int], object], senders: int, count: int) -> None:
    """Call `send` with 0, 1, ... `count` times in each of `senders` threads; raises the error of a thread."""
    together = threading.Barrier(senders)

    def sender(first: int) -> None:
        together.wait()
        for number in range(first, first + count):
            send(number)

    with ThreadPoolExecutor(senders) as pool:
        for done in [pool.submit(sender, number * count) for number in range(senders)]:
            done.result()
