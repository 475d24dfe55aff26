"""Measures in a new process how long it takes to open a log, and how much memory it takes to read one.

python -m benchmarks.fresh_process open|read|read-events FOLDER TOPIC COUNT
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["in_fresh_process", "out_of_page_cache"]

LONGEST = 300.0  # seconds; a longer task hangs


def in_fresh_process(task: str, folder: Path, topic: str, count: int) -> dict[str, float]:
    """Run a task of this module in a new process, on a topic of `count` events; returns its measurements."""
    command = [sys.executable, "-m", "benchmarks.fresh_process", task, str(folder), topic, str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LONGEST)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def out_of_page_cache(folder: Path) -> int:
    """Drop the files from the page cache; returns their size in bytes."""
    total = 0
    for path in (path for path in folder.rglob("*") if path.is_file()):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        total += os.fstat(file).st_size
        os.close(file)
    return total


def open_log(folder: str, topic: str) -> dict[str, float]:
    """Open a log, read its first event and append one."""
    import headwater as hw

    start = time.perf_counter()
    with hw.connect(folder) as client:
        first = next(iter(client.read(topic, start="earliest", stop="end")))
        read = time.perf_counter()
        client.send(topic, first.value)
        return {"read": read - start, "append": time.perf_counter() - start}


def read_log(folder: str, topic: str, count: int, *, events: bool) -> dict[str, float]:
    """Read a topic to its end; returns the peak memory in the first twentieth, and after it."""
    import headwater as hw

    seen, early, most = 0, 0, 0
    with hw.connect(folder) as client:
        read = client.read if events else client.read_arrow
        for number, each in enumerate(read(topic, start="earliest", stop="end")):
            seen += 1 if events else each.num_rows
            if events and number % 1_000:
                continue
            if seen <= count // 20:
                early = max(early, _memory())
            else:
                most = max(most, _memory())
    return {"events": seen, "early": early, "most": most}


def _memory() -> int:
    """Returns the memory of this process in bytes, without pages of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not report the memory of a process")


def main() -> None:
    """Run the task named on the command line."""
    task, folder, topic, count = sys.argv[1:]
    if task == "open":
        measured = open_log(folder, topic)
    else:
        measured = read_log(folder, topic, int(count), events=task == "read-events")
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
