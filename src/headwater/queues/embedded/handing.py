"""What comes from a topic and what leaves for one: each message once, whatever is killed in between.

Into the queue: the offset behind the last event is stored in the transaction of the messages. Out of it: messages are
numbered when they are taken out of the line, and are given out again under the same numbers until they are done; the
topic leaves out numbers that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headwater.queues.embedded.publishing import Full, Offer, publish
from headwater.queues.embedded.settling import die, let_go
from headwater.queues.embedded.tables import FLIGHT
from headwater.queues.embedded.taking import MESSAGE, message_of, take
from headwater.queues.embedded.transaction import Transaction
from headwater.queues.protocol import Confirmed, Handover

__all__ = ["hand_over", "handed_over", "publish_from"]


def publish_from(
    transaction: Transaction, offer: Offer, feed: str, offsets: Sequence[int]
) -> list[Confirmed] | Full | None:
    """Take messages made of events at these rising offsets, except those that were taken before."""
    begun = _position(transaction, feed)
    new = [at for at, offset in enumerate(offsets) if offset >= begun]
    kept = replace(
        offer, messages=[offer.messages[at] for at in new], chosen=[offer.chosen[at] for at in new]
    )
    outcome = publish(transaction, kept)
    if new and isinstance(outcome, list):
        _set_position(transaction, feed, offsets[-1] + 1)
    return outcome


def hand_over(transaction: Transaction, group: int, feed: str, most: int, least: int) -> Handover | None:
    """The messages that are to go to a topic next: those that were given out and are not done, else new ones."""
    question = (
        f"SELECT h.number, {MESSAGE} FROM handover h CROSS JOIN message m ON m.id = h.id"
        " WHERE h.feed = ? ORDER BY h.number"
    )
    rows = transaction.execute(question, (feed,)).fetchall()
    if rows:
        return Handover(feed, rows[0][0], tuple(message_of(list(columns))[0] for _, *columns in rows))
    taken = take(transaction, group, feed, most)
    if not taken:
        return None
    first = max(_position(transaction, feed), least)
    for number, delivery in enumerate(taken, first):
        # It stays in flight by the counts, but no visibility time runs: only this feed can be done with it.
        (key,) = transaction.row(
            "DELETE FROM delivery WHERE grp = ? AND state = ? AND rank = ? AND at = ? AND id = ? AND claims = ?"
            " RETURNING key",
            delivery.tag.row,
        )
        values = (feed, number, group, delivery.tag.id, key, delivery.attempt)
        transaction.execute("INSERT INTO handover VALUES (?, ?, ?, ?, ?, ?)", values)
    _set_position(transaction, feed, first + len(taken))
    return Handover(feed, first, tuple(delivery.message for delivery in taken))


def handed_over(transaction: Transaction, handover: Handover, refused: Mapping[int, str]) -> None:
    """They are in the topic; those that it refused, by their place in the handover, are dead, with the reason."""
    end = handover.first + len(handover.messages)
    done = transaction.execute(
        "DELETE FROM handover WHERE feed = ? AND number >= ? AND number < ? RETURNING number, grp, id, key, claims",
        (handover.feed, handover.first, end),
    )
    for number, group, id, key, claims in done.fetchall():
        transaction.moved(group, FLIGHT, None)
        why = refused.get(number - handover.first)
        if why is None:
            transaction.count(group, "acked")
            let_go(transaction, group, id, key, claims > 1)
        else:
            attempt = (group, id, claims, transaction.wall, why, handover.feed, "")
            transaction.execute("INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?)", attempt)
            die(transaction, group, id, key, claims, "rejected")


def _position(transaction: Transaction, feed: str) -> int:
    found = transaction.row("SELECT position FROM fed WHERE feed = ?", (feed,))
    return found[0] if found else 0


def _set_position(transaction: Transaction, feed: str, position: int) -> None:
    transaction.execute("INSERT OR REPLACE INTO fed VALUES (?, ?)", (feed, position))
