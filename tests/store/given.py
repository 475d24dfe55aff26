"""Views, batches and commits for the tests of stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.store import Commit, EventCounts, InputRange, LedgerEntry, SideOutput, Store, ViewTable

BOTH = ("sqlite", "postgres")
"""The stores whose readers see the same."""
MOMENT = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", MOMENT), ("end", MOMENT)])
MINUTE = 60_000_000
TOTALS = ViewTable("totals", 1, pa.schema([("k", pa.string()), ("n", pa.int64())]), ("k",))
REVENUE = ViewTable(
    "revenue",
    1,
    pa.schema([("w", WINDOW), ("category", pa.string()), ("amount", pa.decimal128(12, 2))]),
    ("w", "category"),
    "w",
)
STREAM = pa.schema([("k", pa.string()), ("n", pa.int64())])


def minute(number: int) -> dict[str, int]:
    """The window of one minute."""
    return {"start": number * MINUTE, "end": (number + 1) * MINUTE}


def read(batch: int, *, each: int = 10, topic: str = "orders", counts: EventCounts | None = None) -> InputRange:
    """Batch after batch reads so many offsets of partition 0."""
    told = EventCounts(each, each) if counts is None else counts
    return InputRange(topic, {0: batch * each}, {0: (batch + 1) * each}, told)


def entry_of(query: str, batch: int, epoch: int, **options: Any) -> LedgerEntry:
    inputs = options.pop("inputs", (read(batch),))
    options = {"watermark": None, "committed_at": 1_000 + batch, **options}
    return LedgerEntry(query, batch, epoch, inputs, **options)


class Runner:
    """Commits batch after batch, as the engine does."""

    def __init__(self, store: Store, table: ViewTable | None = TOTALS, query: str | None = None) -> None:
        self.store = store
        self.table = table
        self.query = query or (table.query if table else "big@1")
        if table is not None:
            store.create(table)
        self.epoch = store.open_epoch(self.query)
        self.batch = 0

    def work(self, rows: Sequence[Mapping[str, Any]] = (), **options: Any) -> Commit:
        about = {
            n: options.pop(n) for n in list(options) if n in ("inputs", "watermark", "committed_at", "wall", "cpu")
        }
        schema = self.table.schema if self.table else STREAM
        entry = entry_of(self.query, options.pop("batch", self.batch), self.epoch, **about)
        return Commit(entry, self.table, pa.Table.from_pylist(list(rows), schema=schema), **options)

    def commit(self, rows: Sequence[Mapping[str, Any]] = (), **options: Any) -> bool:
        written = self.store.commit(self.work(rows, **options))
        self.batch += 1
        return written

    def changes(self) -> list[list[tuple[Any, Any, Any]]]:
        """What waits in the outbox: op, before and after of each change, by batch."""
        return [
            [(c["op"], c["before"], c["after"]) for c in out.changes.to_pylist()]
            for out in self.store.outbox(self.query)
        ]


def aside(offset: int, **options: Any) -> SideOutput:
    about = {"value": f'{{"n":{offset}}}', "reason": "behind by 1 s", **options}
    return SideOutput("orders", 0, offset, 1_000, 2_000, **about)
