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
from headwater.log.consumer_groups import BRIDGE_GROUP_PREFIX
from headwater.queues.message import Message
from headwater.queues.queue import Group, Queue, Retry

__all__ = [
    "Bridge",
    "DeclaredQueue",
    "QueueOptions",
    "TargetKind",
    "Worker",
    "WorkerArguments",
    "inspect_arguments",
    "location_of",
]


class TargetKind(StrEnum):
    """The kind of a bridge's target."""

    QUEUE = "queue"
    TOPIC = "topic"


@dataclass(frozen=True)
class Bridge:
    """Copies events from a topic to a queue, or messages from a queue to a topic. Made by `app.bridge`.

    Args:
        source: The name of the topic or queue to read.
        target: The name of the queue or topic to write.
        target_kind: Whether the target is a queue or a topic.
        location: Where the user wrote it.

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
        """The consumer group of the topic, or the group of the queue, as which the bridge reads."""
        return f"{BRIDGE_GROUP_PREFIX}{self.target}" if self.target_kind is TargetKind.QUEUE else f"to-{self.target}"


_FIX: Final = "def send(email: Email) -> None: …"
_ASYNC_PREFETCH: Final = 10


@dataclass(frozen=True)
class WorkerArguments:
    """The arguments of a worker's function: the value, the message or both.

    Args:
        parameters: "value" and "message", in the order of the function's parameters.
        as_: The class of the value; None for a dict.
    """

    parameters: tuple[str, ...]
    as_: type | None = None

    def bind(self, message: Message) -> list[Any]:
        """Returns the arguments for a message.

        Raises:
            BadEventError: The value does not match the class.
        """
        return [message.value if parameter == "value" else message for parameter in self.parameters]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A function that works on the messages of a group of a queue. Made by `@queue.worker`.

    Args:
        name: The name of the worker; by default that of the function.
        queue: The name of the queue.
        group: The group of the queue.
        function: Called for each message.
        arguments: The arguments of the function.
        threads: The number of threads in each process.
        processes: The number of processes of its own; 0 shares one with the other workers.
        prefetch: The number of messages a thread receives at a time; an async function processes them concurrently.
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
        """Returns the worker declared by a function.

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
                what = f"a worker cannot have {given[name]!r} {name}"
                raise BadWorkerError(what, fix=f"{name}=1", detail="use 1 or more", location=location)
        arguments = inspect_arguments(function, type_, location=location)
        if inspect.iscoroutinefunction(function):
            given.setdefault("prefetch", _ASYNC_PREFETCH)
        name = str(given.pop("name", getattr(function, "__name__", "worker")))
        return cls(name=name, queue=queue, function=function, arguments=arguments, location=location, **given)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def __str__(self) -> str:
        numbers = {"threads": self.threads, "processes": self.processes, "prefetch": self.prefetch}
        return ", ".join(f"{number} {name}" for name, number in numbers.items() if number > 1)


def inspect_arguments(
    function: Any, type_: type | None = None, *, location: SourceLocation | None = None
) -> WorkerArguments:
    """Returns the arguments of a worker's function, from the annotations of its parameters.

    Args:
        function: One parameter gets the value; one annotated `hw.Message` gets the message.
        type_: The class of the queue's values, if it has one.
        location: Where the user wrote it.

    Raises:
        BadWorkerError: The function takes other arguments.

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
            what = f"a worker is called with a value and a message; it cannot have the parameter {parameter}"
            raise BadWorkerError(what, fix=_FIX, location=location)
        order.append("message" if hint is Message else "value")
        if hint is not Message and isinstance(hint, type) and is_record(hint):
            as_ = hint
    if not order or len(order) != len(set(order)):
        what = f"a worker is called with a value, a message or both; this one has {len(order)} parameters"
        raise BadWorkerError(what, fix="def send(email: Email, message: hw.Message) -> None: …", location=location)
    return WorkerArguments(tuple(order), as_)


def _check_function(function: Any, location: SourceLocation | None) -> None:
    if not callable(function) or inspect.isclass(function):
        raise BadWorkerError(f"a worker is a function, not {function!r:.40}", fix=_FIX, location=location)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        what = f'the worker "{function.__name__}" is a generator; nothing would consume its values'
        raise BadWorkerError(what, fix=_FIX, location=location)


def _type_hints(function: Any, location: SourceLocation | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except (NameError, AttributeError) as error:
        what = f"the annotations of {getattr(function, '__name__', function)} cannot be read: {error}"
        fix = "define the classes that it names before it, at the top level of the module"
        raise BadWorkerError(what, fix=fix, location=location) from None
    except TypeError:  # a callable object has no annotations of its own
        return {}


def location_of(function: Any) -> SourceLocation | None:
    """Returns the first line of a function; None for a callable without code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    line = code.co_firstlineno
    return SourceLocation.at(code.co_filename, line, linecache.getline(code.co_filename, line).strip())


