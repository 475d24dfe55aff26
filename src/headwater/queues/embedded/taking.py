"""How messages go out: what has become due is put in line, then the first ones are given to a receiver."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from headwater.queues.embedded.settling import Failure, Tag, die, fail
from headwater.queues.embedded.tables import BEHIND, DELAYED, FLIGHT, READY
from headwater.queues.embedded.transaction import Transaction
from headwater.queues.protocol import Delivery, Outgoing

__all__ = ["MESSAGE", "message_of", "moment_of", "next_timer", "put_in_line", "take"]

# So many messages that became due at the same time are moved in one transaction, so that none lasts long.
_AT_ONCE = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OVERDUE = Failure("not settled in its visibility time", rest=timedelta(0))
MESSAGE = (
    "m.uid, m.body, m.words, m.key, m.headers, m.priority, m.delay, m.ttl, m.traceparent, m.published_at"
)
"""Columns of a message, for `message_of`."""
_NEXT = (
    f"SELECT d.rank, d.id, d.claims, d.expires, {MESSAGE} FROM delivery d CROSS JOIN message m ON m.id = d.id"
    " WHERE d.grp = ? AND d.state = ? ORDER BY d.rank, d.at, d.id LIMIT ?"
)
_TAKE = (
    "UPDATE delivery SET state = ?, rank = 0, at = ?, claims = claims + 1, expires = NULL, owner = ?"
    " WHERE grp = ? AND state = ? AND rank = ? AND at = 0 AND id = ?"
)
_UP_TO_NOW = "FROM delivery WHERE grp = ? AND state = ? AND rank = 0 AND at <= ? ORDER BY at, id LIMIT ?"
_DUE = (
    "SELECT EXISTS (SELECT 1 FROM delivery WHERE grp = ? AND state = ? AND rank = 0 AND at <= ?),"
    " EXISTS (SELECT 1 FROM delivery WHERE grp = ? AND state = ? AND rank = 0 AND at <= ?),"
    " EXISTS (SELECT 1 FROM expiry WHERE at <= ?)"
)


def take(transaction: Transaction, group: int, owner: str, most: int) -> list[Delivery]:
    """Give up to so many messages to a receiver, first those that come first."""
    put_in_line(transaction, group)
    now = transaction.now
    until = now + transaction.queue.visible // timedelta(microseconds=1)
    found = transaction.execute(_NEXT, (group, READY, most)).fetchall()
    rows = [row for row in found if row[3] is None or row[3] > now]  # many may have expired at the same time
    if not rows:
        return []
    changes = [(FLIGHT, until, owner, group, READY, rank, id) for rank, id, *_ in rows]
    transaction.executemany(_TAKE, changes)
    transaction.moved(group, READY, FLIGHT, len(rows))
    again = sum(claims > 0 for _, _, claims, *_ in rows)
    transaction.count(group, "redelivered", again)
    in_time = [(expires, group, id) for _, id, _, expires, *_ in rows if expires is not None]
    if in_time:
        transaction.executemany("DELETE FROM expiry WHERE at = ? AND grp = ? AND id = ?", in_time)
    return [_delivery(transaction, group, until, row) for row in rows]


def _delivery(transaction: Transaction, group: int, until: int, row: tuple[Any, ...]) -> Delivery:
    _, id, claims, _, *columns = row
    message, published_at = message_of(columns)
    # By the wall clock, whatever it was set to since the queue's time began.
    ends_at = moment_of(transaction.wall + until - transaction.now)
    return Delivery(message, published_at, claims + 1, ends_at, Tag(group, id, until, claims + 1))


def message_of(columns: list[Any]) -> tuple[Outgoing, datetime]:
    """A message, and when it was published, from the columns of `MESSAGE`."""
    uid, body, words, key, headers, priority, delay, ttl, traceparent, published_at = columns
    message = Outgoing(
        body,
        uid,
        words,
        key,
        msgspec.json.decode(headers) if headers else {},
        priority,
        timedelta(microseconds=delay),
        None if ttl is None else timedelta(microseconds=ttl),
        traceparent,
    )
    return message, moment_of(published_at)


def moment_of(micros: int) -> datetime:
    """A moment from microseconds since 1970.

    Example:
        >>> moment_of(1_000_000).isoformat()
        '1970-01-01T00:00:01+00:00'
    """
    return _EPOCH + timedelta(microseconds=micros)


def put_in_line(transaction: Transaction, group: int) -> bool:
    """Move what has become due: rested messages, those whose receiver is overdue, those that nobody took in time.

    True if there may be more than one transaction should move.
    """
    now = transaction.now
    rested, overdue, expired = transaction.row(_DUE, (group, DELAYED, now, group, FLIGHT, now, now))
    moved = (
        _end_rests(transaction, group) if rested else 0,
        _take_back(transaction, group) if overdue else 0,
        _expire(transaction) if expired else 0,
    )
    return max(moved) == _AT_ONCE


def _end_rests(transaction: Transaction, group: int) -> int:
    bound = (group, DELAYED, transaction.now, _AT_ONCE)
    rows = transaction.execute(f"SELECT priority, at, id {_UP_TO_NOW}", bound).fetchall()
    transaction.executemany(
        "UPDATE delivery SET state = ?, rank = ?, at = 0"
        " WHERE grp = ? AND state = ? AND rank = 0 AND at = ? AND id = ?",
        [(READY, 9 - priority, group, DELAYED, at, id) for priority, at, id in rows],
    )
    transaction.moved(group, DELAYED, READY, len(rows))
    return len(rows)


def _take_back(transaction: Transaction, group: int) -> int:
    bound = (group, FLIGHT, transaction.now, _AT_ONCE)
    rows = transaction.execute(f"SELECT id, at, claims {_UP_TO_NOW}", bound).fetchall()
    for id, at, claims in rows:
        fail(transaction, Tag(group, id, at, claims), _OVERDUE)
    return len(rows)


def _expire(transaction: Transaction) -> int:
    """Give up messages of all groups that nobody took in time."""
    question = "SELECT at, grp, id, priority, due FROM expiry WHERE at <= ? ORDER BY at LIMIT ?"
    rows = transaction.execute(question, (transaction.now, _AT_ONCE)).fetchall()
    for at, group, id, priority, due in rows:
        transaction.execute("DELETE FROM expiry WHERE at = ? AND grp = ? AND id = ?", (at, group, id))
        for state, rank, time in ((READY, 9 - priority, 0), (DELAYED, 0, due), (BEHIND, 0, 0)):
            found = transaction.row(
                "DELETE FROM delivery WHERE grp = ? AND state = ? AND rank = ? AND at = ? AND id = ?"
                " RETURNING key, claims",
                (group, state, rank, time, id),
            )
            if found is not None:
                transaction.moved(group, state, None)
                transaction.count(group, "expired")
                key, claims = found
                die(transaction, group, id, key, claims, "expired")
                break
    return len(rows)


def next_timer(transaction: Transaction, group: int) -> int | None:
    """When the next message of a group becomes due, overdue or too old, in the queue's time."""
    question = "SELECT at FROM delivery WHERE grp = ? AND state = ? AND rank = 0 ORDER BY at LIMIT 1"
    found = [transaction.row(question, (group, state)) for state in (DELAYED, FLIGHT)]
    found.append(transaction.row("SELECT at FROM expiry ORDER BY at LIMIT 1", ()))
    return min((row[0] for row in found if row is not None), default=None)
