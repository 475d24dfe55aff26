"""Publishes messages: skips duplicates, applies the overload policy, then adds a row for each selected group."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headwater.log.topic import WhenFull
from headwater.queues.embedded.delivery import append_to_key, drop_oldest, to_micros
from headwater.queues.embedded.transaction import DELAYED, READY, QueueTransaction, delete_expired_ids
from headwater.queues.protocol import OutgoingMessage, PublishConfirm
from headwater.queues.queue import Queue

__all__ = ["PublishRequest", "QueueFull", "add_to_group", "insert_message", "publish"]

_rng = random.Random()
_INSERT_DELIVERY = (
    "INSERT INTO delivery (grp, state, rank, at, id, priority, due, expires, key, claims)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class PublishRequest:
    """The messages of one call, and for each the indexes of the groups of `queue` that get it."""

    queue: Queue
    messages: Sequence[OutgoingMessage]
    routes: Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class QueueFull:
    """A group has no room for all messages of a call; nothing was published."""

    group: str
    waiting: int
    limit: int


def publish(transaction: QueueTransaction, request: PublishRequest) -> list[PublishConfirm] | QueueFull | None:
    """Publish the messages of one call; returns None if the definition has changed since they were routed."""
    queue = transaction.queue
    if queue is not request.queue:
        return None
    numbers = [transaction.groups[group.name] for group in queue.groups]
    duplicates = _find_duplicates(transaction, request.messages)
    if (full := _find_full_group(transaction, request, duplicates)) is not None:
        return full
    confirmed = []
    for message, chosen in zip(request.messages, request.routes, strict=True):
        uid = message.id or secrets.token_hex(16)
        if uid in duplicates:
            confirmed.append(PublishConfirm(uid, duplicate=True, groups=0))
            continue
        admitting = [numbers[at] for at in chosen if _admit(transaction, numbers[at])]
        if admitting:
            number = insert_message(transaction, uid, message, transaction.wall, len(admitting))
            for group in admitting:
                add_to_group(transaction, group, number, message)
        # The id of a message that every group dropped is not recorded: it may be published again.
        if message.id is not None and (admitting or not chosen):
            duplicates.add(uid)
            delete_expired_ids(transaction, 3)  # more than the one added, so that the table shrinks
            until = transaction.now + to_micros(queue.deduplication_window)
            transaction.execute("INSERT OR REPLACE INTO seen (uid, until) VALUES (?, ?)", (uid, until))
        confirmed.append(PublishConfirm(uid, dropped=len(admitting) < len(chosen), groups=len(admitting)))
    return confirmed


def _find_duplicates(transaction: QueueTransaction, messages: Sequence[OutgoingMessage]) -> set[str]:
    sql = "SELECT 1 FROM seen WHERE uid = ? AND until > ?"
    ids = {message.id for message in messages}
    return {uid for uid in ids if uid is not None and transaction.fetch_one(sql, (uid, transaction.now))}


def _find_full_group(transaction: QueueTransaction, request: PublishRequest, duplicates: set[str]) -> QueueFull | None:
    """Returns the first group without room for its messages of this call, if publishers wait for room."""
    limit = request.queue.limit
    if limit is None or request.queue.overload.when_full is not WhenFull.WAIT:
        return None
    pairs = zip(request.messages, request.routes, strict=True)
    wanted = Counter(at for message, chosen in pairs if message.id not in duplicates for at in chosen)
    for at, number in wanted.items():
        name = transaction.queue.groups[at].name
        waiting = transaction.backlog(transaction.groups[name])
        if waiting + number > limit:
            return QueueFull(name, waiting, limit)
    return None


def _admit(transaction: QueueTransaction, group: int) -> bool:
    """Apply the overload policy to one more message; returns whether the group admits it."""
    limit, policy = transaction.queue.limit, transaction.queue.overload
    transaction.count(group, "published")
    if limit is None or policy.when_full is WhenFull.WAIT:
        return True
    waiting = transaction.backlog(group)
    sampled = policy.when_full is WhenFull.DROP_SAMPLED and waiting * 2 >= limit
    if waiting < limit and not (sampled and _rng.randrange(policy.one_in)):
        return True
    if policy.when_full is WhenFull.DROP_OLDEST and drop_oldest(transaction, group):
        return True
    transaction.count(group, "dropped")
    return False


def add_to_group(
    transaction: QueueTransaction, group: int, number: int, message: OutgoingMessage, claims: int = 0
) -> None:
    """Add a stored message to a group; `claims` is the number of its earlier deliveries."""
    queue = transaction.queue
    key = message.key if queue.ordered else None
    due = transaction.now + to_micros(message.delay)
    ttl = message.ttl if message.ttl is not None else queue.ttl
    expires = None if ttl is None else transaction.now + to_micros(ttl)
    state = append_to_key(transaction, group, number, key, due)
    rank, at = (9 - message.priority if state == READY else 0), (due if state == DELAYED else 0)
    values = (group, state, rank, at, number, message.priority, due, expires, key, claims)
    transaction.execute(_INSERT_DELIVERY, values)
    transaction.count_move(group, None, state)
    if expires is not None:
        waits = (expires, group, number, message.priority, due)
        transaction.execute("INSERT INTO expiry VALUES (?, ?, ?, ?, ?)", waits)


def insert_message(
    transaction: QueueTransaction, uid: str | None, message: OutgoingMessage, published_at: int, refs: int
) -> int:
    """Store a message for `refs` groups; the last of them to remove it deletes it. Returns its number."""
    headers = msgspec.json.encode(message.headers) if message.headers else None
    ttl = None if message.ttl is None else to_micros(message.ttl)
    values = (uid, message.body, message.routing_key, message.key, headers, message.priority)
    cursor = transaction.execute(
        "INSERT INTO message (uid, body, words, key, headers, priority, delay, ttl, traceparent, published_at, refs)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, to_micros(message.delay), ttl, message.traceparent, published_at, refs),
    )
    number = cursor.lastrowid
    assert number is not None
    return number
