"""Bridges from topics to queues and back: each event and message arrives once, whichever process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.client import Client
from headwater.errors import BadAppError, DiskFullError
from headwater.log.storage.producers import ProducerState
from headwater.queues import Bridge, TargetKind
from headwater.workers.bridge import open_runner
from tests.client.failing_producer import FailingAppends
from tests.faults.counts import FULL

INTO_QUEUE = Bridge("orders", "parcels", TargetKind.QUEUE)
INTO_TOPIC = Bridge("parcels", "sent", TargetKind.TOPIC)
CARRY = """
import faulthandler, os, sys
faulthandler.dump_traceback_later(100, exit=True)  # a process that hangs says where, also while it ends
import headwater as hw
from headwater.queues import Bridge, TargetKind
from headwater.workers.bridge import open_runner
step, into = int(sys.argv[2]), TargetKind(sys.argv[3])
client = hw.connect(sys.argv[1])
bridge = Bridge("orders", "parcels", into) if into is TargetKind.QUEUE else Bridge("parcels", "sent", into)
seen = 0
def count(*_):
    global seen
    seen += 1
    if seen == step:
        os.kill(os.getpid(), 9)
carrying = open_runner(client, bridge)
sys.setprofile(lambda frame, event, arg: count() if event in ("call", "return") else None)
while carrying.run_once(0):
    pass
sys.setprofile(None)
carrying.close()
print(seen)
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with hw.connect(tmp_path) as client:
        client.create_topic("orders", "n int", partitions=3, key="n")
        client.create_topic("sent", "n int", partitions=2)
        client.create_queue("parcels", groups=["work", INTO_TOPIC.group])
        yield client


def carried(client: Client, bridge: Bridge) -> int:
    carrying = open_runner(client, bridge)
    total = 0
    while done := carrying.run_once(0):
        total += done
    carrying.close()
    return total


def received(client: Client, group: str) -> list[Any]:
    found = []
    with client.queue("parcels", group=group) as queue:
        while message := queue.receive(0):
            found.append((message.id, message.value))
            message.ack()
    return found


def test_every_event_becomes_a_message_with_its_position_as_id(client: Client):
    client.send_many("orders", [{"n": n} for n in range(20)])
    assert carried(client, INTO_QUEUE) == 20
    expected = {(f"orders/{event.partition}/{event.offset}", event.value["n"]) for event in client.read("orders")}
    assert {(id, value["n"]) for id, value in received(client, "work")} == expected
    assert carried(client, INTO_QUEUE) == 0
    assert client.lag(INTO_QUEUE.group)[0].events == 0


def test_events_that_the_group_reads_again_are_left_out_however_late(client: Client, tmp_path: Path):
    client.send_many("orders", [{"n": n} for n in range(20)])
    carried(client, INTO_QUEUE)
    received(client, "work")
    client.reset(INTO_QUEUE.group, "orders", "earliest")
    assert carried(client, INTO_QUEUE) == 20
    assert received(client, "work") == []


def test_every_message_becomes_an_event_beside_what_workers_get(client: Client):
    with client.queue("parcels") as queue:
        queue.publish_many([{"n": n} for n in range(20)])
    assert carried(client, INTO_TOPIC) == 20
    assert sorted(event.value["n"] for event in client.read("sent")) == list(range(20))
    assert len(received(client, "work")) == 20
    counts = {each.group: each for each in client.broker.counts("parcels")}
    assert (counts[INTO_TOPIC.group].acked, counts[INTO_TOPIC.group].in_flight) == (20, 0)


def test_a_message_that_the_topic_refuses_is_a_dead_letter_with_the_reason(client: Client):
    with client.queue("parcels") as queue:
        queue.publish_many([{"n": 1}, {"n": "many"}, {"n": 2}])
    assert carried(client, INTO_TOPIC) == 3
    assert sorted(event.value["n"] for event in client.read("sent")) == [1, 2]
    (letter,) = client.broker.dead_letters("parcels")
    assert (letter.group, letter.why, letter.message.body) == (INTO_TOPIC.group, "rejected", b'{"n":"many"}')
    assert [attempt.worker for attempt in letter.attempts] == [INTO_TOPIC.name]
    assert letter.attempts[0].why


