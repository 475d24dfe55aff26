"""Databases as the contract suite of sources uses them: one class for each implementation of `Source`."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pymysql

from headwater.capture.mariadb.maria_source import MariaSource
from headwater.capture.postgres.log.source import PostgresSource
from headwater.capture.postgres.triggers.trigger_source import PostgresTriggerSource
from headwater.capture.source import Source, SourceTable
from headwater.capture.sqlite.source import SqliteSource
from headwater.sql.identifiers import quote
from tests.capture.mariadb.server import Database as MariaDatabase
from tests.capture.postgres.servers import Database as PostgresDatabase

__all__ = [
    "CapturedDatabase",
    "CapturedMaria",
    "CapturedPostgres",
    "CapturedPostgresByTriggers",
    "CapturedSqlite",
    "make_source",
]

Row = dict[str, Any]
CHUNK_ROWS = 40


def make_source(kind: str, url: str) -> Source:
    """Returns a source that reads tables in small chunks and does not let tests wait."""
    if kind == "PostgreSQL":
        return PostgresSource(url, "shop", chunk_rows=CHUNK_ROWS, position_interval=0.2)
    if kind == "PostgreSQL by triggers":
        return PostgresTriggerSource(
            url, "shop", chunk_rows=CHUNK_ROWS, poll_interval=0.005, position_interval=0.2, check_interval=0.1
        )
    if kind == "MariaDB":
        return MariaSource(url, "shop", heartbeat=0.1, chunk_rows=CHUNK_ROWS)
    return SqliteSource(url, "shop", chunk_rows=CHUNK_ROWS)


class CapturedDatabase(ABC):
    """An empty database.

    Attributes:
        kind: Its name in the table of docs/capture.md.
        text, large: The types of a short and of a long text.
        placeholder: How a statement writes a parameter.
        retry: Errors after which a writer tries again.
        types: Values of each type, as SQL.
        retype: Gives the column `amount` another type.
        odd_name: A name for a table that needs quotes.
        own_key: What a table needs whose key is not its primary key.
    """

    kind: ClassVar[str]
    text: ClassVar[str] = "varchar(200)"
    large: ClassVar[str] = "text"
    placeholder: ClassVar[str] = "%s"
    retry: ClassVar[tuple[type[BaseException], ...]]
    types: ClassVar[dict[str, Sequence[str]]]
    retype: ClassVar[str]
    odd_name: ClassVar[str] = "select 🐘 '" + "é" * 20
    own_key: ClassVar[str] = ""

    @abstractmethod
    def connect(self) -> Any:
        """Open a DB-API connection whose transactions begin by themselves."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the database for a capture."""

    def source(self) -> Source:
        """Make a source, which is not open."""
        return make_source(self.kind, self.url)

    def quote(self, name: str) -> str:
        """Returns a name as SQL."""
        return quote(name)

    def table(self, name: str, **options: Any) -> SourceTable:
        """Returns a table to capture, with a topic of its name."""
        return SourceTable(self.full_name(name), "topic", **options)

    def full_name(self, name: str) -> str:
        """Returns the name of a table as sources say it."""
        return name

    def transaction(self, *statements: str, commit: bool = True) -> None:
        """Execute statements in one transaction."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            for one in statements:
                cursor.execute(one)
            if commit:
                connection.commit()
            else:
                connection.rollback()
        finally:
            connection.close()

    def run(self, *statements: str) -> None:
        """Execute statements, each in a transaction of its own."""
        for one in statements:
            self.transaction(one)

    def rows(self, name: str) -> list[Row]:
        """Returns the rows of a table, read with SQL."""
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(f"SELECT * FROM {self.quote(name)}")
            columns = [one[0] for one in cursor.description]
            return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        finally:
            connection.close()

    @abstractmethod
    def series(self, count: int) -> str:
        """Returns a FROM clause with the numbers from 1 to `count` as the column `n`."""


class CapturedPostgres(CapturedDatabase):
    """PostgreSQL, from its log."""

    kind = "PostgreSQL"
    retry = (
        psycopg.errors.UniqueViolation,
        psycopg.errors.DeadlockDetected,
        psycopg.errors.InFailedSqlTransaction,
        psycopg.errors.LockNotAvailable,
    )
    types: ClassVar = {
        "boolean": ("true", "false"),
        "smallint": ("-32768", "32767"),
        "bigint": ("-9223372036854775808", "9223372036854775807"),
        "real": ("1e-37", "'NaN'"),
        "float8": ("0.1::float8 + 0.2", "'Infinity'"),
        "numeric": ("'NaN'", "1e40", "0.0000000001"),
        "numeric(12,3)": ("-999999999.999", "1.500"),
        "text": ("''", "'zażółć 🐘'", "E'\\\\ \\t \"'"),
        "char(5)": ("'ab'",),
        "bytea": ("''", "'\\x00ff'"),
        "date": ("'0001-01-01'", "'9999-12-31'"),
        "time": ("'00:00'", "'23:59:59.999999'"),
        "timestamp": ("'0001-01-01'", "'2026-01-01 10:00:00.000001'"),
        "timestamptz": ("'2026-01-01 10:00+09'",),
        "interval": ("'1 mon -2 days 03:00:00'",),
        "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",),
        "json": ('\'{"b": 1,  "a": [1.10, null]}\'',),
        "jsonb": ("'null'", '\'{"x": "ü"}\''),
        "int[]": ("'{1,null,3}'", "'{}'"),
        "text[]": ('\'{"a,b",null,""}\'',),
        "inet": ("'10.0.0.1/8'",),
        "money": ("'12.34'",),
        "int4range": ("'[1,5)'", "'empty'"),
    }
    retype = "ALTER TABLE {} ALTER amount TYPE bigint"
    own_key = "ALTER TABLE {} REPLICA IDENTITY FULL"

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def connect(self) -> Any:
        return self._database.connect()

    @property
    def url(self) -> str:
        return self._database.url

    def full_name(self, name: str) -> str:
        return f"public.{name}"

    def series(self, count: int) -> str:
        return f"FROM generate_series(1, {count}) n"


class CapturedPostgresByTriggers(CapturedPostgres):
    """PostgreSQL, by triggers."""

    kind = "PostgreSQL by triggers"
    own_key = ""
    # A JSON null inside the JSON of a row cannot be told from NULL.
    types: ClassVar = CapturedPostgres.types | {"jsonb": ('\'{"x": "ü"}\'',)}


class CapturedMaria(CapturedDatabase):
    """MariaDB, from its log."""

    kind = "MariaDB"
    large = "mediumtext"
    retry = (pymysql.err.IntegrityError, pymysql.err.OperationalError)
    types: ClassVar = {
        "tinyint": ("-128", "127"),
        "bigint unsigned": ("0", "18446744073709551615"),
        "float": ("1.5", "-1e-37"),
        "double": ("0.1", "1e300"),
        "decimal(12,3)": ("-999999999.999", "1.500"),
        "bit(9)": ("b'0'", "b'111111111'"),
        "varchar(50)": ("''", "'zażółć 🐘'", "'\\\\ \\t \"'"),
        "char(5)": ("'ab'",),
        "varbinary(9)": ("''", "x'00ff'"),
        "mediumblob": ("x'00ff'",),
        "date": ("'1000-01-01'", "'9999-12-31'"),
        "time(6)": ("'-838:59:59'", "'10:00:00.000001'"),
        "datetime(6)": ("'1000-01-01'", "'2026-01-01 10:00:00.000001'"),
        "timestamp": ("'2026-01-01 10:00'",),
        "year": ("1901", "2155"),
        "enum('a','ü')": ("'a'", "'ü'"),
        "set('a','b')": ("''", "'a,b'"),
        "json": ('\'{"b": 1,  "a": [1.10, null]}\'',),
        "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a00'",),
        "inet6": ("'2001:db8::'",),
    }
    retype = "ALTER TABLE {} MODIFY amount bigint"
    odd_name = "select ü '" + "é" * 20  # letters beyond U+FFFF are not allowed

    def __init__(self, database: MariaDatabase) -> None:
        self._database = database

    def connect(self) -> Any:
        return self._database.server.connect(self._database.name, autocommit=False)

    @property
    def url(self) -> str:
        return self._database.url

    def quote(self, name: str) -> str:
        return quote(name, "`")

    def full_name(self, name: str) -> str:
        return f"{self._database.name}.{name}"

    def series(self, count: int) -> str:
        return f"FROM (SELECT seq n FROM seq_1_to_{count}) numbers"


class CapturedSqlite(CapturedDatabase):
    """A file of SQLite."""

    kind = "SQLite"
    placeholder = "?"
    retry = (sqlite3.IntegrityError, sqlite3.OperationalError)  # a key that is taken; a lock
    types: ClassVar = {
        "integer": ("-9223372036854775808", "9223372036854775807"),
        "real": ("1e300", "9e999", "-0.5"),
        "text": ("''", "'zażółć 🐘'", "'\"\\ ''x'''"),
        "blob": ("x''", "x'00ff'"),
        "boolean": ("0", "1"),
        "decimal(10,2)": ("'12.50'", "-99999999.99"),
        "numeric": ("1e20", "-1"),
        "date": ("'2026-02-30'",),
        "json": ("'{\"a\":1}'",),
    }

    def __init__(self, path: Path, mode: str = "wal") -> None:
        self._path = path
        with self.connect() as database:
            database.execute(f"PRAGMA journal_mode = {mode}")
        database.close()

    def connect(self) -> Any:
        opened = sqlite3.connect(self._path, timeout=20, check_same_thread=False)
        opened.execute("PRAGMA synchronous = OFF")
        return opened

    @property
    def url(self) -> str:
        return str(self._path)

    def series(self, count: int) -> str:
        return (
            f"FROM (WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s)"
        )
