"""The live shop while its engine and Spark's Python workers are killed: nothing lost, nothing twice, no wrong row."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.demo import Play, Stage
from tests.faults.counts import FULL

LENGTH = 600 if FULL else 45  # seconds
ENGINE_EVERY = 120 if FULL else 20
WORKER_EVERY = 20 if FULL else 8
PATIENCE = 240.0


def until(true: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.2)


def workers(engine: int) -> list[int]:
    """Spark's Python processes: all of the engine's session that are Python, but not the engine itself."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            words = (path / "cmdline").read_bytes()
            if fields[3] == str(engine) and b"pyspark" in words and b"-Xmx" not in words:
                found.append(int(path.name))
    return [pid for pid in found if pid != engine]


class Killer:
    """Kills by the clock: the engine's process group now and then, a Python worker more often."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._random = random.Random(seed)
        self.engines = self.workers = 0

    def work(self, seconds: float) -> None:
        begun = time.monotonic()
        next_engine, next_worker = begun + ENGINE_EVERY, begun + WORKER_EVERY
        while (now := time.monotonic()) < begun + seconds:
            if now >= next_engine:
                self.engines += self._kill_engine()
                next_engine = now + ENGINE_EVERY
            if now >= next_worker:
                self.workers += self._kill_worker()
                next_worker = now + WORKER_EVERY
            time.sleep(0.1)

    def _kill_engine(self) -> bool:
        state = self._stage.engine()
        if state.state != "running" or state.pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(state.pid, signal.SIGKILL)
            return True
        return False

    def _kill_worker(self) -> bool:
        state = self._stage.engine()
        there = workers(state.pid) if state.pid is not None else []
        if not there:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(there), signal.SIGKILL)
            return True
        return False


@pytest.mark.parametrize("seed", [1])
def test_the_shop_survives_kills_of_engine_and_workers(tmp_path, seed):
    with contextlib.closing(Stage(tmp_path, 0, Play(rate=200, seed=seed))) as stage:
        stage.start()
        until(lambda: any(one.counts["in_"] for one in stage.pipelines()))
        killer = Killer(stage, seed)
        killer.work(LENGTH)
        stage.hush()
        until(stage.current)
        outcome = stage.outcome()
    assert (killer.engines, killer.workers) >= (LENGTH // ENGINE_EVERY - 2, 1)
    assert outcome.faults == []
    assert all(one.rows and one.wrong == 0 for one in outcome.pipelines)
    assert sum(topic.events for topic in outcome.topics) > LENGTH * 100
