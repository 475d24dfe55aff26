"""What a queue's file holds: each body once, nothing of messages that are done; and files that are damaged."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import DamagedError, DiskFullError, NewerFormatError, UnknownQueueError
from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.protocol import OutgoingMessage
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


def test_a_file_that_is_no_queue_is_an_error_of_ours(tmp_path):
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


def test_a_full_disk_is_told_and_harms_nothing(broker):
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
