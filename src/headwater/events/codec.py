"""Converts rows, JSON lines and data frames to Arrow batches and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from types import GenericAlias
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadJsonError, TooLargeError, near_names
from headwater.events.change import Change
from headwater.events.dataframes import fit_dataframe
from headwater.events.validator import InvalidValueError, RowValidator
from headwater.events.values import fields_of, preview, to_row, trim_zeros, values_of

__all__ = ["MAX_JSON_LINE", "Codec", "storage_schema"]

MAX_JSON_LINE: Final = 1 << 20
"""The default limit of one JSON line, in bytes."""
# The end of a message of msgspec: the row in a list of rows, and the path of the value in it.
_ERROR_PATH = re.compile(r" - at (?:`key` in )?`\$(?:\[(\d+)\])?\.?(.*)`$")
_FIELD_ERROR = re.compile(r"^Object (?:missing required|contains unknown) field `(.*?)`")
_WHITESPACE = b" \t\r\n"
_MAX_NAMES = 40  # field names in an error


def storage_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema of batches in the log: every top-level field is nullable, because tombstones have no values.

    Example:
        >>> storage_schema(pa.schema([pa.field("id", pa.int64(), nullable=False)])).field("id").nullable
        True
    """
    return pa.schema([field.with_nullable(True) for field in schema], schema.metadata)


