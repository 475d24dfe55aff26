"""The figures of views in one table: events to rows, beside hand-written Structured Streaming on the same Spark.

    python -m benchmarks.bench_spine [--quick] [--events N] [--turns N] [--json] [--folder FOLDER]

Cases are compared by the CPU of this process, Java and all Python workers. The hand-written queries read the same
events as JSON files (as a team would) or as Parquet, store their rows in SQLite, and give none of the guarantees: no
ledger, no changelog, no accounting, no synced checkpoint.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.bench_options import Options, bench_options
from benchmarks.machine import this_machine
from benchmarks.measure import Lap, Measured, say
from benchmarks.process_tree import TreeWatch
from benchmarks.spine_events import EventFiles, make_events
from benchmarks.spine_latency import idle_rows, latency_rows
from benchmarks.spine_work import WORK, Work, by_hand, by_headwater, read_only
from benchmarks.table import Aim, Row, at_least, at_most, print_table
from headwater.engine.spark.session import Spark, SparkSettings

__all__ = ["spine_rows"]

_CORES = 2


@dataclass(frozen=True)
class Bench:
    """The setup of one run."""

    options: Options
    spark: SparkSession

    @property
    def turns(self) -> int:
        """The number of measurements of each case, after one for warm-up."""
        return 1 if self.options.quick else self.options.turns

    def measure(self, events: int, cases: dict[str, Callable[[], int]]) -> dict[str, Measured]:
        """Run the cases alternately; the first turn warms up the JVM."""
        laps: dict[str, list[Lap]] = {name: [] for name in cases}
        for turn in range(self.turns + 1):
            for name, case in cases.items():
                watch = TreeWatch()
                with watch.lap(events):
                    rows = case()
                lap = watch.laps[0]
                say(f"  {name}: {rows:,} rows, {lap.wall:.1f} s wall, {lap.cpu:.1f} s CPU")
                if turn:
                    laps[name].append(lap)
        return {name: Measured(tuple(found)) for name, found in laps.items()}


def compared_rows(bench: Bench) -> Iterator[Row]:
    """Yields rows that compare Headwater with hand-written queries."""
    events = bench.options.size(full=bench.options.events, quick=50_000)
    for number, work in enumerate(WORK):
        say(f"{work.name}: {events:,} events")
        folder = bench.options.folder / f"work-{number}"
        given = make_events(folder, events, work.keys)
        measured = bench.measure(events, _cases(bench, work, given, folder))
        ours = measured.pop("Headwater")
        for name, aim in (("JSON files", at_most(0.9, of="ratio")), ("Parquet files", at_most(1.15, of="ratio"))):
            yield cpu_row(work.name, ours, name, measured[name], aim)


def _cases(bench: Bench, work: Work, given: EventFiles, folder: Path) -> dict[str, Callable[[], int]]:
    return {
        "Headwater": lambda: by_headwater(work, given, bench.spark, _CORES),
        "JSON files": lambda: by_hand(work, given, bench.spark, folder / "hand", "json"),
        "Parquet files": lambda: by_hand(work, given, bench.spark, folder / "hand", "parquet"),
    }


def cpu_row(figure: str, ours: Measured, name: str, theirs: Measured, aim: Aim) -> Row:
    """Returns a row of CPU seconds, with the ratio to another case of the same run."""
    ratio = statistics.median(mine.cpu / other.cpu for mine, other in zip(ours.laps, theirs.laps, strict=True))
    compared = f"{name} by hand, {theirs.cpu:.1f} s CPU"
    return Row(figure, ours.cpu, "s CPU", ours.wall, ours.cpu, compared, ratio, aim)


def source_rows(bench: Bench) -> Iterator[Row]:
    """Yields rows for the source alone: typed rows into Spark, and the cost of late detection."""
    events = bench.options.size(full=bench.options.events, quick=50_000)
    say(f"source alone: {events:,} events")
    given = make_events(bench.options.folder / "source", events, 10_000, files=False)
    measured = bench.measure(
        events,
        {
            "with the late rule": lambda: read_only(given, bench.spark, _CORES, late=True),
            "without it": lambda: read_only(given, bench.spark, _CORES, late=False),
        },
    )
    ruled, bare = measured["with the late rule"], measured["without it"]
    rate = 2 / ruled.cpu_per_event
    yield Row("source alone, two processors' worth", rate, "rows/s", ruled.wall, ruled.cpu, aim=at_least(1_400_000))
    yield cpu_row("late rule", ruled, "the same without it,", bare, at_most(1.05, of="ratio"))


def backlog_rows(bench: Bench) -> Iterator[Row]:
    """Yields rows for backlogs of growing length; CPU per event should stay constant."""
    first: float | None = None
    longest = bench.options.size(full=2 * bench.options.events, quick=60_000)
    for events in (longest // 10, longest * 3 // 10, longest):
        say(f"backlog: {events:,} events")
        folder = bench.options.folder / f"backlog-{events}"
        given = make_events(folder, events, 10_000, files=False)
        watch = TreeWatch()
        with watch.lap(events):
            by_headwater(WORK[0], given, bench.spark, _CORES)
        lap = watch.laps[0]
        each = lap.cpu / events * 1e6
        first = first or each
        aim = at_most(1.25, of="ratio")
        yield Row(f"backlog of {events:,}", each, "µs CPU each", lap.wall, lap.cpu, "the shortest", each / first, aim)


def spine_rows(options: Options, spark: SparkSession) -> list[Row]:
    """Returns all figures."""
    bench = Bench(options, spark)
    return [
        *compared_rows(bench),
        *source_rows(bench),
        *latency_rows(options, spark),
        *idle_rows(options, spark),
        *backlog_rows(bench),
    ]


def main() -> None:
    """Print the table."""
    with bench_options("bench_spine") as options:
        spark = Spark(options.folder / "spark", SparkSettings(cores=_CORES, memory="2g"))
        try:
            rows = spine_rows(options, spark.session)
        finally:
            spark.stop()
        print_table("Events to views", this_machine(options.folder), rows, as_json=options.json)


if __name__ == "__main__":
    main()
