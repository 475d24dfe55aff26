"""Rows of recorded changes, read back from the table of the triggers as batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa

from headwater.capture.postgres.catalog import CatalogTable, Layout
from headwater.capture.postgres.changes import Places, change_batch
from headwater.capture.postgres.column_types import parse_array
from headwater.capture.postgres.connection import Connection
from headwater.capture.postgres.pgoutput_columns import RowColumns
from headwater.capture.postgres.triggers.trigger_outbox import qualify
from headwater.capture.source import ChangeBatch
from headwater.events.change import OPS
from headwater.sql.identifiers import quote

__all__ = ["ChangeHead", "OutboxRows", "ShapeChanged"]

# Operations and old rows as pgoutput names them, by the index in `OPS`.
_KINDS: Final = np.frombuffer(b"?IUD", np.uint8)
_OLD_KINDS: Final = np.frombuffer(b"\0\0OO", np.uint8)


class ShapeChanged(Exception):
    """A row has a column that the known layout of its table has not."""


@dataclass(frozen=True)
class ChangeHead:
    """A change without its rows."""

    sequence: int
    table: int
    op: int
    size: int
    transaction: int
    at: int


class OutboxRows:
    """Reads rows of changes as the server prints them.

    Args:
        sql: A connection, in the transaction of the read.
        changes: The table of changes, as SQL.
    """

    def __init__(self, sql: Connection, changes: str) -> None:
        self._sql = sql
        self._changes = changes
        self._ignored: set[tuple[str, str]] = set()  # columns of rows that were dropped since

    def forget_columns(self, table: str) -> None:
        """Note that a table has a new layout."""
        self._ignored = {one for one in self._ignored if one[0] != table}

    def read_batch(
        self, found: CatalogTable, layout: Layout, heads: list[ChangeHead], places: Places, *, loading: bool
    ) -> tuple[ChangeBatch | None, list[str]]:
        """Returns the rows of changes of one table as a batch, and those that its types cannot hold.

        Raises:
            ShapeChanged: A row has a column that the layout has not.
        """
        refused: list[str] = []
        kept, texts = self._fetch(found, layout, [head.sequence for head in heads], refused)
        if not kept:
            return None, refused
        wanted = {head.sequence: place for place, head in enumerate(heads)}
        chosen = np.array([wanted[one] for one in kept])
        width = len(layout.names)
        ops = np.array([heads[place].op for place in chosen.tolist()])
        keys, columns = texts[0], [pa.array(one, pa.binary()) for one in texts[1:]]
        rows = RowColumns(
            _KINDS[ops],
            _OLD_KINDS[ops],
            columns[width:],
            columns[:width],
            _find_unchanged(layout, keys, ops) if loading else [None] * width,
        )
        batch, raw = change_batch(layout, rows, places.select(chosen))
        return batch, refused + raw

    def _fetch(
        self, found: CatalogTable, layout: Layout, sequences: list[int], refused: list[str]
    ) -> tuple[list[int], list[Any]]:
        """Returns the texts of rows as the server prints them; rows that it cannot read again are refused."""
        table = qualify(found.schema, found.relation)
        columns = ", ".join(f"{row}.{quote(one)}" for row in ("a", "b") for one in layout.names)
        listed = ",".join(map(str, sequences))
        statement = (
            f"SELECT c.seq, array(SELECT json_object_keys(coalesce(c.after, c.before)) ORDER BY 1)::text, {columns} "
            f"FROM {self._changes} c, LATERAL json_populate_record(null::{table}, c.after) a, "
            f"LATERAL json_populate_record(null::{table}, c.before) b WHERE c.seq = ANY('{{{listed}}}') ORDER BY c.seq"
        )
        try:
            with self._sql.transaction():
                result = self._sql.execute(statement.encode()).pgresult
        except psycopg.DataError:
            if len(sequences) > 1:
                return self._fetch_halves(found, layout, sequences, refused)
            refused.append(self._describe(sequences[0]))
            return [], []
        assert result is not None
        rows, width = range(result.ntuples), result.nfields
        values = [[result.get_value(row, column) for row in rows] for column in range(width)]
        self._check_names(found, layout, set(values[1]))
        return [int(one or 0) for one in values[0]], values[1:]

    def _fetch_halves(
        self, found: CatalogTable, layout: Layout, sequences: list[int], refused: list[str]
    ) -> tuple[list[int], list[Any]]:
        middle = len(sequences) // 2
        (first, one), (second, two) = (
            self._fetch(found, layout, half, refused) for half in (sequences[:middle], sequences[middle:])
        )
        if not first or not second:
            return first or second, one or two
        return first + second, [left + right for left, right in zip(one, two, strict=True)]

    def _check_names(self, found: CatalogTable, layout: Layout, lists: set[Any]) -> None:
        known = {*layout.names, *(one.name for one in found.columns)}
        unknown = {(found.name, one) for text in lists for one in _parse_names(text)} - {
            (found.name, one) for one in known
        }
        if unknown - self._ignored:
            self._ignored |= unknown  # one that the catalog does not have either was dropped since
            raise ShapeChanged

    def _describe(self, sequence: int) -> str:
        statement = (
            f"SELECT json_build_object('op', op, 'before', before, 'after', after)::text FROM {self._changes} "
            f"WHERE seq = {sequence}"
        )
        row = self._sql.execute(statement.encode()).fetchone()
        return str(row[0]) if row else ""


def _find_unchanged(layout: Layout, keys: list[Any], ops: Any) -> list[Any]:
    """Returns for each column which rows were recorded before it was there, and so say nothing of it.

    Where a column was added that is NULL in all rows of before, they do say it.
    """
    if not keys:
        return [None] * len(layout.names)
    lists = {text: set(_parse_names(text)) for text in set(keys)}
    found = []
    for column in layout.names:
        lacking = np.array([column not in lists[text] for text in keys]) & (ops != OPS.index("delete"))
        found.append(lacking if lacking.any() else None)
    return found


def _parse_names(text: Any) -> list[str]:
    """Returns the names in the text of an array."""
    return [one or "" for one in parse_array(text.decode() if isinstance(text, bytes) else text)]
