"""The figures of the log in one table: bare disk, Headwater and Kafka, alternately, in one run.

    python -m benchmarks.bench_log [--quick] [--json] [--no-kafka] [--folder FOLDER]

The bare disk writes as many bytes per event as Headwater does, so that the ratio compares the same work.
Kafka gets the events as JSON of 200 bytes, as its producers send them; where Headwater starts from dicts, so
does Kafka, but without validation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.bare_disk import write_and_sync
from benchmarks.bench_options import Options, bench_options
from benchmarks.headwater_growth import growth_rows, large_log_rows
from benchmarks.headwater_log import Headwater, Latencies
from benchmarks.machine import this_machine
from benchmarks.measure import Case, Measured, measure, percentile, say
from benchmarks.slow_disk import EXTRA, SlowDisk
from benchmarks.table import Aim, Row, at_least, at_most, print_table, rate_row
from tests.services.system_packages import UnavailableError

if TYPE_CHECKING:
    from benchmarks.kafka_producer import Kafka

__all__ = ["Bench", "log_rows"]

SYNCED, UNSYNCED = "Kafka with flush", "Kafka"
DISK = "bare disk"


@dataclass(frozen=True)
class Bench:
    """The setup of one run: its options, a log, and a broker unless --no-kafka is given."""

    options: Options
    log: Headwater
    kafka: Kafka | None

    def measure(self, cases: Mapping[str, Case | None]) -> dict[str, Measured]:
        """Run the cases alternately; a case is None if it needs a broker and there is none."""
        here = {name: case for name, case in cases.items() if case is not None}
        processes = [self.kafka.process] if self.kafka else []
        return measure(here, repeats=self.options.repeats, processes=processes, warm_up=not self.options.quick)

    def on_kafka(self, case: Callable[[Kafka], Case]) -> Case | None:
        """Returns a case on the broker; None without one."""
        return case(self.kafka) if self.kafka else None


def compared(figure: str, measured: Mapping[str, Measured], case: str, against: Mapping[str, Aim | None]) -> list[Row]:
    """Returns one row per case that this case is compared with; one row without a comparison if there is none."""
    pairs = [(name, measured[name], aim) for name, aim in against.items() if name in measured]
    if not pairs:
        return [rate_row(figure, measured[case])]
    return [rate_row(figure, measured[case], (name, other), aim) for name, other, aim in pairs]


def group_rows(bench: Bench) -> list[Row]:
    """Returns rows for durable appends in groups; each append waits for its acknowledgement."""
    rows = []
    for group, full in ((1, 300), (10, 300), (100, 300), (1_000, 1_000)):
        say(f"durable append, groups of {group:,}")
        groups = bench.options.size(full=full, quick=3)
        size = bench.log.bytes_per_event(group)
        measured = bench.measure(
            {
                DISK: write_and_sync(bench.options.folder, group=group, groups=groups, event_bytes=size),
                "Arrow": bench.log.append_groups("durable", groups=groups, group=group),
                "dicts": bench.log.append_groups("durable", groups=groups, group=group, arrow=False),
                SYNCED: _synced_groups(bench, group, groups),
            }
        )
        judged = group == 1_000
        aims = {DISK: at_least(0.8, of="ratio"), SYNCED: at_least(1, of="ratio")} if judged else {}
        for form in ("Arrow", "dicts"):
            against = {name: aims.get(name) if form == "Arrow" else None for name in (DISK, SYNCED)}
            rows += compared(f"durable append, groups of {group:,}, {form}", measured, form, against)
    return rows


def _synced_groups(bench: Bench, group: int, groups: int) -> Case | None:
    return bench.on_kafka(lambda server: server.append_groups("synced", groups=groups, group=group))


def volume_rows(bench: Bench) -> list[Row]:
    """Returns rows for many events at `fast`, in few calls."""
    say("send_many at fast")
    count = bench.options.size(full=1_000_000, quick=2_000)
    dicts = bench.options.size(full=200_000, quick=2_000)
    measured = bench.measure(
        {
            "Arrow": bench.log.append_all("fast", count=count),
            "dicts": bench.log.append_all("fast", count=dicts, arrow=False),
            "Kafka, bytes": bench.on_kafka(lambda server: server.append_all("unsynced", count=dicts)),
            "Kafka, dicts": bench.on_kafka(lambda server: server.append_all("unsynced", count=dicts, from_dicts=True)),
        }
    )
    return [
        *_with_aim("send_many at fast, Arrow", measured, "Arrow", "Kafka, bytes", 2_000_000),
        *_with_aim("send_many at fast, dicts, validated", measured, "dicts", "Kafka, dicts", 250_000),
    ]


def sender_rows(bench: Bench) -> list[Row]:
    """Returns rows for single events from one thread and from 64; each send waits for its acknowledgement."""
    say("concurrent single senders, durable")
    one, each = bench.options.size(full=2_000, quick=3), bench.options.size(full=200, quick=2)
    measured = bench.measure(
        {
            "one sender": bench.log.concurrent_senders("durable", senders=1, count=one),
            "64 senders": bench.log.concurrent_senders("durable", senders=64, count=each),
            "Kafka with flush, 1": bench.on_kafka(
                lambda server: server.concurrent_senders("synced", senders=1, count=one // 2 or 1)
            ),
            "Kafka with flush, 64": bench.on_kafka(
                lambda server: server.concurrent_senders("synced", senders=64, count=each)
            ),
        }
    )
    aims = {"one sender": at_least(10, of="ratio"), "Kafka with flush, 64": None}
    return [
        *compared("one single sender, durable", measured, "one sender", {"Kafka with flush, 1": None}),
        *compared("64 concurrent single senders, durable", measured, "64 senders", aims),
    ]


def read_rows(bench: Bench) -> list[Row]:
    """Returns rows for reading a whole topic, as Arrow batches and as Python events."""
    say("reading")
    count = bench.options.size(full=1_000_000, quick=2_000)
    topic = bench.log.fill(count)
    if bench.kafka:
        bench.kafka.fill("filled", count)
    measured = bench.measure(
        {
            "Arrow": bench.log.read_arrow(topic, count=count),
            "events": bench.log.read_events(topic, count=count),
            "Kafka, bytes": bench.on_kafka(lambda server: server.read("filled", count=count)),
            "Kafka, dicts": bench.on_kafka(lambda server: server.read("filled", count=count, decoded=True)),
        }
    )
    return [
        *_with_aim("read as Arrow", measured, "Arrow", "Kafka, bytes", 3_000_000),
        *_with_aim("read as Python events", measured, "events", "Kafka, dicts", 300_000),
    ]


def latency_rows(bench: Bench) -> list[Row]:
    """Returns rows for the time from `send` until a consumer in another process has the event."""
    rows = []
    count = bench.options.size(full=1_000, quick=5)
    for level, topic in (("durable", "synced"), ("fast", "unsynced")):
        say(f"append to consumer in another process, {level}")
        found = bench.log.latency(level, count=count)
        figure = f"append to consumer in another process, {level}"
        rows += _latency_rows(figure, found)
        if bench.kafka:
            theirs = bench.kafka.latency(topic, count=count)
            rows += _latency_on_kafka(figure, SYNCED if topic == "synced" else UNSYNCED, found, theirs)
    return rows


def _latency_rows(figure: str, found: Latencies, extra: float = 0.0) -> list[Row]:
    """Returns p50 and p99; durable latency is compared with a bare sync plus `extra` seconds."""
    p50, p99 = (percentile(found.events, share) * 1e3 for share in (0.5, 0.99))
    row = Row(f"{figure}, p50", p50, "ms", aim=at_most(0.5, unit="ms"))
    if found.syncs:
        sync = (percentile(found.syncs, 0.5) + extra) * 1e3
        against = (f"one bare sync, {sync:.3g} ms", p50 / sync)
        row = Row(f"{figure}, p50", p50, "ms", None, None, *against, at_most(1.5, of="ratio"))
    return [row, Row(f"{figure}, p99", p99, "ms", aim=at_most(20, unit="ms"))]


def _latency_on_kafka(figure: str, name: str, ours: Latencies, theirs: Sequence[float]) -> list[Row]:
    rows = []
    for share in (0.5, 0.99):
        own, other = percentile(ours.events, share) * 1e3, percentile(theirs, share) * 1e3
        against = (f"{name}, {other:.3g} ms", own / other)
        rows.append(Row(f"{figure}, p{share * 100:.0f}", own, "ms", None, None, *against))
    return rows


def slow_disk_rows(bench: Bench) -> list[Row]:
    """Returns the figures that depend on the duration of a sync, as on a slower disk."""
    disk = f"on a disk {EXTRA * 1e3:.0f} ms slower"
    say(f"senders and latency {disk}")
    log = Headwater(bench.options.folder / "slow", SlowDisk())
    one, each = bench.options.size(full=300, quick=3), bench.options.size(full=50, quick=2)
    measured = bench.measure(
        {
            "one sender": log.concurrent_senders("durable", senders=1, count=one),
            "64 senders": log.concurrent_senders("durable", senders=64, count=each),
        }
    )
    found = log.latency("durable", count=bench.options.size(full=500, quick=5))
    log.close()
    figure, aims = f"64 concurrent single senders, durable, {disk}", {"one sender": at_least(10, of="ratio")}
    return [
        *compared(figure, measured, "64 senders", aims),
        *_latency_rows(f"append to consumer in another process, durable, {disk}", found, EXTRA),
    ]


def _with_aim(figure: str, measured: Mapping[str, Measured], case: str, against: str, aim: float) -> list[Row]:
    return (
        compared(figure, measured, case, {against: at_least(aim, unit="events/s")})
        if against in measured
        else [rate_row(figure, measured[case], aim=at_least(aim, unit="events/s"))]
    )


def log_rows(bench: Bench) -> list[Row]:
    """Returns all rows of the table, in the order of the docs."""
    return [
        *group_rows(bench),
        *volume_rows(bench),
        *sender_rows(bench),
        *read_rows(bench),
        *latency_rows(bench),
        *slow_disk_rows(bench),
        *large_log_rows(bench.options),
        *growth_rows(bench.options),
    ]


@contextlib.contextmanager
def bench_of(options: Options) -> Iterator[Bench]:
    """Yields a log and, unless --no-kafka is given, a broker; both end with the block."""
    with contextlib.ExitStack() as stack:
        server = _broker(options, stack) if options.kafka else None
        log = Headwater(options.folder / "log")
        stack.callback(log.close)
        yield Bench(options, log, server)


def _broker(options: Options, stack: contextlib.ExitStack) -> Kafka | None:
    from benchmarks.kafka_producer import kafka

    try:
        return stack.enter_context(kafka(options.folder / "kafka"))
    except UnavailableError as missing:
        say(f"{missing}\ncontinuing without Kafka")
        return None


def main() -> None:
    """Print the table of the log."""
    with bench_options("log") as options:
        machine = this_machine(options.folder)
        with bench_of(options) as bench:
            rows = log_rows(bench)
        print_table("The log, 200-byte events", machine, rows, as_json=options.json)


if __name__ == "__main__":
    main()
