"""Worker processes: started by the runner, restarted when they die, stopped gracefully."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.app_file import load_app
from headwater.runner import WorkerProcesses
from headwater.workers.process import plan_processes

LONG = 90.0
APP = """
import os, time
from pathlib import Path
import headwater as hw

app = hw.App("shop")
jobs = app.queue("jobs", retry=hw.retry(3, backoff="100 ms"), visibility_timeout="3s")

def note(text):
    with open(Path(__file__).with_name("notes"), "a") as notes:
        notes.write(f"{text}\\n")

@jobs.worker(group="shared", threads=2)
def shared(job, message: hw.Message):
    print("printed by a worker")
    if job.get("die") == "always" or (job.get("die") and not message.redelivered):
        os.kill(os.getpid(), 9)
    note(f"shared {job['n']} {os.getpid()} {message.redelivered}")

@jobs.worker(group="own", processes=2)
async def own(job):
    note(f"own {job['n']} {os.getpid()}")

@app.answer("shop.pid")
def pid(question):
    return os.getpid()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.fixture
def client(file: Path, tmp_path: Path) -> Iterator[hw.Client]:
    with hw.connect(tmp_path / "data") as client:
        client.broker.declare(load_app(file).queues["jobs"].definition)
        yield client


@pytest.fixture
def workers(file: Path, client: hw.Client, tmp_path: Path) -> Iterator[WorkerProcesses]:
    told: list[str] = []
    workers = WorkerProcesses(file, tmp_path / "data", plan_processes(load_app(file)), notify=told.append)
    workers.start()
    yield workers
    workers.stop()
    assert workers.pids == []


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def notes(file: Path) -> list[list[str]]:
    path = file.with_name("notes")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def acked(client: hw.Client) -> list[int]:
    return [counts.acked for counts in client.broker.counts("jobs")]


def test_every_group_is_worked_on_and_a_process_that_dies_is_started_again(file, client, workers):
    queue = client.queue("jobs")
    queue.publish_many([{"n": n} for n in range(20)])
    until(lambda: acked(client) == [20, 20])
    assert len(workers.pids) == 3
    assert {int(n) for group, n, *_ in notes(file) if group == "own"} == set(range(20))

    before = {pid for group, _, pid, *_ in notes(file) if group == "shared"}
    queue.publish({"n": 99, "die": True})
    until(lambda: acked(client) == [21, 21])
    (again,) = [note for note in notes(file) if note[:2] == ["shared", "99"]]
    assert again[3] == "True"  # it was handed out before
    assert again[2] not in before
    assert str(client.ask("shop.pid", timeout=LONG)) == again[2]


def test_a_message_that_ends_its_process_each_time_is_a_dead_letter_in_the_end(client, workers):
    client.queue("jobs").publish({"n": 1, "die": "always"})
    client.queue("jobs").publish_many([{"n": n} for n in range(10)])
    until(lambda: [counts.acked + counts.dead for counts in client.broker.counts("jobs")] == [11, 11])
    (letter,) = client.queue("jobs").dead_letters()
    assert (letter.group, letter.message.body) == ("shared", b'{"n":1,"die":"always"}')
    assert len(letter.attempts) == 3
    assert all(attempt.worker.startswith("shared#") for attempt in letter.attempts)


def test_a_graceful_stop_leaves_nothing_in_flight(file, client, workers):
    client.queue("jobs").publish_many([{"n": n} for n in range(200)])
    until(lambda: sum(acked(client)) > 20)
    workers.stop()
    for counts in client.broker.counts("jobs"):
        assert counts.in_flight == 0
        assert counts.waiting + counts.delayed + counts.acked == 200


def test_a_worker_ends_with_the_process_that_started_it(file, client, workers):
    until(lambda: client.ask("shop.pid", timeout=LONG))
    pids = workers.pids
    assert len(pids) == 3
    for process in list(workers._processes.values()):
        process.send_signal(signal.SIGTERM)
    until(lambda: not set(pids) & set(workers.pids))
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_app_file_that_cannot_be_loaded_is_not_retried(file, client, tmp_path):
    told: list[str] = []
    file.write_text("import headwater as hw\n1 / 0\n")
    workers = WorkerProcesses(file, tmp_path / "data", [{}], notify=told.append)
    workers.start()
    until(lambda: workers.error)
    workers.stop()
    assert workers.error.code == "BAD_APP"
    assert told
