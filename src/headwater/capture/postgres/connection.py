"""Connections of a capture: their settings, log positions as text, and translation of the server's errors."""

from __future__ import annotations

import contextlib
import re
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from headwater.errors import (
    BadCredentialsError,
    BadSettingError,
    HeadwaterError,
    LockedError,
    NotCapturableError,
    SlotLostError,
    UnreachableError,
)
from headwater.sql.postgres_pool import redact_url

__all__ = ["Server", "format_lsn", "parse_lsn", "quote_text"]

Connection = psycopg.Connection[tuple[Any, ...]]
_CONNECT_TIMEOUT: Final = 10  # seconds, unless the URL says otherwise
# One value has one text in the stream and in a snapshot, whatever the server's, the role's or the client's settings.
# `regclass` and others print names with their schema unless it is on the search path.
_SETTINGS: Final = {
    "timezone": "UTC",
    "datestyle": "ISO,MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
    "client_encoding": "UTF8",
    "statement_timeout": "0",
    "lock_timeout": "10s",  # a change of columns may hold a lock for long
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_isolation": r"read\ committed",
}
_LOST: Final = re.compile(r"can(not| no longer) (get changes from|access) replication slot|requested WAL segment")
_REFUSED_LOGIN: Final = re.compile(
    r"authentication|password|pg_hba|role .* (does not exist|not permitted)|permission denied to start WAL sender"
    r"|must be superuser or replication role"
)
_NO_SLOT, _BUSY, _NOT_READY, _NO_RIGHT, _LOCKED = "42704", "55006", "55000", "42501", "55P03"


def parse_lsn(text: str) -> int:
    """Returns a log position as a number.

    Example:
        >>> parse_lsn("1/16B3748"), format_lsn(4318771016)
        (4318771016, '1/16B3748')
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def format_lsn(position: int) -> str:
    """Returns a log position as PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def quote_text(text: str) -> str:
    r"""Returns a text as an SQL literal, whatever `standard_conforming_strings` says.

    Example:
        >>> quote_text("it's"), quote_text("C:\\")
        ("'it''s'", " E'C:\\\\'")
    """
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f" E{quoted}" if "\\" in text else quoted


class Server:
    """The address of a captured database: opens connections, and gives errors a code.

    No message contains the password.

    Args:
        url: `postgresql://user:password@host:port/database`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.display_url = redact_url(url)

    def connect(self, *, replication: bool = False) -> Connection:
        """Open a connection; with `replication` one that accepts replication commands.

        Raises:
            UnreachableError: The server is unreachable.
            BadCredentialsError: The server refuses the user.
            BadSettingError: The URL is invalid, or there is no such database.
        """
        try:
            given = conninfo_to_dict(self._url)
            settings = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
            arguments: dict[str, Any] = {
                "connect_timeout": _CONNECT_TIMEOUT,
                "application_name": "headwater",
                "keepalives_idle": 30,
                "keepalives_interval": 10,
                "keepalives_count": 3,
                **{name: value for name, value in given.items() if name not in ("options", "client_encoding")},
                "options": f"{given.get('options') or ''} {settings}".strip(),
                "client_encoding": "UTF8",
            }
            if replication:
                arguments["replication"] = "database"
            return psycopg.connect(autocommit=True, **arguments)
        except psycopg.Error as error:
            raise self._connect_error(error) from None

    def translate(self, error: psycopg.Error, what: str = "the database refused a statement") -> HeadwaterError:
        """Returns our error for one of the driver."""
        return self._error(error.sqlstate or "", str(error), what, lost=isinstance(error, psycopg.OperationalError))

    def result_error(self, connection: Connection, result: pq.abc.PGresult | None, what: str) -> HeadwaterError:
        """Returns our error for a failed result, or for a connection that has ended."""
        state, message = b"", connection.pgconn.error_message.decode("utf-8", "replace")
        if result is not None:
            state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
            message = result.error_message.decode("utf-8", "replace") or message
        return self._error(state.decode(), message, what, lost=True)

    def _error(self, state: str, message: str, what: str, *, lost: bool) -> HeadwaterError:
        detail = f"{self.display_url}: {self._redact(message)}"
        if state.startswith(("08", "57P", "53", "58")) or (lost and not state):
            return UnreachableError("the connection to the database was lost", detail=detail)
        if _LOST.search(message) or (state == _NO_SLOT and "replication slot" in message):
            return SlotLostError("the replication slot is lost", detail=detail, fix="headwater capture snapshot --all")
        if state == _NO_SLOT and "publication" in message:
            lost_publication = "the publication did not exist while changes were made, so they cannot be read"
            return SlotLostError(lost_publication, detail=detail, fix="headwater capture snapshot --all")
        if state == _BUSY:
            pid = re.search(r"PID (\d+)", message)
            reader = pid.group(1) if pid else ""
            fix = f"stop the other reader, or: SELECT pg_terminate_backend({reader or 'PID'})"
            return LockedError("another process reads the replication slot", detail=detail, fix=fix, pid=reader)
        if state == _LOCKED:
            return UnreachableError("a table of the database is locked", detail=detail)
        if state == _NO_RIGHT:
            what, fix = "the user lacks a privilege in the database", "headwater capture check URL"
            return BadCredentialsError(what, detail=detail, fix=fix)
        if state == _NOT_READY:
            return NotCapturableError(what, detail=detail, fix="headwater capture check URL")
        return HeadwaterError(what, detail=detail, sqlstate=state)

    def _connect_error(self, error: psycopg.Error) -> HeadwaterError:
        """Returns the error of a failed connection; libpq reports the cause only as text."""
        message = self._redact(str(error))
        detail = f"{self.display_url}: {message}"
        if re.search(r"replication slots|max_wal_senders|number of requested standby", message):
            what = "the database has no free sender for a replication connection"
            return UnreachableError(what, detail=detail, fix="raise max_wal_senders, and restart the server")
        if re.search(r"starting up|shutting down|recovery", message):
            return UnreachableError(f"the database at {self.display_url} is not ready", detail=detail)
        if _REFUSED_LOGIN.search(message):
            what, fix = "the database does not accept the user or the password", "correct them in the address"
            return BadCredentialsError(what, detail=detail, fix=fix)
        if re.search(r'database ".*" does not exist', message):
            return BadSettingError("there is no such database", detail=self.display_url, fix="createdb, or another URL")
        if isinstance(error, psycopg.ProgrammingError):
            what = "the URL of the database cannot be read"
            return BadSettingError(what, detail=message, fix="postgresql://user:password@host:port/database")
        what, fix = f"no database answers at {self.display_url}", "start it, or correct host and port of the address"
        return UnreachableError(what, detail=detail, fix=fix)

    def _redact(self, message: str) -> str:
        message = re.sub(r"//[^@/\s]*@", "//", message)
        with contextlib.suppress(psycopg.Error):
            secret = conninfo_to_dict(self._url).get("password")
            message = message.replace(str(secret), "***") if secret else message
        return " ".join(message.split())[:500]
