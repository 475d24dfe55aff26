"""Processes and threads that share a queue notify and release each other."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from headwater.errors import UsageError
from headwater.queues.embedded import EmbeddedBroker, EmbeddedReceiver
from headwater.queues.protocol import OutgoingMessage
from tests.faults.processes import fork, until, wait_for
from tests.queues.given import declare, taken


def test_a_definition_changed_elsewhere_holds_at_once(broker, tmp_path, clock):
    declare(broker, groups=["a"])
    broker.publish("q", [OutgoingMessage(b"1")])
    with EmbeddedBroker(tmp_path / "queues", clock) as other:
        declare(other, groups=["a", "b"])
    assert broker.publish("q", [OutgoingMessage(b"2")])[0].groups == 2
    assert {counts.group: counts.waiting for counts in broker.counts("q")} == {"a": 2, "b": 1}


def test_a_group_that_is_not_declared_any_more_keeps_what_it_has(broker):
    declare(broker, groups=["a", "b"])
    broker.publish("q", [OutgoingMessage(b"1")])
    declare(broker, groups=["a"])
    assert broker.publish("q", [OutgoingMessage(b"2")])[0].groups == 1
    receiver, [delivery] = taken(broker, group="b")
    receiver.ack([delivery])
    assert [counts.group for counts in broker.counts("q")] == ["a"]


def test_a_receiver_is_woken_from_another_process(tmp_path):
    with EmbeddedBroker(tmp_path / "queues") as broker:
        declare(broker)
    pid = fork(lambda: _publish_when_told(tmp_path))
    with EmbeddedBroker(tmp_path / "queues") as broker:
        receiver = broker.receiver("q")
        (tmp_path / "told").touch()
        [delivery] = receiver.receive(timeout=60)
        assert delivery.message.body == b"from a child"
    assert wait_for(pid) == 0


@pytest.mark.parametrize("change", ["publish", "nack", "close", "ack", "reject", "redrive", "extend", "declare"])
def test_waiting_receivers_are_notified_of_every_deliverable_message(broker, change):
    declare(broker, ordered=True, groups=["a"])
    broker.publish("q", [OutgoingMessage(b"1", key="k"), OutgoingMessage(b"2", key="k")])
    receiver, [delivery] = taken(broker, group="a")
    if change == "redrive":
        receiver.reject(delivery)
    notifier = broker._file("q").notifier
    while notifier.wait(notifier.generation(), 0.05):
        pass
    heard = notifier.generation()
    {
        "publish": lambda: broker.publish("q", [OutgoingMessage(b"3")]),
        "nack": lambda: receiver.nack(delivery),
        "close": receiver.close,
        "ack": lambda: receiver.ack([delivery]),  # the next of its key
        "reject": lambda: receiver.reject(delivery),
        "redrive": lambda: broker.redrive("q", broker.dead_letters("q")),
        "extend": lambda: receiver.extend(delivery, timedelta(seconds=1)),  # a timer that comes sooner
        "declare": lambda: declare(broker, groups=["a", "b"], ordered=True),
    }[change]()
    assert notifier.wait(heard, 10)


def test_receiving_and_acknowledging_the_last_message_notifies_nobody(broker):
    declare(broker)
    broker.publish("q", [OutgoingMessage(b"1")])
    notifier = broker._file("q").notifier
    while notifier.wait(notifier.generation(), 0.05):
        pass
    heard = notifier.generation()
    receiver, deliveries = taken(broker)
    receiver.ack(deliveries)
    assert not notifier.wait(heard, 0.05)


def test_many_threads_wait_with_one_watch(tmp_path):
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
            broker.publish("q", [OutgoingMessage(str(number).encode())])
        for thread in threads:
            thread.join(timeout=60)
    assert sorted(map(int, found)) == list(range(20))


def test_closing_a_broker_releases_waiting_receivers(tmp_path):
    broker = declare(EmbeddedBroker(tmp_path / "queues"))
    receivers = [broker.receiver("q") for _ in range(3)]
    threads = [threading.Thread(target=_receive_until_closed, args=(each,)) for each in receivers]
    for thread in threads:
        thread.start()
    broker.close()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_a_forked_process_is_refused(tmp_path):
    with declare(EmbeddedBroker(tmp_path / "queues")) as broker:

        def child() -> None:
            for other in (broker, EmbeddedBroker(tmp_path / "queues")):
                with pytest.raises(UsageError) as caught:
                    other.publish("q", [OutgoingMessage(b"1")])
                assert type(caught.value) is UsageError

        assert wait_for(fork(child)) == 0


def _publish_when_told(folder: Path) -> None:
    until((folder / "told").exists)
    EmbeddedBroker(folder / "queues").publish("q", [OutgoingMessage(b"from a child")])


def _receive_until_closed(receiver: EmbeddedReceiver) -> None:
    with contextlib.suppress(UsageError):
        assert receiver.receive(timeout=None) == []
