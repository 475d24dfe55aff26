"""F09: retention waits for a group that has not read the data; with `force`, the group is told what is gone."""

from __future__ import annotations

import logging
import random
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.errors import DataGoneError
from headwater.events import ManualClock
from headwater.log import Retention
from headwater.log.maintenance.maintenance import Maintenance
from tests.faults.counts import injected, times


def client_with_events(folder, *, force: bool, clock: ManualClock) -> hw.Client:
    client = hw.connect(folder, clock=clock)
    retention = Retention(time=timedelta(hours=1), force=force)
    client.create_topic("t", "n int", segment_size=600, retention=retention)
    with client.consumer("t", group="slow") as consumer:
        for number in range(20):
            client.send("t", {"n": number})
            if number == 5:
                assert [consumer.poll(1, most=1)[0].value["n"] for _ in range(4)] == [0, 1, 2, 3]
                consumer.commit()
    clock.advance("2 hours")
    return client


def test_retention_is_held_by_a_group_that_has_not_read(tmp_path, caplog):
    clock = ManualClock()
    client = client_with_events(tmp_path, force=False, clock=clock)
    with caplog.at_level(logging.WARNING):
        [removal] = Maintenance(client.log).apply_retention(client.log.open_topic("t"))
    assert removal.blocked_by == "slow"
    assert 0 < removal.end <= 4
    assert "waits for group slow at offset 4" in caplog.text
    with client.consumer("t", group="slow", timeout="0s") as consumer:
        assert [event.value["n"] for event in consumer] == list(range(4, 20))


def test_forced_retention_tells_the_group_which_offsets_are_gone(tmp_path):
    clock = ManualClock()
    client = client_with_events(tmp_path, force=True, clock=clock)
    [removal] = Maintenance(client.log).apply_retention(client.log.open_topic("t"))
    assert removal.end == 20
    with client.consumer("t", group="slow", timeout="0s") as consumer, pytest.raises(DataGoneError) as gone:
        next(iter(consumer))
    assert gone.value.data == {"partition": 0, "first": 4, "last": 19, "start": 20}
    assert [lag.gone for lag in client.lag("slow")] == [16]


def test_after_a_reset_the_group_goes_on_at_what_is_there(tmp_path):
    clock = ManualClock()
    client = client_with_events(tmp_path, force=True, clock=clock)
    Maintenance(client.log).run_once()
    client.send("t", {"n": 99})
    client.reset("slow", "t", "earliest")
    with client.consumer("t", group="slow", timeout="0s") as consumer:
        assert [event.value["n"] for event in consumer] == [99]


def test_a_reader_in_the_middle_is_told_and_does_not_jump(tmp_path):
    """Retention removes the file while the reader has it open and half read."""
    clock = ManualClock()
    client = client_with_events(tmp_path, force=True, clock=clock)
    events = client.read("t", stop=None)
    assert next(events).value["n"] == 0
    Maintenance(client.log).apply_retention(client.log.open_topic("t"))
    client.send("t", {"n": 99})
    seen = [0]
    with pytest.raises(DataGoneError) as gone:
        seen.extend(event.value["n"] for event in events)
    assert seen == list(range(len(seen)))
    assert gone.value.data["first"] == len(seen)
    assert gone.value.data["start"] == 20


def test_without_groups_retention_by_size_removes_the_oldest(tmp_path):
    client = hw.connect(tmp_path)
    client.create_topic("t", "n int, pad string", segment_size=2_000, retention=Retention(size=6_000))
    for number in range(60):
        client.send("t", {"n": number, "pad": "." * 50})
    Maintenance(client.log).apply_retention(client.log.open_topic("t"))
    left = [event.value["n"] for event in client.read("t")]
    assert left == list(range(left[0], 60))
    size = sum(path.stat().st_size for path in (tmp_path / "topics" / "t" / "0").glob("*.segment"))
    assert 4_000 <= size <= 6_000


def test_a_jump_of_the_clock_back_removes_nothing(tmp_path):
    clock = ManualClock()
    client = client_with_events(tmp_path, force=True, clock=clock)
    clock.advance(timedelta(days=-400))
    Maintenance(client.log).apply_retention(client.log.open_topic("t"))
    assert len(list(client.read("t"))) == 20


class AwayReader:
    """A group that builds a table from a compacted topic, with pauses; told `DATA_GONE`, it loads the table anew."""

    def __init__(self, client: hw.Client) -> None:
        self.client = client
        self.rows: dict[str, int] = {}
        self.loaded_anew = 0

    def read(self, most: int) -> bool:
        """Read some events; returns whether there were any."""
        try:
            with self.client.consumer("t", group="away", timeout="0s") as consumer:
                found = consumer.poll(most=most)
                for event in found:
                    self.rows.pop(event.key, None)
                    if event.value is not None:
                        self.rows[event.key] = event.value["n"]
                consumer.commit()
                return bool(found)
        except DataGoneError:
            self.client.reset("away", "t", "earliest")
            self.rows.clear()
            self.loaded_anew += 1
            return True


def test_a_reader_that_is_away_during_compactions_has_the_rows_of_the_table(memory_path: Path):
    """Random changes, deletions, pauses of days and compactions."""
    told = 0
    for seed in range(times(10, 1_000)):
        chance, clock, table = random.Random(seed), ManualClock(), dict[str, int]()
        with hw.connect(memory_path / str(seed), clock=clock) as client:
            options = {"key": "id", "compact": True, "segment_size": 600, "durability": "fast"}
            client.create_topic("t", "id string, n int", **options)
            reader = AwayReader(client)
            for step in range(15):
                _change_table(client, table, chance, step)
                if chance.random() < 0.4:
                    clock.advance(chance.choice(("1 minute", "2 days")))
                    Maintenance(client.log).compact(client.log.open_topic("t"), eager=True)
                if chance.random() < 0.5:
                    reader.read(chance.randint(1, 9))
            while reader.read(100):
                pass
            assert reader.rows == table, seed
            told += reader.loaded_anew
    assert told
    injected(told)


def _change_table(client: hw.Client, table: dict[str, int], chance: random.Random, step: int) -> None:
    for _ in range(chance.randint(1, 6)):
        key = chance.choice("abcdefgh")
        if chance.random() < 0.4:
            client.delete("t", key)
            table.pop(key, None)
        else:
            client.send("t", {"id": key, "n": step})
            table[key] = step
