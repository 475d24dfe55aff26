"""Fixtures of the log's tests: small topics, rows, partitions, another process, a damaged file."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.events import Clock, Codec, Event, ManualClock
from headwater.log import EventLog, PendingEvent, Topic, WriteBatch
from headwater.log.storage import Disk, Frame, Partition, Segment, StateFile

ORDER = "id string, amount int, at timestamp"
NUMBERS = pa.schema([("n", pa.int64())])
ROOT = Path(__file__).parents[2]
SECOND = 1_000_000
MINUTE = 60 * SECOND


def declared(name: str = "orders", type_: object = ORDER, **options: Any) -> Topic:
    return Topic.declare(name, type_, **options)


def rows_of(topic: Topic, values: Sequence[Any], **about: Any) -> WriteBatch:
    """Returns values as a batch of the topic's type; `about` are further fields of `WriteBatch`."""
    return WriteBatch(Codec(topic.schema).encode(values), topic.version, about.pop("envelope", {}), **about)


def row_of(topic: Topic, value: Any, **about: Any) -> PendingEvent:
    return PendingEvent(Codec(topic.schema).validate([value])[0], topic.version, **about)


def tombstone(topic: Topic, key: str) -> WriteBatch:
    """Returns the row that deletes a key of a topic keyed by `id`."""
    columns = [pa.array([key if field.name == "id" else None], field.type) for field in topic.schema]
    schema = pa.schema([field.with_nullable(True) for field in topic.schema])
    values = pa.RecordBatch.from_arrays(columns, schema=schema)
    return WriteBatch(values, topic.version, {"_hw.deleted": pa.array([True])})


def reading(log: EventLog, pipeline: str, *topics: str) -> None:
    """Commit offsets, as a running pipeline does."""
    for topic in topics:
        log.groups.reset(f"hw.pipeline.{pipeline}", topic, {0: 0})


def events(log: EventLog, name: str = "orders", partition: int = 0, offset: int = 0) -> list[Event]:
    """Returns all events of a partition from an offset on, read in small chunks."""
    found: list[Event] = []
    end = log.ends(name)[partition].end
    while offset < end:
        batches = log.fetch(name, {partition: offset}, max_bytes=4096)
        found += [event for batch in batches for event in batch.events()]
        offset = batches[-1].next_offset
    return found


def amounts(log: EventLog, name: str = "orders", partition: int = 0, offset: int = 0) -> list[Any]:
    return [event.value["amount"] for event in events(log, name, partition, offset) if event.value]


def part(*numbers: int, times: Sequence[int] | None = None, **about: Any) -> WriteBatch:
    """Rows of the schema NUMBERS."""
    values = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], schema=NUMBERS)
    return WriteBatch(values, 1, times=None if times is None else np.array(times, np.int64), **about)


def open_partition(folder: Path, clock: Clock | None = None, disk: Disk | None = None, **options: Any) -> Partition:
    """Open partition 0 in a folder, as a new process would."""
    disk = disk or Disk()
    disk.make_folder(folder / "0")
    ends = StateFile(disk, folder / "ends")
    return Partition(disk, clock or ManualClock(), folder / "0", ends, 0, declared("numbers", NUMBERS, **options))


def numbers_in(partition: Partition, offset: int = 0, max_bytes: int = 4096) -> list[int]:
    """Returns the numbers stored from an offset on; idle markers have none."""
    found: list[int] = []
    while offset < partition.state().next_offset:
        for frame, data in partition.fetch(offset, max_bytes):
            if frame.count:
                columns = pa.ipc.read_record_batch(pa.py_buffer(data[frame.body_at :]), NUMBERS)
                skipped = max(0, offset - frame.base_offset)
                found += columns.column(0).to_pylist()[skipped:]
            offset = frame.next_offset
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.segment"))


def flip(path: Path, position: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def in_another_process(code: str, *arguments: object) -> str:
    """Run code in a new Python process and return what it prints; the arguments are `sys.argv[1:]`."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def walked_frames(monkeypatch: pytest.MonkeyPatch) -> list[Frame]:
    """Returns a list that collects every frame whose header is walked from now on."""
    walked: list[Frame] = []
    walk = Segment.walk

    def watched(*given: Any, **about: Any) -> Iterator[Frame]:
        for frame in walk(*given, **about):
            walked.append(frame)
            yield frame

    monkeypatch.setattr(Segment, "walk", watched)
    return walked
