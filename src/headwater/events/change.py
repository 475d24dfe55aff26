"""Row changes, as change capture, compacted topics and views report them, and the type of a topic of changes.

A `Change` has the operation, the row before and after, the position in the source, and the columns that the
source did not send.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError
from headwater.events.event_types import arrow_schema
from headwater.events.validator import RowValidator
from headwater.events.values import preview, to_json_value

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
"""The operations on a row; a truncate deletes all rows of the table."""
OPS: Final[tuple[str, ...]] = get_args(Op)
OP: Final = "op"
BEFORE: Final = "before"
AFTER: Final = "after"
UNCHANGED: Final = "unchanged"
AT: Final = "at"
_COLUMN_NAMES: Final = pa.list_(pa.field("element", pa.string(), nullable=False))


def changes(row: Any, /) -> pa.Schema:
    """Returns the type of a topic of row changes; `app.table` builds the table from it.

    Columns: `op` is "read" (a row of a snapshot), "insert", "update", "delete" or "truncate". `before` and `after` are
    the row; any of its columns may be missing. `unchanged` names columns that the source did not send, which keep their
    value. `at` is the commit time. Events are dicts or `hw.Change` objects.

    Args:
        row: The row type: a dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema.

    Raises:
        BadTypeError: A field's type is not supported.

    Example:
        >>> import headwater as hw
        >>> hw.changes("product_id int, name string").names
        ['op', 'before', 'after', 'unchanged', 'at']
        >>> app = hw.App("shop")
        >>> raw = app.topic("product_changes", hw.changes("product_id int, name string"), time="at")
        >>> app.table("products", raw, key="product_id").inputs
        ('product_changes',)
    """
    # Without metadata: it holds defaults, and a column that was not sent must not get its default.
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
    """Returns the row schema of a type of changes; None for any other type.

    The type may have more columns than those of `changes`.

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
# SOURCE@LANE:PLACE,LANE:PLACE; a place is one or more numbers, joined by dots. The source may contain @ itself.
_POSITION = re.compile(r"(.+)@((?:\d+:\d+(?:\.\d+)*(?:,(?!$)|$))*)")
_BUILTIN_TYPES = (datetime, date, Decimal, bytes)


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a reader in one source.

    A source has lanes: the partitions of a log, or a single lane for a database. A position has a place in each lane,
    a tuple of numbers such as (offset,) or (LSN, index in the transaction). Positions are partially ordered: one is
    less than another if it is behind in some lane and ahead in none. Users see a position as opaque text.

    Example:
        >>> early, later = Position.of("orders", {0: 5, 1: 7}), Position.of("orders", {0: 6, 1: 7})
        >>> early < later, str(later), Position.parse("orders@0:6,1:7") == later
        (True, 'orders@0:6,1:7', True)
    """

    source: str
    lanes: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, source: str, lanes: Mapping[int, int | tuple[int, ...]]) -> Position:
        """Returns the position with these places by lane.

        Example:
            >>> Position.of("shop", {0: (1234, 2)})
            Position(source='shop', lanes=((0, (1234, 2)),))
        """
        places = {lane: place if isinstance(place, tuple) else (place,) for lane, place in lanes.items()}
        return cls(source, tuple(sorted(places.items())))

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text of a position.

        Raises:
            BadEventError: The text is not a position.
        """
        match = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            what = f"{preview(text)} is not a position"
            raise BadEventError(what, detail="pass the text of a position unchanged", field="position")
        pairs = [lane.split(":") for lane in match[2].split(",") if lane]
        return cls.of(match[1], {int(lane): tuple(map(int, place.split("."))) for lane, place in pairs})

    def __str__(self) -> str:
        lanes = (f"{lane}:{'.'.join(map(str, place))}" for lane, place in self.lanes)
        return f"{self.source}@{','.join(lanes)}"

    def __le__(self, other: Position) -> bool:
        self._check_source(other)
        ahead = dict(other.lanes)
        # A lane that `other` lacks has not begun there, so any place in it is ahead.
        return all(lane in ahead and place <= ahead[lane] for lane, place in self.lanes)

    def __lt__(self, other: Position) -> bool:
        return self <= other and self != other

    def merge(self, other: Position) -> Position:
        """Returns the least position that is not before either: the further place in each lane.

        Example:
            >>> str(Position.of("orders", {0: 5}).merge(Position.of("orders", {0: 3, 1: 7})))
            'orders@0:5,1:7'
        """
        self._check_source(other)
        mine, theirs = dict(self.lanes), dict(other.lanes)
        return Position.of(self.source, theirs | {lane: max(mine[lane], theirs.get(lane, ())) for lane in mine})

    def _check_source(self, other: Position) -> None:
        if self.source != other.source:
            what = f"positions of {self.source!r} and {other.source!r} cannot be compared"
            raise BadEventError(what, detail="positions are ordered within one source only", field="position")


