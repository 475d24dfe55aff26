"""The machine on which a figure was measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "this_machine"]


@dataclass(frozen=True)
class Machine:
    """The hardware and software that a log's speed depends on, and the load at the start."""

    processor: str
    cores: int
    memory_gb: float
    file_system: str
    kernel: str
    python: str
    load: float

    def __str__(self) -> str:
        return (
            f"{self.processor}, {self.cores} cores, {self.memory_gb:.0f} GB, {self.file_system}, "
            f"Linux {self.kernel}, Python {self.python}, load {self.load:.1f} at the start"
        )


def this_machine(folder: Path) -> Machine:
    """Returns this machine, with the file system of `folder`."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        file_system=_file_system(folder.resolve()),
        kernel=platform.release(),
        python=platform.python_version(),
        load=os.getloadavg()[0],
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Hardware"}:
            return value.strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [mount for mount in mounts if folder.is_relative_to(mount[1])]
    device, _, kind = max(inside, key=lambda mount: len(mount[1]))[:3]
    return f"{kind} on {device}"
