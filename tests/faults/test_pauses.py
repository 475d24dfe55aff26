"""F40, F43: random pauses of senders and of the node, restarts, and history in pieces: no event in order is late."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from tests.faults.counts import injected, times
from tests.log.given import declared, events, rows_of

PARTITIONS = 3
IDLE = timedelta(seconds=30)
YEAR = timedelta(days=365)


class PausedNode:
    """A node whose checks for silence run each few seconds, unless it is stopped; and senders that wait for it then."""

    def __init__(self, folder: Path, chance: random.Random, *, history: bool) -> None:
        self.chance = chance
        self.history = history
        self.clock = ManualClock("2026-01-01T00:00:00Z")
        self.log = EventLog(folder, clock=self.clock)
        lateness = chance.choice(("0 seconds", "10 seconds"))
        idle = f"{IDLE.total_seconds():.0f} seconds"
        options: dict[str, Any] = {"partitions": PARTITIONS, "durability": "fast", "lateness": lateness, "idle": idle}
        self.topic = self.log.create(declared(time="at", **options))
        self.maintenance = Maintenance(self.log)
        self.read_until = [self.clock.now() - YEAR] * PARTITIONS  # of each file of history

    def step(self) -> None:
        self.chance.choice((self.send, self.send, self.wait, self.pause, self.restart))()

    def send(self) -> None:
        """The next piece of the file of a partition; or what happens now, in each partition."""
        if not self.history:
            self._append(range(PARTITIONS), [self.clock.now()])
            return
        partition = self.chance.randrange(PARTITIONS)
        found = []
        for _ in range(self.chance.randint(1, 9)):
            self.read_until[partition] += timedelta(seconds=self.chance.choice((0, 1, 10, 600)))
            found.append(self.read_until[partition])
        self._append([partition], found)

    def _append(self, partitions: Any, found: list[datetime]) -> None:
        for partition in partitions:
            rows = [{"id": "e", "at": at} for at in found]
            self.log.append("orders", rows_of(self.topic, rows, partition=partition))

    def wait(self) -> None:
        """Senders of a live topic are never silent for as long as its idle time while the node runs."""
        for _ in range(self.chance.randint(1, 60 if self.history else 5)):
            self.clock.advance("5 seconds")
            self.maintenance.check_idle()
        if not self.history:
            self.send()

    def pause(self) -> None:
        """The node is stopped for longer than half the idle time; what senders have waits until it goes on."""
        self.clock.advance("1 second")
        self.maintenance.check_idle()  # it has seen the last events
        before, stalled = self.clock.now(), timedelta(seconds=self.chance.randint(16, 4_000))
        self.clock.advance(stalled)
        self.maintenance.check_idle()
        injected()
        if not self.history:
            waiting = sorted(before + stalled * self.chance.random() for _ in range(5))
            self._append(range(PARTITIONS), waiting)

    def restart(self) -> None:
        self.maintenance = Maintenance(self.log)


@pytest.mark.parametrize("history", [True, False], ids=["history", "live"])
def test_no_pause_makes_an_event_late(memory_path: Path, history: bool):
    for seed in range(times(15, 1_000)):
        node = PausedNode(memory_path / str(seed), random.Random(seed), history=history)
        for _ in range(25):
            node.step()
        found = [event for number in range(PARTITIONS) for event in events(node.log, partition=number)]
        assert not [event for event in found if event.late], seed
        node.log.close()
