"""Headwater's side of the comparison: the same events through the client, in a temporary folder."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headwater as hw
from benchmarks.bare_disk import BareSync
from benchmarks.follower import Follower
from benchmarks.measure import Case, Watch
from benchmarks.orders import SCHEMA, arrow_orders, orders
from benchmarks.other_process import PAUSE
from benchmarks.senders import send_at_once
from headwater.client import Client
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.log.storage import Disk

__all__ = ["Headwater", "Latencies"]

BLOCK = 100_000


@dataclass(frozen=True)
class Latencies:
    """The latency of each event from call to consumer, and of the bare syncs between them, in seconds."""

    events: list[float]
    syncs: list[float]


class Headwater:
    """A log in a folder; its methods return cases for `measure`, each with its own topic."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self.client = Client(EventLog(folder, disk=disk), SystemClock()) if disk else hw.connect(folder)
        self._numbers = itertools.count()

    def close(self) -> None:
        """Close the log."""
        self.client.close()

    def topic(self, durability: str, **settings: Any) -> str:
        """Create a topic with one partition, keyed by customer; returns its name."""
        name = f"orders-{next(self._numbers)}"
        self.client.create_topic(name, SCHEMA, key="customer_id", partitions=1, durability=durability, **settings)
        return name

    def append_groups(self, durability: str, *, groups: int, group: int = 1_000, arrow: bool = True) -> Case:
        """Returns a case that appends groups of events, as Arrow data or as dicts, and waits for each."""
        rows = arrow_orders(group) if arrow else orders(group)

        def case(watch: Watch) -> None:
            topic = self.topic(durability)
            with watch.lap(group * groups):
                for _ in range(groups):
                    self.client.send_many(topic, rows)

        return case

    def append_all(self, durability: str, *, count: int, arrow: bool = True) -> Case:
        """Returns a case that appends many events in few calls, as Arrow data or as dicts."""
        block = min(count, BLOCK)
        return self.append_groups(durability, groups=count // block, group=block, arrow=arrow)

    def concurrent_senders(self, durability: str, *, senders: int, count: int) -> Case:
        """Returns a case with `senders` threads that share a client; each has one event in flight."""
        rows = orders(1_000)

        def case(watch: Watch) -> None:
            topic = self.topic(durability)
            with watch.lap(senders * count):
                send_at_once(lambda number: self.client.send(topic, rows[number % len(rows)]), senders, count)

        return case

    def fill(self, count: int, *, block: int = BLOCK, **settings: Any) -> str:
        """Create a topic with `count` events; returns its name."""
        topic = self.topic("fast", **settings)
        block = min(count, block)
        for _ in range(count // block):
            self.client.send_many(topic, arrow_orders(block))
        return topic

    def read_arrow(self, topic: str, *, count: int) -> Case:
        """Returns a case that reads all events of a topic as Arrow batches."""

        def case(watch: Watch) -> None:
            with watch.lap(count):
                batches = self.client.read_arrow(topic, start="earliest", stop="end")
                seen = sum(batch.num_rows for batch in batches)
            assert seen == count, f"{seen} of {count} events came back"

        return case

    def read_events(self, topic: str, *, count: int) -> Case:
        """Returns a case that reads all events of a topic as Python events and accesses their values."""

        def case(watch: Watch) -> None:
            with watch.lap(count):
                events = self.client.read(topic, start="earliest", stop="end")
                seen = sum(1 for event in events if event.value is not None)
            assert seen == count, f"{seen} of {count} events came back"

        return case

    def bytes_per_event(self, group: int = 1_000) -> float:
        """Returns the bytes of one event on disk if sent in groups of this size."""
        before = self._segment_bytes()
        self.append_groups("fast", groups=10, group=group)(Watch())
        return (self._segment_bytes() - before) / (10 * group)

    def _segment_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.rglob("*.segment"))

    def latency(self, durability: str, *, count: int) -> Latencies:
        """Measure the time from `send` until a consumer in another process has each event."""
        topic = self.topic(durability)
        syncs: list[float] = []
        with Follower("headwater", str(self.folder), topic, count) as follower, BareSync(self.folder) as sync:

            def between() -> None:
                # Other durability levels do not sync; a sync between events would disturb them.
                if durability == "durable":
                    syncs.append(sync.timed())
                    time.sleep(PAUSE)

            taken = follower.latencies(lambda order: self.client.send(topic, order), between)
        return Latencies(taken, syncs)
