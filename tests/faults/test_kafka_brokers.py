"""Brokers that are not there, are killed, or change under our hands: nothing acknowledged is lost, errors are clear."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

import headwater as hw
from headwater import errors
from headwater.events import SystemClock
from headwater.log.kafka import KafkaLog
from tests.client.groups import poll_until
from tests.client.shop import fresh
from tests.faults.counts import only_in_full_runs, times
from tests.log.kafka.plain import consume
from tests.services.kafka import Broker, restart_kafka, start_cluster, start_kafka
from tests.services.system_packages import UnavailableError

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def client(kafka: Broker) -> Iterator[hw.Client]:
    with hw.connect(f"kafka://{kafka.address}") as client:
        yield client


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    """A broker that tests may kill; whoever restarts it puts the new process in its place."""
    try:
        brokers = [start_kafka(tmp_path_factory.mktemp("fragile"), users={"ada": "right"})]
    except UnavailableError as missing:
        pytest.skip(str(missing))
    yield brokers
    brokers[0].stop()


def kill(broker: Broker) -> None:
    broker.process.kill()
    broker.process.wait()


class Load:
    """Senders that go on until they are told to stop, and remember what was acknowledged."""

    def __init__(self, client: hw.Client, topic: str) -> None:
        self.acknowledged: list[int] = []
        self.failed = 0
        self._client = client
        self._topic = topic
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(10**6 * n,)) for n in range(2)]

    def _send(self, number: int) -> None:
        while not self._stop.is_set():
            numbers = list(range(number, number + 20))
            try:
                self._client.send_many(self._topic, [{"n": n} for n in numbers])
                self.acknowledged += numbers
            except errors.UnreachableError:
                self.failed += 1
            number += 20

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def wait_for_more(load: Load, more: int, seconds: float = 60) -> None:
    goal, deadline = len(load.acknowledged) + more, time.monotonic() + seconds
    while len(load.acknowledged) < goal:
        assert time.monotonic() < deadline, "nothing is acknowledged any more"
        time.sleep(0.02)


def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(fragile: list[Broker]):
    name = fresh()
    with hw.connect(f"kafka://{fragile[0].address}") as client:
        client.create_topic(name, "n bigint", key="n", partitions=2)
        with client.producer(name, id="till-7") as producer, Load(client, name) as load:
            for n in range(-50, 0):
                producer.send({"n": n})
            for _ in range(times(1, 5)):
                wait_for_more(load, 200)
                kill(fragile[0])
                for n in range(-100, -50):
                    producer.send({"n": n})
                fragile[0] = restart_kafka(fragile[0])
                wait_for_more(load, 200)
                producer.flush()
        found = Counter(event.value["n"] for event in client.read(name) if event.value)
    assert [n for n in load.acknowledged if n not in found] == []
    assert {n: found.pop(n) for n in range(-50, 0)} == dict.fromkeys(range(-50, 0), 1)
    assert {n: found.pop(n) for n in range(-100, -50)} == dict.fromkeys(range(-100, -50), times(1, 5))
    assert max(found.values()) == 1  # what the driver repeated is told apart by the broker


def test_a_broker_that_is_not_there_yet_is_waited_for(fragile: list[Broker], caplog: pytest.LogCaptureFixture):
    kill(fragile[0])
    answers: list[list[str]] = []
    with caplog.at_level(logging.WARNING), hw.connect(f"kafka://{fragile[0].address}") as client:
        asking = threading.Thread(target=lambda: answers.append(client.topics()))
        asking.start()
        fragile[0] = restart_kafka(fragile[0])
        asking.join(60)
    assert len(answers) == 1
    waiting = [record.getMessage() for record in caplog.records if record.name.startswith("headwater")]
    assert [f"kafka://{fragile[0].address}" in message for message in waiting] == [True]


def test_silence_becomes_an_error_after_the_patience():
    with KafkaLog("kafka://ada:s3cret@127.0.0.1:9", patience=timedelta(milliseconds=300)) as log:
        for call in (log.topics, lambda: log.topic("orders"), log.groups.states):
            began = time.monotonic()
            with pytest.raises(errors.UnreachableError) as caught:
                call()
            assert time.monotonic() - began < 5
            assert "127.0.0.1:9" in caught.value.what
            assert "s3cret" not in f"{caught.value}{log!r}{log.address!r}"


def test_wrong_credentials_are_told_at_once(fragile: list[Broker]):
    how = "security.protocol=SASL_PLAINTEXT"
    with hw.connect(f"kafka://ada:right@{fragile[0].login}?{how}") as client:
        assert isinstance(client.topics(), list)
    began = time.monotonic()
    wrong = f"kafka://ada:wr0ng@{fragile[0].login}?{how}"
    with hw.connect(wrong) as client, pytest.raises(errors.BadCredentialsError) as caught:
        client.topics()
    assert "wr0ng" not in str(caught.value)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    "url", ["kafka://", "kafka://a:1,,b:2", "kafka://a:1?no.such.setting=1", "kafka://a:1?acks=many"]
)
def test_an_address_that_cannot_be_is_refused(url: str):
    with pytest.raises(errors.BadSettingError), hw.connect(url) as client:
        client.topics()


def test_new_partitions_are_used_by_senders_and_readers(kafka: Broker):
    name = fresh()
    with KafkaLog(f"kafka://{kafka.address}?topic.metadata.refresh.interval.ms=500") as log:
        client = hw.Client(log, SystemClock())
        client.create_topic(name, "n bigint", key="n", partitions=2)
        client.send_many(name, [{"n": n} for n in range(50)])
        with client.consumer(name, group=fresh("billing"), start="latest") as consumer:
            assert consumer.assignment == (0, 1)
            admin = AdminClient({"bootstrap.servers": kafka.address})
            for grown in admin.create_partitions([NewPartitions(name, 4)]).values():
                grown.result(timeout=30)
            poll_until(lambda: client.topic(name).partitions == 4)
            receipts = client.send_many(name, [{"n": n} for n in range(50, 100)])
            assert set(receipts.partitions.tolist()) == {0, 1, 2, 3}
            found = poll_until(lambda: len(consumer.assignment) == 4, consumer)
            found += poll_until(lambda: len(found) >= 50, _Adding(found, consumer))
        assert sorted(event.value["n"] for event in found if event.value) == list(range(50, 100))
        assert len(list(client.read(name))) == 100
        client.create_topic(name, "n bigint, note string", key="n", partitions=4)


class _Adding:
    """A consumer whose events are added to a list while it is polled."""

    def __init__(self, found: list[hw.Event], consumer: hw.Consumer) -> None:
        self._found = found
        self._consumer = consumer

    def poll(self, timeout: float) -> list[hw.Event]:
        self._found += self._consumer.poll(timeout)
        return []


def test_a_topic_that_was_deleted_is_unknown(client: hw.Client, kafka: Broker):
    name = fresh()
    client.create_topic(name, "n bigint")
    client.send(name, {"n": 1})
    assert len(list(client.read(name))) == 1
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for deleted in admin.delete_topics([name]).values():
        deleted.result(timeout=30)
    poll_until(lambda: name not in client.topics())
    for call in (
        lambda: client.topic(name),
        lambda: list(client.read(name)),
        lambda: client.log.ends(name),
        lambda: client.send(name, {"n": 2}),
    ):
        with pytest.raises(errors.UnknownTopicError):
            call()
    assert client.create_topic(name, "text string").version == 2  # rows of the deleted topic have version 1
    client.send(name, {"text": "a new one"})
    assert [event.value for event in client.read(name)] == [{"text": "a new one"}]


@only_in_full_runs
def test_one_of_three_brokers_may_die(tmp_path: Path):
    brokers = start_cluster(tmp_path)
    try:
        name = fresh()
        url = f"kafka://{','.join(broker.address for broker in brokers)}?replication.factor=3&min.insync.replicas=2"
        with hw.connect(url) as client:
            client.create_topic(name, "n bigint", key="n", partitions=6)
            with Load(client, name) as load:
                wait_for_more(load, 400, 120)
                kill(brokers[1])
                wait_for_more(load, 400, 120)
            found = Counter(event.value["n"] for event in client.read(name) if event.value)
        assert [n for n in load.acknowledged if n not in found] == []
        assert max(found.values()) == 1
        assert len(consume(brokers[0].address, name, 6)) == sum(found.values())
    finally:
        for broker in brokers:
            broker.stop()
