"""Events as Kafka has them and back: the value in the topic's form, the key as its bytes, the envelope in headers.

A tombstone has a key and no value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError, SchemaConflictError
from headwater.events import Codec, flags_column, keys_of, storage_schema, times_column
from headwater.log.batch import LogBatch
from headwater.log.definition import LARGEST_EVENT, Topic, Values, too_large
from headwater.log.kafka.forms import (
    FINGERPRINT,
    VALUES,
    AvroForm,
    Form,
    Header,
    JsonForm,
    UnknownForm,
    form_of,
)
from headwater.log.kafka.headers import header_lists, header_text, read_headers
from headwater.log.rows import Rows
from headwater.log.storage.frame import LOWEST_TIME, Frame, Kind

__all__ = ["Encoded", "Typed", "encoded"]


@dataclass(frozen=True)
class Encoded:
    """Rows as they go into Kafka; `headers` has one list for each row, or one for all."""

    values: list[bytes | None]
    keys: Sequence[bytes | None]
    headers: list[list[Header]]

    def headers_of(self, row: int) -> list[Header]:
        """The headers of one row."""
        return self.headers[row if len(self.headers) > 1 else 0]


def encoded(topic: Topic, form: Form, rows: Rows, envelope: dict[str, pa.Array]) -> Encoded:
    """Rows as values, keys and headers; `envelope` is theirs, event times included.

    Raises:
        TooLargeError: An event is larger than a topic takes.
        BadEventError: A header of the sender has a name that is ours.
    """
    values = _live_values(form, rows.values, envelope.get("_hw.deleted"))
    keys: Sequence[bytes | None]
    if topic.key:
        keys = keys_of([rows.values.column(name) for name in topic.key]).to_pylist()
    else:
        given = envelope.get("_hw.key")
        keys = [None] * len(values) if given is None else given.to_pylist()
    if sum(max(map(len, filter(None, part)), default=0) for part in (keys, values)) > LARGEST_EVENT:
        _refuse_large(keys, values)
    return Encoded(values, keys, header_lists(rows, form.headers, envelope, len(values)))


def _live_values(form: Form, rows: pa.RecordBatch, deleted: pa.Array | None) -> list[bytes | None]:
    """The value of each row; a tombstone has none."""
    if deleted is None:
        return list(form.encode(rows))
    gone = deleted.fill_null(False).to_pylist()
    live = iter(form.encode(rows.filter(flags_column(~np.array(gone, bool)))))
    return [None if dead else next(live) for dead in gone]


def _refuse_large(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
    for row, (key, value) in enumerate(zip(keys, values, strict=True)):
        size = len(key or b"") + len(value or b"")
        if size > LARGEST_EVENT:
            raise too_large(size, row)


class Typed:
    """Makes batches of a topic's type out of Kafka's messages, and forms for writing; one for each definition.

    Args:
        topic: The definition, under its newest type.
        schemas: Every type it had, by version.
    """

    def __init__(self, topic: Topic, schemas: Mapping[int, pa.Schema]) -> None:
        self.topic = topic
        self.codec = Codec(topic.schema)
        self.stored = storage_schema(topic.schema)
        names = topic.key
        fields = [topic.schema.field(name) for name in names]
        self._key_form = JsonForm(Codec(pa.schema(fields))) if names else None
        # A single key stands bare in its bytes; a number or a flag is JSON as it is, anything else is quoted.
        self._bare = len(names) == 1 and not _quoted(fields[0].type)
        self._binary = len(names) == 1 and pa.types.is_binary(fields[0].type)
        self._schemas = schemas
        self._writers = {topic.version: form_of(topic.values, self.codec, topic.name)}
        self._readers: dict[tuple[str, str], Form] = {}

    def writer(self, version: int) -> Form:
        """How rows of a version of the type are written.

        Raises:
            SchemaConflictError: There is no such version.
        """
        if version not in self._writers:
            if version not in self._schemas:
                what = f'topic "{self.topic.name}" has no version {version} of its type'
                raise SchemaConflictError(what, topic=self.topic.name)
            self._writers[version] = form_of(
                self.topic.values, Codec(self._schemas[version]), self.topic.name
            )
        return self._writers[version]

    def _form(self, head: dict[str, bytes]) -> Form:
        """How a record is read: as its headers say; one of others without headers as the topic's values are."""
        word = (header_text(head.get(VALUES)) or "") if head else ""
        if not word and "hw.version" not in head:
            return self._writers[self.topic.version]
        which = (word or Values.JSON.value, header_text(head.get(FINGERPRINT)) or "")
        if which not in self._readers:
            self._readers[which] = self._reader(*which)
        return self._readers[which]

    def _reader(self, word: str, fingerprint: str) -> Form:
        if word not in list(Values):
            return UnknownForm(self.codec, f"its values are {word!r}, which is not known here")
        if word != Values.AVRO or not fingerprint:
            return form_of(Values(word), self.codec, self.topic.name)
        for schema in self._schemas.values():
            form = AvroForm(self.codec, self.topic.name, schema)
            if form.fingerprint == fingerprint:
                return form
        return UnknownForm(self.codec, f"it was written under a schema that is not known here: {fingerprint}")

    def batch(self, partition: int, messages: list[Any], *, envelope: bool = True) -> LogBatch:
        """Messages of one partition, in order, as one batch.

        Without `envelope`, headers are read only where an event's time or a row's type may stand in them: to read them
        takes as long as all the rest.
        """
        lines = [message.value() for message in messages]
        keys = [message.key() for message in messages]
        offsets = np.array([message.offset() for message in messages], np.int64)
        received = np.array([message.timestamp()[1] for message in messages], np.int64) * 1000
        plain = None if envelope else self._at_first_sight(lines)
        if plain is not None:
            reasons: dict[int, str] = {}
            own: dict[str, pa.Array] = {}
            values, sent_at, version = plain, LOWEST_TIME, 0
        else:
            heads = [message.headers() for message in messages]
            values, reasons = self._values(lines, keys, self._forms(heads))
            own, sent_at, version = read_headers(heads)
        if not self.topic.key and any(key is not None for key in keys):
            own["_hw.key"] = pa.array(keys, pa.binary())
        if None in lines:
            own["_hw.deleted"] = pa.array([line is None for line in lines])
        if reasons:
            own |= _set_aside(lines, keys, reasons)
        if offsets[-1] - offsets[0] != len(offsets) - 1:
            own["_hw.offset"] = pa.array(offsets.tolist(), pa.int64())
        if (received != received[-1]).any():
            own["_hw.received_at"] = times_column(received)
        frame = Frame(
            Kind.EVENTS,
            int(offsets[0]),
            int(offsets[-1]) + 1,
            count=len(offsets),
            schema=version or self.topic.version,
            appended_at=int(received[-1]),
            sent_at=sent_at,
        )
        return LogBatch(self.topic, partition, frame, values, own, self.codec)

    def _at_first_sight(self, lines: list[bytes | None]) -> pa.RecordBatch | None:
        """The columns of rows whose headers nobody need read: JSON throughout, that says when it happened."""
        time = self.topic.time
        if self.topic.values is not Values.JSON or self.topic.clocked or time is None or None in lines:
            return None
        try:
            found = self._writers[self.topic.version].decode(lines)  # type: ignore[arg-type]
        except BadEventError:
            return None
        if found.column(time).null_count:
            return None
        return pa.RecordBatch.from_arrays(found.columns, schema=self.stored)

    def _forms(self, heads: list[list[Header] | None]) -> list[Form]:
        """How each record is read."""
        runs = ((self._form(dict(head or ())), sum(1 for _ in run)) for head, run in groupby(heads))
        return [form for form, length in runs for _ in range(length)]

    def _values(
        self, lines: list[bytes | None], keys: list[bytes | None], forms: list[Form]
    ) -> tuple[pa.RecordBatch, dict[int, str]]:
        """The columns, all null in rows that cannot be read, and why those cannot."""
        by_form: dict[Form, list[int]] = {}
        for row, form in enumerate(forms):
            by_form.setdefault(form, []).append(row)
        if None not in lines and len(by_form) == 1:
            try:
                found = forms[0].decode(lines)  # type: ignore[arg-type]
                return pa.RecordBatch.from_arrays(found.columns, schema=self.stored), {}
            except BadEventError:
                pass
        gone = [row for row, line in enumerate(lines) if line is None]
        reasons: dict[int, str] = {}
        parts: list[Part] = []
        for form, rows in by_form.items():
            parts += _readable(form, [row for row in rows if lines[row] is not None], lines, reasons)
        if self._key_form is None:
            parts += [(gone, {})] if gone else []
        else:
            texts = {row: self._key_json(keys[row]) for row in gone}
            parts += _readable(self._key_form, gone, texts, reasons)
        return _placed(parts, self.stored, len(lines)), reasons

    def _key_json(self, key: bytes | None) -> bytes:
        """The key's bytes as an object of the key's columns."""
        names = self.topic.key
        if key is None:
            return b"a tombstone without a key"
        try:
            if len(names) > 1:
                parts = msgspec.json.decode(key, type=list[msgspec.Raw])
                return msgspec.json.encode(dict(zip(names, parts, strict=True)))
            if self._binary:
                return msgspec.json.encode({names[0]: key})
            return msgspec.json.encode({names[0]: msgspec.Raw(key) if self._bare else key.decode()})
        except (msgspec.DecodeError, ValueError):
            return key


