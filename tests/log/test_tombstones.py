"""A reader that missed deletions is told: compaction records up to which offset tombstones are gone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

import headwater as hw
from headwater.errors import DataGoneError
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.log.maintenance.compaction import compact
from headwater.log.reader import TopicReader
from headwater.log.tombstones import TombstoneHorizon
from headwater.server import Node

# Offsets 0 to 3 are rows, 4 deletes "a", 5 is young when 4 goes; the last event opens the next segment.
ROWS = [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("a", None), ("e", 5), ("f", 6)]


@pytest.fixture
def client(tmp_path: Path, clock: ManualClock) -> Iterator[hw.Client]:
    with hw.connect(tmp_path, clock=clock) as client:
        client.create_topic("products", "id string, n int", key="id", compact=True, segment_size=1)
        yield client


def change(client: hw.Client, *pairs: tuple[str, int | None]) -> None:
    for key, n in pairs:
        if n is None:
            client.delete("products", key)
        else:
            client.send("products", {"id": key, "n": n})


def compact_later(client: hw.Client, clock: ManualClock) -> None:
    """Compact two days later, when tombstones may go."""
    clock.advance("2 days")
    assert isinstance(client.log, EventLog)
    compact(client.log.open_topic("products"), 0, clock.micros(), eager=True)


def removed(client: hw.Client) -> list[int]:
    return [horizon.until for horizon in client.log.tombstone_horizons("products")]


def test_the_end_of_removed_tombstones_is_recorded_in_the_segments(client, clock, tmp_path):
    change(client, *ROWS)
    assert removed(client) == []
    compact_later(client, clock)
    assert removed(client) == [5]
    change(client, ("g", 7), ("h", 8))
    compact_later(client, clock)  # a later run without tombstones keeps the record
    assert removed(client) == [5]
    next(tmp_path.glob("topics/products/ends*")).unlink()
    with EventLog(tmp_path, clock=clock) as again:
        assert again.tombstone_horizons("products") == [TombstoneHorizon(0, 5, 5, 5)]


def test_a_tombstone_behind_which_its_key_came_back_is_not_missed(client, clock):
    change(client, ("a", 1), ("a", None), ("a", 2), ("b", 3))
    compact_later(client, clock)
    assert [event.key for event in client.read("products")] == ["a", "b"]
    assert removed(client) == []


def test_an_old_tombstone_behind_a_young_one_stays(client, clock):
    """The clock of the second tombstone is behind: a later run must not remove it below the recorded end."""
    change(client, ("a", 1), ("b", 2))
    clock.advance("2 days")
    change(client, ("a", None))
    clock.advance(timedelta(days=-2))
    change(client, ("b", None), ("c", 3))
    compact_later(client, clock)
    assert [event.offset for event in client.read("products") if event.tombstone] == [2, 3]
    assert removed(client) == []


@pytest.mark.parametrize("start", [1, 4])
def test_a_read_that_begins_behind_missed_tombstones_is_refused(client, clock, start):
    change(client, *ROWS)
    assert len(list(client.read("products", start=start))) == 7 - start
    compact_later(client, clock)
    with pytest.raises(DataGoneError) as caught:
        list(client.read("products", start=start))
    assert (caught.value.data["first"], caught.value.data["tombstones"]) == (start, 5)


@pytest.mark.parametrize("start", ["earliest", 0, 5, 6, "latest"])
def test_a_read_from_the_start_or_behind_them_is_right(client, clock, start):
    change(client, *ROWS)
    compact_later(client, clock)
    expected = {"earliest": 5, 0: 5, 5: 2, 6: 1, "latest": 0}[start]
    assert len(list(client.read("products", start=start))) == expected


def test_an_open_reader_that_was_slow_is_told(client, clock):
    change(client, *ROWS)
    slow = TopicReader(client.log, "products", {0: 0}, {0: 7})
    assert next(slow.next(max_bytes=1)[0].events()).key == "a"  # and not yet that it is deleted
    compact_later(client, clock)
    with pytest.raises(DataGoneError) as caught:
        slow.next()
    assert caught.value.data["first"] == 1


def test_a_reader_that_began_after_the_removal_reads_on(client, clock):
    change(client, *ROWS)
    compact_later(client, clock)
    with client.consumer("products", group="new", timeout="0 s") as consumer:
        assert [event.key for event in consumer.poll(most=1)] == ["b"]
        consumer.commit()
    with client.consumer("products", group="new", timeout="0 s") as consumer:  # at offset 2, which is below 5
        assert [event.key for event in consumer] == ["c", "d", "e", "f"]


def test_a_group_that_was_away_is_refused_and_reset(client, clock):
    change(client, *ROWS)
    with client.consumer("products", group="away", timeout="0 s") as consumer:
        consumer.poll(most=1)
        consumer.commit()
    compact_later(client, clock)
    with pytest.raises(DataGoneError) as caught:
        client.consumer("products", group="away")
    assert (caught.value.data["first"], caught.value.data["tombstones"]) == (1, 5)
    client.reset("away", "products", to="earliest")
    with client.consumer("products", group="away", timeout="0 s") as consumer:
        assert len(list(consumer)) == 5
    client.reset("away", "products", to=3)
    with pytest.raises(DataGoneError):
        client.consumer("products", group="away")


def test_a_node_refuses_the_same_readers(client, clock, tmp_path):
    change(client, *ROWS)
    with client.consumer("products", group="away", timeout="0 s") as consumer:
        consumer.poll(most=1)
        consumer.commit()
    compact_later(client, clock)
    with Node(tmp_path, port=0) as node, hw.connect(node.url) as remote, httpx.Client(base_url=node.url) as web:
        for read in (
            lambda: list(remote.read("products", start=1)),
            lambda: remote.consumer("products", group="away"),
        ):
            with pytest.raises(DataGoneError) as caught:
                read()
            assert (caught.value.data["first"], caught.value.data["tombstones"]) == (1, 5)
        assert len(list(remote.read("products"))) == 5
        path = "/api/topics/products"
        assert web.get(f"{path}/events", params={"start": 2}).status_code == 410
        assert web.get(f"{path}/follow", params={"resume": "0:2"}).status_code == 410
        page = web.get(f"{path}/events", params={"limit": 1}, headers={"accept": "application/json"}).json()
        assert (page["next"], page["marks"]) == ({"0": 2}, {"0": 5})
        rest = web.get(f"{path}/events", params={"start": 2, "marks": "0:5"})
        assert len(rest.text.splitlines()) == 4
        with web.stream("GET", f"{path}/follow", params={"start": "earliest"}) as stream:
            first = next(line for line in stream.iter_lines() if line.startswith("id:"))
        assert first == "id: 0:2:5"
        with web.stream("GET", f"{path}/follow", headers={"last-event-id": "0:2:5"}) as stream:
            assert next(line for line in stream.iter_lines() if line.startswith("id:")) == "id: 0:3:5"
