"""The changelog of a view: its topic, the changes of a batch as one Arrow table, and their form in the outbox."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headwater.store.commit.commit import ViewTable

__all__ = ["ChangeSet", "change_schema", "changelog_topic", "pack", "parse_changelog_topic", "unpack"]

_TIMESTAMP = pa.timestamp("us", "UTC")
_TOPIC = re.compile(r"(.+?)\.changes(?:\.(\d+))?")
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


def changelog_topic(view: str, version: int = 1) -> str:
    """Returns the topic with every change of a version of a view.

    Example:
        >>> changelog_topic("revenue"), changelog_topic("revenue", 2)
        ('revenue.changes', 'revenue.changes.2')
    """
    return f"{view}.changes" if version == 1 else f"{view}.changes.{version}"


def parse_changelog_topic(topic: str) -> tuple[str, int] | None:
    """Returns the view and version whose changes a topic of this name holds; None for other names.

    Example:
        >>> parse_changelog_topic("revenue.changes.2"), parse_changelog_topic("orders")
        (('revenue', 2), None)
    """
    found = _TOPIC.fullmatch(topic)
    return None if found is None else (found[1], int(found[2] or 1))


def change_schema(table: ViewTable) -> pa.Schema:
    """Returns the columns of a view's changes.

    Example:
        >>> change_schema(ViewTable("v", 1, pa.schema([("k", pa.string())]), ("k",))).names
        ['op', 'before', 'after', 'at']
    """
    row = pa.struct(list(table.schema))
    return pa.schema(
        [
            pa.field("op", pa.string(), nullable=False),
            pa.field("before", row),
            pa.field("after", row),
            pa.field("at", _TIMESTAMP, nullable=False),
        ]
    )


@dataclass(frozen=True)
class ChangeSet:
    """The changes of a batch to the rows of a view; `before` and `after` have the same length."""

    inserted: pa.Table
    before: pa.Table
    after: pa.Table
    deleted: pa.Table
    final: pa.Table

    @property
    def rows(self) -> int:
        """The number of changed rows; becoming final is not a change."""
        return int(self.inserted.num_rows + self.after.num_rows + self.deleted.num_rows)

    def to_table(self, view: ViewTable, committed_at: int) -> pa.Table:
        """Returns all changes as one table: deleted, inserted, updated, final."""
        parts = (
            ("delete", self.deleted, None),
            ("insert", None, self.inserted),
            ("update", self.before, self.after),
            ("final", None, self.final),
        )
        schema = change_schema(view)
        found = [schema.empty_table()]
        for op, before, after in parts:
            shown = before if after is None else after
            if shown is not None and shown.num_rows:
                nothing = pa.nulls(shown.num_rows, schema.field("after").type)
                old, new = (nothing if side is None else _to_structs(side) for side in (before, after))
                ops, times = pa.repeat(pa.scalar(op), shown.num_rows), _change_times(view, shown, committed_at)
                found.append(pa.Table.from_arrays([ops, old, new, times], schema=schema))
        return pa.concat_tables(found)

    def __bool__(self) -> bool:
        return bool(self.rows or self.final.num_rows)


def _to_structs(rows: pa.Table) -> pa.Array:
    return rows.to_struct_array().combine_chunks()  # one chunk: each becomes a batch of the outbox entry


def _change_times(view: ViewTable, rows: pa.Table, committed_at: int) -> pa.Array:
    """Returns the time of each change: the last microsecond of its window; without one, the time of the commit."""
    committed = pa.scalar(committed_at, pa.int64())
    if view.window is None:
        return pa.repeat(committed, rows.num_rows).cast(_TIMESTAMP)
    ends = pc.struct_field(rows.column(view.window).combine_chunks(), "end").cast(_TIMESTAMP).cast(pa.int64())
    return pc.fill_null(pc.subtract(ends, 1), committed).cast(_TIMESTAMP)


def pack(changes: pa.Table) -> pa.Buffer:
    """Returns a table as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.schema, options=_LZ4) as writer:
        writer.write_table(changes)
    return sink.getvalue()


def unpack(data: bytes) -> pa.Table:
    """Returns the table of an Arrow IPC stream.

    Example:
        >>> unpack(pack(pa.table({"n": [1]}))).to_pylist()
        [{'n': 1}]
    """
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
