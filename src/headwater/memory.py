"""The memory of processes, as the kernel reports it in /proc.

The unit is the proportional set size (PSS): a page that several processes share counts in each with its share, so the
figures of processes can be added. Spark's Python workers are forks that share most of their pages.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from pathlib import Path

__all__ = ["child_processes", "count_memory_kills", "parent_process", "process_memory"]

_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


def process_memory(pid: int) -> int:
    """Returns the bytes of a process; 0 if it has ended, or if it belongs to another user.

    Example:
        >>> import os
        >>> process_memory(os.getpid()) > 1_000_000
        True
    """
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def child_processes(root: int) -> set[int]:
    """Returns the ids of all running descendants of a process.

    Example:
        >>> import os, subprocess
        >>> with subprocess.Popen(["sleep", "60"]) as child:
        ...     child.pid in child_processes(os.getpid())
        ...     child.kill()
        True
    """
    children: defaultdict[int, set[int]] = defaultdict(set)
    for path in Path("/proc").glob("[0-9]*/stat"):
        pid = int(path.parent.name)
        parent = parent_process(pid)
        if parent is not None:
            children[parent].add(pid)
    found: set[int] = set()
    new = set(children[root])
    while new:
        found |= new
        new = {child for pid in new for child in children[pid]} - found
    return found


def parent_process(pid: int) -> int | None:
    """Returns the id of the parent of a process; None if the process has ended.

    Example:
        >>> import os
        >>> parent_process(os.getpid()) == os.getppid()
        True
    """
    try:
        # The name in brackets may contain spaces; the parent is the second field after it.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def count_memory_kills() -> int | None:
    """Returns how many processes the kernel has killed since the machine started because memory was short.

    None if the operating system does not say. In a container, those of the whole machine count.

    Example:
        >>> (count_memory_kills() or 0) >= 0
        True
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None
