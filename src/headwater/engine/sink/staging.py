"""Large results do not pass through one process: workers send their parts to the store, if it takes them.

A store in a file takes none. Then they write to files, which are read where they lie; so also where the process needs
the rows itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.store import StagedPart, Stager, ViewTable

__all__ = ["Staging", "staged_in"]

_PART: Final = 500_000  # rows that a task holds before it sends them


def staged_in(stager: Stager, table: ViewTable, batch: int, frame: DataFrame) -> tuple[StagedPart, ...]:
    """Run a batch of a view; the rows go from the workers to the store. Only parts of tasks that succeeded count."""
    told = frame.mapInArrow(partial(_send_parts, stager, table, batch), "part binary").toArrow()
    return tuple(msgspec.json.decode(part, type=StagedPart) for part in told.column("part").to_pylist())


def _send_parts(
    stager: Stager, table: ViewTable, batch: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Send what one task made."""
    for some in _gathered(batches):
        part = stager.stage(table, batch, pa.Table.from_batches(some).cast(table.schema))
        yield pa.RecordBatch.from_pydict({"part": [msgspec.json.encode(part)]})


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(one.num_rows for one in held) >= _PART:
            yield held
            held = []
    if held:
        yield held


class Staging:
    """The parts of one batch of one query, from its run to its commit; a crash leaves files that the next run removes.

    Args:
        folder: Where the parts go; workers and driver must both reach it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, frame: DataFrame) -> pa.Table:
        """Run a batch; the rows stay in the files, mapped into memory. Only parts of tasks that succeeded count."""
        self.clear()
        self._folder.mkdir(parents=True)
        paths = frame.mapInArrow(partial(_write_part, str(self._folder)), "path string").toArrow()
        parts = [_mapped(path) for path in paths.column("path").to_pylist()]
        return (
            pa.concat_tables(parts) if parts else to_arrow_schema(frame.schema, timezone="UTC").empty_table()
        )

    def clear(self) -> None:
        """Remove the parts."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _write_part(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write what one task made; it is named after the attempt, so that no two write to one file."""
    task = TaskContext.get()
    assert task is not None
    path = f"{folder}/{task.partitionId()}-{task.taskAttemptId()}.arrow"
    writer = None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_file(path, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
        yield pa.RecordBatch.from_pydict({"path": [path]})


def _mapped(path: str) -> pa.Table:
    with pa.memory_map(path) as file:
        return pa.ipc.open_file(file).read_all()
