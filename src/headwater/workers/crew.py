"""All workers of an app, or some of them, in the threads of one process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from headwater.client import Client
from headwater.errors import HeadwaterError, UnreachableError
from headwater.queues import Broker, Feed, Worker
from headwater.workers.feeding import Carrier, carrier, carry
from headwater.workers.hand import Hand
from headwater.workers.keeping import Keeping

__all__ = ["Crew"]

logger = logging.getLogger("headwater.workers")


class Crew:
    """Runs workers on a broker, and what carries events and messages between topics and queues; the queues exist.

    Args:
        client: Where messages and events are.
        workers: What to do with messages.
        feeds: What to carry.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> app = hw.App("shop")
        >>> emails = app.queue("emails")
        >>> @emails.worker
        ... def send(email):
        ...     print("to", email["to"])
        >>> _ = client.broker.declare(emails.definition)
        >>> with client.queue("emails") as queue:
        ...     _ = queue.publish({"to": "ada"})
        >>> crew = Crew(client, emails.workers)
        >>> crew.drain(), crew.stop()
        to ada
        (1, None)
        >>> client.close()
    """

    def __init__(self, client: Client, workers: Sequence[Worker], feeds: Sequence[Feed] = ()) -> None:
        self._client = client
        self._broker: Broker = client.broker
        self._feeds = feeds
        self._stopping = threading.Event()
        self._keeping = Keeping()
        self._workers = workers
        self._hands: list[Hand] = []
        self._threads: list[threading.Thread] = []
        self._carriers: list[threading.Thread] = []
        self.error: HeadwaterError | None = None
        """Why it had to stop by itself; None as long as it did not."""
        self.failed = threading.Event()
        """Set when it had to stop by itself."""

    def start(self) -> None:
        """Begin to work, in threads."""
        for worker in self._workers:
            for number in range(1, worker.threads + 1):
                hand = Hand(self._broker, worker, self._keeping, number)
                name = f"headwater-{worker.name}-{number}"
                self._hands.append(hand)
                self._threads.append(threading.Thread(target=self._run, args=[hand], name=name, daemon=True))
        for feed in self._feeds:
            carrying = partial(carry, self._client, feed, self._stopping)
            thread = threading.Thread(
                target=self._guarded, args=[feed.name, carrying], name=f"headwater-{feed.name}", daemon=True
            )
            self._carriers.append(thread)
        for thread in [*self._threads, *self._carriers]:
            thread.start()

    def drain(self) -> int:
        """Work in this thread until no message can be taken or carried now; how many there were."""
        hands: list[Hand | Carrier] = [Hand(self._broker, worker, self._keeping) for worker in self._workers]
        hands += [carrier(self._client, feed) for feed in self._feeds]
        total = 0
        try:
            while done := sum(hand.once(0) for hand in hands):
                total += done
        finally:
            for hand in hands:
                hand.close()
        return total

    def stop(self, grace: timedelta = timedelta(seconds=10)) -> None:
        """Take nothing more; what is under way may finish within `grace`, and the rest is given back."""
        self._stopping.set()
        for hand in self._hands:
            hand.hurry()
        deadline = time.monotonic() + grace.total_seconds()
        for thread in [*self._threads, *self._carriers]:
            thread.join(max(0.0, deadline - time.monotonic()))
        for hand, thread in zip(self._hands, self._threads, strict=True):
            if thread.is_alive():
                logger.warning("%s did not finish in time; its message is given back", hand.worker.name)
                hand.close()
        self._keeping.close()

    def _run(self, hand: Hand) -> None:
        self._guarded(f"the worker {hand.worker.name}", partial(hand.run, self._stopping))

    def _guarded(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except HeadwaterError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("%s ended", name)
            self._fail(UnreachableError(f"{name} ended: {type(error).__name__}: {error}"))

    def _fail(self, error: HeadwaterError) -> None:
        if not self._stopping.is_set():
            self.error = self.error or error
            self.failed.set()
