"""What a query reads from Spark's checkpoint, and what is mended after a power failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.engine.context import HadoopFolder, LocalFolder
from headwater.engine.sink.checkpoint import PlannedInput, mend, next_offsets, pending_batch, read_planned_batch
from headwater.errors import DamagedError
from headwater.log.storage.frame import LOWEST_TIME

STARTS = {"orders": {0: 2}, "rates": {0: 0}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> LocalFolder:
    folder = LocalFolder(tmp_path / "big" / "1" / "checkpoint")
    folder.write("metadata", b'{"id":"a"}')
    return folder


def plan(checkpoint: LocalFolder, batch: int, *offsets: dict[str, int] | None) -> None:
    lines = ["-" if offset is None else json.dumps(offset) for offset in offsets]
    checkpoint.write(f"offsets/{batch}", "\n".join(["v1", "{}", *lines]).encode())


def read(checkpoint: LocalFolder, batch: int) -> dict[str, PlannedInput]:
    return read_planned_batch(checkpoint, batch, list(STARTS), STARTS)


def test_the_first_batch_starts_where_the_query_does(checkpoint: LocalFolder):
    plan(checkpoint, 0, {"i": 0, "p0": 7, "p1": 3, "w": 50}, None)
    assert read(checkpoint, 0) == {"orders": PlannedInput({0: 2, 1: 0}, {0: 7, 1: 3}, 50, LOWEST_TIME)}


def test_a_batch_starts_where_the_one_before_ended_also_after_a_gap_in_numbers(checkpoint: LocalFolder):
    plan(checkpoint, 0, {"i": 0, "p0": 7, "w": 50})
    plan(checkpoint, 3, {"i": 0, "p0": 9, "p1": 4, "w": 60}, {"i": 1, "p0": 1, "w": 10})
    planned = read(checkpoint, 3)
    assert planned["orders"] == PlannedInput({0: 7, 1: 0}, {0: 9, 1: 4}, 60, 50)
    assert planned["rates"] == PlannedInput({0: 0}, {0: 1}, 10, LOWEST_TIME)
    assert [planned["orders"].contains(0, offset) for offset in (6, 7, 8, 9)] == [False, True, True, False]
    assert not planned["orders"].contains(2, 0)


@pytest.mark.parametrize(
    ("before", "after", "progress"), [((7, 50), (7, 50), False), ((7, 50), (7, 60), True), ((6, 50), (7, 50), True)]
)
def test_an_input_advances_in_offset_or_time(before: tuple[int, int], after: tuple[int, int], progress: bool):
    assert PlannedInput({0: before[0]}, {0: after[0]}, after[1], before[1]).has_progress is progress


def test_two_reads_of_one_input_must_agree(checkpoint: LocalFolder):
    plan(checkpoint, 0, {"i": 0, "p0": 7, "w": 50}, {"i": 0, "p0": 7, "w": 50})
    assert list(read(checkpoint, 0)) == ["orders"]
    plan(checkpoint, 0, {"i": 0, "p0": 7, "w": 50}, {"i": 0, "p0": 8, "w": 50})
    with pytest.raises(DamagedError):
        read(checkpoint, 0)


@pytest.mark.parametrize("data", [b"", b"v2\n{}\n{}", b"v1\n{}\n{not json"])
def test_an_unreadable_plan_is_named(checkpoint: LocalFolder, data: bytes):
    checkpoint.write("offsets/0", data)
    with pytest.raises(DamagedError) as caught:
        read(checkpoint, 0)
    assert caught.value.data["path"] == f"{checkpoint.address}/offsets/0"
    assert caught.value.fix == "stop the app; headwater run app.py --rebuild big"


def test_a_plan_without_its_predecessor_is_damage(checkpoint: LocalFolder):
    plan(checkpoint, 4, {"i": 0, "p0": 9, "w": 60})
    with pytest.raises(DamagedError) as caught:
        read(checkpoint, 4)
    assert caught.value.data["path"].endswith("offsets/3")


def test_an_unfinished_batch_runs_again(checkpoint: LocalFolder):
    assert (pending_batch(checkpoint), next_offsets(checkpoint, list(STARTS), STARTS)) == (None, STARTS)
    plan(checkpoint, 0, {"i": 0, "p0": 7, "w": 50})
    assert (pending_batch(checkpoint), next_offsets(checkpoint, list(STARTS), STARTS)["orders"]) == (0, {0: 2})
    checkpoint.write("commits/0", b"v1\n{}")
    assert pending_batch(checkpoint) is None
    assert next_offsets(checkpoint, list(STARTS), STARTS) == {"orders": {0: 7}, "rates": {0: 0}}


def test_a_sound_checkpoint_is_left_alone(checkpoint: LocalFolder):
    plan(checkpoint, 0, {"i": 0, "p0": 7, "w": 50})
    assert mend(checkpoint, -1) == []
    assert pending_batch(checkpoint) == 0


def test_files_that_a_power_failure_emptied_are_removed(checkpoint: LocalFolder):
    plan(checkpoint, 0, {"i": 0, "p0": 7, "w": 50})
    for name in ("commits/0", "offsets/1", "metadata"):
        checkpoint.write(name, b"")
    assert mend(checkpoint, 0) == ["offsets/1", "commits/0", "metadata"]
    assert (pending_batch(checkpoint), mend(checkpoint, 0)) == (0, [])
    assert "id" in json.loads(checkpoint.read("metadata"))


def test_an_empty_plan_of_a_committed_batch_is_damage(checkpoint: LocalFolder):
    checkpoint.write("offsets/1", b"")
    with pytest.raises(DamagedError):
        mend(checkpoint, 1)
    assert checkpoint.read("offsets/1") == b""


def test_leftovers_of_a_query_that_never_planned_are_removed(checkpoint: LocalFolder):
    checkpoint.write("offsets/.0.tmp", b"v1")
    assert mend(checkpoint, -1) == ["offsets/.0.tmp"]
    assert checkpoint.list_names("offsets") == []


def test_storage_behind_a_url_has_whole_files():
    assert mend(HadoopFolder("s3a://bucket/big", lambda: pytest.fail("Spark was started")), 0) == []
