"""Selects the groups of a queue that get a message: by routing key, headers, and an SQL condition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadFilterError
from headwater.events import Codec
from headwater.queues.protocol import OutgoingMessage
from headwater.queues.queue import Group, Queue
from headwater.sql.filter import Filter

__all__ = ["Router", "matches"]


@lru_cache(maxsize=4096)
def matches(pattern: str, routing_key: str) -> bool:
    """Whether a pattern matches a routing key, as in AMQP: `*` is one word, `#` zero or more words.

    Example:
        >>> matches("orders.*.eu", "orders.new.eu"), matches("orders.#", "orders"), matches("orders.*", "orders")
        (True, True, False)
    """
    parts = pattern.split(".") if pattern else []
    words = routing_key.split(".") if routing_key else []
    # reachable[i]: the words so far can be matched by the first i parts of the pattern.
    reachable = _expand_hashes([True] + [False] * len(parts), parts)
    for word in words:
        step = [False] * (len(parts) + 1)
        for index, part in enumerate(parts):
            if reachable[index] and part in ("*", word) and part != "#":
                step[index + 1] = True
            if part == "#" and reachable[index]:
                step[index] = True
        reachable = _expand_hashes(step, parts)
    return reachable[-1]


def _expand_hashes(reachable: list[bool], parts: list[str]) -> list[bool]:
    for index, part in enumerate(parts):
        if part == "#" and reachable[index]:
            reachable[index + 1] = True
    return reachable


class Router:
    """Selects the groups for the messages of one queue.

    An SQL condition sees the fields of the message's value. A value that is not a JSON object is seen as the field
    `value`. Fields have the types of the queue's schema, or else those of JSON. A missing field is null. If the
    condition cannot be evaluated for a message, such as `amount > 100` for a text, the message does not meet it.

    Example:
        >>> from headwater.queues.queue import group
        >>> queue = Queue.declare("q", groups=["all", group("eu", routing_key="*.eu"), group("big", where="n > 5")])
        >>> Router(queue).route([OutgoingMessage(b'{"n": 9}', routing_key="orders.eu"), OutgoingMessage(b'{"n": 1}')])
        [(0, 1, 2), (0,)]
    """

    def __init__(self, queue: Queue) -> None:
        self._groups = queue.groups
        self._all_groups = tuple(range(len(queue.groups)))
        self._filtered_groups = [
            index for index, group in enumerate(queue.groups) if group.routing_key or group.headers or group.where
        ]
        self._conditions = [Filter(group.where) if group.where else None for group in queue.groups]
        self._codec = None if queue.schema is None else Codec(queue.schema)

    def route(self, messages: Sequence[OutgoingMessage]) -> list[tuple[int, ...]]:
        """Returns the numbers of the groups that get each message."""
        if not self._filtered_groups:
            return [self._all_groups] * len(messages)
        excluded: list[set[int]] = [set() for _ in messages]
        for number in self._filtered_groups:
            group, condition = self._groups[number], self._conditions[number]
            matching = [at for at, message in enumerate(messages) if _matches_attributes(group, message)]
            if condition is not None and matching:
                met = self._evaluate(condition, [messages[at].body for at in matching])
                matching = [at for at, good in zip(matching, met, strict=True) if good]
            for at in set(range(len(messages))).difference(matching):
                excluded[at].add(number)
        return [tuple(number for number in self._all_groups if number not in out) for out in excluded]

    def _evaluate(self, condition: Filter, bodies: list[bytes]) -> list[bool]:
        try:
            return [bool(good) for good in condition.mask(self._to_batch(condition, bodies))]
        except (BadFilterError, BadEventError, msgspec.DecodeError, pa.ArrowException, OverflowError):
            # One message with other types fails the whole batch: evaluate each by itself.
            if len(bodies) == 1:
                return [False]
            return [good for body in bodies for good in self._evaluate(condition, [body])]

    def _to_batch(self, condition: Filter, bodies: list[bytes]) -> pa.RecordBatch:
        decoded = map(msgspec.json.decode, bodies)
        values = [value if isinstance(value, dict) else {"value": value} for value in decoded]
        if self._codec is not None:
            return self._codec.encode(values)
        names = {name.casefold() for name in condition.columns}
        lowered = [{name.casefold(): item for name, item in value.items()} for value in values]
        columns = {name: pa.array([value.get(name) for value in lowered]) for name in sorted(names)}
        return pa.RecordBatch.from_pydict(columns)


def _matches_attributes(group: Group, message: OutgoingMessage) -> bool:
    if group.routing_key and not any(matches(pattern, message.routing_key) for pattern in group.routing_key):
        return False
    return all(message.headers.get(name) == value for name, value in group.headers.items())
