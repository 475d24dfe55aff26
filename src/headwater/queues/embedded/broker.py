"""The broker that needs no server: a folder for each queue, shared by all processes of a machine."""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from headwater.errors import (
    BadNameError,
    BadSettingError,
    OverloadedError,
    UnknownGroupError,
    UnknownQueueError,
    UsageError,
)
from headwater.events import Clock, SystemClock
from headwater.log.definition import check_name, same_file
from headwater.queues.checking import check_message
from headwater.queues.choosing import Chooser
from headwater.queues.definition import Queue
from headwater.queues.embedded.dead_letters import PAGE, read_dead, revive
from headwater.queues.embedded.handing import hand_over, handed_over, publish_from
from headwater.queues.embedded.publishing import Full, Offer, publish
from headwater.queues.embedded.queue_file import QueueFile
from headwater.queues.embedded.receiver import EmbeddedReceiver
from headwater.queues.embedded.taking import put_in_line
from headwater.queues.embedded.transaction import COUNTED, Transaction
from headwater.queues.protocol import Confirmed, DeadLetter, GroupCounts, Handover, Outgoing

__all__ = ["EmbeddedBroker"]


class EmbeddedBroker:
    """Queues in a folder; threads may share it, other processes open their own.

    Args:
        folder: Where queues are kept, `queues` in the data folder.
        clock: Tells the time.

    Example:
        >>> import tempfile
        >>> with EmbeddedBroker(Path(tempfile.mkdtemp())) as broker:
        ...     _ = broker.declare(Queue.declare("emails"))
        ...     _ = broker.publish("emails", [Outgoing(b'{"to": "ada"}', id="m-1")])
        ...     [again] = broker.publish("emails", [Outgoing(b'{"to": "ada"}', id="m-1")])
        ...     again.duplicate, broker.counts("emails")[0].waiting
        (True, 1)
    """

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        self._mutex = threading.Lock()
        self._files: dict[str, QueueFile] = {}
        self._choosers: dict[str, tuple[Queue, Chooser]] = {}
        self._receivers: list[EmbeddedReceiver] = []
        self._closed = False

    @property
    def counts_of_all(self) -> bool:
        """They are in the queue's file."""
        return True

    # -- definitions -------------------------------------------------------------------------------------------

    def declare(self, queue: Queue) -> Queue:
        """Create a queue, or bring it up to this definition.

        Raises:
            QueueExistsError: It exists with settings that cannot be changed in place.
            BadNameError: The name is too close to another's.
        """
        check_name(queue.name, what="queue")
        queue.check()
        with self._mutex:
            self._refuse_closed()
            file = self._opened(queue.name)
            if file is None:
                self._refuse_clash(queue.name)
                file = QueueFile(self._folder / queue.name, self._clock, queue)
                self._files[queue.name] = file
                return file.queue
        return file.declare(queue)

    def queues(self) -> list[str]:
        """Names of all queues."""
        found = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(folder.name for folder in found if "~" not in folder.name and QueueFile.there(folder))

    def delete(self, name: str) -> None:
        """Remove a queue and all its messages; who still has it open, here or elsewhere, is told that it is gone."""
        file = self._file(name)
        file.delete()
        with self._mutex:
            self._files.pop(name, None)
        file.close()

    def queue(self, name: str) -> Queue:
        """A queue's definition."""
        return self._file(name).run(lambda transaction: transaction.queue)

    def _refuse_clash(self, name: str) -> None:
        for other in self.queues():
            if other != name and same_file(other) == same_file(name):
                raise BadNameError(
                    f"{name!r} is too close to the queue {other!r}",
                    detail="names that differ only by case or by . against _ clash in file systems",
                    name=name,
                )

    def _file(self, name: str) -> QueueFile:
        with self._mutex:
            self._refuse_closed()
            found = self._opened(name)
            if found is None:
                if name not in self.queues():
                    raise _unknown_queue(name, self.queues())
                found = self._files[name] = QueueFile(self._folder / name, self._clock)
            return found

    def _opened(self, name: str) -> QueueFile | None:
        """The queue if it is open; one that was deleted meanwhile is let go."""
        found = self._files.get(name)
        if found is None or not found.gone:
            return found
        del self._files[name]
        found.close()
        return None

    def _refuse_closed(self) -> None:
        if self._closed:
            raise UsageError("the broker is closed", fix="open it again")

    # -- messages ----------------------------------------------------------------------------------------------

    def publish(self, name: str, messages: Sequence[Outgoing]) -> list[Confirmed]:
        """Take messages; comes back when all are safe.

        Raises:
            OverloadedError: The queue stayed full for the time that its policy gives; nothing was taken.
            BadEventError: A message cannot be as it is; nothing was taken.
        """
        return self._taken(name, messages, lambda offer: partial(publish, offer=offer))

    def _taken(
        self,
        name: str,
        messages: Sequence[Outgoing],
        step: Callable[[Offer], Callable[[Transaction], list[Confirmed] | Full | None]],
    ) -> list[Confirmed]:
        file = self._file(name)
        for row, message in enumerate(messages):
            check_message(message, row)
        started = time.monotonic()
        while messages:
            queue = file.queue
            heard = file.room.heard() if queue.limit is not None else 0
            offer = Offer(queue, messages, self._chooser(queue).chosen(messages))
            outcome = file.run(step(offer), rows=len(messages))
            if isinstance(outcome, Full):
                _wait_for_room(file, outcome, len(messages), started, heard)
            elif outcome is not None:
                file.make_safe()
                return outcome
        return []

    def _chooser(self, queue: Queue) -> Chooser:
        known = self._choosers.get(queue.name)
        if known is None or known[0] is not queue:
            known = self._choosers[queue.name] = (queue, Chooser(queue))
        return known[1]

    def receiver(
        self, name: str, group: str = "", *, worker: str = "", prefetch: int = 1
    ) -> EmbeddedReceiver:
        """Begin to receive for a group; up to `prefetch` deliveries may be unsettled at a time."""
        if prefetch < 1:
            raise BadSettingError(f"a prefetch of {prefetch}", detail="use 1 or more")
        file = self._file(name)
        receiver = EmbeddedReceiver(file, self._group(file, group), worker, prefetch)
        with self._mutex:
            self._receivers = [known for known in self._receivers if not known.closed] + [receiver]
        return receiver

    def _group(self, file: QueueFile, group: str) -> int:
        groups = file.run(lambda transaction: transaction.groups)
        if group not in groups:
            raise UnknownGroupError(
                f'queue "{file.queue.name}" has no group "{group}"',
                detail=f"groups: {', '.join(map(repr, groups))}",
                fix=next(iter(groups)),
                queue=file.queue.name,
                group=group,
            )
        return groups[group]

    def wake(self, name: str) -> None:
        """Have receivers that wait look again at once, in all processes: for tests that move a clock by hand."""
        self._file(name).bell.ring()

    # -- from and to topics --------------------------------------------------------------------------------------

    def publish_from(self, name: str, feed: str, messages: Sequence[tuple[int, Outgoing]]) -> list[Confirmed]:
        """Take messages made of events, by their rising offsets, except those of offsets that were taken before.

        Example:
            >>> import tempfile
            >>> with EmbeddedBroker(Path(tempfile.mkdtemp())) as broker:
            ...     _ = broker.declare(Queue.declare("emails"))
            ...     _ = broker.publish_from("emails", "orders/0", [(7, Outgoing(b'"a"'))])
            ...     len(broker.publish_from("emails", "orders/0", [(7, Outgoing(b'"a"')), (8, Outgoing(b'"b"'))]))
            1
        """
        offsets = [offset for offset, _ in messages]
        return self._taken(
            name,
            [message for _, message in messages],
            lambda offer: partial(publish_from, offer=offer, feed=feed, offsets=offsets),
        )

    def hand_over(
        self, name: str, group: str, feed: str, *, most: int = 500, least: int = 0, timeout: float = 0
    ) -> Handover | None:
        """Messages that are to go to a topic; the same until `handed_over`. None if none came within `timeout`.

        Args:
            name: The queue.
            group: Whose messages.
            feed: Who carries them; one at a time.
            most: How many at most.
            least: New ones are numbered from here at least: behind what the topic has.
            timeout: Seconds to wait for the first.
        """
        file = self._file(name)
        deadline = time.monotonic() + timeout
        step = partial(hand_over, group=self._group(file, group), feed=feed, most=most, least=least)
        while True:
            heard = file.bell.heard()
            found = file.run(step, rows=most)
            left = deadline - time.monotonic()
            if found is not None:
                file.make_safe()  # before the topic has them, or a power cut could number them anew
                return found
            if left <= 0:
                return None
            file.bell.wait(heard, min(left, 1.0))  # a delayed one may become due meanwhile

    def handed_over(
        self, name: str, handover: Handover, refused: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        """They are in the topic; those that it refused, by place and with the reason, are dead."""
        self._file(name).run(partial(handed_over, handover=handover, refused=refused))

    # -- what there is -----------------------------------------------------------------------------------------

    def counts(self, name: str) -> list[GroupCounts]:
        """How each group stands; groups that are not declared any more are there while they have messages."""

        def step(transaction: Transaction) -> list[GroupCounts] | None:
            # Not a generator: each group is to be put in line.
            if any([put_in_line(transaction, group) for group in transaction.groups.values()]):
                return None
            transaction.write_counts()
            declared = {group.name for group in transaction.queue.groups}
            rows = transaction.execute(f"SELECT name, {', '.join(COUNTED)} FROM grp ORDER BY number")
            found = [GroupCounts(*row) for row in rows]
            return [each for each in found if each.group in declared or _holds_some(each)]

        while (found := self._file(name).run(step)) is None:
            pass
        return found

    def dead(self, name: str, group: str | None = None) -> Iterator[DeadLetter]:
        """Dead letters, oldest first."""
        file, after = self._file(name), 0
        while True:
            page = file.run(partial(read_dead, group=group, after=after))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].number

    def revive(self, name: str, letters: Iterable[DeadLetter]) -> int:
        """Put dead letters back in line, with the message they have now; how many there were."""
        file, rest, revived = self._file(name), iter(letters), 0
        while page := list(islice(rest, PAGE)):
            for row, letter in enumerate(page):
                check_message(letter.message, row)
            revived += file.run(partial(revive, letters=page), rows=len(page))
            file.make_safe()
        return revived

    def close(self) -> None:
        """Give back what receivers have, and let go of the files."""
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


def _wait_for_room(file: QueueFile, full: Full, number: int, started: float, heard: int) -> None:
    timeout = file.queue.overload.timeout
    left = None if timeout is None else started + timeout.total_seconds() - time.monotonic()
    if number > full.limit or (left is not None and left <= 0):
        raise OverloadedError(
            f'{full.waiting:,} messages wait in queue "{file.queue.name}" and it holds {full.limit:,}',
            detail="its overload policy is backpressure; nothing of this call was taken",
            fix="publish fewer at a time" if number > full.limit else "publish again later",
            waiting=full.waiting,
            limit=full.limit,
            group=full.group,
        )
    file.room.wait(heard, left)


def _holds_some(counts: GroupCounts) -> bool:
    return bool(counts.waiting or counts.delayed or counts.in_flight or counts.dead)


def _unknown_queue(name: str, known: Sequence[str]) -> UnknownQueueError:
    near = difflib.get_close_matches(name, known, n=3) or list(known[:5])
    return UnknownQueueError(
        f'no queue "{name}"',
        detail=f"queues: {', '.join(near)}" if near else "there are no queues yet",
        fix=near[0] if near else "declare it first",
        queue=name,
    )
