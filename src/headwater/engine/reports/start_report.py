"""The steps of a start, from the command to the first rows of each pipeline, with their wall and CPU time.

`headwater run --explain-start` prints them. Steps of several pipelines run side by side, so the CPU time of a step is
that of all processes since the step before: the command, the engine, Java and Spark's Python processes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headwater.memory import child_processes

__all__ = ["StartReport", "StartStep", "render"]

_TICK: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class StartStep:
    """One step.

    Attributes:
        name: What was done.
        pipeline: The pipeline; empty if it concerns all.
        wall: Seconds since the command began.
        cpu: CPU seconds of all its processes until then.
    """

    name: str
    pipeline: str
    wall: float
    cpu: float


@dataclass
class StartReport:
    """Records the steps of a start, each once.

    Args:
        measures: Whether steps are recorded at all; it takes some milliseconds each.
        on_first_rows: Called when the first batch with events has committed.

    Example:
        >>> report = StartReport(measures=True)
        >>> report.record("loaded the app")
        >>> report.record("committed a batch", "large")
        >>> report.record("committed a batch", "large")
        >>> [(step.name, step.pipeline) for step in report.steps]
        [('loaded the app', ''), ('committed a batch', 'large')]
    """

    measures: bool = False
    on_first_rows: Callable[[], None] = lambda: None
    steps: list[StartStep] = field(default_factory=list)
    _known: set[tuple[str, str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, name: str, pipeline: str = "") -> None:
        """Record that a step is done."""
        if not self.measures:
            return
        with self._lock:
            if (name, pipeline) not in self._known:
                self._known.add((name, pipeline))
                self.steps.append(StartStep(name, pipeline, *_elapsed()))

    def record_batch(self, pipeline: str, events: int) -> None:
        """Record that a batch with a number of events has committed."""
        self.record("committed a batch", pipeline)
        if events:
            self.record("committed events", pipeline)
            with self._lock:
                first, self.on_first_rows = self.on_first_rows, lambda: None
            first()

    def has_batches(self, pipelines: Sequence[str]) -> bool:
        """Returns whether each of some pipelines has committed a batch."""
        return all(("committed a batch", pipeline) in self._known for pipeline in pipelines)


def render(steps: Sequence[StartStep]) -> list[str]:
    """Returns the lines of a table of steps; steps that several pipelines take are one line, at the last of them.

    Example:
        >>> steps = [StartStep("loaded the app", "", 1.0, 0.9), StartStep("committed a batch", "large", 6.5, 8.0)]
        >>> print(*render(steps), sep=chr(10))
           at s   CPU s  step
            1.0     0.9  loaded the app
            6.5     8.0  committed a batch: large
    """
    lines = [f"{step.wall:7.1f} {step.cpu:7.1f}  {text}" for text, step in _merge(steps)]
    return [f"{'at s':>7} {'CPU s':>7}  step", *lines]


def _merge(steps: Sequence[StartStep]) -> Iterator[tuple[str, StartStep]]:
    for step in steps:
        same = [each for each in steps if each.name == step.name]
        if not step.pipeline:
            yield step.name, step
        elif len(same) == 1:
            yield f"{step.name}: {step.pipeline}", step
        elif step in (same[0], same[-1]):
            which = "first" if step is same[0] else f"last of {len(same)}"
            yield f"{step.name}: {step.pipeline} ({which})", step


def _elapsed() -> tuple[float, float]:
    """Returns wall and CPU seconds since the command began, whose child this process is."""
    command = os.getppid()
    own = Path("/proc/self/stat")
    if not own.exists():  # only Linux tells about other processes
        return time.monotonic() - _IMPORTED_AT, sum(os.times()[:4])
    pids = [command, *child_processes(command)]
    found = [fields for pid in pids if (fields := _stat(pid))]
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return since_boot - int(_stat(command)[19]) / _TICK, sum(
        int(ticks) for each in found for ticks in each[11:15]
    ) / _TICK


def _stat(pid: int) -> list[str]:
    """Returns the fields of a process after its name; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


_IMPORTED_AT: Final = time.monotonic()
