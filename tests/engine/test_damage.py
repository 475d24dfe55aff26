"""Spark's files are emptied, cut, deleted, flipped or edited between two runs; and a second engine takes over."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headwater as hw
from headwater.engine.compatibility import Rebuild
from headwater.engine.replay import replay
from headwater.errors import HeadwaterError
from headwater.log import EventLog
from headwater.testing import World
from headwater.testing.world import get_spark
from tests.engine.oracle import batch_rows, expected_counts, same_rows, view_table
from tests.engine.rooms import checkpoint, flip, newest, started
from tests.faults.counts import times
from tests.faults.damage import AfterReboot
from tests.faults.images import copy_at_this_instant, mounted, require_mounts, small_disk

pytestmark = pytest.mark.spark
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def shop(column: str = "total") -> hw.App:
    app = hw.App("damage")
    app.topic("a", "id int, k int, v int, at timestamp", key="k", time="at", lateness="10 seconds", partitions=2)

    @app.view(key="k")
    def sums(a: DataFrame) -> DataFrame:
        return a.groupBy("k").agg(F.sum("v").alias(column))

    return app


def streaming() -> hw.App:
    app = hw.App("damage")
    app.topic("a", "id int, k int, v int, at timestamp", key="k", time="at", lateness="10 seconds", partitions=2)

    @app.stream
    def counted(a: DataFrame) -> DataFrame:
        return a.groupBy(F.window("at", "10 seconds").alias("w"), "k").agg(F.count("*").alias("n"))

    return app


def row(number: int) -> dict[str, Any]:
    return {"id": number, "k": number % 5, "v": number, "at": T0 + timedelta(seconds=number)}


def feed(world: World, start: int, portions: int = 1) -> None:
    for portion in range(start, start + portions * 10, 10):
        world.send("a", *(row(number) for number in range(portion, portion + 10)))
        world.settle()


def right(world: World, app: hw.App, events: int) -> None:
    """The view is what a batch query makes of all events, and every event is accounted for."""
    same_rows(view_table(world, "sums"), batch_rows(app, "sums", world._context.log, timed=False))
    assert world.counts("sums") == expected_counts(world._context.log, app, "sums", timed=False)
    assert world.counts("sums").in_ == events


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1])


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a view has committed five batches."""
    folder = tmp_path_factory.mktemp("ran")
    with started(shop(), folder) as world:
        feed(world, 0, 5)
    return folder


def copy(ran: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ran, tmp_path / "data"))


@pytest.mark.parametrize("spoil", [empty, cut, remove])
def test_a_commit_file_that_is_lost_is_made_again(ran, tmp_path, spoil: Callable[[Path], None]):
    """F17: the newest batch runs again, and the ledger knows that it has."""
    folder = copy(ran, tmp_path)
    spoil(newest(checkpoint(folder, "sums") / "commits"))
    with started(shop(), folder) as world:
        feed(world, 50)
        right(world, shop(), 60)


@pytest.mark.parametrize("spoil", [empty, cut, remove])
def test_metadata_that_is_lost_is_made_again(ran, tmp_path, spoil: Callable[[Path], None]):
    folder = copy(ran, tmp_path)
    spoil(checkpoint(folder, "sums") / "metadata")
    with started(shop(), folder) as world:
        feed(world, 50)
        right(world, shop(), 60)


@pytest.mark.parametrize("spoil", [empty, cut])
def test_the_plan_of_a_committed_batch_that_is_damaged_is_named(ran, tmp_path, spoil: Callable[[Path], None]):
    """F17: nothing is guessed; the view keeps its rows and a rebuild is offered, which works."""
    folder = copy(ran, tmp_path)
    path = newest(checkpoint(folder, "sums") / "offsets")
    spoil(path)
    with started(shop(), folder) as world:
        with pytest.raises(HeadwaterError) as damaged:
            world.settle()
        assert damaged.value.code == "DAMAGED"
        assert f"offsets/{path.name}" in damaged.value.what
        assert damaged.value.fix == "stop the app; headwater run app.py --rebuild sums"
        same_rows(view_table(world, "sums"), batch_rows(shop(), "sums", world._context.log, timed=False))
    with started(shop(), folder, rebuild={"sums": Rebuild()}) as world:
        world.settle()
        right(world, shop(), 50)


def test_a_batch_that_is_planned_again_with_another_range_stops(ran, tmp_path):
    """F19: "this batch was seen before" would lose the events between the two ends."""
    folder = copy(ran, tmp_path)
    place = checkpoint(folder, "sums")
    for kind in ("offsets", "commits"):
        newest(place / kind).unlink()
    with started(shop(), folder) as world:
        world.send("a", *(row(number) for number in range(50, 60)))
        with pytest.raises(HeadwaterError) as stopped:
            world.settle()
        assert stopped.value.code == "LEDGER_MISMATCH"
        assert world.counts("sums").in_ == 50
    with started(shop(), folder, rebuild={"sums": Rebuild()}) as world:
        world.settle()
        right(world, shop(), 60)


