"""Which groups of a queue get a message: by its words, its headers, and a condition in SQL over its fields."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadFilterError
from headwater.events import Codec, Where
from headwater.queues.definition import Group, Queue
from headwater.queues.protocol import Outgoing

__all__ = ["Chooser", "fits"]


@lru_cache(maxsize=4096)
def fits(pattern: str, words: str) -> bool:
    """Whether a pattern fits words, by the rules of AMQP: `*` is one word, `#` any number of them, none included.

    Example:
        >>> fits("orders.*.eu", "orders.new.eu"), fits("orders.#", "orders"), fits("orders.*", "orders")
        (True, True, False)
    """
    wanted = pattern.split(".") if pattern else []
    found = words.split(".") if words else []
    # reachable[i]: the words so far can be matched by the first i parts of the pattern.
    reachable = _skipping([True] + [False] * len(wanted), wanted)
    for word in found:
        step = [False] * (len(wanted) + 1)
        for index, part in enumerate(wanted):
            if reachable[index] and part in ("*", word) and part != "#":
                step[index + 1] = True
            if part == "#" and reachable[index]:
                step[index] = True
        reachable = _skipping(step, wanted)
    return reachable[-1]


def _skipping(reachable: list[bool], wanted: list[str]) -> list[bool]:
    for index, part in enumerate(wanted):
        if part == "#" and reachable[index]:
            reachable[index + 1] = True
    return reachable


class Chooser:
    """Decides for one queue.

    A condition in SQL sees the fields of the message's value; a value without fields is the field `value`. If the queue
    has a type, they have its types. Otherwise they are as JSON has them; a field that a message does not have is null,
    and a message on which the condition cannot be evaluated, such as `amount > 100` where the amount is text, does not
    meet it.

    Example:
        >>> from headwater.queues.definition import group
        >>> queue = Queue.declare("q", groups=["all", group("eu", words="*.eu"), group("big", where="n > 5")])
        >>> Chooser(queue).chosen([Outgoing(b'{"n": 9}', words="orders.eu"), Outgoing(b'{"n": 1}')])
        [(0, 1, 2), (0,)]
    """

    def __init__(self, queue: Queue) -> None:
        self._groups = queue.groups
        self._everything = tuple(range(len(queue.groups)))
        self._chosen_by = [
            index for index, group in enumerate(queue.groups) if group.words or group.headers or group.where
        ]
        self._conditions = [Where(group.where) if group.where else None for group in queue.groups]
        self._codec = None if queue.schema is None else Codec(queue.schema)

    def chosen(self, messages: Sequence[Outgoing]) -> list[tuple[int, ...]]:
        """The numbers of the groups that get each message."""
        if not self._chosen_by:
            return [self._everything] * len(messages)
        refused: list[set[int]] = [set() for _ in messages]
        for number in self._chosen_by:
            group, condition = self._groups[number], self._conditions[number]
            open_ = [at for at, message in enumerate(messages) if _plainly_fits(group, message)]
            if condition is not None and open_:
                met = self._met(condition, [messages[at].body for at in open_])
                open_ = [at for at, good in zip(open_, met, strict=True) if good]
            for at in set(range(len(messages))).difference(open_):
                refused[at].add(number)
        return [tuple(n for n in self._everything if n not in no) for no in refused]

    def _met(self, condition: Where, bodies: list[bytes]) -> list[bool]:
        try:
            return [bool(good) for good in condition.mask(self._columns(condition, bodies))]
        except (BadFilterError, BadEventError, msgspec.DecodeError, pa.ArrowException, OverflowError):
            # One message may spoil the types of all: each by itself, then.
            if len(bodies) == 1:
                return [False]
            return [good for body in bodies for good in self._met(condition, [body])]

    def _columns(self, condition: Where, bodies: list[bytes]) -> pa.RecordBatch:
        values = [_value(body) for body in bodies]
        if self._codec is not None:
            return self._codec.encode(values)
        names = {name.casefold() for name in condition.names}
        lowered = [{name.casefold(): item for name, item in value.items()} for value in values]
        columns = {name: pa.array([value.get(name) for value in lowered]) for name in sorted(names)}
        return pa.RecordBatch.from_pydict(columns)


def _plainly_fits(group: Group, message: Outgoing) -> bool:
    if group.words and not any(fits(pattern, message.words) for pattern in group.words):
        return False
    return all(message.headers.get(name) == value for name, value in group.headers.items())


def _value(body: bytes) -> dict[str, Any]:
    value = msgspec.json.decode(body)
    return value if isinstance(value, dict) else {"value": value}
