"""Memory over a long run: the demo's shop with its database and six pipelines, at a steady rate, by part.

    python -m benchmarks.bench_soak [--minutes N] [--rate N] [--kill-every SECONDS] [--kills N] [--folder FOLDER]
    python -m benchmarks.bench_soak --report FOLDER [--from-minute N]

Writes one line per sample to FOLDER/samples.jsonl and the audit of the demo to FOLDER/audit.json. At the end, or with
`--report` for a finished or interrupted run, it prints a table and writes the plot FOLDER/soak.svg. `--histograms`
counts the objects of Java every two minutes, with `jcmd`; each count is a full garbage collection, which changes the
figures.

Memory is what `headwater status` shows. The aim is that memory at the end is at most 1.05 times that ten minutes after
the engine was last started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec

from benchmarks.machine import this_machine
from benchmarks.measure import say
from benchmarks.soak_report import plot, print_report, read_samples
from headwater.demo import DemoRun, DemoSettings
from headwater.memory import child_processes, process_memory
from headwater.server.pid_file import find_node
from headwater.store.status import read_engine_memory

__all__ = ["main"]

_INTERVAL = 10.0  # seconds between samples
_CATCH_UP = 600.0  # seconds for the pipelines to process the remaining events
_HISTOGRAM_INTERVAL = 120.0  # seconds


class Killer:
    """Kills the engine with all its processes, a number of times.

    Args:
        run: The demo.
        every: Seconds between kills.
        kills: The number of kills.
    """

    def __init__(self, run: DemoRun, every: float, kills: int) -> None:
        self._run = run
        self._every = every
        self._kills = kills
        self._next = every
        self.killed = 0

    def work(self, passed: float) -> None:
        """Kill the engine if it is time, and if it runs."""
        state = self._run.engine_status()
        if self.killed < self._kills and passed >= self._next and state.state == "running" and state.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(state.pid, signal.SIGKILL)
                self.killed += 1
                self._next += self._every


def _sample(run: DemoRun, folder: Path) -> dict[str, object]:
    """Returns the memory of node and engine in bytes; no parts of the engine while it starts."""
    node, engine = find_node(folder), read_engine_memory(folder)
    return {
        "events": sum(run.count_appended().values()),
        "node": process_memory(node.pid) if node else 0,
        "engine": None if engine is None else msgspec.to_builtins(engine),
    }


def _samples(run: DemoRun, folder: Path, killer: Killer, seconds: float) -> Iterator[dict[str, object]]:
    begun = time.monotonic()
    for number in range(1, int(seconds / _INTERVAL) + 1):
        time.sleep(max(0.0, begun + number * _INTERVAL - time.monotonic()))
        passed = time.monotonic() - begun
        killer.work(passed)
        yield {"seconds": round(passed, 1), "kills": killer.killed, **_sample(run, folder)}


def _count_objects(folder: Path, out: Path, passed: float) -> None:
    """Write the number and bytes of Java's objects by class; nothing without `jcmd`."""
    engine = read_engine_memory(folder)
    for pid in child_processes(engine.pid) if engine else ():
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            with (out / f"histogram-{passed:05.0f}.txt").open("wb") as written, contextlib.suppress(OSError):
                subprocess.run(["jcmd", str(pid), "GC.class_histogram"], stdout=written, check=False)


def soak(given: argparse.Namespace) -> int:
    """Run the shop and write samples and audit; returns the number of faults."""
    given.folder.mkdir(parents=True, exist_ok=True)
    data = given.folder / "data"
    with contextlib.closing(DemoRun(data, 0, DemoSettings(rate=given.rate))) as run:
        run.start()
        killer = Killer(run, given.kill_every, given.kills if given.kill_every else 0)
        counted = 0.0
        with (given.folder / "samples.jsonl").open("w", buffering=1) as written:
            about = {"rate": given.rate, "machine": asdict(this_machine(given.folder))}
            written.write(json.dumps(about) + "\n")
            for sample in _samples(run, data, killer, given.minutes * 60):
                written.write(json.dumps(sample) + "\n")
                if given.histograms and float(str(sample["seconds"])) >= counted:
                    _count_objects(data, given.folder, counted)
                    counted += _HISTOGRAM_INTERVAL
        say("no more events; the pipelines catch up")
        run.stop_producers()
        end = time.monotonic() + _CATCH_UP
        while not run.is_caught_up() and time.monotonic() < end:
            time.sleep(1)
        result = run.result()
    pipelines = [asdict(each) | {"counts": dict(each.counts)} for each in result.pipelines]
    audit = {
        "faults": result.faults,
        "topics": [asdict(each) for each in result.topics],
        "tables": [asdict(each) for each in result.tables],
        "pipelines": pipelines,
    }
    (given.folder / "audit.json").write_text(json.dumps(audit, indent=2, default=str))
    return len(result.faults)


def main() -> None:
    """Run the soak and print its table."""
    parser = argparse.ArgumentParser(prog="bench_soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=2_000, help="events per second")
    parser.add_argument("--kill-every", type=float, default=0, help="kill the engine every n seconds")
    parser.add_argument("--kills", type=int, default=1_000, help="the largest number of kills")
    parser.add_argument("--folder", type=Path, default=Path("soak"), help="for samples, plot and data")
    parser.add_argument("--histograms", action="store_true", help="count Java's objects every two minutes")
    parser.add_argument("--report", type=Path, help="only print the table of this folder, and write its plot")
    parser.add_argument("--from-minute", type=float, help="compare the end with this minute in the table")
    given = parser.parse_args()
    faults = 0 if given.report else soak(given)
    folder = given.report or given.folder
    about, samples = read_samples(folder / "samples.jsonl")
    print_report(about, samples, folder / "audit.json", given.from_minute)
    (folder / "soak.svg").write_text(plot(samples))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
