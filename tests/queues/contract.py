"""The contract of all brokers: these tests run on the embedded broker and on RabbitMQ.

A test module imports the classes and has two fixtures: `broker`, and `pass_time`, which lets a number of seconds pass
for the broker. If its broker does not support everything, the module has a set `SUPPORTS` with the supported words of
`EVERYTHING`; tests of the others are deselected (conftest.py).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from headwater.errors import OverloadedError, UnknownGroupError, UnknownQueueError
from headwater.log import backpressure, drop
from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.protocol import AckResult, Broker, Delivery, GroupCounts, OutgoingMessage, Receiver
from headwater.queues.queue import Queue, group, retry

EVERYTHING = frozenset(
    {"priority", "ordered", "dedup", "sql", "headers", "visibility", "counts", "totals", "drop oldest"}
)
AT_ONCE = retry(3, backoff="0s", jitter=0)
Wait = Callable[[float], None]


def needs(*what: str) -> pytest.MarkDecorator:
    """Marks a test for brokers that support this; see `EVERYTHING`."""
    return pytest.mark.broker_needs(*what)


def declared(broker: Broker, **options: Any) -> str:
    """Declare a queue with a unique name, with retries without a delay unless the options say otherwise."""
    name = f"q-{uuid.uuid4().hex[:12]}"
    broker.declare(Queue.declare(name, **{"retry": AT_ONCE, **options}))
    return name


def message(value: object, **about: Any) -> OutgoingMessage:
    return OutgoingMessage(msgspec.json.encode(value), **about)


def publish(broker: Broker, name: str, *values: object, **about: Any) -> None:
    confirmed = broker.publish(name, [message(value, **about) for value in values])
    assert len(confirmed) == len(values)


def receive(receiver: Receiver, number: int = 1, timeout: float = 10) -> list[Delivery]:
    """Receive exactly this number of deliveries."""
    found: list[Delivery] = []
    while len(found) < number:
        more = receiver.receive(timeout=timeout, max_messages=number - len(found))
        assert more, f"only {len(found)} of {number} messages came"
        found += more
    return found


def values(deliveries: Sequence[Delivery]) -> list[Any]:
    return [msgspec.json.decode(delivery.message.body) for delivery in deliveries]


def drained(broker: Broker, name: str, group: str = "") -> list[Any]:
    """Receive and acknowledge every message that is deliverable now."""
    found: list[Any] = []
    receiver = broker.receiver(name, group, prefetch=10)
    while deliveries := receiver.receive(timeout=_patience(broker, name, group), max_messages=10):
        found += values(deliveries)
        assert set(receiver.ack(deliveries)) == {AckResult.DONE}
    receiver.close()
    return found


def _patience(broker: Broker, name: str, group: str) -> float:
    """Returns the seconds to wait for the next message: a server may deliver waiting messages late."""
    at_once = isinstance(broker, EmbeddedBroker) or not counts(broker, name, group).waiting
    return 0 if at_once else 2


def counts(broker: Broker, name: str, group: str = "") -> GroupCounts:
    [found] = [each for each in broker.counts(name) if each.group == group]
    return found


class TestPublishAndReceive:
    def test_a_message_is_delivered_as_published(self, broker):
        name = declared(broker)
        about = {"routing_key": "mails.new", "key": "ada", "headers": {"tenant": "acme"}}
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        [confirmed] = broker.publish(name, [message({"to": "ada"}, id="m-1", traceparent=trace, **about)])
        assert (confirmed.id, confirmed.duplicate, confirmed.dropped, confirmed.groups) == ("m-1", False, False, 1)
        [delivery] = receive(broker.receiver(name))
        got = delivery.message
        assert (got.body, got.id, got.traceparent) == (b'{"to":"ada"}', "m-1", trace)
        assert {"routing_key": got.routing_key, "key": got.key, "headers": got.headers} == about
        assert (delivery.attempt, delivery.is_redelivery) == (1, False)

    def test_messages_are_delivered_in_publish_order(self, broker):
        name = declared(broker)
        publish(broker, name, *range(20))
        assert drained(broker, name) == list(range(20))

    def test_an_acknowledged_message_is_never_redelivered(self, broker, pass_time):
        name = declared(broker, visibility_timeout="1s")
        publish(broker, name, 1)
        receiver = broker.receiver(name)
        assert receiver.ack(receive(receiver)) == [AckResult.DONE]
        pass_time(2)
        assert receiver.receive(timeout=0.2) == []
        receiver.close()
        assert drained(broker, name) == []

    def test_an_empty_queue_delivers_nothing(self, broker):
        assert broker.receiver(declared(broker)).receive(timeout=0.05) == []

    def test_a_message_without_an_id_gets_a_unique_one(self, broker):
        name = declared(broker)
        first, second = broker.publish(name, [message(1), message(1)])
        assert first.id != second.id
        assert {delivery.message.id for delivery in receive(broker.receiver(name, prefetch=2), 2)} == {
            first.id,
            second.id,
        }

    def test_an_unknown_queue_or_group_is_an_error(self, broker):
        with pytest.raises(UnknownQueueError):
            broker.publish("nothing-like-this", [message(1)])
        with pytest.raises(UnknownQueueError):
            broker.receiver("nothing-like-this")
        with pytest.raises(UnknownGroupError):
            broker.receiver(declared(broker), "nobody")

    def test_queues_are_listed_with_their_definition(self, broker):
        name = declared(broker, visibility_timeout="7s", groups=["a", "b"])
        assert name in broker.queues()
        assert broker.queue(name).visibility_timeout == timedelta(seconds=7)
        assert [each.name for each in broker.queue(name).groups] == ["a", "b"]

    def test_declaring_again_keeps_the_messages(self, broker):
        name = declared(broker)
        publish(broker, name, 1)
        broker.declare(Queue.declare(name))
        assert drained(broker, name) == [1]

    def test_a_message_wakes_a_waiting_receiver(self, broker):
        name = declared(broker)
        receiver, found = broker.receiver(name), []
        thread = threading.Thread(target=lambda: found.extend(receiver.receive(timeout=30)))
        thread.start()
        publish(broker, name, "hello")
        thread.join(timeout=30)
        assert values(found) == ["hello"]


class TestSharing:
    def test_two_receivers_of_a_group_share_its_messages(self, broker):
        name = declared(broker)
        first, second = broker.receiver(name, prefetch=3), broker.receiver(name, prefetch=3)
        publish(broker, name, *range(6))
        got = receive(first, 3), receive(second, 3)
        assert sorted(values(got[0]) + values(got[1])) == list(range(6))

    def test_every_group_gets_every_message(self, broker):
        name = declared(broker, groups=["mail", "stock"])
        [confirmed] = broker.publish(name, [message(1)])
        assert confirmed.groups == 2
        assert drained(broker, name, "mail") == [1]
        assert drained(broker, name, "stock") == [1]

    def test_a_receiver_holds_at_most_its_prefetch(self, broker):
        name = declared(broker)
        publish(broker, name, *range(4))
        receiver = broker.receiver(name, prefetch=2)
        taken = receive(receiver, 2)
        assert receiver.receive(timeout=0.2, max_messages=2) == []
        receiver.ack(taken[:1])
        assert len(receiver.receive(timeout=10, max_messages=2)) == 1

    def test_closing_a_receiver_requeues_its_unsettled_messages(self, broker):
        name = declared(broker)
        publish(broker, name, 1)
        receiver = broker.receiver(name)
        receive(receiver)
        receiver.close()
        [delivery] = receive(broker.receiver(name))
        assert delivery.is_redelivery
        assert delivery.attempt == 2


class TestFailures:
    def test_a_nacked_message_is_redelivered_with_the_next_attempt_number(self, broker):
        name = declared(broker)
        publish(broker, name, 1)
        receiver = broker.receiver(name)
        for attempt in (1, 2):
            [delivery] = receive(receiver)
            assert (delivery.attempt, delivery.is_redelivery) == (attempt, attempt > 1)
            assert receiver.nack(delivery, "no connection") is AckResult.DONE
        assert receive(receiver)[0].attempt == 3

    def test_a_nacked_message_is_redelivered_after_the_backoff(self, broker, pass_time):
        name = declared(broker, retry=retry(5, backoff="2s", jitter=0))
        publish(broker, name, 1)
        receiver = broker.receiver(name)
        receiver.nack(*receive(receiver))
        assert receiver.receive(timeout=0.1) == []
        pass_time(2.5)
        assert receive(receiver)[0].attempt == 2

    def test_a_nack_may_set_the_delay(self, broker, pass_time):
        name = declared(broker)
        publish(broker, name, 1)
        receiver = broker.receiver(name)
        receiver.nack(*receive(receiver), delay=timedelta(seconds=1))
        assert receiver.receive(timeout=0.1) == []
        pass_time(1.5)
        assert receive(receiver)[0].attempt == 2

    def test_a_message_that_fails_too_often_becomes_a_dead_letter_with_its_history(self, broker):
        name = declared(broker)
        about = {"routing_key": "mails.new", "key": "ada", "headers": {"tenant": "acme"}}
        broker.publish(name, [message({"to": "ada"}, id="m-1", **about)])
        receiver = broker.receiver(name, worker="w-1")
        for attempt in (1, 2, 3):
            receiver.nack(*receive(receiver), f"no {attempt}", stack=f"line {attempt}")
        assert receiver.receive(timeout=0.2) == []
        [letter] = broker.dead_letters(name)
        got = letter.message
        assert (letter.why, letter.group, got.body, got.id) == ("failed", "", b'{"to":"ada"}', "m-1")
        assert {"routing_key": got.routing_key, "key": got.key, "headers": got.headers} == about
        history = [(each.number, each.why, each.worker, each.stack) for each in letter.attempts]
        assert history == [(n, f"no {n}", "w-1", f"line {n}") for n in (1, 2, 3)]

    def test_a_rejected_message_becomes_a_dead_letter_at_once(self, broker):
        name = declared(broker)
        publish(broker, name, 1)
        receiver = broker.receiver(name)
        assert receiver.reject(*receive(receiver), "not an address", stack="line 7") is AckResult.DONE
        assert receiver.receive(timeout=0.2) == []
        [letter] = broker.dead_letters(name)
        assert letter.why == "rejected"
        assert [(each.why, each.stack) for each in letter.attempts] == [("not an address", "line 7")]

    def test_dead_letters_are_listed_oldest_first_and_by_group(self, broker):
        name = declared(broker, groups=["a", "b"])
        publish(broker, name, 1, 2, 3)
        for each in "ab":
            receiver = broker.receiver(name, each, prefetch=3)
            for delivery in receive(receiver, 3):
                receiver.reject(delivery)
        letters = list(broker.dead_letters(name, "b"))
        assert [msgspec.json.decode(letter.message.body) for letter in letters] == [1, 2, 3]
        assert {letter.group for letter in letters} == {"b"}
        assert len(list(broker.dead_letters(name))) == 6

    def test_a_dead_letter_is_redriven_to_its_group_only(self, broker):
        name = declared(broker, groups=["a", "b"])
        publish(broker, name, 1)
        receiver = broker.receiver(name, "a")
        receiver.reject(*receive(receiver), "no")
        assert broker.redrive(name, list(broker.dead_letters(name))) == 1
        assert list(broker.dead_letters(name)) == []
        [delivery] = receive(receiver)
        assert values([delivery]) == [1]
        assert delivery.is_redelivery
        receiver.ack([delivery])
        assert drained(broker, name, "b") == [1]

    def test_a_dead_letter_may_be_edited_before_it_is_redriven(self, broker):
        name = declared(broker)
        publish(broker, name, {"to": "ada@"}, headers={"tenant": "acme"})
        receiver = broker.receiver(name)
        receiver.reject(*receive(receiver))
        [letter] = broker.dead_letters(name)
        edited = replace(letter, message=replace(letter.message, body=b'{"to":"ada@example.org"}'))
        assert broker.redrive(name, [edited]) == 1
        [delivery] = receive(receiver)
        assert values([delivery]) == [{"to": "ada@example.org"}]
        assert delivery.message.headers == {"tenant": "acme"}

    def test_a_redriven_message_that_fails_again_keeps_its_whole_history(self, broker):
        name = declared(broker)
        publish(broker, name, 1)
        receiver = broker.receiver(name)
        receiver.reject(*receive(receiver), "first")
        broker.redrive(name, broker.dead_letters(name))
        receiver.reject(*receive(receiver), "second")
        [letter] = broker.dead_letters(name)
        assert [each.why for each in letter.attempts] == ["first", "second"]


class TestStaleSettling:
    def test_a_second_acknowledgement_is_stale(self, broker):
        name = declared(broker)
        publish(broker, name, 1, 2)
        receiver = broker.receiver(name)
        [delivery] = receive(receiver)
        assert receiver.ack([delivery]) == [AckResult.DONE]
        assert receiver.ack([delivery]) == [AckResult.STALE]
        assert receiver.nack(delivery) is AckResult.STALE
        assert drained(broker, name) == [2]
        assert list(broker.dead_letters(name)) == []

    def test_a_nacked_delivery_is_stale_after_the_redelivery(self, broker):
        name = declared(broker)
        publish(broker, name, 1)
        receiver = broker.receiver(name)
        [first] = receive(receiver)
        receiver.nack(first)
        [second] = receive(receiver)
        assert receiver.ack([first]) == [AckResult.STALE]
        assert receiver.reject(first) is AckResult.STALE
        assert receiver.ack([second]) == [AckResult.DONE]

    @needs("visibility")
    def test_a_receiver_may_receive_after_a_visibility_timeout(self, broker, pass_time):
        name = declared(broker, visibility_timeout="1s")
        publish(broker, name, 1, 2)
        slow = broker.receiver(name)
        receive(slow)
        pass_time(1.5)
        assert len(receive(slow)) == 1

    @needs("visibility")
    def test_a_message_is_redelivered_to_another_receiver_after_the_visibility_timeout(self, broker, pass_time):
        name = declared(broker, visibility_timeout="2s")
        publish(broker, name, 1)
        slow, other = broker.receiver(name, worker="slow"), broker.receiver(name)
        [delivery] = receive(slow)
        assert other.receive(timeout=0) == []
        pass_time(2.5)
        [again] = receive(other)
        assert again.attempt == 2
        for settled in (slow.ack([delivery])[0], slow.nack(delivery), slow.reject(delivery), slow.extend(delivery)):
            assert settled is AckResult.STALE
        assert other.ack([again]) == [AckResult.DONE]
        assert drained(broker, name) == []

    @needs("visibility")
    def test_an_extended_message_stays_with_its_receiver(self, broker, pass_time):
        name = declared(broker, visibility_timeout="2s")
        publish(broker, name, 1)
        slow, other = broker.receiver(name), broker.receiver(name)
        [delivery] = receive(slow)
        for _ in range(3):
            pass_time(1.5)
            assert slow.extend(delivery) is AckResult.DONE
        assert other.receive(timeout=0) == []
        assert slow.ack([delivery]) == [AckResult.DONE]

    @needs("visibility")
    def test_an_extension_by_zero_ends_the_visibility_timeout(self, broker):
        name = declared(broker, visibility_timeout="1 minute")
        publish(broker, name, 1)
        slow, other = broker.receiver(name), broker.receiver(name)
        [delivery] = receive(slow)
        assert slow.extend(delivery, timedelta(0)) is AckResult.DONE
        assert receive(other)[0].attempt == 2

    @needs("visibility")
    def test_a_message_that_kills_its_receivers_becomes_a_dead_letter(self, broker, pass_time):
        name = declared(broker, visibility_timeout="1s", retry=retry(2))
        publish(broker, name, 1)
        for _ in range(2):
            receive(broker.receiver(name, worker="doomed"))
            pass_time(1.5)
        assert broker.receiver(name).receive(timeout=0.1) == []
        [letter] = broker.dead_letters(name)
        assert (letter.why, len(letter.attempts)) == ("failed", 2)
        assert {each.worker for each in letter.attempts} == {"doomed"}


class TestTime:
    def test_a_delayed_message_is_delivered_after_its_delay(self, broker, pass_time):
        name = declared(broker)
        publish(broker, name, "later", delay=timedelta(seconds=2))
        publish(broker, name, "now")
        assert drained(broker, name) == ["now"]
        pass_time(2.5)
        assert drained(broker, name) == ["later"]

    def test_a_message_not_delivered_within_its_ttl_becomes_a_dead_letter(self, broker, pass_time):
        name = declared(broker)
        publish(broker, name, "old", ttl=timedelta(seconds=1))
        publish(broker, name, "new")
        pass_time(2)
        assert drained(broker, name) == ["new"]
        [letter] = broker.dead_letters(name)
        assert (letter.why, letter.attempts) == ("expired", ())

    def test_a_message_that_was_delivered_once_does_not_expire(self, broker, pass_time):
        name = declared(broker)
        publish(broker, name, 1, ttl=timedelta(seconds=1))
        receiver = broker.receiver(name)
        receive(receiver)
        pass_time(2)
        receiver.close()
        assert drained(broker, name) == [1]

    def test_the_ttl_of_a_queue_applies_to_all_its_messages(self, broker, pass_time):
        name = declared(broker, ttl="1s")
        publish(broker, name, 1)
        pass_time(2)
        assert drained(broker, name) == []
        assert [letter.why for letter in broker.dead_letters(name)] == ["expired"]

    @needs("dedup")
    def test_a_second_message_with_the_same_id_is_discarded(self, broker, pass_time):
        name = declared(broker, deduplication_window="2s")
        first, second = broker.publish(name, [message(1, id="a"), message(2, id="a")])
        [third] = broker.publish(name, [message(3, id="a")])
        assert [each.duplicate for each in (first, second, third)] == [False, True, True]
        assert drained(broker, name) == [1]
        assert broker.publish(name, [message(4, id="a")])[0].duplicate
        pass_time(2.5)
        assert not broker.publish(name, [message(5, id="a")])[0].duplicate
        assert drained(broker, name) == [5]


class TestOrder:
    @needs("priority")
    def test_higher_priorities_are_delivered_first(self, broker):
        name = declared(broker)
        for priority in (0, 9, 5, 9):
            publish(broker, name, priority, priority=priority)
        assert drained(broker, name) == [9, 9, 5, 0]

    @needs("ordered")
    def test_one_message_of_a_key_is_in_flight_at_a_time(self, broker):
        name = declared(broker, ordered=True)
        for number in range(3):
            publish(broker, name, f"a{number}", key="a")
            publish(broker, name, f"b{number}", key="b")
        receiver = broker.receiver(name, prefetch=10)
        found = []
        while deliveries := receiver.receive(timeout=0, max_messages=10):
            assert len({delivery.message.key for delivery in deliveries}) == len(deliveries)
            found += values(deliveries)
            receiver.ack(deliveries)
        assert [value for value in found if value[0] == "a"] == ["a0", "a1", "a2"]
        assert [value for value in found if value[0] == "b"] == ["b0", "b1", "b2"]

    @needs("ordered")
    def test_the_order_of_a_key_is_kept_through_retries(self, broker, pass_time):
        name = declared(broker, ordered=True, retry=retry(5, backoff="1s", jitter=0))
        publish(broker, name, 1, 2, key="a")
        receiver = broker.receiver(name)
        receiver.nack(*receive(receiver))
        assert receiver.receive(timeout=0) == []
        pass_time(1.5)
        assert drained(broker, name) == [1, 2]

    @needs("ordered")
    def test_a_dead_letter_unblocks_the_next_message_of_its_key(self, broker):
        name = declared(broker, ordered=True)
        publish(broker, name, 1, 2, key="a")
        receiver = broker.receiver(name)
        receiver.reject(*receive(receiver))
        assert values(receive(receiver)) == [2]

    @needs("ordered")
    def test_messages_without_a_key_do_not_block_each_other(self, broker):
        name = declared(broker, ordered=True)
        publish(broker, name, 1, 2)
        assert len(broker.receiver(name, prefetch=5).receive(timeout=5, max_messages=5)) == 2


class TestPatterns:
    def test_groups_select_by_routing_key(self, broker):
        words = {"all": "#", "eu": "orders.*.eu", "orders": "orders.#", "new": ["*.new", "*.new.*"]}
        name = declared(broker, groups=[group(each, routing_key=pattern) for each, pattern in words.items()])
        for each in ("orders.new.eu", "orders.new", "orders", "mails.new", "orders.a.b.eu"):
            publish(broker, name, each, routing_key=each)
        assert drained(broker, name, "all") == ["orders.new.eu", "orders.new", "orders", "mails.new", "orders.a.b.eu"]
        assert drained(broker, name, "eu") == ["orders.new.eu"]
        assert drained(broker, name, "orders") == ["orders.new.eu", "orders.new", "orders", "orders.a.b.eu"]
        assert drained(broker, name, "new") == ["orders.new.eu", "orders.new", "mails.new"]

    def test_a_message_that_matches_no_group_is_confirmed_and_not_stored(self, broker):
        name = declared(broker, groups=[group("eu", routing_key="*.eu")])
        [confirmed] = broker.publish(name, [message(1, routing_key="orders.us")])
        assert (confirmed.groups, confirmed.dropped) == (0, False)
        assert drained(broker, name, "eu") == []

    @needs("headers")
    def test_groups_select_by_headers(self, broker):
        name = declared(broker, groups=["all", group("acme", headers={"tenant": "acme", "kind": "x"})])
        publish(broker, name, 1, headers={"tenant": "acme", "kind": "x", "more": "1"})
        publish(broker, name, 2, headers={"tenant": "acme"})
        assert drained(broker, name, "acme") == [1]
        assert drained(broker, name, "all") == [1, 2]

    @needs("sql")
    def test_groups_select_by_an_sql_condition(self, broker):
        name = declared(broker, groups=["all", group("large", where="amount > 100 and country = 'DE'")])
        for amount, country in ((50, "DE"), (150, "DE"), (150, "FR"), ("many", "DE"), (None, "DE")):
            publish(broker, name, {"amount": amount, "country": country})
        publish(broker, name, {"country": "DE"})
        assert drained(broker, name, "large") == [{"amount": 150, "country": "DE"}]
        assert len(drained(broker, name, "all")) == 6


class TestLimits:
    def test_a_full_queue_applies_backpressure(self, broker):
        name = declared(broker, limit=3, overload=backpressure("100 ms"))
        publish(broker, name, 1, 2, 3)
        with pytest.raises(OverloadedError) as caught:
            publish(broker, name, 4)
        assert caught.value.status == 429
        assert drained(broker, name) == [1, 2, 3]
        publish(broker, name, 5)
        assert drained(broker, name) == [5]

    def test_a_waiting_publisher_continues_when_there_is_room(self, broker):
        name = declared(broker, limit=1, overload=backpressure("30 s"))
        publish(broker, name, 1)
        thread = threading.Thread(target=publish, args=(broker, name, 2))
        thread.start()
        receiver = broker.receiver(name)
        for value in (1, 2):
            [delivery] = receive(receiver, timeout=30)
            assert values([delivery]) == [value]
            receiver.ack([delivery])
        thread.join(timeout=30)
        assert not thread.is_alive()

    def test_a_full_queue_may_drop_the_newest(self, broker):
        name = declared(broker, limit=3, overload=drop("newest"))
        confirmed = broker.publish(name, [message(number) for number in range(9)])
        assert [each.dropped for each in confirmed] == [False] * 3 + [True] * 6
        assert drained(broker, name) == [0, 1, 2]

    @needs("drop oldest")
    def test_a_full_queue_may_drop_the_oldest(self, broker):
        name = declared(broker, limit=3, overload=drop("oldest"))
        publish(broker, name, *range(9))
        assert drained(broker, name) == [6, 7, 8]


@needs("counts")
class TestCounts:
    def test_every_message_is_counted_in_its_state(self, broker):
        name = declared(broker, retry=retry(2, backoff="1h"))
        publish(broker, name, *range(6))
        publish(broker, name, 6, delay=timedelta(hours=1))
        receiver = broker.receiver(name, prefetch=5)
        first, second, third, _ = receive(receiver, 4)
        receiver.ack([first])
        receiver.nack(second)
        receiver.reject(third)
        found = counts(broker, name)
        assert (found.waiting, found.delayed, found.in_flight, found.dead) == (2, 2, 1, 1)
        assert (found.published, found.acked, found.redelivered) == (7, 1, 0)

    @needs("totals")
    def test_published_is_the_sum_of_all_states(self, broker, pass_time):
        name = declared(broker, limit=5, overload=drop("newest"), ttl="2s", retry=AT_ONCE)
        publish(broker, name, *range(10))
        receiver = broker.receiver(name, prefetch=2)
        first, second = receive(receiver, 2)
        receiver.ack([first])
        receiver.nack(second)
        pass_time(3)
        found = counts(broker, name)
        assert (found.dropped, found.expired, found.acked) == (5, 3, 1)
        assert (
            found.published
            == 10
            == sum((found.waiting, found.delayed, found.in_flight, found.dead, found.acked, found.dropped))
        )

    def test_redeliveries_are_counted(self, broker):
        name = declared(broker)
        publish(broker, name, 1)
        receiver = broker.receiver(name)
        receiver.nack(*receive(receiver))
        receiver.ack(receive(receiver))
        found = counts(broker, name)
        assert (found.redelivered, found.acked, found.waiting) == (1, 1, 0)
