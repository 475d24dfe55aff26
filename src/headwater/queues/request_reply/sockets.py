"""Request/reply over local sockets: registry, responder and requester.

`ResponderRegistry` keeps small files in the data folder, each with the address of a socket. The sockets are
in the system's temporary folder, because a socket's path is limited to about a hundred bytes.
`SocketResponder` serves each connection in a thread, with a bound on running and waiting requests.
`SocketRequester` connects to a responder, sends one request at a time on a connection, and gives up at the deadline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.errors import HeadwaterError, NoAnswerError, OverloadedError
from headwater.log import FileNotifier
from headwater.log.topic import check_name
from headwater.queues.request_reply.dispatcher import Answer, Dispatcher
from headwater.queues.request_reply.protocol import OutgoingRequest
from headwater.queues.request_reply.wire import (
    LineConnection,
    Reply,
    Request,
    decline,
    encode_reply,
    encode_request,
    is_disconnected,
)

__all__ = ["ResponderRegistry", "SocketPendingRequest", "SocketRequester", "SocketResponder"]

logger = logging.getLogger("headwater.requests")


class ResponderRegistry:
    """The socket addresses of the responders of one data folder.

    Example:
        >>> import tempfile
        >>> addresses = ResponderRegistry(Path(tempfile.mkdtemp()))
        >>> file = addresses.add("prices.quote", "nowhere/socket")
        >>> list(addresses.lookup("prices.quote").values())
        ['nowhere/socket']
        >>> addresses.remove(file); addresses.lookup("prices.quote")
        {}
    """

    def __init__(self, data: Path) -> None:
        self._folder = data / "answers"

    def lookup(self, subject: str) -> dict[Path, str]:
        """Returns the addresses of a subject's responders, by the file that holds each."""
        found = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self._subject_folder(subject)):
                if not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):  # removed since the scan
                        found[Path(entry.path)] = Path(entry.path).read_text()
        return found

    def add(self, subject: str, address: str) -> Path:
        """Register the address that answers a subject, and wake waiting requesters."""
        folder = self._create_folder(subject)
        name = uuid.uuid4().hex
        # Renamed when complete: `lookup` never reads half an address.
        (folder / f".{name}").write_text(address)
        return (folder / f".{name}").rename(folder / name)

    def remove(self, file: Path) -> None:
        """Remove an address, and its socket if the responder left it behind."""
        with contextlib.suppress(OSError):
            address = Path(file.read_text())
            address.unlink(missing_ok=True)
            address.parent.rmdir()
        file.unlink(missing_ok=True)

    def watch(self, subject: str) -> FileNotifier:
        """Returns a notifier that wakes when responders of a subject are added or removed."""
        return FileNotifier([self._create_folder(subject)])

    def _subject_folder(self, subject: str) -> Path:
        return self._folder / check_name(subject, what="subject")

    def _create_folder(self, subject: str) -> Path:
        folder = self._subject_folder(subject)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


_BACKLOG: Final = 512  # connections that may wait for `accept`


