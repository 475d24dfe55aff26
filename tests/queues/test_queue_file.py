"""The file of a queue: what it stores, damage, deletion, and the clock that measures delays and visibility."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import DamagedError, DiskFullError, NewerFormatError, UnknownQueueError
from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.protocol import AckResult, Delivery, OutgoingMessage
from tests.faults.simulated_clock import SimulatedClock
from tests.queues.given import declare, taken


def stored(folder: Path, question: str) -> list[tuple[Any, ...]]:
    """What is in the file of the queue, as another program sees it."""
    with contextlib.closing(sqlite3.connect(folder / "queues" / "q" / "messages.db")) as connection:
        return connection.execute(question).fetchall()


def test_a_body_is_stored_once_and_gone_with_its_last_group(broker, tmp_path):
    declare(broker, groups=["a", "b"])
    broker.publish("q", [OutgoingMessage(b"1")])
    assert stored(tmp_path, "SELECT body FROM message") == [(b"1",)]
    for group, left in (("a", 1), ("b", 0)):
        receiver, deliveries = taken(broker, group=group)
        receiver.ack(deliveries)
        assert stored(tmp_path, "SELECT count(*) FROM message") == [(left,)]


def test_nothing_at_all_is_left_of_messages_that_are_done(broker, tmp_path, pass_time):
    declare(broker, groups=["a", "b"], ordered=True, deduplication_window="1s")
    for number in range(20):
        about = {"key": str(number % 3), "ttl": timedelta(hours=1), "id": f"m-{number}"}
        broker.publish("q", [OutgoingMessage(b"1", **about)])
    for group in "ab":
        for outcome in ("nack", "reject", "ack", "ack", "ack", "ack", "ack", "ack", "ack", "ack", "ack"):
            receiver, deliveries = taken(broker, group=group)
            for delivery in deliveries:
                receiver.ack([delivery]) if outcome == "ack" else getattr(receiver, outcome)(delivery, "no")
    letters = list(broker.dead_letters("q"))
    assert broker.redrive("q", letters) == len(letters) == 6
    for group in "ab":
        receiver, deliveries = taken(broker, group=group)
        receiver.ack(deliveries)
    pass_time(2)
    for _ in range(64):
        broker.counts("q")
    for table in ("message", "delivery", "line", "expiry", "seen", "attempt", "dead"):
        assert stored(tmp_path, f"SELECT count(*) FROM {table}") == [(0,)], table


def test_the_file_shrinks_when_messages_have_gone(broker, tmp_path):
    declare(broker, durability="fast")
    for _ in range(30):
        broker.publish("q", [OutgoingMessage(b"." * 4_000)] * 100)
    [(full,)] = stored(tmp_path, "PRAGMA page_count")
    receiver = broker.receiver("q", prefetch=20)
    while deliveries := receiver.receive(max_messages=20):
        receiver.ack(deliveries)
    [(empty,)] = stored(tmp_path, "PRAGMA page_count")
    assert empty < full * 0.9


def test_counts_are_there_after_a_restart(broker, tmp_path, clock):
    declare(broker)
    broker.publish("q", [OutgoingMessage(b"1")] * 5)
    receiver, [first, second, third] = taken(broker, 3)
    receiver.ack([first])
    receiver.reject(second)
    receiver.nack(third)
    before = broker.counts("q")
    broker.close()
    with EmbeddedBroker(tmp_path / "queues", clock) as again:
        assert again.counts("q") == before
        _, [delivery, *_] = taken(again)
        assert (delivery.attempt, delivery.is_redelivery) == (2, True)


def test_a_queue_is_declared_anew_by_every_process_that_uses_it(broker, tmp_path, clock):
    declare(broker, groups=["a", "b"])
    broker.publish("q", [OutgoingMessage(b"1")])
    for groups in (["a", "b"], ["a", "b"], ["b", "a"]):
        with EmbeddedBroker(tmp_path / "queues", clock) as again:
            declare(again, groups=groups)
            assert {counts.group: counts.waiting for counts in again.counts("q")} == {"a": 1, "b": 1}


def test_a_file_that_is_not_a_queue_raises_damaged_error(tmp_path):
    folder = tmp_path / "queues" / "q"
    folder.mkdir(parents=True)
    (folder / "messages.db").write_bytes(b"nonsense" * 1_000)
    with EmbeddedBroker(tmp_path / "queues") as broker, pytest.raises(DamagedError):
        broker.counts("q")


def test_nothing_stays_open_of_a_file_that_could_not_be_opened(tmp_path):
    folder = tmp_path / "queues" / "q"
    folder.mkdir(parents=True)
    (folder / "messages.db").write_bytes(b"nonsense" * 1_000)
    before = len(os.listdir("/dev/fd"))
    with EmbeddedBroker(tmp_path / "queues") as broker:
        for _ in range(5):
            with pytest.raises(DamagedError):
                broker.counts("q")
    assert len(os.listdir("/dev/fd")) == before


def test_a_queue_of_a_newer_version_is_not_touched(broker, tmp_path, clock):
    declare(broker).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "queues/q/messages.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with EmbeddedBroker(tmp_path / "queues", clock) as again, pytest.raises(NewerFormatError):
        declare(again)


def test_a_full_disk_raises_an_error_and_loses_nothing(broker):
    declare(broker)
    broker.publish("q", [OutgoingMessage(b"before")])
    connection = broker._file("q")._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(DiskFullError):
        broker.publish("q", [OutgoingMessage(b"." * 100_000)])
    connection.execute("PRAGMA max_page_count = 1000000")
    broker.publish("q", [OutgoingMessage(b"after")])
    assert [delivery.message.body for delivery in taken(broker)[1]] == [b"before", b"after"]


def test_a_queue_in_memory_is_lost_with_the_memory_only(broker, tmp_path, clock):
    declare(broker, durability="memory")
    broker.publish("q", [OutgoingMessage(b"1")])
    broker.close()
    link = tmp_path / "queues/q/messages.db"
    assert link.is_symlink()
    with EmbeddedBroker(tmp_path / "queues", clock) as again:
        assert again.counts("q")[0].waiting == 1
    for path in link.resolve().parent.glob(f"{link.resolve().name}*"):
        path.unlink()
    with EmbeddedBroker(tmp_path / "queues", clock) as again:
        assert again.queues() == []
        declare(again, durability="memory")
        assert again.counts("q")[0].waiting == 0
        again.delete("q")


@pytest.mark.parametrize("durability", ["durable", "memory"])
def test_a_queue_that_is_deleted_is_gone_for_everybody(broker, tmp_path, clock, durability):
    declare(broker, durability=durability)
    broker.publish("q", [OutgoingMessage(b"1")] * 2)
    target = (tmp_path / "queues/q/messages.db").resolve()
    with EmbeddedBroker(tmp_path / "queues", clock) as other:
        receiver, [delivery] = taken(other, 1)
        taken(broker, 1)
        broker.delete("q")
        assert broker.queues() == other.queues() == []
        assert not list(target.parent.glob(f"{target.name}*"))
        with pytest.raises(UnknownQueueError):
            receiver.ack([delivery])
        for each in (broker, other):
            with pytest.raises(UnknownQueueError):
                each.publish("q", [OutgoingMessage(b"2")])
        declare(other)
        assert broker.counts("q")[0].published == 0
    assert list((tmp_path / "queues").iterdir()) == [tmp_path / "queues" / "q"]


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


def test_delays_pass_while_the_machine_is_off(tmp_path):
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


def test_notify_wakes_receivers_after_a_test_clock_advanced(broker, clock):
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
