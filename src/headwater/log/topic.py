"""A topic's definition: frozen data, checked, without I/O.

`Topic.declare` checks a user's declaration and fills in defaults. `Overload` is the policy for producers that
are faster than the disk: events wait in a bounded buffer before they get an offset (append_buffer.py);
`drop`, `backpressure` and `buffer` set its size and what happens when it is full. `Durability` is the
guarantee of an acknowledgement, `Retention` how long events are kept, `ValueFormat` the format of values in
Kafka. `merge_definition` applies a new definition to an existing topic.
The name rules and the errors that all log backends share are here too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, Literal, TypeVar, get_type_hints

import msgspec
import pyarrow as pa

from headwater.errors import (
    BadKeyError,
    BadNameError,
    BadSettingError,
    DataGoneError,
    RefusedError,
    SourceLocation,
    TimeColumnMissingError,
    TooLargeError,
    TopicExistsError,
    UnknownTopicError,
    near_names,
)
from headwater.events import DeviceClock, arrow_schema, change_row_schema, merge
from headwater.events.schema_export import to_avro
from headwater.units import duration, size

__all__ = [
    "MAX_EVENT_BYTES",
    "OPTION_NAMES",
    "Durability",
    "Overload",
    "Retention",
    "Topic",
    "ValueFormat",
    "WhenFull",
    "backpressure",
    "buffer",
    "check_name",
    "check_name_clash",
    "check_producer",
    "deleted_topic_error",
    "drop",
    "external_time_error",
    "merge_definition",
    "missing_key_error",
    "normalize_name",
    "parse_choice",
    "parse_overload",
    "replaced_topic_error",
    "too_large_error",
    "unknown_topic_error",
]

_Choice = TypeVar("_Choice")


class WhenFull(StrEnum):
    """What happens to the next event when the append buffer is full."""

    WAIT = "wait"
    """The caller waits for space, up to a timeout; then OVERLOADED (429 over HTTP)."""
    DROP_NEWEST = "drop newest"
    """The new event is dropped and counted."""
    DROP_OLDEST = "drop oldest"
    """The event that has waited longest is dropped and counted; the new one is admitted."""
    DROP_SAMPLED = "drop sampled"
    """From half full on, one event in `one_in` is admitted; the others are dropped and counted."""


@dataclass(frozen=True)
class Overload:
    """A topic's overload policy."""

    when_full: WhenFull = WhenFull.WAIT
    events: int = 10_000
    timeout: timedelta | None = None
    one_in: int = 10

    def __post_init__(self) -> None:
        if self.events < 1 or self.one_in < 1:
            what = f"events={self.events}, one_in={self.one_in} is not an overload policy"
            raise BadSettingError(what, fix="use numbers of at least 1")

    @property
    def drops(self) -> bool:
        """Whether events may be dropped, which leaves gaps between the sequence numbers of a producer."""
        return self.when_full is not WhenFull.WAIT

    def __str__(self) -> str:
        action = "backpressure" if self.when_full is WhenFull.WAIT else self.when_full.value
        return f"{action} after {self.events:,} events"


def drop(
    which: Literal["newest", "oldest", "sampled"] = "newest", *, events: int = 10_000, one_in: int = 10
) -> Overload:
    """Drop events when the buffer is full, and count them, instead of blocking the producer.

    Args:
        which: Which events to drop.
        events: How many events may wait before one is dropped.
        one_in: For "sampled": keeps one in this many events while the buffer is more than half full.

    Example:
        >>> str(drop("oldest", events=500))
        'drop oldest after 500 events'
    """
    known = {kind.value.removeprefix("drop "): kind for kind in WhenFull if kind is not WhenFull.WAIT}
    kind = _choose(known, which, what=f"cannot drop {which!r}", fix='hw.drop("oldest")')
    return Overload(kind, events, one_in=one_in)


def backpressure(timeout: str | timedelta | None = None, *, events: int = 10_000) -> Overload:
    """Block the caller until there is room; raise `OverloadedError` after the timeout, if one is set.

    Example:
        >>> backpressure("5 seconds").timeout
        datetime.timedelta(seconds=5)
    """
    return Overload(WhenFull.WAIT, events, None if timeout is None else duration(timeout))


