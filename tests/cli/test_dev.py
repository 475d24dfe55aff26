"""`headwater dev`: edits of a running app, on real Spark, with one engine from the first test to the last."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.cli import main
from headwater.errors import HeadwaterError
from tests.cli.conftest import COMMAND

pytestmark = pytest.mark.spark
APP = """
from pathlib import Path

import prices
from pyspark.sql import functions as F

import headwater as hw

app = hw.App("shop")
app.topic("orders", "order_id int, category string, cents int", key="order_id")
notes = app.queue("notes")


@app.stream
def large_orders(orders):
    return orders.where("cents >= 100")


@app.stream
def priced(orders):
    return orders.withColumn("cents", F.udf(prices.price, "int")("cents"))


@app.view(key="category")
def revenue(orders):
    return orders.groupBy("category").agg(F.sum("cents").alias("cents"))


@notes.worker
def write(note):
    with Path(__file__).with_name("notes.txt").open("a") as file:
        file.write(f"first {note['text']}\\n")
"""
PRICES = "def price(cents):\n    return cents + 1\n"
_TIMEOUT = 180.0  # seconds


class Dev:
    """A running `headwater dev`: its events, a client, and edits of its files."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self._sent = 0
        self._seen = 0
        self._keys, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [COMMAND, "dev", "--port", "0", "--json"],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        os.close(terminal)
        assert self.process.stdout is not None
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.banner = json.loads(self.process.stdout.readline())
        self.client = hw.connect(folder / ".headwater")

    def _read(self) -> None:
        for line in self.process.stderr or ():
            if line.startswith(b"{"):
                self.events.append(json.loads(line))

    def close(self) -> None:
        """End it, if it still runs."""
        self.client.close()
        self.process.terminate()
        self.process.wait(60)
        self._reading.join()
        os.close(self._keys)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def wait(self, *kinds: str) -> dict[str, Any]:
        """Returns the next event of one of these kinds."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline and self.process.poll() is None:
            while self._seen < len(self.events):
                self._seen += 1
                if self.events[self._seen - 1]["event"] in kinds:
                    return self.events[self._seen - 1]
            time.sleep(0.02)
        raise AssertionError(f"no {kinds}: {self.events}")

    def edit(self, old: str, new: str, file: str = "app.py") -> dict[str, Any]:
        """Replace a text in a file, and return what follows."""
        text = (self.folder / file).read_text()
        assert old in text
        began = time.monotonic()
        (self.folder / file).write_text(text.replace(old, new))
        found = self.wait("reloaded", "error")
        took = f"{time.monotonic() - began:.2f} s, in the engine {found.get('seconds', 0)} s"
        sys.stdout.write(f"{found['event']} after {took}\n")
        return found

    def type(self, keys: str) -> None:
        """Type something at the terminal."""
        os.write(self._keys, keys.encode())

    def send(self, *cents: int) -> list[int]:
        """Send orders of these amounts; returns their numbers."""
        numbers = list(range(self._sent, self._sent + len(cents)))
        self._sent += len(cents)
        rows = [{"order_id": n, "category": "tea", "cents": each} for n, each in zip(numbers, cents, strict=True)]
        self.client.send_many("orders", rows)
        return numbers

    def stream(self, name: str, last: int) -> dict[int, int]:
        """Returns the amounts of a stream by order, once it has this order."""
        deadline = time.monotonic() + _TIMEOUT
        found: dict[int, int] = {}
        while time.monotonic() < deadline and last not in found:
            found = {event.value["order_id"]: event.value["cents"] for event in self.client.read(name)}
            time.sleep(0.05)
        return found

    def rows(self, name: str, expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the rows of a view; waits until they are those expected, or time is up."""
        return self.until(lambda: self.client.view(name).rows(), expected)

    def until(self, read: Callable[[], Any], expected: Any) -> Any:
        """Returns what a function reads; waits until it is as expected, or time is up."""
        deadline, found = time.monotonic() + _TIMEOUT, None
        while time.monotonic() < deadline and found != expected:
            try:
                found = read()
            except (HeadwaterError, FileNotFoundError) as error:
                found = error
            time.sleep(0.05)
        return found

    @property
    def java(self) -> list[str]:
        """The ids of the engine and of its Java process."""
        engine = json.loads((self.folder / ".headwater" / "engine" / "state.json").read_text())["pid"]
        threads = Path(f"/proc/{engine}/task").glob("*/children")
        children = [pid for thread in threads for pid in thread.read_text().split()]
        return [str(engine), *(pid for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "java")]


