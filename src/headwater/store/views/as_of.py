"""A view as of a past moment: finds the version that readers saw then, and rebuilds its rows from its changes."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import BadQueryError
from headwater.events import values_of
from headwater.log.protocol import Log
from headwater.log.reader import TopicReader
from headwater.store.changelog import changelog_topic
from headwater.store.commit.commit import Commit, ViewTable
from headwater.store.commit.ledger import LedgerEntry
from headwater.store.sql_store import SqlStore
from headwater.store.sqlite import SqliteDialect
from headwater.store.views.changes import commit_micros
from headwater.store.views.view_query import ViewQuery
from headwater.store.views.view_reader import ViewReader

__all__ = ["read_rows_as_of", "rows_as_of", "select_rows", "temporary_store", "version_as_of"]


def rows_as_of(table: ViewTable, moment: int, changes: Iterable[pa.Table]) -> pa.Table:
    """Returns the rows a view had at a moment, in the order in which they last changed.

    Args:
        table: The view. Its changes may be those of an older version with the same columns.
        moment: Microseconds since 1970. Changes committed at that moment are included.
        changes: All its changes in order, with the columns op, before, after and `committed_at` (microseconds).

    Example:
        >>> view = ViewTable("totals", 1, pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))
        >>> history = [{"op": "insert", "before": None, "after": {"k": "a", "n": 1}, "committed_at": 10},
        ...            {"op": "update", "before": {"k": "a", "n": 1}, "after": {"k": "a", "n": 2}, "committed_at": 20}]
        >>> rows_as_of(view, 15, [pa.Table.from_pylist(history)]).to_pylist()
        [{'k': 'a', 'n': 1}]
    """
    newest: dict[tuple[Any, ...], tuple[int, int]] = {}  # by key: the part and the row of its last change
    parts: list[pa.Array] = []
    for part in changes:
        committed, final = pc.less_equal(part.column("committed_at"), moment), pc.equal(part.column("op"), "final")
        seen = part.filter(pc.and_not(committed, final))
        _apply_changes(table, seen, len(parts), newest)
        parts.append(seen.column("after").combine_chunks())
    positions: list[list[int]] = [[] for _ in parts]
    for number, row in sorted(newest.values()):
        positions[number].append(row)
    found = [
        pa.Table.from_struct_array(part.take(pa.array(rows, pa.int64()))).cast(table.schema)
        for part, rows in zip(parts, positions, strict=True)
        if rows
    ]
    return pa.concat_tables([table.schema.empty_table(), *found])


def _apply_changes(
    table: ViewTable, part: pa.Table, number: int, newest: dict[tuple[Any, ...], tuple[int, int]]
) -> None:
    ops = part.column("op").to_pylist()
    before, after = (part.column(name).combine_chunks() for name in ("before", "after"))
    columns = [
        [[_hashable(value) for value in values_of(pc.struct_field(side, name))] for side in (before, after)]
        for name in table.key
    ]
    for row, op in enumerate(ops):
        key = tuple(old[row] if op == "delete" else new[row] for old, new in columns)
        newest.pop(key, None)
        if op != "delete":
            newest[key] = (number, row)


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def version_as_of(log: Log, table: ViewTable, moment: int) -> ViewTable:
    """Returns the version of a view that readers saw at a moment (microseconds since 1970).

    An older version was current at least until its last change, and until the newer one had its first.
    """
    topics = set(log.topics())
    for version in range(1, table.version):  # oldest first: the first version that fits is the one readers saw
        topic = changelog_topic(table.name, version)
        if topic not in topics:
            continue
        newer = changelog_topic(table.name, version + 1)
        first = _commit_time(log, newer, 0) if newer in topics else None
        last = _commit_time(log, topic, -1)
        if (last is not None and moment <= last) or first is None or moment < first:
            return _older_version(table, version, log.topic(topic).schema)
    return table


def read_rows_as_of(log: Log, table: ViewTable, moment: int) -> pa.Table:
    """Returns the rows of a version of a view at a moment, rebuilt from its changes."""
    topic = changelog_topic(table.name, table.version)
    if topic not in log.topics():
        return table.schema.empty_table()
    return rows_as_of(table, moment, _read_changes(log, topic, log.find_offset(topic, 0, "latest")))


@contextlib.contextmanager
def temporary_store() -> Iterator[SqlStore]:
    """A context with an empty store, which is deleted afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as folder,
        contextlib.closing(SqlStore(SqliteDialect(Path(folder)))) as store,
    ):
        yield store


def select_rows(table: ViewTable, rows: pa.Table, query: ViewQuery) -> pa.Table:
    """Returns the rows that match the query; a condition has the same meaning as on the view itself."""
    if query.where is None and query.key is None and not query.order:
        return rows
    with temporary_store() as store:
        store.create(table)
        entry = LedgerEntry(table.query, 0, store.open_epoch(table.query), (), None, committed_at=0)
        store.commit(Commit(entry, table, rows))
        return ViewReader(store).table(table.name, key=query.key, where=query.where, order=query.order or ())


def _read_changes(log: Log, topic: str, end: int) -> Iterator[pa.Table]:
    start = log.find_offset(topic, 0, "earliest")
    with contextlib.closing(TopicReader(log, topic, {0: start}, {0: end})) as reader:
        for batch in reader:
            if batch.values.num_rows:
                committed = pa.repeat(pa.scalar(commit_micros(batch), pa.int64()), batch.values.num_rows)
                yield pa.Table.from_batches([batch.values]).append_column("committed_at", committed)


def _commit_time(log: Log, topic: str, index: int) -> int | None:
    """Returns when the first (0) or last (-1) change of a topic was committed."""
    bounds = log.ends(topic)[0]
    offset = bounds.start if index == 0 else bounds.end - 1
    while bounds.start <= offset < bounds.end:
        found = log.fetch(topic, {0: offset}, max_bytes=1, timeout=0, waiter=None)
        if not found:
            return None
        if found[0].values.num_rows:
            return commit_micros(found[0])
        offset = found[0].next_offset if index == 0 else offset - 1  # an idle marker is not a change
    return None


def _older_version(table: ViewTable, version: int, changes: pa.Schema) -> ViewTable:
    schema = pa.schema(list(changes.field("after").type))
    missing = [name for name in table.key if name not in schema.names]
    if missing:
        what = f'view "{table.name}" had another key at that moment, without column {", ".join(missing)}'
        raise BadQueryError(what, detail=f"columns of version {version}: {', '.join(schema.names)}")
    window = table.window if table.window in schema.names else None
    return replace(table, version=version, schema=schema, window=window)
