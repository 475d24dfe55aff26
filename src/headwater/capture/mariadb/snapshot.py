"""Rows of tables as they were at one position of the binary log, in Arrow batches.

`START TRANSACTION WITH CONSISTENT SNAPSHOT` fixes InnoDB's view and the position together, without a lock on the
tables: the status variables `binlog_snapshot_file` and `binlog_snapshot_position` say which transactions are in it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.capture.mariadb.binlog.column_readers import binary_array
from headwater.capture.mariadb.binlog.column_types import arrow_type, type_of_column
from headwater.capture.mariadb.connection import Connection, quote_name, quote_text
from headwater.capture.source import TableShape
from headwater.errors import NotCapturableError, UnreachableError

__all__ = ["BadSnapshotRow", "Rows", "Snapshot", "read_shape"]

_BATCH_BYTES: Final = 4 << 20
_MAX_PACKET: Final = 0xFFFFFF
_NUMBER: Final = re.compile(r"((tiny|small|medium|big)?int|decimal)\b")
_ORDERED: Final = re.compile(r"((tiny|small|medium|big)?int|decimal|char|varchar|binary|varbinary|date|uuid)\b")
_COLUMNS: Final = """SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = {database} AND TABLE_NAME = {table} ORDER BY ORDINAL_POSITION"""
_KEY: Final = """SELECT COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE
    WHERE CONSTRAINT_NAME = 'PRIMARY' AND TABLE_SCHEMA = {database} AND TABLE_NAME = {table}
    ORDER BY ORDINAL_POSITION"""


def read_shape(connection: Connection, table: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the columns of a table with their types, and its primary key; both empty if there is no such table."""
    database, name = table.split(".", 1)
    names = {"database": quote_text(database), "table": quote_text(name)}
    columns = connection.query(_COLUMNS.format(**names))
    key = connection.query(_KEY.format(**names))
    return {n: type_of_column(kind, text) for n, kind, text in columns}, tuple(one[0] for one in key)


@dataclass(frozen=True)
class BadSnapshotRow:
    """A row with a value that its column cannot hold: the column, its text, and the row as texts."""

    column: str
    text: str
    row: dict[str, str | None]


@dataclass(frozen=True)
class Rows:
    """Some rows of a snapshot, and the key of the last of them as SQL if the snapshot can be continued behind it."""

    rows: pa.Array
    bad: list[BadSnapshotRow]
    last: tuple[str, ...] = ()


