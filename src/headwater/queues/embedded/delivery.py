"""Deliveries: claim due messages for a receiver, and settle them.

`claim` assigns the first messages to a receiver and sets their visibility timeout. Before that, `release_due` enforces
all timers: it fails deliveries whose visibility timeout has passed, releases delayed messages and expires messages.
`acknowledge`, `fail`, `requeue` and `extend` end or prolong a delivery; in an ordered queue, settling one message
unblocks the next of its key.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from headwater.queues.embedded.transaction import BLOCKED, DELAYED, IN_FLIGHT, READY, QueueTransaction
from headwater.queues.protocol import Delivery, OutgoingMessage

__all__ = [
    "MESSAGE_COLUMNS",
    "DeliveryFailure",
    "DeliveryTag",
    "acknowledge",
    "append_to_key",
    "claim",
    "decode_message",
    "drop_oldest",
    "extend",
    "fail",
    "make_dead_letter",
    "next_timer",
    "release_due",
    "remove_from_group",
    "requeue",
    "to_datetime",
    "to_micros",
]

_rng = random.Random()
_MAX_TEXT = 64 << 10  # characters kept of a reason or stack
_BY_PRIMARY_KEY = "WHERE grp = ? AND state = ? AND rank = ? AND at = ? AND id = ?"


class DeliveryTag(NamedTuple):
    """Identifies one delivery of a message; a tag of an expired delivery matches no row."""

    group: int
    id: int
    until: int
    claims: int

    @property
    def row_key(self) -> tuple[int, ...]:
        """The primary key of its row, and the number of deliveries."""
        return (self.group, IN_FLIGHT, 0, self.until, self.id, self.claims)


@dataclass(frozen=True)
class DeliveryFailure:
    """Why a delivery failed; `delay` is the time to the next attempt, None for the queue's backoff."""

    why: str
    stack: str = ""
    delay: timedelta | None = None
    final: bool = False


def acknowledge(transaction: QueueTransaction, tag: DeliveryTag) -> bool:
    """Remove the message from this group; returns False if the delivery had expired."""
    row = transaction.fetch_one(f"DELETE FROM delivery {_BY_PRIMARY_KEY} AND claims = ? RETURNING key", tag.row_key)
    if row is None:
        return False
    transaction.count_move(tag.group, IN_FLIGHT, None)
    transaction.count(tag.group, "acked")
    remove_from_group(transaction, tag.group, tag.id, row[0], tag.claims > 1)
    return True


def extend(transaction: QueueTransaction, tag: DeliveryTag, until: int) -> bool:
    """Extend the visibility timeout of a delivery."""
    change = transaction.execute(f"UPDATE delivery SET at = ? {_BY_PRIMARY_KEY} AND claims = ?", (until, *tag.row_key))
    transaction.notify_receivers = transaction.notify_receivers or until < tag.until
    return change.rowcount == 1


def requeue(transaction: QueueTransaction, tag: DeliveryTag) -> bool:
    """Make the message deliverable again without counting a failure."""
    change = transaction.execute(
        f"UPDATE delivery SET state = ?, rank = 9 - priority, at = 0, owner = NULL {_BY_PRIMARY_KEY} AND claims = ?",
        (READY, *tag.row_key),
    )
    if change.rowcount == 1:
        transaction.count_move(tag.group, IN_FLIGHT, READY)
    return change.rowcount == 1