class SocketResponder:
    """Answers requests until it is closed.

    Args:
        data: The data folder, where requesters find the address.
        answers: The functions that answer, with their subjects.

    Example:
        >>> from headwater.queues.request_reply.sockets import SocketRequester
        >>> folder = Path(tempfile.mkdtemp())
        >>> def double(question): return question["n"] * 2
        >>> answers = [Answer.from_function(double, "double")]
        >>> responder, requester = SocketResponder(folder, answers), SocketRequester(folder)
        >>> requester.request("double", {"n": 21}, timeout=10).answer()
        42
        >>> requester.close(); responder.close()
    """

    def __init__(self, data: Path, answers: Sequence[Answer]) -> None:
        self._dispatchers = {answer.subject: Dispatcher(answer) for answer in answers}
        self._socket_folder = tempfile.mkdtemp(prefix="headwater-")
        self._registry = ResponderRegistry(data)
        self._lines: set[LineConnection] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._server_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = f"{self._socket_folder}/s"
        self._server_socket.bind(address)
        self._server_socket.listen(_BACKLOG)
        self._thread = threading.Thread(target=self._accept, name="headwater-answers", daemon=True)
        self._thread.start()
        # Last: from now on requesters find this process.
        self._files = [self._registry.add(subject, address) for subject in self._dispatchers]

    def close(self, grace: float = 10.0) -> None:
        """Accept no more requests; running ones may finish within `grace` seconds."""
        self._closed = True
        for file in self._files:  # first, so that requesters do not find this process any more
            self._registry.remove(file)
        with contextlib.suppress(OSError):
            self._server_socket.shutdown(socket.SHUT_RDWR)
        self._server_socket.close()
        self._thread.join()
        deadline = time.monotonic() + grace
        for dispatcher in self._dispatchers.values():
            dispatcher.close(deadline)
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.close()
        shutil.rmtree(self._socket_folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._server_socket.accept()
            except OSError:  # closed, or out of file descriptors
                if not self._closed:
                    time.sleep(0.1)
                continue
            line = LineConnection(connection)
            with self._lock:
                self._lines.add(line)
            threading.Thread(target=self._serve, args=[line], name="headwater-answer", daemon=True).start()

    def _serve(self, line: LineConnection) -> None:
        try:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                # The requester waits for this empty document before it sends a request. Connections in the backlog of
                # an ending process are never accepted: a request sent there would seem delivered.
                line.send(b"")
                while (document := line.receive()) is not None:
                    reply = self._reply(msgspec.json.decode(document, type=Request), line)
                    if reply is not None:
                        line.send(encode_reply(reply))
        finally:
            line.close()
            with self._lock:
                self._lines.discard(line)

    def _reply(self, request: Request, line: LineConnection) -> Reply | None:
        dispatcher = self._dispatchers.get(request.subject)
        if dispatcher is None or self._closed:
            return decline(request)
        return dispatcher.dispatch(request, is_wanted=lambda: not is_disconnected(line.connection))


_SCOPE: Final = "runs on the same data folder"


class SocketRequester:
    """Sends requests to the responders of a data folder; safe to share between threads.

    Args:
        data: The data folder.
    """

    def __init__(self, data: Path) -> None:
        self._registry = ResponderRegistry(data)
        self._idle: dict[str, list[LineConnection]] = {}  # connections for reuse, by address
        self._lines: set[LineConnection] = set()
        self._busy: dict[str, int] = {}  # running requests, by address
        self._lock = threading.Lock()  # guards the three above; nothing blocks while it is held

    def request(self, subject: str, value: Any, timeout: float, as_: type | None = None) -> SocketPendingRequest:
        """Returns a request that is not sent yet."""
        return SocketPendingRequest(self, OutgoingRequest(subject, value, timeout, as_, scope=_SCOPE))

    def close(self) -> None:
        """Close all connections; pending requests are cancelled."""
        with self._lock:
            lines = list(self._lines)
            self._idle = {}
        for line in lines:
            line.close()

    # -- connections ---------------------------------------------------------------------------------------------

    def find_responders(self, subject: str, tried: Collection[str], deadline: float) -> dict[Path, str]:
        """Returns the responders of a subject that were not tried; waits for one if the subject has none."""
        found = self._registry.lookup(subject)
        if not found:
            # Looked up again after the watch began: a responder may have been added in between.
            with contextlib.closing(self._registry.watch(subject)) as notifier:
                while not (found := self._registry.lookup(subject)) and time.monotonic() < deadline:
                    notifier.wait(deadline - time.monotonic())
        return {file: address for file, address in found.items() if address not in tried}

    def connect(self, addresses: dict[Path, str], deadline: float) -> tuple[str, LineConnection | None]:
        """Connect to the responder with the fewest requests of ours; returns its address, with None if that failed."""
        with self._lock:
            file, address = min(addresses.items(), key=lambda at: (self._busy.get(at[1], 0), random.random()))
            self._busy[address] = self._busy.get(address, 0) + 1
        try:
            return address, self._acquire_line(address, deadline)
        except (ConnectionRefusedError, ConnectionResetError, FileNotFoundError):
            self._registry.remove(file)  # its process has ended
        except OSError as error:
            logger.warning("cannot connect to the responder at %s: %s", address, error)
        self.release(address, None)
        return address, None

    def release(self, address: str, line: LineConnection | None, *, usable: bool = False) -> None:
        """Release a connection for reuse, unless a reply may still arrive on it."""
        with self._lock:
            self._busy[address] -= 1
            if line is not None and usable:
                self._idle.setdefault(address, []).append(line)
            elif line is not None:
                self._lines.discard(line)

    def _acquire_line(self, address: str, deadline: float) -> LineConnection:
        while True:
            with self._lock:
                idle = self._idle.get(address)
                line = idle.pop() if idle else None
            if line is None:
                break
            if not is_disconnected(line.connection):
                return line
            with self._lock:
                self._lines.discard(line)
            line.close()
        line = LineConnection(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            line.set_deadline(deadline)
            line.connection.connect(address)
            if line.receive(deadline) is None:
                raise ConnectionResetError("the connection was not accepted")
        except OSError:
            line.close()
            raise
        with self._lock:
            self._lines.add(line)
        return line


class SocketPendingRequest:
    """One pending request; `cancel` ends the wait from another thread."""

    def __init__(self, requester: SocketRequester, request: OutgoingRequest) -> None:
        self._requester = requester
        self._request = request
        self._line: LineConnection | None = None

    def cancel(self) -> None:
        """Cancel the request; the function is not called unless it was already."""
        self._request.cancelled = True
        if self._line is not None:
            self._line.close()

    def answer(self) -> Any:
        """Send the request and wait for the answer."""
        request = self._request
        tried: list[str] = []
        error: HeadwaterError | None = None
        while not request.cancelled:
            addresses = self._requester.find_responders(request.subject, tried, request.deadline)
            if not addresses:
                break
            address, line = self._requester.connect(addresses, request.deadline)
            tried.append(address)
            if line is None:
                continue
            reply = self._send_request(address, line)
            if reply.problem is None:
                return request.decode_answer(bytes(reply.value))
            error = HeadwaterError.from_problem(reply.problem)
            if not isinstance(error, OverloadedError | NoAnswerError):
                break  # other responders would reply the same
        raise error or request.no_answer_error("the subject has no responder", sent=False)

    def _send_request(self, address: str, line: LineConnection) -> Reply:
        """Returns the reply. A connection on which a reply may still arrive is closed, not reused."""
        self._line, usable, request = line, False, self._request
        try:
            line.set_deadline(request.deadline)
            line.send(encode_request(request.to_wire()))
            document = line.receive(request.deadline)
            if document is None:
                raise request.no_answer_error("the responder ended, or did not start in time", sent=True)
            usable = True
            return msgspec.json.decode(document, type=Reply)
        except TimeoutError:
            raise request.no_answer_error("it took too long", sent=True) from None
        except OSError:
            raise request.no_answer_error("the responder ended", sent=True) from None
        finally:
            self._line = None
            self._requester.release(address, line, usable=usable)
            if not usable:
                line.close()
