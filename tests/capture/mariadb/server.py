"""A real MariaDB server on a free port of loopback, in a temporary folder."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pymysql

from headwater.capture.mariadb.maria_source import MariaSource
from headwater.capture.source import SourceTable

__all__ = ["Database", "Server"]

_SETTINGS = ["--log-bin=bl", "--server-id=7", "--binlog-format=ROW", "--binlog-row-metadata=FULL"]
# Faster tests; the server is never cut off from its power.
_FASTER = [
    "--innodb-flush-log-at-trx-commit=0",
    "--sync-binlog=0",
    "--innodb-buffer-pool-size=64M",
    "--skip-name-resolve",
]


class Server:
    """A server that can be stopped and started again.

    Args:
        program: The path of mariadbd.
        settings: More settings, such as "--server-id=8".
    """

    def __init__(self, program: str, *settings: str) -> None:
        self._program = program
        # The server's own user must reach its folder, which those of pytest do not allow.
        self.folder = Path(tempfile.mkdtemp(prefix="mariadb-"))
        self._numbers = itertools.count(1)
        user = []
        if os.getuid() == 0:
            mysql = pwd.getpwnam("mysql")
            os.chown(self.folder, mysql.pw_uid, mysql.pw_gid)
            user = ["--user=mysql"]
        data = self.folder / "data"
        shared = ["--no-defaults", *user, f"--datadir={data}"]
        install = [shutil.which("mariadb-install-db") or "mariadb-install-db", *shared]
        install += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(install, check=True, capture_output=True, timeout=120)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        local = [f"--socket={self.folder}/s.sock", f"--pid-file={self.folder}/pid", "--bind-address=127.0.0.1"]
        self._command = [program, *shared, *local, f"--port={self.port}", *_SETTINGS, *_FASTER, *settings]
        self.start()

    def start(self, *settings: str) -> None:
        """Start it and wait until it answers."""
        with (self.folder / "log").open("ab") as sink:
            self._process = subprocess.Popen(
                [*self._command, *settings], stdout=sink, stderr=sink, start_new_session=True
            )
        end = time.monotonic() + 60
        while True:
            try:
                self.connect("").close()
                return
            except pymysql.OperationalError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """Shut it down."""
        self._process.terminate()
        self._process.wait(timeout=60)

    def pause(self) -> None:
        """Let it do nothing, as if its machine had stopped."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """Shut it down and delete its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, database: str, *, autocommit: bool = True, user: str = "root", password: str = "") -> Any:
        """Open a DB-API connection."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=user,
            password=password,
            database=database or None,
            autocommit=autocommit,
            charset="utf8mb4",
            init_command="SET time_zone='+00:00'",
        )

    def database(self) -> Database:
        """Create an empty database."""
        name = f"d{next(self._numbers)}"
        with self.connect("") as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return Database(self, name)


class Database:
    """An empty database, and an open connection to it."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self._connection: Any = None
        self._opened: list[Any] = []

    @property
    def url(self) -> str:
        """The URL for a capture."""
        return f"mariadb://root@127.0.0.1:{self.server.port}/{self.name}"

    def connect(self, *, autocommit: bool = True) -> Any:
        """Open a connection, which is closed with the database."""
        self._opened.append(self.server.connect(self.name, autocommit=autocommit))
        return self._opened[-1]

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Execute statements, each its own transaction; returns the rows of the last."""
        if self._connection is None:
            self._connection = self.connect()
        with self._connection.cursor() as cursor:
            for one in statements:
                cursor.execute(one)
            return list(cursor.fetchall())

    def forget_connection(self) -> None:
        """Open a new connection for the next statement: the server was restarted."""
        self._connection = None

    def source(self, **options: Any) -> MariaSource:
        """A source of this database; heartbeats come quickly."""
        self._opened.append(MariaSource(self.url, self.name, **({"heartbeat": 0.1} | options)))
        return self._opened[-1]

    def close(self) -> None:
        """Close what tests have left open."""
        for one in self._opened:
            with contextlib.suppress(pymysql.err.Error):  # closed by the test
                one.close()

    def tables(self, *names: str) -> list[SourceTable]:
        """Captured tables of these names."""
        return [SourceTable(f"{self.name}.{one}", one) for one in names]
