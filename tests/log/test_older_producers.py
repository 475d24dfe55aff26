"""Many producers: segment headers stay small, and no producer in use is forgotten."""

from __future__ import annotations

import contextlib
import random

import pytest

from headwater.errors import DiskFailedError
from headwater.log.storage import Disk, producers
from tests.log.given import open_partition, part, segments


def send(partition, known: dict[str, int], *names: str) -> None:
    """Each of these producers sends its next event."""
    for name in names:
        number = known.get(name, -1)
        partition.append([part(number, producer=name, sequence=number + 1, previous=number)])
        known[name] = number + 1


def roll(partition) -> None:
    with partition.lock() as state:
        partition.roll(state)


def header_of_the_last(partition):
    return partition.files.segment(partition.state().segment).header()[1]


def known_to(partition, names) -> dict[str, int]:
    return {name: partition.last_sequence(name) for name in names}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(producers, "_MAX_IN_HEADER", 4)


def test_a_header_of_twenty_thousand_producers_is_small(tmp_path, clock):
    partition = open_partition(tmp_path, clock, durability="fast")
    names = [f"send-{number}" for number in range(20_000)]
    partition.append([part(0, producer=name, sequence=0, previous=-1) for name in [*names, "revenue@1"]])
    roll(partition)
    partition.append([part(0, producer=name, sequence=0, previous=-1) for name in ("a", "b")])
    grown = sum(path.stat().st_size for path in (tmp_path / "0").glob("*.producers"))
    roll(partition)
    header = header_of_the_last(partition)
    assert len(header.producers) == 201
    assert {"revenue@1", "a", "b", "send-19999"} < header.producers.keys()
    sizes = [len(path.read_bytes()) for path in segments(tmp_path / "0")]
    assert sizes[-1] < 20_000
    # The second roll wrote only the two that left the header, not all again.
    assert sum(path.stat().st_size for path in (tmp_path / "0").glob("*.producers")) - grown < 400
    again = open_partition(tmp_path, clock)
    assert known_to(again, [names[0], names[-1], "a", "none"]) == {names[0]: 0, names[-1]: 0, "a": 0, "none": -1}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(5))
def test_all_producers_are_known_through_rolls_and_restarts(tmp_path, clock, seed):
    chance = random.Random(seed)
    partition, known = open_partition(tmp_path, clock, durability="fast"), {}
    for _ in range(40):
        send(partition, known, *(f"p{chance.randrange(30)}" for _ in range(chance.randrange(6))))
        match chance.randrange(3):
            case 0:
                roll(partition)
            case 1:
                partition = open_partition(tmp_path, clock, durability="fast")
    assert known_to(open_partition(tmp_path, clock), known) == known
    assert len(list((tmp_path / "0").glob("*.producers"))) <= 1


@pytest.mark.usefixtures("small")
def test_the_file_does_not_grow_with_the_past(tmp_path, clock):
    partition, known = open_partition(tmp_path, clock, durability="fast"), {}
    names = [f"p{number}" for number in range(12)]
    sizes = []
    for _ in range(60):
        send(partition, known, *names)
        roll(partition)
        sizes.append(sum(path.stat().st_size for path in (tmp_path / "0").glob("*.producers")))
    assert max(sizes[30:]) <= max(sizes[:30]) + 100  # numbers get longer
    assert known_to(open_partition(tmp_path, clock), names) == dict.fromkeys(names, 59)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("harm", ["lost", "damaged", "cut"])
def test_a_lost_file_is_rebuilt_from_the_segments(tmp_path, clock, harm, caplog):
    partition, known = open_partition(tmp_path, clock, durability="fast"), {}
    for number in range(20):
        send(partition, known, f"p{number}", f"p{number // 2}")
        roll(partition)
    (path,) = (tmp_path / "0").glob("*.producers")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data) if harm == "damaged" else bytes(data[:-9]))
    if harm == "lost":
        path.unlink()
    again = open_partition(tmp_path, clock)
    assert known_to(again, known) == known
    assert "rebuilt" in caplog.text
    roll(again)  # writes a new one
    caplog.clear()
    assert known_to(open_partition(tmp_path, clock), known) == known
    assert "rebuilt" not in caplog.text


@pytest.mark.usefixtures("small")
def test_a_roll_that_fails_at_any_call_forgets_nobody(tmp_path, clock):
    class Failing(Disk):
        left = 10**9

        def _count(self):
            self.left -= 1
            if self.left < 0:
                raise DiskFailedError("the disk failed", fix="headwater verify")

        def write(self, handle, position, data):
            self._count()
            super().write(handle, position, data)

        def sync(self, handle):
            self._count()
            super().sync(handle)

        def replace(self, source, target, *, sync=True):
            self._count()
            super().replace(source, target, sync=sync)

    known: dict[str, int] = {}
    for calls in range(14):
        disk = Failing()
        partition = open_partition(tmp_path, clock, disk, durability="fast")
        send(partition, known, *(f"p{(calls * 5 + number) % 17}" for number in range(7)))
        disk.left = calls
        with contextlib.suppress(DiskFailedError):
            roll(partition)
        assert known_to(open_partition(tmp_path, clock, durability="fast"), known) == known


def test_more_producers_than_a_partition_remembers(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(producers, "_MAX_IDS", 20)
    partition, known = open_partition(tmp_path, clock, durability="fast"), {}
    for number in range(100):
        send(partition, known, f"p{number}", "till-7")
        send(partition, known, "revenue@1") if number == 0 else None
    roll(partition)
    again = open_partition(tmp_path, clock)
    assert known_to(again, ["till-7", "revenue@1", "p99", "p85"]) == {"till-7": 99, "revenue@1": 0, "p99": 0, "p85": 0}
    assert known_to(again, ["p0", "p50"]) == {"p0": -1, "p50": -1}
