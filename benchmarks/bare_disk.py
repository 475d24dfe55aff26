"""The speed of the disk: bytes written to one growing file and synced, in groups.

    python -m benchmarks.bare_disk [--quick] [--json] [--folder FOLDER]

No log that syncs before it acknowledges can be faster than this with one writer, so durable figures are given
as a share of it. A plain append grows the file, whose size is synced with the data. The prepared file has its
blocks written in advance, so a sync writes no metadata.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.bench_options import Options, bench_options
from benchmarks.machine import this_machine
from benchmarks.measure import Case, Watch, measure, percentile, say
from benchmarks.orders import JSON_BYTES
from benchmarks.table import Row, print_table, rate_row

__all__ = ["BareSync", "write_and_sync"]

GROUPS = (1, 10, 100, 1_000)


def write_and_sync(
    folder: Path, *, group: int, groups: int, event_bytes: float = JSON_BYTES, prepared: bool = False
) -> Case:
    """Returns a case that writes groups of events, each group in one write and one fdatasync."""
    data = os.urandom(round(group * event_bytes))

    def case(watch: Watch) -> None:
        path = folder / "bare-disk"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            if prepared:
                _prepare(file, len(data) * groups)
            with watch.lap(group * groups):
                for _ in range(groups):
                    os.write(file, data)
                    os.fdatasync(file)
        finally:
            os.close(file)
            path.unlink()

    return case


class BareSync:
    """A growing file on which single syncs are measured; a context manager that removes it."""

    def __init__(self, folder: Path, size: int = JSON_BYTES) -> None:
        self._path = folder / "bare-sync"
        self._data = os.urandom(size)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def timed(self) -> float:
        """Write one event and sync it; returns the duration in seconds."""
        start = time.perf_counter()
        os.write(self._file, self._data)
        os.fdatasync(self._file)
        return time.perf_counter() - start

    def __enter__(self) -> BareSync:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        self._path.unlink()


def _prepare(file: int, size: int) -> None:
    for start in range(0, size, 1 << 20):
        os.write(file, bytes(min(1 << 20, size - start)))
    os.fsync(file)
    os.lseek(file, 0, os.SEEK_SET)


def disk_rows(options: Options) -> list[Row]:
    """Returns rows for each group size on a growing and on a prepared file, and the latency of one sync."""
    rows = []
    for group in GROUPS:
        say(f"groups of {group:,}")
        groups = options.size(full=2_000, quick=5)
        cases = {
            f"{file} file": write_and_sync(options.folder, group=group, groups=groups, prepared=file == "prepared")
            for file in ("growing", "prepared")
        }
        measured = measure(cases, repeats=options.repeats)
        growing, prepared = measured["growing file"], measured["prepared file"]
        rows.append(rate_row(f"growing file, groups of {group:,}", growing))
        rows.append(rate_row(f"prepared file, groups of {group:,}", prepared, ("growing file", growing)))
    say("one sync")
    with BareSync(options.folder) as sync:
        seconds = [sync.timed() for _ in range(options.size(full=1_000, quick=10))]
    return [*rows, *(Row(f"one sync, p{p}", percentile(seconds, p / 100) * 1e3, "ms") for p in (50, 99))]


def main() -> None:
    """Print the table of the bare disk."""
    with bench_options("bare disk") as options:
        machine = this_machine(options.folder)
        print_table("Bare disk, 200-byte events", machine, disk_rows(options), as_json=options.json)


if __name__ == "__main__":
    main()