def _set_aside(
    lines: list[bytes | None], keys: list[bytes | None], reasons: dict[int, str]
) -> dict[str, pa.Array]:
    """What is told of rows that cannot be read: why, and their bytes."""
    raws = {row: keys[row] if lines[row] is None else lines[row] for row in reasons}
    count = range(len(lines))
    return {
        "_hw.error": pa.array([reasons.get(row) for row in count], pa.string()),
        "_hw.raw": pa.array([raws.get(row) for row in count], pa.binary()),
        "_hw.deleted": pa.array([lines[row] is None and row not in reasons for row in count]),
    }


def _quoted(kind: pa.DataType) -> bool:
    return not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind))


Part = tuple[list[int], dict[str, pa.Array]]


def _readable(form: Form, rows: list[int], lines: Any, reasons: dict[int, str]) -> Iterable[Part]:
    """Rows that can be read, as columns; halves are tried apart until the bad ones stand alone."""
    if not rows:
        return
    try:
        found = form.decode([lines[row] for row in rows])
        yield rows, dict(zip(found.schema.names, found.columns, strict=True))
    except (BadEventError, BadKeyError) as error:
        if len(rows) == 1:
            reasons[rows[0]] = f"{error.code}: {error.what}"
            return
        yield from _readable(form, rows[: len(rows) // 2], lines, reasons)
        yield from _readable(form, rows[len(rows) // 2 :], lines, reasons)


def _placed(parts: list[Part], schema: pa.Schema, count: int) -> pa.RecordBatch:
    """Rows of several parts in their places; null wherever no part has one."""
    places: list[int | None] = [None] * count
    taken = 0
    batches = []
    for rows, columns in parts:
        for row in rows:
            places[row] = taken
            taken += 1
        arrays = [columns.get(field.name, pa.nulls(len(rows), field.type)) for field in schema]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    table = pa.Table.from_batches(batches, schema).combine_chunks().take(pa.array(places, pa.int64()))
    whole = table.combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema)


def event_times(batch: LogBatch) -> npt.NDArray[np.int64]:
    """The event time of each row that moves the partition's time; `LOWEST_TIME` for one that cannot be read."""
    return np.where(batch.bad, LOWEST_TIME, batch.occurred)