def _spoil_state(folder: Path, name: str, how: str, seed: int = 0) -> None:
    state = checkpoint(folder, name) / "state"
    if how == "deleted":
        shutil.rmtree(state)
        return
    chance = random.Random(seed)
    files = sorted(path for path in state.rglob("*") if path.suffix in (".changelog", ".zip"))
    for path in files:
        flip(path, lambda size: chance.randrange(size // 4, size))


@pytest.mark.parametrize("how", ["deleted", "flipped"])
def test_a_view_whose_state_is_gone_is_rebuilt_from_the_log(ran, tmp_path, how):
    """F18."""
    for seed in range(times(1, 20)):
        folder = copy(ran, tmp_path / str(seed))
        _spoil_state(folder, "sums", how, seed)
        with started(shop(), folder) as world:
            feed(world, 50)
            right(world, shop(), 60)


def test_a_stream_whose_state_is_gone_says_so(tmp_path):
    with started(streaming(), tmp_path) as world:
        feed(world, 0, 4)
    shutil.rmtree(checkpoint(tmp_path, "counted") / "state")
    with started(streaming(), tmp_path) as world:
        world.send("a", *(row(number) for number in range(40, 50)))
        with pytest.raises(HeadwaterError) as damaged:
            world.settle()
        assert damaged.value.code == "DAMAGED", damaged.value


def test_an_edited_view_is_refused_with_the_difference_and_rebuilt_on_demand(ran, tmp_path):
    """F24."""
    folder = copy(ran, tmp_path)
    edited = shop("everything")
    with started(edited, folder) as world:
        with pytest.raises(HeadwaterError) as changed:
            world.settle()
        assert changed.value.code == "STATE_CHANGED"
        assert "everything" in str(changed.value.detail)
        assert "total" in str(changed.value.detail)
        assert changed.value.fix == "stop the app; headwater run app.py --rebuild sums"
        assert "total" in world.rows("sums")[0]  # readers still have the old view
    with started(edited, folder, rebuild={"sums": Rebuild()}) as world:
        feed(world, 50)
        right(world, edited, 60)
        assert "everything" in world.rows("sums")[0]
    with started(edited, folder) as world:  # and it stays
        feed(world, 60)
        right(world, edited, 70)


def test_a_runner_that_was_replaced_writes_nothing(ran, tmp_path):
    """F20: it wakes up, runs its batch, and finds a newer epoch before any row, change or ledger entry is there."""
    folder = copy(ran, tmp_path)
    with started(shop(), folder) as world:
        world.settle()
        before = world.rows("sums"), len(list(world.client.read("sums.changes")))
        world._context.claim_ownership().store.open_epoch("sums@1")
        world.send("a", row(50))
        with pytest.raises(HeadwaterError) as fenced:
            world.settle()
        assert fenced.value.code == "FENCED"
        assert (world.rows("sums"), len(list(world.client.read("sums.changes")))) == before
        assert world.counts("sums").in_ == 50
    with started(shop(), folder) as world:
        world.settle()
        right(world, shop(), 51)


def test_one_key_with_nearly_all_events_changes_nothing(tmp_path):
    """F25: 10,000 keys, one of them has nine events of ten."""
    app, count = shop(), times(30_000, 400_000)
    with started(app, tmp_path, rows=count // 3) as world:
        for start in range(0, count, 10_000):
            numbers = range(start, start + 10_000)
            world.send("a", *(row(n) | {"k": n % 10_000 if n % 10 == 0 else 0, "at": T0} for n in numbers))
        world.settle()
        right(world, app, count)


def test_a_run_from_offset_zero_gives_the_same_rows(ran, tmp_path):
    """F27: cut elsewhere, too."""
    folder = copy(ran, tmp_path)
    with started(shop(), folder) as world:
        world.settle()
        for rows in (7, 400_000):
            scratch = tmp_path / f"scratch-{rows}"
            session, graph = get_spark().session, shop().resolve()
            done = replay(session, graph, shop().pipelines["sums"], world._context, scratch, rows=rows)
            assert done.same, done
            assert done.events == 50


# -- power cuts --------------------------------------------------------------------------------------------------


def _images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> list[Path]:
    """Copies of the disk at the instants around a commit, as a power cut would leave it."""
    image, copies = tmp_path / "image", []
    points = ("before-sink-commit", "after-sink-commit", "after-publish")

    def reached(point: str) -> None:
        if len(copies) < min(number, reached.calls) and point == points[len(copies) % 3]:  # type: ignore[attr-defined]
            copies.append(tmp_path / f"cut-{len(copies)}")
            copy_at_this_instant(image, copies[-1])
        reached.calls += point == "after-publish"  # type: ignore[attr-defined]

    reached.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr("headwater.engine.sink.sink.failpoint", reached)
    with small_disk(image, "128M") as disk, started(shop(), disk / "data") as world:
        portion = 0
        while len(copies) < number:
            feed(world, portion, 1)
            portion += 10
    monkeypatch.undo()
    return copies


def _reboot(folder: Path) -> None:
    """The machine has started again: what the log has published must be compared with its files."""
    with EventLog(folder, disk=AfterReboot()) as log:
        for topic in log.topics():
            for partition in log.open_topic(topic).partitions:
                partition.state()


def _recovered(image: Path) -> None:
    with mounted(image) as disk:
        _reboot(disk / "data")
    with mounted(image) as disk, started(shop(), disk / "data") as world:
        world.settle()
        events = world.counts("sums").in_
        feed(world, 1000)
        right(world, shop(), events + 10)


def test_a_power_cut_loses_and_repeats_nothing(tmp_path, monkeypatch):
    """F16."""
    require_mounts()
    for image in _images(tmp_path, monkeypatch, times(3, 50)):
        _recovered(image)


def test_without_syncs_the_same_rig_sees_the_damage(tmp_path, monkeypatch):
    require_mounts()
    monkeypatch.setattr("headwater.engine.context.LocalFolder.sync", lambda folder: None)
    failed = 0
    for image in _images(tmp_path, monkeypatch, 3):
        try:
            _recovered(image)
        except (HeadwaterError, AssertionError):
            failed += 1
    assert failed
