"""A round of maintenance costs what was touched, and does what a round over everything would do."""

from __future__ import annotations

import itertools
import os
import random
from datetime import timedelta

import pytest

from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.log.storage import Disk
from tests.log.given import declared, rows_of

_TIMES = itertools.count(1_000_000_000)


def age_files(log: EventLog) -> None:
    """Give what changed just now a time of its own in the past, as if seconds lay between two changes."""
    for path in (log.folder / "topics").glob("*/*"):
        if path.stat().st_mtime > 1_700_000_000:
            os.utime(path, (next(_TIMES),) * 2)


class CountingDisk(Disk):
    """Counts what rounds do with files."""

    calls = 0

    def read(self, handle, position, length):
        self.calls += 1
        return super().read(handle, position, length)

    def read_file(self, path):
        self.calls += 1
        return super().read_file(path)

    def exists(self, path):
        self.calls += 1
        return super().exists(path)


def test_a_round_reads_only_topics_that_changed(tmp_path, clock, monkeypatch):
    disk = CountingDisk()
    with EventLog(tmp_path, clock=clock, disk=disk) as log:
        names = [f"t{number}" for number in range(30)]
        for name in names:
            topic = log.create(declared(name, durability="fast", idle="1 hour"))
            log.append(name, rows_of(topic, [{"id": "a", "amount": 1}]))
        age_files(log)
        maintenance = Maintenance(log)
        maintenance.check_idle()
        disk.calls = 0
        for _ in range(10):
            clock.advance("1 second")
            maintenance.check_idle()
        assert disk.calls == 0
        log.append("t7", rows_of(log.topic("t7"), [{"id": "a", "amount": 2}]))
        looked: list[str] = []
        look = maintenance._due_markers
        monkeypatch.setattr(
            maintenance, "_due_markers", lambda topic: looked.append(topic.definition.name) or look(topic)
        )
        maintenance.check_idle()
        assert looked == ["t7"]


def test_a_marker_that_comes_due_during_a_check_is_found_by_the_next(tmp_path, clock, monkeypatch):
    with EventLog(tmp_path, clock=clock) as log:
        topic = log.create(declared(durability="fast", idle="2 s"))
        log.append("orders", rows_of(topic, [{"id": "a", "amount": 1}]))
        age_files(log)
        maintenance = Maintenance(log)
        look = maintenance._due_markers
        with monkeypatch.context() as slow:
            slow.setattr(maintenance, "_due_markers", lambda topic: (look(topic), clock.advance("3 seconds"))[0])
            maintenance.check_idle()
        assert log.ends("orders")[0].end == 1
        clock.advance("1 second")
        maintenance.check_idle()
        assert log.ends("orders")[0].end == 2


def test_a_round_reads_the_inputs_of_pipelines_once(tmp_path, clock, monkeypatch):
    with EventLog(tmp_path, clock=clock) as log:
        for number in range(5):
            log.create(declared(f"empty{number}"))
        reads: list[int] = []
        read = log.groups.pipeline_inputs
        monkeypatch.setattr(log.groups, "pipeline_inputs", lambda: reads.append(1) or read())
        maintenance = Maintenance(log)
        maintenance.check_idle()
        assert len(reads) == 1
        clock.advance("5 seconds")
        maintenance.check_idle()
        assert len(reads) == 2


def run(folder, seed: int, *, everything: bool) -> list[list[tuple[int, int]]]:
    """Returns the ends of all partitions after each round of a random history."""
    chance, clock = random.Random(seed), ManualClock("2026-01-01T00:00:00Z")
    found = []
    with EventLog(folder, clock=clock) as log:
        for name, options in {
            "orders": {"time": "at", "partitions": 3},
            "clicks": {"time": "at", "partitions": 1},
            "products": {"key": "id", "compact": True},
            "empty": {"time": "at", "partitions": 2},
        }.items():
            log.create(declared(name, durability="fast", idle="10 s", lateness="5 s", **options))
        log.groups.reset("hw.pipeline.joined", "empty", {0: 0, 1: 0})
        log.groups.reset("hw.pipeline.joined", "orders", {0: 0, 1: 0, 2: 0})
        maintenance = Maintenance(log)
        for _ in range(130):
            if chance.random() < 0.15:
                name = chance.choice(["orders", "orders", "clicks", "products"])
                topic = log.topic(name)
                at = clock.now() - timedelta(seconds=chance.choice([0, 1, 8]))
                log.append(name, rows_of(topic, [{"id": chance.choice("abcdef"), "amount": 1, "at": at}]))
            age_files(log)
            clock.advance(timedelta(seconds=chance.choice([1] * 30 + [60])))  # a minute: the process was stopped
            if everything:
                maintenance._looks = {}
            maintenance.check_idle()
            found.append([(end.end, end.max_event_time) for name in sorted(log.topics()) for end in log.ends(name)])
            age_files(log)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_skipping_topics_changes_no_marker(tmp_path, seed):
    assert run(tmp_path / "some", seed, everything=False) == run(tmp_path / "all", seed, everything=True)
