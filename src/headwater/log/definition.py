"""A topic as the user describes it: frozen data, checked, nothing touched yet."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import (
    BadKeyError,
    BadNameError,
    BadSettingError,
    Place,
    TimeColumnMissingError,
    TooLargeError,
    TopicExistsError,
    UnknownTopicError,
)
from headwater.events import DeviceClock, arrow_schema, merge, row_of_changes
from headwater.events.avro import avro_schema
from headwater.log.door.overload import Overload, WhenFull, overload_named
from headwater.log.keeping import CHOICES, Durability, Retention, Values, chosen
from headwater.units import duration, size

__all__ = [
    "LARGEST_EVENT",
    "Durability",
    "Retention",
    "Topic",
    "Values",
    "brought_up",
    "check_name",
    "check_producer",
    "keyless",
    "refuse_clash",
    "same_file",
    "too_large",
    "unknown_topic",
]

LARGEST_EVENT = 4 << 20
"""Bytes of the largest event that a topic takes."""
_LONGEST_ID = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic's definition; make one with `Topic.declare`.

    `version` is the schema's number in the topic's history, 0 until a log knows the topic. `clocked`: only time marks
    move its event time, because whoever writes it knows the time better than its events do. `given` names the options
    the user wrote: only those change a topic that exists. A topic with a `device_clock` has no `time` column: the
    corrected time is computed when an event comes, and stored with it.
    """

    name: str
    schema: pa.Schema
    version: int = 0
    key: tuple[str, ...] = ()
    time: str | None = None
    device_clock: DeviceClock | None = None
    lateness: timedelta = timedelta(seconds=10)
    partitions: int = 1
    durability: Durability = Durability.DURABLE
    retention: Retention = field(default_factory=Retention)
    compact: bool = False
    overload: Overload = field(default_factory=Overload)
    idle: timedelta = timedelta(seconds=30)
    ahead: timedelta = timedelta(minutes=5)
    segment_size: int = 64 << 20
    clocked: bool = False
    values: Values = Values.JSON
    place: Place | None = field(default=None, compare=False)
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def declare(cls, name: str, type_: object, *, place: Place | None = None, **options: Any) -> Topic:
        """Check and complete what a user wrote.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: Dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema.
            place: Where the user wrote it.
            options: `key`, `time`, `lateness`, `partitions`, `durability`, `retention`, `compact`, `overload`,
                `idle`, `ahead`, `segment_size`, `clocked`, `values`; durations and sizes may be text.

        Example:
            >>> topic = Topic.declare("orders", "order_id string, at timestamp", time="at", lateness="1 minute")
            >>> topic.lateness, topic.partitions
            (datetime.timedelta(seconds=60), 1)
        """
        known = set(cls.__dataclass_fields__) - {"name", "schema", "version", "place", "given"}
        if unknown := sorted(set(options) - known):
            what = f"topic {name!r} has no option {unknown[0]!r}"
            raise BadSettingError(what, detail=f"options: {', '.join(sorted(known))}", place=place)
        read = _read_options(_with_device_clock(options))
        given = frozenset(options) & frozenset(read) | frozenset(read) & {"device_clock"}
        topic = cls(name=check_name(name), schema=arrow_schema(type_), place=place, given=given, **read)
        topic._check()
        return topic

    def _check(self) -> None:
        names = self.schema.names
        if self.partitions < 1:
            raise self._bad(f"{self.partitions} partitions", "use 1 or more")
        for column in self.key:
            if column not in names:
                raise self._bad(f"no key column {column!r}", f"columns: {', '.join(names)}")
        if self.compact and not self.key:
            raise self._bad("compaction without a key", 'say which: key="product_id"')
        if self.time is not None:
            self._check_time(self.time)
        if self.device_clock is not None:
            self._check_device_clock(self.device_clock)
        if self.values is Values.AVRO:
            avro_schema(self.schema, self.name)

    def _check_time(self, column: str) -> None:
        times = [field.name for field in self.schema if pa.types.is_timestamp(field.type)]
        if column not in times:
            raise TimeColumnMissingError(
                f'topic "{self.name}" has no time column "{column}"',
                detail=f"its type has: {', '.join(self.schema.names)}",
                fix=f'time="{times[0]}"' if times else "add a timestamp field to the type",
                place=self.place,
                topic=self.name,
                column=column,
            )

    def _check_device_clock(self, clock: DeviceClock) -> None:
        self._check_time(clock.column)
        self._check_time(clock.sent)
        names = self.schema.names
        for column in clock.device or self.key:
            if column not in names or pa.types.is_nested(self.schema.field(column).type):
                raise self._bad(f"no device column {column!r} of one value", f"columns: {', '.join(names)}")
        if not clock.device and not self.key:
            raise self._bad("a device clock without a device", 'say whose clock it is: device="device_id"')
        if "occurred_at" in names:
            hint = 'the corrected time has that name: call the claimed one "claimed_at", for instance'
            raise self._bad('a column "occurred_at" beside a device clock', hint)

    @property
    def lasting(self) -> bool:
        """Whether what it says holds until it says otherwise: it is a table, or the changes of one.

        Example:
            >>> Topic.declare("products", "product_id int", key="product_id", compact=True).lasting
            True
        """
        return self.compact or row_of_changes(self.schema) is not None

    @property
    def event_time(self) -> str:
        """How its event time is found, in words.

        Example:
            >>> Topic.declare("notes", "text string").event_time
            'arrival'
        """
        return str(self.device_clock) if self.device_clock else self.time or "arrival"

    def _bad(self, what: str, hint: str) -> BadSettingError:
        return BadSettingError(f"topic {self.name!r}: {what}", detail=hint, place=self.place, topic=self.name)

    def to_json(self) -> bytes:
        """The settings as JSON; schemas are kept apart."""
        fields = {
            **{
                name: getattr(self, name)
                for name in ("name", "version", "key", "time", "partitions", "compact", "clocked")
            },
            **{name: getattr(self, name).total_seconds() for name in ("lateness", "idle", "ahead")},
            "durability": self.durability,
            "values": self.values,
            "segment_size": self.segment_size,
            "retention": _plain(asdict(self.retention)),
            "overload": _plain(asdict(self.overload)),
        }
        if self.device_clock is not None:
            fields["device_clock"] = _plain(asdict(self.device_clock))
        return msgspec.json.format(msgspec.json.encode(fields), indent=2)

    @classmethod
    def from_json(cls, data: bytes, schema: pa.Schema) -> Topic:
        """The definition whose `to_json` this is."""
        fields = msgspec.json.decode(data)
        overload, retention = fields.pop("overload"), fields.pop("retention")
        clock = fields.pop("device_clock", None)
        for name in ("lateness", "idle", "ahead"):
            fields[name] = timedelta(seconds=fields[name])
        return cls(
            **fields
            | {
                "schema": schema,
                "key": tuple(fields["key"]),
                "device_clock": clock
                and DeviceClock(
                    clock["column"], clock["sent"], tuple(clock["device"]), _span(clock["limit"])
                ),
                "durability": Durability(fields["durability"]),
                "values": Values(fields.get("values", "json")),
                "retention": Retention(_span(retention["time"]), retention["size"], retention["force"]),
                "overload": Overload(
                    WhenFull(overload["when_full"]),
                    overload["events"],
                    _span(overload["timeout"]),
                    overload["one_in"],
                ),
            }
        )

    def with_schema(self, schema: pa.Schema, version: int) -> Topic:
        """The same topic under another version of its type."""
        return replace(self, schema=schema, version=version)


