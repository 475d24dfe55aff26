"""Dead letters of the embedded broker: read with their history, and redriven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from headwater.queues.embedded.delivery import MESSAGE_COLUMNS, decode_message, remove_from_group, to_datetime
from headwater.queues.embedded.publish import add_to_group, insert_message
from headwater.queues.embedded.transaction import QueueTransaction
from headwater.queues.protocol import Attempt, DeadLetter
from headwater.units import micros

__all__ = ["PAGE_SIZE", "read_dead_letters", "redrive"]

PAGE_SIZE = 100
"""How many dead letters are read or redriven in one transaction."""


def read_dead_letters(transaction: QueueTransaction, group: str | None, after: int) -> list[DeadLetter]:
    """Returns the next dead letters after a number, oldest first."""
    chosen = "" if group is None else "AND g.name = ? "
    rows = transaction.execute(
        f"SELECT d.number, d.id, d.grp, g.name, d.died_at, d.why, {MESSAGE_COLUMNS} FROM dead d"
        f" CROSS JOIN message m ON m.id = d.id CROSS JOIN grp g ON g.number = d.grp"
        f" WHERE d.number > ? {chosen}ORDER BY d.number LIMIT {PAGE_SIZE}",
        (after,) if group is None else (after, group),
    ).fetchall()
    letters = []
    sql = "SELECT number, at, why, worker, stack FROM attempt WHERE grp = ? AND id = ? ORDER BY number"
    for number, id, group_number, name, died_at, why, *columns in rows:
        message, published_at = decode_message(columns)
        failures = transaction.execute(sql, (group_number, id))
        history = tuple(Attempt(attempt, to_datetime(at), *details) for attempt, at, *details in failures)
        letters.append(DeadLetter(number, name, message, published_at, to_datetime(died_at), why, history))
    return letters


def redrive(transaction: QueueTransaction, letters: Sequence[DeadLetter]) -> int:
    """Move dead letters to the end of their queue; returns how many were still dead letters.

    Each becomes a new message for its group only: an edit must not change the message in other groups.
    """
    redriven = 0
    for letter in letters:
        row = transaction.fetch_one("DELETE FROM dead WHERE number = ? RETURNING grp, id, claims", (letter.number,))
        if row is None:
            continue
        group, old, claims = row
        # The delay of the first publish does not apply again.
        message = replace(letter.message, delay=timedelta(0))
        new = insert_message(transaction, message.id, message, micros(letter.published_at), 1)
        transaction.execute("UPDATE attempt SET id = ? WHERE grp = ? AND id = ?", (new, group, old))
        remove_from_group(transaction, group, old, None, tried=False)
        add_to_group(transaction, group, new, message, claims)
        transaction.count(group, "dead", -1)
        redriven += 1
    return redriven
