"""The same app file, its queues on RabbitMQ by the profile: workers in processes, clients, and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headwater as hw
from headwater.app_file import load_app
from headwater.runner import WorkerProcesses
from headwater.workers.process import plan_processes

pytestmark = pytest.mark.services

LONG = 60.0
APP = """
import headwater as hw

app = hw.App("post")
emails = app.queue("emails-NAME", "to string, n int", retry=hw.retry(2, backoff="200 ms"))


@emails.worker(group="mail", threads=2)
def send(email, message: hw.Message):
    if email["to"] == "bob":
        raise ConnectionError("the line is busy")
    if email["to"] == "carol":
        raise hw.Reject("no address")


@emails.worker(group="audit", processes=1)
async def keep(email): ...
"""


def left(client: hw.Client, queue: str) -> list[tuple[str, int, int]]:
    """What is not done yet, and what died; RabbitMQ does not count what others have done."""
    return [(one.group, one.waiting + one.delayed + one.in_flight, one.dead) for one in client.queue(queue).counts()]


def test_an_app_runs_on_rabbitmq_as_it_runs_in_a_folder(rabbit, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_QUEUES", rabbit.url())
    (tmp_path / "app.py").write_text(APP.replace("NAME", name))
    app = load_app("app.py")
    (queue,) = app.queues.values()
    with hw.connect() as client:
        client.broker.declare(queue.definition)
        workers = WorkerProcesses("app.py", tmp_path / ".headwater", plan_processes(app))
        workers.start()
        try:
            with client.queue(queue.name, group="mail") as emails:
                people = ["ada", "bob", "carol", "dan"]
                emails.publish_many([{"to": to, "n": n} for n, to in enumerate(people)])
                deadline = time.monotonic() + LONG
                while left(client, queue.name) != [("mail", 0, 2), ("audit", 0, 0)]:
                    assert time.monotonic() < deadline, left(client, queue.name)
                    time.sleep(0.1)
                letters = {letter.message.body: letter for letter in emails.dead_letters()}
        finally:
            workers.stop()
        assert {letter.why for letter in letters.values()} == {"failed", "rejected"}
        busy = next(letter for letter in letters.values() if letter.why == "failed")
        assert [attempt.why for attempt in busy.attempts] == ["ConnectionError: the line is busy"] * 2
        assert "in send" in busy.attempts[-1].stack
        retried = headwater("redrive", queue.name, "--all", "--edit", "to=ada", "--json")
        assert retried == [{"queue": queue.name, "retried": 2}]
        (mail, _) = headwater("queues", queue.name, "--json")
        assert (mail["waiting"], mail["dead"]) == (2, 0)
    assert not (tmp_path / ".headwater" / "queues").exists()


ANSWERING = """
import os
import headwater as hw

app = hw.App("prices")


@app.answer("NAME", processes=2)
def quote(question):
    return [os.getpid(), question * 2]
"""


def test_an_app_answers_through_rabbitmq_by_its_profile(rabbit, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_QUEUES", rabbit.url())
    (tmp_path / "app.py").write_text(ANSWERING.replace("NAME", name))
    workers = WorkerProcesses("app.py", tmp_path / ".headwater", plan_processes(load_app("app.py")))
    workers.start()
    try:
        with hw.connect() as client:
            deadline = time.monotonic() + LONG
            while not client.ask_all(name, [1], timeout=LONG).complete:  # nobody is there yet
                assert time.monotonic() < deadline
                time.sleep(0.1)
            gathered = client.ask_all(name, range(40), timeout=LONG)
            assert [answer[1] for answer in gathered.answers] == [2 * n for n in range(40)]
            assert os.getpid() not in {answer[0] for answer in gathered.answers}
    finally:
        workers.stop()
    with hw.connect() as client, pytest.raises(hw.HeadwaterError) as error:
        client.ask(name, 1, timeout=LONG)
    assert (error.value.code, error.value.data["sent"]) == ("NO_ANSWER", False)
    assert not (tmp_path / ".headwater" / "answers").exists()


def headwater(*words: str) -> list[dict]:
    command = [Path(sys.executable).with_name("headwater"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=LONG)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
