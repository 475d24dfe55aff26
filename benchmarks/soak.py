"""Memory over a long run: the demo's shop with its six pipelines, at a steady rate.

    python -m benchmarks.soak [--minutes N] [--rate N]

Prints the memory of the node and of the engine (driver, Java, Python workers) every minute, and the ratio of the last
third of the run to the second: a leak gives a ratio above one. The first third, in which the JVM grows, does not count.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import say
from benchmarks.process_tree import tree_memory
from headwater.server.pid_file import find_node
from headwater.store.status import read_engine_status

__all__ = ["growth", "main"]

_SAMPLE = 5.0  # seconds


def growth(samples: list[float]) -> float:
    """Returns the median of the last third of a run divided by that of its second third.

    Example:
        >>> growth([1, 5, 10, 10, 10, 12, 12, 12]) == 12 / 10
        True
    """
    third = len(samples) // 3
    return statistics.median(samples[-third:]) / statistics.median(samples[third : len(samples) - third])


def _engine_pid(folder: Path) -> int | None:
    state = read_engine_status(folder)
    return state.pid if state else None


def _node_pid(folder: Path) -> int | None:
    node = find_node(folder)
    return node.pid if node else None


def _sample_memory(demo: subprocess.Popen[bytes], folder: Path) -> dict[str, list[float]]:
    """Returns the megabytes of node and engine, sampled every few seconds until the demo ends."""
    whose: dict[str, Callable[[Path], int | None]] = {"node": _node_pid, "engine": _engine_pid}
    samples: dict[str, list[float]] = {name: [] for name in whose}
    begun = time.monotonic()
    while demo.poll() is None:
        time.sleep(_SAMPLE)
        for name, pid_of in whose.items():
            pid = pid_of(folder)
            if pid is not None and (memory := tree_memory(pid)):
                samples[name].append(memory / 1e6)
        if len(samples["engine"]) % 12 == 1:
            minute = (time.monotonic() - begun) / 60
            say(f"  {minute:4.1f} min  " + "  ".join(f"{n} {s[-1]:,.0f} MB" for n, s in samples.items() if s))
    return samples


def main() -> None:
    """Run the demo shop, sample its memory and print it."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=2_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        words = ["demo", "--for", f"{given.minutes * 60:.0f}s", "--rate", str(given.rate), "--port", "0"]
        command = [str(Path(sys.executable).with_name("headwater")), *words, "--data", folder]
        with subprocess.Popen(command, stdout=sys.stderr) as demo:
            samples = _sample_memory(demo, Path(folder))
        for name, found in samples.items():
            print(f"{name}: {found[-1]:,.0f} MB at the end, {growth(found):.2f} x the middle of the run")
        sys.exit(demo.returncode)


if __name__ == "__main__":
    main()
