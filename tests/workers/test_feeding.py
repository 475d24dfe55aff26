"""A topic feeds a queue, and a queue a topic: nothing is lost, nothing comes twice, whatever dies in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

import headwater as hw
from headwater.errors import BadAppError, BadSettingError, BadWorkerError, FencedError
from headwater.testing import run
from headwater.workers.feeding import feeder

LONG = 60.0


SHOP = """
import headwater as hw

app = hw.App("shop")
orders = app.topic("orders", "n int, country string", key="country", partitions=3)
shipped = app.topic("shipped", "n int, country string", partitions=2)
parcels = app.queue("parcels", "n int, country string", visible="1 second")
app.feed(orders, parcels)
app.feed(parcels, shipped, group="log")
"""


def shop() -> hw.App:
    names: dict[str, hw.App] = {}
    exec(SHOP, names)
    return names["app"]


def order(n: int) -> dict[str, object]:
    return {"n": n, "country": ["de", "fr", "us"][n % 3]}


def test_events_become_messages_and_messages_events_with_stable_ids():
    with run(shop()) as world:
        world.send("orders", *map(order, range(100)))
        world.settle()
        sent = {event.id: event.value for event in world.client.read("orders")}
        came = {event.id: event.value for event in world.client.read("shipped")}
        (counts,) = world.queue("parcels").counts()
    assert came == sent
    assert (counts.published, counts.acked) == (100, 100)


def test_a_message_that_is_no_event_of_the_topic_is_a_dead_letter():
    app = hw.App("shop")
    app.feed(app.queue("any"), app.topic("numbers", "n int not null"))
    with run(app) as world:
        queue = world.queue("any")
        queue.publish_many([{"n": 1}, {"n": "many"}, {"n": 2}])
        world.settle()
        assert sorted(event.value["n"] for event in world.client.read("numbers")) == [1, 2]
        (letter,) = queue.dead()
    assert letter.message.body == b'{"n":"many"}'
    assert "numbers" in letter.attempts[-1].why


def test_what_cannot_be_a_feed_is_refused():
    app = shop()
    topic, table = app.topics["orders"], app.table("products", "id int", key="id")
    queue, named = app.queues["parcels"], app.queue("named", groups=["a", "b"])
    for source, target in ((topic, topic), (queue, queue), (table, queue), ("orders", queue)):
        with pytest.raises(BadSettingError) as error:
            app.feed(source, target)
        assert error.value.place is not None
    with pytest.raises(BadWorkerError):
        app.feed(named, topic)
    with pytest.raises(BadAppError):
        app.feed(topic, queue)


def test_events_published_and_not_committed_are_not_published_twice(tmp_path):
    app = shop()
    with hw.connect(tmp_path) as client:
        for topic in app.topics.values():
            client.log.create(topic)
        client.broker.declare(app.queues["parcels"].definition)
        client.send_many("orders", list(map(order, range(10))))
        broken = feeder(client, app.feeds[0], tmp_path / "feeds")
        broken._consumer.commit = die
        with pytest.raises(KeyboardInterrupt):
            broken.once(LONG)
        broken.close()
        again = feeder(client, app.feeds[0], tmp_path / "feeds")
        while again.once(0.1):
            pass
        again.close()
        (counts,) = client.queue("parcels").counts()
    assert counts.published == counts.waiting == 10


def die(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("acked", [0, 4, 10])
def test_messages_appended_and_not_acknowledged_are_not_appended_twice(tmp_path, acked):
    app = shop()
    with hw.connect(tmp_path) as client:
        for topic in app.topics.values():
            client.log.create(topic)
        client.broker.declare(app.queues["parcels"].definition)
        client.send_many("shipped", [order(n) for n in range(7)])  # what was there before
        client.queue("parcels").publish_many(list(map(order, range(10))))
        broken = feeder(client, app.feeds[1], tmp_path / "feeds")
        ack = broken._receiver.ack

        def partly(deliveries):
            ack(deliveries[:acked])
            raise KeyboardInterrupt

        broken._receiver.ack = partly
        with pytest.raises(KeyboardInterrupt):
            broken.once(LONG)
        broken.close()
        client.queue("parcels").publish(order(10))
        again = feeder(client, app.feeds[1], tmp_path / "feeds")
        while again.once(0.1):
            pass
        again.close()
        found = sorted(event.value["n"] for event in client.read("shipped"))
        (counts,) = client.queue("parcels").counts()
    assert found == sorted([*range(7), *range(11)])
    assert (counts.acked, counts.waiting, counts.in_flight) == (11, 0, 0)


PROGRAM = f"""
{SHOP}
import sys, threading
from pathlib import Path
from headwater.workers.feeding import feeder
data = Path(sys.argv[1])
client = hw.connect(data)
feeders = [feeder(client, feed, data / "feeds") for feed in app.feeds]
threads = [threading.Thread(target=one.run, args=[threading.Event()]) for one in feeders]
for thread in threads:
    thread.start()
print("ready", flush=True)
"""


def test_a_feeder_killed_again_and_again_loses_and_repeats_nothing(tmp_path):
    app, events, kills = shop(), 600, 4
    with hw.connect(tmp_path) as client:
        for topic in app.topics.values():
            client.log.create(topic)
        queue = app.queues["parcels"].definition
        client.broker.declare(queue)
        for kill in range(kills + 1):
            process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            for n in range(events):
                if n % 50 == 49:
                    client.send_many("orders", [order(kill * events + m) for m in range(n - 49, n + 1)])
            if kill == kills:
                until(lambda: client.queue("parcels").counts()[0].acked == (kills + 1) * events)
            else:
                time.sleep(0.02 * kill)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        found = [event.value["n"] for event in client.read("shipped")]
    assert len(found) == (kills + 1) * events
    assert sorted(found) == list(range((kills + 1) * events))


def until(true) -> None:
    deadline = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_feed_waits_while_the_queue_is_full(tmp_path):
    app = hw.App("shop")
    orders = app.topic("orders", "n int")
    small = app.queue("small", limit=5, overload=hw.backpressure("10 ms"))
    app.feed(orders, small)
    with hw.connect(tmp_path) as client:
        client.log.create(orders)
        client.broker.declare(small.definition)
        client.send_many("orders", [{"n": n} for n in range(12)])
        one = feeder(client, app.feeds[0], tmp_path / "feeds")
        found = []
        with client.queue("small", timeout="100 ms") as queue:
            while len(found) < 12:
                one.once(0.1), one.once(0.1)
                for message in queue:
                    found.append(message.value["n"])
                    message.ack()
        one.close()
    assert found == list(range(12))


def test_a_feed_that_lost_its_partitions_goes_on_and_repeats_nothing(tmp_path):
    app = shop()
    with hw.connect(tmp_path) as client:
        for topic in app.topics.values():
            client.log.create(topic)
        client.broker.declare(app.queues["parcels"].definition)
        client.send_many("orders", list(map(order, range(10))))
        slow = feeder(client, app.feeds[0], tmp_path / "feeds")
        commit = slow._consumer.commit

        def fenced():
            slow._consumer.commit = commit
            raise FencedError("others read on from here")

        slow._consumer.commit = fenced
        slow.once(LONG)
        client.send_many("orders", list(map(order, range(10, 20))))
        while slow.once(0.2):
            pass
        slow.close()
        assert [lag.events for lag in client.lag("hw.queue.parcels")] == [0, 0, 0]
        (counts,) = client.queue("parcels").counts()
    assert counts.published == counts.waiting == 20
