"""The embedded broker: a folder for each queue, shared by all processes of a machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from headwater.errors import OverloadedError, UsageError
from headwater.events import Clock, SystemClock
from headwater.log.topic import check_name, check_name_clash
from headwater.queues.embedded.bridge import claim_for_topic, confirm_in_topic, publish_from
from headwater.queues.embedded.dead_letters import PAGE_SIZE, read_dead_letters, redrive
from headwater.queues.embedded.delivery import release_due
from headwater.queues.embedded.publish import PublishRequest, QueueFull, publish
from headwater.queues.embedded.queue_file import QueueFile
from headwater.queues.embedded.receiver import EmbeddedReceiver
from headwater.queues.embedded.transaction import COUNT_COLUMNS, QueueTransaction
from headwater.queues.message import check_message
from headwater.queues.protocol import BridgeBatch, DeadLetter, GroupCounts, OutgoingMessage, PublishConfirm
from headwater.queues.queue import Queue, check_prefetch, unknown_group_error, unknown_queue_error
from headwater.queues.routing import Router

__all__ = ["EmbeddedBroker"]


class EmbeddedBroker:
    """Queues in a folder; threads may share it, other processes open their own.

    Args:
        folder: The folder of all queues, `queues` in the data folder.
        clock: The clock; the system's by default.

    Example:
        >>> import tempfile
        >>> with EmbeddedBroker(Path(tempfile.mkdtemp())) as broker:
        ...     _ = broker.declare(Queue.declare("emails"))
        ...     _ = broker.publish("emails", [OutgoingMessage(b'{"to": "ada"}', id="m-1")])
        ...     [again] = broker.publish("emails", [OutgoingMessage(b'{"to": "ada"}', id="m-1")])
        ...     again.duplicate, broker.counts("emails")[0].waiting
        (True, 1)
    """

    counts_all_processes = True
    """The counts are in the queue's file."""

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        self._mutex = threading.Lock()  # guards `_files`, `_receivers` and `_closed`; steps run without it
        self._files: dict[str, QueueFile] = {}
        self._routers: dict[str, tuple[Queue, Router]] = {}
        self._receivers: list[EmbeddedReceiver] = []
        self._closed = False

    # -- definitions -------------------------------------------------------------------------------------------

    def declare(self, queue: Queue) -> Queue:
        """Create a queue, or update it to this definition.

        Raises:
            QueueExistsError: It exists with settings that cannot be changed in place.
            BadNameError: The name clashes with that of another queue.
        """
        check_name(queue.name, what="queue")
        queue.check()
        with self._mutex:
            self._check_open()
            file = self._find_open(queue.name)
            if file is None:
                others = [other for other in self.queues() if other != queue.name]
                check_name_clash(queue.name, others, what="queue")
                file = QueueFile(self._folder / queue.name, self._clock, queue)
                self._files[queue.name] = file
                return file.queue
        return file.declare(queue)

    def queues(self) -> list[str]:
        """Returns the names of all queues."""
        found = self._folder.iterdir() if self._folder.is_dir() else ()
        # "~" marks the folder of a queue that is being deleted.
        return sorted(folder.name for folder in found if "~" not in folder.name and QueueFile.exists(folder))

    def delete(self, name: str) -> None:
        """Remove a queue and all its messages; processes that have it open get an error."""
        file = self._file(name)
        file.delete()
        with self._mutex:
            self._files.pop(name, None)
        file.close()

    def queue(self, name: str) -> Queue:
        """Returns a queue's definition."""
        return self._file(name).run(lambda transaction: transaction.queue)

    def _file(self, name: str) -> QueueFile:
        with self._mutex:
            self._check_open()
            found = self._find_open(name)
            if found is None:
                if name not in self.queues():
                    raise unknown_queue_error(name, self.queues())
                found = self._files[name] = QueueFile(self._folder / name, self._clock)
            return found

    def _find_open(self, name: str) -> QueueFile | None:
        """Returns the queue if it is open; closes it if it was deleted meanwhile."""
        found = self._files.get(name)
        if found is None or not found.is_deleted:
            return found
        del self._files[name]
        found.close()
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the broker is closed", fix="open it again")

    # -- messages ----------------------------------------------------------------------------------------------

    def publish(self, name: str, messages: Sequence[OutgoingMessage]) -> list[PublishConfirm]:
        """Publish messages; returns when all are confirmed.

        Raises:
            OverloadedError: The queue stayed full until the timeout of its policy; nothing was published.
            BadEventError: A message is invalid; nothing was published.
        """
        return self._publish(name, messages, publish)

    def _publish(
        self,
        name: str,
        messages: Sequence[OutgoingMessage],
        step: Callable[..., list[PublishConfirm] | QueueFull | None],
    ) -> list[PublishConfirm]:
        file = self._file(name)
        for row, message in enumerate(messages):
            check_message(message, row)
        started = time.monotonic()
        while messages:
            queue = file.queue
            # Read before the attempt: room made after it must end the wait below.
            generation = file.capacity_notifier.generation() if queue.limit is not None else 0
            request = PublishRequest(queue, messages, self._router(queue).route(messages))
            outcome = file.run(partial(step, request=request), rows=len(messages))
            if isinstance(outcome, QueueFull):
                _wait_for_room(file, outcome, len(messages), started, generation)
            elif outcome is not None:
                file.sync()
                return outcome
        return []

    def _router(self, queue: Queue) -> Router:
        known = self._routers.get(queue.name)
        if known is None or known[0] is not queue:
            known = self._routers[queue.name] = (queue, Router(queue))
        return known[1]

    def receiver(self, name: str, group: str = "", *, worker: str = "", prefetch: int = 1) -> EmbeddedReceiver:
        """Returns a receiver for a group; up to `prefetch` deliveries may be unsettled at a time."""
        check_prefetch(prefetch)
        file = self._file(name)
        receiver = EmbeddedReceiver(file, self._group_number(file, group), worker, prefetch)
        with self._mutex:
            self._receivers = [known for known in self._receivers if not known.is_closed] + [receiver]
        return receiver

    def _group_number(self, file: QueueFile, group: str) -> int:
        groups = file.run(lambda transaction: transaction.groups)
        if group not in groups:
            raise unknown_group_error(file.queue.name, group, list(groups))
        return groups[group]

    def notify(self, name: str) -> None:
        """Wake waiting receivers in all processes; for tests that advance a test clock."""
        self._file(name).notifier.notify()

    # -- from and to topics --------------------------------------------------------------------------------------

    def publish_from(
        self, name: str, bridge: str, messages: Sequence[tuple[int, OutgoingMessage]]
    ) -> list[PublishConfirm]:
        """Publish messages made from events, in offset order; skips offsets published before.

        Example:
            >>> import tempfile
            >>> with EmbeddedBroker(Path(tempfile.mkdtemp())) as broker:
            ...     _ = broker.declare(Queue.declare("emails"))
            ...     _ = broker.publish_from("emails", "orders/0", [(7, OutgoingMessage(b'"a"'))])
            ...     again = [(7, OutgoingMessage(b'"a"')), (8, OutgoingMessage(b'"b"'))]
            ...     len(broker.publish_from("emails", "orders/0", again))
            1
        """
        offsets = [offset for offset, _ in messages]
        step = partial(publish_from, bridge=bridge, offsets=offsets)
        return self._publish(name, [message for _, message in messages], step)

    def claim_for_topic(
        self, name: str, group: str, bridge: str, *, max_messages: int = 500, min_sequence: int = 0, timeout: float = 0
    ) -> BridgeBatch | None:
        """Claim messages for a topic; returns the same ones until `confirm_in_topic`, and None after `timeout`.

        Args:
            name: The name of the queue.
            group: The group to read.
            bridge: The name of the bridge; it has one batch at a time.
            max_messages: The largest number of messages.
            min_sequence: The smallest sequence number for new messages: after the last one in the topic.
            timeout: Seconds to wait for the first message.
        """
        file = self._file(name)
        deadline = time.monotonic() + timeout
        step = partial(
            claim_for_topic,
            group=self._group_number(file, group),
            bridge=bridge,
            max_messages=max_messages,
            min_sequence=min_sequence,
        )
        while True:
            generation = file.notifier.generation()
            found = file.run(step, rows=max_messages)
            left = deadline - time.monotonic()
            if found is not None:
                file.sync()  # before the topic gets them: after a power cut they must keep their sequence numbers
                return found
            if left <= 0:
                return None
            file.notifier.wait(generation, min(left, 1.0))  # no notification tells that a delayed message is due

    def confirm_in_topic(
        self, name: str, batch: BridgeBatch, refused: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """Confirm that messages are in the topic; `refused` ones, by index, become dead letters with the reason."""
        self._file(name).run(partial(confirm_in_topic, batch=batch, refused=refused))

    # -- counts and dead letters -------------------------------------------------------------------------------------

    def counts(self, name: str) -> list[GroupCounts]:
        """Returns the counts of each group; undeclared groups are included while they have messages."""

        def step(transaction: QueueTransaction) -> list[GroupCounts] | None:
            # A list, not a generator: `release_due` has to run for each group.
            if any([release_due(transaction, group) for group in transaction.groups.values()]):
                return None
            transaction.write_counts()
            declared = {group.name for group in transaction.queue.groups}
            rows = transaction.execute(f"SELECT name, {', '.join(COUNT_COLUMNS)} FROM grp ORDER BY number")
            found = [GroupCounts(*row) for row in rows]
            return [
                each
                for each in found
                if each.group in declared or any((each.waiting, each.delayed, each.in_flight, each.dead))
            ]

        while (found := self._file(name).run(step)) is None:
            pass
        return found

    def dead_letters(self, name: str, group: str | None = None) -> Iterator[DeadLetter]:
        """Returns dead letters, oldest first."""
        file, after = self._file(name), 0
        while True:
            page = file.run(partial(read_dead_letters, group=group, after=after))
            yield from page
            if len(page) < PAGE_SIZE:
                return
            after = page[-1].number

    def redrive(self, name: str, letters: Iterable[DeadLetter]) -> int:
        """Redrive dead letters, each with the message it has now; returns how many were still dead letters."""
        file, rest, redriven = self._file(name), iter(letters), 0
        while page := list(islice(rest, PAGE_SIZE)):
            for row, letter in enumerate(page):
                check_message(letter.message, row)
            redriven += file.run(partial(redrive, letters=page), rows=len(page))
            file.sync()
        return redriven

    def close(self) -> None:
        """Requeue what receivers hold, and close the files."""
        with self._mutex:
            self._closed = True
            receivers, self._receivers = self._receivers, []
            files, self._files = list(self._files.values()), {}
        for receiver in receivers:
            receiver.close()
        for file in files:
            file.close()

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait_for_room(file: QueueFile, full: QueueFull, number: int, started: float, generation: int) -> None:
    timeout = file.queue.overload.timeout
    left = None if timeout is None else started + timeout.total_seconds() - time.monotonic()
    if number > full.limit or (left is not None and left <= 0):
        raise OverloadedError(
            f'queue "{file.queue.name}" has no room for {number:,} messages: {full.waiting:,} of {full.limit:,} wait',
            detail="its overload policy is backpressure; nothing of this call was published",
            fix="publish fewer at a time" if number > full.limit else "publish again later",
            waiting=full.waiting,
            limit=full.limit,
            group=full.group,
        )
    file.capacity_notifier.wait(generation, left)
