"""F20, F26 on a cluster: an executor and drivers die, drivers move and meet; the rows are those of a quiet run.

Checkpoints are at a URL of Hadoop's that no Python file function understands, the workers cannot see the drivers'
folders, and their Python comes in an archive: what a driver that moved goes on from, the app's code and what it needs
come to them by no other way than the right one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import headwater as hw
from headwater.profiles import read_profile
from tests.cli.conftest import COMMAND
from tests.faults.counts import only_in_full_runs
from tests.scale.bills import kill_driver, require_current, require_each_once, send, write_app
from tests.scale.conftest import DRIVERS
from tests.services.shell import CLEAN, Shell

pytestmark = [pytest.mark.services, pytest.mark.spark]

PROFILE = ("--profile", "faults")


class Drivers:
    """Drivers of one app, each in a folder of its own that no worker can see."""

    def __init__(self, cluster: Shell) -> None:
        self.folder = cluster.folder / DRIVERS
        settings = cluster.folder / "spark-settings"
        settings.mkdir()
        (cluster.folder / "share").mkdir()
        mounted = f"spark.hadoop.fs.viewfs.mounttable.share.link./kept file://{cluster.folder / 'share'}\n"
        (settings / "spark-defaults.conf").write_text(mounted)
        self._environment = CLEAN | {"SPARK_CONF_DIR": str(settings)}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """`headwater run`, on another machine as it were."""
        folder = write_app(self.folder / name)
        with (folder / "said").open("wb") as said:
            command = [COMMAND, "run", "app.py", *PROFILE]
            running = subprocess.Popen(
                command, cwd=folder, env=self._environment, stdout=said, stderr=subprocess.STDOUT
            )
        self._running.append(running)
        return running

    def said(self, name: str) -> str:
        return (self.folder / name / "said").read_text()

    def shell(self, name: str) -> Shell:
        return Shell(write_app(self.folder / name), env=self._environment)

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(10)


@contextmanager
def drivers_of(cluster: Shell) -> Iterator[Drivers]:
    """Drivers under a profile "faults": checkpoints at a URL, a packed Python, and a database of its own."""
    file = cluster.folder / "headwater.toml"
    text = re.sub(r"(?m)^checkpoints = .*$", 'checkpoints = "viewfs://share/kept/bills"', file.read_text())
    text = re.sub(r"(?m)^python = .*$", f'python = "{DRIVERS}/environment.tar.gz"', text)
    text = text.replace("[profiles.local]", "[profiles.faults]").replace('/postgres"', '/faults"')
    file.write_text(f"{file.read_text()}\n{text}")
    store = cluster.profile.store
    assert store is not None
    with psycopg.connect(store.resolve(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE faults")
    drivers = Drivers(cluster)
    pack_python(drivers.folder / "environment")
    try:
        yield drivers
    finally:
        drivers.end()


def pack_python(folder: Path) -> None:
    """An archive with a Python that finds the packages of this one where they are, which makes it small."""
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "there.pth").write_text("\n".join(path for path in sys.path if Path(path).is_dir()))
    with tarfile.open(f"{folder}.tar.gz", "w:gz") as archive:
        archive.add(folder, ".")


def executors(cluster: Shell) -> list[int]:
    """The processes that the workers have started."""
    workers = [one["pid"] for name, one in cluster.state.items() if name.startswith("spark-worker")]
    files = [file for pid in workers for file in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for file in files for child in file.read_text().split()]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def used(client: hw.Client) -> int:
    """How many events both pipelines have taken in."""
    ((count, least),) = client.sql("select count(*), min(used) from hw_pipelines").rows
    return least if count == 2 else 0


@only_in_full_runs
def test_executors_and_drivers_die_and_meet_and_each_row_is_there_once(cluster: Shell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(cluster.folder)
    with drivers_of(cluster) as drivers, hw.connect(profile="faults") as client:
        first = drivers.start("first")
        until(lambda: "bills" in client.topics())
        send(client, 0, 200)
        until(lambda: used(client) >= 200)
        send(client, 200, 300)
        time.sleep(0.3)
        os.kill(executors(cluster)[0], signal.SIGKILL)
        until(lambda: used(client) >= 300)

        second, sent = drivers.start("second"), 300
        while first.poll() is None:  # it works until the other one takes its pipelines
            send(client, sent, sent + 5)
            sent += 5
            assert sent < 2_000
            time.sleep(0.3)
        assert (first.returncode, "FENCED" in drivers.said("first")) == (4, True)
        until(lambda: used(client) >= sent)
        send(client, sent, sent + 100)
        time.sleep(0.3)
        kill_driver(second, drivers.folder / "second" / ".headwater")

        third = drivers.shell("third")
        third("run", "app.py", *PROFILE, "--until-current")
        totals = third("view", "totals", *PROFILE)
        counts = third("sql", "select in_, used, unaccounted from hw_pipelines", *PROFILE)
        log = read_profile("faults").log
        assert log is not None
        broker = log.resolve().removeprefix("kafka://")
        require_current(third, "faults", broker, sent + 100)
    require_each_once(sent + 100, totals, counts, broker)
