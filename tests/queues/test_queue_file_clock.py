"""Delays and visibility are measured in a time that nobody can set."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.protocol import AckResult, Delivery, OutgoingMessage
from tests.faults.simulated_clock import SimulatedClock
from tests.queues.given import declare, taken


@pytest.mark.parametrize("hours", [-48, 48])
def test_setting_the_wall_clock_changes_nothing(tmp_path, hours):
    clock = SimulatedClock()
    with EmbeddedBroker(tmp_path, clock) as broker:
        declare(broker, visibility_timeout="1 minute")
        broker.publish("q", [OutgoingMessage(b"now"), OutgoingMessage(b"later", delay=timedelta(minutes=10))])
        receiver, [delivery] = taken(broker)
        clock.jump(hours * 3600 * 1_000_000)
        assert taken(broker)[1] == []  # forward: neither is anything taken away, nor delivered early
        clock.advance(59 * 1_000_000)
        assert receiver.extend(delivery) is AckResult.DONE
        assert abs(delivery.visible_until - clock.now() - timedelta(hours=-hours)) < timedelta(minutes=2)
        clock.advance(61 * 1_000_000)
        assert [each.message.body for each in taken(broker)[1]] == [b"now"]  # back: nothing stays away
        clock.advance(9 * 60 * 1_000_000)
        assert b"later" in [each.message.body for each in taken(broker)[1]]


def test_time_does_not_go_back_when_the_machine_starts_with_a_wrong_clock(tmp_path):
    clock = SimulatedClock()
    with EmbeddedBroker(tmp_path, clock) as broker:
        declare(broker)
        clock.advance(3_600 * 1_000_000)
        broker.publish("q", [OutgoingMessage(b"1", delay=timedelta(seconds=10))])
    clock.jump(-365 * 86_400 * 1_000_000)
    clock.reboot()
    with EmbeddedBroker(tmp_path, clock) as broker:
        assert taken(broker)[1] == []
        clock.advance(10 * 1_000_000)
        assert len(taken(broker)[1]) == 1


def test_time_off_counts_when_the_machine_starts_again(tmp_path):
    clock = SimulatedClock()
    with EmbeddedBroker(tmp_path, clock) as broker:
        declare(broker)
        clock.advance(3_600 * 1_000_000)
        broker.publish("q", [OutgoingMessage(b"1", delay=timedelta(hours=2))])
    clock.jump(3 * 3_600 * 1_000_000)
    clock.reboot()
    with EmbeddedBroker(tmp_path, clock) as broker:
        assert len(taken(broker)[1]) == 1


def test_a_receiver_that_waits_wakes_when_a_message_becomes_due(tmp_path):
    with declare(EmbeddedBroker(tmp_path)) as broker:
        broker.publish("q", [OutgoingMessage(b"1", delay=timedelta(milliseconds=200))])
        assert len(broker.receiver("q").receive(timeout=60)) == 1


def test_a_clock_in_the_hand_of_a_test_wakes_receivers_when_told(broker, clock):
    declare(broker)
    broker.publish("q", [OutgoingMessage(b"1", delay=timedelta(hours=1))])
    found: list[Delivery] = []
    receiver = broker.receiver("q")
    thread = threading.Thread(target=lambda: found.extend(receiver.receive(timeout=60)))
    thread.start()
    clock.advance("1 hour")
    broker.notify("q")
    thread.join(timeout=60)
    assert len(found) == 1


def test_more_than_one_transaction_moves_may_become_due_at_once(broker, pass_time):
    declare(broker, durability="fast", visibility_timeout="1 minute")
    broker.publish("q", [OutgoingMessage(b"old", ttl=timedelta(seconds=1))] * 1_200)
    broker.publish("q", [OutgoingMessage(b"new")])
    pass_time(2)
    assert [each.message.body for each in taken(broker)[1]] == [b"new"]
    broker.publish("q", [OutgoingMessage(b"later", delay=timedelta(seconds=1))] * 1_200)
    pass_time(2)
    [found] = broker.counts("q")
    assert (found.waiting, found.delayed, found.in_flight, found.expired) == (1_200, 0, 1, 1_200)


def test_a_delayed_message_behind_another_of_its_key_is_counted_as_delayed_when_its_turn_comes(broker):
    declare(broker, ordered=True)
    broker.publish("q", [OutgoingMessage(b"1", key="k"), OutgoingMessage(b"2", key="k", delay=timedelta(hours=1))])
    receiver, deliveries = taken(broker)
    assert broker.counts("q")[0].waiting == 1
    receiver.ack(deliveries)
    [found] = broker.counts("q")
    assert (found.waiting, found.delayed) == (0, 1)
