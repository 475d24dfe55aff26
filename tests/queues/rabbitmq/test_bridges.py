"""Bridges to and from queues on RabbitMQ: at least once, with ids that identify repeats."""

from __future__ import annotations

import pytest

import headwater as hw
from headwater.queues import Bridge, TargetKind
from headwater.workers.bridge import open_runner

pytestmark = pytest.mark.services


def carried(client: hw.Client, bridge: Bridge, wanted: int) -> None:
    carrying = open_runner(client, bridge)
    total = 0
    while total < wanted:
        total += carrying.run_once(30)
    carrying.close()


def test_events_become_messages_and_messages_events(rabbit, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWATER_QUEUES", rabbit.url())
    into_queue, into_topic = Bridge("orders", name, TargetKind.QUEUE), Bridge(name, "sent", TargetKind.TOPIC)
    with hw.connect() as client:
        client.create_topic("orders", "n int", partitions=2, key="n")
        client.create_topic("sent", "n int")
        client.create_queue(name, groups=["work", into_topic.group])
        client.send_many("orders", [{"n": n} for n in range(20)])
        carried(client, into_queue, 20)
        client.reset(into_queue.group, "orders", "earliest")  # as if it had been killed before it committed its offsets
        carried(client, into_queue, 20)
        with client.queue(name) as queue:
            queue.publish({"n": "many"})
        carried(client, into_topic, 41)
        events = list(client.read("sent"))
        assert sorted({event.value["n"] for event in events}) == list(range(20))
        assert len({event.id for event in events}) == 20
        places = {f"orders/{event.partition}/{event.offset}" for event in client.read("orders")}
        assert {event.id for event in events} == places
        (letter,) = client.broker.dead_letters(name, into_topic.group)
        assert (letter.why, letter.message.body) == ("rejected", b'{"n":"many"}')
