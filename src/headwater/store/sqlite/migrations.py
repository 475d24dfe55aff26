"""Migrations of the store's own tables in SQLite, its system views, and read-only inspection.

The names of the store's own tables begin with `hw$`, which the name of a view cannot. A released migration is never
edited; a new one is added. The system views are not part of the migrations: they are recreated when their text has
changed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from headwater.sql.sqlite_file import SqliteSession, apply_migrations, open_reader, translate_sqlite_errors
from headwater.store.protocol import StoreInspection
from headwater.store.system_views import KeySql, build_system_views
from headwater.store.view_registry import current_tables

__all__ = ["FORMAT", "SYSTEM_TABLES", "inspect_sqlite", "is_up_to_date", "migrate_store"]

_SIDE_TABLE = """CREATE TABLE hw${name} (
    query TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    occurred_at INTEGER NOT NULL, received_at INTEGER NOT NULL,
    value TEXT NOT NULL, reason TEXT NOT NULL, data BLOB NOT NULL, batch INTEGER NOT NULL,
    UNIQUE (query, topic, partition, "offset")
);

"""
_FIRST = (
    """
CREATE TABLE hw$epochs (query TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE hw$ledger (
    query TEXT NOT NULL, batch INTEGER NOT NULL, epoch INTEGER NOT NULL,
    ranges TEXT NOT NULL, counts TEXT NOT NULL,
    in_ INTEGER NOT NULL, used INTEGER NOT NULL, late INTEGER NOT NULL,
    quarantined INTEGER NOT NULL, dropped INTEGER NOT NULL,
    watermark INTEGER, committed_at INTEGER NOT NULL,
    rows INTEGER NOT NULL, wall REAL NOT NULL, cpu REAL NOT NULL,
    ends TEXT,
    PRIMARY KEY (query, batch)
) WITHOUT ROWID;

CREATE TABLE hw$totals (
    query TEXT PRIMARY KEY, pipeline TEXT NOT NULL, version INTEGER NOT NULL,
    batches INTEGER NOT NULL, last_batch INTEGER NOT NULL,
    in_ INTEGER NOT NULL, used INTEGER NOT NULL, late INTEGER NOT NULL,
    quarantined INTEGER NOT NULL, dropped INTEGER NOT NULL,
    watermark INTEGER, committed_at INTEGER NOT NULL,
    rows INTEGER NOT NULL, wall REAL NOT NULL, cpu REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE hw$outbox (
    query TEXT NOT NULL, batch INTEGER NOT NULL, watermark INTEGER, committed_at INTEGER NOT NULL,
    changes BLOB NOT NULL,
    UNIQUE (query, batch)
);

"""
    + "".join(_SIDE_TABLE.replace("{name}", name) for name in ("late", "quarantine", "skips"))
    + """CREATE TABLE hw$reports (
    pipeline TEXT NOT NULL, version INTEGER NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL,
    detail TEXT NOT NULL, error TEXT, inputs TEXT NOT NULL, place TEXT NOT NULL, doc TEXT NOT NULL,
    since INTEGER NOT NULL, told_at INTEGER NOT NULL,
    PRIMARY KEY (pipeline, version)
) WITHOUT ROWID;

CREATE TABLE hw$views (
    name TEXT NOT NULL COLLATE NOCASE, version INTEGER NOT NULL, schema BLOB NOT NULL, key TEXT NOT NULL,
    window TEXT, current INTEGER NOT NULL,
    PRIMARY KEY (name, version)
) WITHOUT ROWID;
"""
)

_SECOND = """
ALTER TABLE hw$reports ADD COLUMN latency TEXT NOT NULL DEFAULT '';
ALTER TABLE hw$reports ADD COLUMN delivery TEXT NOT NULL DEFAULT '';
"""

_THIRD = """
CREATE TABLE hw$spaces (id INTEGER PRIMARY KEY, query TEXT NOT NULL, space TEXT NOT NULL, UNIQUE (query, space));

CREATE TABLE hw$state (
    space INTEGER NOT NULL, key BLOB NOT NULL, name BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (space, key, name)
) WITHOUT ROWID;
"""

_FOURTH = """
ALTER TABLE hw$state ADD COLUMN held INTEGER NOT NULL DEFAULT 1;
"""

_FIFTH = """
ALTER TABLE hw$spaces ADD COLUMN kinds TEXT NOT NULL DEFAULT '';
"""

_SIXTH = """
CREATE TABLE hw$kept (
    space INTEGER NOT NULL, bucket INTEGER NOT NULL, keys INTEGER NOT NULL, entries INTEGER NOT NULL,
    bytes INTEGER NOT NULL, largest INTEGER NOT NULL, key BLOB NOT NULL,
    PRIMARY KEY (space, bucket)
) WITHOUT ROWID;
"""

_SEVENTH = """
CREATE TABLE hw$retries (
    query TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    number INTEGER NOT NULL, active INTEGER NOT NULL,
    PRIMARY KEY (query, topic, partition, "offset")
) WITHOUT ROWID;

ALTER TABLE hw$reports ADD COLUMN retries TEXT NOT NULL DEFAULT '{}';
"""

_EIGHTH = """
CREATE TABLE hw$pipelines (
    pipeline TEXT PRIMARY KEY, app TEXT NOT NULL, missing_since INTEGER, expired_at INTEGER
) WITHOUT ROWID;

ALTER TABLE hw$late ADD COLUMN kept_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hw$quarantine ADD COLUMN kept_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hw$skips ADD COLUMN kept_at INTEGER NOT NULL DEFAULT 0;
"""

_STEPS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH, _EIGHTH)
FORMAT = len(_STEPS)


def inspect_sqlite(folder: Path) -> StoreInspection:
    """Inspect the store in a folder, which need not exist.

    Example:
        >>> inspect_sqlite(Path("nowhere")).format
        0
    """
    path = folder / "store.db"
    if not path.exists():
        return StoreInspection(0, FORMAT)
    immutable = not path.with_name("store.db-wal").exists()
    with (
        translate_sqlite_errors(path, "store"),
        contextlib.closing(open_reader(path, "store", immutable=immutable)) as session,
    ):
        (format_,) = session.execute("PRAGMA user_version").fetchone()
        views = current_tables(session) if 0 < format_ <= FORMAT else []
        return StoreInspection(format_, FORMAT, {table.name: table for table in views})


_SOURCE_TABLES = ("ledger", "totals", "late", "quarantine", "reports", "views", "spaces", "state", "kept", "pipelines")
SYSTEM_TABLES = tuple(f"hw${name}" for name in _SOURCE_TABLES)
"""The tables that the system views read."""


def _timestamp_sql(micros: str) -> str:
    """Returns SQL for the text of a count of microseconds, rounded down also before 1970."""
    rest = f"((({micros}) % 1000000 + 1000000) % 1000000)"
    seconds = f"((({micros}) - {rest}) / 1000000)"
    return f"(strftime('%Y-%m-%dT%H:%M:%S', {seconds}, 'unixepoch') || printf('.%06dZ', {rest}))"


def _integer_sql(eight: str) -> str:
    """Returns SQL that decodes eight bytes with inverted sign bit to an integer, from their hex digits."""
    digit = f"(instr('0123456789ABCDEF', substr(hex({eight}), {{}}, 1)) - 1)"
    first = f"({digit.format(1)} - 8) * {1 << 60}"
    others = (f"{digit.format(position)} * {1 << 64 - 4 * position}" for position in range(2, 17))
    return f"({first} + {' + '.join(others)})"


_KEY_SQL = KeySql(
    hex=lambda bytes_: f"lower(hex({bytes_}))",
    text=lambda bytes_: f"CAST({bytes_} AS text)",
    integer=_integer_sql,
    position=lambda bytes_, digits: f"instr({bytes_}, x'{digits}')",
    timestamp=_timestamp_sql,
    date=lambda days: f"date({days} * 86400, 'unixepoch')",
)
_DEFINITIONS = build_system_views(_timestamp_sql, _KEY_SQL, ordered_join="CROSS JOIN")


def is_up_to_date(session: SqliteSession) -> bool:
    """Returns whether the tables and system views have the current format."""
    (format_,) = session.execute("PRAGMA user_version").fetchone()
    return bool(format_ == FORMAT and not _stale_views(session))


def migrate_store(session: SqliteSession, path: Path) -> None:
    """Migrate the tables and system views to the current format; runs in the caller's transaction.

    Raises:
        NewerFormatError: A newer version of Headwater has written the store; nothing was touched.
    """
    apply_migrations(session, path, "store", _STEPS)
    for name in _stale_views(session):
        session.execute(f"DROP VIEW IF EXISTS {name}")
        session.execute(_create_statement(name))


def _stale_views(session: SqliteSession) -> list[str]:
    """Returns the system views whose text differs from the present one."""
    found = dict(session.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'").fetchall())
    return [name for name in _DEFINITIONS if found.get(name) != _create_statement(name)]


def _create_statement(name: str) -> str:
    return f"CREATE VIEW {name} AS {_DEFINITIONS[name].strip()}"
