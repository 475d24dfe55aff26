"""The client of a node passes the contract, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.events import SystemClock
from headwater.log.http import HttpLog
from headwater.server import Node
from tests.client.contract import ClientContract


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for all tests; each has topics of its own."""
    with Node(tmp_path_factory.mktemp("data"), port=0) as node:
        yield node


class TestHttpClient(ClientContract):
    """Everything the client of a folder can do."""

    @pytest.fixture
    def folder(self, node: Node) -> Path:
        return node.log.folder

    @pytest.fixture
    def where(self, node: Node) -> str:
        return node.url

    def connect(self, where: str) -> hw.Client:
        return hw.Client(HttpLog(where, patience=timedelta(milliseconds=200)), SystemClock())


def test_a_connection_that_comes_after_closing_is_closed(node: Node, monkeypatch: pytest.MonkeyPatch):
    """Another thread, such as the one that sends heartbeats, may have begun a request without a connection yet."""
    opened: list[socket.socket] = []
    begun, closed = threading.Event(), threading.Event()
    connect = socket.create_connection

    def late(*arguments, **options) -> socket.socket:
        begun.set()
        closed.wait()
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(socket, "create_connection", late)
    log = HttpLog(node.url)
    asking = threading.Thread(target=log.groups.states)
    asking.start()
    begun.wait()
    log.close()
    closed.set()
    asking.join()
    assert [connection.fileno() for connection in opened] == [-1]
