"""Reads the rows of a table beside the stream of its changes, exactly: chunks by key, each in one database snapshot.

A chunk is delivered when the stream has passed the position at which its snapshot was taken, so that every change the
snapshot contains has been delivered before. Rows with a delivered change that the snapshot does not contain are left
out: the change has the newer row. Which transactions a snapshot contains is decided by their ids; the order of commits
in the log is not the order in which they become visible.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.csv as pacsv
from psycopg import pq

from headwater.capture.postgres.catalog import Catalog, CatalogTable, Layout
from headwater.capture.postgres.connection import Connection, Server, parse_lsn, quote_text
from headwater.errors import NotCapturableError, UnreachableError
from headwater.sql.identifiers import quote

__all__ = ["Chunk", "ChunkReader", "DeliveredKeys", "Visibility", "insert_position", "next_transaction_id"]

KeyTexts = tuple[bytes | None, ...]
_PIECE_ROWS: Final = 20_000
_PIECE_BYTES: Final = 4 << 20
_STALL: Final = 60.0  # seconds without a row after which the server is taken as lost


@dataclass(frozen=True)
class Visibility:
    """Which transactions a database snapshot contains.

    Example:
        >>> snapshot = Visibility.parse("100:105:100,103")
        >>> [snapshot.contains(one) for one in (99, 100, 101, 103, 105)]
        [True, False, True, False, False]
    """

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Visibility:
        """Returns the visibility of a `pg_snapshot`."""
        low, high, running = text.split(":")
        return cls(int(low), int(high), frozenset(int(one) for one in running.split(",") if one))

    def contains(self, xid: int) -> bool:
        """Whether the snapshot contains a transaction, given by the 32 bits of its id that the stream has.

        Example:
            >>> snapshot = Visibility.parse("4294967300:4294967310:")  # the next id is 14 in 32 bits
            >>> snapshot.contains(20), snapshot.contains(3), snapshot.contains(0xFFFFFFFF)
            (False, True, True)
        """
        full = (self.xmax & ~0xFFFFFFFF) | (xid & 0xFFFFFFFF)
        if full - self.xmax > 1 << 31:
            full -= 1 << 32
        elif self.xmax - full > 1 << 31:
            full += 1 << 32
        return full < self.xmin or (full < self.xmax and full not in self.running)


def next_transaction_id(connection: Connection) -> int:
    """Returns the id that the next transaction will get, without using one up."""
    statement = "SELECT age('3'::xid)::bigint, pg_current_snapshot()::text"
    row = connection.execute(statement).fetchone()
    assert row is not None
    low = (int(row[0]) + 3) & 0xFFFFFFFF
    xmax = Visibility.parse(row[1]).xmax
    full = (xmax & ~0xFFFFFFFF) | low
    return full if full >= xmax else full + (1 << 32)


@dataclass
class DeliveredKeys:
    """The keys of delivered changes of one table, by transaction, as long as a snapshot may not contain them."""

    transactions: dict[int, set[KeyTexts]] = field(default_factory=dict)
    incomplete: dict[int, set[KeyTexts]] = field(default_factory=dict)  # changes without some values
    truncates: set[int] = field(default_factory=set)

    def add(self, xid: int, keys: Iterable[KeyTexts]) -> None:
        """Note the keys of changes of a transaction."""
        self.transactions.setdefault(xid, set()).update(keys)

    def unseen(self, snapshot: Visibility) -> tuple[set[KeyTexts], set[KeyTexts], bool]:
        """Returns the keys with a change that the snapshot does not contain; forgets the others.

        The second set are those whose change lacks values, the flag says whether the table was truncated.
        """
        for kept in (self.transactions, self.incomplete):
            for xid in [one for one in kept if snapshot.contains(one)]:
                del kept[xid]
        self.truncates = {one for one in self.truncates if not snapshot.contains(one)}
        return set().union(*self.transactions.values()), set().union(*self.incomplete.values()), bool(self.truncates)


@dataclass(frozen=True)
class Chunk:
    """A chunk that is being read.

    Attributes:
        layout: The layout of the table in its snapshot.
        visibility: Which transactions the snapshot contains.
        horizon: The position that the stream must have passed.
        at: The time of the snapshot, in microseconds.
        limit: The most rows it has; 0: all.
    """

    layout: Layout
    visibility: Visibility
    horizon: int
    at: int
    limit: int


class ChunkReader:
    """Reads chunks over a connection of its own.

    Args:
        server: Where to connect.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = server.connect()
        self._catalog = Catalog(self._connection)
        self._poller = select.poll()
        self._poller.register(self._connection.pgconn.socket, select.POLLIN)
        self._copying = False

    def begin(
        self,
        found: CatalogTable,
        layout: Any,
        *,
        after: Sequence[str | None] | None,
        limit: int,
        keys: Sequence[KeyTexts] = (),
    ) -> Chunk | None:
        """Take a snapshot and start to read; returns None if the table is locked by a change of its columns.

        Args:
            found: The table.
            layout: Returns its layout from what the catalog says in the snapshot.
            after: The key behind which the chunk begins; None: the first.
            limit: The most rows; 0: all rows, in no order.
            keys: Read only the rows with these keys.

        Raises:
            NotCapturableError: The table is gone.
        """
        table = f"{quote(found.schema)}.{quote(found.relation)}"
        source = table if found.partitioned else f"ONLY {table}"
        try:
            # The lock comes before the snapshot: a table that was rewritten after a snapshot would seem empty.
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            self._connection.execute("SET LOCAL lock_timeout = '1s'")
            self._connection.execute(f"LOCK TABLE {source} IN ACCESS SHARE MODE".encode())
            row = self._connection.execute(
                "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text,"
                " (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
            ).fetchone()
            assert row is not None
            now = self._catalog.table(found.name)
            if now is None or now.oid != found.oid:
                raise psycopg.errors.UndefinedTable(f"the table {found.name} is gone")
            made: Layout = layout(now)
            self._start_copy(_select(source, made, now, after, limit, keys))
        except psycopg.errors.LockNotAvailable:
            self.cancel()
            return None
        except psycopg.errors.UndefinedTable as error:
            self.cancel()
            fix = "headwater capture check URL"
            raise NotCapturableError(f"the table {found.name} is gone", detail=str(error), fix=fix) from None
        except psycopg.Error as error:
            self.cancel()
            raise self._server.translate(error, f"the rows of {found.name} cannot be read") from None
        return Chunk(made, Visibility.parse(row[0]), insert_position(row[1]), int(row[2]), limit)

    def read(self, chunk: Chunk) -> tuple[list[pa.Array], bool]:
        """Returns the next rows as one column of texts for each captured column, and whether they are the last."""
        lines: list[memoryview | bytes] = []
        size, ended = 0, False
        while len(lines) < _PIECE_ROWS and size < _PIECE_BYTES:
            line = self._read_line()
            if line is None:
                ended = True
                break
            lines.append(line)
            size += len(line)
        if ended:
            self._end()
        return _parse(b"".join(lines), len(chunk.layout.wanted), len(lines)), ended

    def cancel(self) -> None:
        """End the transaction of a chunk, whatever its state."""
        with contextlib.suppress(psycopg.Error):
            if self._copying:
                self._connection.close()
                self._connection = self._server.connect()
                self._catalog = Catalog(self._connection)
                self._poller = select.poll()
                self._poller.register(self._connection.pgconn.socket, select.POLLIN)
                self._copying = False
            else:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def _start_copy(self, query: str) -> None:
        pgconn = self._connection.pgconn
        result = pgconn.exec_(f"COPY ({query}) TO STDOUT (FORMAT csv)".encode())
        if result.status != pq.ExecStatus.COPY_OUT:
            raise self._server.result_error(self._connection, result, "the rows of a table cannot be read")
        self._copying = True

    def _read_line(self) -> memoryview | bytes | None:
        pgconn = self._connection.pgconn
        while True:
            try:
                size, line = pgconn.get_copy_data(1)
                if size > 0:
                    return line
                if size < 0:
                    return None
                if not self._poller.poll(_STALL * 1000):
                    what = "the database sends no more rows of a snapshot"
                    raise UnreachableError(what, detail=self._server.display_url)
                pgconn.consume_input()
            except psycopg.Error as error:
                raise self._server.translate(error, "the rows of a table cannot be read") from None

    def _end(self) -> None:
        pgconn = self._connection.pgconn
        result = pgconn.get_result()
        if result is not None and result.status != pq.ExecStatus.COMMAND_OK:
            raise self._server.result_error(self._connection, result, "the rows of a table cannot be read")
        while pgconn.get_result() is not None:
            pass
        self._copying = False
        self._connection.execute("COMMIT")


