"""Connections to the database: how they are opened and kept, and what PostgreSQL's errors mean in our words.

No message shows a password: not ours, not the driver's, not the server's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import TextLoader

from headwater.errors import (
    BadCredentialsError,
    BadEventError,
    BadSettingError,
    DamagedError,
    DiskFailedError,
    DiskFullError,
    HeadwaterError,
    KeyNotUniqueError,
    LockedError,
    NotWritableError,
    SchemaConflictError,
    TooLargeError,
    UnreachableError,
)

__all__ = ["OLDEST", "OWN", "Connections", "PostgresSession", "literal", "lost", "quoted", "shown_url"]

OWN = "headwater"
"""The schema of our own tables."""
OLDEST = 15
"""The oldest server that can be used: it is the first that takes two nulls in a key for one."""
_IDLE = 4  # connections kept for the next use
_PATIENCE = 10  # seconds to wait for a server that does not answer, unless the URL says otherwise
# Times, numbers and bytes are written in one way whatever the server's settings; what is committed is on disk; a
# transaction whose runner sleeps is ended by the server, so that nobody waits for it for ever.
_SETTINGS = """
    SET timezone = 'UTC'; SET datestyle = 'ISO, YMD'; SET bytea_output = 'hex'; SET extra_float_digits = 1;
    SET standard_conforming_strings = on; SET temp_buffers = '32MB'; SET client_min_messages = 'warning';
    SET idle_in_transaction_session_timeout = '60s'; SET lock_timeout = '60s'; SET statement_timeout = '10min';
    SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
