"""Rows, JSON lines and frames to Arrow batches and back: the only place where events change their form."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadJsonError, TooLargeError
from headwater.events.change import Change
from headwater.events.frame import fitted
from headwater.events.shape import MisfitError, Shape
from headwater.events.values import members_of, shown, to_row, trimmed, values_of

__all__ = ["Codec", "Limits", "storage_schema"]

_PLACE = re.compile(r" - at (?:`key` in )?`\$(?:\[(\d+)\])?\.?(.*)`$")
_NAMED = re.compile(r"^Object (?:missing required|contains unknown) field `(.*?)`")
_SPACED_COLON = re.compile(rb'"[ \t\r\n]+:')
_MOST_NAMES = 40


@dataclass(frozen=True)
class Limits:
    """How large one JSON line may be.

    Attributes:
        max_line: Bytes of one line; a longer one raises `TooLargeError` before it is parsed.

    Example:
        >>> Limits(max_line=65_536).max_line
        65536
    """

    max_line: int = 1 << 20


def storage_schema(schema: pa.Schema) -> pa.Schema:
    """The schema as batches of the log have it: every top-level field nullable, since a tombstone has none.

    Example:
        >>> storage_schema(pa.schema([pa.field("id", pa.int64(), nullable=False)])).field("id").nullable
        True
    """
    return pa.schema([field.with_nullable(True) for field in schema], schema.metadata)


class Codec:
    """Turns rows into batches of one schema, and batches into rows; one per topic and schema version.

    A batch it makes has exactly `schema`: names, order, types and nullability. It is stateless after it was made,
    so threads may share it.

    Example:
        >>> codec = Codec(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())]))
        >>> batch = codec.encode([{"id": 1, "note": "hi"}, {"id": 2}])
        >>> codec.rows(batch)
        [{'id': 1, 'note': 'hi'}, {'id': 2, 'note': None}]
        >>> codec.to_json(batch)[0]
        b'{"id":1,"note":"hi"}'
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._shape = Shape(list(schema))
        self._rows_type = GenericAlias(list, (self._shape.struct,))
        self._decode = msgspec.json.Decoder(self._shape.struct).decode
        self._encoder = msgspec.json.Encoder()

    def encode(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """A batch from dicts, instances of the declared class, or changes for a type of changes.

        Raises:
            BadEventError: A row does not fit; `data` has `row`, `field` and `fields`, and nothing was encoded.
        """
        return self.batch(self.checked(rows))

    def checked(self, rows: Sequence[Any]) -> list[Any]:
        """The rows as structs of the codec's own, types checked; `batch` makes columns of them.

        Raises:
            BadEventError: A row does not fit.
        """
        plain = [row if isinstance(row, dict) else _members(row) for row in rows]
        try:
            structs: list[Any] = msgspec.convert(plain, self._rows_type)
        except Exception:  # a value can be any object, and raise anything when it is looked at
            structs = self._second_try(plain)
        return structs

    def members(self, struct: Any, names: Sequence[str]) -> tuple[Any, ...]:
        """Fields of a checked row by name.

        Example:
            >>> codec = Codec(pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())]))
            >>> codec.members(codec.checked([{"id": 7}])[0], ["id", "note"])
            (7, None)
        """
        return tuple(self._shape.member(struct, name) for name in names)

    def _second_try(self, rows: list[Any]) -> Any:
        """Once more with enums, UUIDs, times and nested classes as their plain values."""
        plain = [_as_row(row, index) for index, row in enumerate(rows)]
        try:
            return msgspec.convert(plain, self._rows_type)
        except msgspec.ValidationError as error:
            raise self._bad_event(str(error)) from None
        except Exception as error:  # as above
            row = next((index for index, row in enumerate(plain) if not self._readable(row)), None)
            raise self._refusal(row, "", f"it cannot be read: {shown(error)}") from None

    def _readable(self, row: Any) -> bool:
        try:
            msgspec.convert(row, self._shape.struct)
        except msgspec.ValidationError:
            return True
        except Exception:
            return False
        return True

    def decode_json(self, lines: Sequence[bytes], *, limits: Limits | None = None) -> pa.RecordBatch:
        """A batch from JSON objects, one per line.

        Raises:
            TooLargeError: A line is longer than `limits.max_line`.
            BadJsonError: A line is not JSON; `data` has `row`.
            BadEventError: A row does not fit; `data` has `row`, `field` and `fields`.
        """
        most = (limits or Limits()).max_line
        sizes = list(map(len, lines))
        if max(sizes, default=0) > most:
            row = next(row for row, size in enumerate(sizes) if size > most)
            what = f"line {row + 1} has {sizes[row]} bytes, more than {most}"
            raise TooLargeError(what, limit=most, row=row, size=sizes[row])
        try:
            structs = list(map(self._decode, lines))
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError):
            structs = [self._decoded(line, row) for row, line in enumerate(lines)]
        self._refuse_repeats(lines, structs)
        return self.batch(structs)

    def _decoded(self, line: bytes, row: int) -> Any:
        try:
            return self._decode(line)
        except msgspec.ValidationError as error:
            raise self._bad_event(str(error), row) from None
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            what = f"line {row + 1} is not JSON: {reason[:200]}"
            raise BadJsonError(what, detail=shown(bytes(line)), row=row) from None

    def _refuse_repeats(self, lines: Sequence[bytes], structs: list[Any]) -> None:
        """Refuses objects with the same name twice, of which msgspec would keep the last.

        The names in the text are counted and compared with those that were decoded. Where the counts differ, or
        could be misled (a space before a colon, an escaped quote), the lines are parsed once more, name by name.
        """
        text = b"\n".join(lines)
        known = self._encoder.encode(structs)
        if (
            text.count(b'":') == known.count(b'":')
            and b"\\u0022" not in text
            and not _SPACED_COLON.search(text)
        ):
            return
        for row, line in enumerate(lines):
            try:
                json.loads(line, object_pairs_hook=_unrepeated)
            except _RepeatedNameError as error:
                name = str(error)
                what = f"line {row + 1}: the name {shown(name)} stands twice in one object"
                raise BadJsonError(what, row=row, field=name) from None

    def encode_frame(self, frame: Any) -> pa.RecordBatch:
        """A batch from an Arrow table or batch, a pandas or a Polars frame; columns of the same type are not copied.

        Raises:
            BadEventError: A column is unknown, missing or does not fit; `data` has `field`, and `row` if it is known.
        """
        try:
            columns = fitted(frame, self.schema)
        except MisfitError as misfit:
            raise self._misfit(misfit) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """The rows of a batch, as Python values."""
        return _rows(batch.schema.names, [values_of(column) for column in batch.columns])

    def to_json(self, batch: pa.RecordBatch) -> list[bytes]:
        """The rows of a batch as JSON objects.

        Decimals are text without trailing zeros, times RFC 3339 in UTC with a Z, bytes base64.
        """
        columns = [values_of(column, decimal=trimmed) for column in batch.columns]
        return list(map(self._encoder.encode, _rows(batch.schema.names, columns)))

    def batch(self, structs: Sequence[Any]) -> pa.RecordBatch:
        """Columns of rows that were `checked`.

        Raises:
            BadEventError: A value is out of its column's range.
        """
        try:
            columns = self._shape.columns(structs)
        except MisfitError as misfit:
            raise self._misfit(misfit) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _misfit(self, misfit: MisfitError) -> BadEventError:
        return self._refusal(misfit.row, misfit.path.replace(".[]", "[]"), misfit.reason)

    def _bad_event(self, message: str, row: int | None = None) -> BadEventError:
        """From msgspec's words, such as "Expected `int`, got `str` - at `$[3].customer_id`"."""
        place = _PLACE.search(message)
        reason = _PLACE.sub("", message)
        named = _NAMED.match(reason)
        path = place[2] if place else ""
        if row is None and place and place[1]:
            row = int(place[1])
        field = ".".join(part for part in (path, named[1] if named else "") if part)
        return self._refusal(row, field, _reason(reason))

    def _refusal(self, row: int | None, field: str, reason: str) -> BadEventError:
        where = [f"row {row}"] if row is not None else []
        where += [f"field {shown(field)}"] if field else []
        names = self.schema.names
        near = difflib.get_close_matches(field[:100], names, n=1) if field and field not in names else []
        return BadEventError(
            f"{', '.join(where) or 'the event'}: {reason}",
            detail=self._fields_line(),
            fix=f"did you mean {near[0]}?" if near else None,
            row=row,
            field=field[:200] or None,
            fields=names[:_MOST_NAMES],
        )

    def _fields_line(self) -> str:
        known = [
            f"{f.name} {f.type}{'' if f.nullable else ' required'}" for f in list(self.schema)[:_MOST_NAMES]
        ]
        more = len(self.schema) - len(known)
        return f"fields: {', '.join(known)}" + (f" and {more} more" if more > 0 else "")


def _rows(names: list[str], columns: list[list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _reason(message: str) -> str:
    if message.startswith("Object missing required field"):
        return "missing, and the type requires it"
    if message.startswith("Object contains unknown field"):
        return "unknown to the type"
    if message.startswith("Expected `datetime` with a timezone"):
        return "it has no zone"
    return message.replace("`", "")[:200].replace("Expected", "expected", 1)


def _members(row: Any) -> Any:
    """The fields of what is no dict; what has none, as it is."""
    return row.to_event() if isinstance(row, Change) else members_of(row) or row


def _as_row(value: Any, row: int) -> dict[str, Any]:
    try:
        return to_row(value)
    except BadEventError as error:
        raise BadEventError(f"row {row}: {error.what}", detail=error.detail, row=row, **error.data) from None


class _RepeatedNameError(ValueError):
    pass


def _unrepeated(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _RepeatedNameError(name)
        seen.add(name)
