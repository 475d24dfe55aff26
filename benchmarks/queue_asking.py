"""Requests and replies between two processes: ours, ours through RabbitMQ, and a bare client's by direct reply-to.

    python -m benchmarks.queue_asking ours|bare ADDRESS

replies until its standard input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

import headwater as hw
from headwater.backends import open_responder
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.queues.request_reply.dispatcher import Answer

__all__ = ["bare_asks", "our_asks"]

_QUEUE = "prices.quote"
_REPLIES = "amq.rabbitmq.reply-to"
_WARM_UP = 20


def our_asks(folder: Path, count: int, *, url: str | None = None) -> list[float]:
    """Returns the latency of each of our requests in seconds: in a data folder, or through the RabbitMQ of a URL."""
    folder.mkdir()
    with (
        hw.Client(EventLog(folder), SystemClock(), folder=folder, queues=url) as client,
        _answering("ours", url or str(folder)),
    ):
        return _timed(lambda n: client.ask(_QUEUE, {"n": n}, timeout=30), count)


def _timed(ask: Callable[[int], object], count: int) -> list[float]:
    taken = []
    for number in range(count + _WARM_UP):
        begun = time.perf_counter()
        ask(number)
        taken.append(time.perf_counter() - begun)
    return taken[_WARM_UP:]


def bare_asks(url: str, count: int) -> list[float]:
    """Returns the latency of each request of a bare client through RabbitMQ in seconds."""
    with _answering("bare", url):
        return asyncio.run(_bare_asks(url, count))


async def _bare_asks(url: str, count: int) -> list[float]:
    taken = []
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=False)
        replies: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        inbox = await channel.get_queue(_REPLIES, ensure=False)
        await inbox.consume(replies.put, no_ack=True)
        for number in range(count + _WARM_UP):
            begun = time.perf_counter()
            question = aio_pika.Message(str(number).encode(), reply_to=_REPLIES, correlation_id=str(number))
            await channel.default_exchange.publish(question, routing_key=_QUEUE, mandatory=False)
            await replies.get()
            taken.append(time.perf_counter() - begun)
    return taken[_WARM_UP:]


@contextlib.contextmanager
def _answering(kind: str, address: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.queue_asking", kind, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"nobody answers: {process.wait()}")
        yield
        process.stdin.close()


def _answer(question: dict[str, int]) -> dict[str, int]:
    return question


async def _answer_on_rabbit(url: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(publisher_confirms=False)
        queue = await channel.declare_queue(_QUEUE, auto_delete=True)

        async def answer(message: AbstractIncomingMessage) -> None:
            assert message.reply_to is not None
            reply = aio_pika.Message(message.body, correlation_id=message.correlation_id)
            await channel.default_exchange.publish(reply, routing_key=message.reply_to, mandatory=False)

        await queue.consume(answer, no_ack=True)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Reply until standard input closes."""
    kind, address = sys.argv[1:]
    if kind == "bare":
        asyncio.run(_answer_on_rabbit(address))
        return
    with contextlib.closing(open_responder(address, [Answer.from_function(_answer, _QUEUE)])):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
