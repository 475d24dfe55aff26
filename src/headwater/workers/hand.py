"""One thread of a worker: takes messages, calls the function, settles."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from headwater.errors import BadEventError
from headwater.queues import Broker, Message, Receiver, Reject, Worker
from headwater.queues.body import Bodies
from headwater.queues.message import failure
from headwater.workers.keeping import Keeping

__all__ = ["Hand"]

logger = logging.getLogger("headwater.workers")
_LOOK: Final = 5.0  # seconds after which a hand that waits sees at the latest that it is to stop
_LOOK_ASYNC: Final = (
    1.0  # the same where others of its messages may be under way, so that nobody ends its wait
)


class Hand:
    """Works on the messages of one worker until it is told to stop.

    Args:
        broker: Where the messages are.
        worker: What to do with them.
        keeping: Extends what is under way.
        number: Tells the hands of one worker apart.
    """

    def __init__(self, broker: Broker, worker: Worker, keeping: Keeping, number: int = 1) -> None:
        queue = broker.queue(worker.queue)
        self.worker = worker
        self._visible = queue.visible
        self._keeping = keeping
        self._bodies = Bodies(queue.schema, worker.takes.as_)
        who = f"{worker.name}#{number} {socket.gethostname()}/{os.getpid()}"
        self._lock = threading.Lock()
        self._busy = False
        self._receiver: Receiver = broker.receiver(
            worker.queue, worker.group, worker=who, prefetch=worker.prefetch
        )

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping`; what was taken and not begun by then goes back."""
        try:
            if self.worker.asynchronous:
                with asyncio.Runner() as runner:
                    runner.run(self._run_async(stopping))
            else:
                while not stopping.is_set():
                    self.once(_LOOK, stopping)
        finally:
            self.close()

    def once(self, timeout: float, stopping: threading.Event | None = None) -> int:
        """Take what is there, wait for it up to `timeout` seconds, and work on it; how many messages there were."""
        found = self._receiver.receive(timeout, self.worker.prefetch)
        messages = [Message(self._receiver, delivery, self._bodies) for delivery in found]
        for message in messages:
            with self._lock:
                if stopping is not None and stopping.is_set():
                    break
                self._busy = True
            self._work(message)
            self._busy = False
        return len(messages)

    def hurry(self) -> None:
        """End a wait for messages, after `stopping` was set; what is being worked on may finish."""
        with self._lock:
            idle = not self._busy
        if idle and not self.worker.asynchronous:
            self.close()

    def close(self) -> None:
        """Give back what is not settled."""
        self._receiver.close()

    def _work(self, message: Message) -> None:
        with self._keeping.kept(message, self._visible):
            settle = self._outcome(message, self._called)
        settle()

    def _called(self, message: Message) -> None:
        result = self.worker.function(*self.worker.takes.arguments(message))
        if self.worker.asynchronous:
            asyncio.run(result)

    def _outcome(self, message: Message, call: Callable[[Message], Any]) -> Callable[[], Any]:
        try:
            call(message)
        except (Exception, SystemExit) as error:
            return self._failed(message, error)
        return partial(_unless_settled, message, message.ack)

    def _failed(self, message: Message, error: BaseException) -> Callable[[], Any]:
        """What is to be done with a message on which the function failed, or which it cannot take."""
        if isinstance(error, Reject):
            return partial(
                _unless_settled, message, partial(message.reject, str(error), stack=failure(error))
            )
        if isinstance(error, BadEventError) and _unfit(message):
            return partial(_unless_settled, message, partial(message.reject, error.what))
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        logger.info("%s failed on %r: %s", self.worker.name, message, why)
        return partial(_unless_settled, message, partial(message.nack, why, stack=failure(error)))

    # -- async functions -----------------------------------------------------------------------------------------

    async def _run_async(self, stopping: threading.Event) -> None:
        under_way: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix=f"headwater-{self.worker.name}") as pool:
            while not stopping.is_set():
                free = self.worker.prefetch - len(under_way)
                if not free:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for delivery in await loop.run_in_executor(pool, self._receiver.receive, _LOOK_ASYNC, free):
                    message = Message(self._receiver, delivery, self._bodies)
                    task = loop.create_task(self._work_async(message, pool))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            if under_way:
                await asyncio.wait(under_way)

    async def _work_async(self, message: Message, pool: ThreadPoolExecutor) -> None:
        with self._keeping.kept(message, self._visible):
            try:
                await self.worker.function(*self.worker.takes.arguments(message))
            except (Exception, SystemExit) as error:
                settle = self._failed(message, error)
            else:
                settle = partial(_unless_settled, message, message.ack)
        await asyncio.get_running_loop().run_in_executor(pool, settle)


def _unless_settled(message: Message, settle: Callable[[], Any]) -> None:
    """A function that has the message may have settled it by itself."""
    if not message.settled and not settle():
        logger.warning("%r was settled too late: it may be worked on once more", message)


def _unfit(message: Message) -> bool:
    """Whether the value itself is the cause: then no later attempt can succeed."""
    try:
        _ = message.value
    except BadEventError:
        return True
    return False
