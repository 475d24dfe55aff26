"""Rows of a view on their way to a reader, with what is known about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.events import values_of
from headwater.store import ViewTable

__all__ = ["Found", "ViewInfo", "open_rows", "rows_of"]

_NOTE = b"headwater.view"


@dataclass(frozen=True)
class ViewInfo:
    """One view in the list of all.

    Attributes:
        name: Its name.
        kind: "view", or "system" for what the system tells of itself.
        version: How often it was built.
        key: The columns that identify a row.
        schema: Its columns.
        window: The column with windows, if it has one.
        rows: How many there are; None when that is not counted.
        watermark: Event time up to which it is complete, in microseconds since 1970.
        changes_topic: The topic with all of its changes.
    """

    name: str
    kind: Literal["view", "system"]
    version: int
    key: tuple[str, ...]
    schema: pa.Schema
    window: str | None
    rows: int | None
    watermark: int | None
    changes_topic: str | None


@dataclass(frozen=True)
class Found:
    """Rows of a view.

    Attributes:
        definition: The view they are of.
        table: The rows, with exactly the view's columns.
        watermark: Event time up to which the view is complete, in microseconds since 1970.
        position: How far it had read its topics, as text.
        windows_known: Whether `watermark` tells which windows are open; it does not for a far past.

    Example:
        >>> view = ViewTable("totals", 1, pa.schema([("k", pa.string())]), ("k",))
        >>> Found(view, pa.table({"k": ["a"]}), None, "").rows()
        [{'k': 'a'}]
    """

    definition: ViewTable
    table: pa.Table
    watermark: int | None
    position: str
    windows_known: bool = True

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dicts of Python values."""
        return rows_of(self.table)

    @property
    def open(self) -> list[bool | None]:
        """For each row whether its window is still open; None where there is nothing that closes."""
        if not self.windows_known:
            return [None] * self.table.num_rows
        found: list[bool | None] = open_rows(self.definition, self.table, self.watermark).to_pylist()
        return found

    def noted(self) -> pa.Table:
        """The table with all the rest in the metadata of its schema, as Arrow and Parquet carry it."""
        note = {
            "name": self.definition.name,
            "version": self.definition.version,
            "key": self.definition.key,
            "window": self.definition.window,
            "watermark": self.watermark,
            "position": self.position,
            "windows_known": self.windows_known,
        }
        kept = self.table.schema.metadata or {}
        return self.table.replace_schema_metadata({**kept, _NOTE: msgspec.json.encode(note)})

    @classmethod
    def from_noted(cls, table: pa.Table) -> Found:
        """What `noted` gave."""
        kept = dict(table.schema.metadata or {})
        note = msgspec.json.decode(kept.pop(_NOTE))
        plain = table.replace_schema_metadata(kept or None)
        definition = ViewTable(
            note["name"], note["version"], plain.schema, tuple(note["key"]), note["window"]
        )
        return cls(definition, plain, note["watermark"], note["position"], note["windows_known"])


def open_rows(definition: ViewTable, table: pa.Table, watermark: int | None) -> pa.Array:
    """For each row whether its window ends after the watermark; null where there is no window.

    Example:
        >>> open_rows(ViewTable("v", 1, pa.schema([("k", pa.string())]), ("k",)), pa.table({"k": ["a"]}), 5).to_pylist()
        [None]
    """
    if definition.window is None:
        return pa.nulls(table.num_rows, pa.bool_())
    ends = pc.struct_field(table.column(definition.window).combine_chunks(), "end")
    micros = ends.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    if watermark is None:
        return pc.if_else(pc.is_valid(micros), True, pa.scalar(None, pa.bool_()))
    return pc.greater(micros, pa.scalar(watermark, pa.int64()))


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table as dicts of Python values."""
    columns = [values_of(column.combine_chunks()) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
