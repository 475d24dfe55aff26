"""Latency from a producer to a plain consumer, Kafka to Kafka: real-time mode beside micro-batches.

    python -m benchmarks.scale_realtime [--quick] [--json] [--folder FOLDER]

One event every 50 ms, one partition, a broker and Spark on this machine. With micro-batches, the aggregate is a view
in SQLite, and the consumer reads its changelog topic.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

import headwater as hw
from benchmarks.bench_options import Options, bench_options
from benchmarks.machine import this_machine
from benchmarks.measure import percentile, say
from benchmarks.table import Row, at_most, print_table
from headwater.backends import open_log
from headwater.engine.context import EngineContext
from headwater.engine.engine import Engine
from headwater.engine.spark.session import Spark, SparkSettings
from headwater.events import SystemClock
from headwater.store import SqliteDialect, SqlStore
from tests.services.kafka import start_kafka

__all__ = ["realtime_rows"]

_SELECT = "select id, shop, sent from {} where id >= 0"
_AGGREGATE = "select shop, count(*) as n, max(sent) as sent from {} group by shop"
_PAUSE = 0.05
_WARM_UP = 40
_PATIENCE = 120.0
_SHOPS = 200
"""As many as events in ten seconds: a micro-batch emits one change for several events of a shop."""


def realtime_rows(options: Options, spark: SparkSession, address: str) -> Iterator[Row]:
    """Yields p50 and p95 of a select and an aggregate, each beside micro-batches in the same run.

    Args:
        options: The options of the run.
        spark: A session with at least three task slots.
        address: Host and port of a broker.
    """
    for figure, sql, aim in (("select", _SELECT, 10), ("aggregate", _AGGREGATE, 50)):
        found = {latency: _latencies(options, spark, address, sql, latency) for latency in ("realtime", None)}
        for percent in (50, 95):
            fast, slow = (percentile(found[latency], percent / 100) * 1e3 for latency in ("realtime", None))
            yield Row(
                f"Kafka to Kafka, {figure}, real-time, p{percent}",
                fast,
                "ms",
                compared_with=f"micro-batches, {slow:.0f} ms",
                ratio=fast / slow,
                aim=at_most(aim, unit="ms") if percent == 50 else None,
            )


def _latencies(options: Options, spark: SparkSession, address: str, sql: str, latency: str | None) -> list[float]:
    """Returns the latency of each event in seconds, after warm-up."""
    name = "e" + uuid.uuid4().hex[:8]
    say(f"latency, {latency or 'micro-batches'}: {sql}")
    app = hw.App("latency")
    app.topic(name, "id bigint, shop string, sent bigint")
    if latency or "group by" not in sql:
        app.stream("out_" + name, latency=latency, sql=sql.format(name))
        topic = f"out_{name}"
    else:
        app.view("out_" + name, key="shop", sql=sql.format(name))
        topic = f"out_{name}.changes"
    with _running(app, options.folder / name, spark, address):
        found = _sent_and_received(address, name, topic, options.size(full=400, quick=10))
    say(f"  p50 {percentile(found, 0.5) * 1e3:.1f} ms, p95 {percentile(found, 0.95) * 1e3:.1f} ms")
    return found


def _sent_and_received(address: str, source: str, target: str, count: int) -> list[float]:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": address, "group.id": "benchmark"})
    consumer.assign([TopicPartition(target, 0, 0)])
    sent: list[int] = []
    found: dict[int, float] = {}

    def send() -> None:
        for number in range(_WARM_UP + count):
            sent.append(time.monotonic_ns())
            event = {"id": number, "shop": f"s{number % _SHOPS}", "sent": sent[-1]}
            producer.produce(source, json.dumps(event))
            producer.poll(0)
            time.sleep(_PAUSE)
        producer.flush()

    def receive(wanted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not wanted():
            message = consumer.poll(1.0)
            if message is None:
                assert time.monotonic() < deadline, "no more output"
                continue
            row: dict[str, Any] = json.loads(message.value() or b"{}")
            began = row.get("after", row)["sent"]
            found.setdefault(began, (time.monotonic_ns() - began) / 1e9)

    first = {"id": 0, "shop": "first", "sent": time.monotonic_ns()}
    producer.produce(source, json.dumps(first))
    producer.flush()
    receive(lambda: bool(found))  # the pipeline has started
    sender = threading.Thread(target=send)
    sender.start()
    receive(lambda: not sender.is_alive() and max(sent) in found)
    consumer.close()
    return list(found.values())[_WARM_UP + 1 :]


@contextmanager
def _running(app: hw.App, folder: Path, spark: SparkSession, address: str) -> Iterator[None]:
    log = open_log(f"kafka://{address}", index_time=True)
    store = SqlStore(SqliteDialect(folder / "store"))
    engine = Engine(app.resolve(), lambda: spark, EngineContext(folder, log, store, SystemClock()))
    engine.start()
    try:
        for supervisor in engine.supervisors.values():
            supervisor.wait_until_running()
        yield
    finally:
        engine.stop()
        store.close()
        log.close()


def main() -> None:
    """Print the table."""
    with bench_options("scale_realtime") as options:
        broker = start_kafka(options.folder / "kafka", heap="1g")
        spark = Spark(options.folder / "spark", SparkSettings(cores=4, memory="2g"))
        try:
            rows = list(realtime_rows(options, spark.session, broker.address))
        finally:
            spark.stop()
            broker.stop()
        print_table("Real-time mode", this_machine(options.folder), rows, as_json=options.json)


if __name__ == "__main__":
    main()
