"""The options of every benchmark, and its working folder."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import this_machine
from benchmarks.measure import say
from headwater.services.kafka import cache_folder

__all__ = ["Options", "bench_options"]


@dataclass(frozen=True)
class Options:
    """Size, folder and output of a run."""

    folder: Path
    quick: bool = False
    json: bool = False
    kafka: bool = True
    events: int = 5_000_000
    turns: int = 3
    pathway: Path | None = None
    cases: tuple[str, ...] = ()
    largest: int = 10**9
    debezium: bool = True

    @property
    def repeats(self) -> int:
        """The number of measurements of each case."""
        return 1 if self.quick else 7

    def size(self, *, full: int, quick: int) -> int:
        """Returns a number of events, groups or topics: `full`, or `quick` for a run that only proves that it works."""
        return quick if self.quick else full


@contextlib.contextmanager
def bench_options(what: str, arguments: Sequence[str] | None = None) -> Iterator[Options]:
    """Yields the options of the command line, with a new folder that is removed at the end.

    The folder is in the user's cache folder: `/tmp` is often in memory, where a sync costs nothing.
    """
    parser = argparse.ArgumentParser(prog=what, description=f"Benchmark: {what}.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, not how fast")
    parser.add_argument("--json", action="store_true", help="print one JSON document in place of the table")
    parser.add_argument("--no-kafka", action="store_true", help="do not start a Kafka broker (no Java needed)")
    parser.add_argument("--no-debezium", action="store_true", help="do not run the Debezium engine (capture only)")
    parser.add_argument("--folder", type=Path, default=cache_folder(), help="a folder on the disk to measure")
    parser.add_argument("--events", type=int, default=5_000_000, help="events of a case (spine only)")
    parser.add_argument("--turns", type=int, default=3, help="how often each case is measured (spine only)")
    parser.add_argument("--pathway", type=Path, help="a Python that has Pathway, to compare with (state only)")
    parser.add_argument("--cases", default="", help="the cases to measure, separated by commas (growth only)")
    parser.add_argument("--largest", type=int, default=10**9, help="leave out larger sizes (growth only)")
    given = parser.parse_args(arguments)
    # Without this, a run that is terminated would leave its folder behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as folder:
        options = Options(
            Path(folder), given.quick, given.json, not given.no_kafka, given.events, given.turns, given.pathway,
            tuple(filter(None, given.cases.split(","))), given.largest, not given.no_debezium,
        )  # fmt: skip
        if this_machine(options.folder).file_system.startswith("tmpfs"):
            say(f"warning: {given.folder} is in memory; give a folder on a disk with --folder")
        yield options
