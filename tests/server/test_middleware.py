"""Who may ask, and how much: hosts, origins, headers, sizes."""

from __future__ import annotations

import gzip
import selectors
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import headwater as hw
from headwater.server import Node
from headwater.server.limits import Limits
from tests.client.shop import fresh
from tests.server.conftest import Answer, answer_of

ROUTES = ["/", "/api/topics", "/api/health", "/api/topics/nope/follow", "/api/nope"]
# What every answer carries; the page alone has a policy of its own.
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
API_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
LIMIT = 16 << 20


def get(bare: Callable[[bytes], Answer], path: str, *headers: str) -> Answer:
    lines = "".join(f"{header}\r\n" for header in headers)
    return bare(f"GET {path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode("latin-1"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_our_own_names_are_answered(bare: Callable[[bytes], Answer], node: Node, host: str):
    assert get(bare, "/api/health", f"host: {host}:{node.port}").status == 200


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:PORT", "127.0.0.1:PORT@evil", "", "ä"]
)
def test_a_foreign_host_is_refused(bare: Callable[[bytes], Answer], node: Node, path: str, host: str):
    answer = get(bare, path, f"host: {host.replace('PORT', str(node.port))}")
    assert (answer.status, answer.problem["code"]) == (403, "FORBIDDEN")


def test_a_request_without_host_or_with_two_is_refused(bare: Callable[[bytes], Answer], node: Node):
    assert get(bare, "/api/health").status == 400
    host = f"host: 127.0.0.1:{node.port}"
    assert get(bare, "/api/health", host, "host: evil.example").status in (400, 403)
    assert bare(b"GET /api/health HTTP/1.0\r\n\r\n").status == 403


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:3000", "https://127.0.0.1:PORT", "http://127.0.0.1"]
)
def test_a_foreign_origin_is_refused(web: httpx.Client, node: Node, path: str, origin: str):
    answer = web.get(path, headers={"origin": origin.replace("PORT", str(node.port))})
    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")


def test_a_foreign_form_cannot_write(web: httpx.Client, client: hw.Client):
    name = fresh()
    client.create_topic(name, "order_id string")
    for headers in (
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        answer = web.post(f"/api/topics/{name}/events", json={"order_id": "a"}, headers=headers)
        assert answer.status_code == 403
    form = web.post(f"/api/topics/{name}/events", data={"order_id": "a"})
    assert form.status_code == 415
    assert list(client.read(name)) == []


def test_our_own_page_may_ask(web: httpx.Client, node: Node):
    headers = {"origin": f"http://localhost:{node.port}", "sec-fetch-site": "same-origin"}
    assert web.get("/api/topics", headers=headers).status_code == 200


def test_a_link_from_elsewhere_opens_the_page_and_nothing_else(web: httpx.Client):
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert web.get("/", headers=link).status_code == 200
    assert web.get("/api/topics", headers=link).status_code == 403


@pytest.mark.parametrize("path", ROUTES)
def test_every_answer_has_the_same_guarding_headers(web: httpx.Client, path: str):
    answer = web.get(path)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    if path != "/":
        assert answer.headers["content-security-policy"] == API_POLICY
    assert "access-control-allow-origin" not in answer.headers
    assert "server" not in answer.headers


def test_preflights_are_not_answered(web: httpx.Client):
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = web.options("/api/topics", headers=asked)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


# -- sizes ---------------------------------------------------------------------------------------------------------


def endless(sent: list[int]) -> Iterator[bytes]:
    """Ten gigabytes, as long as anybody takes them."""
    chunk = b"x" * (1 << 20)
    for _ in range(10_000):
        sent.append(len(chunk))
        yield chunk


@pytest.mark.parametrize("path", ["/api/topics", "/api/topics/any/events", "/api/groups/g/t/members"])
def test_an_announced_body_over_the_limit_is_refused(bare: Callable[[bytes], Answer], node: Node, path: str):
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\ncontent-type: application/json\r\n"
    answer = bare(f"{head}content-length: {LIMIT + 1}\r\n\r\n".encode())
    assert (answer.status, answer.problem["code"]) == (413, "TOO_LARGE")
    assert answer.problem["data"]["limit"] == LIMIT


def test_a_chunked_body_is_counted_while_it_comes(web: httpx.Client, node: Node):
    sent: list[int] = []
    try:
        answer = web.post(
            "/api/topics/any/events", content=endless(sent), headers={"content-type": "application/x-ndjson"}
        )
    except httpx.TransportError:
        pass  # the node closed while the client was still sending
    else:
        assert (answer.status_code, answer.json()["data"]["limit"]) == (413, LIMIT)
    assert LIMIT < sum(sent) < 200_000_000


def test_a_client_that_goes_on_sending_still_sees_the_refusal(node: Node):
    head = f"POST /api/topics HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", node.port), timeout=30) as connection:
        connection.sendall(head.encode())
        for _ in range(20):
            connection.sendall(chunk)
        assert answer_of(connection).status == 413


def test_bodies_together_have_a_bound(tmp_path: Path):
    with Node(tmp_path, port=0, limits=Limits(buffered=1_000_000)) as node:
        head = f"POST /api/topics HTTP/1.1\r\nhost: 127.0.0.1:{node.port}\r\ncontent-length: 700000\r\n\r\n"
        first, second = (socket.create_connection(("127.0.0.1", node.port), timeout=30) for _ in range(2))
        with first, second:
            for connection in (first, second):
                connection.sendall(head.encode() + b" " * 600_000)
            with selectors.DefaultSelector() as waiting:
                for connection in (first, second):
                    waiting.register(connection, selectors.EVENT_READ)
                refused = waiting.select(30)[0][0].fileobj
            answer = answer_of(refused)
            assert (answer.status, answer.problem["code"]) == (429, "OVERLOADED")
            assert answer.headers["retry-after"] == "1"
            other = first if refused is second else second
            other.sendall(b" " * 100_000)
            assert answer_of(other).problem["code"] == "BAD_JSON"


def test_compressed_bodies_are_refused(web: httpx.Client):
    bomb = gzip.compress(b"0" * 10_000_000)
    answer = web.post("/api/topics/any/events", content=bomb, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


@pytest.mark.parametrize("length", [40_000, 2_000_000])
def test_headers_over_the_limit_are_refused(bare: Callable[[bytes], Answer], node: Node, length: int):
    answer = get(bare, "/api/health", f"host: 127.0.0.1:{node.port}", f"x-long: {'x' * length}")
    assert (answer.status, answer.problem["code"]) == (431, "TOO_LARGE")
    assert answer.problem["data"]["limit"] == 32 << 10


@pytest.mark.parametrize(
    "garbage", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/x\r\n\r\n", b"\x16\x03\x01" * 40]
)
def test_bytes_that_are_no_request_are_refused(bare: Callable[[bytes], Answer], garbage: bytes):
    answer = bare(garbage + b"\r\n\r\n")
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.problem["code"] == "BAD_USAGE"