class Snapshot:
    """One consistent view of the database; it stays open until `close`.

    Attributes:
        file: The binary log file of its position.
        position: Transactions that end there or before are in it, no others.
        gtid: The GTID position, for people.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        found = dict(connection.query("SHOW STATUS LIKE 'binlog_snapshot_%'"))
        values = {str(name).lower(): value for name, value in found.items()}
        self.file = str(values.get("binlog_snapshot_file") or "")
        if not self.file:
            raise NotCapturableError(
                f"{connection.address.url} writes no binary log", fix="start the server with --log-bin"
            )
        self.position = int(values["binlog_snapshot_position"])

    def estimate(self, table: str) -> int:
        """Returns about how many rows a table has."""
        database, name = map(quote_text, table.split(".", 1))
        where = f"TABLE_SCHEMA = {database} AND TABLE_NAME = {name}"
        found = self.connection.query(f"SELECT TABLE_ROWS FROM information_schema.TABLES WHERE {where}")
        return int(found[0][0] or 0) if found else 0

    def read(self, shape: TableShape, most: int, after: tuple[str, ...] = ()) -> Iterator[Rows]:
        """Returns the rows of a table in batches of about 4 MB; by primary key, if that can be continued.

        Args:
            shape: The table.
            most: The most rows of a batch.
            after: Only rows behind this key, as `Rows.last` says it.
        """
        columns = ", ".join(_expression(name, shape.types[name]) for name in shape.schema.names)
        database, name = shape.table.split(".", 1)
        sql = f"SELECT {columns} FROM {quote_name(database)}.{quote_name(name)}"
        key = self._ordered_key(shape)
        if key:
            where = f" WHERE {_behind(key, after)}" if after else ""
            sql += f" FORCE INDEX (PRIMARY){where} ORDER BY {', '.join(map(quote_name, key))}"
        reader = _ResultReader(self.connection, sql, len(shape.schema.names))
        for data, starts in reader.batches(most):
            yield _decode(shape, data, starts, key)

    def _ordered_key(self, shape: TableShape) -> tuple[str, ...]:
        """Returns the primary key if it is captured, and its order is that of comparisons in SQL."""
        _, key = read_shape(self.connection, shape.table)
        return key if all(_ORDERED.match(shape.types.get(one, "")) for one in key) else ()

    def close(self) -> None:
        """End the view."""
        self.connection.close()


def _expression(name: str, kind: str) -> str:
    """Returns what to select: floats are printed with six digits unless they are doubles, bits as bytes."""
    column = quote_name(name)
    if kind in ("float", "double"):
        return f"CAST({column} AS DOUBLE)"
    if kind.startswith("bit("):
        return f"CAST({column} AS UNSIGNED)"
    return column


class _ResultReader:
    """Rows of a result as they arrive, without Python objects for them."""

    def __init__(self, connection: Connection, sql: str, columns: int) -> None:
        self._connection = connection
        driver: Any = connection.driver
        self._file = driver._rfile
        with connection.translate_errors(sql):
            driver._execute_command(3, sql)
            count = driver._read_packet().read_length_encoded_integer()
            assert count == columns
            for _ in range(count + 1):  # and the end of the columns
                driver._read_packet()

    def batches(self, most: int) -> Iterator[tuple[bytes, np.ndarray[Any, Any]]]:
        """Returns bytes and where the rows in them begin."""
        data, at, done = bytearray(), 0, False
        starts: list[int] = []
        while not done:
            data += self._receive()
            full = True
            while full and not done:
                at, done = self._split(data, at, starts, most)
                full = len(starts) >= most
                if done or full or len(data) >= _BATCH_BYTES:
                    if starts:
                        yield bytes(data[:at]), np.array(starts, np.int64)
                    data, starts, at = data[at:], [], 0

    def _receive(self) -> bytes:
        try:
            piece: bytes = self._file.read1(_BATCH_BYTES)
        except OSError as error:
            raise UnreachableError(f"{self._connection.address.url} does not answer", detail=str(error)) from None
        if not piece:
            raise UnreachableError(f"{self._connection.address.url} ended the snapshot")
        return piece

    def _split(self, data: bytearray, at: int, starts: list[int], most: int) -> tuple[int, bool]:
        """Add where rows begin; returns the end of the last whole row, and whether the table ends there."""
        size = len(data)
        while size - at >= 4 and len(starts) < most:
            length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            if length == _MAX_PACKET:
                raise NotCapturableError("a row of the snapshot is larger than 16 MB", fix="capture fewer columns")
            if at + 4 + length > size:
                break
            first = data[at + 4]
            if first == 0xFF:
                raise self._failed(bytes(data[at + 4 : at + 4 + length]))
            if first == 0xFE and length < 9:
                return at, True
            starts.append(at + 4)
            at += 4 + length
        return at, False

    def _failed(self, packet: bytes) -> Exception:
        number = struct.unpack_from("<H", packet, 1)[0]
        error = self._connection.errors.OperationalError(number, packet[9:].decode("utf-8", "replace"))
        return self._connection.translate(error, "read a snapshot")


def _behind(key: tuple[str, ...], after: tuple[str, ...]) -> str:
    """Returns the condition for rows behind a key; comparisons of whole keys would not use the index.

    Example:
        >>> _behind(("a", "b"), ("1", "'x'"))
        "`a` >= 1 AND (`a` > 1 OR (`b` > 'x'))"
    """
    column, value = quote_name(key[0]), after[0]
    if len(key) == 1:
        return f"{column} > {value}"
    return f"{column} >= {value} AND ({column} > {value} OR ({_behind(key[1:], after[1:])}))"


def _literal(value: bytes, kind: str) -> str:
    if kind.startswith(("binary", "blob")):
        return f"x'{value.hex()}'"
    return value.decode() if _NUMBER.match(kind) else quote_text(value.decode())


def _decode(shape: TableShape, data: bytes, starts: np.ndarray[Any, Any], key: tuple[str, ...]) -> Rows:
    padded = np.frombuffer(data + bytes(16), np.uint8)
    cursor = starts
    columns = []
    bad: dict[int, tuple[str, str]] = {}
    texts = {}
    for field in shape.schema:
        at, length, valid, cursor = _next_value(padded, cursor)
        raw = binary_array(pa.binary(), padded, at, length, None if valid.all() else valid)
        texts[field.name] = raw
        column, wrong = _cast(raw, shape.types[field.name])
        bad |= {row: (field.name, text) for row, text in wrong.items()}
        columns.append(column)
    rows = pa.StructArray.from_arrays(columns, fields=[pa.field(one.name, one.type) for one in shape.schema])
    last = tuple(_literal(texts[name][-1].as_py(), shape.types[name]) for name in key)
    if not bad:
        return Rows(rows, [], last)
    found = [
        BadSnapshotRow(name, text, {one: _shown(values[row].as_py()) for one, values in texts.items()})
        for row, (name, text) in sorted(bad.items())
    ]
    keep = np.ones(len(rows), bool)
    keep[list(bad)] = False
    return Rows(rows.filter(pa.array(keep.tolist())), found, last)


def _shown(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")


def _next_value(data: np.ndarray[Any, Any], cursor: np.ndarray[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Returns place, length and validity of the next value of each row, and where the one after it begins."""
    first = data[cursor].astype(np.int64)
    valid = first != 0xFB
    length = np.where(valid, first, 0)
    at = cursor + 1
    if bool((first > 0xFB).any()):
        for mark, size in ((0xFC, 2), (0xFD, 3)):
            rows = first == mark
            places = cursor[rows]
            length[rows] = sum(data[places + 1 + n].astype(np.int64) << 8 * n for n in range(size))
            at[rows] += size
    return at, length, valid, at + length