def buffer(events: int, *, then: Overload | None = None) -> Overload:
    """Buffer this many events, then apply the second policy (default: backpressure).

    Example:
        >>> str(buffer(100_000, then=drop("newest")))
        'drop newest after 100,000 events'
    """
    return replace(then or backpressure(), events=events)


def parse_overload(policy: Overload | str) -> Overload:
    """Returns the overload policy with this name; a policy is returned unchanged.

    Example:
        >>> parse_overload("drop").when_full.value
        'drop newest'
    """
    if isinstance(policy, Overload):
        return policy
    policies = {"drop": drop(), "buffer": buffer(100_000), "backpressure": backpressure()}
    return _choose(policies, policy, what=f"unknown overload policy {policy!r}", fix='overload="backpressure"')


class Durability(StrEnum):
    """What an acknowledgement means."""

    DURABLE = "durable"
    """On stable storage: survives kill -9 and a power cut."""
    FAST = "fast"
    """In the operating system's page cache: survives kill -9; a power cut may lose the last seconds."""
    MEMORY = "memory"
    """In shared memory: survives kill -9; a restart of the machine loses everything."""


class ValueFormat(StrEnum):
    """The format of a topic's values in Kafka; the embedded log stores typed columns in any case."""

    JSON = "json"
    """JSON objects, which every tool can read."""
    AVRO = "avro"
    """Avro binary encoding; the schema is stored with the topic's definition."""
    ARROW = "arrow"
    """An Arrow IPC stream per record, with the schema and one row."""
    DEBEZIUM = "debezium"
    """Debezium's envelope as JSON, for topics of changes: Debezium writes them, or its consumers read them."""


@dataclass(frozen=True)
class Retention:
    """How long events are kept; without a limit they are kept forever.

    Args:
        time: Segments whose newest event is older than this are removed; age counts from arrival.
        size: The oldest segments of a partition are removed while it has more bytes than this.
        force: Remove segments that a consumer group has not read yet; otherwise retention waits for the group.
    """

    time: timedelta | None = None
    size: int | None = None
    force: bool = False

    @classmethod
    def of(
        cls, time: str | timedelta | None = None, size_: str | int | None = None, *, force: bool = False
    ) -> Retention:
        """Returns a retention from text such as "7 days" and "10 GB"."""
        return cls(None if time is None else duration(time), None if size_ is None else size(size_), force)


def parse_choice(name: str, kind: type[StrEnum], value: object) -> StrEnum:
    """Returns the member of an enumeration by its value.

    Raises:
        BadSettingError: There is no such value.

    Example:
        >>> parse_choice("value_format", ValueFormat, "avro").value
        'avro'
    """
    choices = {choice.value: choice for choice in kind}
    return _choose(choices, value, what=f"unknown {name} {value!r}", fix=f'{name}="{next(iter(choices))}"')


def _choose(choices: Mapping[str, _Choice], name: object, *, what: str, fix: str) -> _Choice:
    if not isinstance(name, str) or name not in choices:
        raise BadSettingError(what, detail=f"it can be: {', '.join(choices)}", fix=fix)
    return choices[name]


MAX_EVENT_BYTES: Final = 4 << 20
"""The size limit of one event, in bytes."""
_MAX_ID_BYTES: Final = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

