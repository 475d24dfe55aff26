"""Questions and answers: correlation, time limits, errors, many workers, back-pressure, and workers that die."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.errors import AnswerFailedError, BadEventError, NoAnswerError, OverloadedError
from headwater.queues.asking import Answer, Answering

LONG = 60


@dataclass
class Pair:
    a: int
    b: int


@pytest.fixture
def client(tmp_path: Path) -> Iterator[hw.Client]:
    with hw.connect(tmp_path) as client:
        yield client


@pytest.fixture
def answer(tmp_path: Path) -> Iterator[Callable[..., Answering]]:
    """`answer(function, "subject")` answers until the test is over."""
    begun: list[Answering] = []

    def begin(function: Callable[..., Any], subject: str = "it", **options: Any) -> Answering:
        begun.append(Answering(tmp_path, [Answer.of(function, subject, **options)]))
        return begun[-1]

    yield begin
    for one in begun:
        one.close(grace=1)


def test_each_of_many_askers_gets_the_answer_to_its_own_question(client, answer):
    for _ in range(3):
        answer(lambda question: question["n"] * 2, threads=2)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda n: client.ask("it", {"n": n}, timeout=LONG), range(400)))
    assert answers == [2 * n for n in range(400)]


def test_values_of_any_form_come_back(client, answer):
    answer(lambda question: question)
    for value in ({"a": [1, {"b": None}]}, [1, "two"], "text", 1.5, None, True):
        assert client.ask("it", value, timeout=LONG) == value


def test_the_classes_of_question_and_answer_are_the_users(client, answer):
    def swapped(pair: Pair) -> Pair:
        return Pair(pair.b, pair.a)

    answer(swapped)
    assert client.ask("it", Pair(1, 2), timeout=LONG, as_=Pair) == Pair(2, 1)
    with pytest.raises(BadEventError):
        client.ask("it", {"a": "no number"}, timeout=LONG)


def test_an_error_is_carried_with_type_message_and_stack(client, answer):
    def broken(question):
        raise ZeroDivisionError("no such price")

    answer(broken)
    with pytest.raises(AnswerFailedError) as error:
        client.ask("it", {}, timeout=LONG)
    assert error.value.data["type"] == "ZeroDivisionError"
    assert error.value.data["message"] == "no such price"
    assert "in broken" in error.value.data["stack"]
    with pytest.raises(AnswerFailedError):  # and the worker still answers
        client.ask("it", {}, timeout=LONG)


def test_a_question_is_put_once_also_when_it_fails(client, answer):
    seen = []

    def broken(question):
        seen.append(question)
        raise ValueError

    for _ in range(3):
        answer(broken)
    with pytest.raises(AnswerFailedError):
        client.ask("it", 1, timeout=LONG)
    assert seen == [1]


def test_without_anybody_the_wait_ends_in_time(client):
    with pytest.raises(NoAnswerError) as error:
        client.ask("it", {}, timeout=0.05)
    assert error.value.data == {"subject": "it", "sent": False}


def test_a_question_waits_for_somebody_who_comes_later(client, answer):
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.ask, "it", 1, timeout=LONG)
        time.sleep(0.1)
        answer(lambda question: question + 1)
        assert asked.result(LONG) == 2


def test_an_answer_that_comes_too_late_is_nobodys(client, answer):
    release = threading.Event()

    def slow(question):
        if question == "slow":
            release.wait(LONG)
        return question

    answer(slow, threads=2)
    with pytest.raises(NoAnswerError) as error:
        client.ask("it", "slow", timeout=1)
    assert error.value.data["sent"]
    release.set()
    assert [client.ask("it", n, timeout=LONG) for n in range(20)] == list(range(20))


def test_a_question_whose_time_is_over_before_its_turn_is_not_put(client, answer):
    release, seen = threading.Event(), []

    def busy(question):
        seen.append(question)
        release.wait(LONG)

    answer(busy, threads=1)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.ask, "it", "first", timeout=LONG)
        while not seen:
            time.sleep(0.01)
        with pytest.raises(NoAnswerError):
            client.ask("it", "second", timeout=0.1)
        release.set()
        first.result(LONG)
        client.ask("it", "third", timeout=LONG)
    assert seen == ["first", "third"]


def test_more_questions_than_may_wait_are_refused_at_once(client, answer):
    release, seen = threading.Event(), []

    def busy(question):
        seen.append(question)
        release.wait(LONG)
        return question

    answer(busy, threads=1, limit=1)
    with ThreadPoolExecutor(10) as threads:
        asked = [threads.submit(client.ask, "it", n, timeout=LONG) for n in range(10)]
        while sum(one.done() for one in asked) < 8:
            time.sleep(0.01)
        release.set()
        errors = [type(one.exception(LONG)) for one in asked]
    assert (errors.count(OverloadedError), errors.count(type(None)), len(seen)) == (8, 2, 2)


def test_a_cancelled_task_cancels_its_question(tmp_path, answer):
    release, seen = threading.Event(), []

    def busy(question):
        seen.append(question)
        release.wait(LONG)

    async def main() -> None:
        async with hw.connect_async(tmp_path) as client:
            first = asyncio.create_task(client.ask("it", "first", timeout=LONG))
            while not seen:
                await asyncio.sleep(0.01)
            second = asyncio.create_task(client.ask("it", "second", timeout=LONG))
            await asyncio.sleep(0.2)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            release.set()
            await first
            await client.ask("it", "third", timeout=LONG)

    answer(busy, threads=1)
    asyncio.run(main())
    assert seen == ["first", "third"]


def test_async_functions_answer_at_the_same_time_and_end_with_the_question(client, answer):
    ended = threading.Event()

    async def slow(question):
        try:
            await asyncio.sleep(question)
        except asyncio.CancelledError:
            ended.set()
            raise
        return question

    answer(slow, threads=8)
    assert client.ask_all("it", [0.01] * 8, timeout=LONG).complete
    with pytest.raises(NoAnswerError):
        client.ask("it", LONG, timeout=1)
    assert ended.wait(LONG)


def test_partial_results_come_back_at_the_deadline(client, answer):
    release = threading.Event()

    def part(question):
        if question["partition"] == 1:
            release.wait(LONG)
        if question["partition"] == 2:
            raise ValueError("damaged")
        return question["partition"] * 10

    answer(part)
    gathered = client.ask_all("it", [{"partition": n} for n in range(4)], timeout=3)
    release.set()
    assert gathered.answers == [0, None, None, 30]
    assert {number: type(error) for number, error in gathered.errors.items()} == {
        1: NoAnswerError,
        2: AnswerFailedError,
    }
    assert not gathered.complete


PROGRAM = """
import os, sys
from pathlib import Path
from headwater.queues.asking import Answer, Answering
def work(question):
    if question == "die":
        os._exit(9)
    return os.getpid()
