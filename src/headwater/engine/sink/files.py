"""File outputs, and staging of large results.

`ParquetFolder` writes one Parquet file per batch. A file counts once the manifest names it, and the manifest names each
batch once.

Large results do not pass through the memory of the driver. `stage_in_store` lets workers send their rows to the store,
if it accepts staged parts; SQLite does not. Otherwise `Staging` lets workers write files, which the driver maps into
memory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.log.storage.disk import Disk
from headwater.store import LedgerEntry, StagedPart, Stager, ViewTable
from headwater.store.commit.row_checks import find_large_rows

__all__ = ["ParquetFolder", "Staging", "stage_in_store"]

_DISK: Final = Disk()
_MANIFEST: Final = "_manifest"


class ManifestEntry(msgspec.Struct, frozen=True):
    """One batch in the manifest."""

    query: str
    batch: int
    file: str | None
    rows: int
    inputs: list[tuple[str, dict[int, int], dict[int, int]]]


class ParquetFolder:
    """A folder of Parquet files, one per batch.

    Call `stage` before the batch is committed and `publish` after it. Both are idempotent. Readers that follow the
    manifest see whole batches, each once. DuckDB, Polars and Spark can also read the folder without the manifest.

    Example:
        >>> import tempfile
        >>> folder = ParquetFolder(Path(tempfile.mkdtemp(), "orders"))
        >>> folder.stage(0, pa.table({"id": [1, 2]}))
        >>> folder.publish(LedgerEntry("orders@1", 0, 1, (), None, committed_at=0))
        >>> [(path.name, pq.read_table(path).num_rows) for path in folder.path.glob("*.parquet")]
        [('part-00000000.parquet', 2)]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / _MANIFEST).mkdir(parents=True, exist_ok=True)

    def stage(self, batch: int, rows: pa.Table) -> None:
        """Write the rows of a batch durably to the file that the manifest will name."""
        if rows.num_rows:
            temporary = self.path / _MANIFEST / f"{batch:08}.parquet"
            pq.write_table(rows, temporary, compression="zstd")
            with temporary.open("rb") as file:
                os.fsync(file.fileno())  # the content before the name
            _DISK.replace(temporary, self._file(batch))
        else:  # a crash may have left the rows of another plan of this batch
            self._file(batch).unlink(missing_ok=True)

    def publish(self, entry: LedgerEntry) -> None:
        """Add a batch to the manifest."""
        target = self.path / _MANIFEST / f"{entry.batch:08}.json"
        if target.exists():
            return
        file = self._file(entry.batch)
        rows = pq.read_metadata(file).num_rows if file.exists() else 0
        manifest_entry = ManifestEntry(entry.query, entry.batch, file.name if rows else None, rows, entry.ranges())
        _DISK.write_file(target, msgspec.json.encode(manifest_entry))

    def _file(self, batch: int) -> Path:
        return self.path / f"part-{batch:08}.parquet"


_PART_ROWS: Final = 500_000  # rows or bytes that a task collects before it sends them
_PART_BYTES: Final = 64 << 20


def stage_in_store(
    stager: Stager, table: ViewTable, batch: int, frame: DataFrame, large: int
) -> tuple[tuple[StagedPart, ...], pa.Table]:
    """Run a batch of a view while workers send rows to the store.

    Returns:
        The parts of successful tasks; and the rows with more than `large` bytes, of which the driver checks whether
        they are within the log's limit for one event: only there the log is open.
    """
    sent = frame.mapInArrow(partial(_send_parts, stager, table, batch, large), "part binary, large binary").toArrow()
    parts = tuple(msgspec.json.decode(part, type=StagedPart) for part in sent.column("part").to_pylist())
    rows = [pa.ipc.open_stream(data).read_all() for data in sent.column("large").to_pylist() if data is not None]
    return parts, pa.concat_tables(rows) if rows else table.schema.empty_table()


def _send_parts(
    stager: Stager, table: ViewTable, batch: int, large: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Send the rows of one task, in parts; large rows go to the driver, too."""
    buffer: list[pa.RecordBatch] = []
    for some in chain(batches, [None]):  # None: the last part
        if some is not None and some.num_rows:
            buffer.append(some)
        rows, size = sum(one.num_rows for one in buffer), sum(one.nbytes for one in buffer)
        if buffer and (some is None or rows >= _PART_ROWS or size >= _PART_BYTES):
            whole = pa.Table.from_batches(buffer).cast(table.schema)
            part = stager.stage(table, batch, whole)
            found = list(find_large_rows(whole, large))
            data = _to_ipc(whole.take(found)) if found else None
            columns = [pa.array([msgspec.json.encode(part)], pa.binary()), pa.array([data], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, ["part", "large"])
            buffer = []


def _to_ipc(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(out.getvalue().to_pybytes())


class Staging:
    """The staged files of one batch, from its run to its commit; the next run removes files that a crash has left.

    Args:
        folder: A folder that workers and driver can access.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, frame: DataFrame) -> pa.Table:
        """Run a batch; returns the rows of successful tasks, in memory-mapped files."""
        self.clear()
        self._folder.mkdir(parents=True)
        paths = frame.mapInArrow(partial(_write_part, str(self._folder)), "path string").toArrow()
        parts = []
        for path in paths.column("path").to_pylist():
            with pa.memory_map(path) as file:
                parts.append(pa.ipc.open_file(file).read_all())
        return pa.concat_tables(parts) if parts else to_arrow_schema(frame.schema, timezone="UTC").empty_table()

    def clear(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _write_part(folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task; the file is named after the attempt, so attempts never share a file."""
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
