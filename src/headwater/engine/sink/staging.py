"""Large results do not pass through one process: workers write their parts to files, which are read where they lie."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

__all__ = ["Staging"]


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