F = TypeVar("F", bound=Callable[..., Any])


class QueueOptions(TypedDict, total=False):
    """The options of a queue besides its name and type; durations may be text such as "30 seconds"."""

    groups: Sequence[str | Group]
    """The groups; each gets every message that it selects. By default, the groups of its workers."""
    key: str
    """The field that holds the key of a message."""
    ordered: bool
    """Deliver the messages of a key in order, one at a time, also through retries (default: no)."""
    retry: Retry
    """Attempts and the delay between them, such as `hw.retry(5, backoff="2s")`; see `hw.retry` for the default."""
    visibility_timeout: str | timedelta
    """The time in which a receiver must settle a delivery; workers extend it while they run (default: 30 seconds)."""
    ttl: str | timedelta
    """The time to live of a message that is not delivered; no limit if omitted."""
    deduplication_window: str | timedelta
    """How long the id of a message is remembered to discard duplicates (default: 10 minutes)."""
    limit: int
    """The largest number of waiting messages in each group; no limit if omitted."""
    overload: str | Overload
    """The policy for messages over the limit: "backpressure" (default), "buffer", "drop" or `hw.drop(…)`."""
    durability: str | Durability
    """What a publish confirm promises: "durable" (default), "fast" or "memory"."""


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
        """The definition for the broker; its groups are those of workers and bridges, and those the user named."""
        used = [worker.group for worker in self._workers] + [bridge.group for bridge in self._bridges]
        if not used:
            return self._definition
        groups = {name: Group(name) for name in used}
        if self._groups_given:
            groups |= {group.name: group for group in self._definition.groups}
        given = (self._definition.given or frozenset()) | {"groups"}
        return replace(self._definition, groups=tuple(groups.values()), given=given)

    def add_bridge(self, bridge: Bridge) -> None:
        """Add a bridge from this queue to a topic; it reads as a group of its own."""
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

        The message is acknowledged when the function returns and redelivered when it raises. `hw.Reject` makes it a
        dead letter at once. The decorator returns the function unchanged, so tests can call it.

        Args:
            function: Called with the value; a parameter annotated `hw.Message` gets the message. It may be async.
            name: The name of the worker; by default that of the function.
            group: The group of the queue.
            threads: The number of messages processed at a time in each process.
            processes: The number of processes of its own; by default it shares one with the app's other workers.
            prefetch: The number of messages a thread receives at a time [default: 1; 10 for an async function, which
                processes them concurrently].

        Raises:
            BadWorkerError: The function takes other arguments, or the queue has no such group.
        """
        options = {"name": name, "threads": threads, "processes": processes, "prefetch": prefetch}

        def declare(found: F) -> F:
            worker = Worker.from_function(found, self.name, self._type, group=self._resolve_group(group), **options)
            if any(known.name == worker.name for known in self._workers):
                what = f'queue "{self.name}" has two workers named "{worker.name}"'
                raise BadWorkerError(what, fix='name="another"', location=worker.location, queue=self.name)
            self._workers.append(worker)
            return found

        return declare if function is None else declare(function)

    def _resolve_group(self, group: str | None) -> str:
        names = [known.name for known in self._definition.groups]
        if not self._groups_given:
            return group or ""
        if group is None and len(names) == 1:
            return names[0]
        if group not in names:
            what = f'queue "{self.name}" has no group "{group}"' if group else "the worker does not name its group"
            raise BadWorkerError(what, detail=f"groups: {', '.join(names)}", fix=f'group="{names[0]}"', queue=self.name)
        return group

    def __repr__(self) -> str:
        return f"DeclaredQueue({self.name!r}, workers={[worker.name for worker in self._workers]})"
