"""The figures at scale in one table: Kafka, PostgreSQL and Spark workers, beside Structured Streaming written by hand.

    python -m benchmarks.bench_scale [--quick] [--events N] [--turns N] [--json] [--folder FOLDER]

Starts its own broker and PostgreSQL server. Every turn reads a new topic, so it includes the event-time index.
Cases are compared by CPU, as in bench_spine, without the CPU of Kafka and PostgreSQL.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from benchmarks import bench_postgres
from benchmarks.bench_options import Options, bench_options
from benchmarks.machine import this_machine
from benchmarks.measure import Lap, Measured, say
from benchmarks.process_tree import TreeWatch
from benchmarks.scale_realtime import realtime_rows
from benchmarks.scale_work import Place, send_events, sink_by_hand, sink_by_headwater, view_by_hand, view_by_headwater
from benchmarks.scale_workers import worker_rows
from benchmarks.table import Aim, Row, at_least, print_table
from headwater.engine.realtime.kafka import load_connector
from headwater.engine.spark.session import Spark, SparkSettings
from tests.services.kafka import kafka_broker
from tests.services.postgres import postgres_server

__all__ = ["main"]

Case = Callable[[Place, str], int]


def compared_rows(options: Options, place: Place) -> Iterator[Row]:
    """Yields rows that compare Headwater with hand-written queries; the first turn warms up the JVM."""
    turns = 1 if options.quick else options.turns
    events = options.size(full=options.events // 5, quick=20_000)
    topics = [f"events{turn}" for turn in range(turns + 1)]
    for topic in topics:
        say(f"{topic}: {events:,} events into Kafka")
        send_events(place.kafka, topic, events)
    yield _row(
        "Kafka to windowed view in PostgreSQL",
        (view_by_headwater, view_by_hand),
        ("Spark's own source, upserts by hand", at_least(0.9, of="ratio")),
        place,
        topics,
        events,
    )
    yield _row(
        "Kafka to Kafka, each effect once",
        (sink_by_headwater, sink_by_hand),
        ("Spark's own source and sink, at least once", at_least(0.5, of="ratio")),
        place,
        topics,
        events,
    )


def _row(
    figure: str, cases: tuple[Case, Case], compared: tuple[str, Aim], place: Place, topics: list[str], events: int
) -> Row:
    """Returns events per CPU second, and the ratio to the other case of the same turn."""
    say(figure)
    measured = []
    for case in cases:
        laps = [_lap(case, place, topic, events) for topic in topics]
        measured.append(Measured(tuple(laps[1:])))
    ours, theirs = measured
    pairs = zip(ours.laps, theirs.laps, strict=True)
    ratio = statistics.median(other.cpu / mine.cpu for mine, other in pairs)
    words, aim = compared
    rate = 1 / ours.cpu_per_event
    other = f"{words}: {1 / theirs.cpu_per_event:,.0f}"
    return Row(figure, rate, "events/s of CPU", ours.wall, ours.cpu, other, ratio, aim)


def _lap(case: Case, place: Place, topic: str, events: int) -> Lap:
    watch = TreeWatch()
    with watch.lap(events):
        rows = case(place, topic)
    (lap,) = watch.laps
    say(f"  {case.__name__}: {rows:,} rows, {lap.wall:.1f} s wall, {lap.cpu:.1f} s CPU")
    return lap


def scale_rows(options: Options) -> list[Row]:
    """Returns all figures."""
    with kafka_broker(options.folder / "kafka") as address, postgres_server(durable=True) as server:
        spark = Spark(options.folder / "spark", SparkSettings(cores=4, memory="2g"))
        try:
            load_connector(spark.session, None, say)
            place = Place(spark.session, address, server.url(), options.folder / "case")
            found = [*compared_rows(options, place), *realtime_rows(options, spark.session, address)]
        finally:
            spark.stop()
    return [*found, *bench_postgres.figures(options), *worker_rows(options)]


def main() -> None:
    """Print the table."""
    with bench_options("bench_scale") as options:
        rows = scale_rows(options)
        print_table("At scale", this_machine(options.folder), rows, as_json=options.json)


if __name__ == "__main__":
    main()
