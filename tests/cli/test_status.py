"""`headwater status`: which topics keep pipelines waiting, and memory by part."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headwater.cli.commands.status import find_waiting_history
from headwater.store.status import EngineMemory, write_engine_memory


@pytest.mark.parametrize(
    ("age", "idle", "waiting"),
    [("400 days", "0 s", ["trades"]), ("400 days", "1 hour", []), ("0 s", "0 s", [])],
)
def test_idle_history_waits_for_its_completion(log, age, idle, waiting):
    log.create_topic("trades", "at timestamp", time="at", idle=idle)
    log.create_topic("never", "at timestamp", time="at")
    log.send("trades", {"at": datetime.now(UTC) - timedelta(days=int(age.split()[0]))})
    assert find_waiting_history(log.log, {"trades", "never"}) == waiting
    log.complete("trades")
    assert find_waiting_history(log.log, {"trades", "never"}) == []


def test_table_of_history_waits_for_its_completion_too(log):
    log.create_topic("prices", "id int, at timestamp", key="id", time="at", compact=True, idle="0 s")
    log.send("prices", {"id": 1, "at": datetime.now(UTC) - timedelta(days=400)})
    assert find_waiting_history(log.log, {"prices"}) == ["prices"]
    log.complete("prices")
    assert find_waiting_history(log.log, {"prices"}) == []


def test_memory_is_shown_by_part(call, log, data):
    memory = EngineMemory(
        0, os.getpid(), 100_000_000, java_heap=300_000_000, python_workers=50_000_000, python_processes=2
    )
    write_engine_memory(Path(data), memory)
    (found,) = call("status", "--json").rows
    assert found["memory"]["engine"]["java_heap"] == 300_000_000
    (line,) = [line for line in call("status").out.splitlines() if line.startswith("memory")]
    assert line == "memory     450.0 MB  Java heap 300.0 MB, engine 100.0 MB, 2 Python workers 50.0 MB"


def test_memory_of_an_engine_that_has_ended_is_not_shown(call, log, data):
    with subprocess.Popen(["true"]) as ended:
        pass
    write_engine_memory(Path(data), EngineMemory(0, ended.pid, 100_000_000))
    assert call("status", "--json").rows[0]["memory"] == {"node": 0, "engine": None}
    assert not [line for line in call("status").out.splitlines() if line.startswith("memory")]
