"""How a delivery ends: done, tried again, dead, given back; and who is next in line behind it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from headwater.queues.embedded.tables import BEHIND, DELAYED, FLIGHT, READY
from headwater.queues.embedded.transaction import Transaction

__all__ = [
    "Failure",
    "Tag",
    "acknowledge",
    "die",
    "dropped_for_room",
    "extend",
    "fail",
    "give_back",
    "let_go",
    "placed",
    "step_up",
]

_chance = random.Random()
_LONGEST_TEXT = 64 << 10  # characters of a reason or stack that are kept
_THIS = "WHERE grp = ? AND state = ? AND rank = ? AND at = ? AND id = ?"


class Tag(NamedTuple):
    """Which delivery of which message a receiver has; one that it has no more fits no row."""

    group: int
    id: int
    until: int
    claims: int

    @property
    def row(self) -> tuple[int, ...]:
        """Finds its row: the primary key, and the number of times it was taken."""
        return (self.group, FLIGHT, 0, self.until, self.id, self.claims)


@dataclass(frozen=True)
class Failure:
    """Why a delivery did not succeed; `rest` is how long to wait, None for the queue's backoff."""

    why: str
    stack: str = ""
    rest: timedelta | None = None
    final: bool = False


def acknowledge(transaction: Transaction, tag: Tag) -> bool:
    """Done: nothing of it is left for this group. False if the receiver did not have it any more."""
    row = transaction.row(f"DELETE FROM delivery {_THIS} AND claims = ? RETURNING key", tag.row)
    if row is None:
        return False
    transaction.moved(tag.group, FLIGHT, None)
    transaction.count(tag.group, "acked")
    let_go(transaction, tag.group, tag.id, row[0], tag.claims > 1)
    return True


def extend(transaction: Transaction, tag: Tag, until: int) -> bool:
    """Let the receiver keep it until another time."""
    change = transaction.execute(f"UPDATE delivery SET at = ? {_THIS} AND claims = ?", (until, *tag.row))
    transaction.rings = transaction.rings or until < tag.until
    return change.rowcount == 1


def give_back(transaction: Transaction, tag: Tag) -> bool:
    """To whoever is next, without a failure being counted."""
    change = transaction.execute(
        f"UPDATE delivery SET state = ?, rank = 9 - priority, at = 0, owner = NULL {_THIS} AND claims = ?",
        (READY, *tag.row),
    )
    if change.rowcount == 1:
        transaction.moved(tag.group, FLIGHT, READY)
    return change.rowcount == 1


def fail(transaction: Transaction, tag: Tag, failure: Failure) -> bool:
    """Write the failure down; then it rests until it is tried again, or is dead."""
    question = f"SELECT priority, key, failed, owner FROM delivery {_THIS} AND claims = ?"
    row = transaction.row(question, tag.row)
    if row is None:
        return False
    priority, key, failed, owner = row
    words = (failure.why[:_LONGEST_TEXT], owner, failure.stack[-_LONGEST_TEXT:])
    values = (tag.group, tag.id, tag.claims, transaction.wall, *words)
    transaction.execute("INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    retry = transaction.queue.retry
    if failure.final or failed + 1 >= retry.attempts:
        transaction.execute(f"DELETE FROM delivery {_THIS} AND claims = ?", tag.row)
        transaction.moved(tag.group, FLIGHT, None)
        die(transaction, tag.group, tag.id, key, tag.claims, "rejected" if failure.final else "failed")
        return True
    rest = failure.rest if failure.rest is not None else retry.delay(failed + 1, _chance)
    at = transaction.now + rest // timedelta(microseconds=1)
    state, rank, at = (DELAYED, 0, at) if at > transaction.now else (READY, 9 - priority, 0)
    transaction.execute(
        f"UPDATE delivery SET state = ?, rank = ?, at = ?, failed = ?, owner = NULL {_THIS} AND claims = ?",
        (state, rank, at, failed + 1, *tag.row),
    )
    transaction.moved(tag.group, FLIGHT, state)
    return True


def die(transaction: Transaction, group: int, id: int, key: str | None, claims: int, why: str) -> None:
    """Make a dead letter of a message whose row is gone already; body and history stay where they are."""
    transaction.execute(
        "INSERT INTO dead (grp, id, died_at, why, claims) VALUES (?, ?, ?, ?, ?)",
        (group, id, transaction.wall, why, claims),
    )
    transaction.count(group, "dead")
    step_up(transaction, group, key, id)


def let_go(transaction: Transaction, group: int, id: int, key: str | None, tried: bool) -> None:
    """A group is done with a message whose row is gone already; without another group, so is its body."""
    if tried:
        transaction.execute("DELETE FROM attempt WHERE grp = ? AND id = ?", (group, id))
    step_up(transaction, group, key, id)
    if transaction.execute("DELETE FROM message WHERE id = ? AND refs = 1", (id,)).rowcount == 0:
        transaction.execute("UPDATE message SET refs = refs - 1 WHERE id = ?", (id,))


def placed(transaction: Transaction, group: int, id: int, key: str | None, due: int) -> int:
    """Put a new message into the line of its key, if it has one; the state in which it begins."""
    if key is not None:
        behind = transaction.row("SELECT 1 FROM line WHERE grp = ? AND key = ? LIMIT 1", (group, key))
        transaction.execute("INSERT INTO line VALUES (?, ?, ?)", (group, key, id))
        if behind:
            return BEHIND
    return DELAYED if due > transaction.now else READY


def step_up(transaction: Transaction, group: int, key: str | None, id: int) -> None:
    """Take a message out of the line of its key, and let the next one be taken if it stood behind this one."""
    if key is None:
        return
    transaction.execute("DELETE FROM line WHERE grp = ? AND key = ? AND id = ?", (group, key, id))
    first = "SELECT id FROM line WHERE grp = ? AND key = ? ORDER BY id LIMIT 1"
    following = transaction.row(first, (group, key))
    if following is None:
        return
    place = (group, BEHIND, 0, 0, following[0])
    row = transaction.row(f"SELECT priority, due FROM delivery {_THIS}", place)
    if row is None:
        return
    priority, due = row
    state, rank, at = (DELAYED, 0, due) if due > transaction.now else (READY, 9 - priority, 0)
    transaction.execute(f"UPDATE delivery SET state = ?, rank = ?, at = ? {_THIS}", (state, rank, at, *place))
    transaction.moved(group, BEHIND, state)


def dropped_for_room(transaction: Transaction, group: int) -> bool:
    """Drop the oldest of the messages with the lowest priority that could be taken now; False if there is none."""
    question = "SELECT rank FROM delivery WHERE grp = ? AND state = ? ORDER BY rank DESC LIMIT 1"
    last = transaction.row(question, (group, READY))
    if last is None:
        return False
    question = (
        "SELECT id FROM delivery WHERE grp = ? AND state = ? AND rank = ? AND at = 0 ORDER BY id LIMIT 1"
    )
    (id,) = transaction.row(question, (group, READY, last[0]))
    place = (group, READY, last[0], 0, id)
    key, expires, claims = transaction.row(
        f"DELETE FROM delivery {_THIS} RETURNING key, expires, claims", place
    )
    transaction.moved(group, READY, None)
    transaction.count(group, "dropped")
    if expires is not None:
        transaction.execute("DELETE FROM expiry WHERE at = ? AND grp = ? AND id = ?", (expires, group, id))
    let_go(transaction, group, id, key, claims > 0)
    return True
