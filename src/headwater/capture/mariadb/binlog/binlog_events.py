"""What the events of a MariaDB binary log say: table maps, transactions, statements.

Layouts are those of the server's `log_event.h`. An event's body is what follows its header of 19 bytes, without the
checksum.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from headwater.capture.mariadb.binlog.column_types import type_of_column
from headwater.errors import DamagedError

__all__ = [
    "DELETE",
    "INSERT",
    "ROWS_EVENTS",
    "UPDATE",
    "BinlogColumn",
    "EventType",
    "Gtid",
    "Statement",
    "TableMap",
    "parse_gtid",
    "parse_rotate",
    "parse_rows",
    "parse_statement",
    "parse_table_map",
    "read_length",
]

INSERT, UPDATE, DELETE = 1, 2, 3  # as in `events.change.OPS`


class EventType(IntEnum):
    """The events that this reader knows; any other one inside a transaction stops the capture."""

    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    TABLE_MAP = 19
    INCIDENT = 26
    HEARTBEAT = 27
    XA_PREPARE = 38
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165


ROWS_EVENTS: Final[dict[int, tuple[int, bool, bool]]] = {
    # type: (operation, whether it has the extra header of version 2, whether its rows are compressed)
    23: (INSERT, False, False),
    24: (UPDATE, False, False),
    25: (DELETE, False, False),
    30: (INSERT, True, False),
    31: (UPDATE, True, False),
    32: (DELETE, True, False),
    166: (INSERT, False, True),
    167: (UPDATE, False, True),
    168: (DELETE, False, True),
    169: (INSERT, True, True),
    170: (UPDATE, True, True),
    171: (DELETE, True, True),
}

_INTEGERS = {1: "tinyint", 2: "smallint", 3: "int", 8: "bigint", 9: "mediumint"}
_PLAIN = {4: "float", 5: "double", 7: "timestamp", 10: "date", 11: "time", 12: "datetime", 13: "year", 255: "geometry"}
_PLAIN |= {247: "enum", 248: "set"}
_BYTES_OR_TEXT = {
    254: ("binary({})", "char"),
    15: ("varbinary", "varchar"),
    141: ("varbinary", "varchar"),
    140: ("blob", "text"),
    252: ("blob", "text"),
}
_FRACTIONS = {17: "timestamp", 18: "datetime", 19: "time"}
_META_BYTES = {
    4: 1,
    5: 1,
    15: 2,
    16: 2,
    17: 1,
    18: 1,
    19: 1,
    140: 1,
    141: 2,
    246: 2,
    247: 2,
    248: 2,
    252: 1,
    254: 2,
    255: 1,
}
_TEXT_TYPES = frozenset((15, 140, 141, 252, 254, 255))  # a geometry has the collation of bytes
_BINARY = 63  # the collation of bytes


def read_length(body: bytes, at: int) -> tuple[int, int]:
    """Returns a length-encoded integer and the position after it.

    Example:
        >>> read_length(bytes([252, 1, 1]), 0)
        (257, 3)
    """
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(body[at + 1 : at + 1 + size], "little"), at + 1 + size


@dataclass(frozen=True)
class BinlogColumn:
    """One column of a table map.

    Attributes:
        name: Its name.
        code: The type code of its field; of an ENUM or SET 247 or 248.
        meta: The bytes that describe the field.
        nullable: Whether it can be NULL.
        unsigned: Whether a number has no sign.
        collation: The collation id of a text; 63 is bytes.
        values: The values of an ENUM or SET, in the charset of the column.
    """

    name: str
    code: int
    meta: bytes
    nullable: bool
    unsigned: bool = False
    collation: int = _BINARY
    values: tuple[bytes, ...] = ()

    @property
    def length(self) -> int:
        """The bytes that a CHAR, VARCHAR or BINARY can have."""
        if self.code == 254:  # the high bits of a length over 255 are hidden in the type byte
            return ((self.meta[0] & 0x30) ^ 0x30) << 4 | self.meta[1]
        return int.from_bytes(self.meta[:2], "little")

    def type_text(self) -> str:
        """Returns the type as `column_types` names it; of bytes that may be a UUID, "binary(16)"."""
        code, meta = self.code, self.meta
        if code in _INTEGERS:
            return _INTEGERS[code] + (" unsigned" if self.unsigned else "")
        if code in _FRACTIONS:
            return type_of_column(_FRACTIONS[code], f"{_FRACTIONS[code]}({meta[0]})")
        if code in _BYTES_OR_TEXT:
            of_bytes, of_text = _BYTES_OR_TEXT[code]
            return of_text if self.collation != _BINARY else of_bytes.format(self.length)
        if code == 246:
            return f"decimal({meta[0]},{meta[1]})"
        if code == 16:
            return f"bit({meta[0] + 8 * meta[1]})"
        return _PLAIN.get(code, f"type {code}")


@dataclass(frozen=True)
class TableMap:
    """The columns of a table, as one TABLE_MAP event with full metadata declares them."""

    table: str
    columns: tuple[BinlogColumn, ...]
    key: tuple[str, ...]
    named: bool = True


@dataclass(frozen=True)
class Gtid:
    """The begin of a transaction, or of a statement that commits by itself."""

    domain: int
    sequence: int
    server: int
    standalone: bool
    prepared: bool
    completes: bool
    xid: bytes = b""


@dataclass(frozen=True)
class Statement:
    """SQL text in the log."""

    database: str
    sql: str
    error: int = 0


@dataclass
class _Metadata:
    unsigned: list[bool] = field(default_factory=list)
    collations: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    enum_values: list[tuple[bytes, ...]] = field(default_factory=list)
    set_values: list[tuple[bytes, ...]] = field(default_factory=list)
    enum_collations: list[int] = field(default_factory=list)
    key: list[int] = field(default_factory=list)


def parse_table_map(body: bytes) -> TableMap:
    """Returns the table that a TABLE_MAP event declares. `body` begins after the table id and the flags.

    Without full metadata (`binlog_row_metadata`) its columns have no names, and `named` is False.

    Raises:
        DamagedError: The event is shorter than it says.
    """
    try:
        database_end = 1 + body[0]
        name_at = database_end + 1
        name_end = name_at + 1 + body[name_at]
        table = f"{body[1:database_end].decode()}.{body[name_at + 1 : name_end].decode()}"
        count, at = read_length(body, name_end + 1)
        codes = list(body[at : at + count])
        size, at = read_length(body, at + count)
        metas, metas_end = [], at + size
        for code in codes:
            width = _META_BYTES.get(code, 0)
            metas.append(body[at : at + width])
            at += width
        at = metas_end
        nullable = _bits(body[at : at + (count + 7) // 8], count)
        at += (count + 7) // 8
        # An ENUM or SET hides in a CHAR: the true type is the first byte that describes it.
        codes = [m[0] if c == 254 and m[0] in (247, 248) else c for c, m in zip(codes, metas, strict=True)]
        known = _parse_metadata(body[at:], codes)
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise DamagedError(f"a table map of the binary log cannot be read: {error!r}") from None
    if len(known.names) != count:
        return TableMap(table, (), (), named=False)
    return TableMap(table, tuple(_columns(codes, metas, nullable, known)), tuple(known.names[one] for one in known.key))


def _columns(codes: list[int], metas: list[bytes], nullable: list[bool], known: _Metadata) -> list[BinlogColumn]:
    numbers, texts = iter(known.unsigned), iter(known.collations)
    enums, sets, collations = iter(known.enum_values), iter(known.set_values), iter(known.enum_collations)
    found = []
    for name, code, meta, null in zip(known.names, codes, metas, nullable, strict=True):
        unsigned = next(numbers) if code in _NUMERIC else False
        collation = _BINARY
        values: tuple[bytes, ...] = ()
        if code in _TEXT_TYPES:
            collation = next(texts)
        elif code in (247, 248):
            values, collation = next(enums if code == 247 else sets), next(collations)
        found.append(BinlogColumn(name, code, bytes(meta), null, unsigned, collation, values))
    return found


_NUMERIC = frozenset((1, 2, 3, 4, 5, 8, 9, 13, 246))


def _bits(data: bytes, count: int, *, high_first: bool = False) -> list[bool]:
    return [bool(data[one // 8] >> (7 - one % 8 if high_first else one % 8) & 1) for one in range(count)]


def _parse_metadata(body: bytes, codes: list[int]) -> _Metadata:
    known = _Metadata()
    at = 0
    while at < len(body):
        kind = body[at]
        size, at = read_length(body, at + 1)
        part = body[at : at + size]
        at += size
        if kind == 1:
            known.unsigned = _bits(part, sum(code in _NUMERIC for code in codes), high_first=True)
        elif kind in (2, 3):
            known.collations = _collations(part, sum(code in _TEXT_TYPES for code in codes) if kind == 2 else 0)
        elif kind in (10, 11):
            known.enum_collations = _collations(part, sum(code in (247, 248) for code in codes) if kind == 10 else 0)
        elif kind in (5, 6):
            (known.set_values if kind == 5 else known.enum_values).extend(_value_lists(part))
        elif kind == 4:
            known.names = [name.decode() for name in _strings(part)]
        elif kind in (8, 9):
            known.key = _integers(part)[:: 1 if kind == 8 else 2]  # the second has the length of each prefix
    return known


def _integers(part: bytes) -> list[int]:
    found, at = [], 0
    while at < len(part):
        value, at = read_length(part, at)
        found.append(value)
    return found


def _collations(part: bytes, count: int) -> list[int]:
    """Returns the collation of each column: a list, or for `count` columns a default and the exceptions."""
    if not count:
        return _integers(part)
    default, *pairs = _integers(part)
    other = dict(zip(pairs[::2], pairs[1::2], strict=True))
    return [other.get(one, default) for one in range(count)]


def _strings(part: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(part):
        size, at = read_length(part, at)
        found.append(bytes(part[at : at + size]))
        at += size
    return found


def _value_lists(part: bytes) -> list[tuple[bytes, ...]]:
    found, at = [], 0
    while at < len(part):
        count, at = read_length(part, at)
        values = []
        for _ in range(count):
            size, at = read_length(part, at)
            values.append(bytes(part[at : at + size]))
            at += size
        found.append(tuple(values))
    return found


def parse_gtid(body: bytes, server: int) -> Gtid:
    """Returns the begin of a transaction; `server` is the server id in the event's header.

    Example:
        >>> parse_gtid(bytes([5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x29]) + bytes(6), 7).sequence
        5
    """
    sequence, domain, flags = struct.unpack_from("<QIB", body)
    at = 13 + (8 if flags & 2 else 0)  # a group commit id
    xid = bytes(body[at : at + 6 + body[at + 4] + body[at + 5]]) if flags & 0xC0 else b""
    return Gtid(domain, sequence, server, bool(flags & 1), bool(flags & 64), bool(flags & 128), xid)


def parse_rotate(body: bytes) -> tuple[str, int]:
    """Returns the next file and the position in it.

    Example:
        >>> parse_rotate(bytes([4, 0, 0, 0, 0, 0, 0, 0]) + b"bl.000002")
        ('bl.000002', 4)
    """
    return body[8:].decode(), int.from_bytes(body[:8], "little")


def parse_statement(body: bytes, *, compressed: bool = False) -> Statement:
    """Returns the SQL text of a QUERY event, and the database it was run in."""
    database_size, error = body[8], int.from_bytes(body[9:11], "little")
    at = 13 + int.from_bytes(body[11:13], "little")
    database = body[at : at + database_size].decode()
    text = body[at + database_size + 1 :]
    if compressed:
        text = inflate(text)
    return Statement(database, text.decode("utf-8", "replace"), error)


def inflate(data: bytes) -> bytes:
    """Returns what a compressed event holds: a byte with the length of the length, the length, and zlib data."""
    skip = 1 + (data[0] & 7)
    return zlib.decompress(data[skip:])


def parse_rows(code: int, body: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Returns operation, columns present before, columns present after, and the rows, of a rows event.

    `body` begins after the table id and the flags. Of an INSERT and a DELETE both bitmaps are the same.
    """
    operation, extra, compressed = ROWS_EVENTS[code]
    at = int.from_bytes(body[:2], "little") if extra else 0
    count, at = read_length(body, at)
    size = (count + 7) // 8
    before = after = body[at : at + size]
    at += size
    if operation == UPDATE:
        after = body[at : at + size]
        at += size
    return operation, before, after, inflate(body[at:]) if compressed else body[at:]
