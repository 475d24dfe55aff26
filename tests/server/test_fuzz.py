"""Thousands of requests that make no sense: each is answered in our form, none is our fault, nothing is written."""

from __future__ import annotations

import http.client
import json
import random
import socket
import string
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import headwater as hw
from headwater.log.wire import FRAMES_MEDIA_TYPE
from headwater.server import Node

REQUESTS = 3_000
TOPIC = "orders"
WORDS = [
    "",
    "0",
    "-1",
    "7",
    "earliest",
    "latest",
    "end",
    "0:1",
    "0:1,1:2",
    "null",
    "{}",
    "[]",
    "\x00",
    "ü",
    "²",
    "-5m",
    "1e400",
]
WORDS += [
    "2026-01-01T00:00:00Z",
    "9" * 30,
    "../..",
    "%2e%2e",
    "a" * 300,
    "'; drop table",
    "<script>",
    "true",
    "billing",
]
TYPES = [
    "application/json",
    "application/x-ndjson",
    "application/cloudevents+json",
    FRAMES_MEDIA_TYPE,
    "text/plain",
    "",
    "x/y; a=b",
]
FIELDS = [
    "name",
    "schema",
    "key",
    "partitions",
    "positions",
    "wait",
    "group",
    "members",
    "generation",
    "offsets",
    "start",
]
FIELDS += [
    "order_id",
    "amount",
    "session",
    "to",
    "dry_run",
    "mark",
    "specversion",
    "data",
    "tombstone",
    "max_bytes",
    "given",
]


class Fuzz:
    """Draws requests from a seed, along the addresses that the node describes."""

    def __init__(self, seed: int, places: list[tuple[str, str]]) -> None:
        self._random = random.Random(seed)
        self._places = places

    def request(self) -> tuple[str, str, bytes, dict[str, str]]:
        method, path = self._random.choice(self._places)
        if self._random.random() < 0.1:
            method = self._random.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "TRACE", "X"])
        deletes = method == "DELETE" and path in ("/api/topics/{name}", "/api/topics/{topic}")
        for part in ("{name}", "{topic}", "{group}", "{member}"):
            word = (
                TOPIC if not deletes and part in ("{name}", "{topic}") and self._random.random() < 0.7 else self.word()
            )
            path = path.replace(part, quote(word, safe=""))
        names = ["start", "stop", "partitions", "limit", "key", "wait", "known", "partition", "version", "producer"]
        query = "&".join(
            f"{self._random.choice(names)}={quote(self.word())}" for _ in range(self._random.choice([0, 0, 1, 3]))
        )
        headers = {"content-type": self._random.choice(TYPES)}
        if self._random.random() < 0.2:
            name = self._random.choice(
                ["accept", "last-event-id", "ce-id", "ce-time", "ce-headers", "traceparent", "expect"]
            )
            headers[name] = quote(self.word())[:200]
        return method, f"{path}?{query}" if query else path, self.body(), headers

    def word(self) -> str:
        if self._random.random() < 0.8:
            return self._random.choice(WORDS)
        return "".join(self._random.choice(string.printable) for _ in range(self._random.randrange(20)))

    def body(self) -> bytes:
        draw = self._random.random()
        if draw < 0.2:
            return self._random.randbytes(self._random.randrange(200))
        text = json.dumps(self.value(0))
        if draw < 0.3:
            return text[: self._random.randrange(len(text) + 1)].encode()
        return "\n".join([text] * self._random.choice([1, 1, 1, 3])).encode()

    def value(self, depth: int) -> Any:
        draw = self._random.random()
        if depth == 0 or (draw < 0.3 and depth < 4):
            return {self._random.choice(FIELDS): self.value(depth + 1) for _ in range(self._random.randrange(5))}
        if draw < 0.4 and depth < 4:
            return [self.value(depth + 1) for _ in range(self._random.randrange(3))]
        return self._random.choice([None, True, 0, -1, 2**63, 1.5, 1e308, self.word(), self.word(), self.word()])


@pytest.fixture
def fuzzed(tmp_path: Path) -> Any:
    with Node(tmp_path, port=0) as node, hw.connect(node.url) as client:
        client.create_topic(TOPIC, "order_id string not null, amount int", key="order_id", partitions=2)
        client.send(TOPIC, {"order_id": "kept", "amount": 1})
        yield node, client


def places(node: Node) -> list[tuple[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=30)
    connection.request("GET", "/api/openapi.json")
    described = json.loads(connection.getresponse().read())
    connection.close()
    return [
        (method.upper(), path)
        for path, methods in described["paths"].items()
        for method in methods
        if not path.endswith(("/follow", "/changes", "/live"))  # a stream that is right goes on for ever
    ]


def test_no_request_is_answered_with_a_fault_of_ours(fuzzed: tuple[Node, hw.Client], caplog: pytest.LogCaptureFixture):
    node, client = fuzzed
    fuzz = Fuzz(seed=11, places=places(node))
    statuses: Counter[int] = Counter()
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=60)
    for _ in range(REQUESTS):
        method, path, body, headers = fuzz.request()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (http.client.HTTPException, ConnectionError, ValueError):
            connection.close()  # not a request that HTTP can hold; the next one gets a connection of its own
            continue
        statuses[answer.status] += 1
        assert answer.status < 500, (method, path, body, headers, data)
        if answer.status >= 400 and method != "HEAD":
            assert answer.getheader("content-type") == "application/problem+json", (method, path, data)
            assert json.loads(data)["status"] == answer.status
    connection.close()
    assert sum(statuses.values()) > REQUESTS * 0.9
    assert {200, 400, 404, 405, 415} <= set(statuses), statuses
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
    kept = [event.value for event in client.read(TOPIC) if event.key == "kept"]
    assert kept == [{"order_id": "kept", "amount": 1}]
    counts = client.log.counts(TOPIC)
    assert counts["appended"] == sum(1 for _ in client.read(TOPIC))


def test_no_bytes_on_a_socket_are_answered_with_a_fault_of_ours(fuzzed: tuple[Node, hw.Client]):
    node, client = fuzzed
    seeded = random.Random(12)
    request = (
        f"POST /api/topics/{TOPIC}/events HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\n"
        "content-type: application/json\r\ncontent-length: 16\r\n\r\n"
    ).encode() + b'{"order_id":"x"}'
    for _ in range(600):
        mutated = bytearray(request)
        for _ in range(seeded.choice([1, 2, 8])):
            mutated[seeded.randrange(len(mutated))] = seeded.randrange(256)
        with socket.create_connection(("127.0.0.1", node.port), timeout=30) as connection:
            connection.sendall(bytes(mutated))
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while more := connection.recv(65_536):
                answer += more
        assert not answer or not answer.startswith(b"HTTP/1.1 5"), (mutated, answer)
    assert client.topics() == [TOPIC]
