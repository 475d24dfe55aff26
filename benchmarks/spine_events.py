"""The same events in three forms: in a topic, as JSON files and as Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headwater as hw

__all__ = ["EVENTS_DDL", "EventFiles", "batches", "make_events"]

EVENTS_DDL = "event_id bigint, customer int, product int, amount double, note string, at timestamp"
_START = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
_GROUP = 25_000
_FILES = 16
_SPAN = 600 * 1_000_000  # microseconds: ten minutes of event time


@dataclass(frozen=True)
class EventFiles:
    """The places of the events.

    Args:
        events: Their number.
        data: The data folder with the topic `events`.
        json: A folder of JSON lines.
        parquet: A folder of Parquet files.
    """

    events: int
    data: Path
    json: Path
    parquet: Path


def make_events(folder: Path, events: int, keys: int, *, files: bool = True) -> EventFiles:
    """Write the events; each has one of `keys` random customers, and times advance with some disorder."""
    given = EventFiles(events, folder / "data", folder / "json", folder / "parquet")
    client = hw.connect(given.data)
    client.create_topic("events", EVENTS_DDL, key="customer", time="at", lateness="10 seconds", partitions=4)
    for path in (given.json, given.parquet):
        path.mkdir(parents=True)
    per_file = -(-events // _FILES)
    for number, batch in enumerate(batches(events, keys, per_file)):
        for start in range(0, batch.num_rows, _GROUP):
            client.send_many("events", batch.slice(start, _GROUP))
        if files:
            pq.write_table(pa.Table.from_batches([batch]), given.parquet / f"{number:03}.parquet")
            batch.to_pandas().to_json(given.json / f"{number:03}.json", orient="records", lines=True, date_format="iso")
    client.log.close()
    return given


def batches(events: int, keys: int, size: int) -> Iterator[pa.RecordBatch]:
    """Yields the events in batches; times advance with some disorder."""
    random = np.random.default_rng(7)
    for start in range(0, events, size):
        rows = min(size, events - start)
        ids = np.arange(start, start + rows)
        times = _START + ids * _SPAN // events - random.integers(0, 2_000_000, rows)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(ids),
                pa.array(random.integers(0, keys, rows).astype(np.int32)),
                pa.array(random.integers(0, 1_000, rows).astype(np.int32)),
                pa.array(np.round(random.random(rows) * 100, 2)),
                pa.array(np.char.add("note ", (ids % 1000).astype(str))),
                pa.array(times).cast(pa.timestamp("us", "UTC")),
            ],
            ["event_id", "customer", "product", "amount", "note", "at"],
        )
