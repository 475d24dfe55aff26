"""Changes of a view as one table, and as the bytes that wait in the outbox."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headwater.store.definition import ViewTable

__all__ = ["Changes", "change_schema", "packed", "unpacked"]

_MOMENT = pa.timestamp("us", "UTC")
_FAST = pa.ipc.IpcWriteOptions(compression="lz4")


def change_schema(table: ViewTable) -> pa.Schema:
    """The columns of a view's changes.

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
            pa.field("at", _MOMENT, nullable=False),
        ]
    )


@dataclass(frozen=True)
class Changes:
    """What a batch did to the rows of a view; tables have the view's columns, `before` and `after` go in step."""

    inserted: pa.Table
    before: pa.Table
    after: pa.Table
    deleted: pa.Table
    final: pa.Table

    @property
    def rows(self) -> int:
        """How many rows changed; becoming final is no change."""
        return int(self.inserted.num_rows + self.after.num_rows + self.deleted.num_rows)

    def table(self, view: ViewTable, committed_at: int) -> pa.Table:
        """All of them as one table: deleted, inserted, updated, final."""
        parts = (
            ("delete", self.deleted, None),
            ("insert", None, self.inserted),
            ("update", self.before, self.after),
            ("final", None, self.final),
        )
        found = [_part(view, committed_at, *part) for part in parts]
        return pa.concat_tables([part for part in found if part is not None])

    def __bool__(self) -> bool:
        return bool(self.rows or self.final.num_rows)


def _part(
    view: ViewTable, committed_at: int, op: str, before: pa.Table | None, after: pa.Table | None
) -> pa.Table | None:
    shown = before if after is None else after
    if shown is None or not shown.num_rows:
        return None
    schema = change_schema(view)
    nothing = pa.nulls(shown.num_rows, schema.field("after").type)
    columns = [
        pa.repeat(pa.scalar(op), shown.num_rows),
        nothing if before is None else _structs(before),
        nothing if after is None else _structs(after),
        _moments(view, shown, committed_at),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _structs(rows: pa.Table) -> pa.Array:
    columns = [column.combine_chunks() for column in rows.columns]
    return pa.StructArray.from_arrays(columns, fields=list(rows.schema))


def _moments(view: ViewTable, rows: pa.Table, committed_at: int) -> pa.Array:
    committed = pa.scalar(committed_at, pa.int64())
    if view.window is None:
        return pa.repeat(committed, rows.num_rows).cast(_MOMENT)
    ends = pc.struct_field(rows.column(view.window).combine_chunks(), "end").cast(_MOMENT).cast(pa.int64())
    return pc.fill_null(pc.subtract(ends, 1), committed).cast(_MOMENT)


def packed(changes: pa.Table) -> pa.Buffer:
    """A table as one Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changes.schema, options=_FAST) as writer:
        writer.write_table(changes)
    return sink.getvalue()


def unpacked(data: bytes) -> pa.Table:
    """The table of an Arrow stream.

    Example:
        >>> unpacked(packed(pa.table({"n": [1]}))).to_pylist()
        [{'n': 1}]
    """
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()
