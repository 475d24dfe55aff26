"""The node as a process: one per folder, on this machine only, found by others, gone without a trace."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import headwater as hw
from headwater import errors
from headwater.log import EventLog
from headwater.server import Node, find_node, web_server

SERVE = """
import sys
from headwater.server import Node
node = Node(sys.argv[1], port=0)
try:
    node.serve(lambda: print(node.url, flush=True))
finally:
    print("drained", flush=True)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node in a process of its own, and its address."""
    with subprocess.Popen([sys.executable, "-c", SERVE, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "192.168.0.1", "example.org", ""])
def test_no_other_address_is_listened_on(tmp_path: Path, host: str):
    with pytest.raises(errors.ForbiddenError) as caught:
        Node(tmp_path, port=0, host=host)
    assert caught.value.data == {"host": host}
    assert not (tmp_path / "node.lock").exists()


def test_only_this_machines_address_is_bound(tmp_path: Path):
    with Node(tmp_path, port=0) as node, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", node.port)).close()


def test_a_taken_port_is_told_with_another_one(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(errors.PortTakenError) as caught:
            Node(tmp_path, port=port)
    assert caught.value.data == {"port": port}
    assert caught.value.fix == f"headwater run --port {port + 1}"
    with Node(tmp_path, port=0) as node:  # the folder was given free
        assert httpx.get(f"{node.url}/api/health", trust_env=False).status_code == 200


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_cannot_be_is_refused(tmp_path: Path, port: int):
    with pytest.raises(errors.HeadwaterError):
        Node(tmp_path, port=port)


def test_a_second_node_on_one_folder_is_refused(tmp_path: Path):
    with Node(tmp_path, port=0) as node:
        with pytest.raises(errors.LockedError) as caught:
            Node(tmp_path, port=0)
        assert caught.value.data == {"pid": os.getpid(), "url": node.url}
    with Node(tmp_path, port=0):
        pass


def test_the_folder_of_a_killed_node_is_free(tmp_path: Path, process: tuple[subprocess.Popen[str], str]):
    killed, url = process
    with pytest.raises(errors.LockedError) as caught:
        Node(tmp_path, port=0)
    assert caught.value.data == {"pid": killed.pid, "url": url}
    killed.kill()
    killed.wait()
    assert find_node(tmp_path) is None
    with Node(tmp_path, port=0) as node:
        found = find_node(tmp_path)
        assert found is not None
        assert (found.pid, found.url) == (os.getpid(), node.url)


def test_others_find_the_node_by_its_file(tmp_path: Path):
    with Node(tmp_path, port=0) as node:
        told = json.loads((tmp_path / "node.json").read_text())
        assert (told["pid"], told["url"], told["version"]) == (os.getpid(), node.url, hw.__version__)
        assert told["started_at"].endswith("Z")
    assert not (tmp_path / "node.json").exists()
    assert find_node(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(errors.NotWritableError):
        Node(tmp_path / "file" / "data", port=0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_lets_requests_finish(
    tmp_path: Path, process: tuple[subprocess.Popen[str], str], number: int, code: int
):
    web_server, url = process
    answers: list[int] = []
    with hw.connect(url) as client, EventLog(tmp_path) as log:
        client.create_topic("orders", "order_id string")
        client.send("orders", {"order_id": "first"})

        def send() -> None:
            answers.append(client.send("orders", {"order_id": "under way"}).offset)

        sender = threading.Thread(target=send)
        with log.open_topic("orders").partitions[0].lock():
            sender.start()
            while client.log.counts("orders")["offered"] < 1 or not waiting(url):
                pass
            web_server.send_signal(number)
            while find_node(tmp_path) is not None and accepts(url):
                pass
        sender.join()
        assert answers == [1]
        assert web_server.wait(15) == code
        assert web_server.stdout is not None
        assert web_server.stdout.read() == "drained\n"
        assert [event.value for event in hw.connect(tmp_path).read("orders", start=1)] == [{"order_id": "under way"}]


def test_a_client_that_does_not_read_is_cut_off_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web_server, "_DRAIN_TIMEOUT", 1)
    with Node(tmp_path, port=0) as node, hw.connect(node.url) as client:
        client.create_topic("notes", "text string")
        client.send_many("notes", [{"text": "x" * 50_000} for _ in range(400)])
        stuck = socket.create_connection(("127.0.0.1", node.port))
        stuck.sendall(f"GET /api/topics/notes/events HTTP/1.1\r\nHost: 127.0.0.1:{node.port}\r\n\r\n".encode())
        assert stuck.recv(12) == b"HTTP/1.1 200"
        server = node._server
        assert server is not None
        assert server.server_state.connections
    assert not server.server_state.connections
    with stuck, pytest.raises(ConnectionResetError):
        b"".join(iter(lambda: stuck.recv(1 << 20), b""))


def waiting(url: str) -> bool:
    """Whether a request is under way besides the one that asks."""
    return int(httpx.get(f"{url}/api/health", trust_env=False).json()["connections"]) > 1


def accepts(url: str) -> bool:
    """Whether the node still takes connections."""
    try:
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))).close()
    except ConnectionError:  # refused, or let go of with the socket that listened
        return False
    return True


def test_the_node_runs_maintenance_of_the_log(tmp_path: Path):
    with Node(tmp_path, port=0) as node, hw.connect(node.url) as client:
        client.create_topic("orders", "order_id string", idle="10 ms")
        client.send("orders", {"order_id": "a"})
        deadline = time.monotonic() + 30
        while client.log.ends("orders")[0].end == 1:  # an idle marker takes an offset
            assert time.monotonic() < deadline, "no idle marker was written"
            time.sleep(0.05)
        assert len(list(client.read("orders"))) == 1


def test_nothing_heavy_is_loaded_before_it_is_needed():
    code = (
        "import sys, headwater, headwater.server; headwater.server.find_node('.');"
        "print([name for name in ('fastapi', 'uvicorn', 'httpx', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_node_in_a_thread_can_be_stopped_twice(tmp_path: Path):
    node = Node(tmp_path, port=0).start()
    node.stop()
    node.stop()
    assert not node.log.disk.exists(tmp_path / "node.json")
