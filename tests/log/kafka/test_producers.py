"""What pipelines publish, in transactions: each effect once, judged by an independent reader of committed records."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.errors import FencedError, LedgerMismatchError, TooLargeError, UnreachableError
from headwater.log import WriteBatch
from headwater.log.kafka import KafkaLog, producers
from headwater.log.kafka.producers import ProducedBatch
from headwater.log.write.append_buffer import PendingAppend
from headwater.log.write.write_batch import EventEncoder, Origin
from tests.client.shop import fresh
from tests.faults.counts import times
from tests.log.kafka.plain import consume
from tests.services.kafka import Broker

pytestmark = pytest.mark.services

BATCHES, ROWS, KILLS = times(80, 800), 25, times(10, 100)
# Forks runners, which go on from the newest batch and say when each is done, and kills them at random moments.
# A fork has everything imported; the driver starts in it.
RUNNERS = """
import os, random, signal, sys, time
from headwater.log.kafka import KafkaLog
from tests.log.kafka.test_producers import publish
url, topic, id, seed, batches, rows, kills = *sys.argv[1:4], *map(int, sys.argv[4:])

def run(epoch, told):
    with KafkaLog(url) as log:
        begun = log.last_sequences(topic, id)[0] >> 32
        os.write(1, b"from %d\\n" % begun)
        for batch in range(begun + 1, batches):
            numbers = list(range(batch * rows, (batch + 1) * rows))
            publish(log, topic, id, numbers, batch=batch, epoch=epoch)
            os.write(1, b"done %d\\n" % batch)
            os.write(told, b"x")