def test_messages_after_one_whose_append_fails_are_copied_with_it(client: Client):
    with client.queue("parcels") as queue:
        queue.publish_many([{"n": n} for n in range(20)])
    client.log = FailingAppends(client.log, failing=lambda number: number == 3)  # type: ignore[assignment]
    bridge = open_runner(client, INTO_TOPIC)
    with pytest.raises(DiskFullError):
        bridge.run_once(0)
    assert bridge.run_once(0) == 20
    bridge.close()
    assert sorted(event.value["n"] for event in client.read("sent")) == list(range(20))


def test_the_id_of_a_bridge_is_never_forgotten(client: Client):
    with client.queue("parcels") as queue:
        queue.publish_many([{"n": n} for n in range(20)])
    carried(client, INTO_TOPIC)
    producers, long_after = ProducerState(), 1 << 60
    partition = client.log.open_topic("sent").partitions[0]  # type: ignore[attr-defined]
    for frame in partition.frame_headers(0, partition.state().next_offset):
        producers.record(frame)
    known = producers.snapshot()
    producers.remove_expired(long_after)
    assert producers.snapshot() == known != {}


def test_a_full_queue_makes_the_bridge_wait(client: Client):
    client.create_queue("small", limit=5, overload=hw.backpressure(timeout="1 ms"))
    client.send_many("orders", [{"n": n} for n in range(12)])
    carrying = open_runner(client, Bridge("orders", "small", TargetKind.QUEUE))
    taken = []
    for _ in range(20):
        carrying.run_once(0)
        with client.queue("small") as queue:
            while message := queue.receive(0):
                taken.append(message.value["n"])
                message.ack()
    carrying.close()
    assert sorted(taken) == list(range(12))


@pytest.mark.parametrize("into", list(TargetKind))
def test_killed_at_any_step_each_arrives_once(client: Client, tmp_path: Path, into: TargetKind):
    """A process that carries is killed at one step, the next one a little later, until one gets to its end."""

    def run(step: int) -> str:
        command = [sys.executable, "-c", CARRY, str(tmp_path), str(step), into]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        return ended.stdout

    def offer(start: int) -> None:
        rows = [{"n": n} for n in range(start, start + 7)]
        if into is TargetKind.QUEUE:
            client.send_many("orders", rows)
        else:
            with client.queue("parcels") as queue:
                queue.publish_many(rows)

    offer(0)
    steps = int(run(0))  # how many there are when nothing is killed
    times = 40 if FULL else 6
    for turn in range(1, times + 1):
        offer(7 * turn)
        run(turn * steps // (times + 1))
    assert run(0)
    found = (
        [value["n"] for _, value in received(client, "work")]
        if into is TargetKind.QUEUE
        else [event.value["n"] for event in client.read("sent")]
    )
    assert sorted(found) == list(range(7 * (times + 1)))


def test_an_app_bridges_a_topic_to_a_queue_and_a_queue_to_a_topic():
    app = hw.App("shop")
    orders, parcels = app.topic("orders", "n int"), app.queue("parcels")
    sent = app.topic("sent", "n int")

    @parcels.worker
    def pack(parcel: dict[str, Any]) -> None: ...

    assert [app.bridge(orders, parcels).name, app.bridge(parcels, sent).name] == [
        "orders to parcels",
        "parcels to sent",
    ]
    assert [group.name for group in parcels.definition.groups] == ["", "to-sent"]
    for wrong in ((orders, sent), (parcels, parcels)):
        with pytest.raises(BadAppError) as caught:
            app.bridge(*wrong)
        assert caught.value.fix == "app.bridge(orders, parcels)"
    for wrong in ((orders, parcels), (app.table("articles", "n int", key="n"), parcels)):
        with pytest.raises(BadAppError) as caught:
            app.bridge(*wrong)
        assert "app.bridge(*wrong)" in caught.value.location.source
    assert len(app.bridges) == 2
