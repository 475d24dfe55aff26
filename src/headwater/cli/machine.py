"""What the machine offers to a process: its cores and its memory, with the limits of a container or service.

Linux limits processes by control groups: version 2 has `cpu.max` and `memory.max` in one tree, version 1 has a tree
for each resource. A process is limited by its own group and by all groups above it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Memory", "core_limit", "read_memory"]

_ROOT: Final = Path("/")
_UNLIMITED: Final = 1 << 60  # bytes; version 1 writes no limit as a number near 2**63


class Memory(NamedTuple):
    """The memory of the machine, in bytes."""

    total: int
    """What the machine has."""
    limit: int | None
    """What the process may use, if that is less."""
    available: int
    """What programs can still get without swapping."""

    @property
    def usable(self) -> int:
        """What the process may use."""
        return self.total if self.limit is None else self.limit


def read_memory(root: Path = _ROOT) -> Memory | None:
    """Returns the memory of the machine; None on a system without /proc/meminfo."""
    try:
        text = (root / "proc/meminfo").read_text()
    except OSError:
        return None
    kilobytes = {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    total = kilobytes.get("MemTotal", 0) * 1024
    limits = [int(found) for found in _read_limits(root, "memory", "memory.max", "memory.limit_in_bytes")]
    limit = min((each for each in limits if each < min(total, _UNLIMITED)), default=None)
    return Memory(total, limit, kilobytes.get("MemAvailable", 0) * 1024)


def core_limit(root: Path = _ROOT) -> float | None:
    """Returns how many cores the process may keep busy, if a limit says so; None without a limit."""
    limits = [int(quota) / int(period) for quota, period in _quotas(root) if int(period)]
    if hasattr(os, "sched_getaffinity") and (allowed := len(os.sched_getaffinity(0))) < (os.cpu_count() or 1):
        limits.append(float(allowed))
    return min(limits, default=None)


def _quotas(root: Path) -> Iterator[tuple[str, str]]:
    for found in _read_limits(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = found.partition(" ")
        yield quota, period or "100000"  # the period of version 1, which hardly anybody changes


def _read_limits(root: Path, controller: str, second: str, first: str) -> Iterator[str]:
    """Yields the limits of the groups of this process and of all above them, in both versions."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree, name = (root / "sys/fs/cgroup" / controllers, first) if controllers else (root / "sys/fs/cgroup", second)
        group = tree / path.strip("/")
        for folder in (group, *group.parents):
            # A group in which the process is the root shows its files at the top of the tree.
            if folder.is_relative_to(tree):
                yield from (each for each in _lines(folder / name) if each[:1].isdigit())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
