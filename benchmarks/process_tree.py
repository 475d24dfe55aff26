"""CPU time and memory of a process and its descendants: Java, Spark's Python workers, sources."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Watch

__all__ = ["KEEP_COMPILERS", "TreeWatch", "compiler_cpu", "tree_cpu", "tree_memory", "tree_processes"]

KEEP_COMPILERS = "-XX:-UseDynamicNumberOfCompilerThreads"
"""A value of `JDK_JAVA_OPTIONS` that keeps the number of compiler threads constant, for `compiler_cpu`."""
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class TreeWatch(Watch):
    """A watch that counts the CPU time of all descendants, including ended ones."""

    def _cpu(self) -> float:
        return tree_cpu(os.getpid())


def tree_cpu(root: int) -> float:
    """Returns the CPU seconds of a process and its descendants, including ended ones."""
    return sum(sum(map(int, fields[11:15])) for _, fields in _tree(root)) / _TICK


def compiler_cpu(root: int) -> float:
    """Returns the CPU seconds of Java's compiler threads below a process.

    Ended threads are not counted, so Java must keep its compiler threads: see `KEEP_COMPILERS`.
    """
    found = 0
    for pid, _ in _tree(root):
        for path in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = path.read_text().rpartition(")")
                found += sum(map(int, rest.split()[11:13])) if "CompilerThre" in name else 0
    return found / _TICK


def tree_memory(root: int) -> int:
    """Returns the resident bytes of a process and its descendants; shared pages count in each."""
    return sum(int(fields[21]) for _, fields in _tree(root)) * _PAGE


def tree_processes(root: int) -> list[int]:
    """Returns the ids of a process and its descendants."""
    return [pid for pid, _ in _tree(root)]


def _tree(root: int) -> Iterator[tuple[int, list[str]]]:
    known: dict[int, list[str]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                known[int(path.name)] = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
    mine = {root}
    grown = True
    while grown:
        more = {pid for pid, fields in known.items() if int(fields[1]) in mine} - mine
        mine |= more
        grown = bool(more)
    return ((pid, known[pid]) for pid in mine if pid in known)
