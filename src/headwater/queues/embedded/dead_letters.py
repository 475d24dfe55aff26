"""Messages that were given up: read with their whole history, and put back in line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from headwater.queues.embedded.publishing import add_to_group, insert_message
from headwater.queues.embedded.settling import let_go
from headwater.queues.embedded.taking import MESSAGE, message_of, moment_of
from headwater.queues.embedded.transaction import Transaction
from headwater.queues.protocol import Attempt, DeadLetter
from headwater.units import micros

__all__ = ["PAGE", "read_dead", "revive"]

PAGE = 100
"""How many dead letters are read or revived in one transaction."""


def read_dead(transaction: Transaction, group: str | None, after: int) -> list[DeadLetter]:
    """The next dead letters after a number, oldest first."""
    chosen = "" if group is None else "AND g.name = ? "
    rows = transaction.execute(
        f"SELECT d.number, d.id, d.grp, g.name, d.died_at, d.why, {MESSAGE} FROM dead d"
        f" CROSS JOIN message m ON m.id = d.id CROSS JOIN grp g ON g.number = d.grp"
        f" WHERE d.number > ? {chosen}ORDER BY d.number LIMIT {PAGE}",
        (after,) if group is None else (after, group),
    ).fetchall()
    letters = []
    for number, id, group_number, name, died_at, why, *columns in rows:
        message, published_at = message_of(columns)
        history = _history(transaction, group_number, id)
        letters.append(DeadLetter(number, name, message, published_at, moment_of(died_at), why, history))
    return letters


def _history(transaction: Transaction, group: int, id: int) -> tuple[Attempt, ...]:
    rows = transaction.execute(
        "SELECT number, at, why, worker, stack FROM attempt WHERE grp = ? AND id = ? ORDER BY number",
        (group, id),
    )
    return tuple(Attempt(number, moment_of(at), *words) for number, at, *words in rows)


def revive(transaction: Transaction, letters: Sequence[DeadLetter]) -> int:
    """Put letters back in line, at its end; how many were still there.

    Each is a message of its own from now on, for its group only: it may have been edited.
    """
    revived = 0
    for letter in letters:
        row = transaction.row("DELETE FROM dead WHERE number = ? RETURNING grp, id, claims", (letter.number,))
        if row is None:
            continue
        group, old, claims = row
        # It has waited long enough: a delay that it was published with is not waited for again.
        message = replace(letter.message, delay=timedelta(0))
        new = insert_message(transaction, message.id, message, micros(letter.published_at), 1)
        transaction.execute("UPDATE attempt SET id = ? WHERE grp = ? AND id = ?", (new, group, old))
        let_go(transaction, group, old, None, tried=False)
        add_to_group(transaction, group, new, message, claims)
        transaction.count(group, "dead", -1)
        revived += 1
    return revived
