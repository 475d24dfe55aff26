"""What the tests of the server share: a node over real sockets, and plain requests to it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import httpx
import pytest

import headwater as hw
from headwater.server import Node
from tests.client.shop import fresh
from tests.kept_views import TOTALS, Keeper, replace


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for all tests that only need one; each makes topics of its own."""
    with Node(tmp_path_factory.mktemp("node"), port=0) as node:
        yield node


@pytest.fixture(scope="session")
def web(node: Node) -> Iterator[httpx.Client]:
    """Plain requests to the node."""
    with httpx.Client(base_url=node.url, trust_env=False, timeout=30) as web:
        yield web


@pytest.fixture(scope="session")
def client(node: Node) -> Iterator[hw.Client]:
    """Our own client of the node."""
    with hw.connect(node.url) as client:
        yield client


def total(category: str, n: int) -> dict[str, Any]:
    """A row of the view `totals`."""
    return {"category": category, "n": n, "sum": Decimal(n)}


@pytest.fixture
def totals(node: Node, client: hw.Client) -> Iterator[Keeper]:
    """A view of one row after two commits, one event behind its topic."""
    topic = fresh()
    client.create_topic(topic, "order_id string")
    client.send_many(topic, [{"order_id": "x"}] * 4)
    keeper = Keeper(node.log.folder, replace(TOTALS, name=fresh("totals")), topic)
    keeper.commit([total("pens", 1), total("ink", 1)], events=2)
    keeper.commit([total("pens", 2)], deletes=[{"category": "ink"}])
    yield keeper
    keeper.close()


class Answer(NamedTuple):
    """What came back on a bare socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@pytest.fixture
def bare(node: Node) -> Callable[[bytes], Answer]:
    """Sends bytes as they are, and reads until the node closes or the answer is whole."""

    def send(data: bytes) -> Answer:
        with socket.create_connection(("127.0.0.1", node.port), timeout=30) as connection:
            connection.sendall(data)
            return answer_of(connection)

    return send


def answer_of(connection: socket.socket) -> Answer:
    """Reads one answer with a content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65_536)
        assert more, data
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65_536)
    return Answer(int(first.split()[1]), headers, body)
