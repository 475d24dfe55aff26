"""The embedded broker: the contract, and what only it supports."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headwater.errors import BadEventError, BadNameError, BadSettingError, TooLargeError, UsageError
from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.protocol import AckResult, OutgoingMessage
from headwater.queues.queue import Queue
from tests.queues.contract import (  # noqa: F401
    TestCounts,
    TestFailures,
    TestLimits,
    TestOrder,
    TestPatterns,
    TestPublishAndReceive,
    TestSharing,
    TestStaleSettling,
    TestTime,
)
from tests.queues.given import declare


class TestBadInput:
    @pytest.mark.parametrize(
        ("about", "error"),
        [
            ({"priority": 10}, BadEventError),
            ({"priority": -1}, BadEventError),
            ({"headers": {"": "x"}}, BadEventError),
            ({"headers": {"a": 1}}, BadEventError),
            ({"traceparent": "nonsense"}, BadEventError),
            ({"body": "text"}, BadEventError),
            ({"body": b"." * (4 << 20) + b"."}, TooLargeError),
            ({"key": 7}, BadEventError),
            ({"id": ""}, BadEventError),
            ({"id": "x" * 300}, BadEventError),
            ({"routing_key": "a\ud800"}, BadEventError),
            ({"delay": timedelta(seconds=-1)}, BadEventError),
            ({"ttl": timedelta(days=400_000)}, BadEventError),
        ],
    )
    def test_an_invalid_message_fails_the_whole_call(self, broker, about, error):
        declare(broker)
        with pytest.raises(error) as caught:
            broker.publish("q", [OutgoingMessage(b"good"), OutgoingMessage(**{"body": b"1", **about})])
        assert caught.value.data.get("row", 1) == 1
        assert broker.counts("q")[0].published == 0

    def test_names_that_clash_are_refused(self, broker):
        declare(broker)
        with pytest.raises(BadNameError):
            broker.declare(Queue.declare("Q"))

    def test_a_closed_broker_raises_a_usage_error(self, broker):
        declare(broker)
        receiver = broker.receiver("q")
        broker.close()
        with pytest.raises(UsageError) as caught:
            broker.publish("q", [OutgoingMessage(b"1")])
        assert type(caught.value) is UsageError  # not an error about the message or the queue
        assert receiver.receive() == []

    def test_a_prefetch_of_zero_is_refused(self, broker):
        with pytest.raises(BadSettingError):
            declare(broker).receiver("q", prefetch=0)


class TestCost:
    @pytest.mark.parametrize("ordered", [False, True])
    def test_the_cost_of_receive_and_ack_does_not_grow_with_the_backlog(self, broker, ordered):
        declare(broker, durability="fast", ordered=ordered)
        few = self.steps(broker, 100)
        many = self.steps(broker, 20_000)
        assert many <= few * 1.2

    def steps(self, broker: EmbeddedBroker, waiting: int) -> int:
        """Instructions of SQLite's machine for ten messages, with so many waiting."""
        for first in range(0, waiting, 1_000):
            number = min(1_000, waiting - first)
            broker.publish("q", [OutgoingMessage(b"1", key=str(at % 50), priority=at % 3) for at in range(number)])
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        connection = broker._file("q")._connection
        connection.set_progress_handler(count, 1)
        receiver = broker.receiver("q")
        for _ in range(10):
            assert receiver.ack(receiver.receive()) == [AckResult.DONE]
        connection.set_progress_handler(None, 1)
        receiver.close()
        return steps