class Codec:
    """Converts rows to batches of one schema and back; one per topic and schema version.

    Its batches have exactly `schema`: names, order, types and nullability. A codec has no mutable state and may be
    shared between threads.

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
        self._validator = RowValidator(list(schema))
        self._rows_type = GenericAlias(list, (self._validator.struct,))
        self._decode = msgspec.json.Decoder(self._validator.struct).decode
        self._encoder = msgspec.json.Encoder()

    def encode(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Encode dicts, instances of the declared class, or changes if the type is a type of changes.

        Raises:
            BadEventError: A row does not match the type; `data` has `row`, `field` and `fields`.
        """
        return self.batch(self.validate(rows))

    def validate(self, rows: Sequence[Any]) -> list[Any]:
        """Check the types of rows and return them as structs, which `batch` converts to columns.

        Raises:
            BadEventError: A row does not match the type.
        """
        plain = [row if isinstance(row, dict) else _to_fields(row) for row in rows]
        try:
            structs: list[Any] = msgspec.convert(plain, self._rows_type)
        except Exception:  # attributes of users' objects may raise anything
            # The second attempt is slow: it converts enums, UUIDs, times and nested classes to plain values.
            structs = self._validate_plain(plain)
        return structs

    def field_values(self, struct: Any, names: Sequence[str]) -> tuple[Any, ...]:
        """Returns fields of a struct from `validate`, by name.

        Example:
            >>> codec = Codec(pa.schema([pa.field("id", pa.int64()), pa.field("note", pa.string())]))
            >>> codec.field_values(codec.validate([{"id": 7}])[0], ["id", "note"])
            (7, None)
        """
        return tuple(self._validator.field_value(struct, name) for name in names)

    def _validate_plain(self, rows: list[Any]) -> Any:
        plain = [_to_plain_row(row, index) for index, row in enumerate(rows)]
        try:
            return msgspec.convert(plain, self._rows_type)
        except msgspec.ValidationError as error:
            raise self._validation_error(str(error)) from None
        except Exception as error:  # attributes of users' objects may raise anything
            row = next((index for index, row in enumerate(plain) if not self._is_convertible(row)), None)
            raise self._event_error(row, "", f"reading it raised {preview(error)}") from None

    def _is_convertible(self, row: Any) -> bool:
        try:
            msgspec.convert(row, self._validator.struct)
        except msgspec.ValidationError:
            return True
        except Exception:
            return False
        return True

    def decode_json(self, lines: Sequence[bytes], *, max_line: int = MAX_JSON_LINE) -> pa.RecordBatch:
        """Decode JSON objects, one per line, into a batch.

        Raises:
            TooLargeError: A line has more than `max_line` bytes; it is not parsed.
            BadJsonError: A line is not JSON; `data` has `row`.
            BadEventError: A row does not match the type; `data` has `row`, `field` and `fields`.
        """
        sizes = list(map(len, lines))
        if max(sizes, default=0) > max_line:
            row = next(row for row, size in enumerate(sizes) if size > max_line)
            what = f"line {row + 1} has {sizes[row]} bytes, more than {max_line}"
            raise TooLargeError(what, limit=max_line, row=row, size=sizes[row])
        try:
            structs = list(map(self._decode, lines))
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError):  # again, to find the line
            structs = [self._decode_line(line, row) for row, line in enumerate(lines)]
        self._reject_duplicate_names(lines, structs)
        return self.batch(structs)

    def _decode_line(self, line: bytes, row: int) -> Any:
        try:
            return self._decode(line)
        except msgspec.ValidationError as error:
            raise self._validation_error(str(error), row) from None
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            what = f"line {row + 1} is not JSON: {reason[:200]}"
            raise BadJsonError(what, detail=preview(bytes(line)), row=row) from None

    def _reject_duplicate_names(self, lines: Sequence[bytes], structs: list[Any]) -> None:
        r"""Refuse objects that have a name twice; msgspec would keep the last value.

        Lines that equal the encoding of their structs, as those that `to_json` wrote, have no name twice. Otherwise
        the names in both texts are counted, each by the `":` behind it. Strings hold the same `":` on both sides,
        unless the lines escape a space, a quote or a colon as `\u0020`, `\u0022` or `\u003a`. In that case, and if
        the counts differ, the lines are parsed again, name by name.
        """
        text = b",".join(lines)
        known = self._encoder.encode(structs)
        if text == known[1:-1]:
            return
        names = [each.translate(None, _WHITESPACE).count(b'":') for each in (text, known)]
        escaped = b"\\u00" in text and (b"\\u002" in text or b"\\u003" in text)
        if names[0] == names[1] and not escaped:
            return
        for row, line in enumerate(lines):
            try:
                json.loads(line, object_pairs_hook=_check_unique_names)
            except _DuplicateNameError as error:
                name = str(error)
                what = f"line {row + 1}: an object has the name {preview(name)} twice"
                raise BadJsonError(what, row=row, field=name) from None

    def encode_dataframe(self, frame: Any) -> pa.RecordBatch:
        """Encode an Arrow table or batch, or a pandas or Polars frame; columns of the same type are not copied.

        Raises:
            BadEventError: A column is unknown, missing or of another type; `data` has `field`, and `row` if known.
        """
        return self._build_batch(lambda: fit_dataframe(frame, self.schema))

    def rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Returns the rows of a batch as dicts of Python values."""
        return _rows(batch.schema.names, map(values_of, batch.columns))

    def to_json(self, batch: pa.RecordBatch) -> list[bytes]:
        """Returns the rows of a batch as JSON objects.

        Decimals are text without trailing zeros, times RFC 3339 in UTC with a Z, bytes base64.
        """
        columns = (values_of(column, decimal=trim_zeros) for column in batch.columns)
        return list(map(self._encoder.encode, _rows(batch.schema.names, columns)))

    def batch(self, structs: Sequence[Any]) -> pa.RecordBatch:
        """Convert structs from `validate` to columns.

        Raises:
            BadEventError: A value is outside its column's range.
        """
        return self._build_batch(lambda: self._validator.to_columns(structs))

    def _build_batch(self, build_columns: Callable[[], list[pa.Array]]) -> pa.RecordBatch:
        try:
            columns = build_columns()
        except InvalidValueError as misfit:
            raise self._event_error(misfit.row, misfit.path.replace(".[]", "[]"), misfit.reason) from None
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _validation_error(self, message: str, row: int | None = None) -> BadEventError:
        """Parse a message of msgspec, such as "Expected `int`, got `str` - at `$[3].customer_id`"."""
        path_match = _ERROR_PATH.search(message)
        reason = _ERROR_PATH.sub("", message)
        named = _FIELD_ERROR.match(reason)
        path = path_match[2] if path_match else ""
        if row is None and path_match and path_match[1]:
            row = int(path_match[1])
        field = ".".join(part for part in (path, named[1] if named else "") if part)
        return self._event_error(row, field, _reason(reason))

    def _event_error(self, row: int | None, field: str, reason: str) -> BadEventError:
        where = [f"row {row}"] if row is not None else []
        where += [f"field {preview(field)}"] if field else []
        names = self.schema.names
        near = near_names(field, names) if field and field not in names else []
        return BadEventError(
            f"{', '.join(where) or 'the event'}: {reason}",
            detail=self._describe_fields(),
            fix=near[0] if near else None,
            row=row,
            field=field[:200] or None,
            fields=names[:_MAX_NAMES],
        )

    def _describe_fields(self) -> str:
        known = [f"{f.name} {f.type}{'' if f.nullable else ' required'}" for f in list(self.schema)[:_MAX_NAMES]]
        more = len(self.schema) - len(known)
        return f"fields: {', '.join(known)}" + (f" and {more} more" if more > 0 else "")


def _rows(names: list[str], columns: Iterable[list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _reason(message: str) -> str:
    if message.startswith("Object missing required field"):
        return "required, but missing"
    if message.startswith("Object contains unknown field"):
        return "not a field of the type"
    if message.startswith("Expected `datetime` with a timezone"):
        return "it has no time zone"
    return message.replace("`", "")[:200].replace("Expected", "expected", 1)


def _to_fields(row: Any) -> Any:
    """Returns the fields of a change or an instance of a class; any other value as it is."""
    return row.to_event() if isinstance(row, Change) else fields_of(row) or row


def _to_plain_row(value: Any, row: int) -> dict[str, Any]:
    try:
        return to_row(value)
    except BadEventError as error:
        raise BadEventError(f"row {row}: {error.what}", detail=error.detail, row=row, **error.data) from None


class _DuplicateNameError(ValueError):
    pass


def _check_unique_names(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise _DuplicateNameError(next(name for name in names if names.count(name) > 1))
