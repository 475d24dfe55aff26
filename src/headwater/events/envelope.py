"""The envelope of an event: position, key, times, headers and trace; and the receipt of an append."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import repeat
from typing import Any, overload

import msgspec
import numpy as np
import numpy.typing as npt

from headwater.errors import BadEventError
from headwater.events.key import key_bytes
from headwater.events.values import preview, to_json_value

__all__ = ["Event", "Receipt", "Receipts", "build_events", "check_headers", "check_traceparent"]

# W3C Trace Context: version ff and ids of zeros only are not valid.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_SURROGATE = re.compile("[\ud800-\udfff]")  # text that has one cannot be encoded


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event, as read from a topic.

    A frozen `msgspec.Struct`: it behaves like a dataclass and is created seven times as fast, for readers of hundreds
    of thousands of events a second.

    Attributes:
        topic: The topic.
        partition: The partition of the topic.
        offset: The offset in the partition.
        key: The key; None without one.
        value: The fields; None for an event with `error` and for a tombstone, which deletes its key from a compacted
            topic.
        id: The same on every delivery; "{topic}/{partition}/{offset}" unless the producer chose one.
        occurred_at: When the event happened, by the producer's clock.
        sent_at: When the producer sent it, by the same clock.
        received_at: When the log appended it, by the node's clock.
        headers: Text that the producer attached.
        traceparent: The W3C trace context.
        source: The producer, as a URI reference.
        type: The event type.
        late: Whether it is late by the lateness of its topic.
        error: Why it cannot be decoded under the topic's type; only on Kafka, where other programs write to topics.
        raw: The bytes that cannot be decoded.

    Example:
        >>> event = Event("orders", 0, 12, key="ada", value={"amount": 3})
        >>> event.id, event.value["amount"]
        ('orders/0/12', 3)
    """

    topic: str
    partition: int
    offset: int
    key: Any = None
    value: dict[str, Any] | None = None
    id: str = ""
    occurred_at: datetime | None = None
    sent_at: datetime | None = None
    received_at: datetime | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    traceparent: str | None = None
    source: str | None = None
    type: str | None = None
    late: bool = False
    error: str | None = None
    raw: bytes | None = None

    def __post_init__(self) -> None:
        if not self.id:
            msgspec.structs.force_setattr(self, "id", f"{self.topic}/{self.partition}/{self.offset}")

    @property
    def tombstone(self) -> bool:
        """Whether the event deletes its key."""
        return self.value is None and self.error is None

    def cloud_event(self) -> dict[str, Any]:
        """Returns the event as a CloudEvents 1.0 JSON document in structured mode.

        The key is `partitionkey`, the offset `sequence` and the arrival time `recordedtime`, which are documented
        extensions. Headers are one JSON text, because names of CloudEvents attributes are more restricted.

        Example:
            >>> Event("orders", 0, 12, key="ada", value={"amount": 3}).cloud_event()["source"]
            '/topics/orders'
        """
        attributes = {
            "specversion": "1.0",
            "id": self.id,
            "source": self.source or f"/topics/{self.topic}",
            "type": self.type or self.topic,
            "time": to_json_value(self.occurred_at),
            "partitionkey": None if self.key is None else key_bytes(self.key).decode(errors="replace"),
            "partition": self.partition,
            "sequence": str(self.offset),
            "senttime": to_json_value(self.sent_at),
            "recordedtime": to_json_value(self.received_at),
            "traceparent": self.traceparent,
            "headers": msgspec.json.encode(self.headers).decode() if self.headers else None,
            "tombstone": True if self.tombstone else None,
            "datacontenttype": None if self.tombstone else "application/json",
            "data": to_json_value(self.value),
        }
        return {name: value for name, value in attributes.items() if value is not None}


class Receipt(msgspec.Struct, frozen=True):
    """The acknowledgement of an event that is in the log, or the reason why it is not.

    Attributes:
        topic: The topic; for a diverted event, the topic of invalid events that it went to.
        partition: The partition; -1 if the event was dropped or refused.
        offset: The offset; for a duplicate, the offset of the first copy; -1 for a dropped or refused event.
        duplicate: Whether the log already had the event (same producer and sequence number).
        dropped: Why the overload policy dropped the event; None if it was appended.
        diverted: Why the event is invalid and went to the topic of invalid events; None if it is valid.
        refused: Why the event is invalid and was left out (`skip_invalid=True`); None if it is valid.

    Example:
        >>> Receipt("orders", 2, 41)
        Receipt(topic='orders', partition=2, offset=41, duplicate=False, dropped=None, diverted=None, refused=None)
    """

    topic: str
    partition: int
    offset: int
    duplicate: bool = False
    dropped: str | None = None
    diverted: str | None = None
    refused: str | None = None


