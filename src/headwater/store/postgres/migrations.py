"""Migrations of the store's own tables in PostgreSQL, its system views and the reader role; read-only inspection.

A released migration is never edited; a new one is added. The system views are recreated when their text has changed.
"""

from __future__ import annotations

import contextlib
import hashlib

from psycopg import errors as pg

from headwater.errors import NewerFormatError, SchemaConflictError
from headwater.sql.identifiers import quote
from headwater.sql.postgres_pool import TABLE_SCHEMA, PostgresPool, PostgresSession
from headwater.store.columns import storage_columns
from headwater.store.commit.commit import ViewTable
from headwater.store.postgres.columns import column_type
from headwater.store.protocol import StoreInspection
from headwater.store.system_views import KeySql, build_system_views
from headwater.store.view_registry import current_tables, table_name

__all__ = [
    "FORMAT",
    "READER_ROLE",
    "VIEW_SCHEMA",
    "check_columns",
    "inspect_postgres",
    "is_up_to_date",
    "migrate_store",
]

VIEW_SCHEMA = "headwater_views"
"""The schema in which readers find each view under its name."""
READER_ROLE = "headwater_reader"
"""The role that may read the views and nothing else."""
_MIGRATION_LOCK = 0x48573031  # the advisory lock of a process that migrates the tables

_SIDE_TABLE = """
CREATE TABLE hw${name} (
    query text NOT NULL, topic text NOT NULL, partition bigint NOT NULL, "offset" bigint NOT NULL,
    occurred_at bigint NOT NULL, received_at bigint NOT NULL,
    value text NOT NULL, reason text NOT NULL, data bytea NOT NULL, batch bigint NOT NULL,
    PRIMARY KEY (query, topic, partition, "offset")
);
"""
_FIRST = """
CREATE TABLE hw$epochs (query text PRIMARY KEY, epoch bigint NOT NULL) WITH (fillfactor = 50);

CREATE TABLE hw$ledger (
    query text NOT NULL, batch bigint NOT NULL, epoch bigint NOT NULL,
    ranges json NOT NULL, counts json NOT NULL,
    in_ bigint NOT NULL, used bigint NOT NULL, late bigint NOT NULL,
    quarantined bigint NOT NULL, dropped bigint NOT NULL,
    watermark bigint, committed_at bigint NOT NULL,
    rows bigint NOT NULL, wall double precision NOT NULL, cpu double precision NOT NULL,
    ends json,
    PRIMARY KEY (query, batch)
);

CREATE TABLE hw$totals (
    query text PRIMARY KEY, pipeline text NOT NULL, version bigint NOT NULL,
    batches bigint NOT NULL, last_batch bigint NOT NULL,
    in_ bigint NOT NULL, used bigint NOT NULL, late bigint NOT NULL,
    quarantined bigint NOT NULL, dropped bigint NOT NULL,
    watermark bigint, committed_at bigint NOT NULL,
    rows bigint NOT NULL, wall double precision NOT NULL, cpu double precision NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE hw$outbox (
    query text NOT NULL, batch bigint NOT NULL, watermark bigint, committed_at bigint NOT NULL,
    changes bytea STORAGE EXTERNAL NOT NULL,
    PRIMARY KEY (query, batch)
);

CREATE TABLE hw$reports (
    pipeline text NOT NULL, version bigint NOT NULL, kind text NOT NULL, state text NOT NULL,
    detail text NOT NULL, error json, inputs json NOT NULL, place text NOT NULL, doc text NOT NULL,
    since bigint NOT NULL, told_at bigint NOT NULL,
    PRIMARY KEY (pipeline, version)
) WITH (fillfactor = 50);

CREATE TABLE hw$views (
    name text NOT NULL, version bigint NOT NULL, schema bytea NOT NULL, key json NOT NULL,
    "window" text, current boolean NOT NULL,
    PRIMARY KEY (name, version)
);
CREATE UNIQUE INDEX views_by_lower_name ON hw$views (lower(name), version);

CREATE TABLE hw$staged (name text PRIMARY KEY, query text NOT NULL, batch bigint NOT NULL);
""" + "".join(_SIDE_TABLE.replace("{name}", name) for name in ("late", "quarantine", "skips"))

