"""PostgreSQL connections: a pool, sessions, and translation of PostgreSQL's errors.

No message contains a password, whether it comes from Headwater, the driver or the server.
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

__all__ = ["MIN_SERVER_VERSION", "TABLE_SCHEMA", "PostgresPool", "PostgresSession", "redact_url"]

TABLE_SCHEMA = "headwater"
"""The schema of our own tables."""
MIN_SERVER_VERSION = 15
"""The oldest supported server version: the first with NULLS NOT DISTINCT."""
_MAX_IDLE = 4  # connections kept for the next use
_CONNECT_TIMEOUT = 10  # seconds to wait for a server that does not answer, unless the URL says otherwise
# Times, numbers and bytes have one text form, whatever the server's settings. A commit returns after it is on disk. The
# server ends the transaction of a process that hangs, so that others do not wait for it forever.
_SETTINGS = """
    SET timezone = 'UTC'; SET datestyle = 'ISO, YMD'; SET bytea_output = 'hex'; SET extra_float_digits = 1;
    SET standard_conforming_strings = on; SET temp_buffers = '32MB'; SET client_min_messages = 'warning';
    SET idle_in_transaction_session_timeout = '60s'; SET lock_timeout = '60s'; SET statement_timeout = '10min';
    SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
"""
_USERINFO = re.compile(r"//[^@/\s]*@")


def redact_url(url: str) -> str:
    """Returns a URL without user and password.

    Example:
        >>> redact_url("postgresql://ada:secret@db.example.com/shop?password=secret")
        'postgresql://db.example.com/shop'
    """
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.Error:
        return "the given URL"
    port = f":{parameters['port']}" if parameters.get("port") else ""
    return f"postgresql://{parameters.get('host') or 'localhost'}{port}/{parameters.get('dbname') or ''}"


class PostgresSession:
    """A connection that executes the store's shared statements, which are written in SQLite's SQL."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.connection = connection
        self.temp_tables: set[str] = set()  # statements that created the temporary tables of this connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute one statement."""
        return self.connection.execute(_to_postgres(statement), [_escape_nul(value) for value in values] or None)

    def execute_raw(self, statement: str) -> None:
        """Execute a statement in PostgreSQL's SQL, unchanged."""
        self.connection.execute(statement.encode())

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute one statement for each of these rows."""
        with self.connection.cursor() as cursor:
            cursor.executemany(_to_postgres(statement), ([_escape_nul(value) for value in row] for row in rows))

    def pipeline(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which statements are sent without waiting for the reply to each."""
        return self.connection.pipeline()

    def copy_in(self, target: str, data: memoryview) -> None:
        """Append rows in CSV to a table."""
        with self.connection.cursor() as cursor, cursor.copy(f"COPY {target} FROM STDIN (FORMAT csv)") as copy:
            for start in range(0, len(data), 1 << 20):
                copy.write(data[start : start + (1 << 20)])

    def copy_out(self, query: str) -> bytearray:
        """Returns the result of a statement as CSV, which Arrow reads faster than psycopg makes Python values."""
        found = bytearray()
        with self.connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy:
            for data in copy:
                found += data
        return found


@lru_cache(maxsize=256)
def _to_postgres(statement: str) -> bytes:
    return statement.replace("?", "%s").replace("hw$", f"{TABLE_SCHEMA}.").encode()


def _escape_nul(value: Any) -> Any:
    """Returns a value that PostgreSQL can store: its text cannot contain NUL."""
    return value.replace("\0", "\\0") if isinstance(value, str) else value


