"""What pipelines publish, in transactions: each effect once, judged by an independent reader of committed records."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

import headwater as hw
from headwater.errors import FencedError, LedgerMismatchError, UnreachableError
from headwater.log import WriteBatch
from headwater.log.kafka import KafkaLog
from headwater.log.write_batch import Origin
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
