"""A consumer in its own process that records when each event reaches it.

    python -m benchmarks.follower kafka|headwater ADDRESS TOPIC COUNT

The sender writes the time of its call to `product_id`; the follower reads its own clock on arrival. Both use
the monotonic clock, which Linux shares between processes.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.orders import orders
from benchmarks.other_process import PAUSE, WARM_UP, OtherProcess

__all__ = ["Follower"]


class Follower:
    """The consumer process, as the sender sees it; a context manager that ends it."""

    def __init__(self, kind: str, address: str, topic: str, count: int) -> None:
        self.count = count
        self._process = OtherProcess("benchmarks.follower", kind, address, topic, str(count + WARM_UP))

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.__exit__(*error)

    def latencies(
        self, send: Callable[[dict[str, Any]], object], between: Callable[[], object] = lambda: None
    ) -> list[float]:
        """Send events, each after a pause and a call of `between`; returns the latency of each in seconds."""
        self._process.line()
        for order in itertools.islice(itertools.cycle(orders(100)), self.count + WARM_UP):
            time.sleep(PAUSE)
            between()
            send({**order, "product_id": time.monotonic_ns()})
        nanoseconds: list[int] = json.loads(self._process.line())
        return [each / 1e9 for each in nanoseconds[WARM_UP:]]


def kafka_events(address: str, topic: str) -> Iterator[dict[str, Any]]:
    """Yields the decoded events of a Kafka topic, after a `{}` when the consumer is ready."""
    import msgspec
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "follower"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(0.5)
    yield {}
    while True:
        message = consumer.poll(60)
        if message is None:
            raise TimeoutError("no event for a minute")
        yield msgspec.json.decode(message.value() or b"")


def headwater_events(address: str, topic: str) -> Iterator[dict[str, Any]]:
    """Yields the events of a topic in a folder or on a server, after a `{}` when the consumer is ready."""
    import headwater as hw

    with hw.connect(address) as client, client.consumer(topic, group="follower") as consumer:
        yield {}
        for event in consumer:
            yield event.value or {}


def main() -> None:
    """Print "ready", then the latency of each event in nanoseconds."""
    kind, address, topic, count = sys.argv[1:]
    events = {"kafka": kafka_events, "headwater": headwater_events}[kind](address, topic)
    next(events)
    print("ready", flush=True)
    taken = [time.monotonic_ns() - event["product_id"] for event in itertools.islice(events, int(count))]
    print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
