"""A view as it was: which version readers saw then, and its rows out of the changes up to that moment."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headwater.client.views.asked import Asked
from headwater.client.views.changes import changes_topic, committed_micros
from headwater.errors import BadQueryError
from headwater.log import LogBatch
from headwater.log.protocol import Log
from headwater.log.reader import Reader
from headwater.store import Commit, LedgerEntry, SqliteStore, Views, ViewTable, rows_as_of

__all__ = ["chosen", "rows_then", "version_then"]


def version_then(log: Log, table: ViewTable, moment: int) -> ViewTable:
    """The version of a view that readers saw at a moment (microseconds since 1970).

    An older version was current at least until its last change, and until the newer one had its first.
    """
    topics = set(log.topics())
    for version in range(1, table.version):
        topic = changes_topic(table.name, version)
        if topic not in topics:
            continue
        newer = changes_topic(table.name, version + 1)
        first = _committed(log, newer, 0) if newer in topics else None
        last = _committed(log, topic, -1)
        if (last is not None and moment <= last) or first is None or moment < first:
            return _older(table, version, log.topic(topic).schema)
    return table


def rows_then(log: Log, table: ViewTable, moment: int) -> pa.Table:
    """The rows of a version of a view at a moment, out of its changes."""
    topic = changes_topic(table.name, table.version)
    if topic not in log.topics():
        return table.schema.empty_table()
    return rows_as_of(table, moment, _parts(log, topic, log.find(topic, 0, "latest")))


def chosen(table: ViewTable, rows: pa.Table, asked: Asked) -> pa.Table:
    """Those of the rows that are asked for; a condition means what it means on the view itself."""
    if asked.where is None and asked.key is None and not asked.order:
        return rows
    with tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as folder:
        store = SqliteStore(Path(folder))
        views = Views(store)
        try:
            store.create(table)
            epoch = store.take(table.query)
            entry = LedgerEntry(table.query, 0, epoch, (), None, committed_at=0)
            store.commit(Commit(entry, table, rows))
            return views.table(table.name, key=asked.key, where=asked.where, order=asked.order or ())
        finally:
            views.close()
            store.close()


def _parts(log: Log, topic: str, end: int) -> Iterator[pa.Table]:
    for batch in _batches(log, topic, end):
        if batch.values.num_rows:
            committed = pa.repeat(pa.scalar(committed_micros(batch), pa.int64()), batch.values.num_rows)
            yield pa.Table.from_batches([batch.values]).append_column("committed_at", committed)


def _batches(log: Log, topic: str, end: int) -> Iterator[LogBatch]:
    reader = Reader(log, topic, {0: log.find(topic, 0, "earliest")}, {0: end})
    try:
        yield from reader
    finally:
        reader.close()


def _committed(log: Log, topic: str, place: int) -> int | None:
    """When the first (0) or last (-1) change of a topic was committed."""
    held = log.ends(topic)[0]
    offset = held.start if place == 0 else held.end - 1
    while held.start <= offset < held.end:
        found = log.fetch(topic, {0: offset}, max_bytes=1, timeout=0, waiter=None)
        if not found:
            return None
        if found[0].values.num_rows:
            return committed_micros(found[0])
        offset = found[0].next_offset if place == 0 else offset - 1  # a time mark is no change
    return None


def _older(table: ViewTable, version: int, changes: pa.Schema) -> ViewTable:
    schema = pa.schema(list(changes.field("after").type))
    missing = [name for name in table.key if name not in schema.names]
    if missing:
        what = f'view "{table.name}" had another key then: no column {", ".join(missing)}'
        raise BadQueryError(what, detail=f"columns of version {version}: {', '.join(schema.names)}")
    window = table.window if table.window in schema.names else None
    return replace(table, version=version, schema=schema, window=window)
