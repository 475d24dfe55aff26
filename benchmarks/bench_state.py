"""The figures of keyed state in one table: count and sum per key, beside Spark's aggregate over the same source.

    python -m benchmarks.bench_state [--quick] [--turns N] [--json] [--folder FOLDER] [--pathway PYTHON]

Cases are compared by the CPU of this process, Java and all Python workers, after the first batches of a query, on a
warm JVM; without Java's compilers, which work only in the first minute of a query. Every query reads the same topic
through the same source, and its rows are collected with `toArrow` and dropped. A ratio above one means that Headwater
took less CPU.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from benchmarks.bench_options import Options, bench_options
from benchmarks.machine import this_machine
from benchmarks.measure import Lap, Measured, say
from benchmarks.process_tree import KEEP_COMPILERS
from benchmarks.state_joins import JOINS, Size, fill_topics, run_join
from benchmarks.state_size import measure_growth
from benchmarks.state_timeline import Events, run_pathway, run_timeline
from benchmarks.state_work import HOSTS, PER_KEY, SQL, Query, Topic, counting, make_filled_topic, make_topic, run
from benchmarks.table import Row, at_least, print_table
from headwater.engine.spark.session import Spark, SparkSettings

__all__ = ["state_rows"]

_CORES = 2


@dataclass(frozen=True)
class Case:
    """One size of state and of batches, and the target of each host.

    Args:
        keys: The number of keys.
        batch: The number of rows of a batch.
        batches: The number of measured batches, after `warm` others.
        aims: The target ratio to Spark's aggregate, by host.
        filled: Whether every key has state before the first batch.
    """

    keys: int
    batch: int
    batches: int
    warm: int
    aims: Mapping[str, float]
    filled: bool = False

    def __str__(self) -> str:
        return f"{self.keys:,} keys{', all with state' * self.filled}, batches of {self.batch:,}"


CASES = (
    Case(10_000, 250_000, batches=8, warm=4, aims={"in Spark": 0.7, "at the sink": 0.8}),
    Case(200_000, 250_000, batches=4, warm=3, aims={"in Spark": 1.5, "at the sink": 2.0}),
    Case(10_000, 5_000, batches=20, warm=8, aims={"in Spark": 0.9, "at the sink": 2.0}),
    Case(2_000_000, 5_000, batches=10, warm=4, aims={"at the sink": 2.0}, filled=True),
)
JOIN_AIMS = {"stream-table join": 250_000, "as-of join": 150_000}
"""Events per second on two cores of CPU."""
SAMPLE = Case(10_000, 20_000, batches=2, warm=1, aims={})
"""The size for transformWithState per key; small, because it is slow."""


@dataclass(frozen=True)
class Bench:
    """The setup of one run."""

    options: Options
    spark: SparkSession

    def topic(self, case: Case) -> Topic:
        """Write the events of a case."""
        batch = self.options.size(full=case.batch, quick=min(case.batch, 2_000))
        batches = self.options.size(full=case.batches + case.warm, quick=case.warm + 1)
        folder = self.options.folder / f"events-{case.keys}-{case.batch}"
        keys = self.options.size(full=case.keys, quick=min(case.keys, 20_000))
        make = make_filled_topic if case.filled else make_topic
        return make(folder, events=batch * batches, keys=keys, batch=batch)

    def measure(self, case: Case, queries: Mapping[str, Query]) -> dict[str, Measured]:
        """Run the queries alternately; the first turn warms up the JVM."""
        topic = self.topic(case)
        turns = 1 if self.options.quick else self.options.turns
        laps: dict[str, list[Lap]] = {name: [] for name in queries}
        for turn in range(turns + 1):
            for name, query in queries.items():
                lap = run(self.spark, topic, query, warm=case.warm)
                say(f"  {name}: {lap.wall:.1f} s wall, {lap.cpu:.2f} s CPU for {lap.events:,} events")
                if turn:
                    laps[name].append(lap)
        return {name: Measured(tuple(found)) for name, found in laps.items()}


def compared_rows(bench: Bench, case: Case, hosts: Mapping[str, Query]) -> Iterator[Row]:
    """Yields rows that compare each host with Spark's aggregate."""
    say(str(case))
    ours = {name: host for name, host in hosts.items() if name in case.aims}
    measured = bench.measure(case, {"Spark SQL": SQL, **ours})
    theirs = measured.pop("Spark SQL")
    for name, mine in measured.items():
        yield _row(f"{name}: {case}", mine, "Spark SQL", theirs, case.aims[name])


