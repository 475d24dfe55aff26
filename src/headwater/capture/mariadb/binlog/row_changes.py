"""Many row events of one table to columns of changes.

Rows have no lengths, so the begin of a row is known only once the row before it is read. Events are read side by side:
one step reads the next row of every event at once, column by column. A few events are read one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.capture.mariadb.binlog.binlog_events import DELETE, INSERT, UPDATE
from headwater.capture.mariadb.binlog.column_readers import PADDING, ColumnReader, Values
from headwater.capture.source import BEFORE_KINDS, TableShape
from headwater.errors import DamagedError

__all__ = ["BadRow", "RowChanges", "RowsEvent", "TableLayout", "read_changes"]

Ints: TypeAlias = npt.NDArray[np.int64]
Data: TypeAlias = npt.NDArray[np.uint8]

_SIDE_BY_SIDE: Final = 12  # events from which numpy is faster than one row after another


class RowsEvent(NamedTuple):
    """The rows of one event.

    Attributes:
        operation: INSERT, UPDATE or DELETE.
        before: A bit for each column: whether the rows before have it.
        after: The same for the rows after.
        rows: The row images.
    """

    operation: int
    before: bytes
    after: bytes
    rows: bytes


@dataclass(frozen=True)
class TableLayout:
    """How the rows of a table lie in its events, and the shape that they get.

    Attributes:
        shape: The columns to deliver, and the key.
        readers: One reader for each column of the table, captured or not.
    """

    shape: TableShape
    readers: tuple[ColumnReader, ...]

    def present(self, mask: bytes) -> list[ColumnReader]:
        """Returns the readers of the columns that a row image has."""
        return [one for n, one in enumerate(self.readers) if mask[n >> 3] >> (n & 7) & 1]


@dataclass(frozen=True)
class BadRow:
    """A change with a value that its column cannot hold."""

    row: int
    column: str
    text: str


@dataclass
class RowChanges:
    """The changes of many events, in order.

    Attributes:
        event: For each change the index of its event.
        operation: INSERT, UPDATE or DELETE of each change.
        before: The row before each change, null where the source did not send it.
        after: The row after each change.
        before_holds: The index in `BEFORE_KINDS` of each change.
        unchanged: The columns that were not sent, for each change; None: all were sent.
        bad: The changes that cannot be delivered as they are.
    """

    event: Ints
    operation: npt.NDArray[np.int8]
    before: pa.Array
    after: pa.Array
    before_holds: npt.NDArray[np.int8]
    unchanged: pa.Array | None
    bad: list[BadRow] = field(default_factory=list)


@dataclass(frozen=True)
class _Images:
    """Where row images lie: one row each, by event and by row in the event."""

    event: Ints
    row: Ints
    operation: int
    masks: tuple[bytes, ...]
    starts: tuple[Ints, ...]


def read_changes(layout: TableLayout, events: Sequence[RowsEvent]) -> RowChanges:
    """Returns the changes of these events, in their order.

    Raises:
        DamagedError: Rows end behind the end of their event.
    """
    data, starts, ends = _join(events)
    groups = _find_images(layout, events, data, starts, ends)
    event = np.concatenate([one.event for one in groups])
    row = np.concatenate([one.row for one in groups])
    operation = np.concatenate([np.full(len(one.event), one.operation, np.int8) for one in groups])
    ordered = len(groups) == 1 and len(events) == 1
    order = np.arange(len(event)) if ordered else np.lexsort((row, event))
    sides = _Sides(layout, data, groups)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    before, after = sides.decode(place)
    holds, unchanged = sides.absent(layout.shape)
    if unchanged is not None:
        unchanged = unchanged.take(pa.array(order))
    return RowChanges(event[order], operation[order], before, after, holds[order], unchanged, sides.bad)


def _join(events: Sequence[RowsEvent]) -> tuple[bytes, Ints, Ints]:
    sizes = np.fromiter((len(one.rows) for one in events), np.int64, len(events))
    ends = np.cumsum(sizes)
    return b"".join([*(one.rows for one in events), bytes(PADDING)]), ends - sizes, ends


def _find_images(
    layout: TableLayout, events: Sequence[RowsEvent], data: bytes, starts: Ints, ends: Ints
) -> list[_Images]:
    """Returns the row images, one entry for each operation and set of columns."""
    kinds: dict[tuple[int, bytes, bytes], list[int]] = {}
    for n, one in enumerate(events):
        kinds.setdefault((one.operation, one.before, one.after), []).append(n)
    found = []
    for (operation, before, after), members in kinds.items():
        masks = (before, after) if operation == UPDATE else (before,)
        chosen = np.array(members, np.int64)
        walk = _walk_together if len(members) >= _SIDE_BY_SIDE else _walk_singly
        lane, row, places = walk([layout.present(mask) for mask in masks], data, starts[chosen], ends[chosen])
        found.append(_Images(chosen[lane], row, operation, masks, places))
    return found


def _walk_together(
    images: list[list[ColumnReader]], data: bytes, starts: Ints, ends: Ints
) -> tuple[Ints, Ints, tuple[Ints, ...]]:
    """Returns event, row and begin of each image; one step reads a row of every event."""
    raw = np.frombuffer(data, np.uint8)
    lane, cursor = np.arange(len(starts)), starts.copy()
    lanes, rows, places = [], [], []
    step = 0
    while len(lane):
        lanes.append(lane)
        rows.append(np.full(len(lane), step))
        begins = []
        for readers in images:
            begins.append(cursor)
            cursor = _skip_image(readers, raw, cursor, ends[lane])
        places.append(begins)
        going = cursor < ends[lane]
        lane, cursor = lane[going], cursor[going]
        step += 1
    columns = tuple(np.concatenate([one[n] for one in places]) for n in range(len(images)))
    return np.concatenate(lanes), np.concatenate(rows), columns


def _skip_image(readers: list[ColumnReader], raw: Data, cursor: Ints, ends: Ints) -> Ints:
    begin = cursor
    cursor = cursor + (len(readers) + 7) // 8
    for n, reader in enumerate(readers):
        # A damaged length must not point beyond the data.
        if reader.prefix:
            _check_inside(cursor, ends)
        valid = _valid(raw, begin, n) if reader.nullable else None
        _, _, cursor = reader.advance(raw, cursor, valid)
    _check_inside(cursor, ends)
    return cursor


def _check_inside(cursor: Ints, ends: Ints) -> None:
    if bool((cursor > ends).any()):
        raise DamagedError("a row of the binary log ends behind the end of its event")


def _valid(raw: Data, begin: Ints, n: int) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = raw[begin + (n >> 3)] >> (n & 7) & 1 == 0
    return flags


def _walk_singly(
    images: list[list[ColumnReader]], data: bytes, starts: Ints, ends: Ints
) -> tuple[Ints, Ints, tuple[Ints, ...]]:
    lanes, rows, places = [], [], []
    for lane, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        cursor, row = start, 0
        while cursor < end:
            begins = []
            for readers in images:
                begins.append(cursor)
                cursor = _skip_row(readers, data, cursor)
            lanes.append(lane)
            rows.append(row)
            places.append(begins)
            row += 1
        _check_inside(np.array([cursor]), np.array([end]))
    table = np.array(places, np.int64).reshape(-1, len(images))
    columns = tuple(np.ascontiguousarray(table[:, n]) for n in range(len(images)))
    return np.array(lanes, np.int64), np.array(rows, np.int64), columns


def _skip_row(readers: list[ColumnReader], data: bytes, cursor: int) -> int:
    size = (len(readers) + 7) // 8
    nulls = int.from_bytes(data[cursor : cursor + size], "little")
    cursor += size
    for reader in readers:
        if not nulls & 1:
            if not reader.prefix:
                cursor += reader.width
            elif reader.prefix == 1:
                cursor += 1 + data[cursor]
            else:
                cursor = reader.skip(data, cursor)
        nulls >>= 1
    return cursor


class _Sides:
    """The rows before and after of all changes, decoded once for each set of columns."""

    def __init__(self, layout: TableLayout, data: bytes, groups: list[_Images]) -> None:
        self._layout = layout
        self._raw = np.frombuffer(data, np.uint8)
        self._groups = groups
        self._count = sum(len(one.event) for one in groups)
        self._kind = pa.struct([pa.field(one.name, one.type) for one in layout.shape.schema])
        self.bad: list[BadRow] = []

    def decode(self, place: Ints) -> tuple[pa.Array, pa.Array]:
        """Returns the rows before and after; `place` is where each change stands in the order of changes."""
        before, after = _Side(self._kind, self._count), _Side(self._kind, self._count)
        at = 0
        for group in self._groups:
            places = place[at : at + len(group.event)]
            at += len(group.event)
            first = self._columns(group.masks[0], group.starts[0], places)
            if group.operation == INSERT:
                after.add(places, self._struct(first))
                continue
            before.add(places, self._struct(first))
            if group.operation == UPDATE:
                then = self._columns(group.masks[1], group.starts[1], places)
                # A column that only the row before has did not change.
                after.add(places, self._struct(first | then))
        return before.rows(), after.rows()

    def absent(self, shape: TableShape) -> tuple[npt.NDArray[np.int8], pa.Array | None]:
        """Returns what `before` holds, and the columns that no image has, in the order of the groups."""
        holds, missing = [], []
        for group in self._groups:
            names = [{one.name for one in self._layout.present(mask)} for mask in group.masks]
            kind = _before_kind(shape, names[0]) if group.operation != INSERT else 0
            holds.append(np.full(len(group.event), kind, np.int8))
            sent = set().union(*names)
            left = [] if group.operation == DELETE else [one for one in shape.schema.names if one not in sent]
            missing.append(pa.array([left or None], pa.list_(pa.string())).take(pa.array([0] * len(group.event))))
        if all(one.null_count == len(one) for one in missing):
            return np.concatenate(holds), None
        return np.concatenate(holds), pa.concat_arrays(missing)

    def _columns(self, mask: bytes, starts: Ints, places: Ints) -> dict[str, pa.Array]:
        wanted = set(self._layout.shape.schema.names)
        readers = self._layout.present(mask)
        cursor = starts + (len(readers) + 7) // 8
        found = {}
        for n, reader in enumerate(readers):
            valid = _valid(self._raw, starts, n) if reader.nullable else None
            if valid is not None and bool(valid.all()):
                valid = None
            at, length, cursor = reader.advance(self._raw, cursor, valid)
            if reader.name not in wanted:
                continue
            decoded = reader.decode(Values(self._raw, at, length, valid))
            found[reader.name] = decoded.column
            if decoded.bad:
                self.bad += [BadRow(int(places[row]), reader.name, text) for row, text in decoded.bad.items()]
        return found

    def _struct(self, columns: dict[str, pa.Array]) -> pa.Array:
        count = len(next(iter(columns.values())))
        members = [columns.get(one.name) for one in self._kind]
        arrays = [
            pa.nulls(count, one.type) if column is None else column
            for one, column in zip(self._kind, members, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self._kind))


class _Side:
    """Rows of one side, collected by group and put into the order of changes."""

    def __init__(self, kind: pa.DataType, count: int) -> None:
        self._kind = kind
        self._index = np.full(count, -1, np.int64)
        self._parts: list[Any] = []
        self._size = 0

    def add(self, places: Ints, rows: pa.Array) -> None:
        self._index[places] = np.arange(self._size, self._size + len(rows))
        self._size += len(rows)
        self._parts.append(rows)

    def rows(self) -> pa.Array:
        if not self._parts:
            return pa.nulls(len(self._index), self._kind)
        whole = self._parts[0] if len(self._parts) == 1 else pa.concat_arrays(self._parts)
        if self._size == len(self._index) and bool((self._index == np.arange(self._size)).all()):
            return whole
        return whole.take(pa.array(self._index, mask=self._index < 0))


def _before_kind(shape: TableShape, sent: set[str]) -> int:
    if sent.issuperset(shape.schema.names):
        return BEFORE_KINDS.index("row")
    if shape.key and sent.issuperset(shape.key):
        return BEFORE_KINDS.index("key")
    return BEFORE_KINDS.index("nothing")