with Answering(Path(sys.argv[1]), [Answer.of(work, "it")]):
    print("ready", flush=True)
    sys.stdin.read()
"""


def begun(folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_a_worker_that_dies_is_noticed_at_once_and_others_go_on(client, tmp_path):
    first, second = begun(tmp_path), begun(tmp_path)
    try:
        with pytest.raises(NoAnswerError) as error:
            client.ask("it", "die", timeout=LONG)
        assert error.value.data["sent"]
        while (
            first.poll() is None and second.poll() is None
        ):  # its socket may outlive its connections for a moment
            time.sleep(0.01)
        living = first if second.poll() is not None else second
        assert {client.ask("it", n, timeout=LONG) for n in range(20)} == {living.pid}
        assert len(list((tmp_path / "answers" / "it").iterdir())) == 1
    finally:
        for process in (first, second):
            process.send_signal(signal.SIGKILL)
            process.communicate()


def test_over_http_the_error_says_to_use_the_folder(tmp_path):
    from headwater.server import Node

    with Node(tmp_path, port=0) as node, hw.connect(node.url) as client:
        for call in (lambda: client.ask("it", 1), lambda: client.queue("emails")):
            with pytest.raises(hw.HeadwaterError) as error:
                call()
            assert error.value.code == "BAD_SETTING"
            assert "folder" in error.value.fix


def test_a_question_waits_until_a_dead_worker_is_replaced(client, tmp_path, answer):
    process = begun(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (left,) = (tmp_path / "answers" / "it").iterdir()
    socket = Path(left.read_text())
    assert socket.exists()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.ask, "it", 1, timeout=LONG)
        while left.exists():
            time.sleep(0.01)
        answer(lambda question: question + 1)
        assert asked.result(LONG) == 2
    assert not socket.parent.exists()


def test_a_client_that_is_closed_ends_its_questions(tmp_path, answer):
    release, seen = threading.Event(), threading.Event()

    def busy(question):
        seen.set()
        release.wait(LONG)

    answer(busy)
    client = hw.connect(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(client.ask, "it", 1, timeout=LONG)
        seen.wait(LONG)
        client.close()
        assert isinstance(asked.exception(LONG), NoAnswerError)
        release.set()