chance, status, epoch = random.Random(seed), -1, 0
while status != 0:
    epoch += 1
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        run(epoch, told)
        os._exit(0)
    os.read(heard, 1)  # it is in the midst of it now
    if epoch <= kills:
        time.sleep(chance.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(heard); os.close(told)
print("kills", min(epoch, kills + 1) - 1)
"""


def publish(
    log: KafkaLog, topic: str, id: str, numbers: list[int], *, batch: int, epoch: int, span: str | None = None
) -> list[bool]:
    """As a pipeline does it; for each row whether it was there already."""
    values = pa.record_batch({"n": pa.array(numbers, pa.int64())})
    made_of = Origin(batch, epoch, span or str(numbers))
    rows = WriteBatch(values, 1, {}, 0, id, batch << 32, origin=made_of)
    return [receipt.duplicate for receipt in log.append(topic, rows)]


def pending(log: KafkaLog, topic: str, id: str, sequence: int, value: Any, partition: int = 0, **given: Any) -> Any:
    """An event of a producer with an id, as a client makes it."""
    event = EventEncoder(log.topic(topic)).encode_one(value, 0, **given)
    event.producer, event.partition, event.sequence = id, partition, sequence
    return event


def append(log: KafkaLog, topic: str, id: str, sequence: int, value: Any, headers: dict[str, str]) -> hw.Receipt:
    return log.append_one(topic, pending(log, topic, id, sequence, value, headers=headers))


@pytest.fixture
def runners(kafka: Broker) -> Iterator[tuple[KafkaLog, KafkaLog]]:
    """Two processes, so to say."""
    url = f"kafka://{kafka.address}"
    with KafkaLog(url) as one, KafkaLog(url) as two:
        yield one, two


def numbers(broker: Broker, topic: str, *, committed: bool = True) -> list[int]:
    return [json.loads(message.value())["n"] for message in consume(broker.address, topic, 2, committed=committed)]


@pytest.fixture
def topic(client: hw.Client) -> str:
    name = fresh("results")
    client.create_topic(name, "n bigint", key="n", partitions=2)
    return name


def test_a_batch_that_comes_again_is_skipped_unless_it_is_another_one(
    client: hw.Client, kafka: Broker, topic: str, runners: tuple[KafkaLog, KafkaLog]
):
    (log, heir), id = runners, fresh("pipeline")
    assert publish(log, topic, id, [1, 2], batch=7, epoch=1) == [False, False]
    assert publish(log, topic, id, [1, 2], batch=7, epoch=1) == [True, True]
    assert publish(heir, topic, id, [1, 2], batch=7, epoch=2) == [True, True]
    with pytest.raises(LedgerMismatchError):
        publish(heir, topic, id, [1, 3], batch=7, epoch=2)
    publish(heir, topic, id, [3], batch=8, epoch=2)
    assert numbers(kafka, topic) == [1, 2, 3]


def test_rows_and_what_they_are_made_of_are_one_transaction(
    client: hw.Client, kafka: Broker, topic: str, runners: tuple[KafkaLog, KafkaLog]
):
    (log, heir), id = runners, fresh("pipeline")
    publish(log, topic, id, [1], batch=3, epoch=2, span="0 to 9")
    state = heir.named_producers.get(topic, id)._producer.state
    assert state == {"origin": {"batch": 3, "epoch": 2, "span": "0 to 9"}, "sequences": {"0": 3 << 32}}


def test_a_zombie_is_shut_out_by_its_successor(
    client: hw.Client, kafka: Broker, topic: str, runners: tuple[KafkaLog, KafkaLog]
):
    (zombie, successor), id = runners, fresh("pipeline")
    publish(zombie, topic, id, [1], batch=0, epoch=1)
    publish(successor, topic, id, [2], batch=1, epoch=2)
    for _ in range(2):
        with pytest.raises(FencedError):
            publish(zombie, topic, id, [99], batch=2, epoch=1)
    with pytest.raises(FencedError):
        publish(successor, topic, id, [98], batch=2, epoch=1)
    assert numbers(kafka, topic) == [1, 2]


def test_a_zombie_whose_answer_was_lost_does_not_come_back(
    client: hw.Client, kafka: Broker, topic: str, runners: tuple[KafkaLog, KafkaLog], monkeypatch: pytest.MonkeyPatch
):
    (zombie, successor), id = runners, fresh("pipeline")
    publish(zombie, topic, id, [1], batch=0, epoch=1)
    publish(successor, topic, id, [2], batch=1, epoch=2)

    def lost(*_: object) -> None:
        monkeypatch.undo()
        raise UnreachableError("the answer was lost")

    monkeypatch.setattr(zombie.named_producers.get(topic, id)._producer, "_attempt", lost)
    for _ in range(2):
        with pytest.raises(FencedError):
            publish(zombie, topic, id, [99], batch=1, epoch=1)
    assert numbers(kafka, topic) == [1, 2]


def test_what_a_dead_process_left_open_is_never_seen(
    client: hw.Client, kafka: Broker, topic: str, runners: tuple[KafkaLog, KafkaLog]
):
    (dead, heir), id = runners, fresh("pipeline")
    dead.last_sequences(topic, id)
    producer = dead.named_producers.get(topic, id)._producer._producer
    producer.begin_transaction()
    producer.produce(topic, b'{"n":13}', partition=0)
    producer.flush()
    publish(heir, topic, id, [1], batch=0, epoch=2)
    assert numbers(kafka, topic) == [1]
    assert sorted(numbers(kafka, topic, committed=False)) == [1, 13]


def test_each_effect_is_once_however_often_it_is_killed(client: hw.Client, kafka: Broker, topic: str):
    given = [f"kafka://{kafka.address}", topic, fresh("pipeline"), 7, BATCHES, ROWS, KILLS]
    command = [sys.executable, "-c", RUNNERS, *map(str, given)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=times(100, 900), check=False)
    assert said.returncode == 0, said.stderr[-2000:]
    newest = -1
    for word, number in (line.split() for line in said.stdout.splitlines()):
        if word == "from":
            assert int(number) >= newest, "an acknowledged batch was lost"
        if word == "done":
            newest = int(number)
    assert newest == BATCHES - 1
    assert said.stdout.count("from ") > KILLS // 2
    assert Counter(numbers(kafka, topic)) == Counter(range(BATCHES * ROWS))


def test_a_row_that_the_driver_refuses_leaves_its_number_unused(client: hw.Client, kafka: Broker, topic: str):
    id = fresh("till")
    with KafkaLog(f"kafka://{kafka.address}?message.max.bytes=4000") as log:
        small, large = ({"n": 1}, {}), ({"n": 2}, {"note": "x" * 5_000})
        append(log, topic, id, 0, *small)
        for _ in range(2):
            with pytest.raises(TooLargeError):
                append(log, topic, id, 1, *large)
            assert log.last_sequences(topic, id) == [0, -1]
        assert not append(log, topic, id, 1, {"n": 3}, {}).duplicate
    assert numbers(kafka, topic) == [1, 3]


def test_a_row_that_the_brokers_refuse_is_told_to_its_sender_alone(client: hw.Client, kafka: Broker, topic: str):
    id = fresh("till")
    with KafkaLog(f"kafka://{kafka.address}") as log:
        log.kafka_topics.configure(topic, {"max.message.bytes": "4000"})
        noise = random.Random(1).randbytes(9_000).hex()  # compression does not make it small enough
        events = [pending(log, topic, id, 0, {"n": 1}), pending(log, topic, id, 1, {"n": 2}, headers={"note": noise})]
        events += [pending(log, topic, id, 0, {"n": 3}, partition=1)]
        appends = [PendingAppend(event, 1) for event in events]
        log._topic_handle(topic).writer._commit(appends)
        assert [append.error and append.error.code for append in appends] == [None, "TOO_LARGE", None]
        assert log.last_sequences(topic, id) == [0, 0]
    assert sorted(numbers(kafka, topic)) == [1, 3]  # in two partitions


def test_a_producer_goes_on_after_a_transaction_that_took_too_long(
    client: hw.Client, kafka: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(producers, "_TRANSACTION_TIMEOUT_MS", 1_000)
    id = fresh("pipeline")
    with KafkaLog(f"kafka://{kafka.address}") as log:
        publish(log, topic, id, [1], batch=0, epoch=1)
        produced = ProducedBatch.produce

        def stall(batch: ProducedBatch, producer: Any, *rest: Any) -> None:
            monkeypatch.undo()
            produced(batch, producer, *rest)
            producer.flush()
            opened = log.kafka_topics.end_offsets(topic, [0])[0]
            while log.kafka_topics.end_offsets(topic, [0])[0] == opened:  # until the brokers abort the transaction
                time.sleep(0.1)

        monkeypatch.setattr(ProducedBatch, "produce", stall)
        publish(log, topic, id, [2], batch=1, epoch=1)
        publish(log, topic, id, [3], batch=2, epoch=1)
        assert ProducedBatch.produce is produced
    assert numbers(kafka, topic) == [1, 2, 3]


def test_of_two_live_processes_the_one_that_opened_the_id_last_goes_on(
    client: hw.Client, kafka: Broker, topic: str, runners: tuple[KafkaLog, KafkaLog]
):
    (older, newer), id = runners, fresh("pipeline")
    publish(older, topic, id, [1], batch=0, epoch=1)
    newer.last_sequences(topic, id)  # it has not written anything yet
    with pytest.raises(FencedError):
        publish(older, topic, id, [99], batch=1, epoch=1)
    publish(newer, topic, id, [2], batch=1, epoch=1)
    assert numbers(kafka, topic) == [1, 2]
