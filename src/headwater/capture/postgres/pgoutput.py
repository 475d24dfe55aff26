"""Decodes the messages of PostgreSQL's logical replication, one by one.

Rows come as the bytes that the server sent; `pgoutput_columns.py` decodes many of them at once. The decoder of single
rows here is for small batches, and the oracle of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

__all__ = [
    "HEADER",
    "POSTGRES_EPOCH",
    "Begin",
    "Relation",
    "RelationColumn",
    "RowMessage",
    "Truncate",
    "decode_begin",
    "decode_commit",
    "decode_relation",
    "decode_row",
    "decode_truncate",
]

HEADER: Final = 25
"""Bytes before the message in a replication packet: the letter w, two log positions and a time."""
POSTGRES_EPOCH: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, from where PostgreSQL counts."""
UNCHANGED: Final = 117
"""The letter u: a large value that the server did not send because the statement did not change it."""

Text = bytes | None
Bytes = bytes | memoryview
_BEGIN: Final = Struct(">QqI")
_COMMIT: Final = Struct(">BQQq")
_RELATION: Final = Struct(">I")
_COLUMN: Final = Struct(">Ii")
_SHORT: Final = Struct(">H")
_LENGTH: Final = Struct(">I")
_NULL, _TEXT = 110, 116
_OLD_KEY, _OLD_ROW, _NEW = 75, 79, 78  # K, O, N


class Begin(NamedTuple):
    """The start of a transaction; all its changes follow, because the server sends it after its commit."""

    commit: int
    at: int
    xid: int


@dataclass(frozen=True)
class RelationColumn:
    """A column as the server announces it."""

    name: str
    type_oid: int
    modifier: int
    identity: bool  # sent with the old key of updates and deletes


@dataclass(frozen=True)
class Relation:
    """A table as the server announces it before its next row."""

    oid: int
    schema: str
    name: str
    identity: str  # d: primary key, i: an index, f: the whole row, n: nothing
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class Truncate:
    """One TRUNCATE of several tables."""

    relations: tuple[int, ...]


@dataclass(frozen=True)
class RowMessage:
    """An insert, update or delete of one row.

    Attributes:
        kind: I, U or D.
        relation: The table.
        old_kind: K: `old` has the key columns; O: the whole row; empty: there is no old row.
        old: The texts of the old row's columns; None is NULL.
        new: The texts of the new row's columns; empty for a delete.
        unchanged: The positions of columns in the new row that were not sent.
    """

    kind: str
    relation: int
    old_kind: str
    old: list[Text]
    new: list[Text]
    unchanged: list[int]


def decode_begin(packet: Bytes) -> Begin:
    """Returns the start of a transaction; times are microseconds since 1970."""
    commit, at, xid = _BEGIN.unpack_from(packet, HEADER + 1)
    return Begin(commit, at + POSTGRES_EPOCH, xid)


def decode_commit(packet: Bytes) -> int:
    """Returns the position behind a transaction, from where the server continues with the next one."""
    _, _, end, _ = _COMMIT.unpack_from(packet, HEADER + 1)
    return int(end)


def decode_relation(packet: Bytes) -> Relation:
    """Returns the description of a table."""
    data = bytes(packet)
    (oid,) = _RELATION.unpack_from(data, HEADER + 1)
    schema, position = _read_name(data, HEADER + 5)
    name, position = _read_name(data, position)
    identity = chr(data[position])
    (count,) = _SHORT.unpack_from(data, position + 1)
    position += 3
    columns = []
    for _ in range(count):
        flags = data[position]
        column, position = _read_name(data, position + 1)
        type_oid, modifier = _COLUMN.unpack_from(data, position)
        columns.append(RelationColumn(column, type_oid, modifier, bool(flags & 1)))
        position += _COLUMN.size
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def decode_truncate(packet: Bytes) -> Truncate:
    """Returns the tables of a TRUNCATE."""
    (count,) = _RELATION.unpack_from(packet, HEADER + 1)
    return Truncate(tuple(int(_RELATION.unpack_from(packet, HEADER + 6 + 4 * one)[0]) for one in range(count)))


def decode_row(packet: Bytes) -> RowMessage:
    """Returns one inserted, updated or deleted row.

    Example:
        >>> columns = bytes([0, 3]) + b"t" + bytes([0, 0, 0, 2]) + b"ab" + b"n" + b"u"
        >>> insert = b"I" + (7).to_bytes(4, "big") + b"N" + columns
        >>> row = decode_row(bytes(HEADER) + insert)
        >>> row.kind, row.relation, row.new, row.unchanged
        ('I', 7, [b'ab', None, None], [2])
    """
    data = bytes(packet)
    kind = chr(data[HEADER])
    (relation,) = _RELATION.unpack_from(data, HEADER + 1)
    position = HEADER + 5
    old_kind = ""
    old: list[Text] = []
    new: list[Text] = []
    unchanged: list[int] = []
    if data[position] in (_OLD_KEY, _OLD_ROW):
        old_kind = chr(data[position])
        old, _, position = _read_tuple(data, position + 1)
    if kind != "D":
        if data[position] != _NEW:
            raise ValueError(f"unexpected part {data[position]} of a row message")
        new, unchanged, position = _read_tuple(data, position + 1)
    return RowMessage(kind, relation, old_kind, old, new, unchanged)


def _read_tuple(data: bytes, position: int) -> tuple[list[Text], list[int], int]:
    (count,) = _SHORT.unpack_from(data, position)
    position += 2
    values: list[Text] = []
    unchanged = []
    for index in range(count):
        kind = data[position]
        position += 1
        if kind == _TEXT:
            (length,) = _LENGTH.unpack_from(data, position)
            position += 4
            values.append(data[position : position + length])
            position += length
        elif kind == _NULL:
            values.append(None)
        elif kind == UNCHANGED:
            values.append(None)
            unchanged.append(index)
        else:
            raise ValueError(f"unknown kind {kind} of a column")
    return values, unchanged, position


def _read_name(data: bytes, position: int) -> tuple[str, int]:
    end = data.index(0, position)
    return data[position:end].decode("utf-8", "replace"), end + 1