OPTION_NAMES: Final = {"clocked": "external_time", "values": "value_format"}
"""Topic options with another name in stored and sent definitions, by their stored name."""


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic's definition; create one with `Topic.declare`.

    `version` is the schema's number in the topic's history, 0 until a log knows the topic. With
    `external_time`, only idle markers advance the event time: the writer keeps it. `given` names the
    options the user wrote; only those change an existing topic. A topic with a `device_clock` has no `time`
    column: the corrected time is computed when an event arrives, and stored with it. Versions below
    `first_version` belong to deleted topics of this name.
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
    external_time: bool = False
    value_format: ValueFormat = ValueFormat.JSON
    invalid: str | None = None
    first_version: int = 1
    location: SourceLocation | None = field(default=None, compare=False)
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def declare(cls, name: str, type_: object, *, location: SourceLocation | None = None, **options: Any) -> Topic:
        """Returns a checked definition from a user's declaration.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: Dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema.
            location: File and line of the declaration.
            options: `key`, `time`, `lateness`, `partitions`, `durability`, `retention`, `compact`, `overload`,
                `idle`, `ahead`, `segment_size`, `external_time`, `value_format`, `invalid`; durations and sizes may be
                text.

        Example:
            >>> topic = Topic.declare("orders", "order_id string, at timestamp", time="at", lateness="1 minute")
            >>> topic.lateness, topic.partitions
            (datetime.timedelta(seconds=60), 1)
        """
        known = set(cls.__dataclass_fields__) - {"name", "schema", "version", "first_version", "location", "given"}
        if unknown := sorted(set(options) - known):
            what = f"topic {name!r} has no option {unknown[0]!r}"
            raise BadSettingError(what, detail=f"options: {', '.join(sorted(known))}", location=location)
        if isinstance(time := options.get("time"), DeviceClock):
            options |= {"time": None, "device_clock": time}
        read = _parse_options(options)
        given = frozenset(options) & frozenset(read)
        topic = cls(name=check_name(name), schema=arrow_schema(type_), location=location, given=given, **read)
        topic._check()
        return topic

    def _check(self) -> None:
        names = self.schema.names
        if self.partitions < 1:
            raise self._setting_error(f"{self.partitions} partitions", "use 1 or more")
        for column in self.key:
            if column not in names:
                raise self._setting_error(f"no key column {column!r}", f"columns: {', '.join(names)}")
        if self.compact and not self.key:
            raise self._setting_error("compaction without a key", 'name the key: key="product_id"')
        if self.time is not None:
            self._check_time(self.time)
        if self.device_clock is not None:
            self._check_device_clock(self.device_clock)
        self._check_value_format()
        self._check_invalid()

    def _check_value_format(self) -> None:
        if self.value_format is ValueFormat.AVRO:
            to_avro(self.schema, self.name)
        if self.value_format is ValueFormat.DEBEZIUM and change_row_schema(self.schema) is None:
            what = "values in Debezium's envelope, whose type is not one of changes"
            raise self._setting_error(what, "use hw.changes(…) as its type")

    def _check_invalid(self) -> None:
        if self.invalid is not None and check_name(self.invalid) == self.name:
            raise self._setting_error("the topic of its invalid events is itself", f'invalid="{self.name}.invalid"')

    def _check_time(self, column: str) -> None:
        times = [field.name for field in self.schema if pa.types.is_timestamp(field.type)]
        if column not in times:
            raise TimeColumnMissingError(
                f'topic "{self.name}" has no time column "{column}"',
                detail=f"its type has: {', '.join(self.schema.names)}",
                fix=f'time="{times[0]}"' if times else "add a timestamp field to the type",
                location=self.location,
                topic=self.name,
                column=column,
            )

    def _check_device_clock(self, clock: DeviceClock) -> None:
        self._check_time(clock.column)
        self._check_time(clock.sent)
        names = self.schema.names
        for column in clock.device or self.key:
            if column not in names or pa.types.is_nested(self.schema.field(column).type):
                raise self._setting_error(f"no device column {column!r} of one value", f"columns: {', '.join(names)}")
        if not clock.device and not self.key:
            raise self._setting_error("a device clock without a device", 'name its column: device="device_id"')
        if "occurred_at" in names:
            hint = 'the corrected time has this name: rename the column, for example to "claimed_at"'
            raise self._setting_error('a column "occurred_at" beside a device clock', hint)

    @property
    def is_table(self) -> bool:
        """Whether the topic holds the state of a table or the changes of one.

        Example:
            >>> Topic.declare("products", "product_id int", key="product_id", compact=True).is_table
            True
        """
        return self.compact or change_row_schema(self.schema) is not None

    def is_live(self, max_event_time: int, arrived_at: int) -> bool:
        """Whether the record that set the topic's max event time arrived at most lateness + idle after it.

        Otherwise the topic holds history, and silence does not advance its event time. Times are in microseconds.

        Example:
            >>> topic = Topic.declare("orders", "id int", lateness="10 s", idle="30 s")
            >>> topic.is_live(0, 40_000_000), topic.is_live(0, 40_000_001)
            (True, False)
        """
        return arrived_at - max_event_time <= (self.lateness + self.idle) // timedelta(microseconds=1)

    @property
    def event_time_source(self) -> str:
        """A description of where the event time comes from.

        Example:
            >>> Topic.declare("notes", "text string").event_time_source
            'arrival'
        """
        return str(self.device_clock) if self.device_clock else self.time or "arrival"

    def _setting_error(self, what: str, hint: str) -> BadSettingError:
        return BadSettingError(f"topic {self.name!r}: {what}", detail=hint, location=self.location, topic=self.name)

    def to_json(self) -> bytes:
        """Returns the settings as JSON; schemas are stored separately."""
        fields = {
            **{name: getattr(self, name) for name in ("name", "version", "key", "time", "partitions", "compact")},
            **{name: getattr(self, name).total_seconds() for name in ("lateness", "idle", "ahead")},
            "clocked": self.external_time,
            "durability": self.durability,
            "values": self.value_format,
            "segment_size": self.segment_size,
            "retention": _durations_to_seconds(asdict(self.retention)),
            "overload": _durations_to_seconds(asdict(self.overload)),
        }
        if self.device_clock is not None:
            fields["device_clock"] = _durations_to_seconds(asdict(self.device_clock))
        if self.invalid is not None:
            fields["invalid"] = self.invalid
        if self.first_version > 1:
            fields["first_version"] = self.first_version
        return msgspec.json.format(msgspec.json.encode(fields), indent=2)

    @classmethod
    def from_json(cls, data: bytes, schema: pa.Schema) -> Topic:
        """Returns the definition from the result of `to_json`."""
        fields = {OPTION_NAMES.get(name, name): value for name, value in msgspec.json.decode(data).items()}
        if not {"name", "version", "partitions"} <= fields.keys():  # a default would hide that the file is damaged
            raise KeyError("name, version and partitions")
        types = get_type_hints(cls)
        # Not strict, because durations are stored as seconds.
        parsed = {name: msgspec.convert(value, types[name], strict=False) for name, value in fields.items()}
        return cls(**parsed, schema=schema)

    def with_schema(self, schema: pa.Schema, version: int) -> Topic:
        """Returns the same topic under another version of its type."""
        return replace(self, schema=schema, version=version)


