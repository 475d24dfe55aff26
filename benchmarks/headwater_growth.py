"""Compares long logs with short ones: time to open, memory of a reader, cost per event."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_options import Options
from benchmarks.fresh_process import in_fresh_process, out_of_page_cache
from benchmarks.headwater_log import Headwater
from benchmarks.measure import Case, Measured, Watch, measure, say
from benchmarks.orders import arrow_orders
from benchmarks.table import Aim, Row, at_most

__all__ = ["growth_rows", "large_log_rows"]

# Repeats of the same case differ by about this much on a machine with other load.
SAME = 1.25
GROUP = 1_000


def large_log_rows(options: Options) -> list[Row]:
    """Returns rows for a large log in a new process: time to open it, memory to read it."""
    folder = options.folder / "large"
    count = options.size(full=8_500_000, quick=20_000)
    say(f"a log of {count:,} events")
    log = Headwater(folder)
    topic = log.fill(count, block=options.size(full=5_000, quick=500))
    log.close()
    size = out_of_page_cache(folder)
    opened = in_fresh_process("open", folder, topic, count)
    rows = [
        Row(f"{size / 1e9:.2g} GB log, opened and first event read", opened["read"], "s", aim=at_most(2, unit="s")),
        Row(f"{size / 1e9:.2g} GB log, opened and one appended", opened["append"], "s", aim=at_most(2, unit="s")),
    ]
    for task, name in (("read", "as Arrow"), ("read-events", "as Python events")):
        say(f"  reading {name}")
        found = in_fresh_process(task, folder, topic, count)
        rows.append(_memory_row(name, size, found["early"], found["most"]))
    return rows


def _memory_row(name: str, size: int, early: float, most: float) -> Row:
    return Row(
        f"most memory of a reader, {name}, reading {size / most:.0f} times as much",
        most / 1e6,
        "MB",
        compared_with=f"{early / 1e6:,.0f} MB in the first twentieth",
        ratio=most / early,
        aim=at_most(SAME, of="ratio"),
    )


@dataclass(frozen=True)
class Length:
    """The length of a log: segments of its topic, and other topics."""

    name: str
    segments: int
    topics: int = 0


def growth_rows(options: Options) -> list[Row]:
    """Returns rows for CPU per event, appended and read, in logs of growing length."""
    many = options.size(full=1_000, quick=20)
    lengths = [
        Length("1 segment", 1),
        Length("10 segments", 10),
        Length("100 segments", options.size(full=100, quick=12)),
        Length(f"{many:,} topics", 1, topics=many),
    ]
    say("cost per event in logs of different length")
    logs = [(length, *_log_of(length, options.folder / f"length-{n}")) for n, length in enumerate(lengths)]
    groups = options.size(full=200, quick=2)
    append = {length.name: _append(log, topic, groups) for length, log, topic in logs}
    read = {length.name: _read_middle(log, topic, groups) for length, log, topic in logs}
    rows = _compared("append", measure(append, repeats=options.repeats, warm_up=not options.quick))
    rows += _compared("read", measure(read, repeats=options.repeats, warm_up=not options.quick))
    for _, log, _ in logs:
        log.close()
    return rows


def _log_of(length: Length, folder: Path) -> tuple[Headwater, str]:
    log = Headwater(folder)
    for _ in range(length.topics):
        log.client.send_many(log.topic("fast"), arrow_orders(10))
    # A segment of 1 MB holds about seven groups; the eighth is in the next segment.
    topic = log.fill(length.segments * 8 * GROUP, block=GROUP, segment_size="1 MB")
    return log, topic


def _append(log: Headwater, topic: str, groups: int) -> Case:
    rows = arrow_orders(GROUP)

    def case(watch: Watch) -> None:
        with watch.lap(groups * GROUP):
            for _ in range(groups):
                log.client.send_many(topic, rows)

    return case


def _read_middle(log: Headwater, topic: str, groups: int) -> Case:
    """Returns a case that reads groups of events from offsets spread over the topic, with one seek each."""

    def case(watch: Watch) -> None:
        end = log.client.send_many(topic, arrow_orders(1))[-1].offset
        with watch.lap(groups * GROUP):
            for number in range(groups):
                start = (end - GROUP) * number // groups
                seen = 0
                for batch in log.client.read_arrow(topic, start=start, stop="end"):
                    seen += batch.num_rows
                    if seen >= GROUP:
                        break

    return case


def _compared(what: str, measured: dict[str, Measured]) -> list[Row]:
    shortest_name, shortest = next(iter(measured.items()))
    return [
        _cost_row(f"CPU per event, {what}, {name}", each, shortest_name, shortest) for name, each in measured.items()
    ]


def _cost_row(figure: str, measured: Measured, shortest_name: str, shortest: Measured) -> Row:
    same = measured is shortest
    aim: Aim | None = None if same else at_most(SAME, of="ratio")
    return Row(
        figure,
        measured.cpu_per_event * 1e6,
        "µs",
        measured.wall,
        measured.cpu,
        "" if same else f"{shortest_name}, {shortest.cpu_per_event * 1e6:.3g} µs",
        None if same else measured.cpu_per_event / shortest.cpu_per_event,
        aim,
    )