def build_events(
    topic: str,
    partition: int,
    offsets: Iterable[int],
    values: Iterable[dict[str, Any] | None],
    **columns: Iterable[Any] | None,
) -> Iterator[Event]:
    """Yields the events of one partition from their columns, without Python code per event.

    Args:
        topic: The topic.
        partition: The partition.
        offsets: The offset of each event.
        values: The value of each event.
        **columns: Other fields of `Event` by name, in the order of the offsets. A field that is None or left out has
            its default in every event; so has an empty id. A constant column may be an `itertools.repeat`.

    Example:
        >>> [event.id for event in build_events("orders", 0, range(5, 7), [{"a": 1}, None])]
        ['orders/0/5', 'orders/0/6']
    """
    numbers = list(offsets)
    fields: dict[str, Iterable[Any]] = dict.fromkeys(Event.__struct_fields__, repeat(None)) | {
        "topic": repeat(topic),
        "partition": repeat(partition),
        "offset": numbers,
        "value": values,
        "id": map(f"{topic}/{partition}/".__add__, map(str, numbers)),
        "headers": ({} for _ in numbers),
        "late": repeat(False),
    }
    fields |= {name: column for name, column in columns.items() if column is not None}
    return map(Event, *fields.values())  # in the order of the struct's fields; an unknown name is one argument too many


def check_traceparent(text: str) -> str:
    """Returns a W3C `traceparent` header if it is valid; raises otherwise.

    Example:
        >>> check_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")[:2]
        '00'

    Raises:
        BadEventError: It is not version-traceid-parentid-flags in lower-case hexadecimal, or an id is all zeros.
    """
    if isinstance(text, str) and _TRACEPARENT.fullmatch(text):
        return text
    raise BadEventError(
        f"the traceparent {preview(text)} is not valid",
        detail="the W3C format is 2, 32, 16 and 2 lower-case hexadecimal digits joined by -; no id is all zeros",
        field="traceparent",
    )


def check_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Returns headers as a dict if all names and values are text; raises otherwise.

    Example:
        >>> check_headers({"tenant": "acme"}), check_headers(None)
        ({'tenant': 'acme'}, {})

    Raises:
        BadEventError: A name or value is not text, or is not valid Unicode.
    """
    found = dict(headers or {})
    for name, value in found.items():
        if not name or not all(isinstance(text, str) and not _SURROGATE.search(text) for text in (name, value)):
            raise BadEventError(
                f"the header {preview(name)}: {preview(value)} is not text",
                detail="header names and values are text, and names are not empty",
                field="headers",
            )
    return found


@dataclass(frozen=True, eq=False)
class Receipts(Sequence[Receipt]):
    """One `Receipt` per row, in row order; stored as arrays, so that receipts of large batches are cheap.

    `invalid` has the receipts of diverted and refused rows by row; there, the arrays have -1.

    Example:
        >>> receipts = Receipts("orders", np.array([0, 0]), np.array([7, 8]), np.array([False, False]))
        >>> len(receipts), receipts[1].offset, receipts.duplicates
        (2, 8, 0)
    """

    topic: str
    partitions: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    repeated: npt.NDArray[np.bool_]
    dropped: str | None = None
    invalid: Mapping[int, Receipt] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...

    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        partition = int(self.partitions[index])  # raises behind the end
        if self.invalid and (found := self.invalid.get(range(len(self))[index])) is not None:
            return found
        return Receipt(
            self.topic,
            partition,
            int(self.offsets[index]),
            duplicate=bool(self.repeated[index]),
            dropped=self.dropped,
        )

    @property
    def duplicates(self) -> int:
        """The number of rows that the log already had."""
        return int(self.repeated.sum())

    @property
    def diverted(self) -> int:
        """The number of invalid rows that went to the topic of invalid events."""
        return sum(receipt.diverted is not None for receipt in self.invalid.values())

    @property
    def refused(self) -> int:
        """The number of invalid rows that were left out (`skip_invalid=True`)."""
        return sum(receipt.refused is not None for receipt in self.invalid.values())

    @property
    def ends(self) -> dict[int, int]:
        """The highest offset in each partition."""
        return {
            int(partition): int(self.offsets[self.partitions == partition].max())
            for partition in np.unique(self.partitions)
            if partition >= 0
        }
