"""Definitions of queues in RabbitMQ: stored and changed there, and refused where RabbitMQ does not support them."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

import pytest

from headwater.errors import (
    BadCredentialsError,
    BadSettingError,
    QueueExistsError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from headwater.log import drop
from headwater.queues.protocol import OutgoingMessage
from headwater.queues.queue import Queue, group
from headwater.queues.rabbitmq import RabbitBroker
from headwater.queues.rabbitmq.capabilities import check_message_support, check_queue
from headwater.services.servers import free_ports


@pytest.mark.parametrize(
    "options",
    [
        {"ordered": True, "key": "id"},
        {"deduplication_window": "1 minute"},
        {"limit": 3, "groups": ["a", "b"]},
        {"limit": 3, "overload": drop("oldest")},
        {"groups": [group("a", headers={"x-kind": "new"})]},
        {"ttl": "60 days"},
    ],
)
def test_what_rabbitmq_cannot_do_is_refused_with_the_reason(options):
    with pytest.raises(RefusedError) as raised:
        check_queue(Queue.declare("emails", **options))
    assert raised.value.detail
    assert raised.value.data["queue"] == "emails"


@pytest.mark.parametrize(
    "about",
    [{"priority": 1}, {"headers": {"hw-key": "ada"}}, {"ttl": timedelta(days=60)}, {"delay": timedelta(days=60)}],
)
def test_what_rabbitmq_cannot_do_with_a_message_is_refused(about):
    check_message_support("emails", OutgoingMessage(b"1", headers={"tenant": "acme"}, delay=timedelta(days=1)))
    with pytest.raises(RefusedError) as raised:
        check_message_support("emails", OutgoingMessage(b"1", **about))
    assert raised.value.detail


def test_a_closed_broker_raises_a_usage_error():
    broker = RabbitBroker("amqp://127.0.0.1:1")
    broker.close()
    broker.close()
    with pytest.raises(UsageError) as raised:
        broker.queues()
    assert type(raised.value) is UsageError


def test_a_prefetch_of_zero_is_refused():
    with RabbitBroker("amqp://127.0.0.1:1", patience=timedelta(0)) as broker, pytest.raises(BadSettingError):
        broker.receiver("q", prefetch=0)


def test_a_forked_process_is_refused():
    with RabbitBroker("amqp://127.0.0.1:1") as broker:
        child = os.fork()
        if child == 0:
            try:
                broker.queues()
            except UsageError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_an_address_that_is_none_is_refused():
    with pytest.raises(BadSettingError) as raised:
        RabbitBroker("http://ada:secret@host")
    assert "secret" not in str(raised.value)


def test_a_server_that_does_not_answer_is_told_without_the_password():
    broker = RabbitBroker(f"amqp://ada:secret@127.0.0.1:{free_ports(1)[0]}", patience=timedelta(milliseconds=100))
    with pytest.raises(UnreachableError) as raised:
        broker.queues()
    assert "secret" not in str(raised.value)
    broker.close()


@pytest.mark.services
def test_a_wrong_password_is_told_at_once(rabbit):
    broker = RabbitBroker(f"amqp://headwater:wrong@127.0.0.1:{rabbit.port}")
    with pytest.raises(BadCredentialsError):
        broker.queues()
    broker.close()


@pytest.mark.services
def test_groups_that_change_get_what_they_choose_now(rabbit, shared, name):
    old = RabbitBroker(rabbit.url())
    groups = [group("moved", routing_key="a.*"), group("headed", headers={"k": "1"}), "gone"]
    old.declare(Queue.declare(name, groups=groups))
    shared.declare(
        Queue.declare(name, groups=[group("moved", routing_key="b.*"), group("headed", headers={"k": "2"}), "new"])
    )
    # The first one does not know of the change: RabbitMQ itself decides.
    old.publish(
        name,
        [
            OutgoingMessage(b"1", routing_key="a.x", headers={"k": "1"}),
            OutgoingMessage(b"2", routing_key="b.x", headers={"k": "2"}),
        ],
    )
    waiting = {each.group: each.waiting for each in shared.counts(name)}
    assert waiting == {"moved": 1, "headed": 1, "new": 2}
    assert [group.name for group in old.queue(name).groups] == ["moved", "headed", "new"]
    assert rabbit.ctl("list_queues", "-q", "name", "messages").count(f"{name}:gone\t0") == 1
    old.close()


@pytest.mark.services
def test_a_broker_forgets_closed_receivers(rabbit, name):
    with RabbitBroker(rabbit.url()) as broker:
        broker.declare(Queue.declare(name))
        for _ in range(3):
            broker.receiver(name).close()
        assert len(broker._receivers) == 1


@pytest.mark.services
def test_a_limit_that_changes_is_refused(shared, name):
    shared.declare(Queue.declare(name, limit=3))
    with pytest.raises(QueueExistsError) as raised:
        shared.declare(Queue.declare(name, limit=4))
    assert "x-max-length" in raised.value.detail
    assert shared.queue(name).limit == 3


@pytest.mark.services
def test_processes_that_declare_at_once_do_not_lose_a_definition(rabbit, name):
    brokers = [RabbitBroker(rabbit.url()) for _ in range(3)]
    threads = [
        threading.Thread(target=broker.declare, args=(Queue.declare(f"{name}-{number}"),))
        for number, broker in enumerate(brokers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"{name}-{number}" for number in range(3)}
    for broker in brokers:
        assert expected <= set(broker.queues())
        broker.close()
