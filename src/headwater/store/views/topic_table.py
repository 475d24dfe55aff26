"""Tables: the current rows of a compacted topic, one per key. `CurrentRows` reads them; views need no log for that.

A read costs as much as the topic holds: after compaction that is about one event per key, before it the history.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pyarrow as pa

from headwater.errors import BadQueryError
from headwater.events import Codec, Position, key_bytes, storage_schema
from headwater.log import LogBatch, Topic
from headwater.log.protocol import Log
from headwater.log.reader import TopicReader
from headwater.store.commit.commit import ViewTable
from headwater.store.protocol import TableRows

__all__ = ["CurrentRows", "find_table", "load_named_tables", "table_definition", "table_names"]

_SPARE_ROWS: Final = 65_536  # outdated rows that may be in memory besides as many as there are keys
_MAX_SQL_ROWS: Final = 1_000_000


class CurrentRows:
    """The rows of a compacted topic at its present end, in the order in which their keys first appeared.

    Args:
        log: The log.
        topic: The topic.

    Attributes:
        position: The end up to which the topic was read.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> _ = client.create_topic("products", "product_id int, name string", key="product_id", compact=True)
        >>> _ = client.send_many("products", [{"product_id": 7, "name": "pen"}, {"product_id": 7, "name": "ink"}])
        >>> CurrentRows(client.log, "products").table().to_pylist()
        [{'product_id': 7, 'name': 'ink'}]
    """

    def __init__(self, log: Log, topic: str) -> None:
        self._topic = log.topic(topic)
        self._parts: list[pa.Table] = []
        self._count = 0
        self._rows: dict[bytes | None, int] = {}  # by key: the number of its row in the parts
        ends = log.ends(topic)
        stops = {end.partition: end.end for end in ends}
        self.position = Position.of(topic, stops)
        with closing(TopicReader(log, topic, {end.partition: end.start for end in ends}, stops)) as reader:
            for batch in reader:
                if batch.values.num_rows:
                    self._add(batch)

    def _add(self, batch: LogBatch) -> None:
        if batch.bad.any():  # their keys are null
            batch = batch.select(~batch.bad)
        keys, deleted = batch.key_bytes, batch.tombstones.tolist()
        for row, key in enumerate([None] * len(deleted) if keys is None else keys.to_pylist()):
            if deleted[row]:
                self._rows.pop(key, None)
            else:
                self._rows[key] = self._count + row
        self._parts.append(pa.Table.from_batches([batch.values]))
        self._count += batch.values.num_rows
        if self._count > 2 * len(self._rows) + _SPARE_ROWS:
            self._parts = [self.table()]
            self._count = len(self._rows)
            self._rows = {key: row for row, key in enumerate(self._rows)}

    def __len__(self) -> int:
        return len(self._rows)

    def table(self) -> pa.Table:
        """Returns the rows as Arrow columns."""
        if not self._rows:
            return table_definition(self._topic).schema.empty_table()
        return pa.concat_tables(self._parts).take(pa.array(list(self._rows.values()), pa.int64()))

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows as dicts of Python values."""
        return self._decode(self.table())

    def get(self, key: Any) -> dict[str, Any] | None:
        """Returns the row of a key; None when there is none."""
        number = self._rows.get(key_bytes(key))
        if number is None:
            return None
        return self._decode(pa.concat_tables(self._parts).slice(number, 1))[0]

    def _decode(self, table: pa.Table) -> list[dict[str, Any]]:
        codec = Codec(self._topic.schema)
        return [row for batch in table.to_batches() for row in codec.rows(batch)]


def table_definition(topic: Topic) -> ViewTable:
    """Returns the columns and key of a table, in the form of a view's."""
    return ViewTable(topic.name, topic.version, storage_schema(topic.schema), topic.key)


def find_table(log: Log, name: str) -> Topic | None:
    """Returns the compacted topic of this name; None if there is none."""
    if name not in log.topics():
        return None
    topic = log.topic(name)
    return topic if topic.compact and topic.key else None


def table_names(log: Log) -> list[str]:
    """Returns the names of all tables."""
    return [name for name in log.topics() if find_table(log, name) is not None]


def load_named_tables(log: Log, query: str) -> list[TableRows]:
    """Returns the rows of the tables whose names are words of a query.

    Raises:
        BadQueryError: A table has too many rows for a query.
    """
    return [_load(log, topic) for topic in _named_tables(log, query)]


def _named_tables(log: Log, query: str) -> Iterator[Topic]:
    text = query.casefold()
    for name in log.topics():
        if re.search(rf"(?<![\w$]){re.escape(name.casefold())}(?![\w$])", text):
            topic = find_table(log, name)
            if topic is not None:
                yield topic


def _load(log: Log, topic: Topic) -> TableRows:
    current = CurrentRows(log, topic.name)
    if len(current) > _MAX_SQL_ROWS:
        raise BadQueryError(
            f'table "{topic.name}" has {len(current):,} rows; a query loads at most {_MAX_SQL_ROWS:,} of a table',
            fix=f"headwater view {topic.name} --where …, or declare a view of it: the store has its rows",
            limit="rows",
            table=topic.name,
        )
    return TableRows(table_definition(topic), current.table())
