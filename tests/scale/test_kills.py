"""Engines killed while they run on Kafka and PostgreSQL: rows once, changes once, as a plain Kafka client sees them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import headwater as hw
from headwater.store.status import read_engine_status
from tests.cli.conftest import COMMAND
from tests.faults.counts import only_in_full_runs
from tests.scale.bills import kill_engine, require_current, require_each_once, send, write_app
from tests.services.shell import Shell

pytestmark = [pytest.mark.services, pytest.mark.spark]


@only_in_full_runs
def test_engines_killed_on_kafka_and_postgres_leave_each_row_and_change_once(tmp_path: Path):
    shell = Shell(write_app(tmp_path))
    try:
        shell("services", "up", "--write")
        assert shell.profile.log is not None
        shell("run", "app.py", "--profile", "local", "--until-current")
        ended = read_engine_status(tmp_path / ".headwater")
        killed = {ended.pid} if ended and ended.pid else set()
        running = subprocess.Popen([COMMAND, "run", "app.py", "--profile", "local"], cwd=tmp_path)
        try:
            with hw.connect(shell.profile.log.resolve()) as client:
                for part in range(2):
                    send(client, part * 400, part * 400 + 400)
                    killed.add(kill_engine(tmp_path / ".headwater", killed))
                send(client, 800, 1_000)
        finally:
            running.terminate()
            running.wait(60)
        shell("run", "app.py", "--profile", "local", "--until-current")
        totals = shell("view", "totals", "--profile", "local")
        counts = shell("sql", "select in_, used, unaccounted from hw_pipelines", "--profile", "local")
        broker = shell.profile.log.resolve().removeprefix("kafka://")
        require_each_once(1_000, totals, counts, broker)
        require_current(shell, "local", broker, 1_000)
    finally:
        shell("services", "down")
