"""Worker threads of an app in one process.

A `WorkerThread` receives messages of one worker, calls its function and settles the messages. `VisibilityExtender`
extends the visibility timeout of messages until they are settled. `WorkerPool` runs all of them, and the bridges.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Final

from headwater.client import Client
from headwater.errors import BadEventError, HeadwaterError, UnreachableError
from headwater.queues import Bridge, Broker, Message, Receiver, Reject, Worker
from headwater.queues.message import MessageCodec, format_traceback
from headwater.workers.bridge import BridgeRunner, open_runner, run_bridge

__all__ = ["VisibilityExtender", "WorkerPool", "WorkerThread"]

logger = logging.getLogger("headwater.workers")
_EXTENSIONS_PER_TIMEOUT: Final = 3  # more than one, so that a late extension is harmless


class VisibilityExtender:
    """One thread that extends the visibility timeout of messages in progress; it sleeps while none is due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Message, tuple[float, float]] = {}  # time of the next extension, and the interval, in seconds
        self._next_due = math.inf
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="headwater-extender", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def keep_extending(self, message: Message, visibility_timeout: timedelta) -> Iterator[None]:
        """Extend the visibility timeout of a message until the block ends."""
        every = visibility_timeout.total_seconds() / _EXTENSIONS_PER_TIMEOUT
        with self._changed:
            due = time.monotonic() + every
            self._due[message] = (due, every)
            if due < self._next_due:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._due.pop(message, None)

    def close(self) -> None:
        """Stop extending."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._next_due = min((at for at, _ in self._due.values()), default=math.inf)
                left = self._next_due - time.monotonic()
                if not self._closed and left > 0:
                    self._changed.wait(None if self._next_due == math.inf else left)
                if self._closed:
                    return
                now = time.monotonic()
                due = [message for message, (at, _) in self._due.items() if at <= now]
                for message in due:
                    self._due[message] = (now + self._due[message][1], self._due[message][1])
            for message in due:  # without the lock: an extension may wait for the broker
                try:
                    # Asked again afterwards: the worker may settle the message meanwhile.
                    if not message.settled and not message.extend() and not message.settled:
                        logger.warning("%r: the visibility timeout had expired; another worker may process it", message)
                except HeadwaterError as error:
                    logger.warning("%r: the visibility timeout could not be extended: %s", message, error.what)


_POLL_TIMEOUT: Final = 5.0  # seconds of one wait for messages, after which a thread checks whether to stop
_ASYNC_POLL_TIMEOUT: Final = 1.0  # the same for async workers, whose wait `interrupt` does not end


class WorkerThread:
    """A thread that processes the messages of one worker until it is told to stop.

    Args:
        broker: The broker to receive from.
        worker: The declaration of the worker.
        extender: Extends the visibility timeout of messages in progress.
        number: The number of this thread among those of its worker.
    """

    def __init__(self, broker: Broker, worker: Worker, extender: VisibilityExtender, number: int = 1) -> None:
        queue = broker.queue(worker.queue)
        self.worker = worker
        self._visibility_timeout = queue.visibility_timeout
        self._extender = extender
        self._codec = MessageCodec(queue.schema, worker.arguments.as_)
        who = f"{worker.name}#{number} {socket.gethostname()}/{os.getpid()}"
        # Guards the step from "stopping is not set" to busy, so that `interrupt` never closes the receiver of a
        # message that is about to be processed.
        self._lock = threading.Lock()
        self._busy = False
        self._receiver: Receiver = broker.receiver(worker.queue, worker.group, worker=who, prefetch=worker.prefetch)

    def run(self, stopping: threading.Event) -> None:
        """Process messages until `stopping`; messages received but not started are requeued."""
        try:
            if self.worker.is_async:
                with asyncio.Runner() as runner:
                    runner.run(self._run_async(stopping))
            else:
                while not stopping.is_set():
                    self.run_once(_POLL_TIMEOUT, stopping)
        finally:
            self.close()

    def run_once(self, timeout: float, stopping: threading.Event | None = None) -> int:
        """Receive messages, waiting up to `timeout` seconds, and process them; returns their number."""
        found = self._receiver.receive(timeout, self.worker.prefetch)
        messages = [Message(self._receiver, delivery, self._codec) for delivery in found]
        for message in messages:
            with self._lock:
                if stopping is not None and stopping.is_set():
                    break
                self._busy = True
            self._process(message)
            self._busy = False
        return len(messages)

    def interrupt(self) -> None:
        """End a wait for messages, after `stopping` was set; a running function may finish."""
        with self._lock:
            idle = not self._busy
        if idle and not self.worker.is_async:
            self.close()

    def close(self) -> None:
        """Requeue unsettled messages."""
        self._receiver.close()

    def _process(self, message: Message) -> None:
        with self._extender.keep_extending(message, self._visibility_timeout):
            try:
                result = self.worker.function(*self.worker.arguments.bind(message))
                if self.worker.is_async:
                    asyncio.run(result)
                settle = message.ack
            except (Exception, SystemExit) as error:
                settle = self._settle_failure(message, error)
        _settle_once(message, settle)

    def _settle_failure(self, message: Message, error: BaseException) -> Callable[[], bool]:
        """Returns the call that settles a message after its function has raised."""
        if isinstance(error, Reject):
            return partial(message.reject, str(error), stack=format_traceback(error))
        if isinstance(error, BadEventError):
            # The function itself may raise it. If the value is the cause, no later attempt can succeed.
            try:
                _ = message.value
            except BadEventError:
                return partial(message.reject, error.what)
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        logger.info("%s failed on %r: %s", self.worker.name, message, why)
        return partial(message.nack, why, stack=format_traceback(error))

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
                for delivery in await loop.run_in_executor(pool, self._receiver.receive, _ASYNC_POLL_TIMEOUT, free):
                    message = Message(self._receiver, delivery, self._codec)
                    task = loop.create_task(self._process_async(message, pool))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            if under_way:
                await asyncio.wait(under_way)

    async def _process_async(self, message: Message, pool: ThreadPoolExecutor) -> None:
        with self._extender.keep_extending(message, self._visibility_timeout):
            try:
                await self.worker.function(*self.worker.arguments.bind(message))
                settle = message.ack
            except (Exception, SystemExit) as error:
                settle = self._settle_failure(message, error)
        await asyncio.get_running_loop().run_in_executor(pool, _settle_once, message, settle)


def _settle_once(message: Message, settle: Callable[[], bool]) -> None:
    """Settle the message unless the function has settled it itself."""
    if not message.settled and not settle():
        logger.warning("%r was settled after its visibility timeout: it may be delivered again", message)


class WorkerPool:
    """Runs workers on a broker, and bridges between topics and queues; the queues must exist.

    Args:
        client: The client of the log and the broker.
        workers: The workers to run.
        bridges: The bridges to run.

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
        >>> pool = WorkerPool(client, emails.workers)
        >>> pool.drain(), pool.stop()
        to ada
        (1, None)
        >>> client.close()
    """

    def __init__(self, client: Client, workers: Sequence[Worker], bridges: Sequence[Bridge] = ()) -> None:
        self._client = client
        self._broker: Broker = client.broker
        self._bridges = bridges
        self._stopping = threading.Event()
        self._extender = VisibilityExtender()
        self._workers = workers
        self._worker_threads: list[WorkerThread] = []
        self._threads: list[threading.Thread] = []  # those of `_worker_threads` first, in the same order
        self.error: HeadwaterError | None = None
        """The first error that ended a thread."""
        self.failed = threading.Event()
        """Set when an error has ended a thread."""

    def start(self) -> None:
        """Start the threads."""
        for worker in self._workers:
            for number in range(1, worker.threads + 1):
                worker_thread = WorkerThread(self._broker, worker, self._extender, number)
                self._worker_threads.append(worker_thread)
                self._add_thread(f"{worker.name}-{number}", partial(worker_thread.run, self._stopping))
        for bridge in self._bridges:
            self._add_thread(bridge.name, partial(run_bridge, self._client, bridge, self._stopping))
        for thread in self._threads:
            thread.start()

    def _add_thread(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run, args=[name, work], name=f"headwater-{name}", daemon=True)
        self._threads.append(thread)

    def drain(self) -> int:
        """Process in this thread until no message is available; returns the number of messages."""
        runners: list[WorkerThread | BridgeRunner] = [
            WorkerThread(self._broker, worker, self._extender) for worker in self._workers
        ]
        runners += [open_runner(self._client, bridge) for bridge in self._bridges]
        total = 0
        try:
            while done := sum(runner.run_once(0) for runner in runners):
                total += done
        finally:
            for runner in runners:
                runner.close()
        return total

    def stop(self, grace: timedelta = timedelta(seconds=10)) -> None:
        """Stop receiving; running functions may finish within `grace`, and the rest is requeued."""
        self._stopping.set()
        for worker_thread in self._worker_threads:
            worker_thread.interrupt()
        deadline = time.monotonic() + grace.total_seconds()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for worker_thread, thread in zip(self._worker_threads, self._threads, strict=False):
            if thread.is_alive():
                logger.warning("%s did not finish in time; its messages are requeued", worker_thread.worker.name)
                worker_thread.close()
        self._extender.close()

    def _run(self, name: str, work: Callable[[], None]) -> None:
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
