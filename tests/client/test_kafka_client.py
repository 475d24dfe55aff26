"""The client of a Kafka passes the contract, against a real broker."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

import headwater as hw
from headwater import errors
from headwater.events import SystemClock
from headwater.log.kafka import KafkaLog
from tests.client.contract import ClientContract
from tests.client.shop import fresh
from tests.services.kafka import Broker

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def shared(kafka: Broker) -> Iterator[KafkaLog]:
    """One connection for all tests; each has topics of its own."""
    with KafkaLog(f"kafka://{kafka.address}?session.timeout.ms=1500") as log:
        yield log


class TestKafkaClient(ClientContract):
    """Everything the client of a folder can do, but for what is overridden here with its reason."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def where(self, kafka: Broker) -> str:
        return f"kafka://{kafka.address}?session.timeout.ms=1500"

    @pytest.fixture
    def client(self, shared: KafkaLog) -> hw.Client:
        return hw.Client(shared, SystemClock())

    def test_a_topic_is_completed_up_to_the_present(self, client: hw.Client, where: str):
        """A process that indexes event time writes the marker."""
        name = fresh()
        client.create_topic(name, "id int, at timestamp", time="at", partitions=2)
        client.send(name, {"id": 1, "at": "2020-01-01T00:00:00Z"})
        with pytest.raises(errors.UnreachableError):
            client.complete(name)
        with KafkaLog(where, index_time=True) as indexing:
            indexing.open_topic(name)
            indexing.await_event_time(name)
            reached = client.complete(name)
            times = [partition.state().max_event_time for partition in indexing.open_topic(name).partitions]
        assert times == [round(reached.timestamp() * 1e6)] * 2

    def test_a_repeated_sequence_is_told_as_duplicate(self, client: hw.Client):
        """The mark of a commit takes an offset of its own, so offsets have gaps."""
        name = fresh()
        client.create_topic(name, "order_id string")
        with client.producer(name, id="till-7") as producer:
            for number in (0, 1, 2):
                producer.send({"order_id": f"o-{number}"}, sequence=number)
            first = producer.flush()
            for number in (1, 2, 3):
                producer.send({"order_id": f"o-{number}"}, sequence=number)
            second = producer.flush()
        assert [receipt.duplicate for receipt in first] == [False] * 3
        assert [receipt.duplicate for receipt in second] == [True, True, False]
        assert [receipt.offset for receipt in second[:2]] == [receipt.offset for receipt in first[1:]]
        assert [event.value["order_id"] for event in client.read(name) if event.value] == ["o-0", "o-1", "o-2", "o-3"]
        assert client.log.counts(name)["duplicate"] == 2

    def test_a_group_is_deleted_on_one_of_its_topics(self, client: hw.Client):
        """The driver deletes only whole groups: a group with offsets on other topics is refused."""
        group, topics = fresh("billing"), [fresh(), fresh()]
        for topic in topics:
            client.create_topic(topic, "order_id string")
            client.send(topic, {"order_id": "a"})
            client.log.groups.reset(group, topic, {0: 1})
        with pytest.raises(errors.RefusedError) as caught:
            client.delete_group(group, topics[1])
        assert caught.value.fix == f"headwater groups delete {group}"
        assert {(lag.topic, lag.committed) for lag in client.lag(group)} == {(topic, 1) for topic in topics}
        client.delete_group(group)
        with pytest.raises(errors.UnknownGroupError):
            client.lag(group)
        client.log.groups.reset(group, topics[0], {0: 1})
        client.delete_group(group, topics[0])
        with pytest.raises(errors.UnknownGroupError):
            client.log.groups.state(group, topics[0])

    async def test_the_asynchronous_client_does_the_same(self, where: str):
        """As above: the mark of the producer's commit stands between its event and the next."""
        name = fresh()
        async with hw.connect_async(where) as client:
            await client.create_topic(name, "order_id string")
            async with client.producer(name, id="till-7") as producer:
                await producer.send({"order_id": "a"})
            receipt = await client.send(name, {"order_id": "b"})
            assert [event.offset async for event in client.read(name)] == [0, receipt.offset]
            async with client.consumer(name, group=fresh("billing")) as consumer:
                assert len(await consumer.poll(5)) == 2
                await consumer.commit()

    def test_offsets_that_are_gone_are_named(self, client: hw.Client, kafka: Broker):
        """Brokers look at retention every five minutes; records deleted through their own call are gone at once."""
        name = fresh()
        client.create_topic(name, "text string")
        client.send_many(name, [{"text": "x"}] * 10)
        delete_records(kafka.address, name, before=6)
        with pytest.raises(errors.DataGoneError) as caught:
            list(client.read(name, 0))
        found = caught.value.data
        assert (found["first"], found["last"], found["start"]) == (0, 5, 6)
        assert next(client.read(name)).offset == 6

    def test_a_full_buffer_pushes_back(self, client: hw.Client, kafka: Broker):
        """The broker is made to stand still, instead of a partition's file."""
        name = fresh()
        client.create_topic(name, "order_id string", overload=hw.backpressure("100 ms", events=1))
        client.send(name, {"order_id": "warm"})
        outcomes: queue.Queue[hw.HeadwaterError | hw.Receipt] = queue.Queue()

        def send(number: int) -> None:
            try:
                outcomes.put(client.send(name, {"order_id": f"o-{number}"}))
            except hw.HeadwaterError as error:
                outcomes.put(error)

        senders = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        kafka.process.send_signal(signal.SIGSTOP)
        try:
            for sender in senders:
                sender.start()
            refused = outcomes.get(timeout=60)  # one leads, one waits, nothing else can happen
        finally:
            kafka.process.send_signal(signal.SIGCONT)
        for sender in senders:
            sender.join()
        assert isinstance(refused, errors.OverloadedError)
        assert refused.data["limit"] == 1
        counts = client.log.counts(name)
        assert counts["refused"] >= 1
        assert counts["offered"] == counts["appended"] + counts["refused"]


def delete_records(address: str, topic: str, *, before: int) -> None:
    """Remove what lies before an offset of partition 0."""
    admin = AdminClient({"bootstrap.servers": address})
    for deleted in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        deleted.result(timeout=30)
