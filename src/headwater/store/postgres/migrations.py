"""The store's own tables, the steps that brought them to their present form, the system views, and who may read.

A step is never edited once it was released: the next is added. The system views are made anew when their text changed.
"""

from __future__ import annotations

import hashlib

from psycopg import errors as pg

from headwater.errors import NewerFormatError
from headwater.store.bookkeeping.state_view import KeyBytes
from headwater.store.bookkeeping.system_views import system_views
from headwater.store.postgres.connection import OWN, PostgresSession, quoted

__all__ = ["FORMAT", "READER", "SHOWN", "found_format", "migrate", "up_to_date"]

SHOWN = "headwater_views"
"""The schema in which readers find each view under its name."""
READER = "headwater_reader"
"""The role that may read the views and nothing else."""
_TURN = 0x48573031  # the advisory lock of whoever changes the tables

_ASIDES = """
CREATE TABLE hw${shelf} (
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
""" + "".join(_ASIDES.replace("{shelf}", shelf) for shelf in ("late", "quarantine", "skips"))

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

_STEPS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH)
FORMAT = len(_STEPS)


def _moment(micros: str) -> str:
    """SQL for the time that a count of microseconds means; exact up to the year 2255."""
    return f"(timestamptz 'epoch' + ({micros}) * interval '1 microsecond')"


_KEYS = KeyBytes(
    digits=lambda bytes_: f"encode({bytes_}, 'hex')",
    text=lambda bytes_: f"""(convert_from({bytes_}, 'UTF8') COLLATE "default")""",
    number=lambda eight: f"(('x' || encode({eight}, 'hex'))::bit(64)::bigint # (-9223372036854775807 - 1))",
    place=lambda bytes_, digits: f"position('\\x{digits}'::bytea IN {bytes_})",
    moment=lambda micros: (
        f"""to_char({_moment(micros)} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
    ),
    date=lambda days: f"(date '1970-01-01' + ({days})::int)::text",
)
_VIEWS = system_views(_moment, _KEYS)
_VIEWS_HASH = hashlib.sha256(repr(_VIEWS).encode()).hexdigest()[:16]


def up_to_date(session: PostgresSession) -> bool:
    """Whether the tables and system views have the present form."""
    return found_format(session) == (FORMAT, _VIEWS_HASH)


def migrate(session: PostgresSession, place: str) -> None:
    """Bring the tables to the present form; inside the caller's transaction, one process at a time.

    Raises:
        NewerFormatError: A newer version of Headwater has written the store; nothing was touched.
    """
    session.execute("SELECT pg_advisory_xact_lock(?)", (_TURN,))
    found, _ = found_format(session)
    if found > FORMAT:
        raise NewerFormatError(
            f"the store has format {found}, this version of Headwater knows {FORMAT}",
            detail=place,
            fix="use the newer version of Headwater",
            format=found,
        )
    if not found:
        session.execute(f"CREATE SCHEMA IF NOT EXISTS {OWN}")
        session.execute(f"CREATE SCHEMA IF NOT EXISTS {SHOWN}")
        session.execute("CREATE TABLE hw$format (format integer NOT NULL, views text NOT NULL)")
        session.execute("INSERT INTO hw$format VALUES (0, '')")
    for step in _STEPS[found:]:
        for statement in filter(str.strip, step.split(";")):
            session.execute(statement)
    for name, text in _VIEWS.items():
        session.execute(f"DROP VIEW IF EXISTS {SHOWN}.{name}")
        session.execute(f"CREATE VIEW {SHOWN}.{name} AS {text}")
    session.execute("UPDATE hw$format SET format = ?, views = ?", (FORMAT, _VIEWS_HASH))
    _let_read(session)


def found_format(session: PostgresSession) -> tuple[int, str]:
    """The format of what is there: 0 when there is nothing."""
    if session.execute("SELECT to_regclass('hw$format')").fetchone() == (None,):
        return 0, ""
    format_, views = session.execute("SELECT format, views FROM hw$format").fetchone() or (0, "")
    return format_, views


def _let_read(session: PostgresSession) -> None:
    """Make the role that may read, if we may; else it is for an administrator to do (docs/postgres.md)."""
    try:
        with session.connection.transaction():
            if session.execute("SELECT 1 FROM pg_roles WHERE rolname = ?", (READER,)).fetchone() is None:
                session.execute(f"CREATE ROLE {READER} NOLOGIN")
            (me,) = session.execute("SELECT current_user").fetchone() or ("",)
            session.execute(f"GRANT {READER} TO {quoted(me)}")
    except (pg.InsufficientPrivilege, pg.DuplicateObject, pg.UniqueViolation):
        if session.execute("SELECT 1 FROM pg_roles WHERE rolname = ?", (READER,)).fetchone() is None:
            return
    session.execute(f"GRANT USAGE ON SCHEMA {SHOWN} TO {READER}")
    session.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {SHOWN} TO {READER}")
    session.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA {SHOWN} GRANT SELECT ON TABLES TO {READER}")
