"""Batches published in transactions: each effect once, judged by an independent reader of committed records."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pytest

import headwater as hw
from headwater.errors import FencedError, LedgerMismatchError, UnreachableError
from headwater.log.kafka import KafkaLog, KafkaPublisher, Published
from tests.client.shop import fresh
from tests.faults.counts import times
from tests.log.kafka.plain import consume
from tests.services.kafka import Broker

pytestmark = pytest.mark.services

BATCHES, ROWS, KILLS = times(80, 800), 25, times(10, 100)
# Forks publishers, which go on from the newest batch and say when each is done, and kills them at random moments.
# A fork has everything imported; the driver starts in it.
PUBLISHERS = """
import os, random, signal, sys, time
import pyarrow as pa
from headwater.log.kafka import KafkaPublisher
url, topic, id, seed, batches, rows, kills = *sys.argv[1:4], *map(int, sys.argv[4:])

def publish(epoch, told):
    with KafkaPublisher(url, id) as publisher:
        last = publisher.last_published()
        begun = -1 if last is None else last.batch
        os.write(1, b"from %d\\n" % begun)
        for batch in range(begun + 1, batches):
            numbers = list(range(batch * rows, (batch + 1) * rows))
            span = [numbers[0], numbers[-1]]
            publisher.publish(topic, pa.table({"n": numbers}), batch=batch, epoch=epoch, span=span)
            os.write(1, b"done %d\\n" % batch)
            os.write(told, b"x")

chance, status, epoch = random.Random(seed), -1, 0
while status != 0:
    epoch += 1
    heard, told = os.pipe()
    child = os.fork()
    if not child:
        publish(epoch, told)
        os._exit(0)
    os.read(heard, 1)  # it is in the midst of it now
    if epoch <= kills:
        time.sleep(chance.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(heard); os.close(told)
print("kills", min(epoch, kills + 1) - 1)
"""


def numbers(broker: Broker, topic: str, *, committed: bool = True) -> list[int]:
    return [
        json.loads(message.value())["n"] for message in consume(broker.address, topic, 2, committed=committed)
    ]


@pytest.fixture
def topic(client: hw.Client) -> str:
    name = fresh("results")
    client.create_topic(name, "n bigint", key="n", partitions=2)
    return name


def table(*rows: int) -> pa.Table:
    return pa.table({"n": list(rows)})


def test_rows_and_mark_are_published_together(client: hw.Client, kafka: Broker, topic: str):
    id = fresh("pipeline")
    assert isinstance(client.log, KafkaLog)
    with KafkaPublisher(client.log, id) as publisher:
        assert publisher.last_published() is None
        receipts = publisher.publish(topic, table(1, 2, 3), batch=0, epoch=1, span=[0, 3])
        assert receipts is not None
        assert len(receipts) == 3
        publisher.publish(topic, table(4), batch=1, epoch=1, span=[3, 4])
    with KafkaPublisher(client.log, id) as publisher:
        assert publisher.last_published() == Published(1, 1, [3, 4])
    assert sorted(numbers(kafka, topic)) == [1, 2, 3, 4]


def test_the_same_batch_again_is_skipped(client: hw.Client, kafka: Broker, topic: str):
    with KafkaPublisher(f"kafka://{kafka.address}", fresh("pipeline")) as publisher:
        publisher.publish(topic, table(1), batch=7, epoch=1, span=[0, 1])
        assert publisher.publish(topic, table(1), batch=7, epoch=2, span=[0, 1]) is None
        assert publisher.publish(topic, table(1), batch=6, epoch=2, span=[0, 1]) is None
        with pytest.raises(LedgerMismatchError):
            publisher.publish(topic, table(1), batch=7, epoch=2, span=[0, 2])
    assert numbers(kafka, topic) == [1]


def test_a_zombie_is_shut_out_by_its_successor(client: hw.Client, kafka: Broker, topic: str):
    id = fresh("pipeline")
    url = f"kafka://{kafka.address}"
    with KafkaPublisher(url, id) as zombie, KafkaPublisher(url, id) as successor:
        zombie.publish(topic, table(1), batch=0, epoch=1)
        assert successor.last_published() == Published(0, 1)
        successor.publish(topic, table(2), batch=1, epoch=2)
        for _ in range(2):
            with pytest.raises(FencedError):
                zombie.publish(topic, table(99), batch=1, epoch=1)
        with pytest.raises(FencedError):
            successor.publish(topic, table(98), batch=2, epoch=1)
    assert sorted(numbers(kafka, topic)) == [1, 2]


def test_a_zombie_whose_answer_was_lost_does_not_come_back(
    client: hw.Client, kafka: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
):
    id, url = fresh("pipeline"), f"kafka://{kafka.address}"
    with KafkaPublisher(url, id) as zombie, KafkaPublisher(url, id) as successor:
        zombie.publish(topic, table(1), batch=0, epoch=1, span=(0, 1))
        successor.publish(topic, table(2), batch=1, epoch=2, span=(1, 2))

        def lost(*_: object) -> None:
            monkeypatch.undo()
            raise UnreachableError("the answer was lost")

        monkeypatch.setattr(zombie._transactions, "_attempt", lost)
        for _ in range(2):
            with pytest.raises(FencedError):
                zombie.publish(topic, table(99), batch=1, epoch=1, span=(1, 2))
    assert sorted(numbers(kafka, topic)) == [1, 2]


def test_what_a_dead_process_left_open_is_never_seen(client: hw.Client, kafka: Broker, topic: str):
    id = fresh("pipeline")
    url = f"kafka://{kafka.address}"
    with KafkaPublisher(url, id) as dead:
        dead.last_published()
        producer = dead._transactions._producer
        producer.begin_transaction()
        producer.produce(topic, b'{"n":13}', partition=0)
        producer.flush()
        with KafkaPublisher(url, id) as heir:
            heir.publish(topic, table(1), batch=0, epoch=2)
    assert numbers(kafka, topic) == [1]
    assert sorted(numbers(kafka, topic, committed=False)) == [1, 13]


def test_each_effect_is_once_however_often_it_is_killed(client: hw.Client, kafka: Broker, topic: str):
    given = [f"kafka://{kafka.address}", topic, fresh("pipeline"), 7, BATCHES, ROWS, KILLS]
    command = [sys.executable, "-c", PUBLISHERS, *map(str, given)]
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
