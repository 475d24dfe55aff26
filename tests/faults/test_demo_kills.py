"""The demo shop while its engine and Spark's Python workers are killed: no event lost or repeated, no wrong row."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.demo import DemoRun, DemoSettings
from tests.faults.counts import FULL

LENGTH = 600 if FULL else 30  # seconds
ENGINE_EVERY, ENGINES = (120, 4) if FULL else (20, 1)  # seconds between kills, and how many there must be
WORKER_EVERY, WORKERS = (20, 20) if FULL else (5, 3)
WORKERS_NAMES = (b"\0pyspark.worker\0", b"python_streaming_source_runner")
PATIENCE = 240.0


def until(true: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.2)


def workers(engine: int) -> list[int]:
    """Returns Spark's Python processes that plan and read batches; all are in the engine's session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            words = (path / "cmdline").read_bytes()
            if fields[3] == str(engine) and any(name in words for name in WORKERS_NAMES):
                found.append(int(path.name))
    return found


class Killer:
    """Kills periodically: the engine's process group, and more often a Python worker."""

    def __init__(self, stage: DemoRun, seed: int) -> None:
        self._stage = stage
        self._random = random.Random(seed)
        self.engines = self.workers = 0

    def work(self, seconds: float) -> None:
        """Kill for some seconds, or longer until there were enough kills."""
        begun = time.monotonic()
        next_engine, next_worker = begun + ENGINE_EVERY, begun + WORKER_EVERY
        while (now := time.monotonic()) < begun + seconds or self.engines < ENGINES or self.workers < WORKERS:
            assert now < begun + seconds + PATIENCE, "the engine is never up for long enough to be killed"
            if now >= next_engine:
                self.engines += self._kill_engine()
                next_engine = now + ENGINE_EVERY
            if now >= next_worker:
                self.workers += self._kill_worker()
                next_worker = now + WORKER_EVERY
            time.sleep(0.1)

    def _kill_engine(self) -> bool:
        state = self._stage.engine_status()
        if state.state != "running" or state.pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(state.pid, signal.SIGKILL)
            return True
        return False

    def _kill_worker(self) -> bool:
        state = self._stage.engine_status()
        there = workers(state.pid) if state.pid is not None else []
        if not there:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(there), signal.SIGKILL)
            return True
        return False


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1])
def test_the_shop_survives_kills_of_engine_and_workers(tmp_path, seed):
    with contextlib.closing(DemoRun(tmp_path, 0, DemoSettings(rate=200, seed=seed))) as stage:
        stage.start()
        until(lambda: any(one.counts["in_"] for one in stage.pipelines()))
        Killer(stage, seed).work(LENGTH)
        stage.stop_producers()
        until(stage.is_caught_up)
        outcome = stage.result()
    assert outcome.faults == []
    assert [one for one in outcome.pipelines if one.wrong] == []
    # An unpaid order is known only after its time limit, which a short run may not reach.
    assert {one.name for one in outcome.pipelines if not one.rows} <= {"unpaid"}
    assert sum(topic.events for topic in outcome.topics) > LENGTH * 100
