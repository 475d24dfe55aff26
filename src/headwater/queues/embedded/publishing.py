"""How messages come in: known ids are left out, a full queue decides, then each group that takes one gets a row."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from headwater.log.door import WhenFull
from headwater.queues.definition import Queue
from headwater.queues.embedded.settling import dropped_for_room, placed
from headwater.queues.embedded.tables import DELAYED, READY
from headwater.queues.embedded.tidying import forget_old_ids
from headwater.queues.embedded.transaction import Transaction
from headwater.queues.protocol import Confirmed, Outgoing

__all__ = ["Full", "Offer", "add_to_group", "insert_message", "micros_of", "publish"]

_chance = random.Random()
_DELIVERY = (
    "INSERT INTO delivery (grp, state, rank, at, id, priority, due, expires, key, claims)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class Offer:
    """Messages of one call, and for each the numbers of the groups of `queue` that choose it."""

    queue: Queue
    messages: Sequence[Outgoing]
    chosen: Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Full:
    """There is no room for all messages of a call; nothing was taken."""

    group: str
    waiting: int
    limit: int


def publish(transaction: Transaction, offer: Offer) -> list[Confirmed] | Full | None:
    """Take the messages of one call; None when the queue's definition has changed since the groups were chosen."""
    queue = transaction.queue
    if queue is not offer.queue:
        return None
    numbers = [transaction.groups[group.name] for group in queue.groups]
    known = _known(transaction, offer.messages)
    if queue.limit is not None and queue.overload.when_full is WhenFull.WAIT:
        full = _no_room(transaction, offer, known, queue.limit)
        if full is not None:
            return full
    confirmed = []
    for message, chosen in zip(offer.messages, offer.chosen, strict=True):
        if message.id is not None and message.id in known:
            confirmed.append(Confirmed(message.id, duplicate=True, groups=0))
            continue
        taken = [numbers[at] for at in chosen if _admitted(transaction, numbers[at])]
        uid = _insert(transaction, message, taken)
        if message.id is not None and (taken or not chosen):
            known.add(message.id)
            _remember(transaction, message.id)
        confirmed.append(Confirmed(uid, dropped=len(taken) < len(chosen), groups=len(taken)))
    return confirmed


def _known(transaction: Transaction, messages: Sequence[Outgoing]) -> set[str]:
    question = "SELECT 1 FROM seen WHERE uid = ? AND until > ?"
    ids = {message.id for message in messages}
    return {uid for uid in ids if uid is not None and transaction.row(question, (uid, transaction.now))}


def _remember(transaction: Transaction, uid: str) -> None:
    forget_old_ids(transaction, 3)  # more than comes in
    until = transaction.now + micros_of(transaction.queue.remember)
    transaction.execute("INSERT OR REPLACE INTO seen (uid, until) VALUES (?, ?)", (uid, until))


def _no_room(transaction: Transaction, offer: Offer, known: set[str], limit: int) -> Full | None:
    """Whether a group that must take messages of this call cannot take all of them."""
    wanted: dict[int, int] = {}
    for message, chosen in zip(offer.messages, offer.chosen, strict=True):
        for at in () if message.id in known else chosen:
            wanted[at] = wanted.get(at, 0) + 1
    for at, number in wanted.items():
        name = transaction.queue.groups[at].name
        waiting = transaction.standing(transaction.groups[name])
        if waiting + number > limit:
            return Full(name, waiting, limit)
    return None


def _admitted(transaction: Transaction, group: int) -> bool:
    """Whether a group has room for one more message, or makes room; what it loses is counted."""
    limit, policy = transaction.queue.limit, transaction.queue.overload
    transaction.count(group, "published")
    if limit is None or policy.when_full is WhenFull.WAIT:
        return True
    waiting = transaction.standing(group)
    sampled = policy.when_full is WhenFull.DROP_SAMPLED and waiting * 2 >= limit
    if waiting < limit and not (sampled and _chance.randrange(policy.one_in)):
        return True
    if policy.when_full is WhenFull.DROP_OLDEST and dropped_for_room(transaction, group):
        return True
    transaction.count(group, "dropped")
    return False


def _insert(transaction: Transaction, message: Outgoing, groups: Sequence[int]) -> str:
    uid = message.id if message.id is not None else secrets.token_hex(16)
    if groups:
        number = insert_message(transaction, uid, message, transaction.wall, len(groups))
        for group in groups:
            add_to_group(transaction, group, number, message)
    return uid


def add_to_group(
    transaction: Transaction, group: int, number: int, message: Outgoing, claims: int = 0
) -> None:
    """Put a message that is stored into the line of a group; `claims` is how often the group has had it before."""
    queue = transaction.queue
    key = message.key if queue.ordered else None
    due = transaction.now + micros_of(message.delay)
    ttl = message.ttl if message.ttl is not None else queue.ttl
    expires = None if ttl is None else transaction.now + micros_of(ttl)
    state = placed(transaction, group, number, key, due)
    rank, at = (9 - message.priority if state == READY else 0), (due if state == DELAYED else 0)
    values = (group, state, rank, at, number, message.priority, due, expires, key, claims)
    transaction.execute(_DELIVERY, values)
    transaction.moved(group, None, state)
    if expires is not None:
        waits = (expires, group, number, message.priority, due)
        transaction.execute("INSERT INTO expiry VALUES (?, ?, ?, ?, ?)", waits)


def insert_message(
    transaction: Transaction, uid: str | None, message: Outgoing, published_at: int, refs: int
) -> int:
    """Store a message that so many groups are to get; its number."""
    headers = msgspec.json.encode(message.headers) if message.headers else None
    ttl = None if message.ttl is None else micros_of(message.ttl)
    values = (uid, message.body, message.words, message.key, headers, message.priority)
    cursor = transaction.execute(
        "INSERT INTO message (uid, body, words, key, headers, priority, delay, ttl, traceparent, published_at, refs)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, micros_of(message.delay), ttl, message.traceparent, published_at, refs),
    )
    number = cursor.lastrowid
    assert number is not None
    return number


def micros_of(span: timedelta) -> int:
    """A length of time in microseconds.

    Example:
        >>> micros_of(timedelta(milliseconds=2))
        2000
    """
    return span // timedelta(microseconds=1)