def check_name(name: str, *, what: str = "topic") -> str:
    """The name itself if it is safe as a file name and valid in Kafka.

    Example:
        >>> check_name("orders.eu")
        'orders.eu'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise BadNameError(
            f"{name!r} cannot be the name of a {what}",
            detail="names have 1 to 249 letters, digits, dots, underscores or hyphens",
            name=str(name),
        )
    return name


def check_producer(id: str) -> str:
    """The id itself if it is short enough to stand in every batch; unlike a name it can be any text.

    Example:
        >>> check_producer("till 7")
        'till 7'
    """
    length = len(id.encode(errors="ignore")) if isinstance(id, str) and len(id) <= _LONGEST_ID else 0
    if not 0 < length <= _LONGEST_ID or not id.isprintable():
        raise BadNameError(
            f"{str(id)[:40]!r} cannot be the id of a producer",
            detail=f"an id is printable text of 1 to {_LONGEST_ID} bytes",
            name=str(id)[:_LONGEST_ID],
        )
    return id


def refuse_clash(name: str, others: Sequence[str]) -> None:
    """Refuse a new name that would clash with another on some file system or in Kafka's metrics.

    Example:
        >>> refuse_clash("orders", ["products"])
    """
    for other in others:
        if same_file(other) == same_file(name):
            raise BadNameError(
                f"{name!r} is too close to the topic {other!r}",
                detail="names that differ only by case or by . against _ clash in file systems and in Kafka",
                name=name,
            )


def same_file(name: str) -> str:
    """Two names that give the same text here would clash on some file system or in Kafka's metrics."""
    return name.casefold().replace(".", "_")


