"""Topics, events and consumers: what a client and the node cost as they grow."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

import headwater as hw
from benchmarks.growth.figures import Figure, cost, disk_row, idle_rows, memory_rows, run_command
from benchmarks.other_process import OtherProcess

__all__ = ["CONSUMERS", "EVENTS", "TOPICS", "client_rows", "node_rows"]

_DDL = "id bigint, k bigint, at timestamp"
_BLOCK = 1_000_000
Case = tuple[Callable[[Path, int], None], Callable[[Path, int, bool], Iterator[Figure]]]
"""What creates a folder of some size, and what measures it."""


def events(start: int, number: int) -> pa.RecordBatch:
    """Returns small events, a millisecond apart."""
    ids = np.arange(start, start + number)
    times = pa.array(ids * 1_000 + 1_767_225_600_000_000).cast(pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(ids % 1_000), times], ["id", "k", "at"])


def _create_topics(folder: Path, size: int) -> None:
    with hw.connect(folder) as client:
        for number in range(size):
            client.create_topic(f"t{number}", _DDL, key="k", time="at", durability="fast")
            client.send_many(f"t{number}", events(0, 1))


def _create_events(folder: Path, size: int) -> None:
    with hw.connect(folder) as client:
        client.create_topic("t0", _DDL, key="k", time="at", durability="fast")
        for start in range(0, size, _BLOCK):
            client.send_many("t0", events(start, min(_BLOCK, size - start)))


def client_rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yields the costs of a client that opens a log, appends to its topic t0 and reads it."""
    repeats = 3 if quick else 50

    def start() -> None:
        with hw.connect(folder) as client:
            client.topics()

    yield cost("client, start", start, repeats)
    with hw.connect(folder) as client:
        numbers = count(10**12)
        ends: list[int] = []
        append = cost(
            "append of one event", lambda: ends.append(client.send("t0", _event(next(numbers))).offset), repeats
        )
        yield append
        yield cost("read of one event at the end", lambda: list(client.read("t0", start=ends[-1], stop="end")), repeats)
        with client.consumer("t0", group="g", start="latest") as consumer:

            def commit() -> None:
                client.send("t0", _event(next(numbers)))
                next(iter(consumer))
                consumer.commit()

            yield cost("append, receive and commit in a group", commit, repeats)
        for name in client.topics():
            client.send(name, _event(next(numbers)))
        yield from memory_rows("client that appended to each topic", [os.getpid()])


def _event(number: int) -> dict[str, object]:
    return {"id": number, "k": number % 1_000, "at": "2026-01-01T00:00:00Z"}


def node_rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    """Yields the start of a node, and what it holds and does while nothing happens."""
    began = time.perf_counter()
    with OtherProcess("benchmarks.growth.child", "node", str(folder), "0") as node:
        pid, _ = node.line().split()
        cpu = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        took = time.perf_counter() - began
        yield Figure("node, start", cpu / os.sysconf("SC_CLK_TCK") * 1e3, "ms", took * 1e3)
        time.sleep(0 if quick else 3)
        yield from memory_rows("idle node", [int(pid)])
        yield from idle_rows("idle node", [int(pid)], 1 if quick else 15)


def _measure_log(folder: Path, size: int, quick: bool) -> Iterator[Figure]:
    yield disk_row("log on disk", folder)
    yield from node_rows(folder, quick=quick)
    yield from client_rows(folder, quick=quick)
    for command in ("topics", "status"):
        yield run_command(f"headwater {command}", command, folder=folder)


def _measure_consumers(folder: Path, size: int, quick: bool) -> Iterator[Figure]:
    """Followers of one topic over HTTP, then as many groups that have committed."""
    with OtherProcess("benchmarks.growth.child", "node", str(folder), str(size)) as node:
        pid, url = node.line().split()
        followers = [_follow(url) for _ in range(size)]
        yield from memory_rows("node with followers", [int(pid)])
        yield from idle_rows("node with followers", [int(pid)], 1 if quick else 15)
        with hw.connect(url) as client:
            before = _ticks(pid)
            sent = time.perf_counter()
            for number in range(5):
                client.send("t0", _event(number))
                for follower in followers:
                    _receive(follower)
            wall = (time.perf_counter() - sent) / 5 * 1e3
            yield Figure("one event to all followers, CPU of the node", (_ticks(pid) - before) / 5 * 1e3, "ms", wall)
        for follower in followers:
            follower.close()
    with hw.connect(folder) as client:
        for number in range(size):
            with client.consumer("t0", group=f"group-{number}", start="earliest") as consumer:
                next(iter(consumer))
                consumer.commit()
        yield cost("lag of all groups", client.lag, 2 if quick else 10)
    yield disk_row("log with its groups on disk", folder)
    yield from client_rows(folder, quick=quick)
    yield run_command("headwater status", "status", folder=folder)


def _ticks(pid: str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _follow(url: str) -> socket.socket:
    host = urlsplit(url).netloc
    name, _, port = host.partition(":")
    opened = socket.create_connection((name, int(port)))
    opened.settimeout(60)
    opened.sendall(
        f"GET /api/topics/t0/follow?start=latest HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    _receive(opened, b": following")
    return opened


def _receive(follower: socket.socket, wanted: bytes = b"data:") -> None:
    found = b""
    while wanted not in found:
        part = follower.recv(65536)
        if not part:
            raise ConnectionError(f"the node ended the stream: {found!r}")
        found += part


def _create_one(folder: Path, size: int) -> None:
    _create_events(folder, 1)


TOPICS: Case = (_create_topics, _measure_log)
EVENTS: Case = (_create_events, _measure_log)
CONSUMERS: Case = (_create_one, _measure_consumers)
