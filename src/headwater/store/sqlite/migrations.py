"""The store's own tables, and the steps that brought them to their present form.

Their names begin with `hw$`, which no view's name can. A step is never edited once it was released: the next is added.
The system views are not part of it; they are made anew whenever a store is opened for writing (system_views.py).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from headwater.sqlite_file import bring_up

__all__ = ["FORMAT", "migrate", "up_to_date"]

_FIRST = """
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

CREATE TABLE hw$late (
    query TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    occurred_at INTEGER NOT NULL, received_at INTEGER NOT NULL,
    value TEXT NOT NULL, reason TEXT NOT NULL, data BLOB NOT NULL, batch INTEGER NOT NULL,
    UNIQUE (query, topic, partition, "offset")
);

CREATE TABLE hw$quarantine (
    query TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    occurred_at INTEGER NOT NULL, received_at INTEGER NOT NULL,
    value TEXT NOT NULL, reason TEXT NOT NULL, data BLOB NOT NULL, batch INTEGER NOT NULL,
    UNIQUE (query, topic, partition, "offset")
);

CREATE TABLE hw$skips (
    query TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    occurred_at INTEGER NOT NULL, received_at INTEGER NOT NULL,
    value TEXT NOT NULL, reason TEXT NOT NULL, data BLOB NOT NULL, batch INTEGER NOT NULL,
    UNIQUE (query, topic, partition, "offset")
);

CREATE TABLE hw$reports (
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

_STEPS = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH)
FORMAT = len(_STEPS)


def up_to_date(connection: sqlite3.Connection) -> bool:
    """Whether the tables have the present form."""
    return bool(connection.execute("PRAGMA user_version").fetchone() == (FORMAT,))


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the tables to the present form; inside the caller's transaction.

    Raises:
        NewerFormatError: A newer version of Headwater has written the store; nothing was touched.
    """
    bring_up(connection, path, "store", _STEPS)
