"""A topic of changes → the table they are about: inserts, updates, deletes and truncates, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.keyed.keys import encode_keys
from headwater.engine.keyed.operator import DELETED, OFFSET, PARTITION, REFUSED, SINCE, WEIGHT
from headwater.engine.keyed.rows import RowCodec
from headwater.engine.keyed.state import State
from headwater.engine.operators.tables.changes import described
from headwater.engine.operators.tables.kept_rows import KeptRows, Version
from headwater.events.changes import AFTER, BEFORE, OP, OPS, UNCHANGED
from headwater.events.values import shown

__all__ = ["Apply"]

_MOMENT: Final = pa.timestamp("us", "UTC")
_PLACES: Final = pa.schema([(PARTITION, pa.int64()), (OFFSET, pa.int64()), (REFUSED, pa.string())])
_Given = tuple[int, int, str]
"""An event that is given back: partition, offset and why."""


class _UnusableError(Exception):
    """Why a change cannot be applied."""


@dataclass(frozen=True)
class Apply:
    """Keeps the row of each key as a topic of changes says, in the order of the topic.

    A change that says less than is needed (no key, no row, columns to keep of a row that is not there) is given back,
    and changes nothing. Its result has every version that a row had, not only the last one of a batch: what holds at a
    time must not depend on where batches are cut. The times of versions never fall, so that what holds last is what the
    table has.

    State: all rows below one key, since a truncate concerns all of them; so are displaced ones (see
    `KeptRows`). Also the time of the latest version.

    Args:
        topic: The topic's name.
        rows: The columns of the table.
        key: The columns that identify a row.

    Example:
        >>> from headwater.engine.keyed.state import MemoryState
        >>> from headwater.events import changes
        >>> rows = pa.schema([("id", pa.int64()), ("name", pa.string())])
        >>> insert, delete = {"op": "insert", "after": {"id": 1, "name": "pen"}}, {"op": "delete", "before": {"id": 2}}
        >>> events = pa.Table.from_pylist([insert, delete], changes(rows))
        >>> for name, values in {"partition": [0, 0], "offset": [0, 1], "since": [5, 6]}.items():
        ...     events = events.append_column(f"_hw_{name}", pa.array(values))
        >>> Apply("raw", rows, ("id",)).step(MemoryState(), [events], 0).select([0, 1, 2]).to_pylist()
        [{'id': 1, 'name': 'pen', '_hw_weight': 1}]
    """

    topic: str
    rows: pa.Schema
    key: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table; weight and time of a version; place of an event that is given back, and why."""
        return pa.schema([*self.rows, (WEIGHT, pa.int64()), (SINCE, _MOMENT), *_PLACES])

    @property
    def form(self) -> str:
        """What is kept."""
        return f"rows of {self.topic} ({described(self.rows)}) by {', '.join(self.key)}"

    @property
    def words(self) -> str:
        """What is kept, for people."""
        return f"rows of {self.topic} by {', '.join(self.key)}"

    def step(self, state: State, arrived: Sequence[pa.Table], watermark: int) -> pa.Table:
        """Take changes, in the order of their topic; see `headwater.engine.keyed.operator.Operator`."""
        (events,) = arrived
        if DELETED in events.column_names:  # a tombstone says nothing about a row
            events = events.filter(pc.invert(events.column(DELETED)))
        if not len(events):
            return self.schema.empty_table()
        changes = _Changes.of(events, self.rows, self.key)
        kept, refused = KeptRows(state, changes.keys(), changes.leaving()), []
        for number, (offset, op) in enumerate(zip(changes.offsets, changes.ops, strict=True)):
            try:
                self._apply(changes, number, op, kept)
            except _UnusableError as error:
                refused.append((changes.partitions[number], offset, str(error)))
        kept.save()
        return self._result(kept.versions, refused)

    def _apply(self, changes: _Changes, number: int, op: str | None, kept: KeptRows) -> None:
        since = changes.since[number]
        if op == "truncate":
            kept.clear(since)
        elif op == "delete":
            kept.take(changes.before.key(number, op), since)
        elif op not in OPS:
            message = f"its op is {shown(op)}, and can be {', '.join(OPS)}"
            raise _UnusableError(message)
        else:
            key = changes.after.key(number, op)
            moves = op == "update" and changes.before.there[number]
            old = changes.before.key(number, op) if moves else key
            row = changes.after.rows[number]
            if names := changes.unchanged[number]:
                row = self._merged(row, kept.get(key) if old == key else kept.get_leaving(old), names)
            if old == key:
                kept.put(key, row, since)
            else:
                kept.move(old, key, row, since)

    def _merged(self, row: bytes, stored: bytes | None, names: Sequence[str]) -> bytes:
        """The row with the stored values of the columns that were not sent."""
        if unknown := [name for name in names if name not in self.rows.names]:
            message = f"its row has no column {shown(unknown[0])} that could be unchanged"
            raise _UnusableError(message)
        if stored is None:
            message = (
                f"{', '.join(dict.fromkeys(names))} should be unchanged, and there is no row with that key"
            )
            raise _UnusableError(message)
        sent, had = msgspec.msgpack.decode(row), msgspec.msgpack.decode(stored, type=list[Any])
        for name in names:
            place = self.rows.get_field_index(name)
            sent[place] = had[place]
        return msgspec.msgpack.encode(sent)

    def _result(self, versions: Sequence[Version], refused: Sequence[_Given]) -> pa.Table:
        rows = RowCodec(self.rows).decode([row for row, _, _ in versions])
        weights = pa.array([weight for _, weight, _ in versions], pa.int64())
        since = pa.array([time for _, _, time in versions], pa.int64()).cast(_MOMENT)
        nothing = [pa.nulls(len(versions), field.type) for field in _PLACES]
        made = pa.Table.from_arrays([*rows.columns, weights, since, *nothing], schema=self.schema)
        if not refused:
            return made
        bare = [pa.nulls(len(refused), field.type) for field in self.schema][: -len(_PLACES)]
        given = [
            pa.array(column, field.type)
            for column, field in zip(zip(*refused, strict=True), _PLACES, strict=True)
        ]
        return pa.concat_tables([made, pa.Table.from_arrays([*bare, *given], schema=self.schema)])