class PostgresPool:
    """A pool of connections to one database; thread-safe.

    Args:
        url: `postgresql://user:password@host:port/database`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[PostgresSession] = []
        self._lock = Lock()  # guards only the list of idle connections, never a query or a connect

    @property
    def display_url(self) -> str:
        """The URL without credentials, for messages."""
        return redact_url(self._url)

    @contextlib.contextmanager
    def session(self) -> Iterator[PostgresSession]:
        """Yields a connection, and translates errors of the driver."""
        with self._lock:
            session = self._idle.pop() if self._idle else None
        try:
            session = session or self.open()
            yield session
        except psycopg.Error as error:
            if session is not None and session.connection.closed:
                # The server probably restarted: the other idle connections are lost, too.
                self.close()
            raise self._translate_error(error) from None
        finally:
            if session is not None:
                self._release(session)

    def open(self) -> PostgresSession:
        """Open a new connection.

        Raises:
            UnreachableError: The server is unreachable.
            BadCredentialsError: The server rejects the credentials.
            BadSettingError: The URL is invalid, or the server is too old.
        """
        try:
            settings: Any = {"connect_timeout": _CONNECT_TIMEOUT} | conninfo_to_dict(self._url)
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                client_encoding="utf8",
                application_name="headwater",
                connect_timeout=settings["connect_timeout"],
            )
        except psycopg.Error as error:
            raise self._connect_error(error) from None
        version = connection.info.server_version // 10_000
        if version < MIN_SERVER_VERSION:
            connection.close()
            what = f"the server has PostgreSQL {version}; the oldest supported version is {MIN_SERVER_VERSION}"
            raise BadSettingError(what, detail=self.display_url, fix="upgrade the server", version=version)
        connection.execute(_SETTINGS)
        for kind in ("json", "jsonb"):
            connection.adapters.register_loader(kind, TextLoader)
        return PostgresSession(connection)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().connection.close()

    def _release(self, session: PostgresSession) -> None:
        # A connection in an open or failed transaction comes from a caller that failed; it is not used again.
        usable = not session.connection.closed
        usable = usable and session.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if usable and len(self._idle) < _MAX_IDLE:
                self._idle.append(session)
                return
        session.connection.close()

    def _connect_error(self, error: psycopg.Error) -> HeadwaterError:
        """Returns the error of a failed connection; libpq reports the cause only as text."""
        message = self._redact_message(error)
        if re.search(r"authentication|password|pg_hba|role .* (does not exist|not permitted)", message):
            what, fix = "the database does not accept the user or the password", "correct them in the address"
            return BadCredentialsError(what, detail=f"{self.display_url}: {message}", fix=fix)
        if re.search(r'database ".*" does not exist', message):
            return BadSettingError("there is no such database", detail=self.display_url, fix="createdb, or another URL")
        if isinstance(error, psycopg.ProgrammingError):
            what = "the URL of the database cannot be read"
            return BadSettingError(what, detail=message, fix="postgresql://user:password@host:port/database")
        what, fix = f"no database answers at {self.display_url}", "start it, or correct host and port of the address"
        return UnreachableError(what, detail=message, fix=fix)

    def _translate_error(self, error: psycopg.Error) -> HeadwaterError:
        message = f"{self.display_url}: {self._redact_message(error)}"
        if _is_connection_lost(error):
            return UnreachableError("the connection to the database was lost", detail=message)
        for kinds, error_class, what in _ERROR_CLASSES:
            if isinstance(error, kinds):
                return error_class(what, detail=message)
        return HeadwaterError("the database refused a statement", detail=message, sqlstate=error.sqlstate)

    def _redact_message(self, error: psycopg.Error) -> str:
        message = _USERINFO.sub("//", str(error))
        with contextlib.suppress(psycopg.Error):
            secret = conninfo_to_dict(self._url).get("password")
            message = message.replace(str(secret), "***") if secret else message
        return " ".join(message.split())[:500]


def _is_connection_lost(error: psycopg.Error) -> bool:
    """Returns whether the connection was lost, so that the outcome of the transaction is unknown."""
    ended = (pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow, pg.IdleInTransactionSessionTimeout)
    return isinstance(error, ended) or (
        isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith("08")
    )


_ERROR_CLASSES: tuple[tuple[tuple[type[psycopg.Error], ...], type[HeadwaterError], str], ...] = (
    ((pg.InsufficientPrivilege,), BadCredentialsError, "the user lacks a privilege in the database"),
    ((pg.DiskFull,), DiskFullError, "no space left for the store"),
    ((pg.IoError,), DiskFailedError, "the store could not be written or read"),
    ((pg.DataCorrupted, pg.IndexCorrupted), DamagedError, "the store is damaged"),
    ((pg.ReadOnlySqlTransaction,), NotWritableError, "the database is read-only"),
    ((pg.TooManyConnections, pg.OutOfMemory), UnreachableError, "the database has no free connection or memory"),
    (
        (pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure, pg.QueryCanceled),
        LockedError,
        "another transaction held a lock for too long",
    ),
    ((pg.UniqueViolation,), KeyNotUniqueError, "two rows have the same key"),
    ((pg.ProgramLimitExceeded,), TooLargeError, "a value is too large for the store"),
    (
        (pg.CharacterNotInRepertoire, pg.UntranslatableCharacter),
        BadEventError,
        "a text contains a NUL or another character that PostgreSQL cannot store",
    ),
    (
        (pg.UndefinedTable, pg.UndefinedColumn, pg.DatatypeMismatch, pg.DuplicateTable, pg.WrongObjectType),
        SchemaConflictError,
        "a table of the store was altered or dropped",
    ),
)
