"""All workers of an app, or some of them, in the threads of one process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from headwater.errors import HeadwaterError, UnreachableError
from headwater.queues import Broker, Worker
from headwater.workers.feeding import Feeder
from headwater.workers.hand import Hand
from headwater.workers.keeping import Keeping

__all__ = ["Crew"]

logger = logging.getLogger("headwater.workers")


class Crew:
    """Runs workers on a broker; their queues exist.

    Args:
        broker: Where the messages are.
        workers: What to do with them.
        feeders: What else is to run meanwhile, between topics and queues.

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
        >>> crew = Crew(client.broker, emails.workers)
        >>> crew.drain(), crew.stop()
        to ada
        (1, None)
        >>> client.close()
    """

    def __init__(self, broker: Broker, workers: Sequence[Worker], feeders: Sequence[Feeder] = ()) -> None:
        self._broker = broker
        self._stopping = threading.Event()
        self._keeping = Keeping()
        self._workers = workers
        self._feeders = feeders
        self._hands: list[Hand] = []
        self._threads: list[threading.Thread] = []
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
        for feeder in self._feeders:
            self._threads.append(threading.Thread(target=self._run, args=[feeder], daemon=True))
        for thread in self._threads:
            thread.start()

    def drain(self) -> int:
        """Work in this thread until no message can be taken now; how many there were."""
        hands = [Hand(self._broker, worker, self._keeping) for worker in self._workers]
        total = 0
        try:
            while done := sum(one.once(0) for one in self._feeders) + sum(hand.once(0) for hand in hands):
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
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for hand, thread in zip(self._hands, self._threads, strict=False):
            if thread.is_alive():
                logger.warning("%s did not finish in time; its message is given back", hand.worker.name)
                hand.close()
        for feeder in self._feeders if not self._threads else ():  # those in threads close by themselves
            feeder.close()
        self._keeping.close()

    def _run(self, hand: Hand | Feeder) -> None:
        try:
            hand.run(self._stopping)
        except HeadwaterError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("%s ended", threading.current_thread().name)
            self._fail(UnreachableError(f"a worker ended: {type(error).__name__}: {error}"))

    def _fail(self, error: HeadwaterError) -> None:
        if not self._stopping.is_set():
            self.error = self.error or error
            self.failed.set()
