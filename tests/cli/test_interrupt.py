"""Ctrl-C ends commands within seconds while Spark starts, and leaves no process behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND

APP = """
import headwater as hw

app = hw.App("shop")
app.topic("orders", "order_id int, cents int", key="order_id")
app.stream("large", sql="select * from orders where cents > 100")
"""
_BOUND = 20.0  # seconds; less than what a graceful end may take, more than a busy machine needs


def descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = path.read_text().split(" ", 1)
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(number)] = int(rest.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def alive(pids: set[int]) -> set[int]:
    """Those of the processes that run."""
    states = {}
    for pid in pids:
        try:
            states[pid] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return {pid for pid, state in states.items() if state != "Z"}


@pytest.mark.spark
@pytest.mark.parametrize(
    "words",
    [
        ("run", "app.py", "--port", "0"),
        ("dev", "--port", "0"),
        ("run", "app.py", "--until-current"),
        ("plan", "app.py"),
    ],
    ids=" ".join,
)
def test_ctrl_c_while_spark_starts_ends_all_processes(environment, tmp_path: Path, words: tuple[str, ...]):
    (tmp_path / "app.py").write_text(APP)
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([COMMAND, *words], cwd=tmp_path, env=environment, **output)
    try:
        java: set[int] = set()
        deadline = time.monotonic() + 120
        while not java and process.poll() is None and time.monotonic() < deadline:
            started = descendants(process.pid)
            java = {pid for pid in started if _name(pid) == "java"}
            time.sleep(0.05)
        assert java
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        took = time.monotonic() - began
        sys.stdout.write(f"headwater {' '.join(words)} ended after {took:.1f} s\n")
        assert took < _BOUND
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while alive(started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(started) == set()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
