"""Loads the rows of tables chunk by chunk, between the groups of changes that `poll` delivers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.capture.postgres.catalog import Catalog, CatalogTable, Layout
from headwater.capture.postgres.changes import snapshot_batch
from headwater.capture.postgres.connection import Connection, Server
from headwater.capture.postgres.log.captured import CapturedTable
from headwater.capture.postgres.log.snapshot import Chunk, ChunkReader, Visibility, next_transaction_id
from headwater.capture.source import ChangeBatch
from headwater.errors import NotCapturableError

__all__ = ["Loader", "Step"]

_BARRIER_EVERY: Final = 0.02  # seconds between looks at running transactions
_LONGEST: Final = 30.0  # seconds that one database snapshot is held, so that the server can clean up
_MAX_AGAIN: Final = 1_000  # keys in one statement


@dataclass(frozen=True)
class Step:
    """Rows that were loaded.

    Attributes:
        layout: The layout of the table at that time.
        texts: The texts of each captured column.
        at: The time of the snapshot.
        done: Whether these are the last rows of the table.
    """

    layout: Layout
    texts: Sequence[pa.Array]
    at: int
    done: bool

    def build(self, layout: Layout) -> tuple[ChangeBatch | None, list[str]]:
        """Returns the rows as a batch, and those that do not fit as JSON."""
        if not len(self.texts[0]):
            return None, []
        return snapshot_batch(layout, self.texts, self.at)


class Loader:
    """Loads one table at a time.

    Args:
        server: Where to connect.
        sql: A connection for queries.
        chunk_rows: The most rows of a chunk.
    """

    def __init__(self, server: Server, sql: Connection, chunk_rows: int) -> None:
        self._server = server
        self._sql = sql
        self._chunk_rows = chunk_rows
        self._reader: ChunkReader | None = None
        self._chunk: Chunk | None = None
        self._chunk_rows_read = 0
        self._chunk_began = 0.0
        self._again: set[tuple[bytes | None, ...]] = set()  # keys to read again
        self._reading_again = False
        self._behind_range = False  # whether all of the table's range was read
        self._barrier: int | None = None
        self._barrier_at = 0.0
        self._locked = False

    @property
    def waiting_for(self) -> str:
        """What the next chunk waits for."""
        if self._barrier is not None:
            return "transactions that were running when the snapshot was asked for"
        return "a lock of the table" if self._locked else ""

    def require_barrier(self) -> None:
        """Wait with the next chunk until all transactions that are running now have ended.

        Their changes may have been delivered before keys were noted, or may not be published; a snapshot that contains
        them needs neither.
        """
        self._barrier = next_transaction_id(self._sql)

    def ready(self, position: int) -> bool:
        """Whether rows can be read without waiting for the stream."""
        return self._barrier is None and self._chunk is not None and position >= self._chunk.horizon

    def step(self, table: CapturedTable, catalog: Catalog, publication: str, position: int) -> Step | None:
        """Returns the next rows of a table; None if it waits for the stream or for transactions.

        Raises:
            NotCapturableError: The table is gone.
        """
        if self._barrier is not None and not self._passed_barrier():
            return None
        if self._chunk is None:
            self._begin(table, catalog, publication)
        chunk, reader = self._chunk, self._reader
        if chunk is None or reader is None or position < chunk.horizon:
            return None
        texts, ended = reader.read(chunk)
        count = len(texts[0])
        self._chunk_rows_read += count
        kept = self._leave_out_changed(table, chunk, texts)
        if not self._reading_again:
            table.rows_done += count
            # Without an order there is no place to resume: the table is read again.
            if count and chunk.limit:
                table.last = [_last_text(texts, chunk.layout, name) for name in chunk.layout.shape.key]
        done = self._end_of_chunk(chunk) if ended else self._end_if_long(chunk)
        return Step(chunk.layout, kept, chunk.at, done)

    def cancel(self) -> None:
        """Forget the present chunk."""
        if self._reader is not None and self._chunk is not None:
            self._reader.cancel()
        self._chunk = None
        self._again, self._reading_again, self._behind_range = set(), False, False

    def close(self) -> None:
        """Close the connection."""
        if self._reader is not None:
            self._reader.close()

    def _passed_barrier(self) -> bool:
        now = time.monotonic()
        if now - self._barrier_at < _BARRIER_EVERY:
            return False
        self._barrier_at = now
        row = self._sql.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        assert self._barrier is not None
        found = Visibility.parse(row[0])
        # Nobody runs, and an id that was handed out has ended: `xmin` is then the next id that will be used.
        if found.xmin < self._barrier and not self._all_ended(found):
            return False
        self._barrier = None
        return True

    def _all_ended(self, found: Visibility) -> bool:
        return not found.running and next_transaction_id(self._sql) == found.xmax

    def _begin(self, table: CapturedTable, catalog: Catalog, publication: str) -> None:
        found = catalog.table(table.name)
        if found is None or found.oid != table.oid:
            raise NotCapturableError("it was dropped", table=table.name)
        published = catalog.publication(publication)
        key = found.key_of(table.table)
        ordered = set(key) == set(found.primary_key) or key in found.unique_keys
        table.rows_total = max(table.rows_total, found.estimate, table.rows_done)
        if self._reader is None:
            self._reader = ChunkReader(self._server)
        self._reading_again = bool(self._again)
        again = sorted(self._again, key=repr)[:_MAX_AGAIN]

        def layout(now: CatalogTable) -> Layout:
            return catalog.layout(table.table, now, published, table.version)

        limit = 0 if again or not ordered else self._chunk_rows
        after = table.last if ordered else None
        self._chunk = self._reader.begin(found, layout, after=after, limit=limit, keys=again)
        self._locked = self._chunk is None
        if not self._locked:
            self._again -= set(again)
        self._chunk_rows_read, self._chunk_began = 0, time.monotonic()

    def _leave_out_changed(self, table: CapturedTable, chunk: Chunk, texts: list[pa.Array]) -> list[pa.Array]:
        """Leave out rows with a delivered change that the snapshot does not contain."""
        changed, incomplete, truncated = table.keys.unseen(chunk.visibility)
        if truncated:
            return [column[:0] for column in texts]
        if not changed or not len(texts[0]):
            return texts
        names = chunk.layout.shape.schema.names
        places = [names.index(name) for name in chunk.layout.shape.key]
        keys = list(zip(*(texts[place].to_pylist() for place in places), strict=True))
        kept = np.array([row for row, key in enumerate(keys) if key not in changed], np.int64)
        # The change lacks values that only the table has: they come with a snapshot that contains the change.
        self._again.update(key for key in keys if key in incomplete)
        return texts if len(kept) == len(keys) else [column.take(pa.array(kept)) for column in texts]

    def _end_of_chunk(self, chunk: Chunk) -> bool:
        """End a chunk; returns whether it was the last of the table."""
        if not self._reading_again:
            self._behind_range = chunk.limit == 0 or self._chunk_rows_read < chunk.limit
        self._chunk = None
        if self._again or not self._behind_range:
            return False
        self._behind_range = False
        return True

    def _end_if_long(self, chunk: Chunk) -> bool:
        assert self._reader is not None
        if chunk.limit and time.monotonic() - self._chunk_began > _LONGEST:
            self._reader.cancel()
            self._chunk = None
        return False


def _last_text(texts: Sequence[pa.Array], layout: Layout, name: str) -> str | None:
    value = texts[layout.shape.schema.names.index(name)][-1].as_py()
    return None if value is None else value.decode()
