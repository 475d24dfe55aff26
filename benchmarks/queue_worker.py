"""A worker in a process of its own that notes when each message reaches it.

    python -m benchmarks.queue_worker embedded|rabbitmq ADDRESS QUEUE COUNT

The publisher puts the time of its call into the body; the worker takes its own time on arrival. Both read the monotonic
clock, which on Linux is one clock for all processes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Worker"]

WARM_UP = 20
PAUSE = 0.002
LONGEST = 120.0  # seconds; a worker that takes longer will never get its messages


class Worker:
    """The other process, seen from the publisher's side; a context manager that waits for its end."""

    def __init__(self, kind: str, address: str, queue: str, count: int) -> None:
        self._count = count + WARM_UP
        command = [sys.executable, "-m", "benchmarks.queue_worker", kind, address, queue, str(self._count)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._killer = threading.Timer(LONGEST, self._process.kill)
        self._killer.start()

    def __enter__(self) -> Worker:
        self._line()
        return self

    def __exit__(self, *_: object) -> None:
        self._killer.cancel()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def latencies(self, publish: Callable[[bytes], object], between: Callable[[], object]) -> list[float]:
        """Seconds that each message took; before each of them a pause and a call of `between`."""
        for _ in range(self._count):
            time.sleep(PAUSE)
            between()
            publish(str(time.monotonic_ns()).encode())
        return [each / 1e9 for each in json.loads(self._line())[WARM_UP:]]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with code {self._process.wait()}")
        return line


def embedded(address: str, queue: str, count: int) -> list[int]:
    """Nanoseconds of each message of a queue in a folder."""
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
    """Nanoseconds of each message of a RabbitMQ's queue."""
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
    """Print "ready", then the nanoseconds each message took."""
    kind, address, queue, count = sys.argv[1:]
    print(
        json.dumps({"embedded": embedded, "rabbitmq": rabbitmq}[kind](address, queue, int(count))), flush=True
    )


if __name__ == "__main__":
    main()
