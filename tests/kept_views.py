"""Views kept by hand: what a pipeline would commit and publish, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.events import Clock, storage_schema
from headwater.log import EventLog, Topic, WriteBatch
from headwater.store import (
    Commit,
    EventCounts,
    InputRange,
    LedgerEntry,
    PipelineReport,
    SideOutput,
    SqliteDialect,
    SqlStore,
    ViewTable,
)

MOMENT = pa.timestamp("us", "UTC")
WINDOW = pa.struct([("start", MOMENT), ("end", MOMENT)])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

TOTALS = ViewTable(
    "totals", 1, pa.schema([("category", pa.string()), ("n", pa.int64()), ("sum", pa.decimal128(12, 2))]), ("category",)
)
REVENUE = ViewTable(
    "revenue", 1, pa.schema([("minute", WINDOW), ("category", pa.string()), ("amount", pa.decimal128(12, 2))]),
    ("minute", "category"), "minute",
)  # fmt: skip


def micros(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def minute(number: int) -> dict[str, datetime]:
    """The n-th minute after noon."""
    return {"start": NOON + timedelta(minutes=number), "end": NOON + timedelta(minutes=number + 1)}


class Keeper:
    """Keeps one version of one view in a data folder, as its pipeline would.

    Args:
        folder: The data folder.
        table: The view.
        topic: What it reads; batches are taken to have read one event of partition 0 for each unit of `events`.
        clock: When commits happen.
    """

    def __init__(self, folder: str | Path, table: ViewTable, topic: str = "orders", clock: Clock | None = None) -> None:
        self.log = EventLog(folder, clock=clock)
        self.store = SqlStore(SqliteDialect(Path(folder) / "store"), clock)
        self.table = table
        self.topic = topic
        self.batch = 0
        self.offset = 0
        self.epoch = self.store.open_epoch(table.query)
        self.store.create(table)
        self.tell("running")
        suffix = "" if table.version == 1 else f".{table.version}"
        self.changes = self.log.create(_changelog(f"{table.name}.changes{suffix}", table))

    def tell(self, state: Any, **more: Any) -> None:
        table = self.table
        about = {"inputs": (self.topic,), **more}
        self.store.report(PipelineReport(table.name, table.version, "view", state, **about))

    def commit(
        self,
        rows: Sequence[Mapping[str, Any]],
        counts: EventCounts | None = None,
        *,
        events: int = 1,
        watermark: datetime | None = None,
        deletes: Sequence[Mapping[str, Any]] = (),
        late: tuple[SideOutput, ...] = (),
        quarantined: tuple[SideOutput, ...] = (),
        publish: bool = True,
    ) -> None:
        """One batch: it has read so many events, and these rows are what became of them."""
        if counts is None:
            used = events - len(late) - len(quarantined)
            counts = EventCounts(in_=events, used=used, late=len(late), quarantined=len(quarantined))
        end = self.offset + counts.in_
        read = InputRange(self.topic, {0: self.offset}, {0: end}, counts)
        entry = LedgerEntry(
            self.table.query, self.batch, self.epoch, (read,), None if watermark is None else micros(watermark),
            committed_at=self.log.clock.micros(), wall=0.25, cpu=0.2,
        )  # fmt: skip
        gone = None
        if deletes:
            schema = pa.schema([field for field in self.table.schema if field.name in self.table.key])
            gone = pa.Table.from_pylist(list(deletes), schema)
        table = pa.Table.from_pylist(list(rows), self.table.schema)
        self.store.commit(Commit(entry, self.table, table, late, quarantined, finals=True, deletes=gone))
        self.batch += 1
        self.offset = end
        if publish:
            self.publish()

    def publish(self) -> None:
        """What waits goes to the topic of the changes."""
        schema = storage_schema(self.changes.schema)
        for outgoing in self.store.outbox(self.table.query):
            (rows,) = outgoing.changes.cast(schema).combine_chunks().to_batches()
            self.log.append(
                self.changes.name,
                WriteBatch(rows, 1, {}, 0, outgoing.query, outgoing.batch << 32, sent_at=outgoing.committed_at),
            )
            end = self.log.ends(self.changes.name)[0].end
            self.store.mark_published(outgoing.query, outgoing.batch, {0: end})

    def rebuilt(self, **changed: Any) -> Keeper:
        """The next version of the view, beside this one."""
        table = replace(self.table, version=self.table.version + 1, **changed)
        return Keeper(self.log.folder, table, self.topic, self.log.clock)

    def close(self) -> None:
        self.store.close()
        self.log.close()


def aside(number: int, reason: str = "behind 2026-01-01T12:05:00Z by 12.5 s", **value: Any) -> SideOutput:
    """An event kept beside."""
    at = micros(NOON + timedelta(seconds=number))
    return SideOutput("orders", 0, number, at, at + 1_000_000, f'{{"order_id":"o-{number}"}}', reason)


def _changelog(name: str, table: ViewTable) -> Topic:
    row = pa.struct(list(table.schema))
    schema = pa.schema(
        [
            pa.field("op", pa.string(), nullable=False),
            pa.field("before", row),
            pa.field("after", row),
            pa.field("at", MOMENT, nullable=False),
        ]
    )
    return Topic.declare(name, schema, time="at", lateness="0 seconds", external_time=True)
