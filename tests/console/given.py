"""A small shop for the page: topics, pipelines and views that the test fills by hand, as the engine would."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.client.views import changes_topic
from headwater.events import storage_schema
from headwater.log import EventLog, Rows, Topic
from headwater.store import (
    Aside,
    Commit,
    Counts,
    InputRange,
    LedgerEntry,
    PipelineReport,
    SqliteStore,
    ViewTable,
)

MOMENT = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", MOMENT), ("end", MOMENT)])
MINUTE = 60_000_000
ORDER = "order_id string, category string, amount int"
REVENUE = ViewTable(
    "revenue",
    1,
    pa.schema([("window", WINDOW), ("category", pa.string()), ("amount", pa.int64())]),
    ("window", "category"),
    "window",
)
STOCK = ViewTable("stock", 1, pa.schema([("product", pa.string()), ("left", pa.int64())]), ("product",))


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def minute(number: int) -> dict[str, int]:
    """The window of a minute; 0 is the present one."""
    start = now() // MINUTE * MINUTE + number * MINUTE
    return {"start": start, "end": start + MINUTE}


class Kept:
    """A view that is kept by the test: batch after batch, rows, ledger and changelog.

    Args:
        log: Where its topics are.
        store: Where its rows are.
        table: The view.
        topic: What it reads.
    """

    def __init__(self, log: EventLog, store: SqliteStore, table: ViewTable, topic: str = "orders") -> None:
        self._log, self._store, self._table, self._topic = log, store, table, topic
        self._batch = self._offset = 0
        store.create(table)
        self._epoch = store.take(table.query)
        row = pa.struct(list(table.schema))
        changes = pa.schema(
            [
                pa.field("op", pa.string(), nullable=False),
                pa.field("before", row),
                pa.field("after", row),
                pa.field("at", MOMENT, nullable=False),
            ]
        )
        self._changes = Topic.declare(changes_topic(table.name, table.version), changes, time="at")
        log.create(self._changes)
        self.tell("running")

    def tell(self, state: Any, **about: Any) -> None:
        """How it is doing."""
        options = {"inputs": (self._topic,), "place": "shop.py:12", "since": now(), **about}
        self._store.tell(PipelineReport(self._table.name, self._table.version, "view", state, **options))

    def commit(
        self,
        rows: Sequence[Mapping[str, Any]],
        counts: Counts | None = None,
        watermark: int | None = None,
        late: tuple[Aside, ...] = (),
    ) -> None:
        """One batch, and its changes in their topic."""
        told = counts or Counts(len(rows), len(rows))
        offset, self._offset = self._offset, self._offset + told.in_
        read = InputRange(self._topic, {0: offset}, {0: self._offset}, told)
        entry = LedgerEntry(
            self._table.query, self._batch, self._epoch, (read,), watermark, now(), wall=0.1, cpu=0.05
        )
        self._batch += 1
        self._store.commit(
            Commit(entry, self._table, pa.Table.from_pylist(list(rows), self._table.schema), late)
        )
        schema = storage_schema(self._changes.schema)
        for out in self._store.pending(self._table.query):
            for changed in out.changes.select(schema.names).cast(schema).combine_chunks().to_batches():
                self._log.append(
                    self._changes.name,
                    Rows(changed, 1, {}, 0, out.query, out.batch << 32, sent_at=out.committed_at),
                )
            self._store.published(self._table.query, out.batch, {0: 0})


class Shop:
    """The folder of a node with one topic and two views; whoever serves it is somebody else."""

    def __init__(self, folder: Path, log: EventLog) -> None:
        self.log = log
        log.create(Topic.declare("orders", ORDER))
        self.store = SqliteStore(folder / "store")
        self.revenue = Kept(log, self.store, REVENUE)
        self.stock = Kept(log, self.store, STOCK)
        self.sell(books=10, toys=20)
        self.stock.commit([{"product": "lamp", "left": 4}])

    def sell(self, window: int = 0, **amounts: int) -> None:
        """New amounts by category in the window of a minute; the watermark is at the beginning of the present one."""
        rows = [{"window": minute(window), "category": name, "amount": n} for name, n in amounts.items()]
        self.revenue.commit(rows, watermark=minute(0)["start"])

    def close(self) -> None:
        self.store.close()
