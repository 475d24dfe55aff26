"""Run a forked child under strace, which kills it or makes a chosen system call fail."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.processes import fork, kill, until, wait_for


def run_traced(work: Callable[[], None], strace: str, inject: str) -> int:
    """Run the child; returns 0, 1, or minus the signal that ended it.

    Args:
        work: The function of the child; its start is not traced.
        strace: The program.
        inject: The fault that strace injects, such as "rename:signal=KILL:when=3".
    """

    def stopped() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        work()

    pid = fork(stopped)
    os.waitpid(pid, os.WUNTRACED)
    call = inject.split(":", maxsplit=1)[0]
    options = ["-f", "-q", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={inject}"]
    tracer = subprocess.Popen([strace, *options, "-p", str(pid)], stderr=subprocess.DEVNULL)
    status = Path(f"/proc/{pid}/status")
    until(lambda: tracer.poll() is not None or "TracerPid:\t0\n" not in status.read_text())
    if tracer.poll() is not None:
        kill(pid)
        pytest.skip("strace cannot attach to a process here")
    os.kill(pid, signal.SIGCONT)
    ended = wait_for(pid)
    tracer.wait(10)
    return ended