def fail(transaction: QueueTransaction, tag: DeliveryTag, failure: DeliveryFailure) -> bool:
    """Record a failure; the message is delayed until its next attempt, or becomes a dead letter.

    Returns False if the delivery had expired.
    """
    sql = f"SELECT priority, key, failed, owner FROM delivery {_BY_PRIMARY_KEY} AND claims = ?"
    row = transaction.fetch_one(sql, tag.row_key)
    if row is None:
        return False
    priority, key, failed, owner = row
    details = (failure.why[:_MAX_TEXT], owner, failure.stack[-_MAX_TEXT:])
    values = (tag.group, tag.id, tag.claims, transaction.wall, *details)
    transaction.execute("INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    retry = transaction.queue.retry
    if failure.final or failed + 1 >= retry.attempts:
        transaction.execute(f"DELETE FROM delivery {_BY_PRIMARY_KEY} AND claims = ?", tag.row_key)
        transaction.count_move(tag.group, IN_FLIGHT, None)
        make_dead_letter(transaction, tag.group, tag.id, key, tag.claims, "rejected" if failure.final else "failed")
        return True
    delay = failure.delay if failure.delay is not None else retry.delay(failed + 1, _rng)
    state, rank, at = _waiting_place(transaction, priority, transaction.now + to_micros(delay))
    transaction.execute(
        f"UPDATE delivery SET state = ?, rank = ?, at = ?, failed = ?, owner = NULL {_BY_PRIMARY_KEY} AND claims = ?",
        (state, rank, at, failed + 1, *tag.row_key),
    )
    transaction.count_move(tag.group, IN_FLIGHT, state)
    return True


def _waiting_place(transaction: QueueTransaction, priority: int, due: int) -> tuple[int, int, int]:
    """Returns state, rank and `at` of a message that is due at a time."""
    return (DELAYED, 0, due) if due > transaction.now else (READY, 9 - priority, 0)


def make_dead_letter(
    transaction: QueueTransaction, group: int, id: int, key: str | None, claims: int, why: str
) -> None:
    """Make a dead letter of a message whose delivery row is deleted; body and history stay."""
    transaction.execute(
        "INSERT INTO dead (grp, id, died_at, why, claims) VALUES (?, ?, ?, ?, ?)",
        (group, id, transaction.wall, why, claims),
    )
    transaction.count(group, "dead")
    unblock_next(transaction, group, key, id)


def remove_from_group(transaction: QueueTransaction, group: int, id: int, key: str | None, tried: bool) -> None:
    """Remove a message whose delivery row is deleted from its group; the last group also deletes the body."""
    if tried:
        transaction.execute("DELETE FROM attempt WHERE grp = ? AND id = ?", (group, id))
    unblock_next(transaction, group, key, id)
    if transaction.execute("DELETE FROM message WHERE id = ? AND refs = 1", (id,)).rowcount == 0:
        transaction.execute("UPDATE message SET refs = refs - 1 WHERE id = ?", (id,))


def append_to_key(transaction: QueueTransaction, group: int, id: int, key: str | None, due: int) -> int:
    """Append a new message to the order of its key, if it has one; returns its first state."""
    if key is not None:
        behind = transaction.fetch_one("SELECT 1 FROM line WHERE grp = ? AND key = ? LIMIT 1", (group, key))
        transaction.execute("INSERT INTO line VALUES (?, ?, ?)", (group, key, id))
        if behind:
            return BLOCKED
    return DELAYED if due > transaction.now else READY


def unblock_next(transaction: QueueTransaction, group: int, key: str | None, id: int) -> None:
    """Remove a message from the order of its key, and make the next one deliverable."""
    if key is None:
        return
    transaction.execute("DELETE FROM line WHERE grp = ? AND key = ? AND id = ?", (group, key, id))
    first = "SELECT id FROM line WHERE grp = ? AND key = ? ORDER BY id LIMIT 1"
    following = transaction.fetch_one(first, (group, key))
    if following is None:
        return
    row_key = (group, BLOCKED, 0, 0, following[0])
    row = transaction.fetch_one(f"SELECT priority, due FROM delivery {_BY_PRIMARY_KEY}", row_key)
    if row is None:
        return
    state, rank, at = _waiting_place(transaction, *row)
    transaction.execute(
        f"UPDATE delivery SET state = ?, rank = ?, at = ? {_BY_PRIMARY_KEY}", (state, rank, at, *row_key)
    )
    transaction.count_move(group, BLOCKED, state)


def drop_oldest(transaction: QueueTransaction, group: int) -> bool:
    """Drop the oldest ready message of the lowest priority; returns False if there is none."""
    # Two queries, each one step in the primary key: one ordered by rank DESC and id would sort all ready messages.
    sql = "SELECT rank FROM delivery WHERE grp = ? AND state = ? ORDER BY rank DESC LIMIT 1"
    last = transaction.fetch_one(sql, (group, READY))
    if last is None:
        return False
    sql = "SELECT id FROM delivery WHERE grp = ? AND state = ? AND rank = ? AND at = 0 ORDER BY id LIMIT 1"
    (id,) = transaction.fetch_one(sql, (group, READY, last[0]))
    row_key = (group, READY, last[0], 0, id)
    key, expires, claims = transaction.fetch_one(
        f"DELETE FROM delivery {_BY_PRIMARY_KEY} RETURNING key, expires, claims", row_key
    )
    transaction.count_move(group, READY, None)
    transaction.count(group, "dropped")
    if expires is not None:
        transaction.execute("DELETE FROM expiry WHERE at = ? AND grp = ? AND id = ?", (expires, group, id))
    remove_from_group(transaction, group, id, key, claims > 0)
    return True


_BATCH_SIZE = 500  # messages moved by one `release_due`, so that no transaction lasts long
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMED_OUT = DeliveryFailure("not settled within the visibility timeout", delay=timedelta(0))
MESSAGE_COLUMNS = "m.uid, m.body, m.words, m.key, m.headers, m.priority, m.delay, m.ttl, m.traceparent, m.published_at"
"""The columns of a message, for `decode_message`."""
_SELECT_NEXT = (
    f"SELECT d.rank, d.id, d.claims, d.expires, {MESSAGE_COLUMNS} FROM delivery d CROSS JOIN message m ON m.id = d.id"
    " WHERE d.grp = ? AND d.state = ? ORDER BY d.rank, d.at, d.id LIMIT ?"
)
# A message that was delivered once does not expire any more: `expires` becomes NULL.
_CLAIM = (
    "UPDATE delivery SET state = ?, rank = 0, at = ?, claims = claims + 1, expires = NULL, owner = ?"
    " WHERE grp = ? AND state = ? AND rank = ? AND at = 0 AND id = ?"
)
_DUE_ROWS = "FROM delivery WHERE grp = ? AND state = ? AND rank = 0 AND at <= ? ORDER BY at, id LIMIT ?"
_ANY_DUE = (
    "SELECT EXISTS (SELECT 1 FROM delivery WHERE grp = ? AND state = ? AND rank = 0 AND at <= ?),"
    " EXISTS (SELECT 1 FROM delivery WHERE grp = ? AND state = ? AND rank = 0 AND at <= ?),"
    " EXISTS (SELECT 1 FROM expiry WHERE at <= ?)"
)


def claim(transaction: QueueTransaction, group: int, owner: str, limit: int) -> list[Delivery]:
    """Assign the next messages to a receiver, in delivery order."""
    release_due(transaction, group)
    now = transaction.now
    until = now + to_micros(transaction.queue.visibility_timeout)
    found = transaction.execute(_SELECT_NEXT, (group, READY, limit)).fetchall()
    # One `release_due` moves `_BATCH_SIZE` messages: more may have expired than that.
    rows = [row for row in found if row[3] is None or row[3] > now]
    if not rows:
        return []
    transaction.executemany(_CLAIM, [(IN_FLIGHT, until, owner, group, READY, rank, id) for rank, id, *_ in rows])
    transaction.count_move(group, READY, IN_FLIGHT, len(rows))
    transaction.count(group, "redelivered", sum(claims > 0 for _, _, claims, *_ in rows))
    in_time = [(expires, group, id) for _, id, _, expires, *_ in rows if expires is not None]
    if in_time:
        transaction.executemany("DELETE FROM expiry WHERE at = ? AND grp = ? AND id = ?", in_time)
    # Shown in wall-clock time, from which the queue's time may differ.
    visible_until = to_datetime(transaction.wall + until - now)
    return [
        Delivery(*decode_message(columns), claims + 1, visible_until, DeliveryTag(group, id, until, claims + 1))
        for _, id, claims, _, *columns in rows
    ]


def decode_message(columns: list[Any]) -> tuple[OutgoingMessage, datetime]:
    """Returns a message, and when it was published, from the columns of `MESSAGE_COLUMNS`."""
    uid, body, routing_key, key, headers, priority, delay, ttl, traceparent, published_at = columns
    message = OutgoingMessage(
        body,
        uid,
        routing_key,
        key,
        msgspec.json.decode(headers) if headers else {},
        priority,
        timedelta(microseconds=delay),
        None if ttl is None else timedelta(microseconds=ttl),
        traceparent,
    )
    return message, to_datetime(published_at)


def to_micros(span: timedelta) -> int:
    """Returns a duration in microseconds.

    Example:
        >>> to_micros(timedelta(milliseconds=2))
        2000
    """
    return span // timedelta(microseconds=1)


def to_datetime(micros: int) -> datetime:
    """Returns a moment from microseconds since 1970.

    Example:
        >>> to_datetime(1_000_000).isoformat()
        '1970-01-01T00:00:01+00:00'
    """
    return _EPOCH + timedelta(microseconds=micros)


def release_due(transaction: QueueTransaction, group: int) -> bool:
    """Release delayed messages, fail overdue deliveries and expire messages; returns whether more may be due."""
    now = transaction.now
    delayed, overdue, expired = transaction.fetch_one(_ANY_DUE, (group, DELAYED, now, group, IN_FLIGHT, now, now))
    moved = (
        _release_delayed(transaction, group) if delayed else 0,
        _fail_overdue(transaction, group) if overdue else 0,
        _expire(transaction) if expired else 0,
    )
    return max(moved) == _BATCH_SIZE


def _release_delayed(transaction: QueueTransaction, group: int) -> int:
    bound = (group, DELAYED, transaction.now, _BATCH_SIZE)
    rows = transaction.execute(f"SELECT priority, at, id {_DUE_ROWS}", bound).fetchall()
    transaction.executemany(
        "UPDATE delivery SET state = ?, rank = ?, at = 0"
        " WHERE grp = ? AND state = ? AND rank = 0 AND at = ? AND id = ?",
        [(READY, 9 - priority, group, DELAYED, at, id) for priority, at, id in rows],
    )
    transaction.count_move(group, DELAYED, READY, len(rows))
    return len(rows)


def _fail_overdue(transaction: QueueTransaction, group: int) -> int:
    """Fail deliveries whose visibility timeout has passed."""
    bound = (group, IN_FLIGHT, transaction.now, _BATCH_SIZE)
    rows = transaction.execute(f"SELECT id, at, claims {_DUE_ROWS}", bound).fetchall()
    for id, at, claims in rows:
        fail(transaction, DeliveryTag(group, id, at, claims), _TIMED_OUT)
    return len(rows)


def _expire(transaction: QueueTransaction) -> int:
    """Make dead letters of messages, in all groups, whose time to live has passed before a delivery."""
    sql = "SELECT at, grp, id, priority, due FROM expiry WHERE at <= ? ORDER BY at LIMIT ?"
    rows = transaction.execute(sql, (transaction.now, _BATCH_SIZE)).fetchall()
    for at, group, id, priority, due in rows:
        transaction.execute("DELETE FROM expiry WHERE at = ? AND grp = ? AND id = ?", (at, group, id))
        # Its row is in one of these places: `claim` deletes the `expiry` row of a message that it delivers.
        for state, rank, time in ((READY, 9 - priority, 0), (DELAYED, 0, due), (BLOCKED, 0, 0)):
            row_key = (group, state, rank, time, id)
            found = transaction.fetch_one(f"DELETE FROM delivery {_BY_PRIMARY_KEY} RETURNING key, claims", row_key)
            if found is not None:
                transaction.count_move(group, state, None)
                transaction.count(group, "expired")
                key, claims = found
                make_dead_letter(transaction, group, id, key, claims, "expired")
                break
    return len(rows)


def next_timer(transaction: QueueTransaction, group: int) -> int | None:
    """Returns when the next message of a group becomes due, overdue or expired, in the queue's time."""
    sql = "SELECT at FROM delivery WHERE grp = ? AND state = ? AND rank = 0 ORDER BY at LIMIT 1"
    found = [transaction.fetch_one(sql, (group, state)) for state in (DELAYED, IN_FLIGHT)]
    found.append(transaction.fetch_one("SELECT at FROM expiry ORDER BY at LIMIT 1", ()))
    return min((row[0] for row in found if row is not None), default=None)
