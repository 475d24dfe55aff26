"""Any AMQP client reads what we publish, and publishes what we read."""

from __future__ import annotations

from datetime import UTC, datetime

import aio_pika
import pytest

from headwater.queues.protocol import OutgoingMessage
from headwater.queues.queue import Queue, group, retry
from tests.queues.rabbitmq.plain import get, put

pytestmark = pytest.mark.services


def test_a_plain_client_reads_what_we_publish(rabbit, shared, name):
    shared.declare(Queue.declare(name))
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    message = OutgoingMessage(b'{"to": "ada"}', "m-1", "mails.new", "ada", {"tenant": "acme"}, traceparent=trace)
    shared.publish(name, [message])
    got = get(rabbit.url(), name)
    assert (got.body, got.message_id, got.routing_key) == (b'{"to": "ada"}', "m-1", "mails.new")
    assert (got.content_type, got.delivery_mode) == ("application/json", aio_pika.DeliveryMode.PERSISTENT)
    assert got.headers["tenant"] == "acme"
    assert (got.headers["hw-key"], got.headers["traceparent"]) == ("ada", trace)


def test_we_read_what_a_plain_client_publishes(rabbit, shared, name):
    shared.declare(Queue.declare(name, groups=[group("eu", routing_key="*.eu", headers={"vip": "yes"}), "all"]))
    sent_at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    about = {"message_id": "p-1", "timestamp": sent_at}
    put(rabbit.url(), name, b'{"n": 1}', "orders.eu", headers={"vip": "yes", "count": 7}, **about)
    put(rabbit.url(), name, b'{"n": 2}', "orders.us", headers={"vip": "yes", "traceparent": "?"}, priority=5)
    with_words = shared.receiver(name, "eu")
    [delivery] = with_words.receive(timeout=20)
    got = delivery.message
    assert (got.body, got.id, got.routing_key, got.headers) == (
        b'{"n": 1}',
        "p-1",
        "orders.eu",
        {"vip": "yes", "count": "7"},
    )
    assert (delivery.published_at, delivery.attempt) == (sent_at, 1)
    with_words.ack([delivery])
    assert with_words.receive(timeout=0) == []
    others = shared.receiver(name, "all")
    others.reject(*others.receive(timeout=20))
    others.reject(*others.receive(timeout=20))
    assert shared.redrive(name, shared.dead_letters(name)) == 2  # though one is not as ours would be
    for receiver in (with_words, others):
        receiver.close()


def test_a_message_rejected_by_a_plain_client_is_a_dead_letter_that_can_be_redriven(rabbit, shared, name):
    shared.declare(Queue.declare(name))
    shared.publish(name, [OutgoingMessage(b"1", "m-1", "mails.new")])
    get(rabbit.url(), name, "reject")
    while not (letters := list(shared.dead_letters(name))):
        pass
    assert [(letter.why, letter.message.id, letter.message.routing_key) for letter in letters] == [
        ("rejected", "m-1", "mails.new")
    ]
    assert [letter.number for letter in shared.dead_letters(name)] == [letters[0].number]
    assert shared.redrive(name, letters) == 1
    assert get(rabbit.url(), name).body == b"1"


def test_a_plain_client_gets_what_failed_with_us(rabbit, shared, name):
    shared.declare(Queue.declare(name, retry=retry(3, backoff="50ms")))
    shared.publish(name, [OutgoingMessage(b"1", "m-1")])
    receiver = shared.receiver(name)
    receiver.nack(*receiver.receive(timeout=20), "no", stack="line 7")
    receiver.close()
    got = get(rabbit.url(), name)
    assert (got.message_id, got.headers["hw-failures"]) == ("m-1", 1)
    assert '"why":"no"' in got.headers["hw-history"]


def test_history_that_is_too_long_for_a_header_loses_its_oldest_stacks(shared, name):
    shared.declare(Queue.declare(name, retry=retry(20, backoff="0s")))
    shared.publish(name, [OutgoingMessage(b"1")])
    receiver = shared.receiver(name)
    for attempt in range(20):
        receiver.nack(*receiver.receive(timeout=20), f"no {attempt}", stack="x" * 50_000)
    [letter] = shared.dead_letters(name)
    assert [attempt.why for attempt in letter.attempts] == [f"no {attempt}" for attempt in range(20)]
    assert not letter.attempts[0].stack
    assert len(letter.attempts[-1].stack) == 8_000
    receiver.close()
