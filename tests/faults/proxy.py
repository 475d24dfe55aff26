"""A TCP proxy with seeded faults: it delays, truncates and drops responses.

It parses just enough HTTP to know where a request ends and its response begins: every response has a
content-length. The seed decides the fault of each response, so that a run can be repeated.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Faults:
    """How often each fault happens, from 0 to 1.

    Attributes:
        lost: The request arrives, its response does not: the connection is closed.
        reset: The same, with a reset in place of an orderly close.
        refused: The request does not arrive either.
        cut: Half of the response arrives.
        delayed: The response is delayed by up to `delay` seconds.
        delay: In seconds.
    """

    lost: float = 0.0
    reset: float = 0.0
    refused: float = 0.0
    cut: float = 0.0
    delayed: float = 0.0
    delay: float = 0.01


class Proxy:
    """Listens on its own port and forwards to `port`, which is set before the first connection.

    Args:
        seed: Seed of the random faults.
    """

    def __init__(self, seed: int = 0) -> None:
        self.port = 0
        self.faults = Faults()
        self.done = {"passed": 0, "lost": 0, "reset": 0, "refused": 0, "cut": 0, "delayed": 0}
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        """The address of the proxy, as requests name it."""
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            self._open.add(client)
            with socket.create_connection(("127.0.0.1", self.port)) as server:
                self._open.add(server)
                while request := _message(client):
                    fate = self._drawn()
                    if fate == "refused":
                        break
                    server.sendall(request)
                    answer = _message(server)
                    if not self._answered(client, answer, fate):
                        break

    def _drawn(self) -> str:
        with self._lock:
            draw = self._random.random()
            for fate in ("lost", "reset", "refused", "cut", "delayed"):
                draw -= getattr(self.faults, fate)
                if draw < 0:
                    self.done[fate] += 1
                    return fate
            self.done["passed"] += 1
            return "passed"

    def _answered(self, client: socket.socket, answer: bytes, fate: str) -> bool:
        if fate == "lost" or not answer:
            return False
        if fate == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            return False
        if fate == "cut":
            client.sendall(answer[: len(answer) // 2])
            return False
        if fate == "delayed":
            time.sleep(self._random.random() * self.faults.delay)
        client.sendall(answer)
        return True

    def close(self) -> None:
        """Stop listening and cut all connections."""
        self._listening.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _message(connection: socket.socket) -> bytes:
    """Returns one whole request or response; empty at the end of the connection."""
    data = b"".join(_until_head(connection))
    head, mark, body = data.partition(b"\r\n\r\n")
    if not mark:
        return b""
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        more = connection.recv(65_536)
        if not more:
            return b""
        body += more
    return head + mark + body


def _until_head(connection: socket.socket) -> Iterator[bytes]:
    seen = b""
    while b"\r\n\r\n" not in seen:
        more = connection.recv(65_536)
        if not more:
            return
        seen += more
        yield more
