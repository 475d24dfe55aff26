"""A queue of an app: its definition, and the functions that work on its messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, overload

from headwater.errors import BadWorkerError
from headwater.log import Durability, Overload
from headwater.queues.definition import Group, Queue, Retry
from headwater.queues.feed import Feed
from headwater.queues.worker import Worker

__all__ = ["DeclaredQueue", "QueueOptions"]

F = TypeVar("F", bound=Callable[..., Any])


class QueueOptions(TypedDict, total=False):
    """What may be said about a queue besides its name and type; durations may be text such as "30 seconds"."""

    groups: Sequence[str | Group]
    """Who gets its messages: each group gets every message that it chooses. By default, the groups of its workers."""
    key: str
    """The field whose value says what a message is about."""
    ordered: bool
    """Keep the order per key, also through retries: one message of a key is out at a time."""
    retry: Retry
    """How often a message is tried, and how long it rests in between: `hw.retry(5, backoff="2s")`."""
    visible: str | timedelta
    """How long a receiver may keep a message without a word; workers extend it while they work."""
    ttl: str | timedelta
    """Messages that nobody took die after this time."""
    remember: str | timedelta
    """How long the id of a message is remembered, so that a second one is not taken."""
    limit: int
    """At most so many messages wait."""
    overload: str | Overload
    """What happens to more than that: "backpressure", "buffer", "drop" or `hw.drop(…)`."""
    durability: str | Durability
    """What a confirmation promises: "durable", "fast" or "memory"."""


class DeclaredQueue:
    """A queue of an app. Made by `app.queue`; `headwater run` creates it and runs its workers.

    Example:
        >>> import headwater as hw
        >>> app = hw.App("shop")
        >>> emails = app.queue("emails")
        >>> @emails.worker
        ... def send(email):
        ...     print("to", email["to"])
        >>> [worker.name for worker in emails.workers], send({"to": "ada"})
        to ada
        (['send'], None)
    """

    def __init__(self, definition: Queue, type_: type | None = None, *, groups_given: bool = False) -> None:
        self._definition = definition
        self._type = type_
        self._groups_given = groups_given
        self._workers: list[Worker] = []
        self._feeds: list[Feed] = []

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._definition.name

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Its workers, in the order they were declared."""
        return tuple(self._workers)

    @property
    def definition(self) -> Queue:
        """What the broker is told; the groups are those of workers and feeds, unless the user named groups."""
        named = {group.name: group for group in self._definition.groups if self._groups_given}
        own = [worker.group for worker in self._workers] + [feed.group for feed in self._feeds]
        named = {name: Group(name) for name in own} | named
        if not own:
            return self._definition
        given = (self._definition.given or frozenset()) | {"groups"}
        return replace(self._definition, groups=tuple(named.values()), given=given)

    def feed(self, feed: Feed) -> None:
        """Also give every message to a topic, through a group of its own."""
        self._feeds.append(feed)

    @overload
    def worker(self, function: F, /) -> F: ...
    @overload
    def worker(
        self,
        function: None = ...,
        /,
        *,
        name: str | None = ...,
        group: str | None = ...,
        threads: int = ...,
        processes: int | None = ...,
        prefetch: int | None = ...,
    ) -> Callable[[F], F]: ...
    def worker(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        group: str | None = None,
        threads: int = 1,
        processes: int | None = None,
        prefetch: int | None = None,
    ) -> F | Callable[[F], F]:
        """Declare a function that is called for each message; it may be used as a bare decorator.

        The message is acknowledged when the function returns, and comes again when it raises. `hw.Reject` says that it
        can never succeed. The function stays as it is: tests may call it.

        Args:
            function: It is given the value; a parameter annotated `hw.Message` is given the message. It may be async.
            name: Its name; that of the function, if left out.
            group: Which group of the queue it belongs to.
            threads: How many messages are worked on at a time in each process.
            processes: How many processes it gets for itself; if left out, it shares one with the app's other workers.
            prefetch: How many messages a thread takes at a time [default: 1; for an async function, which works on all
                of them at once, 10].

        Raises:
            BadWorkerError: The function cannot be a worker, or there is no such group.
        """
        options = {"name": name, "threads": threads, "processes": processes, "prefetch": prefetch}

        def declare(found: F) -> F:
            self._add(Worker.of(found, self.name, self._type, group=self._group(group), **options))
            return found

        return declare if function is None else declare(function)

    def _group(self, group: str | None) -> str:
        names = [one.name for one in self._definition.groups]
        if not self._groups_given:
            return group or ""
        if group is None and len(names) == 1:
            return names[0]
        if group not in names:
            what = f'queue "{self.name}" has no group "{group}"' if group else "the worker names no group"
            raise BadWorkerError(
                what, detail=f"groups: {', '.join(names)}", fix=f'group="{names[0]}"', queue=self.name
            )
        return group

    def _add(self, worker: Worker) -> None:
        if any(before.name == worker.name for before in self._workers):
            what = f'queue "{self.name}" has two workers of the name "{worker.name}"'
            raise BadWorkerError(what, fix='name="another"', place=worker.place, queue=self.name)
        self._workers.append(worker)

    def __repr__(self) -> str:
        return f"DeclaredQueue({self.name!r}, workers={[worker.name for worker in self._workers]})"
