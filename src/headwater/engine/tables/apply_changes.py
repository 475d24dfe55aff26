"""Applies a topic of changes to a table: inserts, updates, deletes and truncates, in order.

`TableRows` is the table during a batch: the committed state, overlaid with the changes of the batch so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.state.encoding import decode_rows, encode_keys, encode_rows, normalize_zeros
from headwater.engine.state.state import (
    DELETED,
    OFFSET,
    PARTITION,
    QUARANTINE_SCHEMA,
    SINCE,
    TIMESTAMP,
    WEIGHT,
    State,
    describe_columns,
)
from headwater.events.change import AFTER, BEFORE, OP, OPS, UNCHANGED
from headwater.events.values import preview

__all__ = ["ApplyChanges", "TableRows", "Version"]

_ROWS: Final = "rows"
_DISPLACED: Final = "displaced"
_LATEST: Final = "latest"
_ALL_ROWS: Final = b""
"""The state key of all rows; each is named by its own key. So a truncate can list them."""
Version = tuple[bytes, int, int]
"""A row, its weight (+1 added, -1 removed), and the time of the change in microseconds since 1970."""


class TableRows:
    r"""The rows of a table as bytes, by key; tracks every change.

    Databases check unique keys at the end of a statement or transaction. So a row may get a key that another row still
    has, until a later change moves or deletes that row. Until then the other row is *displaced*: it is not a row of the
    table, and is stored apart under its former key.

    Times never decrease in the order of the changes: a version with a time before the latest one gets the time of the
    latest one.

    Args:
        state: The state with the rows.
        keys: The keys that may be read; only `clear` reads more.
        leaving: The keys among them that a row may leave.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> state = MemoryState()
        >>> rows = TableRows(state, [b"\x01"])
        >>> rows.put(b"\x01", b"pen", since=5)
        >>> rows.put(b"\x01", b"ink", since=7)
        >>> rows.save()
        >>> rows.versions, TableRows(state, [b"\x01"]).get(b"\x01")
        ([(b'pen', 1, 5), (b'pen', -1, 7), (b'ink', 1, 7)], b'ink')
    """

    def __init__(self, state: State, keys: Iterable[bytes], leaving: Iterable[bytes] = ()) -> None:
        self._rows = _TrackedSpace(state, _ROWS, keys)
        self._displaced = _TrackedSpace(state, _DISPLACED, leaving)
        self._state = state
        (latest,) = state.values(_LATEST, [_ALL_ROWS])
        self._latest_before = self._latest = None if latest is None else int.from_bytes(latest, signed=True)
        self.versions: list[Version] = []

    def get(self, key: bytes) -> bytes | None:
        """Returns the row of a key."""
        return self._rows.current.get(key)

    def get_leaving(self, key: bytes) -> bytes | None:
        """Returns the row that a change of this key is about: the displaced row if there is one, else the row."""
        return self._displaced.current.get(key, self._rows.current.get(key))

    def put(self, key: bytes, row: bytes | None, since: int) -> None:
        """Replace or delete the row of a key; an equal row changes nothing."""
        old = self._rows.current.get(key)
        if old == row:
            return
        since = self._advance_time(since)
        if old is not None:
            self.versions.append((old, -1, since))
        if row is not None:
            self.versions.append((row, 1, since))
            self._rows.current[key] = row
        else:
            del self._rows.current[key]

    def remove(self, key: bytes, since: int) -> None:
        """Delete the row that leaves a key."""
        if self._displaced.current.pop(key, None) is None:
            self.put(key, None, since)

    def move(self, old: bytes, key: bytes, row: bytes, since: int) -> None:
        """Move the row that leaves a key to another key; an existing row there is displaced.

        A repeated move finds no row under the old key and the moved row under the new key. It displaces no row.
        """
        leaving, existing = self.get_leaving(old), self.get(key)
        self.remove(old, since)
        if existing is not None and (leaving is not None or existing != row):
            self._displaced.current[key] = existing
        self.put(key, row, since)

    def clear(self, since: int) -> None:
        """Delete all rows."""
        for space in (self._rows, self._displaced):
            space.load()
        if self._rows.current:
            since = self._advance_time(since)
        self.versions += [(row, -1, since) for _, row in sorted(self._rows.current.items())]
        self._rows.current.clear()
        self._displaced.current.clear()

    def save(self) -> None:
        """Write the changes to the state."""
        self._rows.save()
        self._displaced.save()
        if self._latest is not None and self._latest != self._latest_before:
            self._state.put(_LATEST, [_ALL_ROWS], None, [self._latest.to_bytes(8, signed=True)])

    def _advance_time(self, since: int) -> int:
        """Returns the time of one more version, which becomes the latest."""
        self._latest = since if self._latest is None else max(since, self._latest)
        return self._latest


class _TrackedSpace:
    """The entries of a space: as read from the state, and as changed by the batch."""

    def __init__(self, state: State, space: str, names: Iterable[bytes]) -> None:
        self._state = state
        self._space = space
        read = list(dict.fromkeys(names))
        found = state.values(space, [_ALL_ROWS] * len(read), read) if read else []
        self._before = dict(zip(read, found, strict=True))
        self._whole = False
        self.current = {name: row for name, row in self._before.items() if row is not None}

    def load(self) -> None:
        """Read all entries that have not been read yet."""
        if not self._whole:
            found = self._state.entries(self._space, _ALL_ROWS)
            more = {name: row for name, row in found if name not in self._before}
            self._before |= more
            self.current = more | self.current
            self._whole = True

    def save(self) -> None:
        """Write the changes to the state."""
        names = self._before.keys() | self.current.keys()
        changed = sorted(name for name in names if self._before.get(name) != self.current.get(name))
        if changed:
            self._state.put(self._space, [_ALL_ROWS] * len(changed), changed, list(map(self.current.get, changed)))


class _UnusableError(Exception):
    """The reason why a change cannot be applied."""


@dataclass(frozen=True)
class ApplyChanges:
    """Maintains the row of each key from a topic of changes, in topic order.

    An incomplete change (no key, no row, or unchanged columns of a row that does not exist) is rejected and changes
    nothing. The result has every version of a row, not only the last one of a batch, because the version valid at a
    time must not depend on batch boundaries. The times of versions never decrease, so the last version is the row of
    the table.

    State: all rows, under one key because a truncate deletes all of them; the displaced rows (see `TableRows`); the
    time of the latest version.

    Args:
        topic: The topic's name.
        rows: The columns of the table.
        key: The columns that identify a row.

    Example:
        >>> from headwater.engine.state.state import MemoryState
        >>> from headwater.events import changes
        >>> rows = pa.schema([("id", pa.int64()), ("name", pa.string())])
        >>> insert, delete = {"op": "insert", "after": {"id": 1, "name": "pen"}}, {"op": "delete", "before": {"id": 2}}
        >>> events = pa.Table.from_pylist([insert, delete], changes(rows))
        >>> for name, values in {"partition": [0, 0], "offset": [0, 1], "since": [5, 6]}.items():
        ...     events = events.append_column(f"_hw_{name}", pa.array(values))
        >>> ApplyChanges("raw", rows, ("id",)).step(MemoryState(), [events], 0).select([0, 1, 2]).to_pylist()
        [{'id': 1, 'name': 'pen', '_hw_weight': 1}]
    """

    topic: str
    rows: pa.Schema
    key: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, weight and time of a version, and position and reason of a rejected event."""
        return pa.schema([*self.rows, (WEIGHT, pa.int64()), (SINCE, TIMESTAMP), *QUARANTINE_SCHEMA])

    @property
    def form(self) -> str:
        """The description of its state."""
        return f"rows of {self.topic} ({describe_columns(self.rows)}) by {', '.join(self.key)}"

    @property
    def description(self) -> str:
        """The description of its state for users."""
        return f"rows of {self.topic} by {', '.join(self.key)}"

    def step(self, state: State, inputs: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Process changes in topic order; see `headwater.engine.state.state.StatefulStep`."""
        (events,) = inputs
        if DELETED in events.column_names:  # a tombstone is no change of a row
            events = events.filter(pc.invert(events.column(DELETED)))
        if not len(events):
            return self.schema.empty_table()
        changes = _ChangeBatch.of(events, self.rows, self.key)
        table, rejected = TableRows(state, changes.keys(), changes.leaving()), []
        for number, (offset, op) in enumerate(zip(changes.offsets, changes.ops, strict=True)):
            try:
                self._apply(changes, number, op, table)
            except _UnusableError as error:
                rejected.append((changes.partitions[number], offset, str(error)))
        table.save()
        return self._build_result(table.versions, rejected)

    def _apply(self, changes: _ChangeBatch, number: int, op: str | None, table: TableRows) -> None:
        since = changes.since[number]
        if op == "truncate":
            table.clear(since)
        elif op == "delete":
            table.remove(changes.before.key(number, op), since)
        elif op not in OPS:
            message = f"its op is {preview(op)}, not one of {', '.join(OPS)}"
            raise _UnusableError(message)
        else:
            key = changes.after.key(number, op)
            # `before` of an insert or read is ignored; an update without `before` keeps its key.
            moves = op == "update" and changes.before.present[number]
            old = changes.before.key(number, op) if moves else key
            row = changes.after.rows[number]
            if names := changes.unchanged[number]:
                row = self._fill_unchanged(row, table.get(key) if old == key else table.get_leaving(old), names)
            if old == key:
                table.put(key, row, since)
            else:
                table.move(old, key, row, since)

    def _fill_unchanged(self, row: bytes, stored: bytes | None, names: Sequence[str]) -> bytes:
        """Returns the row with stored values for the columns that were not sent."""
        if unknown := [name for name in names if name not in self.rows.names]:
            message = f"it names {preview(unknown[0])} as unchanged, which is no column of the table"
            raise _UnusableError(message)
        if stored is None:
            message = f"{', '.join(dict.fromkeys(names))} should be unchanged, and there is no row with that key"
            raise _UnusableError(message)
        sent, old = msgspec.msgpack.decode(row), msgspec.msgpack.decode(stored, type=list[Any])
        for name in names:
            index = self.rows.get_field_index(name)
            sent[index] = old[index]
        return msgspec.msgpack.encode(sent)

    def _build_result(self, versions: Sequence[Version], rejected: Sequence[tuple[int, int, str]]) -> pa.Table:
        rows = decode_rows(self.rows, [row for row, _, _ in versions])
        rows = rows.append_column(WEIGHT, pa.array([weight for _, weight, _ in versions], pa.int64()))
        rows = rows.append_column(SINCE, pa.array([time for _, _, time in versions], pa.int64()).cast(TIMESTAMP))
        positions = [dict(zip(QUARANTINE_SCHEMA.names, event, strict=True)) for event in rejected]
        tables = [rows, pa.Table.from_pylist(positions, QUARANTINE_SCHEMA)]
        return pa.concat_tables(tables, promote_options="default").select(self.schema.names).cast(self.schema)


@dataclass(frozen=True)
class _RowImages:
    """The row images before or after changes: presence, key, and the row as bytes."""

    name: str
    present: list[bool]
    keys: list[bytes]
    missing_columns: list[str | None]
    rows: list[bytes]

    def key(self, number: int, op: str) -> bytes:
        """Returns the key of a row.

        Raises:
            _UnusableError: The row or a part of its key is missing.
        """
        if not self.present[number]:
            message = f"its op is {op!r}, and it has no {self.name!r}"
            raise _UnusableError(message)
        if (column := self.missing_columns[number]) is not None:
            message = f"its {self.name!r} has no value for {column}, which is part of the key"
            raise _UnusableError(message)
        return self.keys[number]


@dataclass(frozen=True)
class _ChangeBatch:
    """A batch of changes, column by column."""

    partitions: list[int]
    offsets: list[int]
    since: list[int]
    ops: list[str | None]
    before: _RowImages
    after: _RowImages
    unchanged: list[Sequence[str] | None]

    @classmethod
    def of(cls, events: pa.Table, rows: pa.Schema, key: tuple[str, ...]) -> _ChangeBatch:
        unchanged = events.column(UNCHANGED).to_pylist()
        before, after = (_image_columns(events.column(side), rows) for side in (BEFORE, AFTER))
        for name in key:  # a key column that was not sent has the value of the row before
            not_sent = [name in (names or ()) for names in unchanged]
            if any(not_sent):
                after[name] = pc.if_else(pa.array(not_sent), before[name], after[name])
        partitions, offsets, ops = (events.column(name).to_pylist() for name in (PARTITION, OFFSET, OP))
        since = events.column(SINCE).cast(pa.int64()).to_pylist()
        has_before, has_after = (events.column(side).is_valid().to_pylist() for side in (BEFORE, AFTER))
        old = _build_images(BEFORE, has_before, before, key, [])
        new = _build_images(AFTER, has_after, after, key, encode_rows(rows, pa.table(after, schema=rows)))
        return cls(partitions, offsets, since, ops, old, new, unchanged)

    def keys(self) -> Iterable[bytes]:
        """Yields the keys of all rows."""
        for side in (self.before, self.after):
            yield from compress(side.keys, side.present)

    def leaving(self) -> Iterable[bytes]:
        """Yields the keys that a row may leave: those of deletes, and of updates that change the key."""
        for op, has_old, old, new in zip(self.ops, self.before.present, self.before.keys, self.after.keys, strict=True):
            if has_old and (op == "delete" or (op == "update" and old != new)):
                yield old


def _build_images(
    name: str, present: list[bool], columns: dict[str, pa.Array], key: tuple[str, ...], rows: list[bytes]
) -> _RowImages:
    missing: list[str | None] = [None] * len(present)
    for column in reversed(key):
        if columns[column].null_count:
            nulls = columns[column].is_null().to_pylist()
            missing = [column if null else other for null, other in zip(nulls, missing, strict=True)]
    return _RowImages(name, present, encode_keys([columns[column] for column in key]), missing, rows)


def _image_columns(side: pa.ChunkedArray, rows: pa.Schema) -> dict[str, pa.Array]:
    """Returns the columns of the rows before or after the changes."""
    members = dict(zip((field.name for field in side.type), side.combine_chunks().flatten(), strict=True))
    return {field.name: normalize_zeros(members[field.name].cast(field.type)) for field in rows}
