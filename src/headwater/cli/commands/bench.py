"""`headwater bench`: what this disk gives, and what a log on it makes of that."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwater.cli.options import DEFAULTS, Options, new_folder
from headwater.cli.output import Column, Output
from headwater.cli.words import count

if TYPE_CHECKING:
    from headwater.client import Client

__all__ = ["bench"]

_FIGURES = [
    Column("FIGURE", "figure"),
    Column(
        "VALUE", "value", lambda value: f"{value:,.2f}" if value < 100 else count(round(value)), right=True
    ),
    Column("UNIT", "unit"),
]
_TYPE = (
    "order_id string, customer_id bigint, product_id bigint, quantity int, amount decimal(12,2), note string"
)
_GROUP = 1_000  # events in one append
_SYNCS = 50
_LONG_ENOUGH = 0.5  # seconds for one figure


def bench(what: Literal["log"], /, *, options: Options = DEFAULTS) -> int:
    """Measure this disk and a log on it.

    Takes a few seconds, in a temporary folder beside the data folder. It gives an idea, not a comparison: the
    project's `make bench-log` measures with care.

    Args:
        what: What to measure: log.
        options: Options of every command.
    """
    output = Output(options)
    beside = new_folder(options).absolute().parent
    with tempfile.TemporaryDirectory(prefix=f"headwater-bench-{what}-", dir=beside) as folder:
        names = ("figure", "value", "unit")
        output.rows(_FIGURES, [dict(zip(names, figure, strict=True)) for figure in _figures(Path(folder))])
    return 0


def _figures(folder: Path) -> Iterator[tuple[str, float, str]]:
    from headwater.client import connect

    yield "bare write and sync, 200 bytes, median", _bare_sync(folder), "ms"
    with connect(folder / "log") as client:
        for durability in ("durable", "fast"):
            client.create_topic(durability, _TYPE, key="customer_id", durability=durability)
        one = _order(0)
        yield "durable append of one event, median", _median(lambda: client.send("durable", one)), "ms"
        rows = [_order(number) for number in range(_GROUP)]
        for durability in ("durable", "fast"):
            rate = _rate(partial(_send, client, durability, rows))
            yield f"{durability} append, groups of {_GROUP:,}", rate, "events/s"
        yield (
            "read as Arrow",
            _rate(lambda: sum(batch.num_rows for batch in client.read_arrow("fast"))),
            "events/s",
        )
        yield "read as Python events", _rate(lambda: sum(1 for _ in client.read("fast"))), "events/s"


def _send(client: Client, topic: str, rows: list[dict[str, Any]]) -> int:
    return len(client.send_many(topic, rows))


def _bare_sync(folder: Path) -> float:
    handle = os.open(folder / "bare", os.O_WRONLY | os.O_CREAT)
    data = os.urandom(200)

    def write_and_sync() -> None:
        os.write(handle, data)
        os.fdatasync(handle)

    try:
        return _median(write_and_sync)
    finally:
        os.close(handle)


def _median(work: Callable[[], Any]) -> float:
    """Milliseconds that one call takes."""
    times = []
    for _ in range(_SYNCS):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return round(statistics.median(times) * 1000, 3)


def _rate(work: Callable[[], int]) -> float:
    """Events per second of calls that return how many they did."""
    work()
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < _LONG_ENOUGH:
        done += work()
    return round(done / (time.perf_counter() - begun))


def _order(number: int) -> dict[str, Any]:
    return {
        "order_id": f"order-{number:08d}",
        "customer_id": number % 997,
        "product_id": number % 89,
        "quantity": 1 + number % 5,
        "amount": f"{number % 500}.90",
        "note": "delivered to the neighbour on the second floor, who signed for it " * 2,
    }
