"""A user's function over messages, looked at but not run: what it is given, and how many of it there are."""

from __future__ import annotations

import inspect
import linecache
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.errors import BadWorkerError, Place
from headwater.events.values import is_record
from headwater.queues.message import Message

__all__ = ["Takes", "Worker", "takes_of"]

_FIX: Final = "def send(email: Email) -> None: …"
_AT_ONCE: Final = 10


@dataclass(frozen=True)
class Takes:
    """What a function is called with: the value, the message or both, and the class of the value.

    Args:
        order: "value" and "message", as the function's parameters stand.
        as_: The class of the value; None for a dict.
    """

    order: tuple[str, ...]
    as_: type | None = None

    def arguments(self, message: Message) -> list[Any]:
        """What to call the function with.

        Raises:
            BadEventError: The value does not fit the class.
        """
        return [message.value if one == "value" else message for one in self.order]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A function that works on the messages of a group of a queue. Made by `@queue.worker`.

    Args:
        name: The function's, unless another was given.
        queue: Whose messages.
        group: Which group of the queue.
        function: What is called for each message.
        takes: What it is called with.
        threads: How many work at a time in each process.
        processes: How many processes there are for it alone; 0 shares one with the other workers.
        prefetch: How many messages a thread takes at a time; an async function works on all of them at once.
        place: Where the user wrote it.
    """

    name: str
    queue: str
    function: Callable[..., Any] = field(compare=False)
    takes: Takes
    group: str = ""
    threads: int = 1
    processes: int = 0
    prefetch: int = 1
    place: Place | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls, function: Callable[..., Any], queue: str, type_: type | None = None, **options: Any
    ) -> Worker:
        """Check what the user wrote.

        Raises:
            BadWorkerError: The function cannot be called with a message, or a number is below one.

        Example:
            >>> def send(email: dict) -> None: ...
            >>> worker = Worker.of(send, "emails", threads=4)
            >>> worker.name, worker.threads, worker.takes.order
            ('send', 4, ('value',))
        """
        place = place_of(function)
        given = {name: value for name, value in options.items() if value is not None}
        for name in ("threads", "processes", "prefetch"):
            if not isinstance(given.get(name, 1), int) or given.get(name, 1) < 1:
                raise BadWorkerError(
                    f"{given[name]!r} {name} of a worker", fix=f"{name}=1 or more", place=place
                )
        takes = takes_of(function, type_, place=place)
        if inspect.iscoroutinefunction(function):
            given.setdefault("prefetch", _AT_ONCE)
        name = str(given.pop("name", getattr(function, "__name__", "worker")))
        return cls(name=name, queue=queue, function=function, takes=takes, place=place, **given)

    @property
    def asynchronous(self) -> bool:
        """Whether its function is to be awaited."""
        return inspect.iscoroutinefunction(self.function)

    def __str__(self) -> str:
        numbers = {"threads": self.threads, "processes": self.processes, "prefetch": self.prefetch}
        return ", ".join(f"{number} {name}" for name, number in numbers.items() if number > 1)


def takes_of(function: Any, type_: type | None = None, *, place: Place | None = None) -> Takes:
    """What a function over messages is to be called with, by the annotations of its parameters.

    Args:
        function: One parameter gets the value; one annotated `hw.Message` gets the message.
        type_: The class of the values, if the queue has one.
        place: Where the user wrote it.

    Raises:
        BadWorkerError: It is not such a function.

    Example:
        >>> def send(email, message: Message): ...
        >>> takes_of(send).order
        ('value', 'message')
    """
    _refuse(function, place)
    hints = _hints(function, place)
    order: list[str] = []
    as_ = type_
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            continue
        hint = hints.get(parameter.name)
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            what = f"a worker is called with a value and a message, not with {parameter}"
            raise BadWorkerError(what, fix=_FIX, place=place)
        order.append("message" if hint is Message else "value")
        if hint is not Message and isinstance(hint, type) and is_record(hint):
            as_ = hint
    if not order or len(order) != len(set(order)):
        what = f"a worker is called with a value, a message or both, not with {len(order)} values"
        raise BadWorkerError(what, fix="def send(email: Email, message: hw.Message) -> None: …", place=place)
    return Takes(tuple(order), as_)


def _refuse(function: Any, place: Place | None) -> None:
    if not callable(function) or inspect.isclass(function):
        raise BadWorkerError(f"a worker is a function, not {function!r:.40}", fix=_FIX, place=place)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        what = f'the worker "{function.__name__}" yields, and nobody takes what it yields'
        raise BadWorkerError(what, fix=_FIX, place=place)


def _hints(function: Any, place: Place | None) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function))
    except (NameError, AttributeError) as error:
        what = f"the annotations of {getattr(function, '__name__', function)} cannot be read: {error}"
        fix = "define the classes it names at the top of the module, before it"
        raise BadWorkerError(what, fix=fix, place=place) from None
    except TypeError:  # an object that is called has no annotations of its own
        return {}


def place_of(function: Any) -> Place | None:
    """The line where a function begins; None where there is none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    line = code.co_firstlineno
    return Place.near(code.co_filename, line, linecache.getline(code.co_filename, line).strip())
