"""The commands `verify` and `bench`: compare all checksums of a log; measure a disk and a log on it."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from headwater.cli.formatting import format_bytes, format_count, plural
from headwater.cli.options import DEFAULTS, Options, data_folder, local_folder
from headwater.cli.output import Column, Output, Progress
from headwater.errors import DamagedError

__all__ = ["bench", "measure_sync", "verify"]

_FIGURES = [
    Column("FIGURE", "figure"),
    Column("VALUE", "value", lambda value: f"{value:,.2f}" if value < 100 else format_count(round(value)), right=True),
    Column("UNIT", "unit"),
]
_TYPE = "order_id string, customer_id bigint, product_id bigint, quantity int, amount decimal(12,2), note string"
_BATCH_SIZE = 1_000  # events in one append
_SAMPLES = 50
_MIN_DURATION = 0.5  # seconds for one figure


def bench(what: Literal["log"], /, *, options: Options = DEFAULTS) -> int:
    """Measure the disk and a log on it.

    Takes a few seconds and uses a temporary folder beside the data folder. The figures are estimates; `make bench-log`
    of the project measures precisely.

    Args:
        what: What to measure: log.
        options: Options of every command.
    """
    output = Output(options)
    beside = local_folder(options).absolute().parent
    with tempfile.TemporaryDirectory(prefix=f"headwater-bench-{what}-", dir=beside) as folder:
        names = ("figure", "value", "unit")
        output.print_rows(_FIGURES, [dict(zip(names, figure, strict=True)) for figure in _measurements(Path(folder))])
    return 0


def _measurements(folder: Path) -> Iterator[tuple[str, float, str]]:
    from headwater.client import connect

    yield "bare write and sync, 200 bytes, median", measure_sync(folder / "bare", 200, _SAMPLES), "ms"
    with connect(folder / "log") as client:
        for durability in ("durable", "fast"):
            client.create_topic(durability, _TYPE, key="customer_id", durability=durability)
        one = _sample_order(0)
        yield "durable append of one event, median", _median_time(lambda: client.send("durable", one), _SAMPLES), "ms"
        rows = [_sample_order(number) for number in range(_BATCH_SIZE)]
        for durability in ("durable", "fast"):
            rate = _measure_rate(lambda topic: len(client.send_many(topic, rows)), durability)
            yield f"{durability} append, groups of {_BATCH_SIZE:,}", rate, "events/s"
        rate = _measure_rate(lambda: sum(batch.num_rows for batch in client.read_arrow("fast")))
        yield "read as Arrow", rate, "events/s"
        yield "read as Python events", _measure_rate(lambda: sum(1 for _ in client.read("fast"))), "events/s"


def measure_sync(path: Path, size: int, samples: int) -> float:
    """Returns the median duration of a write and its sync, in milliseconds; creates the file and removes it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    data = os.urandom(size)

    def write_and_sync() -> None:
        os.write(handle, data)
        os.fdatasync(handle)

    try:
        return _median_time(write_and_sync, samples)
    finally:
        os.close(handle)
        path.unlink()


def _median_time(work: Callable[[], Any], samples: int) -> float:
    """Returns the median duration of a call in milliseconds."""
    times = []
    for _ in range(samples):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return round(statistics.median(times) * 1000, 3)


def _measure_rate(work: Callable[..., int], *arguments: str) -> float:
    """Returns the events per second of a function that returns the number of events it processed."""
    work(*arguments)  # the first call pays for imports and open files
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < _MIN_DURATION:
        done += work(*arguments)
    return round(done / (time.perf_counter() - begun))


def _sample_order(number: int) -> dict[str, Any]:
    return {
        "order_id": f"order-{number:08d}",
        "customer_id": number % 997,
        "product_id": number % 89,
        "quantity": 1 + number % 5,
        "amount": f"{number % 500}.90",
        "note": "delivered to the neighbour on the second floor, who signed for it " * 2,
    }


_FAULTS = [
    Column("TOPIC", "topic"),
    Column("PARTITION", "partition", right=True),
    Column("SEGMENT", "segment"),
    Column("OFFSET", "offset", lambda offset: "" if offset is None else format_count(offset), right=True),
    Column("BYTE", "position", lambda position: "" if position is None else format_count(position), right=True),
    Column("WHAT", "what"),
]


def verify(*, options: Options = DEFAULTS) -> int:
    """Read the whole log and verify every checksum.

    Appends and reads may continue at the same time. The exit code is 5 if something is damaged.

    Args:
        options: Options of every command.
    """
    folder = data_folder(options)
    from headwater.log import EventLog
    from headwater.log.maintenance.verify import verify as verify_log

    output = Output(options)
    progress = Progress(output, "verify", format_bytes)
    with EventLog(folder) as log:
        report = verify_log(log, progress.update)
    progress.close()
    code = 0 if report.ok else DamagedError.exit_code
    if output.json:
        output.print_rows([], [{"sound": report.ok} | asdict(report)])
        return code
    if found := [*report.faults, *report.notes]:
        output.print_rows(_FAULTS, [asdict(fault) for fault in found])
    read = f"{plural(report.topics, 'topic')}, {plural(report.segments, 'segment')}, {plural(report.events, 'event')}"
    verdict = "sound" if report.ok else plural(len(report.faults), "fault")
    output.note(f"{verdict}: {read}, {format_bytes(report.bytes)} read")
    return code
