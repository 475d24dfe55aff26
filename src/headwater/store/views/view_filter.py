"""`ViewFilter`: the condition of a read (`where=`). The store evaluates what it can, DuckDB the rest."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from headwater.sql.filter import Filter
from headwater.sql.guard import StoreEngine, parse_condition
from headwater.store.columns import storage_columns
from headwater.store.commit.commit import ViewTable

__all__ = ["ViewFilter", "collect_rows"]


class ViewFilter:
    """A condition on the rows of a view; it means the same as on a topic, whatever the store.

    The columns are those of the view. The start of a window `w` is `w.start`, its end `w.end`.

    Args:
        where: The condition.
        table: The view.
        engine: The engine of its store.

    Attributes:
        sql: The part of the condition that the store evaluates, in its SQL.
        complete: Whether that is the whole condition; if not, `select` finds the rows that match among the store's.

    Raises:
        BadFilterError: The text is not a condition, or does not fit the columns.
    """

    def __init__(self, where: str, table: ViewTable, engine: StoreEngine) -> None:
        from headwater.sql.pushdown import push_down  # loads sqlglot, which reads without a condition do not need

        condition = parse_condition(where)
        columns = storage_columns(table)
        pushed = push_down(condition, engine, {each.name.casefold(): (each.name, each.kind) for each in columns})
        self.sql = pushed.sql
        self.complete = pushed.complete
        self._windows = [each for each in columns if each.window_field]
        self._filter = None if pushed.complete else Filter(condition)
        if self._filter is not None:
            self._filter.check(self._with_windows(table.schema.empty_table()).schema)

    def select(self, rows: pa.Table) -> pa.Table:
        """Returns those of the store's rows that match the whole condition."""
        if self._filter is None:
            return rows
        parts = self._with_windows(rows).combine_chunks().to_batches()
        masks = [pa.array(self._filter.mask(part)) for part in parts]
        return rows.filter(pa.chunked_array(masks, pa.bool_()))

    def _with_windows(self, rows: pa.Table) -> pa.Table:
        """Returns the rows with the start and end of a window also as columns of their own, such as `"w.start"`."""
        for each in self._windows:
            rows = rows.append_column(each.name, pc.struct_field(rows.column(each.view_column), each.window_field))
        return rows


def collect_rows(
    table: ViewTable, chunks: Iterable[pa.Table], condition: ViewFilter | None, limit: int | None
) -> pa.Table:
    """Returns the rows that match a condition, at most `limit` of them; reads no more chunks than that takes."""
    found = [table.schema.empty_table()]
    count = 0
    for chunk in chunks if limit != 0 else ():
        found.append(chunk if condition is None else condition.select(chunk))
        count += found[-1].num_rows
        if limit is not None and count >= limit:
            break
    rows = pa.concat_tables(found)
    return rows if limit is None else rows.slice(0, limit)
