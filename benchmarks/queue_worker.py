"""A worker in its own process that records when each message reaches it.

    python -m benchmarks.queue_worker embedded|rabbitmq ADDRESS QUEUE COUNT

The publisher writes the time of its call to the body; the worker reads its own clock on arrival. Both use the monotonic
clock, which Linux shares between processes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.other_process import PAUSE, WARM_UP, OtherProcess

__all__ = ["latencies"]


def latencies(
    kind: str, address: str, queue: str, count: int, publish: Callable[[bytes], object], between: Callable[[], object]
) -> list[float]:
    """Publish messages, each after a pause and a call of `between`; returns the latency of each in seconds."""
    total = count + WARM_UP
    with OtherProcess("benchmarks.queue_worker", kind, address, queue, str(total)) as worker:
        worker.line()
        for _ in range(total):
            time.sleep(PAUSE)
            between()
            publish(str(time.monotonic_ns()).encode())
        return [each / 1e9 for each in json.loads(worker.line())[WARM_UP:]]


def embedded(address: str, queue: str, count: int) -> list[int]:
    """Receive from a queue in a folder; returns the latency of each message in nanoseconds."""
    from headwater.queues.embedded import EmbeddedBroker

    broker = EmbeddedBroker(Path(address))
    receiver = broker.receiver(queue)
    print("ready", flush=True)
    taken: list[int] = []
    while len(taken) < count:
        for delivery in receiver.receive(timeout=60):
            taken.append(time.monotonic_ns() - int(delivery.message.body))
            receiver.ack([delivery])
    receiver.close()
    broker.close()
    return taken


def rabbitmq(address: str, queue: str, count: int) -> list[int]:
    """Receive from a queue of RabbitMQ; returns the latency of each message in nanoseconds."""
    return asyncio.run(_rabbitmq(address, queue, count))


async def _rabbitmq(address: str, queue: str, count: int) -> list[int]:
    import aio_pika

    taken: list[int] = []
    async with await aio_pika.connect_robust(address) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=1)
        declared = await channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "quorum"})
        async with declared.iterator() as messages:
            print("ready", flush=True)
            async for message in messages:
                taken.append(time.monotonic_ns() - int(message.body))
                await message.ack()
                if len(taken) == count:
                    return taken
    return taken


def main() -> None:
    """Print "ready", then the latency of each message in nanoseconds."""
    kind, address, queue, count = sys.argv[1:]
    print(json.dumps({"embedded": embedded, "rabbitmq": rabbitmq}[kind](address, queue, int(count))), flush=True)


if __name__ == "__main__":
    main()
