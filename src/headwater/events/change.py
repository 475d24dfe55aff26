"""One change of one row, as captures, compacted topics and views report it, and its topic type.

A `Change` has the operation, the row before and after, its position, and the columns that the source left
out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError
from headwater.events.event_types import arrow_schema
from headwater.events.validator import RowValidator
from headwater.events.values import format_moment, preview, to_json_value

__all__ = [
    "AFTER",
    "AT",
    "BEFORE",
    "OP",
    "OPS",
    "UNCHANGED",
    "Change",
    "Op",
    "Position",
    "Row",
    "Transaction",
    "change_row_schema",
    "changes",
]

Op: TypeAlias = Literal["read", "insert", "update", "delete", "truncate"]
"""What can happen to a row, or with a truncate to all of them."""
OPS: Final[tuple[str, ...]] = get_args(Op)
OP: Final = "op"
BEFORE: Final = "before"
AFTER: Final = "after"
UNCHANGED: Final = "unchanged"
AT: Final = "at"
_COLUMN_NAMES: Final = pa.list_(pa.field("element", pa.string(), nullable=False))


def changes(row: Any, /) -> pa.Schema:
    """Returns the type of a topic whose events are changes of the rows of a table; `app.table` makes the table of it.

    Its columns: `op` is "read" (a row of a snapshot), "insert", "update", "delete" or "truncate". `before` and `after`
    are the row, in which any column may be left out. `unchanged` names columns that the source did not send: they keep
    the value they have. `at` says when the change was committed. The events may be dicts, or `hw.Change` objects.

    Args:
        row: The type of the rows: a dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema.

    Raises:
        BadTypeError: A field's type cannot be kept.

    Example:
        >>> import headwater as hw
        >>> hw.changes("product_id int, name string").names
        ['op', 'before', 'after', 'unchanged', 'at']
        >>> app = hw.App("shop")
        >>> raw = app.topic("product_changes", hw.changes("product_id int, name string"), time="at")
        >>> app.table("products", raw, key="product_id").inputs
        ('product_changes',)
    """
    # What stands in a field's metadata is a default, and a column that was not sent has none.
    members = [pa.field(field.name, field.type) for field in arrow_schema(row)]
    fields = [
        pa.field(OP, pa.string(), nullable=False),
        pa.field(BEFORE, pa.struct(members)),
        pa.field(AFTER, pa.struct(members)),
        pa.field(UNCHANGED, _COLUMN_NAMES),
        pa.field(AT, pa.timestamp("us", "UTC")),
    ]
    return arrow_schema(pa.schema(fields))


def change_row_schema(schema: pa.Schema) -> pa.Schema | None:
    """Returns the columns of the rows whose changes have this type; None when it is not one of changes.

    A topic of changes may have more columns than `changes` gives it.

    Example:
        >>> change_row_schema(changes("id int, name string")).names
        ['id', 'name']
        >>> change_row_schema(arrow_schema("op string, before int, after int, unchanged int")) is None
        True
    """
    kinds = {field.name: field.type for field in schema}
    row = kinds.get(AFTER)
    if row is None or not pa.types.is_struct(row) or not pa.types.is_string(kinds.get(OP, pa.null())):
        return None
    if kinds.get(BEFORE) != row or kinds.get(UNCHANGED) != _COLUMN_NAMES:
        return None
    return pa.schema(list(row))


Row: TypeAlias = dict[str, Any]

_BEFORE_KINDS = ("row", "key", "nothing")
_POSITION = re.compile(r"(.+)@((?:\d+:\d+(?:\.\d+)*(?:,(?!$)|$))*)")
_BUILTIN_TYPES = (datetime, date, Decimal, bytes)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a reader has come in one source.

    A source has lanes: the partitions of a log, or the one lane of a database. In each lane a position stands at a
    place, a tuple of numbers such as (offset,) or (LSN, index in the transaction). One position is before another
    when it is behind in some lane and ahead in none; two that are each ahead in some lane are in no order.
    To users it is opaque text.

    Example:
        >>> early, later = Position.of("orders", {0: 5, 1: 7}), Position.of("orders", {0: 6, 1: 7})
        >>> early < later, str(later), Position.parse("orders@0:6,1:7") == later
        (True, 'orders@0:6,1:7', True)
    """

    source: str
    lanes: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, source: str, lanes: Mapping[int, int | tuple[int, ...]]) -> Position:
        """Returns a position from places by lane.

        Example:
            >>> Position.of("shop", {0: (1234, 2)})
            Position(source='shop', lanes=((0, (1234, 2)),))
        """
        places = {lane: place if isinstance(place, tuple) else (place,) for lane, place in lanes.items()}
        return cls(source, tuple(sorted(places.items())))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Returns the position a text stands for.

        Raises:
            BadEventError: The text is not a position.
        """
        match = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            what = f"{preview(text)} is not a position"
            raise BadEventError(what, detail="use the text of a position as you were given it", field="position")
        pairs = [lane.split(":") for lane in match[2].split(",") if lane]
        return cls.of(match[1], {int(lane): tuple(map(int, place.split("."))) for lane, place in pairs})

    def __str__(self) -> str:
        lanes = (f"{lane}:{'.'.join(map(str, place))}" for lane, place in self.lanes)
        return f"{self.source}@{','.join(lanes)}"

    def __le__(self, other: Position) -> bool:
        self._check_source(other)
        ahead = dict(other.lanes)
        return all(lane in ahead and place <= ahead[lane] for lane, place in self.lanes)

    def __lt__(self, other: Position) -> bool:
        return self <= other and self != other

    def __ge__(self, other: Position) -> bool:
        return other <= self

    def __gt__(self, other: Position) -> bool:
        return other < self

    def merge(self, other: Position) -> Position:
        """Returns the first position that is not before either: the further place of every lane.

        Example:
            >>> str(Position.of("orders", {0: 5}).merge(Position.of("orders", {0: 3, 1: 7})))
            'orders@0:5,1:7'
        """
        self._check_source(other)
        lanes: dict[int, int | tuple[int, ...]] = dict(self.lanes)
        for lane, place in other.lanes:
            lanes[lane] = max(place, dict(self.lanes).get(lane, place))
        return Position.of(self.source, lanes)

    def _check_source(self, other: Position) -> None:
        if self.source != other.source:
            what = f"positions of {self.source!r} and {other.source!r} cannot be compared"
            raise BadEventError(what, detail="a position orders the changes of one source", field="position")


@dataclass(frozen=True, slots=True)
class Transaction:
    """The transaction a change was committed in.

    Attributes:
        id: The source's name for it.
        committed_at: When it was committed.
        index: The place of this change in it, from 0.
        last: Whether this is its final change: all of the transaction is there once this one is.

    Example:
        >>> Transaction("77", datetime.fromisoformat("2026-01-01T00:00:00Z")).last
        True
    """

    id: str
    committed_at: datetime
    index: int = 0
    last: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row, as the source committed it.

    Attributes:
        op: What happened; "read" is a row of a snapshot.
        table: The table or topic, such as "public.products".
        key: The primary key after the change; the old one for a delete; () for a truncate.
        before: The row before, as far as `before_holds` says.
        before_holds: Whether `before` is the whole row, its key only, or nothing.
        after: The row after; None for a delete and a truncate.
        unchanged: Columns the source did not send: keep the value you have.
        position: Where in the source it stands.
        transaction: The transaction it is part of.
        schema: The version in the topic's schema history.

    Example:
        >>> at = Transaction("77", datetime.fromisoformat("2026-01-01T00:00:00Z"))
        >>> change = Change("insert", "products", (7,), None, "nothing", {"id": 7}, frozenset(),
        ...                 Position.of("shop", {0: 12}), at, 1)
        >>> Change.from_json(change.to_json()) == change
        True
    """

    op: Op
    table: str
    key: tuple[Any, ...]
    before: Row | None
    before_holds: Literal["row", "key", "nothing"]
    after: Row | None
    unchanged: frozenset[str]
    position: Position
    transaction: Transaction
    schema: int

    def __post_init__(self) -> None:
        gone = self.op in ("delete", "truncate")
        rules = {
            "op": (self.op in OPS, f"is one of {', '.join(OPS)}"),
            "before_holds": (self.before_holds in _BEFORE_KINDS, f"is one of {', '.join(_BEFORE_KINDS)}"),
            "before": ((self.before is None) == (self.before_holds == "nothing"), "is what before_holds says"),
            "after": ((self.after is None) == gone, "is there unless the row is gone"),
            "key": ((self.key == ()) == (self.op == "truncate"), "is empty for a truncate, and only then"),
            "unchanged": (not self.unchanged & (self.after or {}).keys(), "names no column that was sent"),
        }
        for field, (kept, rule) in rules.items():
            if not kept:
                what = f"a change of {self.table} is wrong: {field} {rule}"
                raise BadEventError(what, field=field, table=self.table)

    def to_event(self) -> Row:
        """Returns the change as an event of a topic of changes (`hw.changes`).

        Example:
            >>> at = Transaction("77", datetime.fromisoformat("2026-01-01T00:00:00Z"))
            >>> gone = Change("delete", "products", (7,), {"id": 7}, "key", None, frozenset(),
            ...               Position.of("shop", {0: 12}), at, 1)
            >>> gone.to_event()["op"], gone.to_event()["before"]
            ('delete', {'id': 7})
        """
        return {
            "op": self.op,
            "before": self.before,
            "after": self.after,
            "unchanged": sorted(self.unchanged),
            "at": self.transaction.committed_at,
        }

    def to_json(self) -> bytes:
        """Returns the change as one JSON object; decimals, times and bytes inside rows are text."""
        document = {
            "op": self.op,
            "table": self.table,
            "key": to_json_value(self.key),
            "before": to_json_value(self.before),
            "before_holds": self.before_holds,
            "after": to_json_value(self.after),
            "unchanged": sorted(self.unchanged),
            "position": str(self.position),
            "transaction": {
                "id": self.transaction.id,
                "committed_at": format_moment(self.transaction.committed_at),
                "index": self.transaction.index,
                "last": self.transaction.last,
            },
            "schema": self.schema,
        }
        return msgspec.json.encode(document)

    @classmethod
    def from_json(cls, text: bytes | str, *, schema: pa.Schema | None = None, key: tuple[str, ...] = ()) -> Change:
        """Returns the change a JSON object stands for.

        Args:
            text: What `to_json` gave.
            schema: The schema of its rows: with it, values get their types back; without it they stay as in JSON.
            key: The names of the key's columns in that schema, to give the key's values their types.

        Raises:
            BadEventError: The text is not a change, or a row does not fit the schema.
        """
        try:
            document = _DECODER.decode(text)
            typed = _RowDecoder(schema)
            return cls(
                op=document.op,
                table=document.table,
                key=typed.key(document.key, key),
                before=typed.row(document.before),
                before_holds=document.before_holds,
                after=typed.row(document.after),
                unchanged=frozenset(document.unchanged),
                position=Position.parse(document.position),
                transaction=document.transaction,
                schema=document.schema,
            )
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadEventError(f"the text is not a change: {error}", detail=preview(text)) from None


class _ChangeDocument(msgspec.Struct, forbid_unknown_fields=True):
    op: Op
    table: str
    key: list[Any]
    before: Row | None
    before_holds: Literal["row", "key", "nothing"]
    after: Row | None
    unchanged: list[str]
    position: str
    transaction: Transaction
    schema: int


_DECODER = msgspec.json.Decoder(_ChangeDocument)


class _RowDecoder:
    """Gives the values of rows that may lack columns their types back."""

    def __init__(self, schema: pa.Schema | None) -> None:
        fields = [] if schema is None else [pa.field(field.name, field.type) for field in schema]
        self._struct = RowValidator(fields).struct if fields else None

    def row(self, row: Row | None) -> Row | None:
        if row is None or self._struct is None:
            return row
        typed: Row = msgspec.to_builtins(msgspec.convert(row, self._struct), builtin_types=_BUILTIN_TYPES)
        return typed

    def key(self, values: list[Any], names: tuple[str, ...]) -> tuple[Any, ...]:
        if len(names) != len(values) or self._struct is None:
            return tuple(values)
        row = self.row(dict(zip(names, values, strict=True))) or {}
        return tuple(row[name] for name in names)
