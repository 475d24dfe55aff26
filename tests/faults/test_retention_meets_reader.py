"""F09: retention waits for a group that has not read the data; with `force`, the group is told what is gone."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

import headwater as hw
from headwater.errors import DataGoneError
from headwater.events import ManualClock
from headwater.log import Retention
from headwater.log.maintenance.maintenance import Maintenance


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
