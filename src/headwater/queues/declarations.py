"""What an app declares about queues: `DeclaredQueue`, `Worker` and `Bridge`.

Functions are inspected but not called: `inspect_arguments` derives from the annotations what a worker is
called with. A `Bridge` copies events from a topic to a queue or messages from a queue to a topic.
"""

from __future__ import annotations

import inspect
import linecache
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypedDict, TypeVar, overload

from headwater.errors import BadWorkerError, SourceLocation
from headwater.events.values import is_record
from headwater.log import Durability, Overload
from headwater.queues.message import Message
from headwater.queues.queue import Group, Queue, Retry

__all__ = ["Bridge", "DeclaredQueue", "QueueOptions", "TargetKind", "Worker", "WorkerArguments", "inspect_arguments"]


class TargetKind(StrEnum):
    """The kind of a bridge's target."""

    QUEUE = "queue"
    TOPIC = "topic"


@dataclass(frozen=True)
class Bridge:
    """Copies what arrives at the source to the target. Made by `app.bridge`.

    Args:
        source: The topic's name, or the queue's.
        target: The queue's name, or the topic's.
        target_kind: Which of the two the target is.
        location: The line of the app.

    Example:
        >>> Bridge("orders", "parcels", TargetKind.QUEUE).name
        'orders to parcels'
    """

    source: str
    target: str
    target_kind: TargetKind
    location: SourceLocation | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The name shown to people."""
        return f"{self.source} to {self.target}"

    @property
    def group(self) -> str:
        """The consumer group of the topic, or the group of the queue, by which the bridge reads."""
        return f"hw.feed.{self.target}" if self.target_kind is TargetKind.QUEUE else f"to-{self.target}"


_FIX: Final = "def send(email: Email) -> None: …"
_ASYNC_PREFETCH: Final = 10


@dataclass(frozen=True)
class WorkerArguments:
    """What a function is called with: the value, the message or both, and the class of the value.

    Args:
        parameters: "value" and "message", as the function's parameters stand.
        as_: The class of the value; None for a dict.
    """

    parameters: tuple[str, ...]
    as_: type | None = None

    def bind(self, message: Message) -> list[Any]:
        """Returns what to call the function with.

        Raises:
            BadEventError: The value does not fit the class.
        """
        return [message.value if one == "value" else message for one in self.parameters]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A function that works on the messages of a group of a queue. Made by `@queue.worker`.

    Args:
        name: The function's, unless another was given.
        queue: Whose messages.
        group: Which group of the queue.
        function: What is called for each message.
        arguments: What it is called with.
        threads: How many work at a time in each process.
        processes: How many processes there are for it alone; 0 shares one with the other workers.
        prefetch: How many messages a thread takes at a time; an async function works on all of them at once.
        location: Where the user wrote it.
    """

    name: str
    queue: str
    function: Callable[..., Any] = field(compare=False)
    arguments: WorkerArguments
    group: str = ""
    threads: int = 1
    processes: int = 0
    prefetch: int = 1
    location: SourceLocation | None = field(default=None, compare=False)

    @classmethod
    def from_function(
        cls, function: Callable[..., Any], queue: str, type_: type | None = None, **options: Any
    ) -> Worker:
        """Check what the user wrote.

        Raises:
            BadWorkerError: The function cannot be called with a message, or a number is below one.

        Example:
            >>> def send(email: dict) -> None: ...
            >>> worker = Worker.from_function(send, "emails", threads=4)
            >>> worker.name, worker.threads, worker.arguments.parameters
            ('send', 4, ('value',))
        """
        location = location_of(function)
        given = {name: value for name, value in options.items() if value is not None}
        for name in ("threads", "processes", "prefetch"):
            if not isinstance(given.get(name, 1), int) or given.get(name, 1) < 1:
                raise BadWorkerError(f"{given[name]!r} {name} of a worker", fix=f"{name}=1 or more", location=location)
        arguments = inspect_arguments(function, type_, location=location)
        if inspect.iscoroutinefunction(function):
            given.setdefault("prefetch", _ASYNC_PREFETCH)
        name = str(given.pop("name", getattr(function, "__name__", "worker")))
        return cls(name=name, queue=queue, function=function, arguments=arguments, location=location, **given)

    @property
    def is_async(self) -> bool:
        """Whether its function is to be awaited."""
        return inspect.iscoroutinefunction(self.function)

    def __str__(self) -> str:
        numbers = {"threads": self.threads, "processes": self.processes, "prefetch": self.prefetch}
        return ", ".join(f"{number} {name}" for name, number in numbers.items() if number > 1)


