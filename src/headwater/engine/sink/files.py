"""Parquet files with a manifest: a batch's file counts once the manifest names it, and it names each batch once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.store import LedgerEntry

__all__ = ["ParquetFolder"]

_MANIFEST: Final = "_manifest"


class Listed(msgspec.Struct, frozen=True):
    """One batch in the manifest."""

    query: str
    batch: int
    file: str | None
    rows: int
    inputs: list[tuple[str, dict[int, int], dict[int, int]]]


class ParquetFolder:
    """A folder of Parquet files that batches add to.

    `stage` before the batch is committed, `publish` after it; both may be called again, and leave the same behind.
    Readers that take all files of the manifest see whole batches, each once; DuckDB, Polars and Spark can read the
    folder as it is.

    Example:
        >>> import tempfile
        >>> folder = ParquetFolder(Path(tempfile.mkdtemp(), "orders"))
        >>> folder.stage(0, pa.table({"id": [1, 2]}))
        >>> folder.publish(LedgerEntry("orders@1", 0, 1, (), None, committed_at=0))
        >>> [(path.name, pq.read_table(path).num_rows) for path in folder.files()]
        [('part-00000000.parquet', 2)]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / _MANIFEST).mkdir(parents=True, exist_ok=True)

    def stage(self, batch: int, rows: pa.Table) -> None:
        """Write the rows of a batch, durably, where the manifest will look for them."""
        if rows.num_rows:
            beside = self.path / _MANIFEST / f"{batch:08}.parquet"
            pq.write_table(rows, beside, compression="zstd")
            _settle(beside, self._file(batch))

    def publish(self, entry: LedgerEntry) -> None:
        """Name a batch in the manifest."""
        target = self.path / _MANIFEST / f"{entry.batch:08}.json"
        if target.exists():
            return
        file = self._file(entry.batch)
        rows = pq.read_metadata(file).num_rows if file.exists() else 0
        listed = Listed(entry.query, entry.batch, file.name if rows else None, rows, entry.ranges())
        beside = target.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(listed))
        _settle(beside, target)

    def files(self) -> Iterator[Path]:
        """The files that count, in the order of their batches."""
        for path in sorted((self.path / _MANIFEST).glob("*.json")):
            listed = msgspec.json.decode(path.read_bytes(), type=Listed, strict=False)
            if listed.file is not None:
                yield self.path / listed.file

    def _file(self, batch: int) -> Path:
        return self.path / f"part-{batch:08}.parquet"


def _settle(beside: Path, target: Path) -> None:
    """Give a finished file its name; after a power cut it is there as a whole or not at all."""
    _sync(beside)
    beside.replace(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
