"""State per key in one table: count and sum for each key, beside Spark's own aggregate over the same source.

    python -m benchmarks.bench_state [--quick] [--turns N] [--json] [--folder FOLDER] [--pathway PYTHON]

Compared by CPU: of this process, Java and every Python worker, after the first batches of a query, on a Java that is
warm; without Java's compiler, which works for the first minute of each query and then no more. Every query reads the
same topic through the same source, and its rows are taken by `toArrow` and dropped. A ratio above one means that ours
took less CPU than what it is compared with.
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
from benchmarks.state_joins import JOINS, Size, filled, joined
from benchmarks.state_size import grown
from benchmarks.state_timeline import Events, fanned_out, in_pathway
from benchmarks.state_work import HOSTS, PER_KEY, SQL, Query, Topic, counting, filled_topic, made_topic, run
from benchmarks.table import Row, at_least, print_table
from headwater.engine.spark.session import Spark, SparkSettings

__all__ = ["state_rows"]

_CORES = 2


@dataclass(frozen=True)
class Case:
    """One size of state and of batches, and what is aimed at by each host.

    Args:
        keys: How many keys there are.
        batch: How many rows a batch has.
        batches: How many batches are measured, after `warm` others.
        aims: Times Spark's own aggregate, by host.
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
"""Events a second and two cores of CPU."""
SAMPLE = Case(10_000, 20_000, batches=2, warm=1, aims={})
"""What transformWithState for each key is measured with: little, since it is slow."""


@dataclass(frozen=True)
class Bench:
    """What one run measures with."""

    options: Options
    spark: SparkSession

    def topic(self, case: Case) -> Topic:
        """Events for a case."""
        batch = self.options.size(full=case.batch, quick=min(case.batch, 2_000))
        batches = self.options.size(full=case.batches + case.warm, quick=case.warm + 1)
        folder = self.options.folder / f"events-{case.keys}-{case.batch}"
        keys = self.options.size(full=case.keys, quick=min(case.keys, 20_000))
        make = filled_topic if case.filled else made_topic
        return make(folder, events=batch * batches, keys=keys, batch=batch)

    def measure(self, case: Case, queries: Mapping[str, Query]) -> dict[str, Measured]:
        """Run the queries in turn; the first turn warms Java up."""
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
    """Each host beside Spark's own aggregate."""
    say(str(case))
    ours = {name: host for name, host in hosts.items() if name in case.aims}
    measured = bench.measure(case, {"Spark SQL": SQL, **ours})
    theirs = measured.pop("Spark SQL")
    for name, mine in measured.items():
        yield _row(f"{name}: {case}", mine, "Spark SQL", theirs, case.aims[name])


def per_key_rows(bench: Bench, hosts: Mapping[str, Query]) -> Iterator[Row]:
    """Each host beside transformWithState for each key."""
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
    """Batches of 5,000 rows into ever more keys, at the sink; what is not Spark's."""
    sizes = [1_000, 10_000] if options.quick else [100_000, 1_000_000, 10_000_000]
    batches = options.size(full=20, quick=2)
    first: float | None = None
    for found in grown(options.folder / "grown", sizes, 5_000, batches, counting()):
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
    """Events with rows of a table beside them, from topic to topic."""
    options = bench.options
    size = Size(options.size(full=3_000_000, quick=60_000), options.size(full=100_000, quick=500), versions=10)
    folder = options.folder / "joins"
    filled(folder, size)
    for name, join in JOINS.items():
        say(f"{name}, {size.keys:,} keys, {size.versions} versions each")
        turns = 1 if options.quick else options.turns
        laps = [joined(folder, size, join, bench.spark, _CORES) for _ in range(turns)]
        measured = Measured(tuple(laps))
        rate = 2 / measured.cpu_per_event
        figure = f"{name}: {size.keys:,} keys with {size.versions} versions"
        yield Row(figure, rate, "events/s cpu2", measured.wall, measured.cpu, aim=at_least(JOIN_AIMS[name]))


def timeline_rows(options: Options) -> Iterator[Row]:
    """Posts that reach their followers, beside the join computed anew for each batch."""
    follows = options.size(full=1_000_000, quick=2_000)
    for old in (0, follows // 100):
        say(f"timeline, {follows:,} follows, {old:,} old posts")
        events = Events.made(follows, old, posts=20, batches=options.size(full=20, quick=2))
        found = fanned_out(options.folder / "timeline", events)
        figure = f"timeline of {follows:,} follows and {found.before:,} rows, 20 posts a batch"
        rate, unit, aim = found.rows / found.cpu, "rows/s of CPU", at_least(2.0, of="ratio")
        anew = "the join computed anew by DuckDB for each batch"
        yield Row(figure, rate, unit, found.wall, found.cpu, anew, found.anew_cpu / found.cpu, aim)
        if options.pathway is not None:
            rows, cpu = in_pathway(options.pathway, options.folder, events)
            assert rows == found.rows
            yield Row(figure, rate, unit, found.wall, found.cpu, "Pathway, in memory", cpu / found.cpu, aim)


def state_rows(options: Options, spark: SparkSession) -> list[Row]:
    """All figures."""
    bench = Bench(options, spark)
    rows = [row for case in CASES for row in compared_rows(bench, case, HOSTS)]
    rows += [*per_key_rows(bench, HOSTS), *join_rows(bench)]
    return [*rows, *timeline_rows(options), *size_rows(options)]


def main() -> None:
    """Measure and print."""
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
