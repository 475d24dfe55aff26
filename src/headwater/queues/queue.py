"""A queue's definition: groups, retries, timeouts and limits."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa

from headwater.backoff import Backoff
from headwater.errors import (
    BadSettingError,
    HeadwaterError,
    QueueExistsError,
    SourceLocation,
    UnknownGroupError,
    UnknownQueueError,
    near_names,
)
from headwater.events import arrow_schema, merge
from headwater.log.topic import Durability, Overload, WhenFull, check_name, parse_choice, parse_overload
from headwater.sql.filter import Filter
from headwater.units import duration

__all__ = [
    "Group",
    "Queue",
    "Retry",
    "check_prefetch",
    "group",
    "merge_definition",
    "retry",
    "unknown_group_error",
    "unknown_queue_error",
]

_MAX_GROUPS = 1_000
# Durations among the options of a queue, with the key of each in a stored definition.
_DURATION_OPTIONS = {"visibility_timeout": "visible", "ttl": "ttl", "deduplication_window": "remember"}


@dataclass(frozen=True)
class Retry:
    """How often a message is tried, and the delay between attempts. Made by `hw.retry`."""

    attempts: int = 5
    backoff: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=10)
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise BadSettingError(f"{self.attempts!r} is not a number of attempts", detail="use 1 or more")
        if self.factor < 1 or not 0 <= self.jitter <= 1 or self.backoff < timedelta(0):
            what = f"backoff {self.backoff}, factor {self.factor} or jitter {self.jitter} is out of range"
            raise BadSettingError(what, detail="the backoff is 0 or more, the factor 1 or more, the jitter from 0 to 1")

    def delay(self, attempt: int, rng: random.Random | None = None) -> timedelta:
        """Returns the delay after the given attempt has failed; 1 is the first attempt.

        Example:
            >>> Retry(jitter=0).delay(3)
            datetime.timedelta(seconds=4)
        """
        return Backoff(self.backoff, self.longest, self.factor, self.jitter).delay(attempt, rng)


def retry(
    attempts: int = 5,
    *,
    backoff: str | timedelta = "1s",
    factor: float = 2.0,
    longest: str | timedelta = "10 minutes",
    jitter: float = 0.2,
) -> Retry:
    """Returns how often a message is tried, and the delay between attempts.

    Args:
        attempts: The number of failures after which a message becomes a dead letter.
        backoff: The delay after the first failure.
        factor: The ratio of a delay to the previous one.
        longest: The largest delay, before jitter.
        jitter: The share by which a delay is randomly longer or shorter, so that messages that failed together are not
            retried together.

    Example:
        >>> retry(3, backoff="2s").backoff
        datetime.timedelta(seconds=2)
    """
    return Retry(attempts, duration(backoff), factor, duration(longest), jitter)


@dataclass(frozen=True)
class Group:
    """Receivers that share the messages of a queue; every group gets each message that it selects.

    Args:
        name: The name of the group.
        routing_key: Patterns such as `orders.*.eu` (`*` one word, `#` any number of words); one must match.
        headers: Headers that must all have these values.
        where: An SQL condition over the message's fields.
    """

    name: str
    routing_key: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    where: str | None = None


def group(
    name: str,
    *,
    routing_key: str | Iterable[str] = (),
    headers: Mapping[str, str] | None = None,
    where: str | None = None,
) -> Group:
    """Returns a group of receivers that share the messages meeting all given conditions.

    Args:
        name: The name of the group.
        routing_key: One pattern or several, such as `orders.*.eu`; `*` is one word, `#` any number of words.
        headers: Headers that must all have these values.
        where: An SQL condition over the message's fields, such as `amount > 100`.

    Example:
        >>> group("eu", routing_key="orders.*.eu").routing_key
        ('orders.*.eu',)
    """
    patterns = (routing_key,) if isinstance(routing_key, str) else tuple(routing_key)
    return Group(name, patterns, dict(headers or {}), where)


@dataclass(frozen=True)
class Queue:
    """A queue's definition; make one with `Queue.declare`.

    Args:
        name: Letters, digits, `.`, `_`, `-`.
        groups: The groups that get its messages; one unnamed group by default.
        key: The field that holds the key of a message.
        ordered: Deliver the messages of a key in order, one at a time, also through retries.
        retry: Attempts and backoff.
        visibility_timeout: The time in which a receiver must settle or extend a delivery.
        ttl: The time to live of a message that is not delivered.
        deduplication_window: How long the id of a message is remembered to discard duplicates.
        limit: The largest number of waiting messages in each group; deliveries in flight do not count.
        overload: The policy for messages over the limit.
        durability: What a publish confirm promises.
        schema: The type of its messages; None accepts any JSON.
        location: Where the user wrote it.
        given: The options the user wrote: only those change an existing queue. None means all.
    """

    name: str
    groups: tuple[Group, ...] = (Group(""),)
    key: str | None = None
    ordered: bool = False
    retry: Retry = Retry()
    visibility_timeout: timedelta = timedelta(seconds=30)
    ttl: timedelta | None = None
    deduplication_window: timedelta = timedelta(minutes=10)
    limit: int | None = None
    overload: Overload = field(default_factory=Overload)
    durability: Durability = Durability.DURABLE
    schema: pa.Schema | None = None
    location: SourceLocation | None = field(default=None, compare=False)
    given: frozenset[str] | None = field(default=None, compare=False)

    @classmethod
    def declare(
        cls, name: str, type_: object = None, *, location: SourceLocation | None = None, **options: Any
    ) -> Queue:
        """Returns the definition of a queue from the options of a user.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: Dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema; None accepts any JSON.
            location: Where the user wrote it.
            options: `groups` (names, or `hw.group(...)`), `key`, `ordered`, `retry`, `visibility_timeout`, `ttl`,
                `deduplication_window`, `limit`, `overload`, `durability`; durations may be text.

        Example:
            >>> queue = Queue.declare("emails", retry=retry(3), groups=["send", "count"], visibility_timeout="1 minute")
            >>> [group.name for group in queue.groups], queue.visibility_timeout
            (['send', 'count'], datetime.timedelta(seconds=60))

        Raises:
            BadSettingError: An option is unknown or has an invalid value.
        """
        known = {option.name for option in fields(cls)} - {"name", "schema", "location", "given"}
        if unknown := sorted(set(options) - known):
            what = f"queue {name!r} has no option {unknown[0]!r}"
            raise BadSettingError(what, detail=f"options: {', '.join(sorted(known))}", location=location)
        try:
            read = _parse_options(options)
            if type_ is not None:
                read["schema"] = arrow_schema(type_)
            queue = cls(check_name(name, what="queue"), location=location, given=frozenset(read), **read)
            queue.check()
        except HeadwaterError as error:
            error.location = error.location or location
            raise
        return queue

    def check(self) -> None:
        """Raises if options are invalid or contradict each other."""
        names = [each.name for each in self.groups]
        if not names or len(names) > _MAX_GROUPS or len(set(names)) < len(names):
            raise self._setting_error(f"invalid groups {names[:10]}", "declare 1 to 1,000 groups with different names")
        for each in self.groups:
            if each.name:
                check_name(each.name, what="group")
            self._check_condition(each)
        if self.limit is not None and self.limit < 1:
            raise self._setting_error(f"a limit of {self.limit} is out of range", "use 1 or more, or None for no limit")
        if self.visibility_timeout <= timedelta(0):
            what = f"a visibility timeout of {self.visibility_timeout} is out of range"
            raise self._setting_error(what, 'use more than 0: visibility_timeout="30s"')
        if self.key is not None and self.schema is not None and self.key not in self.schema.names:
            raise self._setting_error(f"no key column {self.key!r}", f"columns: {', '.join(self.schema.names)}")

    def _check_condition(self, group: Group) -> None:
        if group.where is not None:
            condition = Filter(group.where)
            if self.schema is not None:
                condition.check(self.schema)
        for pattern in group.routing_key:
            if not isinstance(pattern, str) or any(
                sign in word and word != sign for word in pattern.split(".") for sign in "*#"
            ):
                hint = "* and # stand for whole words: orders.*.eu, orders.#"
                raise self._setting_error(f"the routing key pattern {pattern!r} is invalid", hint)

    def _setting_error(self, what: str, hint: str) -> BadSettingError:
        return BadSettingError(f"queue {self.name!r}: {what}", detail=hint, location=self.location, queue=self.name)

    def to_json(self) -> bytes:
        """Returns the definition as it is stored.

        Example:
            >>> queue = Queue.declare("emails", "to string", ttl="1 day")
            >>> Queue.from_json(queue.to_json()) == queue
            True
        """
        plain = {
            **{name: getattr(self, name) for name in ("name", "key", "ordered", "limit", "durability")},
            **_durations_to_seconds({key: getattr(self, name) for name, key in _DURATION_OPTIONS.items()}),
            "groups": [{"words": each.pop("routing_key"), **each} for each in map(asdict, self.groups)],
            "retry": _durations_to_seconds(asdict(self.retry)),
            "overload": _durations_to_seconds(asdict(self.overload)),
        }
        if self.schema is not None:
            plain["schema"] = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return msgspec.json.encode(plain)

    @classmethod
    def from_json(cls, data: bytes) -> Queue:
        """Returns the definition whose `to_json` this is."""
        read = msgspec.json.decode(data)
        durations = {name: _from_seconds(read.pop(key)) for name, key in _DURATION_OPTIONS.items()}
        overload, again, schema = read["overload"], read["retry"], read.get("schema")
        return cls(
            **read
            | durations
            | {
                "groups": tuple(Group(routing_key=tuple(each.pop("words")), **each) for each in read["groups"]),
                "retry": Retry(**again | {name: _from_seconds(again[name]) for name in ("backoff", "longest")}),
                "overload": Overload(
                    **overload
                    | {"when_full": WhenFull(overload["when_full"]), "timeout": _from_seconds(overload["timeout"])}
                ),
                "durability": Durability(read["durability"]),
                "schema": schema and pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema))),
            }
        )


def merge_definition(existing: Queue, declared: Queue) -> Queue:
    """Returns an existing queue with a new definition applied; only options the user wrote change it.

    Example:
        >>> existing = Queue.declare("emails", ttl="1 day")
        >>> merge_definition(existing, Queue.declare("emails", visibility_timeout="1 minute")).ttl
        datetime.timedelta(days=1)

    Raises:
        QueueExistsError: An option cannot be changed in place.
        SchemaConflictError: Waiting messages could not be read under the new type.
    """
    options = {option.name for option in fields(Queue)} - {"name", "location", "given"}
    changed = {name: getattr(declared, name) for name in (options if declared.given is None else declared.given)}
    if existing.schema is not None and changed.get("schema") is not None:
        changed["schema"] = merge(existing.schema, changed["schema"])
    new = replace(existing, **changed, location=declared.location, given=declared.given)
    # Waiting messages depend on both: the order of a key is kept only from the first message on, and a file cannot
    # move between memory and disk.
    for name in ("ordered", "durability"):
        before, after = getattr(existing, name), getattr(new, name)
        if before != after and (name == "ordered" or Durability.MEMORY in (before, after)):
            raise QueueExistsError(
                f'queue "{existing.name}" exists with {name} {before!s}',
                detail=f"it cannot become {after!s} in place",
                fix="choose another name",
                location=declared.location,
                queue=existing.name,
            )
    new.check()
    return new


def unknown_queue_error(name: str, known: Sequence[str]) -> UnknownQueueError:
    """Returns the error for an unknown queue; it names the closest known ones."""
    near = near_names(name, known) or known[:5]
    return UnknownQueueError(
        f'no queue "{name}"',
        detail=f"queues: {', '.join(near)}" if near else "there are no queues yet",
        fix=near[0] if near else "declare it first",
        queue=name,
    )


def unknown_group_error(queue: str, group: str, known: Sequence[str]) -> UnknownGroupError:
    """Returns the error for a group that a queue does not have; it names those it has."""
    return UnknownGroupError(
        f'queue "{queue}" has no group "{group}"',
        detail=f"groups: {', '.join(name or '(unnamed)' for name in known)}",
        fix=known[0] or "leave the group out",
        queue=queue,
        group=group,
    )


def check_prefetch(prefetch: int) -> None:
    """Raises if a receiver cannot have this prefetch; AMQP would take 0 as no limit."""
    if prefetch < 1:
        raise BadSettingError(f"a prefetch of {prefetch} is out of range", detail="use 1 or more")


def _parse_options(options: dict[str, Any]) -> dict[str, Any]:
    read = dict(options)
    for name in _DURATION_OPTIONS:
        if read.get(name) is not None:
            read[name] = duration(read[name])
    if "groups" in read:
        given = (read["groups"],) if isinstance(read["groups"], str | Group) else read["groups"] or (Group(""),)
        read["groups"] = tuple(each if isinstance(each, Group) else Group(each) for each in given)
    if "durability" in read:
        read["durability"] = parse_choice("durability", Durability, read["durability"])
    if isinstance(read.get("retry"), int):
        read["retry"] = Retry(read["retry"])
    if read.get("overload") is not None:
        read["overload"] = parse_overload(read["overload"])
        if read.get("limit") is None:
            read["limit"] = read["overload"].events
    nullable = {"key", "ttl", "limit"}  # None clears these; for other options it means "not given"
    return {name: value for name, value in read.items() if value is not None or name in nullable}


def _durations_to_seconds(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in values.items()}


def _from_seconds(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