def inspect_arguments(
    function: Any, type_: type | None = None, *, location: SourceLocation | None = None
) -> WorkerArguments:
    """Returns what a function over messages is to be called with, by the annotations of its parameters.

    Args:
        function: One parameter gets the value; one annotated `hw.Message` gets the message.
        type_: The class of the values, if the queue has one.
        location: Where the user wrote it.

    Raises:
        BadWorkerError: It is not such a function.

    Example:
        >>> def send(email, message: Message): ...
        >>> inspect_arguments(send).parameters
        ('value', 'message')
    """
    _check_function(function, location)
    hints = _type_hints(function, location)
    order: list[str] = []
    as_ = type_
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            continue
        hint = hints.get(parameter.name)
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            what = f"a worker is called with a value and a message, not with {parameter}"
            raise BadWorkerError(what, fix=_FIX, location=location)
        order.append("message" if hint is Message else "value")
        if hint is not Message and isinstance(hint, type) and is_record(hint):
            as_ = hint
    if not order or len(order) != len(set(order)):
        what = f"a worker is called with a value, a message or both, not with {len(order)} values"
        raise BadWorkerError(what, fix="def send(email: Email, message: hw.Message) -> None: …", location=location)
    return WorkerArguments(tuple(order), as_)


def _check_function(function: Any, location: SourceLocation | None) -> None:
    if not callable(function) or inspect.isclass(function):
        raise BadWorkerError(f"a worker is a function, not {function!r:.40}", fix=_FIX, location=location)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        what = f'the worker "{function.__name__}" yields, and nobody takes what it yields'
        raise BadWorkerError(what, fix=_FIX, location=location)


def _type_hints(function: Any, location: SourceLocation | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except (NameError, AttributeError) as error:
        what = f"the annotations of {getattr(function, '__name__', function)} cannot be read: {error}"
        fix = "define the classes it names at the top of the module, before it"
        raise BadWorkerError(what, fix=fix, location=location) from None
    except TypeError:  # an object that is called has no annotations of its own
        return {}


def location_of(function: Any) -> SourceLocation | None:
    """Returns the line where a function begins; None where there is none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    line = code.co_firstlineno
    return SourceLocation.at(code.co_filename, line, linecache.getline(code.co_filename, line).strip())


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
    visibility_timeout: str | timedelta
    """How long a receiver may keep a message without a word; workers extend it while they work."""
    ttl: str | timedelta
    """Messages that nobody took die after this time."""
    deduplication_window: str | timedelta
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
        self._bridges: list[Bridge] = []

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
        own = [worker.group for worker in self._workers] + [feed.group for feed in self._bridges]
        named = {name: Group(name) for name in own} | named
        if not own:
            return self._definition
        given = (self._definition.given or frozenset()) | {"groups"}
        return replace(self._definition, groups=tuple(named.values()), given=given)

    def add_bridge(self, bridge: Bridge) -> None:
        """Also give every message to a topic, through a group of its own."""
        self._bridges.append(bridge)

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
            self._add_worker(
                Worker.from_function(found, self.name, self._type, group=self._resolve_group(group), **options)
            )
            return found

        return declare if function is None else declare(function)

    def _resolve_group(self, group: str | None) -> str:
        names = [one.name for one in self._definition.groups]
        if not self._groups_given:
            return group or ""
        if group is None and len(names) == 1:
            return names[0]
        if group not in names:
            what = f'queue "{self.name}" has no group "{group}"' if group else "the worker names no group"
            raise BadWorkerError(what, detail=f"groups: {', '.join(names)}", fix=f'group="{names[0]}"', queue=self.name)
        return group

    def _add_worker(self, worker: Worker) -> None:
        if any(before.name == worker.name for before in self._workers):
            what = f'queue "{self.name}" has two workers of the name "{worker.name}"'
            raise BadWorkerError(what, fix='name="another"', location=worker.location, queue=self.name)
        self._workers.append(worker)

    def __repr__(self) -> str:
        return f"DeclaredQueue({self.name!r}, workers={[worker.name for worker in self._workers]})"
