"""What is measured: CPU beside wall time of a piece of work, and what a process holds and does while it is idle."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Figure", "cost", "count_syncs", "disk_row", "idle_rows", "memory_rows", "run_command"]


@dataclass(frozen=True)
class Figure:
    """One measured value; `wall` is the wall time beside a CPU time, in the same unit."""

    name: str
    value: float
    unit: str
    wall: float | None = None


def cost(name: str, work: Callable[[], object], repeats: int) -> Figure:
    """Returns the CPU time of one call, beside its wall time: the mean over some calls, after one for warm-up."""
    work()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(repeats):
        work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Figure(name, cpu / repeats * 1e3, "ms", wall / repeats * 1e3)


def run_command(name: str, *words: str, folder: Path) -> Figure:
    """Returns the CPU time of a command of `headwater`, beside its wall time."""
    command = [str(Path(sys.executable).with_name("headwater")), *words, "--data", str(folder)]
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    # Exit code 3 of `status`: the node of this folder was killed.
    code = subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
    if code not in (0, 3):
        raise RuntimeError(f"{command} ended with code {code}")
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Figure(name, cpu * 1e3, "ms", wall * 1e3)


def disk_row(name: str, folder: Path) -> Figure:
    """Returns the bytes that the files of a folder occupy; sparse parts do not count."""
    blocks = sum(path.stat().st_blocks for path in folder.rglob("*") if path.is_file())
    return Figure(name, blocks * 512 / 1e6, "MB")


def memory_rows(prefix: str, processes: Sequence[int]) -> Iterator[Figure]:
    """Yields memory and open files of processes. A page that several processes share counts in parts."""
    yield Figure(f"{prefix}, memory (PSS)", sum(map(_pss, processes)) / 1e6, "MB")
    yield Figure(f"{prefix}, open files", sum(len(_list("fd", pid)) for pid in processes), "")


def idle_rows(prefix: str, processes: Sequence[int], seconds: float) -> Iterator[Figure]:
    """Yields what idle processes do in a minute: CPU seconds, wake-ups of threads, syncs."""
    cpu, wakeups = _cpu(processes), _wakeups(processes)
    time.sleep(seconds)
    minutes = seconds / 60
    yield Figure(f"{prefix}, CPU per minute", (_cpu(processes) - cpu) / minutes, "s")
    yield Figure(f"{prefix}, wake-ups per minute", max(0, _wakeups(processes) - wakeups) / minutes, "")
    with count_syncs(processes) as syncs:
        time.sleep(seconds)
    if syncs:
        yield Figure(f"{prefix}, syncs per minute", syncs[0] / minutes, "")


@contextlib.contextmanager
def count_syncs(processes: Sequence[int]) -> Iterator[list[int]]:
    """Counts the sync calls of processes during the block with strace; the list stays empty if strace cannot run."""
    found: list[int] = []
    if shutil.which("strace") is None:
        yield found
        return
    with tempfile.NamedTemporaryFile("r") as output:
        watched = [word for pid in processes for word in ("-p", str(pid))]
        calls = "trace=fsync,fdatasync,syncfs,msync,sync_file_range"
        command = ["strace", "-f", "-e", calls, "-o", output.name, *watched]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as strace:
            time.sleep(0.3)  # until it is attached
            yield found
            strace.terminate()
            strace.wait()
        lines = [line for line in output if re.search(r"\b(f(data)?sync|syncfs|msync|sync_file_range)\(", line)]
        found.append(len(lines))


def _cpu(processes: Sequence[int]) -> float:
    return sum(sum(map(int, _stat(pid)[11:13])) for pid in processes) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _wakeups(processes: Sequence[int]) -> int:
    total = 0
    for pid in processes:
        for thread in _list("task", pid):
            with contextlib.suppress(OSError):
                text = (thread / "status").read_text()
                total += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]
    return total


def _pss(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1]) * 1024  # type: ignore[index]


def _list(kind: str, pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/{kind}").iterdir())