def check_name(name: str, *, what: str = "topic") -> str:
    """Returns the name if it is safe as a file name and valid in Kafka; raises otherwise.

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
    """Returns the id if it is short enough to be stored in every batch; unlike a name it can be any text.

    Example:
        >>> check_producer("till 7")
        'till 7'
    """
    length = len(id.encode(errors="ignore")) if isinstance(id, str) and len(id) <= _MAX_ID_BYTES else 0
    if not 0 < length <= _MAX_ID_BYTES or not id.isprintable():
        raise BadNameError(
            f"{str(id)[:40]!r} cannot be the id of a producer",
            detail=f"an id is printable text of 1 to {_MAX_ID_BYTES} bytes",
            name=str(id)[:_MAX_ID_BYTES],
        )
    return id


def check_name_clash(name: str, others: Sequence[str], *, what: str = "topic") -> None:
    """Reject a new name that would clash with another on some file system or in Kafka's metrics.

    Example:
        >>> check_name_clash("orders", ["products"])
    """
    for other in others:
        if normalize_name(other) == normalize_name(name):
            raise BadNameError(
                f"{name!r} is too close to the {what} {other!r}",
                detail="names that differ only by case or by . against _ clash in file systems and in Kafka",
                name=name,
            )


def normalize_name(name: str) -> str:
    """Returns the form in which clashing names are equal (file systems, Kafka's metrics)."""
    return name.casefold().replace(".", "_")


def unknown_topic_error(name: str, known: Sequence[str]) -> UnknownTopicError:
    """Returns the error for an unknown topic; it names the closest known one.

    Example:
        >>> unknown_topic_error("order", ["orders"]).fix
        'orders'
    """
    near = near_names(name, known)
    listed = near or list(known[:5])
    return UnknownTopicError(
        f'no topic "{name}"',
        detail=f"topics: {', '.join(listed)}" if listed else "there are no topics yet",
        fix=near[0] if near else "headwater topics" if known else 'client.create_topic("orders", Order)',
        topic=name,
    )


def deleted_topic_error(name: str, *, replaced: bool = False) -> UnknownTopicError:
    """Returns the error for a topic that was deleted while a program had it open.

    Example:
        >>> deleted_topic_error("orders").what
        'topic "orders" was deleted'
    """
    if not replaced:
        return UnknownTopicError(f'topic "{name}" was deleted', fix="headwater topics", topic=name)
    what = f'topic "{name}" was deleted and created again'
    return UnknownTopicError(
        what, detail="the event was made for the deleted topic; nothing was appended", fix="open it again", topic=name
    )


def replaced_topic_error(name: str) -> DataGoneError:
    """Returns the error for a reader at a position in a deleted topic whose name another topic has now.

    Example:
        >>> replaced_topic_error("orders").what
        'topic "orders" was deleted and created again'
    """
    return DataGoneError(
        f'topic "{name}" was deleted and created again',
        detail="the position of this reader was in the deleted topic; its unread events are gone",
        fix='open it again; client.read(topic, start="earliest") reads the new topic from its start',
        topic=name,
    )


def external_time_error(name: str) -> RefusedError:
    """Returns the error for a topic whose event time only its pipeline advances.

    Example:
        >>> external_time_error("revenue").data
        {'topic': 'revenue'}
    """
    what = f'topic "{name}" cannot be completed: its event time is the watermark of the pipeline that writes it'
    return RefusedError(what, fix="complete the topics that the pipeline reads", topic=name)


def missing_key_error(topic: Topic, name: str, row: int) -> BadKeyError:
    """Returns the error for a row without one of its key fields."""
    return BadKeyError(
        f'the key field "{name}" is missing',
        detail=f'topic "{topic.name}" is keyed by {", ".join(topic.key)}',
        topic=topic.name,
        row=row,
        field=name,
    )


def too_large_error(size_: int, row: int) -> TooLargeError:
    """Returns the error for an event above the size limit of a topic.

    Example:
        >>> too_large_error(5_000_000, 3).what
        'event 3 has 5,000,000 bytes, more than 4,194,304'
    """
    return TooLargeError(
        f"event {row} has {size_:,} bytes, more than {MAX_EVENT_BYTES:,}",
        detail="nothing of this call was appended",
        fix="store large objects elsewhere and send a reference",
        limit=MAX_EVENT_BYTES,
        row=row,
    )


def merge_definition(known: Topic, wanted: Topic) -> Topic:
    """Returns an existing topic with a new definition applied; only options the user wrote change it.

    Example:
        >>> known = Topic.declare("orders", "id int", lateness="1 minute")
        >>> merge_definition(known, Topic.declare("orders", "id int, note string", idle="5 s")).version
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
                location=wanted.location,
                topic=known.name,
            )
    if (known.durability is Durability.MEMORY) != (wanted.durability is Durability.MEMORY):
        raise TopicExistsError(
            f'topic "{known.name}" exists with durability {known.durability.value}',
            detail="events in memory and events on disk cannot be mixed",
            location=wanted.location,
            topic=known.name,
        )
    schema = merge(known.schema, wanted.schema)
    version = known.version + (not schema.equals(known.schema, check_metadata=True))
    changed = {name: getattr(wanted, name) for name in wanted.given}
    return replace(known, **changed, schema=schema, version=version)


def _parse_options(options: dict[str, Any]) -> dict[str, Any]:
    parsed = dict(options)
    key = options.get("key")
    parsed["key"] = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    for name in ("lateness", "idle", "ahead"):
        if name in parsed:
            parsed[name] = duration(parsed[name])
    for name, kind in (("durability", Durability), ("value_format", ValueFormat)):
        if name in parsed:
            parsed[name] = parse_choice(name, kind, parsed[name])
    if "segment_size" in parsed:
        parsed["segment_size"] = size(parsed["segment_size"])
    if "overload" in parsed:
        parsed["overload"] = parse_overload(parsed["overload"] or Overload())
    if not isinstance(parsed.get("retention", Retention()), Retention):
        parsed["retention"] = Retention.of(parsed["retention"])
    return {name: value for name, value in parsed.items() if value is not None or name in ("time", "invalid")}


def _durations_to_seconds(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in fields.items()}
