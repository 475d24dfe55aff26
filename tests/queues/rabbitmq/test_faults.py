"""RabbitMQ restarted, killed, cut off and out of memory; receivers killed: no confirmed message is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from aio_pika.abc import AbstractChannel

from headwater.backends import open_requester, open_responder
from headwater.errors import OverloadedError, UnreachableError
from headwater.queues.protocol import AckResult, OutgoingMessage
from headwater.queues.queue import Queue, retry
from headwater.queues.rabbitmq import RabbitBroker
from headwater.queues.request_reply.dispatcher import Answer
from headwater.queues.request_reply.protocol import ask_all
from tests.faults.counts import FULL
from tests.queues.rabbitmq.plain import with_channel
from tests.services.postgres import Proxy
from tests.services.rabbitmq import Rabbit, rabbit_broker

pytestmark = pytest.mark.services
PATIENCE = timedelta(minutes=2)
OLD = "old"
WORKER = """
import sys
from headwater.queues.rabbitmq import RabbitBroker
[delivery] = RabbitBroker(sys.argv[1]).receiver(sys.argv[2], worker="doomed").receive(timeout=60)
print(delivery.attempt, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def harmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    """A server for this module alone, with the queue of the test that kills it."""
    with rabbit_broker(tmp_path_factory.mktemp("harmed")) as server:
        broker = RabbitBroker(server.url(), patience=PATIENCE)
        broker.declare(Queue.declare(OLD, retry=retry(50)))
        broker.close()
        yield server


@pytest.fixture
def broker(harmed: Rabbit) -> Iterator[RabbitBroker]:
    broker = RabbitBroker(harmed.url(), patience=PATIENCE)
    yield broker
    broker.close()


class Load:
    """Publishes numbers, each by itself, and receives them, until it is told to end."""

    def __init__(self, broker: RabbitBroker, name: str) -> None:
        self._broker, self._name = broker, name
        self._ending = threading.Event()
        self.confirmed: list[str] = []
        self.received: Counter[str] = Counter()
        self._threads = [threading.Thread(target=work) for work in (self._publish, self._receive)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        number = 0
        while not self._ending.is_set():
            [confirmed] = self._broker.publish(self._name, [OutgoingMessage(b"1", id=str(number))])
            self.confirmed.append(confirmed.id)
            number += 1

    def _receive(self) -> None:
        receiver = self._broker.receiver(self._name, prefetch=20)
        quiet = 0
        while quiet < 3:
            found = receiver.receive(timeout=0.5, max_messages=20)
            quiet = quiet + 1 if self._ending.is_set() and not found else 0
            self.received.update(str(delivery.message.id) for delivery in found)
            receiver.ack(found)
        receiver.close()

    def reached(self, number: int) -> None:
        """Wait until so many more were confirmed."""
        wanted = len(self.confirmed) + number
        while len(self.confirmed) < wanted:
            assert all(thread.is_alive() for thread in self._threads)
            time.sleep(0.01)

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()


def test_a_message_whose_confirmation_was_lost_is_sent_again_with_its_id(harmed, name):
    proxy = Proxy(harmed.port)
    broker = RabbitBroker(harmed.url(proxy.port), patience=PATIENCE)
    broker.declare(Queue.declare(name))
    proxy.lost_after = b"the one"
    [confirmed] = broker.publish(name, [OutgoingMessage(b"the one", id="m-1")])
    assert confirmed.id == "m-1"
    assert proxy.lost_after is None
    receiver = broker.receiver(name, prefetch=5)
    found = []
    while more := receiver.receive(timeout=2, max_messages=5):
        found += more
    assert [delivery.message.id for delivery in found] == ["m-1", "m-1"]
    broker.close()
    proxy.close()


def test_a_delivery_from_before_a_broken_connection_is_stale(harmed, name):
    proxy = Proxy(harmed.port)
    broker = RabbitBroker(harmed.url(proxy.port), patience=PATIENCE)
    broker.declare(Queue.declare(name))
    broker.publish(name, [OutgoingMessage(b"1")])
    receiver = broker.receiver(name)
    [before] = receiver.receive(timeout=20)
    proxy.lost_after = b"cut here"
    broker.publish(name, [OutgoingMessage(b"cut here", id="other")])  # ends that connection; the other one is cut below
    proxy.cut()
    [after] = receiver.receive(timeout=20)
    assert (after.message.body, after.attempt, after.is_redelivery) == (b"1", 2, True)
    assert receiver.ack([before]) == [AckResult.STALE]
    assert receiver.nack(before) is AckResult.STALE
    assert receiver.ack([after]) == [AckResult.DONE]
    broker.close()
    proxy.close()


def test_the_second_address_is_used_when_the_first_server_is_gone_for_good(harmed, name):
    first, second = Proxy(harmed.port), Proxy(harmed.port)
    url = harmed.url(first.port).replace(str(first.port), f"{first.port},127.0.0.1:{second.port}")
    with RabbitBroker(url, patience=timedelta(seconds=20)) as broker:
        broker.declare(Queue.declare(name))
        broker.publish(name, [OutgoingMessage(b"1", id="m-1")])
        first.close()
        broker.publish(name, [OutgoingMessage(b"2", id="m-2")])
        receiver = broker.receiver(name, prefetch=5)
        found: set[str | None] = set()
        while len(found) < 2:
            found |= {delivery.message.id for delivery in receiver.receive(timeout=20, max_messages=5)}
    assert found == {"m-1", "m-2"}
    second.close()


async def count_consumers(name: str, channel: AbstractChannel) -> int | None:
    queue = await channel.declare_queue(name, passive=True)
    return queue.declaration_result.consumer_count


def test_a_receiver_consumes_once_after_each_lost_connection(harmed, name):
    proxy = Proxy(harmed.port)
    with RabbitBroker(harmed.url(proxy.port), patience=PATIENCE) as broker:
        broker.declare(Queue.declare(name))
        receiver = broker.receiver(name, prefetch=5)
        with ThreadPoolExecutor(1) as threads:
            receiving = threads.submit(receiver.receive, timeout=60)
            for _ in range(3):
                time.sleep(0.5)
                proxy.cut()
            time.sleep(2)
            consumers = with_channel(harmed.url(), partial(count_consumers, name))
            broker.publish(name, [OutgoingMessage(b"1", id="m-1")])
            assert [delivery.message.id for delivery in receiving.result(60)] == ["m-1"]
    assert consumers == 1
    proxy.close()


def test_operations_whose_answer_is_lost_are_repeated(harmed, name):
    proxy = Proxy(harmed.port)
    delayed = OutgoingMessage(b"1", delay=timedelta(hours=1))
    with RabbitBroker(harmed.url(proxy.port), patience=PATIENCE) as broker:
        questions = [
            (b"headwater/queues", lambda: broker.declare(Queue.declare(name)).name),
            (b"headwater/queues", lambda: broker.queue(name).name),
            (b"headwater/wait-", lambda: broker.publish(name, [delayed])[0].groups),
            (name.encode(), lambda: broker.counts(name)[0].delayed),
            (name.encode(), lambda: list(broker.dead_letters(name))),
        ]
        answers = []
        for word, question in questions:
            proxy.lost_after = word
            answers.append(question())
            assert proxy.lost_after is None
    assert answers == [name, name, 1, 1, []]
    proxy.close()


def test_publishing_waits_while_the_server_is_low_on_memory(harmed, broker, name, caplog):
    broker.declare(Queue.declare(name))
    broker.publish(name, [OutgoingMessage(b"1")])
    receiver = broker.receiver(name)
    hasty = RabbitBroker(harmed.url(), patience=timedelta(seconds=1))
    harmed.ctl("set_vm_memory_high_watermark", "0.0000001")
    try:
        with pytest.raises(OverloadedError):
            hasty.publish(name, [OutgoingMessage(b"hasty")])
        patient = threading.Thread(target=broker.publish, args=(name, [OutgoingMessage(b"2")]))
        patient.start()
        [delivery] = receiver.receive(timeout=20)
        assert receiver.ack([delivery]) == [AckResult.DONE]  # what is received is not held up
        while "publish waits" not in caplog.text:
            time.sleep(0.05)
        assert patient.is_alive()
    finally:
        harmed.ctl("set_vm_memory_high_watermark", "0.4")
    patient.join(timeout=60)
    assert not patient.is_alive()
    bodies = set()
    while b"2" not in bodies:
        [delivery] = receiver.receive(timeout=30)
        bodies.add(delivery.message.body)
        receiver.ack([delivery])
    hasty.close()


def test_requests_fail_while_the_server_is_low_on_memory_and_work_afterwards(harmed, name):
    responder = open_responder(harmed.url(), [Answer.from_function(lambda question: question, name)])
    requester = open_requester(harmed.url())
    try:
        assert requester.request(name, 1, timeout=60).answer() == 1
        harmed.ctl("set_vm_memory_high_watermark", "0.0000001")
        with pytest.raises(OverloadedError):
            requester.request(name, 2, timeout=3).answer()
        harmed.ctl("set_vm_memory_high_watermark", "0.4")
        assert requester.request(name, 3, timeout=60).answer() == 3
    finally:
        harmed.ctl("set_vm_memory_high_watermark", "0.4")
        requester.close()
        responder.close()


def test_a_message_that_kills_its_workers_comes_again_and_is_dead_in_the_end(harmed, broker, name):
    broker.declare(Queue.declare(name, retry=retry(2)))
    broker.publish(name, [OutgoingMessage(b"1", id="m-1")])
    for attempt in (1, 2):
        command = [sys.executable, "-c", WORKER, harmed.url(), name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == f"{attempt}\n"
            os.kill(worker.pid, signal.SIGKILL)
    receiver = broker.receiver(name)
    end = time.monotonic() + 60
    while not (letters := list(broker.dead_letters(name))):
        assert receiver.receive(timeout=0.5) == []
        assert time.monotonic() < end
    assert [(letter.why, letter.message.id) for letter in letters] == [("failed", "m-1")]
    assert [(attempt.number, attempt.worker) for attempt in letters[0].attempts] == [(2, "")]


@pytest.mark.parametrize("end", [Rabbit.kill, Rabbit.stop] if FULL else [Rabbit.kill])
def test_no_confirmed_message_is_lost_when_the_server_restarts(
    harmed: Rabbit, broker: RabbitBroker, end: Callable[[Rabbit], None]
):
    load = Load(broker, OLD)
    # RabbitMQ 3.10 writes who leads a new quorum queue some seconds after it was made; killed before, it has no leader.
    time.sleep(max(0.0, harmed.started_at + 8 - time.monotonic()))
    load.reached(30)
    end(harmed)
    harmed.start()
    load.reached(30)
    load.end()
    assert set(load.received) >= set(load.confirmed)
    assert len(load.confirmed) == len(set(load.confirmed))
    assert broker.counts(OLD)[0].waiting == 0


def test_request_reply_recovers_after_the_server_was_killed(harmed, name):
    seen, release = threading.Event(), threading.Event()

    def answer(question):
        seen.set()
        return release.wait(60)

    responder = open_responder(harmed.url(), [Answer.from_function(answer, name)])
    requester = open_requester(harmed.url())
    try:
        with ThreadPoolExecutor(1) as threads:
            pending = threads.submit(requester.request(name, 1, timeout=60).answer)
            assert seen.wait(60)
            harmed.kill()
            assert isinstance(pending.exception(60), UnreachableError)
        release.set()
        harmed.start()
        end = time.monotonic() + 120
        while not ask_all(requester, name, [1], timeout=30).complete:  # until whoever answers is back
            harmed.check_running()
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        requester.close()
        responder.close()