@dataclass(frozen=True, slots=True)
class Transaction:
    """The transaction a change was committed in.

    Attributes:
        id: The transaction id in the source.
        committed_at: Commit time.
        index: Index of this change in the transaction, from 0.
        last: Whether this is the last change of the transaction.

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
        op: The operation; "read" is a row of a snapshot.
        table: The table or topic, such as "public.products".
        key: The primary key after the change; the old key for a delete; () for a truncate.
        before: The row before the change: the columns that `before_holds` names.
        before_holds: Whether `before` has the whole row, the key columns only, or nothing.
        after: The row after the change; None for a delete or truncate.
        unchanged: Columns that the source did not send; they keep their value.
        position: The position in the source.
        transaction: The transaction that committed the change.
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
            "op": (self.op in OPS, f"must be one of {', '.join(OPS)}"),
            "before_holds": (self.before_holds in _BEFORE_KINDS, f"must be one of {', '.join(_BEFORE_KINDS)}"),
            "before": ((self.before is None) == (self.before_holds == "nothing"), "must agree with before_holds"),
            "after": ((self.after is None) == gone, "must be None for a delete or truncate, and only then"),
            "key": ((self.key == ()) == (self.op == "truncate"), "must be empty for a truncate, and only then"),
            "unchanged": (not self.unchanged & (self.after or {}).keys(), "must not name a column of after"),
        }
        for field, (valid, rule) in rules.items():
            if not valid:
                what = f"invalid change of {self.table}: {field} {rule}"
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
        """Returns the change as one JSON object; decimals, times and bytes are text."""
        document = {name: getattr(self, name) for name in self.__slots__} | {
            "unchanged": sorted(self.unchanged),
            "position": str(self.position),
            "transaction": asdict(self.transaction),
        }
        return msgspec.json.encode(to_json_value(document))

    @classmethod
    def from_json(cls, text: bytes | str, *, schema: pa.Schema | None = None, key: tuple[str, ...] = ()) -> Change:
        """Parse the JSON object of a change.

        Args:
            text: The result of `to_json`.
            schema: The schema of the rows, to restore the types of their values; without it they stay as in JSON.
            key: The names of the key columns in that schema, to restore the types of the key.

        Raises:
            BadEventError: The text is not a change, or a row does not match the schema.
        """
        try:
            document = _DECODER.decode(text)
            restore = _row_decoder(schema)
            if len(key) == len(document.key):
                row = restore(dict(zip(key, document.key, strict=True)))
                document.key = [row[name] for name in key]
            fields = msgspec.structs.asdict(document) | {
                "key": tuple(document.key),
                "before": document.before and restore(document.before),
                "after": document.after and restore(document.after),
                "unchanged": frozenset(document.unchanged),
                "position": Position.parse(document.position),
            }
            return cls(**fields)
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


def _row_decoder(schema: pa.Schema | None) -> Callable[[Row], Row]:
    """Returns a function that restores the types of a row's values; the row may lack columns."""
    if not schema:
        return lambda row: row
    # Nullable and without metadata: a column that the source did not send stays absent, without a default.
    struct = RowValidator([pa.field(field.name, field.type) for field in schema]).struct
    return lambda row: msgspec.to_builtins(msgspec.convert(row, struct), builtin_types=_BUILTIN_TYPES)
