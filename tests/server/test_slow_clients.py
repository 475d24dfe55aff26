"""Clients that are slow on purpose, or by misfortune: they are cut off, and cost others nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

import headwater as hw
from headwater.server import Node
from headwater.server.limits import Limits
from tests.server.conftest import answer_of
from tests.server.sse import following

QUICK = Limits(
    header_time=timedelta(milliseconds=200),
    silence=timedelta(milliseconds=200),
    body_rate=1_000_000,
    stall=timedelta(milliseconds=300),
    connections=40,
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node without patience."""
    with Node(tmp_path, port=0, limits=QUICK) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[hw.Client]:
    with hw.connect(node.url) as client:
        client.create_topic("orders", "text string", durability="fast")
        yield client


def connected(node: Node) -> socket.socket:
    return socket.create_connection(("127.0.0.1", node.port), timeout=30)


def ended(connection: socket.socket) -> bool:
    """Reads until the node closes, or resets; True, since otherwise it never comes back."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("beginning", [b"", b"GET / HTTP/1.1\r\nhost: 127", b"POST"])
def test_headers_that_do_not_come_are_not_waited_for(node: Node, beginning: bytes):
    with connected(node) as connection:
        connection.sendall(beginning)
        answer = answer_of(connection)
        assert (answer.status, answer.problem["code"]) == (408, "BAD_USAGE")
        assert ended(connection)


def test_a_second_request_has_the_same_time_for_its_headers(node: Node):
    with connected(node) as connection:
        request = f"GET /api/version HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\n\r\n".encode()
        connection.sendall(request)
        assert answer_of(connection).status == 200
        connection.sendall(request[:20])
        assert answer_of(connection).status == 408


def test_a_body_that_does_not_come_is_not_waited_for(node: Node):
    with connected(node) as connection:
        head = f"POST /api/topics HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\ncontent-length: 100\r\n\r\n"
        connection.sendall(head.encode() + b'{"name"')
        assert answer_of(connection).status == 408
        assert ended(connection)


def test_a_body_that_trickles_is_cut_off(node: Node):
    with connected(node) as connection:
        head = f"POST /api/topics HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\ncontent-length: 1000000\r\n\r\n"
        connection.sendall(head.encode())
        connection.settimeout(0.02)
        for _ in range(500):
            try:
                connection.sendall(b"x")
                if connection.recv(65_536, socket.MSG_PEEK):
                    break
            except TimeoutError:
                continue
        connection.settimeout(30)
        assert answer_of(connection).status == 408


def test_more_connections_than_allowed_are_refused(node: Node):
    connections = [connected(node) for _ in range(QUICK.connections + 1)]
    try:
        answer = answer_of(connections[-1])
        assert (answer.status, answer.problem["code"]) == (503, "OVERLOADED")
        assert ended(connections[-1])
    finally:
        for connection in connections:
            connection.close()


def test_a_follower_that_does_not_read_is_cut_off_and_resumes(node: Node, client: hw.Client):
    for _ in range(40):
        client.send_many("orders", [{"text": "x" * 1000}] * 1000)
    with connected(node) as asleep:
        asleep.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = (
            f"GET /api/topics/orders/follow?start=earliest HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\n\r\n"
        )
        asleep.sendall(request.encode())
        assert asleep.recv(15) == b"HTTP/1.1 200 OK"
        with plain(node) as web, following(web, "orders") as awake:
            client.send("orders", {"text": "for those who listen"})
            assert next(awake).value["value"] == {"text": "for those who listen"}
        while node_connections(node) > 1:  # the client's own
            pass
        assert ended(asleep)
    with plain(node) as web, following(web, "orders", last="0:39999") as back:
        assert [next(back).value["offset"] for _ in range(2)] == [39_999, 40_000]


def test_sleeping_followers_cost_a_bounded_memory(node: Node, client: hw.Client):
    for _ in range(40):
        client.send_many("orders", [{"text": "x" * 1000}] * 1000)
    before = memory()
    sleepers = []
    try:
        for _ in range(20):
            asleep = connected(node)
            asleep.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            path = "/api/topics/orders/follow?start=earliest"
            asleep.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\n\r\n".encode())
            sleepers.append(asleep)
        for asleep in sleepers:
            assert asleep.recv(15) == b"HTTP/1.1 200 OK"
        # Forty megabytes wait for each of them; what is in memory is a few hundred kilobytes.
        assert memory() - before < 20 * (4 << 20)
    finally:
        for asleep in sleepers:
            asleep.close()


def plain(node: Node) -> httpx.Client:
    return httpx.Client(base_url=node.url, trust_env=False, timeout=30)


def node_connections(node: Node) -> int:
    with plain(node) as web:
        return int(web.get("/api/health").json()["connections"]) - 1


def memory() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
