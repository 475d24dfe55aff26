"""The contract of request/reply: these tests run over every transport, chosen by the fixture `place`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from headwater.client import AsyncClient
from headwater.errors import AnswerFailedError, BadEventError, NoAnswerError, OverloadedError

LONG = 60


@dataclass
class Pair:
    a: int
    b: int


PROGRAM = """
import os, sys
from headwater.backends import open_responder
from headwater.queues.request_reply import Answer
def work(question):
    if question == "die":
        os._exit(9)
    return os.getpid()
responder = open_responder(sys.argv[1], [Answer.from_function(work, sys.argv[2])])
print("ready", flush=True)
sys.stdin.read()
responder.close()
"""


def begun(place: str, subject: str) -> subprocess.Popen[bytes]:
    """Start a process that answers with its pid, unless it is told to die."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, place, subject], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


class TestAnswers:
    """Each requester gets the answer to its own request."""

    def test_each_of_many_requesters_gets_the_answer_to_its_own_request(self, client, answer, subject):
        for _ in range(3):
            answer(lambda question: question["n"] * 2, threads=2)
        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(lambda n: client.ask(subject, {"n": n}, timeout=LONG), range(400)))
        assert answers == [2 * n for n in range(400)]

    def test_any_json_value_is_returned(self, client, answer, subject):
        answer(lambda question: question)
        for value in ({"a": [1, {"b": None}]}, [1, "two"], "text", 1.5, None, True):
            assert client.ask(subject, value, timeout=LONG) == value

    def test_requests_and_answers_may_be_instances_of_classes(self, client, answer, subject):
        def swapped(pair: Pair) -> Pair:
            return Pair(pair.b, pair.a)

        answer(swapped)
        assert client.ask(subject, Pair(1, 2), timeout=LONG, as_=Pair) == Pair(2, 1)
        with pytest.raises(BadEventError):
            client.ask(subject, {"a": "no number"}, timeout=LONG)

    def test_ask_all_returns_partial_results_at_the_deadline(self, client, answer, subject):
        release = threading.Event()

        def part(question):
            if question["partition"] == 1:
                release.wait(LONG)
            if question["partition"] == 2:
                raise ValueError("damaged")
            return question["partition"] * 10

        answer(part)
        replies = client.ask_all(subject, [{"partition": n} for n in range(4)], timeout=3)
        release.set()
        assert replies.answers == [0, None, None, 30]
        assert {number: type(error) for number, error in replies.errors.items()} == {
            1: NoAnswerError,
            2: AnswerFailedError,
        }
        assert not replies.complete


class TestErrors:
    """An error is returned, and a request is delivered once."""

    def test_an_error_is_returned_with_type_message_and_stack(self, client, answer, subject):
        def broken(question):
            raise ZeroDivisionError("no such price")

        answer(broken)
        with pytest.raises(AnswerFailedError) as error:
            client.ask(subject, {}, timeout=LONG)
        assert error.value.data["type"] == "ZeroDivisionError"
        assert error.value.data["message"] == "no such price"
        assert "in broken" in error.value.data["stack"]
        with pytest.raises(AnswerFailedError):  # and the worker still answers
            client.ask(subject, {}, timeout=LONG)

    def test_a_failing_request_is_delivered_once(self, client, answer, subject):
        seen = []

        def broken(question):
            seen.append(question)
            raise ValueError

        for _ in range(3):
            answer(broken)
        with pytest.raises(AnswerFailedError):
            client.ask(subject, 1, timeout=LONG)
        assert seen == [1]


class TestTime:
    """A request ends at its deadline."""

    def test_a_late_answer_is_dropped(self, client, answer, subject):
        release = threading.Event()

        def slow(question):
            if question == "slow":
                release.wait(LONG)
            return question

        answer(slow, threads=2)
        with pytest.raises(NoAnswerError) as error:
            client.ask(subject, "slow", timeout=1)
        assert error.value.data["sent"]
        release.set()
        assert [client.ask(subject, n, timeout=LONG) for n in range(20)] == list(range(20))

    def test_a_request_that_times_out_before_its_turn_is_not_delivered(self, client, answer, subject):
        release, seen = threading.Event(), []

        def busy(question):
            seen.append(question)
            release.wait(LONG)

        answer(busy, threads=1)
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(client.ask, subject, "first", timeout=LONG)
            while not seen:
                time.sleep(0.01)
            with pytest.raises(NoAnswerError):
                client.ask(subject, "second", timeout=0.1)
            release.set()
            first.result(LONG)
            client.ask(subject, "third", timeout=LONG)
        assert seen == ["first", "third"]

    def test_async_functions_run_concurrently_and_end_with_the_request(self, client, answer, subject):
        ended = threading.Event()

        async def slow(question):
            try:
                await asyncio.sleep(question)
            except asyncio.CancelledError:
                ended.set()
                raise
            return question

        answer(slow, threads=8)
        assert client.ask_all(subject, [0.01] * 8, timeout=LONG).complete
        with pytest.raises(NoAnswerError):
            client.ask(subject, LONG, timeout=1)
        assert ended.wait(LONG)


class TestPressure:
    """Requests over the limit are refused."""

    def test_requests_over_the_limit_are_refused_at_once(self, client, answer, subject):
        release, seen = threading.Event(), []

        def busy(question):
            seen.append(question)
            release.wait(LONG)
            return question

        answer(busy, threads=1, limit=1)
        with ThreadPoolExecutor(10) as threads:
            pending = [threads.submit(client.ask, subject, n, timeout=LONG) for n in range(10)]
            while sum(one.done() for one in pending) < 8:
                time.sleep(0.01)
            release.set()
            errors = [type(one.exception(LONG)) for one in pending]
        assert (errors.count(OverloadedError), errors.count(type(None)), len(seen)) == (8, 2, 2)


class TestCancelling:
    """A request ends with its requester."""

    def test_a_cancelled_task_cancels_its_request(self, connected, answer, subject):
        release, seen = threading.Event(), []

        def busy(question):
            seen.append(question)
            release.wait(LONG)

        async def main() -> None:
            async with AsyncClient(connected) as client:
                first = asyncio.create_task(client.ask(subject, "first", timeout=LONG))
                while not seen:
                    await asyncio.sleep(0.01)
                second = asyncio.create_task(client.ask(subject, "second", timeout=LONG))
                await asyncio.sleep(0.2)
                second.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await second
                release.set()
                await first
                await client.ask(subject, "third", timeout=LONG)

        answer(busy, threads=1)
        asyncio.run(main())
        assert seen == ["first", "third"]

    def test_closing_a_client_ends_its_requests(self, connected, answer, subject):
        release, seen = threading.Event(), threading.Event()

        def busy(question):
            seen.set()
            release.wait(LONG)

        answer(busy)
        with ThreadPoolExecutor(1) as threads:
            pending = threads.submit(connected.ask, subject, 1, timeout=LONG)
            seen.wait(LONG)
            connected.close()
            assert isinstance(pending.exception(LONG), NoAnswerError)
            release.set()
