"""Pipelines in real-time mode on a real Kafka, compared with DuckDB over the sent events; and refused pipelines."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import functions as F

import headwater as hw
from headwater.backends import open_log
from headwater.engine.context import EngineContext
from headwater.engine.dry_run import dry_run
from headwater.engine.engine import Engine
from headwater.engine.supervisor import PipelineSupervisor
from headwater.events import SystemClock
from headwater.runner import EngineProcess
from headwater.store import SqliteDialect, SqlStore, ViewReader
from headwater.testing.world import get_spark
from tests.faults.counts import only_in_full_runs
from tests.services.kafka import Broker

pytestmark = [pytest.mark.spark, pytest.mark.services]

ORDERS = "id int not null, shop string, v int, price decimal(10,2), at timestamp"


class Running:
    """An app on Kafka in a folder."""

    def __init__(self, engine: Engine, log: Any, store: SqlStore) -> None:
        self.engine = engine
        self.client = hw.Client(log, SystemClock())
        self.store = store

    def supervisor(self, name: str) -> PipelineSupervisor:
        return self.engine.supervisors[name]

    def sql(self, text: str) -> list[Any]:
        return list(ViewReader(self.store).sql(text).rows)


@contextmanager
def running(app: hw.App, folder: Path, broker: Broker) -> Iterator[Running]:
    log = open_log(f"kafka://{broker.address}", index_time=True)
    store = SqlStore(SqliteDialect(folder / "store"))
    context = EngineContext(folder, log, store, SystemClock(), realtime_batch=timedelta(seconds=5))
    engine = Engine(app.resolve(), lambda: get_spark().session, context)
    engine.start()
    try:
        yield Running(engine, log, store)
    finally:
        engine.stop()
        store.close()
        log.close()


def order(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    at = f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}.{chance.randrange(1_000_000):06}Z"
    price = Decimal(chance.randrange(10_000)) / 100
    return {"id": number, "shop": f"ü{chance.randrange(5)}", "v": chance.randrange(10), "price": price, "at": at}


def records(broker: Broker, topic: str) -> list[tuple[bytes | None, dict[str, Any]]]:
    """What a plain consumer reads: keys and values."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "oracle", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append((message.key(), json.loads(message.value())))
    consumer.close()
    return found