def _cast(raw: pa.Array, kind: str) -> tuple[pa.Array, dict[int, str]]:
    """Returns the column in its Arrow type, and the rows whose text has no value in it."""
    wanted = arrow_type(kind)
    if wanted == pa.binary():
        return raw, {}
    text = raw.cast(pa.string())
    if wanted == pa.string():
        return text, {}
    if wanted == pa.bool_():
        return pc.not_equal(text, "0"), {}
    wrong: dict[int, str] = {}
    if kind == "date" or kind.startswith("timestamp"):
        # Zero dates, and with ALLOW_INVALID_DATES also 31 February.
        zero = pc.match_substring_regex(text, r"^0000|-00") if kind != "date" else _not_a_date(text)
        rows = pc.indices_nonzero(zero.fill_null(False)).to_pylist()
        wrong = {row: text[row].as_py() for row in rows}
        text = pc.if_else(zero, pa.scalar(None, pa.string()), text)
    if pa.types.is_timestamp(wanted):
        return text.cast(pa.timestamp("us")).cast(wanted), wrong
    return text.cast(wanted), wrong


def _not_a_date(text: pa.Array) -> pa.Array:
    parsed = pc.strptime(text, format="%Y-%m-%d", unit="s", error_is_null=True)
    zero = pc.match_substring_regex(text, r"^0000|-00")
    back = pc.equal(pc.strftime(parsed, format="%Y-%m-%d"), text)
    return pc.or_(zero, pc.invert(back.fill_null(False)))
