"""The embedded broker keeps the contract, and what only it can do."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import (
    BadEventError,
    BadNameError,
    BadSettingError,
    DamagedError,
    DiskFullError,
    NewerFormatError,
    TooLargeError,
    UsageError,
)
from headwater.events import ManualClock
from headwater.queues.definition import Queue
from headwater.queues.embedded import EmbeddedBroker, EmbeddedReceiver
from headwater.queues.protocol import Delivery, Outgoing, Settled
from tests.faults.processes import fork, until, wait_for
from tests.faults.simulated_clock import SimulatedClock
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
from tests.queues.given import AT_ONCE


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "queues", clock) as broker:
        yield broker


@pytest.fixture
def pass_time(clock: ManualClock) -> Callable[[float], None]:
    return lambda seconds: clock.advance(timedelta(seconds=seconds))


def stored(folder: Path, question: str) -> list[tuple[Any, ...]]:
    """What is in the file of the queue, as another program sees it."""
    with contextlib.closing(sqlite3.connect(folder / "queues" / "q" / "messages.db")) as connection:
        return connection.execute(question).fetchall()


def declare(broker: EmbeddedBroker, **options: Any) -> EmbeddedBroker:
    broker.declare(Queue.declare("q", **{"retry": AT_ONCE, **options}))
    return broker


def taken(
    broker: EmbeddedBroker, most: int = 100, group: str = ""
) -> tuple[EmbeddedReceiver, list[Delivery]]:
    receiver = broker.receiver("q", group, prefetch=most)
    return receiver, receiver.receive(most=most)


class TestTheFile:
    def test_a_body_is_stored_once_and_gone_with_its_last_group(self, broker, tmp_path):
        declare(broker, groups=["a", "b"])
        broker.publish("q", [Outgoing(b"1")])
        assert stored(tmp_path, "SELECT body FROM message") == [(b"1",)]
        for group, left in (("a", 1), ("b", 0)):
            receiver, deliveries = taken(broker, group=group)
            receiver.ack(deliveries)
            assert stored(tmp_path, "SELECT count(*) FROM message") == [(left,)]

    def test_nothing_at_all_is_left_of_messages_that_are_done(self, broker, tmp_path, pass_time):
        declare(broker, groups=["a", "b"], ordered=True, remember="1s")
        for number in range(20):
            about = {"key": str(number % 3), "ttl": timedelta(hours=1), "id": f"m-{number}"}
            broker.publish("q", [Outgoing(b"1", **about)])
        for group in "ab":
            for outcome in ("nack", "reject", "ack", "ack", "ack", "ack", "ack", "ack", "ack", "ack", "ack"):
                receiver, deliveries = taken(broker, group=group)
                for delivery in deliveries:
                    receiver.ack([delivery]) if outcome == "ack" else getattr(receiver, outcome)(
                        delivery, "no"
                    )
        letters = list(broker.dead("q"))
        assert broker.revive("q", letters) == len(letters) == 6
        for group in "ab":
            receiver, deliveries = taken(broker, group=group)
            receiver.ack(deliveries)
        pass_time(2)
        for _ in range(64):
            broker.counts("q")
        for table in ("message", "delivery", "line", "expiry", "seen", "attempt", "dead"):
            assert stored(tmp_path, f"SELECT count(*) FROM {table}") == [(0,)], table

    def test_the_file_shrinks_when_messages_have_gone(self, broker, tmp_path):
        declare(broker, durability="fast")
        for _ in range(30):
            broker.publish("q", [Outgoing(b"." * 4_000)] * 100)
        [(full,)] = stored(tmp_path, "PRAGMA page_count")
        receiver = broker.receiver("q", prefetch=20)
        while deliveries := receiver.receive(most=20):
            receiver.ack(deliveries)
        [(empty,)] = stored(tmp_path, "PRAGMA page_count")
        assert empty < full * 0.9

    def test_counts_are_there_after_a_restart(self, broker, tmp_path, clock):
        declare(broker)
        broker.publish("q", [Outgoing(b"1")] * 5)
        receiver, [first, second, third] = taken(broker, 3)
        receiver.ack([first])
        receiver.reject(second)
        receiver.nack(third)
        before = broker.counts("q")
        broker.close()
        with EmbeddedBroker(tmp_path / "queues", clock) as again:
            assert again.counts("q") == before
            _, [delivery, *_] = taken(again)
            assert (delivery.attempt, delivery.redelivered) == (2, True)

    def test_a_queue_is_declared_anew_by_every_process_that_uses_it(self, broker, tmp_path, clock):
        declare(broker, groups=["a", "b"])
        broker.publish("q", [Outgoing(b"1")])
        for groups in (["a", "b"], ["a", "b"], ["b", "a"]):
            with EmbeddedBroker(tmp_path / "queues", clock) as again:
                declare(again, groups=groups)
                assert {counts.group: counts.waiting for counts in again.counts("q")} == {"a": 1, "b": 1}

    def test_a_file_that_is_no_queue_is_an_error_of_ours(self, tmp_path):
        folder = tmp_path / "queues" / "q"
        folder.mkdir(parents=True)
        (folder / "messages.db").write_bytes(b"nonsense" * 1_000)
        with EmbeddedBroker(tmp_path / "queues") as broker, pytest.raises(DamagedError):
            broker.counts("q")

    def test_a_queue_of_a_newer_version_is_not_touched(self, broker, tmp_path, clock):
        declare(broker).close()
        with contextlib.closing(sqlite3.connect(tmp_path / "queues/q/messages.db")) as connection:
            connection.execute("PRAGMA user_version = 99")
        with EmbeddedBroker(tmp_path / "queues", clock) as again, pytest.raises(NewerFormatError):
            declare(again)

    def test_a_full_disk_is_told_and_harms_nothing(self, broker):
        declare(broker)
        broker.publish("q", [Outgoing(b"before")])
        connection = broker._file("q")._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(DiskFullError):
            broker.publish("q", [Outgoing(b"." * 100_000)])
        connection.execute("PRAGMA max_page_count = 1000000")
        broker.publish("q", [Outgoing(b"after")])
        assert [delivery.message.body for delivery in taken(broker)[1]] == [b"before", b"after"]

    def test_a_queue_in_memory_is_lost_with_the_memory_only(self, broker, tmp_path, clock):
        declare(broker, durability="memory")
        broker.publish("q", [Outgoing(b"1")])
        broker.close()
        link = tmp_path / "queues/q/messages.db"
        assert link.is_symlink()
        with EmbeddedBroker(tmp_path / "queues", clock) as again:
            assert again.counts("q")[0].waiting == 1
        link.resolve().unlink()
        with EmbeddedBroker(tmp_path / "queues", clock) as again:
            assert again.queues() == []
            declare(again, durability="memory")
            assert again.counts("q")[0].waiting == 0
        link.resolve().unlink()


class TestSharedByProcesses:
    def test_a_definition_changed_elsewhere_holds_at_once(self, broker, tmp_path, clock):
        declare(broker, groups=["a"])
        broker.publish("q", [Outgoing(b"1")])
        with EmbeddedBroker(tmp_path / "queues", clock) as other:
            declare(other, groups=["a", "b"])
        assert broker.publish("q", [Outgoing(b"2")])[0].groups == 2
        assert {counts.group: counts.waiting for counts in broker.counts("q")} == {"a": 2, "b": 1}

    def test_a_group_that_is_not_declared_any_more_keeps_what_it_has(self, broker):
        declare(broker, groups=["a", "b"])
        broker.publish("q", [Outgoing(b"1")])
        declare(broker, groups=["a"])
        assert broker.publish("q", [Outgoing(b"2")])[0].groups == 1
        receiver, [delivery] = taken(broker, group="b")
        receiver.ack([delivery])
        assert [counts.group for counts in broker.counts("q")] == ["a"]

    def test_a_receiver_is_woken_from_another_process(self, tmp_path):
        with EmbeddedBroker(tmp_path / "queues") as broker:
            declare(broker)
        pid = fork(lambda: _publish_when_told(tmp_path))
        with EmbeddedBroker(tmp_path / "queues") as broker:
            receiver = broker.receiver("q")
            (tmp_path / "told").touch()
            [delivery] = receiver.receive(timeout=60)
            assert delivery.message.body == b"from a child"
        assert wait_for(pid) == 0

    def test_many_threads_wait_with_one_watch(self, tmp_path):
        with EmbeddedBroker(tmp_path / "queues") as broker:
            declare(broker)
            found: list[bytes] = []

            def work() -> None:
                receiver = broker.receiver("q")
                deliveries = receiver.receive(timeout=60)
                receiver.ack(deliveries)
                found.extend(delivery.message.body for delivery in deliveries)

            threads = [threading.Thread(target=work) for _ in range(20)]
            for thread in threads:
                thread.start()
            for number in range(20):
                broker.publish("q", [Outgoing(str(number).encode())])
            for thread in threads:
                thread.join(timeout=60)
        assert sorted(map(int, found)) == list(range(20))

    def test_closing_a_broker_lets_those_who_wait_go(self, tmp_path):
        broker = declare(EmbeddedBroker(tmp_path / "queues"))
        receivers = [broker.receiver("q") for _ in range(3)]
        threads = [threading.Thread(target=_receive_until_closed, args=(each,)) for each in receivers]
        for thread in threads:
            thread.start()
        broker.close()
        for thread in threads:
            thread.join(timeout=30)
            assert not thread.is_alive()

    def test_a_process_that_was_forked_is_refused(self, tmp_path):
        with declare(EmbeddedBroker(tmp_path / "queues")) as broker:

            def child() -> None:
                for other in (broker, EmbeddedBroker(tmp_path / "queues")):
                    with pytest.raises(UsageError, match="forked"):
                        other.publish("q", [Outgoing(b"1")])

            assert wait_for(fork(child)) == 0


def _publish_when_told(folder: Path) -> None:
    until((folder / "told").exists)
    EmbeddedBroker(folder / "queues").publish("q", [Outgoing(b"from a child")])


def _receive_until_closed(receiver: EmbeddedReceiver) -> None:
    with contextlib.suppress(UsageError):
        assert receiver.receive(timeout=None) == []


class TestClocks:
    @pytest.mark.parametrize("hours", [-48, 48])
    def test_setting_the_wall_clock_changes_nothing(self, tmp_path, hours):
        clock = SimulatedClock()
        with EmbeddedBroker(tmp_path, clock) as broker:
            declare(broker, visible="1 minute")
            broker.publish("q", [Outgoing(b"now"), Outgoing(b"later", delay=timedelta(minutes=10))])
            receiver, [delivery] = taken(broker)
            clock.jump(hours * 3600 * 1_000_000)
            assert taken(broker)[1] == []  # forward: neither is anything taken away, nor delivered early
            clock.advance(59 * 1_000_000)
            assert receiver.extend(delivery) is Settled.DONE
            assert abs(delivery.until - clock.now() - timedelta(hours=-hours)) < timedelta(minutes=2)
            clock.advance(61 * 1_000_000)
            assert [each.message.body for each in taken(broker)[1]] == [b"now"]  # back: nothing stays away
            clock.advance(9 * 60 * 1_000_000)
            assert b"later" in [each.message.body for each in taken(broker)[1]]

    def test_time_does_not_go_back_when_the_machine_starts_with_a_wrong_clock(self, tmp_path):
        clock = SimulatedClock()
        with EmbeddedBroker(tmp_path, clock) as broker:
            declare(broker)
            clock.advance(3_600 * 1_000_000)
            broker.publish("q", [Outgoing(b"1", delay=timedelta(seconds=10))])
        clock.jump(-365 * 86_400 * 1_000_000)
        clock.reboot()
        with EmbeddedBroker(tmp_path, clock) as broker:
            assert taken(broker)[1] == []
            clock.advance(10 * 1_000_000)
            assert len(taken(broker)[1]) == 1

    def test_time_off_counts_when_the_machine_starts_again(self, tmp_path):
        clock = SimulatedClock()
        with EmbeddedBroker(tmp_path, clock) as broker:
            declare(broker)
            clock.advance(3_600 * 1_000_000)
            broker.publish("q", [Outgoing(b"1", delay=timedelta(hours=2))])
        clock.jump(3 * 3_600 * 1_000_000)
        clock.reboot()
        with EmbeddedBroker(tmp_path, clock) as broker:
            assert len(taken(broker)[1]) == 1

    def test_a_receiver_that_waits_wakes_when_a_message_becomes_due(self, tmp_path):
        with declare(EmbeddedBroker(tmp_path)) as broker:
            broker.publish("q", [Outgoing(b"1", delay=timedelta(milliseconds=200))])
            assert len(broker.receiver("q").receive(timeout=60)) == 1

    def test_a_clock_in_the_hand_of_a_test_wakes_receivers_when_told(self, broker, clock):
        declare(broker)
        broker.publish("q", [Outgoing(b"1", delay=timedelta(hours=1))])
        found: list[Delivery] = []
        receiver = broker.receiver("q")
        thread = threading.Thread(target=lambda: found.extend(receiver.receive(timeout=60)))
        thread.start()
        clock.advance("1 hour")
        broker.wake("q")
        thread.join(timeout=60)
        assert len(found) == 1

    def test_more_than_one_transaction_moves_may_become_due_at_once(self, broker, pass_time):
        declare(broker, durability="fast", visible="1 minute")
        broker.publish("q", [Outgoing(b"old", ttl=timedelta(seconds=1))] * 1_200)
        broker.publish("q", [Outgoing(b"new")])
        pass_time(2)
        assert [each.message.body for each in taken(broker)[1]] == [b"new"]
        broker.publish("q", [Outgoing(b"later", delay=timedelta(seconds=1))] * 1_200)
        pass_time(2)
        [found] = broker.counts("q")
        assert (found.waiting, found.delayed, found.in_flight, found.expired) == (1_200, 0, 1, 1_200)


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
            ({"words": "a\ud800"}, BadEventError),
            ({"delay": timedelta(seconds=-1)}, BadEventError),
            ({"ttl": timedelta(days=400_000)}, BadEventError),
        ],
    )
    def test_a_message_that_cannot_be_is_refused_with_all_of_its_call(self, broker, about, error):
        declare(broker)
        with pytest.raises(error) as caught:
            broker.publish("q", [Outgoing(b"good"), Outgoing(**{"body": b"1", **about})])
        assert caught.value.data.get("row", 1) == 1
        assert broker.counts("q")[0].published == 0

    def test_names_that_clash_are_refused(self, broker):
        declare(broker)
        with pytest.raises(BadNameError):
            broker.declare(Queue.declare("Q"))

    def test_a_closed_broker_says_so(self, broker):
        declare(broker)
        receiver = broker.receiver("q")
        broker.close()
        with pytest.raises(UsageError, match="closed"):
            broker.publish("q", [Outgoing(b"1")])
        assert receiver.receive() == []

    def test_a_prefetch_of_nothing_is_refused(self, broker):
        with pytest.raises(BadSettingError):
            declare(broker).receiver("q", prefetch=0)


class TestCost:
    @pytest.mark.parametrize("ordered", [False, True])
    def test_taking_and_acknowledging_cost_the_same_however_many_wait(self, broker, ordered):
        declare(broker, durability="fast", ordered=ordered)
        few = self.steps(broker, 100)
        many = self.steps(broker, 20_000)
        assert many <= few * 1.2

    def steps(self, broker: EmbeddedBroker, waiting: int) -> int:
        """Instructions of SQLite's machine for ten messages, with so many waiting."""
        for first in range(0, waiting, 1_000):
            number = min(1_000, waiting - first)
            broker.publish("q", [Outgoing(b"1", key=str(at % 50), priority=at % 3) for at in range(number)])
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        connection = broker._file("q")._connection
        connection.set_progress_handler(count, 1)
        receiver = broker.receiver("q")
        for _ in range(10):
            assert receiver.ack(receiver.receive()) == [Settled.DONE]
        connection.set_progress_handler(None, 1)
        receiver.close()
        return steps
