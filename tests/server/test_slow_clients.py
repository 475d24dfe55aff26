"""Clients that are slow on purpose, or by misfortune: they are cut off, and cost others nothing."""

from __future__ import annotations

import errno
import socket
import time
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
    header_timeout=timedelta(milliseconds=200),
    body_timeout=timedelta(milliseconds=200),
    body_rate=1_000_000,
    connections=40,
)
STALLED = Limits(send_timeout=timedelta(milliseconds=300))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node without patience."""
    with Node(tmp_path, port=0, limits=QUICK) as node:
        yield node


@pytest.fixture
def streaming(tmp_path: Path) -> Iterator[Node]:
    """A node with forty megabytes of events, that cuts off who does not read."""
    with Node(tmp_path, port=0, limits=STALLED) as node, hw.connect(node.url) as client:
        client.create_topic("orders", "text string", durability="fast")
        for _ in range(40):
            client.send_many("orders", [{"text": "x" * 1000}] * 1000)
        yield node


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


def asleep(node: Node) -> socket.socket:
    """A follower that asked for everything and reads no more than the first line."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.settimeout(30)
    connection.connect(("127.0.0.1", node.port))
    path = "/api/topics/orders/follow?start=earliest"
    connection.sendall(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\n\r\n".encode())
    assert connection.recv(15) == b"HTTP/1.1 200 OK"
    return connection


def test_a_follower_that_does_not_read_is_cut_off_and_resumes(streaming: Node):
    with asleep(streaming) as sleeper, plain(streaming) as web:
        with following(web, "orders") as awake, hw.connect(streaming.url) as client:
            client.send("orders", {"text": "for those who listen"})
            assert next(awake).value["value"] == {"text": "for those who listen"}
        deadline = time.monotonic() + 30
        while not reset(sleeper):
            assert time.monotonic() < deadline
    with plain(streaming) as web, following(web, "orders", last="0:39999") as back:
        assert [next(back).value["offset"] for _ in range(2)] == [39_999, 40_000]


def test_sleeping_followers_cost_a_bounded_memory(streaming: Node):
    before = memory()
    sleepers = [asleep(streaming) for _ in range(20)]
    try:
        # Forty megabytes wait for each of them; what is in memory is a few hundred kilobytes.
        assert memory() - before < 20 * (4 << 20)
    finally:
        for sleeper in sleepers:
            sleeper.close()


def reset(connection: socket.socket) -> bool:
    """Whether the node has cut the connection; reads nothing."""
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET


def plain(node: Node) -> httpx.Client:
    return httpx.Client(base_url=node.url, trust_env=False, timeout=30)


def memory() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
