"""F20, F26 on a cluster: executors and drivers die, drivers move and meet; the rows are those of a quiet run.

Checkpoints are at a URL of Hadoop's that no Python file function understands, and the workers cannot see the drivers'
folders: what a driver that moved goes on from, and the app's code, come to them by no other way than the right one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import headwater as hw
from headwater.profiles import read_profile
from tests.cli.conftest import COMMAND
from tests.scale.bills import kill_driver, require_each_once, send, write_app
from tests.scale.conftest import DRIVERS
from tests.services.shell import CLEAN, Shell

pytestmark = [pytest.mark.services, pytest.mark.spark]

BILLS = 800


def until(holds: Callable[[], bool], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def write_profile(folder: Path) -> dict[str, str]:
    """A profile "faults": another database, checkpoints at a URL; the environment in which Spark knows that URL."""
    text = (folder / "headwater.toml").read_text()
    text = re.sub(r"(?m)^checkpoints = .*$", 'checkpoints = "viewfs://share/kept/bills"', text)
    text = text.replace("[profiles.local]", "[profiles.faults]").replace('/postgres"', '/faults"')
    with (folder / "headwater.toml").open("a") as file:
        file.write(f"\n{text}")
    shared, settings = folder / "share", folder / "spark-settings"
    shared.mkdir()
    settings.mkdir()
    mounted = f"spark.hadoop.fs.viewfs.mounttable.share.link./kept file://{shared}\n"
    (settings / "spark-defaults.conf").write_text(mounted)
    return CLEAN | {"SPARK_CONF_DIR": str(settings)}


def executors(shell: Shell) -> list[int]:
    """The processes that the workers have started."""
    workers = {one["pid"] for name, one in shell.state.items() if name.startswith("spark-worker")}
    children = (Path(f"/proc/{pid}/task").glob("*/children") for pid in workers)
    return [int(child) for files in children for file in files for child in file.read_text().split()]


def test_executors_and_drivers_die_and_meet_and_each_row_is_there_once(
    cluster: Shell, monkeypatch: pytest.MonkeyPatch
):
    environment = write_profile(cluster.folder)
    local, profile = cluster.profile, read_profile("faults", cluster.folder)
    assert local.store is not None
    assert profile.log is not None
    with psycopg.connect(local.store.resolved(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE faults")
    drivers = {name: write_app(cluster.folder / DRIVERS / name) for name in ("first", "second", "third")}

    def start(name: str) -> subprocess.Popen[bytes]:
        command = [COMMAND, "run", "app.py", "--profile", "faults"]
        with (drivers[name] / "said").open("wb") as said:
            return subprocess.Popen(command, cwd=drivers[name], env=environment, stderr=said)

    monkeypatch.chdir(cluster.folder)
    running = [start("first")]
    try:
        with hw.connect(profile="faults") as client:
            used = "select coalesce(min(used), 0) from hw_pipelines having count(*) = 2"

            def reached(count: int) -> bool:
                found = client.sql(used).rows
                return bool(found) and found[0][0] >= count

            until(lambda: "bills" in client.topics())
            send(client, 0, 300)
            until(lambda: reached(1))
            send(client, 300, 400)
            time.sleep(0.3)
            os.kill(executors(cluster)[0], signal.SIGKILL)
            until(lambda: reached(400))

            running.append(start("second"))
            for sent in range(400, 600, 10):
                send(client, sent, sent + 10)
                time.sleep(0.5)
            assert running[0].wait(100) == 4
            assert "FENCED" in (drivers["first"] / "said").read_text()
            until(lambda: reached(500))
            kill_driver(running[1], drivers["second"] / ".headwater")
            send(client, 600, BILLS)
    finally:
        for process in running:
            process.kill()
            process.wait(10)
    third = Shell(drivers["third"], env=environment)
    third("run", "app.py", "--profile", "faults", "--until-current")
    totals = third("view", "totals", "--profile", "faults")
    counts = third("sql", "select in_, used, unaccounted from hw_pipelines", "--profile", "faults")
    require_each_once(BILLS, totals, counts, profile.log.resolved().removeprefix("kafka://"))