def per_key_rows(bench: Bench, hosts: Mapping[str, Query]) -> Iterator[Row]:
    """Yields rows that compare each host with transformWithState per key."""
    say(f"transformWithState for each key: {SAMPLE}")
    measured = bench.measure(SAMPLE, {"transformWithState": PER_KEY, **hosts})
    theirs = measured.pop("transformWithState")
    for name, mine in measured.items():
        yield _row(f"{name}: {SAMPLE}", mine, "transformWithState per key", theirs, 5.0)


def _row(figure: str, ours: Measured, name: str, theirs: Measured, aim: float) -> Row:
    ratio = statistics.median(other.cpu / mine.cpu for mine, other in zip(ours.laps, theirs.laps, strict=True))
    rate, compared = 2 / ours.cpu_per_event, 2 / theirs.cpu_per_event
    return Row(
        figure,
        rate,
        "rows/s cpu2",
        ours.wall,
        ours.cpu,
        f"{name}, {compared:,.0f} rows/s cpu2",
        ratio,
        at_least(aim, of="ratio"),
    )


def size_rows(options: Options) -> Iterator[Row]:
    """Yields rows for batches of 5,000 rows into a growing number of keys, at the sink and without Spark."""
    sizes = [1_000, 10_000] if options.quick else [100_000, 1_000_000, 10_000_000]
    batches = options.size(full=20, quick=2)
    first: float | None = None
    for found in measure_growth(options.folder / "grown", sizes, 5_000, batches, counting()):
        say(f"  {found.keys:,} keys: {found.batch_cpu * 1e3:.0f} ms CPU a batch")
        first = first or found.batch_cpu
        about = f"{found.keys:,} keys, {found.file / 1e6:,.0f} MB"
        yield Row(
            f"one batch of 5,000 rows: {about}", found.batch_cpu * 1e3, "ms CPU", found.batch_wall,
            found.batch_cpu, f"with {sizes[0]:,} keys", found.batch_cpu / first,
        )  # fmt: skip
        yield Row(f"restart to the end of the first batch: {about}", found.restart, "s")
        yield Row(f"most memory of the process: {about}", found.memory / 1e6, "MB")


def join_rows(bench: Bench) -> Iterator[Row]:
    """Yields rows for joins of events with a table, from topic to topic."""
    options = bench.options
    size = Size(options.size(full=3_000_000, quick=60_000), options.size(full=100_000, quick=500), versions=10)
    folder = options.folder / "joins"
    fill_topics(folder, size)
    for name, join in JOINS.items():
        say(f"{name}, {size.keys:,} keys, {size.versions} versions each")
        turns = 1 if options.quick else options.turns
        laps = [run_join(folder, size, join, bench.spark, _CORES) for _ in range(turns)]
        measured = Measured(tuple(laps))
        rate = 2 / measured.cpu_per_event
        figure = f"{name}: {size.keys:,} keys with {size.versions} versions"
        yield Row(figure, rate, "events/s cpu2", measured.wall, measured.cpu, aim=at_least(JOIN_AIMS[name]))


def timeline_rows(options: Options) -> Iterator[Row]:
    """Yields rows for posts that reach their followers, beside a full join per batch."""
    follows = options.size(full=1_000_000, quick=2_000)
    for old in (0, follows // 100):
        say(f"timeline, {follows:,} follows, {old:,} old posts")
        events = Events.generate(follows, old, posts=20, batches=options.size(full=20, quick=2))
        found = run_timeline(options.folder / "timeline", events)
        figure = f"timeline of {follows:,} follows and {found.before:,} rows, 20 posts a batch"
        rate, unit, aim = found.rows / found.cpu, "rows/s of CPU", at_least(2.0, of="ratio")
        full = "the full join by DuckDB for each batch"
        yield Row(figure, rate, unit, found.wall, found.cpu, full, found.recomputed_cpu / found.cpu, aim)
        if options.pathway is not None:
            rows, cpu = run_pathway(options.pathway, options.folder, events)
            assert rows == found.rows
            yield Row(figure, rate, unit, found.wall, found.cpu, "Pathway, in memory", cpu / found.cpu, aim)


def state_rows(options: Options, spark: SparkSession) -> list[Row]:
    """Returns all figures."""
    bench = Bench(options, spark)
    rows = [row for case in CASES for row in compared_rows(bench, case, HOSTS)]
    rows += [*per_key_rows(bench, HOSTS), *join_rows(bench)]
    return [*rows, *timeline_rows(options), *size_rows(options)]


def main() -> None:
    """Print the table."""
    os.environ["JDK_JAVA_OPTIONS"] = KEEP_COMPILERS
    with bench_options("bench_state") as options:
        spark = Spark(options.folder / "spark", SparkSettings(cores=_CORES, memory="2g"))
        try:
            rows = state_rows(options, spark.session)
        finally:
            spark.stop()
        print_table("State per key", this_machine(options.folder), rows, as_json=options.json)


if __name__ == "__main__":
    main()
