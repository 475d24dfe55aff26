"""A real Kafka broker on this machine with confluent-kafka, for the same events as JSON bytes.

    python -m benchmarks.kafka_producer [--quick] [--json] [--folder FOLDER]

Two topics: Kafka's default leaves syncing to the operating system; `flush.messages=1` syncs each batch before
it is acknowledged, as `durable` does in Headwater. CPU includes the broker. One partition, acks=all.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.bench_options import Options, bench_options
from benchmarks.follower import Follower
from benchmarks.machine import this_machine
from benchmarks.measure import Case, Watch, measure, percentile, say
from benchmarks.orders import json_orders, orders
from benchmarks.senders import send_at_once
from benchmarks.table import Row, print_table, rate_row
from tests.services.kafka import Broker, create_kafka_topic, start_kafka

__all__ = ["SYNCED", "UNSYNCED", "Kafka", "kafka"]

UNSYNCED, SYNCED = "unsynced", "synced"


class Kafka:
    """A broker with the topics of the benchmark; its methods return cases for `measure`."""

    def __init__(self, broker: Broker) -> None:
        self.address = broker.address
        self.process = broker.process.pid
        create_kafka_topic(self.address, UNSYNCED)
        create_kafka_topic(self.address, SYNCED, flush_messages=1)

    def append_groups(self, topic: str, *, groups: int, group: int = 1_000, idempotent: bool = True) -> Case:
        """Returns a case that appends groups of events and waits for each."""
        values = [{"value": value} for value in json_orders(group)]
        producer = self.producer(enable_idempotence=idempotent)

        def case(watch: Watch) -> None:
            with watch.lap(group * groups):
                for _ in range(groups):
                    producer.produce_batch(topic, values)
                    producer.flush()

        return case

    def append_all(self, topic: str, *, count: int, from_dicts: bool = False) -> Case:
        """Returns a case that sends events as fast as the producer accepts them, and waits at the end."""
        block = min(count, 10_000)
        values, rows = json_orders(block), orders(block)
        producer = self.producer(queue_buffering_max_messages=1_000_000)
        encode = msgspec.json.Encoder().encode

        def case(watch: Watch) -> None:
            with watch.lap(count):
                for _ in range(count // block):
                    encoded = map(encode, rows) if from_dicts else values
                    producer.produce_batch(topic, [{"value": value} for value in encoded])
                    producer.poll(0)
                producer.flush()

        return case

    def concurrent_senders(self, topic: str, *, senders: int, count: int) -> Case:
        """Returns a case with `senders` threads that share a producer; each has one event in flight.

        Each number of senders gets its fastest setting: a linger of a millisecond makes 64 senders 8 times
        faster on a synced topic, and one sender 3 times slower.
        """
        values = json_orders(1_000)
        producer = self.producer(linger_ms=0 if senders == 1 else 1)

        def case(watch: Watch) -> None:
            with _polled(producer), watch.lap(senders * count):
                send_at_once(
                    lambda number: _send_and_wait(producer, topic, values[number % len(values)]), senders, count
                )

        return case

    def read(self, topic: str, *, count: int, decoded: bool = False) -> Case:
        """Returns a case that reads the first `count` events of a topic, as bytes or decoded from JSON."""

        def case(watch: Watch) -> None:
            consumer = self.consumer()
            consumer.assign([TopicPartition(topic, 0, 0)])
            seen = 0
            with watch.lap(count):
                while seen < count:
                    messages = consumer.consume(min(10_000, count - seen), timeout=10)
                    values = [message.value() or b"" for message in messages]
                    seen += len([msgspec.json.decode(value) for value in values] if decoded else values)
            consumer.close()

        return case

    def fill(self, topic: str, count: int) -> None:
        """Create a topic with `count` events."""
        create_kafka_topic(self.address, topic)
        self.append_all(topic, count=count)(Watch())

    def latency(self, topic: str, *, count: int) -> list[float]:
        """Measure the time from `produce` until a consumer in another process has each event, in seconds."""
        create_kafka_topic(self.address, f"{topic}-latency", **({"flush_messages": 1} if topic == SYNCED else {}))
        producer = self.producer(linger_ms=0)
        encode = msgspec.json.encode
        with Follower("kafka", self.address, f"{topic}-latency", count) as follower:

            def send(order: dict[str, Any]) -> None:
                producer.produce(f"{topic}-latency", encode(order))
                producer.flush()

            return follower.latencies(send)

    def producer(self, **settings: object) -> Producer:
        """Returns a producer with acks=all; names of settings have `_` in place of `.`."""
        return Producer(_settings({"bootstrap.servers": self.address, "acks": "all", **settings}))

    def consumer(self) -> Consumer:
        """Returns a consumer outside any group, with large fetches."""
        return Consumer(
            _settings(
                {
                    "bootstrap.servers": self.address,
                    "group_id": "benchmark",
                    "enable_auto_commit": False,
                    "fetch_message_max_bytes": 10_000_000,
                    "queued_min_messages": 1_000_000,
                }
            )
        )


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Kafka]:
    """Yields a broker that runs during the block, with the heap of Kafka's start script."""
    say("starting a Kafka broker ...")
    broker = start_kafka(folder, heap="1g")
    try:
        yield Kafka(broker)
    finally:
        broker.stop()


@contextlib.contextmanager
def _polled(producer: Producer) -> Iterator[None]:
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.is_set():
            producer.poll(0.1)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _send_and_wait(producer: Producer, topic: str, value: bytes) -> None:
    delivered = threading.Event()

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        assert error is None, error
        delivered.set()

    producer.produce(topic, value, on_delivery=on_delivery)
    delivered.wait()


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    quiet = {"log_level": 3}  # errors only: the driver also logs each retry while the broker is starting
    return quiet | {name.replace("_", "."): value for name, value in settings.items()}


def kafka_rows(options: Options, server: Kafka) -> list[Row]:
    """Returns the rows of the table: groups, all at once, concurrent senders, reading, latency."""
    groups, count = options.size(full=200, quick=2), options.size(full=500_000, quick=10_000)
    cases: dict[str, Case] = {}
    for topic in (UNSYNCED, SYNCED):
        for idempotent in (True, False):
            name = f"{topic}, groups of 1,000, {'idempotent' if idempotent else 'not idempotent'}"
            cases[name] = server.append_groups(topic, groups=groups, idempotent=idempotent)
        cases[f"{topic}, all at once"] = server.append_all(topic, count=count)
        for senders, full in ((1, 1_000), (64, 100)):
            each = options.size(full=full, quick=2)
            cases[f"{topic}, {senders} at once"] = server.concurrent_senders(topic, senders=senders, count=each)
    server.fill("filled", count)
    cases["read as bytes"] = server.read("filled", count=count)
    cases["read as dicts"] = server.read("filled", count=count, decoded=True)
    measured = measure(cases, repeats=options.repeats, processes=[server.process])
    rows = [rate_row(name, figures) for name, figures in measured.items()]
    for topic in (UNSYNCED, SYNCED):
        say(f"latency, {topic}")
        seconds = server.latency(topic, count=options.size(full=1_000, quick=10))
        rows += [Row(f"{topic}, latency p{p}", percentile(seconds, p / 100) * 1e3, "ms") for p in (50, 99)]
    return rows


def main() -> None:
    """Print the table of the Kafka broker."""
    with bench_options("kafka producer") as options, kafka(options.folder / "kafka") as server:
        machine = this_machine(options.folder)
        print_table("Kafka, 200-byte events", machine, kafka_rows(options, server), as_json=options.json)


if __name__ == "__main__":
    main()