@pytest.fixture(scope="module")
def dev(environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """A shop that is being written."""
    folder = tmp_path_factory.mktemp("dev")
    (folder / "app.py").write_text(APP)
    (folder / "prices.py").write_text(PRICES)
    running = Dev(folder, environment)
    try:
        assert running.wait("ready")["running"] == 3
        yield running
    finally:
        running.close()


def test_an_edited_pipeline_is_replaced_and_the_others_keep_running(dev: Dev):
    java = dev.java
    assert len(java) == 2
    first = dev.send(50, 150)
    assert dev.stream("large_orders", first[-1]) == {first[1]: 150}
    report = dev.edit("cents >= 100", "cents >= 200")
    assert (report["started"], set(report["kept"])) == (["large_orders"], {"priced", "revenue"})
    numbers = dev.send(150, 250)
    assert dev.stream("large_orders", numbers[-1]) == {first[1]: 150, numbers[1]: 250}
    assert dev.java == java


def test_a_broken_file_shows_its_error_and_the_app_keeps_running(dev: Dev):
    problem = dev.edit('"cents >= 200"', '"cents >= 200')["problem"]
    assert (problem["code"], problem["source"]) == ("BAD_APP", 'return orders.where("cents >= 200)')
    numbers = dev.send(199, 201)
    found = dev.stream("large_orders", numbers[-1])
    assert numbers[0] not in found
    report = dev.edit('"cents >= 200)', '"cents >= 200")')
    assert (report["started"], report["problems"]) == ([], {})


def test_a_refused_pipeline_keeps_its_last_definition(dev: Dev):
    report = dev.edit('"cents >= 200"', '"sents >= 200"')
    assert report["problems"]["large_orders"]["data"]["pipeline"] == "large_orders"
    assert (report["started"], report["state_changed"]) == ([], [])
    numbers = dev.send(199, 201)
    assert numbers[0] not in dev.stream("large_orders", numbers[-1])
    assert dev.edit('"sents >= 200"', '"cents >= 200"')["problems"] == {}


def test_a_view_whose_state_does_not_fit_is_rebuilt_when_asked(dev: Dev):
    dev.send(10, 20)
    report = dev.edit('alias("cents"))', 'alias("cents"), F.count("*").alias("n"))')
    assert report["state_changed"] == ["revenue"]
    assert report["problems"]["revenue"]["code"] == "STATE_CHANGED"
    sent = [event.value["cents"] for event in dev.client.read("orders")]
    assert dev.rows("revenue", [{"category": "tea", "cents": sum(sent)}]) == [{"category": "tea", "cents": sum(sent)}]
    dev.type("r\n")
    assert dev.wait("reloaded")["rebuilding"] == ["revenue"]
    expected = [{"category": "tea", "cents": sum(sent), "n": len(sent)}]
    assert dev.rows("revenue", expected) == expected


def test_python_workers_run_the_edited_module(dev: Dev):
    java = dev.java
    numbers = dev.send(7)
    assert dev.stream("priced", numbers[0])[numbers[0]] == 8
    report = dev.edit("cents + 1", "cents + 2", "prices.py")
    assert (report["started"], set(report["kept"])) == (["priced"], {"large_orders", "revenue"})
    numbers = dev.send(7)
    assert dev.stream("priced", numbers[0])[numbers[0]] == 9
    assert dev.java == java


def test_a_new_pipeline_starts_and_a_removed_one_stops(dev: Dev):
    total = '@app.view(key="order_id")\ndef small(orders):\n    return orders.where("cents < 10")\n\n\n@notes.worker'
    report = dev.edit("@notes.worker", total)
    assert (report["started"], set(report["kept"])) == (["small"], {"large_orders", "priced", "revenue"})
    dev.until(lambda: len(dev.client.view("small").rows()), 2)
    assert {row["cents"] for row in dev.client.view("small").rows()} == {7}
    report = dev.edit(total, "@notes.worker")
    assert (report["removed"], report["started"]) == (["small"], [])


def test_workers_run_the_edited_function(dev: Dev):
    notes = dev.folder / "notes.txt"
    with dev.client.queue("notes") as queue:
        queue.publish({"text": "one"})
        assert dev.until(notes.read_text, "first one\n") == "first one\n"
        dev.edit("first {note", "second {note")
        queue.publish({"text": "two"})
        assert dev.until(notes.read_text, "first one\nsecond two\n") == "first one\nsecond two\n"


def test_a_second_dev_shows_the_first_one(
    dev: Dev, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(dev.folder)
    assert main(["dev", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["url"], found["pid"], found["app"]) == (dev.banner["url"], dev.process.pid, "shop")
    assert {one["name"]: one["state"] for one in found["pipelines"]}.keys() == {"large_orders", "priced", "revenue"}


def test_ctrl_c_ends_it_within_seconds(dev: Dev):
    began = time.monotonic()
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(60) == 130
    sys.stdout.write(f"ended after {time.monotonic() - began:.1f} s\n")
