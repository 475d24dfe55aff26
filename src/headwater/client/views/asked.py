"""What a reader wants of a view, and the texts in which it travels: receipts, keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError, UsageError
from headwater.events import Codec, Receipt
from headwater.events.values import json_form, shown
from headwater.log import Receipts
from headwater.store import ViewTable

__all__ = ["Asked", "key_from_text", "key_text", "receipts_from_text", "receipts_of", "receipts_text"]


@dataclass(frozen=True)
class Asked:
    """What to read of one view.

    Attributes:
        name: The view.
        where: Only rows that meet this condition in SQL.
        key: Only the row with this key: a value, several in the order of the view's key, or a dict.
        order: Columns to sort by, with "-" before one that falls; in the order of the key if None.
        limit: So many rows at most.
        as_of: As the view was then: a time, or text such as "-10m".
        after: Not before the view has taken these events in.
        timeout: How many seconds to wait for that.
        open: Only rows of open windows (True) or of closed ones (False).

    Example:
        >>> Asked("revenue", limit=10).order is None
        True
    """

    name: str
    where: str | None = None
    key: Any = None
    order: tuple[str, ...] | None = None
    limit: int | None = None
    as_of: datetime | str | None = None
    after: tuple[Receipt, ...] = ()
    timeout: float = 10.0
    open: bool | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.where is not None:
            raise UsageError(
                "a view is read by key or by condition, not by both", fix="leave one of them out"
            )
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"a limit of {self.limit} rows", fix="limit=100")
        if self.as_of is not None and self.after:
            what = "as_of reads the past, after waits for the future: a read has one of them"
            raise UsageError(what, fix="leave one of them out")


def receipts_of(after: Receipt | Receipts | Iterable[Receipt] | str | None) -> tuple[Receipt, ...]:
    """The events to wait for: of each partition the last.

    Example:
        >>> receipts_of([Receipt("orders", 0, 3), Receipt("orders", 0, 7)])
        (Receipt(topic='orders', partition=0, offset=7, duplicate=False, dropped=None),)

    Raises:
        UsageError: One of them was dropped, so that no view will ever have it.
    """
    if after is None:
        return ()
    if isinstance(after, str):
        return receipts_from_text(after)
    if isinstance(after, Receipts):
        found = [Receipt(after.topic, partition, offset) for partition, offset in after.ends.items()]
        _require_written(after.dropped)
    else:
        found = [after] if isinstance(after, Receipt) else list(after)
    last: dict[tuple[str, int], Receipt] = {}
    for receipt in found:
        _require_written(receipt.dropped)
        place = (receipt.topic, receipt.partition)
        if place not in last or last[place].offset < receipt.offset:
            last[place] = receipt
    return tuple(last.values())


def _require_written(dropped: str | None) -> None:
    if dropped is not None:
        what = f"the event was dropped at the door ({dropped}), so no view will have it"
        raise UsageError(what, fix="send it again")


def receipts_text(receipts: Iterable[Receipt]) -> str:
    """Receipts as text.

    Example:
        >>> receipts_text([Receipt("orders", 0, 7), Receipt("orders", 1, 3)])
        'orders/0/7,orders/1/3'
    """
    return ",".join(f"{receipt.topic}/{receipt.partition}/{receipt.offset}" for receipt in receipts)


def receipts_from_text(text: str) -> tuple[Receipt, ...]:
    """The receipts of a text such as "orders/0/7".

    Raises:
        UsageError: It is something else.
    """
    found = []
    for part in text.split(","):
        topic, *numbers = part.rsplit("/", 2)
        if not topic or len(numbers) != 2 or not all(_is_number(number) for number in numbers):
            what = f"{shown(part)} is not where an event is"
            raise UsageError(what, detail="it is topic/partition/offset", fix="after=orders/0/41")
        found.append(Receipt(topic, int(numbers[0]), int(numbers[1])))
    return receipts_of(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def key_text(table: ViewTable, key: Any) -> str:
    """A key as a JSON object, for a view's key.

    Example:
        >>> key_text(ViewTable("totals", 1, pa.schema([("user", pa.int64())]), ("user",)), 7)
        '{"user":7}'

    Raises:
        BadKeyError: It has other columns than the view's key.
    """
    return msgspec.json.encode(json_form(key_row(table, key))).decode()


def key_row(table: ViewTable, key: Any) -> dict[str, Any]:
    """A key as a dict of its columns."""
    if isinstance(key, Mapping) and (set(key) == set(table.key) or table.window not in table.key):
        given = dict(key)
    else:
        one_list = len(table.key) == 1 and pa.types.is_list(table.schema.field(table.key[0]).type)
        values = tuple(key) if isinstance(key, list | tuple) and not one_list else (key,)
        given = dict(zip(table.key, values, strict=False)) if len(values) == len(table.key) else {}
    if set(given) != set(table.key):
        what = f'{shown(key)} is no key of view "{table.name}"'
        raise BadKeyError(what, detail=f"its key is ({', '.join(table.key)})", view=table.name)
    try:
        for name, value in given.items():
            pa.array([value], table.schema.field(name).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        what = f'{shown(key)} is no key of view "{table.name}"'
        raise BadKeyError(what, detail=str(error), view=table.name) from None
    return {name: given[name] for name in table.key}


def key_from_text(table: ViewTable, texts: Sequence[str]) -> dict[str, Any]:
    """The key of a view from text: one for each of its columns, or all of them as one JSON object.

    A window is written as its two times with a slash between them.

    Example:
        >>> table = ViewTable("totals", 1, pa.schema([("user", pa.int64()), ("shop", pa.string())]), ("user", "shop"))
        >>> key_from_text(table, ["7", "north"]), key_from_text(table, ['{"shop":"north","user":7}'])
        ({'user': 7, 'shop': 'north'}, {'user': 7, 'shop': 'north'})

    Raises:
        BadKeyError: The texts do not fit the key.
    """
    if len(texts) == 1 and texts[0].startswith("{"):
        try:
            return _from_json(table, texts[0])
        except BadEventError as error:
            if len(table.key) != 1 or not pa.types.is_string(table.schema.field(table.key[0]).type):
                what = f'{shown(texts[0])} is no key of view "{table.name}"'
                raise BadKeyError(what, detail=error.what, view=table.name) from None
    try:
        pairs = zip(table.key, texts, strict=True)
        return {name: _value(table.schema.field(name).type, text) for name, text in pairs}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        what = f'{", ".join(texts)} is no key of view "{table.name}"'
        detail = f"its key is ({', '.join(table.key)}): {error}"
        raise BadKeyError(what, detail=detail, view=table.name) from None


def _from_json(table: ViewTable, text: str) -> dict[str, Any]:
    codec = Codec(pa.schema([pa.field(name, table.schema.field(name).type) for name in table.key]))
    found: dict[str, Any] = codec.rows(codec.decode_json([text.encode()]))[0]
    return found


def _value(kind: pa.DataType, text: str) -> Any:
    if pa.types.is_struct(kind):  # a window
        members = text.split("/")
        if len(members) != kind.num_fields:
            what = f"{text!r} is no window; write its start, a slash and its end"
            raise ValueError(what)
        pairs = zip(kind, members, strict=True)
        return {field.name: _value(field.type, member) for field, member in pairs}
    return pa.array([text], pa.string()).cast(kind)[0].as_py()