def expected_rows(query: str, sent: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    plain = [row | {"price": str(row["price"])} for row in sent]
    orders = duckdb.sql("select unnest(?, recursive := true)", params=[plain])  # noqa: F841  (read by the query)
    return duckdb.sql(query).fetchall()


def has_large(broker: Broker, name: str, sent: list[dict[str, Any]]) -> bool:
    """Whether every selected row is there at least once; nothing else may be."""
    query = 'select id, upper(shop), (price::decimal(10,2) * 2)::text, "at"::timestamp, v from orders where v > 4'
    found = {
        (row["id"], row["shop"], row["price"], row["at"], row["more"]["v"], key)
        for key, row in records(broker, f"large_{name}")
    }
    expected = {
        (id_, shop, price, f"{at.isoformat(timespec='microseconds')}Z", v, str(id_).encode())
        for id_, shop, price, at, v in expected_rows(query, sent)
    }
    assert found <= expected, found - expected
    return found == expected


def check_sums(broker: Broker, name: str, sent: list[dict[str, Any]]) -> None:
    """The newest row of each key is the sum of all that was sent."""
    newest = {key: (row["shop"], row["v"], row["n"]) for key, row in records(broker, f"sums_{name}")}
    assert sorted(newest.values()) == sorted(
        expected_rows("select shop, sum(v)::int, count(*) from orders group by 1", sent)
    )
    assert {key for key in newest if key} == {row[0].encode() for row in newest.values()}


def test_sums_are_those_of_a_batch_query_and_go_on_after_a_failure(kafka: Broker, tmp_path: Path):
    name = "r" + uuid.uuid4().hex[:8]
    app = hw.App("shop")
    app.topic(name, ORDERS, key="shop", time="at")
    sql = f"select shop, sum(v) as v, count(*) as n from {name} group by shop"
    app.stream(f"sums_{name}", key="shop", latency="realtime", sql=sql)
    sent = [order(number) for number in range(300)]
    with running(app, tmp_path, kafka) as world:
        with world.client.producer(name, id="till-1") as producer:  # in a transaction
            for row in sent[:50]:
                producer.send(row)
        other = Producer({"bootstrap.servers": kafka.address})
        for value in (b'{"id": "x"', b'{"shop": "no id", "v": 9}', b'{"id": 1, "v": "text"}', None):
            other.produce(name, value, key=b"5")
        other.flush(10)
        world.client.send_many(name, sent[50:150])
        world.engine.catch_up()
        check_sums(kafka, name, sent[:150])
        world.client.send_many(name, sent[150:])
        query = world.supervisor(f"sums_{name}").wait_until_running()
        assert query._running is not None
        query._running.stop()  # in the middle of a batch, as a failure would end it
        world.engine.catch_up()
        check_sums(kafka, name, sent)
        told = world.sql("select latency, delivery, state, in_, unaccounted, batches from hw_pipelines")
        delivery = "at least once, outside ledger and identity"
        assert told == [("realtime", delivery, "running", None, None, None)]


APP = """
import headwater as hw

app = hw.App("shop")
app.topic("{name}", "{type}", key="shop", time="at", partitions=2)
app.stream("large_{name}", key="id", latency="realtime", sql="select id, upper(shop) as shop, price * 2 as price, at, "
    "named_struct('v', v) as more from {name} where v > 4")
app.view("seen_{name}", key="id", sql="select id, shop from large_{name}")
"""


@only_in_full_runs
def test_an_engine_killed_in_real_time_mode_loses_nothing(
    kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = "k" + uuid.uuid4().hex[:8]
    sent = [order(number) for number in range(300)]
    (tmp_path / "app.py").write_text(APP.format(name=name, type=ORDERS))
    monkeypatch.setenv("HEADWATER_LOG", f"kafka://{kafka.address}")
    monkeypatch.setenv("HEADWATER_SPARK_CORES", "4")
    engine = EngineProcess(tmp_path / "app.py", tmp_path / "data")
    engine.start()
    try:
        with hw.connect(f"kafka://{kafka.address}") as client:
            eventually(lambda: name in set(client.topics()))
            client.send_many(name, sent[:150])
            eventually(lambda: has_large(kafka, name, sent[:150]))
            killed = engine.pid
            assert killed is not None
            client.send_many(name, sent[150:200])
            os.killpg(killed, signal.SIGKILL)
            client.send_many(name, sent[200:])
            eventually(lambda: has_large(kafka, name, sent))
            read = [event for event in client.read(f"large_{name}", stop="end") if event.error is None]
            assert {event.value["id"] for event in read} == {row["id"] for row in sent if row["v"] > 4}
            assert read[0].value["price"] == sent[read[0].value["id"]]["price"] * 2
            assert read[0].occurred_at.isoformat() == sent[read[0].value["id"]]["at"].replace("Z", "+00:00")
        eventually(lambda: seen(tmp_path / "data", name) == {row["id"] for row in sent if row["v"] > 4})
    finally:
        engine.stop()


def eventually(true: Callable[[], bool], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def seen(data: Path, name: str) -> set[int]:
    """What a pipeline of the usual kind has of the stream."""
    with hw.connect(data) as client:
        return {row["id"] for row in client.view(f"seen_{name}").rows()}


def test_the_plan_names_what_real_time_mode_cannot_run():
    session = get_spark().session  # first: F.udf needs one
    upper = F.udf(lambda text: text.upper(), "string")
    asked: dict[str, Any] = {
        "<lambda>": lambda orders: orders.select(upper("shop").alias("shop")),
        "distinct": lambda orders: orders.select("shop").distinct(),
        "a join": lambda orders: orders.join(orders.select("id", "at"), ["id", "at"]),
        "update mode": lambda orders: orders.groupBy(F.session_window("at", "1 minute"), "shop").count(),
        'its key "at"': lambda orders: orders.select("at"),
        "rand": lambda orders: orders.withColumn("dice", F.rand()),
    }
    app = hw.App("shop")
    app.topic("orders", ORDERS, time="at")
    for number, (part, function) in enumerate(asked.items()):
        key = "at" if "key" in part else None

        @app.stream(f"fast_{number}", latency="realtime", key=key)
        def fast(orders, function=function):
            return function(orders)

    checked = list(dry_run(app.resolve(), Path("nowhere"), lambda: session, log_url="kafka://127.0.0.1:9092"))
    for part, found in zip(asked, checked, strict=True):
        assert found.error is not None, part
        assert part in found.error["title"], found
        assert "test_realtime.py" in found.error["location"]
    assert {found.error["code"] for found in checked if found.error} == {"NOT_REALTIME", "BAD_PIPELINE"}


def test_the_plan_says_what_qualifies_and_where():
    app = hw.App("shop")
    app.topic("orders", ORDERS, time="at")
    sql = "select shop, window(at, '1 minute') as w, max(price) as top from orders group by 1, 2"
    app.stream("fast", key="shop", latency="realtime", sql=sql)
    app.view("behind", key="shop", sql="select shop, top from fast")
    spark = lambda: get_spark().session  # noqa: E731
    first, second = dry_run(app.resolve(), Path("nowhere"), spark, log_url="kafka://127.0.0.1:9092")
    assert (first.error, first.mode, first.stateful) == (None, "update", ("aggregate",))
    assert "real-time mode can run it" in first.notes[0]
    assert second.error is None


def test_the_plan_refuses_real_time_mode_on_the_embedded_log():
    app = hw.App("shop")
    app.topic("orders", ORDERS, time="at")
    app.stream("fast", latency="realtime", sql="select shop from orders")
    (checked,) = dry_run(app.resolve(), Path("nowhere"), lambda: get_spark().session)
    assert checked.error is not None
    assert "embedded log" in checked.error["title"]