_SECOND = """
ALTER TABLE hw$reports ADD COLUMN latency text NOT NULL DEFAULT '';
ALTER TABLE hw$reports ADD COLUMN delivery text NOT NULL DEFAULT '';
"""

_THIRD = """
CREATE TABLE hw$spaces (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, query text NOT NULL, space text NOT NULL, UNIQUE (query, space)
);

CREATE TABLE hw$state (
    space bigint NOT NULL, key bytea NOT NULL, name bytea NOT NULL, value bytea NOT NULL,
    PRIMARY KEY (space, key, name)
) WITH (fillfactor = 80);
"""

_FOURTH = """
ALTER TABLE hw$state ADD COLUMN held int NOT NULL DEFAULT 1;
"""

_FIFTH = """
ALTER TABLE hw$spaces ADD COLUMN kinds text NOT NULL DEFAULT '';
"""

_SIXTH = """
CREATE TABLE hw$kept (
    space bigint NOT NULL, bucket int NOT NULL, keys bigint NOT NULL, entries bigint NOT NULL, bytes bigint NOT NULL,
    largest bigint NOT NULL, key bytea NOT NULL,
    PRIMARY KEY (space, bucket)
) WITH (fillfactor = 50);
"""

_SEVENTH = """
CREATE TABLE hw$retries (
    query text NOT NULL, topic text NOT NULL, partition bigint NOT NULL, "offset" bigint NOT NULL,
    number bigint NOT NULL, active boolean NOT NULL,
    PRIMARY KEY (query, topic, partition, "offset")
);

ALTER TABLE hw$reports ADD COLUMN retries text NOT NULL DEFAULT '{}';
"""

_EIGHTH = """
CREATE TABLE hw$pipelines (
    pipeline text PRIMARY KEY, app text NOT NULL, missing_since bigint, expired_at bigint
);

ALTER TABLE hw$late ADD COLUMN kept_at bigint NOT NULL DEFAULT 0;
ALTER TABLE hw$quarantine ADD COLUMN kept_at bigint NOT NULL DEFAULT 0;
ALTER TABLE hw$skips ADD COLUMN kept_at bigint NOT NULL DEFAULT 0;
"""

_STEPS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH, _EIGHTH)
FORMAT = len(_STEPS)


def _timestamp_sql(micros: str) -> str:
    """Returns SQL that converts microseconds since 1970 to a timestamp; exact up to the year 2255."""
    return f"(timestamptz 'epoch' + ({micros}) * interval '1 microsecond')"


