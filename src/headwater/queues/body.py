"""The values of messages: checked JSON on the way in, dicts or instances of the user's class on the way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadJsonError, BadKeyError
from headwater.events import Codec, arrow_schema, from_row, key_bytes, to_row
from headwater.events.values import is_record, json_form, shown

__all__ = ["Bodies", "key_text"]


class Bodies:
    """Makes bodies of values, and values of bodies.

    Args:
        schema: The type of the queue's values; without one, any dict that JSON can hold is taken.
        as_: The class to make of a value; dicts if left out. It is also the type, where there is no other.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Email:
        ...     to: str
        ...     tries: int = 1
        >>> bodies = Bodies(as_=Email)
        >>> bodies.encode({"to": "ada@example.com"})
        b'{"to":"ada@example.com","tries":1}'
        >>> bodies.decode(b'{"to":"ada@example.com"}')
        Email(to='ada@example.com', tries=1)
    """

    def __init__(self, schema: pa.Schema | None = None, as_: type | None = None) -> None:
        typed = as_ if as_ is not None and is_record(as_) else None
        self._as = typed
        found = arrow_schema(typed) if schema is None and typed is not None else schema
        self._codec = None if found is None else Codec(found)

    def encode(self, value: Any) -> bytes:
        """A dict, or an instance of the type, as JSON.

        Raises:
            BadEventError: It does not fit the type, or holds what JSON cannot.
        """
        return self.encode_many([value])[0]

    def encode_many(self, values: Sequence[Any]) -> list[bytes]:
        """The same for many at once; one that does not fit keeps all out."""
        if self._codec is not None:
            return self._codec.to_json(self._codec.encode(values))
        return list(map(_encoded, values))

    def decode(self, body: bytes) -> Any:
        """The value of a body.

        Raises:
            BadEventError: The body is not JSON, does not fit the type, or the class refuses it.
        """
        if self._codec is not None:
            (row,) = self._codec.rows(self._codec.decode_json([body]))
        else:
            row = _decoded(body)
        return row if self._as is None else from_row(self._as, row)


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(json_form(to_row(value)))
    except ValueError as error:
        raise BadEventError(f"{shown(value)} cannot be a message: {error}") from None


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadJsonError(f"the message is not JSON: {error}", detail=shown(body)) from None


def key_text(value: Any) -> str:
    """A key as text, the same for equal values.

    Example:
        >>> key_text(7), key_text("ada"), key_text(("de", 7))
        ('7', 'ada', '["de",7]')

    Raises:
        BadKeyError: It is missing, or of no usable type.
    """
    try:
        return key_bytes(value).decode()
    except UnicodeDecodeError:
        raise BadKeyError(f"the key {shown(value)} is not text", fix="give it as text") from None
