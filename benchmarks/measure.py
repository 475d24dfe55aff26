"""Wall and CPU time of cases that run alternately.

Cases to be compared run one after another, then all again. A disturbance of some seconds affects all of them
alike, so ratios are more stable than single figures.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Case", "Lap", "Measured", "Watch", "measure", "percentile", "say"]


@dataclass(frozen=True)
class Lap:
    """One measurement: the number of events, wall time and CPU time in seconds."""

    events: int
    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        """Events per second of wall time."""
        return self.events / self.wall


@dataclass
class Watch:
    """Measures the laps that a case marks; everything outside them is preparation.

    CPU is that of this process, of the children it has waited for, and of the `processes` given by id.

    Example:
        >>> watch = Watch()
        >>> with watch.lap(events=10):
        ...     _ = sum(range(1000))
        >>> watch.laps[0].events
        10
    """

    processes: tuple[int, ...] = ()
    laps: list[Lap] = field(default_factory=list)

    @contextlib.contextmanager
    def lap(self, events: int) -> Iterator[None]:
        """Measure the block as work on `events` events."""
        cpu, wall = self._cpu(), time.perf_counter()
        yield
        self.laps.append(Lap(events, time.perf_counter() - wall, self._cpu() - cpu))

    def _cpu(self) -> float:
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in own) + sum(map(_cpu_of, self.processes))


def _cpu_of(process: int) -> float:
    # Fields 14 and 15; the name before them is in brackets and may contain spaces.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Case = Callable[[Watch], None]


@dataclass(frozen=True)
class Measured:
    """The laps of one case; each figure is a median over them."""

    laps: tuple[Lap, ...]

    @property
    def rate(self) -> float:
        """Events per second of wall time."""
        return statistics.median(lap.rate for lap in self.laps)

    def ratio(self, other: Measured) -> float:
        """Returns the ratio to the rate of another case of the same run: the median over the turns.

        Laps of one turn are close in time, so a disk that is slow for some turns is slow for both.
        """
        turns = zip(self.laps, other.laps, strict=True)
        return statistics.median(own.rate / their.rate for own, their in turns)

    @property
    def wall(self) -> float:
        """Wall time of one lap in seconds."""
        return statistics.median(lap.wall for lap in self.laps)

    @property
    def cpu(self) -> float:
        """CPU time of one lap in seconds."""
        return statistics.median(lap.cpu for lap in self.laps)

    @property
    def cpu_per_event(self) -> float:
        """CPU time of one event in seconds."""
        return statistics.median(lap.cpu / lap.events for lap in self.laps)


def measure(
    cases: Mapping[str, Case], *, repeats: int, processes: Sequence[int] = (), warm_up: bool = True
) -> dict[str, Measured]:
    """Run all cases alternately, `repeats` times, after a turn for `warm_up` that does not count."""
    watches = {name: Watch(tuple(processes)) for name in cases}
    for turn in range(repeats + warm_up):
        for name, case in cases.items():
            case(watches[name])
            if turn < warm_up:
                watches[name].laps.clear()
    measured = {name: Measured(tuple(watch.laps)) for name, watch in watches.items()}
    for name, each in measured.items():
        say(f"  {name}: {each.rate:,.0f}/s, {each.wall:.2f} s wall, {each.cpu:.2f} s CPU")
    return measured


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value that `share` of the values do not exceed.

    Example:
        >>> percentile([5.0, 1.0, 3.0, 2.0, 4.0], 0.5)
        3.0
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def say(text: str) -> None:
    """Print progress to stderr; stdout has only the table."""
    print(text, file=sys.stderr, flush=True)
