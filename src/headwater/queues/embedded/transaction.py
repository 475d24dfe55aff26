"""One transaction on a queue's file, the tables of that file, and their clean-up.

A body is stored once, in `message`. Each group has a row in `delivery` until it is done with the message.
The primary key of `delivery` is the order of delivery, so the cost to find the next rows does not depend on how
many wait:

    READY     rank = 9 - priority, at = 0       deliverable, by priority, then in publish order
    DELAYED   rank = 0, at = when it is due     published with a delay, or between two attempts
    IN_FLIGHT rank = 0, at = visible until      delivered to a receiver, not settled
    BLOCKED   rank = 0, at = 0                  ordered queues: another message of its key comes first

The tables `fed` and `handover` hold the progress of bridges (bridge.py). Times are microseconds of the
queue's clock (`QueueClock` in queue_file.py), except times shown to people, such as `published_at`: those are
wall-clock times. A migration step is never edited after its release: a new one is added.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, Final

from headwater.queues.queue import Queue
from headwater.sql.sqlite_file import apply_migrations

__all__ = [
    "BLOCKED",
    "COUNT_COLUMNS",
    "DELAYED",
    "IN_FLIGHT",
    "READY",
    "QueueTransaction",
    "clean_up",
    "delete_expired_ids",
    "migrate",
]

READY: Final = 0
DELAYED: Final = 1
IN_FLIGHT: Final = 2
BLOCKED: Final = 3

_SCHEMA_V1 = """
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

_MIGRATIONS = (_SCHEMA_V1,)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Create or migrate the tables; inside the caller's transaction.

    Raises:
        NewerFormatError: A newer version of Headwater has written the file; nothing was changed.
    """
    apply_migrations(connection, path, "queue", _MIGRATIONS)


COUNT_COLUMNS = ("waiting", "delayed", "in_flight", "dead", "published", "acked", "redelivered", "expired", "dropped")
_STATE_COLUMNS = {READY: "waiting", BLOCKED: "waiting", DELAYED: "delayed", IN_FLIGHT: "in_flight"}


class QueueTransaction:
    """The state that the steps of one transaction share.

    Args:
        connection: A connection with an open transaction.
        queue: The definition of the queue.
        groups: The numbers of the groups by name, including those no longer declared.
        now: The queue's time in microseconds.
        wall: The wall clock's time in microseconds.
    """

    def __init__(
        self, connection: sqlite3.Connection, queue: Queue, groups: dict[str, int], now: int, wall: int
    ) -> None:
        self.queue = queue
        self.groups = groups
        self.now = now
        self.wall = wall
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.notify_receivers = False
        """Wake waiting receivers: a message is ready, or a timer is earlier than the one they wait for."""
        self.notify_publishers = False
        """Wake publishers that wait for room."""
        self._changes: Counter[tuple[int, str]] = Counter()

    def fetch_one(self, sql: str, values: tuple[Any, ...]) -> Any:
        """Returns the first row, or None."""
        return self.execute(sql, values).fetchone()

    def count(self, group: int, name: str, by: int = 1) -> None:
        """Add to a count of a group; written when the transaction ends."""
        self._changes[group, name] += by

    def count_move(self, group: int, before: int | None, after: int | None, number: int = 1) -> None:
        """Count that deliveries went from one state to another; None is outside the queue."""
        if before is not None:
            self._changes[group, _STATE_COLUMNS[before]] -= number
            # Deliveries in flight do not count towards the limit, so settling one makes no room.
            self.notify_publishers = self.notify_publishers or before != IN_FLIGHT
        if after is not None:
            self._changes[group, _STATE_COLUMNS[after]] += number
            self.notify_receivers = self.notify_receivers or after != IN_FLIGHT

    def backlog(self, group: int) -> int:
        """Returns how many messages wait in a group, delayed ones included."""
        stored: int = self.fetch_one("SELECT waiting + delayed FROM grp WHERE number = ?", (group,))[0]
        return stored + self._changes[group, "waiting"] + self._changes[group, "delayed"]

    def write_counts(self) -> None:
        """Write the counts to the groups' rows."""
        changed: dict[int, dict[str, int]] = {}
        for (group, name), by in self._changes.items():
            if by:
                changed.setdefault(group, {})[name] = by
        for group, names in changed.items():
            sets = ", ".join(f"{name} = {name} + ?" for name in names)
            values = (*names.values(), self.now, group)
            self.execute(f"UPDATE grp SET {sets}, changed = ? WHERE number = ?", values)
        self._changes.clear()


_VACUUM_PAGES: Final = 2_048  # pages (8 MB) that must be free, and half of the file, before it shrinks
_IDS_PER_RUN: Final = 256


def clean_up(transaction: QueueTransaction) -> None:
    """Delete some expired ids, and return some free pages of acknowledged messages to the file system."""
    delete_expired_ids(transaction, _IDS_PER_RUN)
    (free,) = transaction.fetch_one("PRAGMA freelist_count", ())
    if free >= _VACUUM_PAGES and free * 2 > transaction.fetch_one("PRAGMA page_count", ())[0]:
        for _ in range(_VACUUM_PAGES // 4):  # Python runs only the first step of this statement, which is one page
            transaction.execute("PRAGMA incremental_vacuum(1)")


def delete_expired_ids(transaction: QueueTransaction, limit: int) -> None:
    """Delete message ids whose deduplication window has passed; looks at the oldest `limit` ids."""
    # Ids are stored in the order of their expiry, unless `deduplication_window` was changed.
    rows = transaction.execute("SELECT number, until FROM seen ORDER BY number LIMIT ?", (limit,)).fetchall()
    old = [(number,) for number, until in rows if until <= transaction.now]
    if old:
        transaction.executemany("DELETE FROM seen WHERE number = ?", old)
