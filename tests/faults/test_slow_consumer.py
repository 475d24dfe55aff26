"""F14: a consumer that is a thousand times slower does not slow the others, is visible, and holds no memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headwater as hw
from tests.faults.counts import times
from tests.faults.processes import fork, kill, numbered_rows, until

EVENTS = times(60_000, 2_000_000)
BATCH = 500


def consume_slowly(folder: Path, told: int) -> None:
    """Process each event in a fiftieth of a second; the other consumers need microseconds."""
    with hw.connect(folder).consumer("t", group="slow") as consumer:
        for event in consumer:
            if event.offset == 0:
                os.write(told, b".")
            time.sleep(0.02)
            consumer.commit()


@contextmanager
def slow_consumer(folder: Path) -> Iterator[int]:
    begun, told = os.pipe()
    child = fork(lambda: consume_slowly(folder, told))
    try:
        os.read(begun, 1)
        yield child
    finally:
        kill(child)


def memory(pid: int | str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024


def filled(folder: Path, events: int) -> hw.Client:
    client = hw.connect(folder)
    client.create_topic("t", "producer string, seq bigint, key string, pad string", durability="fast")
    for first in range(0, events, BATCH):
        client.log.append("t", numbered_rows("a", first, BATCH, pad=200))
    return client


def work_to_read(client: hw.Client, group: str) -> float:
    """Returns the CPU seconds in which another consumer reads everything."""
    before = time.process_time()
    with client.consumer("t", group=group, timeout="0s") as consumer:
        assert sum(1 for _ in consumer) == EVENTS
    return time.process_time() - before


def test_the_others_work_no_harder_than_without_it(tmp_path):
    client = filled(tmp_path, EVENTS)
    alone = min(work_to_read(client, f"alone-{number}") for number in range(3))
    with slow_consumer(tmp_path):
        beside = min(work_to_read(client, f"beside-{number}") for number in range(3))
    # Waiting for the slow one, or reading again what it has not read, would cost many times as much.
    assert beside < 3 * alone + 0.1


def test_its_lag_is_shown_while_the_others_are_up_to_date(tmp_path):
    client = filled(tmp_path, BATCH)
    with slow_consumer(tmp_path):
        for first in range(BATCH, EVENTS, BATCH):
            client.log.append("t", numbered_rows("a", first, BATCH, pad=200))
        work_to_read(client, "quick")
        with client.consumer("t", group="quick", timeout="0s") as consumer:
            for _ in consumer:
                pass
            consumer.commit()
        [slow], [quick] = client.lag("slow"), client.lag("quick")
        assert slow.events > EVENTS * 0.9
        assert slow.behind > quick.behind
        assert slow.owner is not None
        until(lambda: client.lag("slow")[0].committed > slow.committed)


def test_it_holds_no_memory_however_far_it_falls_behind(tmp_path):
    client = filled(tmp_path, BATCH)
    with slow_consumer(tmp_path) as child:
        for first in range(BATCH, EVENTS // 4, BATCH):
            client.log.append("t", numbered_rows("a", first, BATCH, pad=200))
        slow, own = memory(child), memory("self")
        for first in range(EVENTS // 4, EVENTS, BATCH):
            client.log.append("t", numbered_rows("a", first, BATCH, pad=200))
        until(lambda: client.lag("slow")[0].committed > 5)
        written = (EVENTS * 3 // 4) * 200
        assert memory(child) - slow < written // 2
        assert memory("self") - own < written // 2