def unknown_topic(name: str, known: Sequence[str]) -> UnknownTopicError:
    """The error for a topic that is not among the known ones; it names the nearest.

    Example:
        >>> unknown_topic("order", ["orders"]).fix
        'orders'
    """
    near = difflib.get_close_matches(name, known, n=3) or list(known[:5])
    return UnknownTopicError(
        f'no topic "{name}"',
        detail=f"topics: {', '.join(near)}" if near else "there are no topics yet",
        fix=near[0] if near else 'client.create_topic("orders", Order)',
        topic=name,
    )


def keyless(topic: Topic, name: str, row: int) -> BadKeyError:
    """The error for a row without one of its key fields."""
    return BadKeyError(
        f'the key field "{name}" is missing',
        detail=f'topic "{topic.name}" is keyed by {", ".join(topic.key)}',
        topic=topic.name,
        row=row,
    )


def too_large(size_: int, row: int) -> TooLargeError:
    """The error for an event that is larger than a topic takes.

    Example:
        >>> too_large(5_000_000, 3).what
        'event 3 has 5,000,000 bytes, more than 4,194,304'
    """
    return TooLargeError(
        f"event {row} has {size_:,} bytes, more than {LARGEST_EVENT:,}",
        detail="nothing of this call was appended",
        fix="keep large objects elsewhere and send where they are",
        limit=LARGEST_EVENT,
        row=row,
    )


def brought_up(known: Topic, wanted: Topic) -> Topic:
    """A topic that exists, under a definition that is given anew; only options the user wrote change it.

    Example:
        >>> known = Topic.declare("orders", "id int", lateness="1 minute")
        >>> brought_up(known, Topic.declare("orders", "id int, note string", idle="5 s")).version
        1

    Raises:
        SchemaConflictError: Old events could not be read under the new type.
        TopicExistsError: The partitions, the key, the time column or the kind of storage differ.
    """
    asked = ("partitions",) if "partitions" in wanted.given else ()
    for what in (*asked, "key", "time"):
        if getattr(known, what) != getattr(wanted, what):
            raise TopicExistsError(
                f'topic "{known.name}" exists with {what} {getattr(known, what)!r}',
                detail=f"it cannot become {getattr(wanted, what)!r} in place",
                fix="choose another name",
                place=wanted.place,
                topic=known.name,
            )
    if (known.durability is Durability.MEMORY) != (wanted.durability is Durability.MEMORY):
        raise TopicExistsError(
            f'topic "{known.name}" exists with durability {known.durability.value}',
            detail="events in memory and events on disk cannot be mixed",
            place=wanted.place,
            topic=known.name,
        )
    schema = merge(known.schema, wanted.schema)
    version = known.version + (not schema.equals(known.schema, check_metadata=True))
    changed = {name: getattr(wanted, name) for name in wanted.given}
    return replace(known, **changed, schema=schema, version=version)


def _with_device_clock(options: dict[str, Any]) -> dict[str, Any]:
    """A device clock is said under `time`, and kept apart: the time column of such a topic is none of its own."""
    time = options.get("time")
    return options | {"time": None, "device_clock": time} if isinstance(time, DeviceClock) else options


def _read_options(options: dict[str, Any]) -> dict[str, Any]:
    read = dict(options)
    key = options.get("key")
    read["key"] = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    for name in ("lateness", "idle", "ahead"):
        if name in read:
            read[name] = duration(read[name])
    for name, kind in CHOICES.items():
        if name in read:
            read[name] = chosen(name, kind, read[name])
    if "segment_size" in read:
        read["segment_size"] = size(read["segment_size"])
    if "overload" in read:
        read["overload"] = overload_named(read["overload"] or Overload())
    if not isinstance(read.get("retention", Retention()), Retention):
        read["retention"] = Retention.of(read["retention"])
    return {name: value for name, value in read.items() if value is not None or name == "time"}


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in fields.items()
    }


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