@dataclass(frozen=True)
class _Side:
    """The rows before or after changes: whether each is there, its key, and the row itself as bytes."""

    name: str
    there: list[bool]
    keys: list[bytes]
    lacking: list[str | None]
    rows: list[bytes]

    def key(self, number: int, op: str) -> bytes:
        """The key of a row.

        Raises:
            _UnusableError: There is none.
        """
        if not self.there[number]:
            message = f"its op is {op!r}, and it has no {self.name!r}"
            raise _UnusableError(message)
        if (column := self.lacking[number]) is not None:
            message = f"its {self.name!r} has no value for {column}, which is part of the key"
            raise _UnusableError(message)
        return self.keys[number]


@dataclass(frozen=True)
class _Changes:
    """A batch of changes, column by column."""

    partitions: list[int]
    offsets: list[int]
    since: list[int]
    ops: list[str | None]
    before: _Side
    after: _Side
    unchanged: list[Sequence[str] | None]

    @classmethod
    def of(cls, events: pa.Table, rows: pa.Schema, key: tuple[str, ...]) -> _Changes:
        unchanged = events.column(UNCHANGED).to_pylist()
        before, after = (_columns(events.column(side), rows) for side in (BEFORE, AFTER))
        for name in key:  # a part of the key that was not sent is the one of the row before
            kept = [name in (names or ()) for names in unchanged]
            if any(kept):
                after[name] = pc.if_else(pa.array(kept), before[name], after[name])
        partitions, offsets = (events.column(name).to_pylist() for name in (PARTITION, OFFSET))
        since = events.column(SINCE).cast(pa.int64()).to_pylist()
        there = [events.column(side).is_valid().to_pylist() for side in (BEFORE, AFTER)]
        sides = (
            _side(BEFORE, there[0], {name: before[name] for name in key}, key, []),
            _side(AFTER, there[1], after, key, RowCodec(rows).encode(pa.table(after, schema=rows))),
        )
        return cls(partitions, offsets, since, events.column(OP).to_pylist(), *sides, unchanged)

    def keys(self) -> Iterable[bytes]:
        """All keys that are named."""
        for side in (self.before, self.after):
            yield from (key for key, there in zip(side.keys, side.there, strict=True) if there)

    def leaving(self) -> Iterable[bytes]:
        """The keys that a row may leave: those of deletes, and of updates that give it another one."""
        for op, there, old, new in zip(
            self.ops, self.before.there, self.before.keys, self.after.keys, strict=True
        ):
            if there and (op == "delete" or (op == "update" and old != new)):
                yield old


def _side(
    name: str, there: list[bool], columns: dict[str, pa.Array], key: tuple[str, ...], rows: list[bytes]
) -> _Side:
    lacking: list[str | None] = [None] * len(there)
    for column in reversed(key):
        if columns[column].null_count:
            gaps = columns[column].is_null().to_pylist()
            lacking = [column if gap else found for gap, found in zip(gaps, lacking, strict=True)]
    return _Side(name, there, encode_keys([columns[column] for column in key]), lacking, rows)


def _columns(side: pa.ChunkedArray, rows: pa.Schema) -> dict[str, pa.Array]:
    """The columns of the rows on one side; -0.0 is 0.0, so that equal rows have equal bytes."""
    members = dict(zip((field.name for field in side.type), side.combine_chunks().flatten(), strict=True))
    found = {field.name: members[field.name].cast(field.type) for field in rows}
    return {
        name: pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column
        for name, column in found.items()
    }
