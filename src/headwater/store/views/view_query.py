"""Queries and results of views: `ViewQuery`, `ViewResult`, and the text forms of receipts and keys.

`ViewSource` is the interface through which a client reads views.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadEventError, BadKeyError, UsageError
from headwater.events import Codec, Receipt, values_of
from headwater.events.envelope import Receipts
from headwater.events.values import preview, to_json_value
from headwater.store.commit.commit import ViewTable
from headwater.store.protocol import SqlResult

__all__ = [
    "ViewInfo",
    "ViewQuery",
    "ViewResult",
    "ViewSource",
    "format_key",
    "format_receipts",
    "normalize_receipts",
    "open_window_mask",
    "parse_key",
    "parse_receipts",
    "to_rows",
]


@dataclass(frozen=True)
class ViewQuery:
    """The parameters of one read of a view.

    Attributes:
        name: The view.
        where: Only rows that match this condition.
        key: Only the row with this key: a value, several in the order of the view's key, or a dict.
        order: Columns to sort by; a "-" before the name means descending. None sorts by the key.
        limit: The maximum number of rows.
        as_of: The past moment to read the view at: a time, or text such as "-10m".
        after: Wait until the view includes these events.
        timeout: The timeout in seconds.
        open: Only rows of open windows (True) or of closed ones (False).

    Example:
        >>> ViewQuery("revenue", limit=10).order is None
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
            raise UsageError("a read has a key or a condition, not both", fix="leave one of them out")
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"limit {self.limit} is negative", fix="limit=100")
        if self.as_of is not None and self.after:
            what = "as_of reads the past, after waits for new events: a read cannot have both"
            raise UsageError(what, fix="leave one of them out")


def normalize_receipts(after: Receipt | Receipts | Iterable[Receipt] | str | None) -> tuple[Receipt, ...]:
    """Returns the events to wait for: the last one of each partition.

    Example:
        >>> normalize_receipts([Receipt("orders", 0, 3), Receipt("orders", 0, 7)])
        (Receipt(topic='orders', partition=0, offset=7, duplicate=False, dropped=None, diverted=None, refused=None),)

    Raises:
        UsageError: One of them was dropped, so that no view will ever have it.
    """
    if after is None:
        return ()
    if isinstance(after, str):
        return parse_receipts(after)
    if isinstance(after, Receipts):
        found = [Receipt(after.topic, partition, offset) for partition, offset in after.ends.items()]
        _check_not_dropped(after.dropped)
    else:
        found = [after] if isinstance(after, Receipt) else list(after)
    last: dict[tuple[str, int], Receipt] = {}
    for receipt in found:
        _check_not_dropped(receipt.dropped)
        source = (receipt.topic, receipt.partition)
        if source not in last or last[source].offset < receipt.offset:
            last[source] = receipt
    return tuple(last.values())


def _check_not_dropped(dropped: str | None) -> None:
    if dropped is not None:
        what = f"the overload policy dropped the event ({dropped}), so no view will include it"
        raise UsageError(what, fix="send it again")


def format_receipts(receipts: Iterable[Receipt]) -> str:
    """Returns receipts as text.

    Example:
        >>> format_receipts([Receipt("orders", 0, 7), Receipt("orders", 1, 3)])
        'orders/0/7,orders/1/3'
    """
    return ",".join(f"{receipt.topic}/{receipt.partition}/{receipt.offset}" for receipt in receipts)


def parse_receipts(text: str) -> tuple[Receipt, ...]:
    """Parse receipts from a text such as "orders/0/7".

    Raises:
        UsageError: The text has another form.
    """
    found = []
    for part in text.split(","):
        topic, *numbers = part.rsplit("/", 2)
        if not topic or len(numbers) != 2 or not all(re.fullmatch("[0-9]{1,18}", number) for number in numbers):
            what = f"{preview(part)} is not the position of an event"
            raise UsageError(what, detail="a position is topic/partition/offset", fix="after=orders/0/41")
        found.append(Receipt(topic, int(numbers[0]), int(numbers[1])))
    return normalize_receipts(found)


