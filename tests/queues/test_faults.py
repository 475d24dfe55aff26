"""A full queue (F31), a disk that fails, and what a confirmation promises when the power goes."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from headwater.errors import DiskFailedError, OverloadedError
from headwater.log import Overload, backpressure, buffer, drop
from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.protocol import OutgoingMessage
from tests.faults.counts import times
from tests.faults.processes import fork, wait_for
from tests.queues.given import numbered, opened

LIMIT = times(60, 3_000)


def offered_by_processes(folder: Path, number: int) -> Counter[str]:
    """Two processes publish so many messages in all; what became of each, as they were told."""

    def publisher(name: str) -> None:
        told: Counter[str] = Counter()
        broker = EmbeddedBroker(folder)
        for message in numbered(0, number // 2):
            try:
                [confirmed] = broker.publish("q", [message])
                told["dropped" if confirmed.dropped else "taken"] += 1
            except OverloadedError:
                told["refused"] += 1
        (folder / name).write_text("\n".join(told.elements()))

    children = [fork(lambda name=name: publisher(name)) for name in ("one", "two")]
    assert [wait_for(pid) for pid in children] == [0, 0]
    return Counter(word for name in ("one", "two") for word in (folder / name).read_text().split())


@pytest.mark.parametrize(
    ("policy", "lost"),
    [(drop("newest"), "dropped"), (buffer(LIMIT, then=drop("newest")), "dropped"), (backpressure("1 ms"), "refused")],
    ids=str,
)
def test_a_queue_offered_three_times_its_limit_counts_exactly(tmp_path, policy: Overload, lost: str):
    opened(tmp_path, limit=LIMIT, overload=policy, durability="fast").close()
    told = offered_by_processes(tmp_path, 3 * LIMIT)
    assert told == {"taken": LIMIT, lost: 2 * LIMIT}
    with EmbeddedBroker(tmp_path) as broker:
        [found] = broker.counts("q")
        assert found.waiting == LIMIT
        assert found.dropped == (2 * LIMIT if lost == "dropped" else 0)
        assert found.published == found.waiting + found.dropped


def test_a_queue_that_drops_the_oldest_keeps_the_newest_and_counts_the_others(tmp_path):
    opened(tmp_path, limit=LIMIT, overload=drop("oldest"), durability="fast").close()
    assert offered_by_processes(tmp_path, 3 * LIMIT) == {"taken": 3 * LIMIT}
    with EmbeddedBroker(tmp_path) as broker:
        [found] = broker.counts("q")
        assert (found.waiting, found.dropped, found.published) == (LIMIT, 2 * LIMIT, 3 * LIMIT)


def test_a_sampled_queue_never_holds_more_than_its_limit_and_counts_the_others(tmp_path):
    opened(tmp_path, limit=LIMIT, overload=drop("sampled", one_in=4), durability="fast").close()
    told = offered_by_processes(tmp_path, 3 * LIMIT)
    with EmbeddedBroker(tmp_path) as broker:
        [found] = broker.counts("q")
        assert (found.waiting, found.dropped) == (told["taken"], told["dropped"])
        assert LIMIT // 2 <= found.waiting <= LIMIT
        assert found.waiting + found.dropped == found.published == 3 * LIMIT


def test_publishers_that_wait_for_room_lose_nothing(tmp_path):
    with opened(tmp_path, limit=5, overload=backpressure(), durability="fast") as broker:
        threads = [
            threading.Thread(target=lambda first=first: [broker.publish("q", [m]) for m in numbered(first, 20)])
            for first in (0, 20, 40)
        ]
        for thread in threads:
            thread.start()
        receiver, found = broker.receiver("q", prefetch=3), []
        while len(found) < 60:
            deliveries = receiver.receive(timeout=30, max_messages=3)
            assert broker.counts("q")[0].waiting <= 5
            found += [int(delivery.message.body) for delivery in deliveries]
            receiver.ack(deliveries)
        for thread in threads:
            thread.join(timeout=30)
        assert sorted(found) == list(range(60))


def test_a_call_with_more_messages_than_the_queue_holds_is_refused_at_once(tmp_path):
    with opened(tmp_path, limit=5) as broker:
        with pytest.raises(OverloadedError) as caught:
            broker.publish("q", numbered(0, 6))
        assert caught.value.data["limit"] == 5
        assert broker.counts("q")[0].published == 0


def test_room_is_counted_for_each_group(tmp_path):
    with opened(tmp_path, limit=2, overload=drop("newest"), groups=["fast", "slow"]) as broker:
        broker.publish("q", numbered(0, 2))
        receiver = broker.receiver("q", "fast", prefetch=2)
        receiver.ack(receiver.receive(max_messages=2))
        [confirmed] = broker.publish("q", numbered(2, 1))
        assert (confirmed.groups, confirmed.dropped) == (1, True)
        counts = {each.group: each for each in broker.counts("q")}
        assert (counts["fast"].waiting, counts["fast"].dropped) == (1, 0)
        assert (counts["slow"].waiting, counts["slow"].dropped) == (2, 1)


def test_a_message_that_was_dropped_may_be_published_again(tmp_path):
    with opened(tmp_path, limit=1, overload=drop("newest")) as broker:
        broker.publish("q", numbered(0, 1))
        assert broker.publish("q", [OutgoingMessage(b"1", id="x")])[0].dropped
        receiver = broker.receiver("q")
        receiver.ack(receiver.receive())
        again = broker.publish("q", [OutgoingMessage(b"1", id="x")])[0]
        assert (again.dropped, again.duplicate) == (False, False)


def test_a_confirmed_message_survives_a_power_cut(tmp_path, monkeypatch):
    folder, image = tmp_path / "queues", tmp_path / "image"
    sync = os.fdatasync

    def sync_and_keep(handle: int) -> None:
        """What is on the disk once the sync is done: the power may go at any moment after it."""
        sync(handle)
        shutil.rmtree(image, ignore_errors=True)
        shutil.copytree(folder, image, ignore=shutil.ignore_patterns("*-shm"))

    with opened(folder) as broker:
        monkeypatch.setattr(os, "fdatasync", sync_and_keep)
        receiver = broker.receiver("q", prefetch=100)
        for number in range(times(15, 200)):
            broker.publish("q", numbered(number, 1))
            if number % 5 == 4:
                receiver.ack(receiver.receive(max_messages=3))
            with EmbeddedBroker(image) as after:
                there = {
                    delivery.message.body for delivery in after.receiver("q", prefetch=999).receive(max_messages=999)
                }
                assert str(number).encode() in there


@pytest.mark.parametrize(("durability", "syncs"), [("durable", 3), ("fast", 0), ("memory", 0)])
def test_only_durable_queues_wait_for_the_disk(tmp_path, monkeypatch, durability, syncs):
    called = []
    with opened(tmp_path, durability=durability) as broker:
        monkeypatch.setattr(os, "fdatasync", called.append)
        for number in range(3):
            broker.publish("q", numbered(number, 1))
        receiver = broker.receiver("q")
        receiver.ack(receiver.receive())
        assert len(called) == syncs
        broker.delete("q")


def test_threads_that_publish_together_share_syncs(tmp_path, monkeypatch):
    called, sync = [], os.fdatasync
    with opened(tmp_path) as broker:
        monkeypatch.setattr(os, "fdatasync", lambda handle: (called.append(handle), sync(handle)))
        threads = [
            threading.Thread(target=lambda: [broker.publish("q", numbered(0, 1)) for _ in range(10)]) for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert broker.counts("q")[0].waiting == 160
    assert len(called) < 160


def test_a_sync_that_fails_confirms_nothing_and_the_next_writes_everything_anew(tmp_path, monkeypatch):
    def failing(handle: int) -> None:
        raise OSError(errno.EIO, "no")

    with opened(tmp_path) as broker:
        wal = tmp_path / "q" / "messages.db-wal"
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", failing)
            with pytest.raises(DiskFailedError):
                broker.publish("q", [OutgoingMessage(b"1", id="x")])
        written = wal.stat().st_size
        assert broker.publish("q", [OutgoingMessage(b"1", id="x")])[0].duplicate
        assert wal.stat().st_size < written  # its content is in the main file now, synced there
        assert broker.counts("q")[0].waiting == 1