"""
_USERINFO = re.compile(r"//[^@/\s]*@")


def quoted(name: str) -> str:
    """An identifier for SQL text; every name that comes from outside goes through here.

    Example:
        >>> print(quoted("revenue"), quoted('a"b'))
        "revenue" "a""b"
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text for SQL text.

    Example:
        >>> print(literal("it's"))
        'it''s'
    """
    return "'" + text.replace("'", "''") + "'"


def shown_url(url: str) -> str:
    """Where a URL leads, without user and password.

    Example:
        >>> shown_url("postgresql://ada:secret@db.example.com/shop?password=secret")
        'postgresql://db.example.com/shop'
    """
    try:
        told = conninfo_to_dict(url)
    except psycopg.Error:
        return "the given URL"
    port = f":{told['port']}" if told.get("port") else ""
    return f"postgresql://{told.get('host') or 'localhost'}{port}/{told.get('dbname') or ''}"


class PostgresSession:
    """One connection, on which the statements of our own tables can be executed as SQLite writes them."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.connection = connection
        self.staging: set[str] = set()  # statements that made the temporary tables of this connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute one statement."""
        return self.connection.execute(_ours(statement), [_kept(value) for value in values] or None)

    def run(self, statement: str) -> None:
        """Execute a statement in PostgreSQL's own words, as it stands."""
        self.connection.execute(statement.encode())

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each of these rows."""
        with self.connection.cursor() as cursor:
            cursor.executemany(_ours(statement), ([_kept(value) for value in row] for row in rows))

    def copy_in(self, target: str, data: memoryview) -> None:
        """Append rows in CSV to a table."""
        with (
            self.connection.cursor() as cursor,
            cursor.copy(f"COPY {target} FROM STDIN (FORMAT csv)") as copy,
        ):
            for start in range(0, len(data), 1 << 20):
                copy.write(data[start : start + (1 << 20)])

    def copy_out(self, query: str) -> bytearray:
        """What a statement finds, in CSV."""
        found = bytearray()
        with (
            self.connection.cursor() as cursor,
            cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy,
        ):
            for data in copy:
                found += data
        return found


@lru_cache(maxsize=256)
def _ours(statement: str) -> bytes:
    return statement.replace("?", "%s").replace("hw$", f"{OWN}.").encode()


def _kept(value: Any) -> Any:
    """A value as PostgreSQL can have it: no text holds NUL there."""
    return value.replace("\0", "\\0") if isinstance(value, str) else value


class Connections:
    """Connections to one database; may be used from several threads.

    Args:
        url: `postgresql://user:password@host:port/database`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[PostgresSession] = []
        self._lock = Lock()

    @property
    def place(self) -> str:
        """Where they lead, for people."""
        return shown_url(self._url)

    @contextlib.contextmanager
    def session(self) -> Iterator[PostgresSession]:
        """A connection for a while; what the driver raises meanwhile is told in our words."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        try:
            session = session or self.open()
            yield session
        except psycopg.Error as error:
            if session is not None and session.connection.closed:
                self.close()  # the others were made before the server went away, too
            raise self._told(error) from None
        finally:
            if session is not None:
                self._give_back(session)

    def open(self) -> PostgresSession:
        """A new connection.

        Raises:
            UnreachableError: Nothing answers.
            BadCredentialsError: The server does not accept who we are.
            BadSettingError: The URL leads nowhere, or to a server that is too old.
        """
        try:
            patience: Any = {"connect_timeout": _PATIENCE} | conninfo_to_dict(self._url)
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                client_encoding="utf8",
                application_name="headwater",
                connect_timeout=patience["connect_timeout"],
            )
        except psycopg.Error as error:
            raise self._refused(error) from None
        version = connection.info.server_version // 10_000
        if version < OLDEST:
            connection.close()
            what = f"the server has PostgreSQL {version}, and {OLDEST} is the oldest that can be used"
            raise BadSettingError(what, detail=self.place, fix="upgrade the server", version=version)
        connection.execute(_SETTINGS)
        for kind in ("json", "jsonb"):
            connection.adapters.register_loader(kind, TextLoader)
        return PostgresSession(connection)

    def close(self) -> None:
        """Let go of the connections that nobody uses."""
        with self._lock:
            while self._idle:
                self._idle.pop().connection.close()

    def _give_back(self, session: PostgresSession) -> None:
        usable = not session.connection.closed
        usable = usable and session.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if usable and len(self._idle) < _IDLE:
                self._idle.append(session)
                return
        session.connection.close()

    def _refused(self, error: psycopg.Error) -> HeadwaterError:
        """Why no connection was made; libpq tells it in words only."""
        words = self._scrubbed(error)
        if re.search(r"authentication|password|pg_hba|role .* (does not exist|not permitted)", words):
            return BadCredentialsError(
                "the database does not accept the user or the password", detail=f"{self.place}: {words}"
            )
        if re.search(r'database ".*" does not exist', words):
            return BadSettingError(
                "there is no such database", detail=self.place, fix="createdb, or another URL"
            )
        if isinstance(error, psycopg.ProgrammingError):
            what = "the URL of the database cannot be read"
            return BadSettingError(what, detail=words, fix="postgresql://user:password@host:port/database")
        return UnreachableError(f"no database answers at {self.place}", detail=words)

    def _told(self, error: psycopg.Error) -> HeadwaterError:
        words = f"{self.place}: {self._scrubbed(error)}"
        if lost(error):
            return UnreachableError("the connection to the database was lost", detail=words)
        for kinds, told, what in _KNOWN:
            if isinstance(error, kinds):
                return told(what, detail=words)
        return HeadwaterError("the database refused a statement", detail=words, sqlstate=error.sqlstate)

    def _scrubbed(self, error: psycopg.Error) -> str:
        words = _USERINFO.sub("//", str(error))
        with contextlib.suppress(psycopg.Error):
            secret = conninfo_to_dict(self._url).get("password")
            words = words.replace(str(secret), "***") if secret else words
        return " ".join(words.split())[:500]


def lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, so that nobody knows what became of the transaction."""
    ended = (pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow, pg.IdleInTransactionSessionTimeout)
    return isinstance(error, ended) or (
        isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith("08")
    )


_KNOWN: tuple[tuple[tuple[type[psycopg.Error], ...], type[HeadwaterError], str], ...] = (
    ((pg.InsufficientPrivilege,), BadCredentialsError, "the database does not allow it to this user"),
    ((pg.DiskFull,), DiskFullError, "no space left for the store"),
    ((pg.IoError,), DiskFailedError, "the store could not be written or read"),
    ((pg.DataCorrupted, pg.IndexCorrupted), DamagedError, "the store is damaged"),
    ((pg.ReadOnlySqlTransaction,), NotWritableError, "the database can only be read"),
    ((pg.TooManyConnections, pg.OutOfMemory), UnreachableError, "the database has no room for more"),
    (
        (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure, pg.QueryCanceled),
        LockedError,
        "another transaction was in the way for too long",
    ),
    ((pg.UniqueViolation,), KeyNotUniqueError, "two rows have one key"),
    ((pg.ProgramLimitExceeded,), TooLargeError, "a value is too large for the store"),
    (
        (pg.CharacterNotInRepertoire, pg.UntranslatableCharacter),
        BadEventError,
        "a text holds a NUL or another sign that PostgreSQL has no form for",
    ),
    (
        (pg.UndefinedTable, pg.UndefinedColumn, pg.DatatypeMismatch, pg.DuplicateTable, pg.WrongObjectType),
        SchemaConflictError,
        "a table of the store is not as it was made",
    ),
)
