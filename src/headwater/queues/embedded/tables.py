"""The tables of a queue's file, and the steps that brought them to their present form.

A body is stored once, in `message`; each group has a row of its own in `delivery` until it is done with the message.
The primary key of `delivery` is the order of delivery, so that the next ones are found in one step however many wait:

    READY     rank = 9 - priority, at = 0       can be taken, by priority, then in order of publishing
    DELAYED   rank = 0, at = when it is due     published with a delay, or between two attempts
    FLIGHT    rank = 0, at = until when         with a receiver
    BEHIND    rank = 0, at = 0                  ordered queues: another message of its key comes first

`fed` and `handover` are what topics give and get (handing.py).

Times are microseconds of the queue's own time (queue_time.py), except `published_at` and other times that people read.
A step is never edited once it was released: the next is added.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from headwater.sqlite_file import bring_up

__all__ = ["BEHIND", "DELAYED", "FLIGHT", "READY", "migrate"]

READY: Final = 0
DELAYED: Final = 1
FLIGHT: Final = 2
BEHIND: Final = 3

_FIRST = """
CREATE TABLE setting (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

CREATE TABLE grp (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    waiting INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0, in_flight INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0, published INTEGER NOT NULL DEFAULT 0, acked INTEGER NOT NULL DEFAULT 0,
    redelivered INTEGER NOT NULL DEFAULT 0, expired INTEGER NOT NULL DEFAULT 0, dropped INTEGER NOT NULL DEFAULT 0,
    changed INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE message (
    id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL, body BLOB NOT NULL, words TEXT NOT NULL, key TEXT,
    headers BLOB, priority INTEGER NOT NULL, delay INTEGER NOT NULL, ttl INTEGER, traceparent TEXT,
    published_at INTEGER NOT NULL, refs INTEGER NOT NULL
);

CREATE TABLE delivery (
    grp INTEGER NOT NULL, state INTEGER NOT NULL, rank INTEGER NOT NULL, at INTEGER NOT NULL, id INTEGER NOT NULL,
    priority INTEGER NOT NULL, due INTEGER NOT NULL, expires INTEGER, key TEXT,
    claims INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, owner TEXT,
    PRIMARY KEY (grp, state, rank, at, id)
) WITHOUT ROWID;

CREATE TABLE line (
    grp INTEGER NOT NULL, key TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (grp, key, id)
) WITHOUT ROWID;

CREATE TABLE expiry (
    at INTEGER NOT NULL, grp INTEGER NOT NULL, id INTEGER NOT NULL,
    priority INTEGER NOT NULL, due INTEGER NOT NULL,
    PRIMARY KEY (at, grp, id)
) WITHOUT ROWID;

CREATE TABLE seen (number INTEGER PRIMARY KEY, uid TEXT NOT NULL UNIQUE, until INTEGER NOT NULL);

CREATE TABLE attempt (
    grp INTEGER NOT NULL, id INTEGER NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL,
    why TEXT NOT NULL, worker TEXT NOT NULL, stack TEXT NOT NULL,
    PRIMARY KEY (grp, id, number)
) WITHOUT ROWID;

CREATE TABLE dead (
    number INTEGER PRIMARY KEY AUTOINCREMENT, grp INTEGER NOT NULL, id INTEGER NOT NULL,
    died_at INTEGER NOT NULL, why TEXT NOT NULL, claims INTEGER NOT NULL
);
CREATE INDEX dead_of ON dead (grp, number);

CREATE TABLE fed (feed TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE handover (
    feed TEXT NOT NULL, number INTEGER NOT NULL, grp INTEGER NOT NULL, id INTEGER NOT NULL, key TEXT,
    claims INTEGER NOT NULL, PRIMARY KEY (feed, number)
) WITHOUT ROWID;
"""

_STEPS = (_FIRST,)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the tables to the present form; inside the caller's transaction.

    Raises:
        NewerFormatError: A newer version of Headwater has written the file; nothing was touched.
    """
    bring_up(connection, path, "queue", _STEPS)
