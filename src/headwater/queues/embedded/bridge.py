"""Bridges between a topic and a queue: each message is copied once, whichever process is killed.

Topic to queue: the offset after the last event is stored in the transaction of the messages. Queue to topic:
messages get sequence numbers when they are claimed, and are returned under the same numbers until they are
confirmed; the topic skips sequence numbers that it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headwater.queues.embedded.delivery import (
    MESSAGE_COLUMNS,
    claim,
    decode_message,
    make_dead_letter,
    remove_from_group,
)
from headwater.queues.embedded.publish import PublishRequest, QueueFull, publish
from headwater.queues.embedded.transaction import IN_FLIGHT, QueueTransaction
from headwater.queues.protocol import BridgeBatch, PublishConfirm

__all__ = ["claim_for_topic", "confirm_in_topic", "publish_from"]


def publish_from(
    transaction: QueueTransaction, request: PublishRequest, bridge: str, offsets: Sequence[int]
) -> list[PublishConfirm] | QueueFull | None:
    """Publish messages made from events, in offset order, except those published before."""
    position = _position(transaction, bridge)
    new = [at for at, offset in enumerate(offsets) if offset >= position]
    kept = replace(request, messages=[request.messages[at] for at in new], routes=[request.routes[at] for at in new])
    outcome = publish(transaction, kept)
    if new and isinstance(outcome, list):
        _set_position(transaction, bridge, offsets[-1] + 1)
    return outcome


def claim_for_topic(
    transaction: QueueTransaction, group: int, bridge: str, max_messages: int, min_sequence: int
) -> BridgeBatch | None:
    """Returns the claimed messages that are not confirmed, or else claims new ones."""
    sql = (
        f"SELECT h.number, {MESSAGE_COLUMNS} FROM handover h CROSS JOIN message m ON m.id = h.id"
        " WHERE h.feed = ? ORDER BY h.number"
    )
    rows = transaction.execute(sql, (bridge,)).fetchall()
    if rows:
        return BridgeBatch(bridge, rows[0][0], tuple(decode_message(list(columns))[0] for _, *columns in rows))
    claimed = claim(transaction, group, bridge, max_messages)
    if not claimed:
        return None
    first = max(_position(transaction, bridge), min_sequence)
    for number, delivery in enumerate(claimed, first):
        # Counted as in flight, but without a visibility timeout: only this bridge can settle it.
        (key,) = transaction.fetch_one(
            "DELETE FROM delivery WHERE grp = ? AND state = ? AND rank = ? AND at = ? AND id = ? AND claims = ?"
            " RETURNING key",
            delivery.tag.row_key,
        )
        values = (bridge, number, group, delivery.tag.id, key, delivery.attempt)
        transaction.execute("INSERT INTO handover VALUES (?, ?, ?, ?, ?, ?)", values)
    _set_position(transaction, bridge, first + len(claimed))
    return BridgeBatch(bridge, first, tuple(delivery.message for delivery in claimed))


def confirm_in_topic(transaction: QueueTransaction, batch: BridgeBatch, refused: Mapping[int, str]) -> None:
    """Confirm that messages are in the topic; `refused` ones, by index, become dead letters."""
    end = batch.first_sequence + len(batch.messages)
    done = transaction.execute(
        "DELETE FROM handover WHERE feed = ? AND number >= ? AND number < ? RETURNING number, grp, id, key, claims",
        (batch.bridge, batch.first_sequence, end),
    )
    for number, group, id, key, claims in done.fetchall():
        transaction.count_move(group, IN_FLIGHT, None)
        why = refused.get(number - batch.first_sequence)
        if why is None:
            transaction.count(group, "acked")
            remove_from_group(transaction, group, id, key, claims > 1)
        else:
            attempt = (group, id, claims, transaction.wall, why, batch.bridge, "")
            transaction.execute("INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?)", attempt)
            make_dead_letter(transaction, group, id, key, claims, "rejected")


def _position(transaction: QueueTransaction, bridge: str) -> int:
    found = transaction.fetch_one("SELECT position FROM fed WHERE feed = ?", (bridge,))
    return found[0] if found else 0


def _set_position(transaction: QueueTransaction, bridge: str, position: int) -> None:
    transaction.execute("INSERT OR REPLACE INTO fed VALUES (?, ?)", (bridge, position))
