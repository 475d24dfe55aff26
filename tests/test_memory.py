"""The memory of processes, compared with all their mappings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater import runner
from headwater.memory import child_processes, count_memory_kills, process_memory
from headwater.store.status import take_out_of_memory

SLEEP = [sys.executable, "-c", "import time; kept = bytearray(b'x' * 50_000_000); print(1, flush=True); time.sleep(60)"]


def test_the_memory_of_a_process_is_the_sum_of_its_mappings():
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        mappings = Path(f"/proc/{child.pid}/smaps").read_text()
        expected = sum(map(int, re.findall(r"^Pss:\s+(\d+) kB", mappings, re.MULTILINE))) * 1024
        found = process_memory(child.pid)
        child.kill()
    assert found > 50_000_000
    assert abs(found - expected) < 2_000_000  # other processes share its libraries, and end meanwhile


def test_a_process_that_has_ended_has_no_memory():
    with subprocess.Popen(["true"]) as ended:
        pass
    assert process_memory(ended.pid) == 0


def test_grandchildren_are_found():
    script = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout
        grandchild = int(child.stdout.readline())
        found = child_processes(os.getpid())
        os.kill(grandchild, 9)
    assert {child.pid, grandchild} <= found


def test_kills_by_the_kernel_are_those_that_it_counts():
    counted = subprocess.run(["awk", '$1 == "oom_kill" {print $2}', "/proc/vmstat"], capture_output=True, check=True)
    assert count_memory_kills() == int(counted.stdout)


@pytest.mark.parametrize(("before", "now", "recorded"), [(3, 3, False), (3, 4, True), (None, None, True)])
def test_only_a_kill_that_the_kernel_may_have_done_makes_batches_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int | None, now: int | None, recorded: bool
):
    monkeypatch.setattr(runner, "_KILLS_BEFORE", before)
    monkeypatch.setattr(runner, "count_memory_kills", lambda: now)
    (tmp_path / "engine").mkdir()
    assert runner._record_memory(-signal.SIGKILL, tmp_path)
    assert bool(take_out_of_memory(tmp_path)) is recorded