_KEY_SQL = KeySql(
    hex=lambda bytes_: f"encode({bytes_}, 'hex')",
    text=lambda bytes_: f"""(convert_from({bytes_}, 'UTF8') COLLATE "default")""",
    integer=lambda eight: f"(('x' || encode({eight}, 'hex'))::bit(64)::bigint # (-9223372036854775807 - 1))",
    position=lambda bytes_, digits: f"position('\\x{digits}'::bytea IN {bytes_})",
    timestamp=lambda micros: (
        f"""to_char({_timestamp_sql(micros)} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
    ),
    date=lambda days: f"(date '1970-01-01' + ({days})::int)::text",
)
_VIEWS = build_system_views(_timestamp_sql, _KEY_SQL)
_VIEWS_HASH = hashlib.sha256(repr(_VIEWS).encode()).hexdigest()[:16]


def is_up_to_date(session: PostgresSession) -> bool:
    """Returns whether the tables and system views have the current format."""
    return _read_format(session) == (FORMAT, _VIEWS_HASH)


def migrate_store(session: PostgresSession, url: str) -> None:
    """Migrate the tables to the current format, one process at a time; runs in the caller's transaction.

    Raises:
        NewerFormatError: A newer version of Headwater has written the store; nothing was touched.
    """
    session.execute("SELECT pg_advisory_xact_lock(?)", (_MIGRATION_LOCK,))
    found, _ = _read_format(session)
    if found > FORMAT:
        raise NewerFormatError(
            f"the store has format {found}, this version of Headwater knows {FORMAT}",
            detail=url,
            fix="use the newer version of Headwater",
            format=found,
        )
    if not found:
        session.execute(f"CREATE SCHEMA IF NOT EXISTS {TABLE_SCHEMA}")
        session.execute(f"CREATE SCHEMA IF NOT EXISTS {VIEW_SCHEMA}")
        session.execute("CREATE TABLE hw$format (format integer NOT NULL, views text NOT NULL)")
        session.execute("INSERT INTO hw$format VALUES (0, '')")
    for step in _STEPS[found:]:
        for statement in filter(str.strip, step.split(";")):
            session.execute(statement)
    for name, text in _VIEWS.items():
        session.execute(f"DROP VIEW IF EXISTS {VIEW_SCHEMA}.{name}")
        session.execute(f"CREATE VIEW {VIEW_SCHEMA}.{name} AS {text}")
    session.execute("UPDATE hw$format SET format = ?, views = ?", (FORMAT, _VIEWS_HASH))
    _grant_reader(session)


def _read_format(session: PostgresSession) -> tuple[int, str]:
    """Returns the format of the existing tables; 0 if there are none."""
    if session.execute("SELECT to_regclass('hw$format')").fetchone() == (None,):
        return 0, ""
    format_, views = session.execute("SELECT format, views FROM hw$format").fetchone() or (0, "")
    return format_, views


def _grant_reader(session: PostgresSession) -> None:
    """Create the reader role if permitted; otherwise an administrator must do it (docs/postgres.md)."""
    # Roles belong to the server, not the database: a store in another database may create this one at the same time.
    try:
        with session.connection.transaction():
            if session.execute("SELECT 1 FROM pg_roles WHERE rolname = ?", (READER_ROLE,)).fetchone() is None:
                session.execute(f"CREATE ROLE {READER_ROLE} NOLOGIN")
            (me,) = session.execute("SELECT current_user").fetchone() or ("",)
            session.execute(f"GRANT {READER_ROLE} TO {quote(me)}")
    except (pg.InsufficientPrivilege, pg.DuplicateObject, pg.UniqueViolation):
        if session.execute("SELECT 1 FROM pg_roles WHERE rolname = ?", (READER_ROLE,)).fetchone() is None:
            return
    session.execute(f"GRANT USAGE ON SCHEMA {VIEW_SCHEMA} TO {READER_ROLE}")
    session.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {VIEW_SCHEMA} TO {READER_ROLE}")
    session.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {VIEW_SCHEMA} GRANT SELECT ON TABLES TO {READER_ROLE}")


def check_columns(session: PostgresSession, table: ViewTable) -> None:
    """Check that nobody has altered the table of a view on the server.

    Raises:
        SchemaConflictError: The table has other columns than the view.
    """
    columns = """
        SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
        WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
    """
    name = f"{TABLE_SCHEMA}.{quote(table_name(table))}"
    existing = session.execute(columns, (name,)).fetchall()
    expected = [(column.name, column_type(column.kind)) for column in storage_columns(table)]
    if existing != expected:
        raise SchemaConflictError(
            f"the table {name} has other columns than view {table.name!r}",
            detail=f"exists: {_describe(existing)}\nexpected: {_describe(expected)}",
            fix="restore the table, or build the view as the next version",
            view=table.name,
            version=table.version,
        )


def _describe(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns) or "no such table"


def inspect_postgres(url: str) -> StoreInspection:
    """Inspect the store of a database. The transactions can only read.

    Raises:
        UnreachableError: The server is unreachable.
        BadCredentialsError: The server rejects the user.
        BadSettingError: The URL is invalid, or the server is too old.
    """
    with contextlib.closing(PostgresPool(url)) as pool, pool.session() as session:
        session.execute("SET default_transaction_read_only = on")
        format_, _ = _read_format(session)
        if not format_:
            may_create = "SELECT has_database_privilege(current_database(), 'CREATE'), current_user, current_database()"
            may, user, database = session.execute(may_create).fetchone() or (True, "", "")
            return StoreInspection(0, FORMAT, refusal="" if may else f"{user} may not create schemas in {database}")
        if format_ > FORMAT:
            return StoreInspection(format_, FORMAT)
        views = {table.name: table for table in current_tables(session)}
        altered = {}
        for name, table in views.items():
            try:
                check_columns(session, table)
            except SchemaConflictError as error:
                altered[name] = error.detail or error.what
        return StoreInspection(format_, FORMAT, views, altered)
