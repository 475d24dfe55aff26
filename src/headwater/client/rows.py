"""From what a user hands over to typed columns: values checked, keys and clocks filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError
from headwater.events import Codec, checked_headers, checked_traceparent, key_bytes, storage_schema, to_row
from headwater.log import Row, Rows, Topic
from headwater.units import micros, moment

__all__ = ["Incoming"]


class Incoming:
    """Makes `Rows` for one topic under one version of its type."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.codec = Codec(topic.schema)
        self._stored = storage_schema(topic.schema)

    def one(self, value: Any, now: int, key: Any = None, /, **about: Any) -> Row:
        """A single event; `about` has any of `id`, `occurred_at`, `sent_at`, `headers`, `traceparent`, `source`."""
        envelope: dict[str, Any] = {"_hw.sent_at": now}
        if key is not None and self.topic.key:
            value = self._keyed(to_row(value), key)
        elif key is not None:
            envelope["_hw.key"] = key_bytes(key)
        for name, given in about.items():
            if name not in _ABOUT:
                what = f"an event has no attribute {name!r}"
                raise BadEventError(what, detail=f"it can have: {', '.join(_ABOUT)}", field=name)
            if given is not None:
                envelope[f"_hw.{name}"] = _ABOUT[name](given)
        return Row(self.codec.checked([value])[0], self.topic.version, envelope)

    def many(self, values: Any, keys: Sequence[Any] | None, sent_at: int) -> Rows:
        """A sequence of values, or an Arrow table or batch, pandas or Polars frame."""
        batch = self.codec.encode(values) if isinstance(values, list | tuple) else self._frame(values)
        envelope = {} if keys is None else {"_hw.key": self._key_column(keys, batch.num_rows)}
        return Rows(batch, self.topic.version, envelope, sent_at=sent_at)

    def json(self, lines: Sequence[bytes], sent_at: int) -> Rows:
        """Values as JSON objects, one per line."""
        batch = self.codec.decode_json(lines)
        return Rows(batch, self.topic.version, {}, sent_at=sent_at)

    def tombstone(self, key: Any, sent_at: int) -> Rows:
        """The row that deletes a key."""
        if not self.topic.key:
            what = f'topic "{self.topic.name}" has no key, so nothing can be deleted from it'
            raise BadKeyError(what, fix='create the topic with key="…"', topic=self.topic.name)
        parts = dict(zip(self.topic.key, self._key_parts(key), strict=True))
        columns = []
        for field in self._stored:
            try:
                columns.append(pa.array([parts.get(field.name)], field.type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
                what = f"{parts[field.name]!r} cannot be a key of topic {self.topic.name!r}"
                raise BadKeyError(what, detail=str(error), topic=self.topic.name) from None
        values = pa.RecordBatch.from_arrays(columns, schema=self._stored)
        return Rows(values, self.topic.version, {"_hw.deleted": pa.array([True])}, sent_at=sent_at)

    def key_of(self, row: Row) -> bytes | None:
        """The canonical key of a single event."""
        if not self.topic.key:
            key: bytes | None = row.about.get("_hw.key")
            return key
        parts = self.codec.members(row.struct, self.topic.key)
        return key_bytes(parts[0] if len(parts) == 1 else parts)

    def _frame(self, values: Any) -> pa.RecordBatch:
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            values = (
                list(values)
                if hasattr(values, "__iter__") and not isinstance(values, str | bytes)
                else values
            )
            if not isinstance(values, list) or not all(map(_is_row, values[:1])):
                what = f"send_many takes rows or a frame, not {type(values).__name__}"
                raise BadEventError(what, fix="client.send(topic, value) for one event")
            return self.codec.encode(values)
        return self.codec.encode_frame(values)

    def _keyed(self, row: dict[str, Any], key: Any) -> dict[str, Any]:
        parts = self._key_parts(key)
        for name, part in zip(self.topic.key, parts, strict=True):
            if row.get(name) is not None and key_bytes(row[name]) != key_bytes(part):
                raise BadKeyError(
                    f'the key {part!r} is not the event\'s "{name}", which is {row[name]!r}',
                    detail=f'topic "{self.topic.name}" is keyed by {", ".join(self.topic.key)}',
                    fix="leave the key out: it is taken from the event",
                    topic=self.topic.name,
                )
        return row | {
            name: part if row.get(name) is None else row[name]
            for name, part in zip(self.topic.key, parts, strict=True)
        }

    def _key_parts(self, key: Any) -> tuple[Any, ...]:
        parts = tuple(key) if isinstance(key, tuple | list) else (key,)
        if len(parts) != len(self.topic.key) or any(part is None for part in parts):
            what = f"{key!r} is no key of topic {self.topic.name!r}"
            raise BadKeyError(what, detail=f"its key is ({', '.join(self.topic.key)})", topic=self.topic.name)
        return parts

    def _key_column(self, keys: Sequence[Any], rows: int) -> pa.Array:
        if self.topic.key:
            what = f'topic "{self.topic.name}" takes its keys from {", ".join(self.topic.key)}'
            raise BadKeyError(what, fix="leave keys= out", topic=self.topic.name)
        if len(keys) != rows:
            raise BadKeyError(f"{len(keys)} keys for {rows} events", topic=self.topic.name)
        return pa.array([None if key is None else key_bytes(key) for key in keys], pa.binary())


def _is_row(value: Any) -> bool:
    return not isinstance(value, str | bytes | int | float)


def _micros(at: datetime | str) -> int:
    return micros(moment(at))


_ABOUT: dict[str, Callable[[Any], Any]] = {
    "id": str,
    "occurred_at": _micros,
    "sent_at": _micros,
    "headers": lambda headers: list(checked_headers(headers).items()),
    "traceparent": checked_traceparent,
    "source": str,
}
