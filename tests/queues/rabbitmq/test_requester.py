"""Request/reply through RabbitMQ: the contract, missing and dead responders, and lost connections."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import aio_pika
import pytest

import headwater as hw
from headwater.backends import open_requester, open_responder
from headwater.errors import BadSettingError, HeadwaterError, NoAnswerError, UnreachableError
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.queues.rabbitmq.requester import RabbitRequester
from headwater.queues.rabbitmq.responder import RabbitResponder
from headwater.queues.request_reply.dispatcher import Answer
from tests.queues.request_reply_contract import (  # noqa: F401
    LONG,
    TestAnswers,
    TestCancelling,
    TestErrors,
    TestPressure,
    TestTime,
    begun,
)
from tests.services.postgres import Proxy
from tests.services.rabbitmq import Rabbit

pytestmark = pytest.mark.services


@pytest.fixture
def place(rabbit: Rabbit) -> str:
    return rabbit.url()


@pytest.fixture
def subject(name: str) -> str:
    return name


@pytest.fixture
def proxied(rabbit: Rabbit, tmp_path: Path) -> Iterator[tuple[hw.Client, Proxy]]:
    """A client whose connection can be cut."""
    proxy = Proxy(rabbit.port)
    url = rabbit.url(proxy.port)
    with hw.Client(EventLog(tmp_path), SystemClock(), queues=url) as client:
        yield client, proxy
    proxy.close()


def ask_until_answered(client: hw.Client, subject: str, value: object) -> object:
    """Returns the answer, after requests that were lost on the way: none is delivered twice."""
    end = time.monotonic() + LONG
    while True:
        try:
            return client.ask(subject, value, timeout=LONG)
        except NoAnswerError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def ask_without_responder(client: hw.Client, subject: str) -> NoAnswerError:
    with pytest.raises(NoAnswerError) as error:
        client.ask(subject, 1, timeout=LONG)
    return error.value


async def wait_until_no_consumer(place: str, subject: str) -> None:
    """Wait until RabbitMQ has noticed that the responder is dead; it may deliver an earlier request to it."""
    async with await aio_pika.connect(place) as connection:
        channel = await connection.channel()
        while True:
            queue = await channel.declare_queue(f"headwater/ask/{subject}", passive=True)
            if not queue.declaration_result.consumer_count:
                return
            await asyncio.sleep(0.01)


def test_without_a_responder_the_request_fails_at_once(client, subject):
    begun_at = time.monotonic()
    assert ask_without_responder(client, subject).data == {"subject": subject, "sent": False}
    assert time.monotonic() - begun_at < LONG / 2


def test_after_the_last_responder_closed_requests_fail_at_once(client, answer, subject):
    first, second = answer(lambda question: 1), answer(lambda question: 1)
    first.close()
    assert client.ask(subject, 1, timeout=LONG) == 1
    second.close()
    assert not ask_without_responder(client, subject).data["sent"]


def test_the_last_responder_declines_waiting_requests(client, answer, subject):
    release, seen = threading.Event(), threading.Event()

    def busy(question):
        seen.set()
        release.wait(LONG)
        return question

    only = answer(busy, threads=1)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(client.ask, subject, "first", timeout=LONG)
        assert seen.wait(LONG)
        second = threads.submit(client.ask, subject, "second", timeout=LONG)
        time.sleep(0.2)
        ending = threads.submit(only.close, LONG)
        error = second.exception(LONG)
        assert isinstance(error, NoAnswerError)
        assert not error.data["sent"]
        release.set()
        ending.result(LONG)
        assert first.result(LONG) == "first"  # what was begun is finished


def test_a_request_of_a_dead_responder_is_not_delivered_to_another(client, place, subject):
    first, second = begun(place, subject), begun(place, subject)
    try:
        with pytest.raises(NoAnswerError) as error:
            client.ask(subject, "die", timeout=LONG)
        assert error.value.data["sent"]
        # The other one has not died of the same question.
        pids = {client.ask(subject, n, timeout=LONG) for n in range(20)}
        assert len(pids) == 1
        dead = next(one for one in (first, second) if one.pid not in pids)
        assert dead.wait(LONG) == 9
    finally:
        for process in (first, second):
            process.send_signal(signal.SIGKILL)
            process.communicate()


def test_a_request_waits_for_a_restarted_responder(client, place, subject, answer):
    process = begun(place, subject)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    asyncio.run(wait_until_no_consumer(place, subject))
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(client.ask, subject, 1, timeout=LONG)
        time.sleep(0.2)
        answer(lambda question: question + 1)
        assert pending.result(LONG) == 2


def test_a_lost_connection_ends_the_request_and_the_next_one_works(proxied, answer, subject):
    client, proxy = proxied
    release, seen = threading.Event(), threading.Event()

    def slow(question):
        if question == "slow":
            seen.set()
            release.wait(LONG)
        return question

    answer(slow)
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(client.ask, subject, "slow", timeout=3 * LONG)  # not because its time is over
        assert seen.wait(LONG)
        proxy.cut()
        assert isinstance(pending.exception(LONG), UnreachableError)
    release.set()
    assert client.ask(subject, "next", timeout=LONG) == "next"


def test_without_rabbitmq_requests_raise_unreachable_error(proxied, subject):
    client, proxy = proxied
    with pytest.raises(NoAnswerError):
        client.ask(subject, 1, timeout=LONG)
    proxy.close()
    with pytest.raises(UnreachableError):
        client.ask(subject, 1, timeout=1)


def test_a_responder_reopens_its_consumer_after_a_lost_connection(rabbit, client, subject):
    proxy = Proxy(rabbit.port)
    responder = open_responder(rabbit.url(proxy.port), [Answer.from_function(lambda question: question, subject)])
    try:
        assert client.ask(subject, 1, timeout=LONG) == 1
        proxy.cut()
        assert ask_until_answered(client, subject, 2) == 2
    finally:
        responder.close()
        proxy.close()


def test_a_responder_reopens_its_consumer_after_its_queue_was_deleted(rabbit, client, answer, subject):
    answer(lambda question: question)
    rabbit.ctl("delete_queue", f"headwater/ask/{subject}")
    assert ask_until_answered(client, subject, 1) == 1


def test_a_responder_with_another_limit_answers_beside_the_first(client, answer, subject):
    answer(lambda question: "first", limit=7)
    answer(lambda question: "second", limit=8)
    assert {client.ask(subject, 1, timeout=LONG) for _ in range(20)} == {"first", "second"}


def test_a_message_that_is_not_a_request_is_skipped(rabbit, client, answer, subject):
    async def send() -> None:
        async with await aio_pika.connect(rabbit.url()) as connection:
            channel = await connection.channel()
            await channel.default_exchange.publish(aio_pika.Message(b"{"), f"headwater/ask/{subject}")

    answer(lambda question: question, threads=1)
    asyncio.run(send())
    assert client.ask(subject, 1, timeout=LONG) == 1


def test_an_answer_that_is_too_large_is_an_error(client, answer, subject):
    answer(lambda question: "x" * (17 << 20))
    with pytest.raises(HeadwaterError) as error:
        client.ask(subject, 1, timeout=LONG)
    assert error.value.code == "TOO_LARGE"


def test_another_scheme_is_refused():
    with pytest.raises(BadSettingError):
        open_requester("redis://nowhere")


def test_no_rabbitmq_at_all_is_an_error_for_both_sides(subject):
    nowhere = "amqp://guest:guest@127.0.0.1:1"
    with contextlib.closing(RabbitRequester(nowhere)) as requester, pytest.raises(UnreachableError):
        requester.request(subject, 1, timeout=0.5).answer()
    with pytest.raises(UnreachableError):
        RabbitResponder(
            nowhere, [Answer.from_function(lambda question: 1, subject)], patience=timedelta(milliseconds=200)
        )