def format_key(table: ViewTable, key: Any) -> str:
    """Returns a key as a JSON object, for a view's key.

    Example:
        >>> format_key(ViewTable("totals", 1, pa.schema([("user", pa.int64())]), ("user",)), 7)
        '{"user":7}'

    Raises:
        BadKeyError: It has other columns than the view's key.
    """
    return msgspec.json.encode(to_json_value(key_dict(table, key))).decode()


def key_dict(table: ViewTable, key: Any) -> dict[str, Any]:
    """Returns a key as a dict of its columns."""
    if isinstance(key, Mapping) and (set(key) == set(table.key) or table.window not in table.key):
        given = dict(key)
    else:
        one_list = len(table.key) == 1 and pa.types.is_list(table.schema.field(table.key[0]).type)
        values = tuple(key) if isinstance(key, list | tuple) and not one_list else (key,)
        given = dict(zip(table.key, values, strict=False)) if len(values) == len(table.key) else {}
    if set(given) != set(table.key):
        what = f'{preview(key)} is not a key of view "{table.name}"'
        raise BadKeyError(what, detail=f"its key is ({', '.join(table.key)})", view=table.name)
    try:
        for name, value in given.items():
            pa.array([value], table.schema.field(name).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        what = f'{preview(key)} is not a key of view "{table.name}"'
        raise BadKeyError(what, detail=str(error), view=table.name) from None
    return {name: given[name] for name in table.key}


def parse_key(table: ViewTable, texts: Sequence[str]) -> dict[str, Any]:
    """Parse the key of a view from text: one text per column, or one JSON object for all.

    A window is written as `start..end`, or with a slash between its two times.

    Example:
        >>> table = ViewTable("totals", 1, pa.schema([("user", pa.int64()), ("shop", pa.string())]), ("user", "shop"))
        >>> parse_key(table, ["7", "north"]), parse_key(table, ['{"shop":"north","user":7}'])
        ({'user': 7, 'shop': 'north'}, {'user': 7, 'shop': 'north'})

    Raises:
        BadKeyError: The texts do not fit the key.
    """
    if len(texts) == 1 and texts[0].startswith("{"):
        codec = Codec(pa.schema([pa.field(name, table.schema.field(name).type) for name in table.key]))
        try:
            return dict(codec.rows(codec.decode_json([texts[0].encode()]))[0])
        except BadEventError as error:
            if len(table.key) != 1 or not pa.types.is_string(table.schema.field(table.key[0]).type):
                what = f'{preview(texts[0])} is not a key of view "{table.name}"'
                raise BadKeyError(what, detail=error.what, view=table.name) from None
    try:
        pairs = zip(table.key, texts, strict=True)
        return {name: _parse_value(table.schema.field(name).type, text) for name, text in pairs}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        what = f'{", ".join(texts)} is not a key of view "{table.name}"'
        detail = f"its key is ({', '.join(table.key)}): {error}"
        raise BadKeyError(what, detail=detail, view=table.name) from None


def _parse_value(kind: pa.DataType, text: str) -> Any:
    if pa.types.is_struct(kind):  # a window
        members = text.split(".." if ".." in text else "/")
        if len(members) != kind.num_fields:
            what = f"{text!r} is not a window; write start..end"
            raise ValueError(what)
        pairs = zip(kind, members, strict=True)
        return {field.name: _parse_value(field.type, member) for field, member in pairs}
    return pa.array([text], pa.string()).cast(kind)[0].as_py()


_METADATA_KEY = b"headwater.view"


@dataclass(frozen=True)
class ViewInfo:
    """One view in the list of all views.

    Attributes:
        name: Its name.
        kind: "view", or "system" for a system view.
        version: The version that readers see.
        key: The columns that identify a row.
        schema: Its columns.
        window: The column with windows, if it has one.
        rows: The number of rows; None for a system view.
        watermark: The event time up to which it is complete, in microseconds since 1970.
        changes_topic: The topic with all of its changes; None for a system view.
    """

    name: str
    kind: Literal["view", "system"]
    version: int
    key: tuple[str, ...]
    schema: pa.Schema
    window: str | None
    rows: int | None
    watermark: int | None
    changes_topic: str | None


@dataclass(frozen=True)
class ViewResult:
    """Rows of a view.

    Attributes:
        definition: The view.
        table: The rows, with exactly the view's columns.
        watermark: The event time up to which the view is complete, in microseconds since 1970.
        position: The view's position in its topics, as text.
        windows_known: Whether `watermark` tells which windows are open. It does not for a moment before the oldest
            ledger entry.
        kind: "table" for a compacted topic.

    Example:
        >>> view = ViewTable("totals", 1, pa.schema([("k", pa.string())]), ("k",))
        >>> ViewResult(view, pa.table({"k": ["a"]}), None, "").rows()
        [{'k': 'a'}]
    """

    definition: ViewTable
    table: pa.Table
    watermark: int | None
    position: str
    windows_known: bool = True
    kind: Literal["view", "table"] = "view"

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows as dicts of Python values."""
        return to_rows(self.table)

    @property
    def open(self) -> list[bool | None]:
        """Returns for each row whether its window is still open; None for a view without windows."""
        if not self.windows_known:
            return [None] * self.table.num_rows
        found: list[bool | None] = open_window_mask(self.definition, self.table, self.watermark).to_pylist()
        return found

    def to_annotated_table(self) -> pa.Table:
        """Returns the table with the other attributes in its schema metadata, as Arrow and Parquet carry it."""
        note = {
            "name": self.definition.name,
            "version": self.definition.version,
            "key": self.definition.key,
            "window": self.definition.window,
            "watermark": self.watermark,
            "position": self.position,
            "windows_known": self.windows_known,
            "kind": self.kind,
        }
        kept = self.table.schema.metadata or {}
        return self.table.replace_schema_metadata({**kept, _METADATA_KEY: msgspec.json.encode(note)})

    @classmethod
    def from_annotated_table(cls, table: pa.Table) -> ViewResult:
        """Restores the result from a table of `to_annotated_table`."""
        kept = dict(table.schema.metadata or {})
        note = msgspec.json.decode(kept.pop(_METADATA_KEY))
        plain = table.replace_schema_metadata(kept or None)
        definition = ViewTable(note["name"], note["version"], plain.schema, tuple(note["key"]), note["window"])
        return cls(
            definition, plain, note["watermark"], note["position"], note["windows_known"], note.get("kind", "view")
        )


def open_window_mask(definition: ViewTable, table: pa.Table, watermark: int | None) -> pa.Array:
    """Returns for each row whether its window ends after the watermark; null without a window.

    Example:
        >>> view = ViewTable("v", 1, pa.schema([("k", pa.string())]), ("k",))
        >>> open_window_mask(view, pa.table({"k": ["a"]}), 5).to_pylist()
        [None]
    """
    if definition.window is None:
        return pa.nulls(table.num_rows, pa.bool_())
    ends = pc.struct_field(table.column(definition.window).combine_chunks(), "end")
    micros = ends.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    if watermark is None:
        return pc.if_else(pc.is_valid(micros), True, pa.scalar(None, pa.bool_()))
    return pc.greater(micros, pa.scalar(watermark, pa.int64()))


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Returns the rows of a table as dicts of Python values."""
    columns = [values_of(column.combine_chunks()) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


class ViewSource(Protocol):
    """The interface to views in a data folder or behind HTTP; all implementations pass the same tests."""

    def views(self) -> list[ViewInfo]:
        """Returns all views, system views last."""

    def read(self, query: ViewQuery) -> ViewResult:
        """Returns rows of a view or table.

        Raises:
            UnknownViewError: There is no such view.
            BadQueryError: The condition is invalid, or a column is missing.
            ViewBehindError: The view did not include an event within the timeout.
        """

    def sql(self, text: str, parameters: Sequence[Any] = (), limit: int = 1000) -> SqlResult:
        """Returns the result of one SELECT over views, tables and system views."""

    def close(self) -> None:
        """Close files and connections."""