def insert_position(text: str) -> int:
    """Returns a position of the log that a stream reaches: the server reports one behind the header of an empty page.

    Example:
        >>> hex(insert_position("0/2000028")), hex(insert_position("0/2000030"))
        ('0x2000000', '0x2000030')
    """
    position = parse_lsn(text)
    offset = position % 8192
    return position - offset if offset in (24, 40) else position


def _select(
    source: str,
    layout: Layout,
    found: CatalogTable,
    after: Sequence[str | None] | None,
    limit: int,
    keys: Sequence[KeyTexts],
) -> str:
    columns = ", ".join(quote(layout.names[place]) for place in layout.wanted)
    query = f"SELECT {columns} FROM {source}"
    types = {one.name: one.type_text for one in found.columns}
    names = ", ".join(quote(name) for name in layout.shape.key)

    def row(texts: Sequence[str | None]) -> str:
        pairs = zip(layout.shape.key, texts, strict=True)
        return ", ".join("NULL" if text is None else f"{quote_text(text)}::{types[name]}" for name, text in pairs)

    if keys:
        decoded = [[None if text is None else text.decode() for text in key] for key in keys]
        return f"{query} WHERE ({names}) IN ({', '.join(f'({row(one)})' for one in decoded)})"
    if after is not None:
        query += f" WHERE ({names}) > ({row(after)})"
    return f"{query} ORDER BY {names} LIMIT {limit}" if limit else query


def _parse(text: bytes, width: int, count: int) -> list[pa.Array]:
    """Returns the columns of CSV in which NULL is nothing and empty text is quoted."""
    if not count:
        return [pa.nulls(0, pa.binary()) for _ in range(width)]
    names = [str(number) for number in range(width)]
    table = pacsv.read_csv(
        pa.BufferReader(text),
        read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pacsv.ConvertOptions(
            column_types={name: pa.binary() for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,
        ),
    )
    return [table.column(number).combine_chunks() for number in range(width)]
