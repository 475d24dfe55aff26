"""F15, F20, F26: engines are killed, paused and started twice; the output equals that of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from headwater.engine.failpoints import FAILPOINTS
from headwater.errors import HeadwaterError
from headwater.runner import EngineProcess, catch_up
from tests.faults.counts import FULL, injected, only_in_full_runs, times
from tests.faults.engines import OPERATORS, Shop, compare, compare_operators, gone, kill_group, members, start
from tests.faults.processes import until

pytestmark = pytest.mark.spark
_PATIENCE = 300.0
IN_OTHER_PROCESSES = FAILPOINTS[:3]
"""Points that sources reach, in processes of their own: a crash inside one process cannot try them."""


def wait_for_commit(shop: Shop, process: subprocess.Popen[bytes]) -> None:
    before = shop.commits()
    deadline = time.monotonic() + _PATIENCE
    while shop.commits() == before:
        assert process.poll() is None, f"the engine ended with {process.returncode}"
        assert time.monotonic() < deadline, "no batch was committed"
        time.sleep(0.1)


def kill_a_worker(session: int, chance: random.Random) -> None:
    """Kill -9 of one of Spark's Python processes: a worker, or the planner of a source."""
    workers = [pid for pid, line in members(session).items() if "pyspark" in line and "java" not in line[:20]]
    if workers:
        os.kill(chance.choice(workers), signal.SIGKILL)


def kill_engines(shop: Shop, plan: list[str | None], chance: random.Random, count: int = 40) -> None:
    """Start an engine for each failpoint and kill it there, or at any instant, while events arrive."""
    with shop.producing(count=count):
        for point in plan:
            engine = start(shop, **({"HEADWATER_KILL_AT": point} if point else {}))
            try:
                if point:
                    assert engine.wait(_PATIENCE) == -signal.SIGKILL
                else:
                    wait_for_commit(shop, engine)
                    if chance.random() < 0.5:
                        kill_a_worker(engine.pid, chance)
                    time.sleep(chance.uniform(0, 3))
            finally:
                kill_group(engine)
            assert gone(engine.pid), members(engine.pid)
            injected()


@pytest.mark.parametrize("share", range(times(1, 8)))
def test_engines_killed_at_any_instant_leave_the_rows_of_an_undisturbed_run(tmp_path: Path, share: int):
    """The full plan takes hours: each share of it is a test."""
    chance = random.Random(4)
    shop = Shop(tmp_path)
    plan: list[str | None] = [*IN_OTHER_PROCESSES, None]
    if FULL:
        plan = [*(list(FAILPOINTS) * 20), *([None] * 300)]
        chance.shuffle(plan)
        plan, chance = plan[share::8], random.Random(share)
    kill_engines(shop, plan, chance)
    catch_up(shop.app, shop.data)
    events = compare(shop)
    assert events > 100 * len(plan)
    print(f"{len(plan)} kills, {events} events")  # noqa: T201


@only_in_full_runs
def test_engines_killed_while_operators_run_leave_the_rows_of_an_undisturbed_run(tmp_path: Path):
    """State at the sink, and state in Spark's checkpoint."""
    chance = random.Random(7)
    shop = Shop(tmp_path, OPERATORS)
    plan: list[str | None] = [*(list(FAILPOINTS) * 5), *([None] * 40)]
    chance.shuffle(plan)
    kill_engines(shop, plan, chance, count=10)
    catch_up(shop.app, shop.data)
    events = compare_operators(shop)
    assert events > 100 * len(plan)
    print(f"{len(plan)} kills, {events} events")  # noqa: T201


def test_a_second_engine_is_told_who_the_first_is(tmp_path: Path):
    """F20: even while the first starts, and without waiting for Spark; the lock of a dead engine is free."""
    shop = Shop(tmp_path)
    shop.produce(50)
    first = start(shop)
    try:
        until(lambda: (shop.data / "engine" / "lock").exists() and _pid(shop) == first.pid, seconds=60)
        os.killpg(first.pid, signal.SIGSTOP)  # a paused engine still holds its lock
        with pytest.raises(HeadwaterError) as locked:
            catch_up(shop.app, shop.data)
        assert locked.value.code == "LOCKED_BY"
        assert str(first.pid) in str(locked.value.detail)
    finally:
        kill_group(first)
    assert _lock_is_free(shop)


def _pid(shop: Shop) -> int:
    """Returns the engine's process; the file also names that of its node."""
    return int(((shop.data / "engine" / "lock").read_text() or "0").split()[0])


def _lock_is_free(shop: Shop) -> bool:
    import fcntl

    with (shop.data / "engine" / "lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


@only_in_full_runs
def test_java_that_hangs_is_noticed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """F26: SIGSTOP of the virtual machine."""
    monkeypatch.setenv("HEADWATER_JAVA_PATIENCE", "20")
    shop = Shop(tmp_path)
    shop.produce(200)
    engine = EngineProcess(shop.app, shop.data)
    engine.start()
    try:
        until(lambda: shop.commits() > 0, seconds=_PATIENCE)
        first = engine.pid
        assert first is not None
        [java] = [pid for pid, line in members(first).items() if "java" in line.split(" ")[0]]
        os.kill(java, signal.SIGSTOP)
        shop.produce(200)
        until(lambda: engine.pid not in (None, first), seconds=_PATIENCE)
        assert gone(first)
        done = shop.commits()
        until(lambda: shop.commits() > done, seconds=_PATIENCE)
    finally:
        engine.stop()
    catch_up(shop.app, shop.data)
    assert compare(shop) == 400


@only_in_full_runs
def test_java_without_memory_ends_in_failed_with_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """F26: after a few attempts every pipeline reports the cause; log and views stay readable; more memory helps."""
    shop = Shop(tmp_path)
    shop.produce(200)
    monkeypatch.setenv("HEADWATER_SPARK_MEMORY", "20m")
    engine = EngineProcess(shop.app, shop.data)
    engine.start()
    try:
        until(lambda: [state for state, _ in shop.reports()] == ["failed"] * 3, seconds=_PATIENCE)
        for _, error in shop.reports():
            assert "ENGINE_FAILED" in error
            assert "OutOfMemoryError" in error
    finally:
        engine.stop()
    monkeypatch.delenv("HEADWATER_SPARK_MEMORY")
    catch_up(shop.app, shop.data)
    assert compare(shop) == 200
