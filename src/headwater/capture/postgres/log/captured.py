"""A captured table: its columns, and how far its first rows are loaded; as state in memory and in a resume point."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.capture.postgres.catalog import Layout
from headwater.capture.postgres.changes import Places
from headwater.capture.postgres.log.snapshot import DeliveredKeys
from headwater.capture.postgres.pgoutput_columns import RowColumns
from headwater.capture.source import SourceTable

__all__ = ["CapturedTable", "why_gone"]


@dataclass
class CapturedTable:
    """A table that is captured.

    Attributes:
        table: How the user declared it.
        oid: Its number in the catalog.
        member: The number of its entry in the publication.
        version: The version of its shape.
        fingerprint: That of its layout.
        layout: The layout of the last announced shape; None after a restart, until the stream or a chunk brings it.
        wire: The layout of the rows in the stream; None until the stream announces the table.
        loading: Whether its rows are being loaded.
        last: The key of the last loaded row.
        rows_done: How many rows are loaded.
        rows_total: How many rows there are about.
        keys: The keys of changes that were delivered while it is loading.
        gone: Why it is no longer captured; "" if it is.
    """

    table: SourceTable
    oid: int
    member: int
    version: int = 0
    fingerprint: str = ""
    layout: Layout | None = None
    wire: Layout | None = None
    loading: bool = False
    last: list[str | None] | None = None
    rows_done: int = 0
    rows_total: int = 0
    keys: DeliveredKeys = field(default_factory=DeliveredKeys)
    gone: str = ""

    @property
    def name(self) -> str:
        """Its name with the schema."""
        return self.table.table

    @property
    def current(self) -> Layout:
        """The layout of the last announced shape."""
        assert self.layout is not None
        return self.layout

    def begin_load(self) -> None:
        """Load its rows from the first on."""
        self.loading, self.last, self.rows_done, self.keys = True, None, 0, DeliveredKeys()

    def end_load(self) -> None:
        """Its rows are loaded, or are not wanted any more."""
        self.loading, self.last, self.keys = False, None, DeliveredKeys()

    def note_changes(self, rows: RowColumns, places: Places) -> None:
        """Note the keys of delivered changes, old and new ones."""
        assert self.wire is not None
        positions = self.wire.key_positions
        lacking = [flags for place in self.wire.wanted if (flags := rows.unchanged[place]) is not None]
        incomplete = np.logical_or.reduce(lacking) if lacking else None
        for xid in np.unique(places.transaction).tolist():
            chosen = np.flatnonzero(places.transaction == xid)
            for columns in (rows.new, rows.old):
                if columns:
                    self.keys.add(xid, _keys(columns, positions, chosen))
            if incomplete is not None and incomplete[chosen].any():
                wanted = chosen[incomplete[chosen]]
                self.keys.incomplete.setdefault(xid, set()).update(_keys(rows.new, positions, wanted))

    def to_json(self) -> dict[str, Any]:
        """Returns its part of a resume point."""
        entry: dict[str, Any] = {
            "oid": self.oid,
            "member": self.member,
            "version": self.version,
            "shape": self.fingerprint,
            "snapshot": {"last": self.last, "rows": self.rows_done} if self.loading else "done",
        }
        if self.gone:
            entry["gone"] = self.gone
        return entry

    @classmethod
    def from_json(cls, table: SourceTable, entry: dict[str, Any]) -> CapturedTable:
        """Returns the state that a resume point has."""
        snapshot = entry["snapshot"]
        loading = snapshot != "done"
        return cls(
            table,
            entry["oid"],
            entry["member"],
            entry["version"],
            entry["shape"],
            loading=loading,
            last=snapshot["last"] if loading else None,
            rows_done=snapshot["rows"] if loading else 0,
            gone=entry.get("gone", ""),
        )


def _keys(columns: list[pa.Array], positions: tuple[int, ...], rows: Any) -> list[tuple[bytes | None, ...]]:
    chosen = pa.array(rows)
    return list(zip(*(columns[place].take(chosen).to_pylist() for place in positions), strict=True))


def why_gone(table: CapturedTable, exists: bool, member: bool) -> str:
    """Returns why changes of a table can no longer be delivered: whether it exists, and is in the publication."""
    if not exists:
        return "it was dropped or renamed"
    return (
        "it was dropped or left out of the publication, and made or added again"
        if member
        else ("it is no longer in the publication, or it was dropped and made again")
    )
