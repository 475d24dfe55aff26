"""Requests to retry quarantined events: which events a query takes again, in which of its batches.

A request has a number, which grows with each request of a query. The offsets of Spark's checkpoint name the last
number that a batch has taken, and the ledger repeats it. So a batch that runs again takes the same events. An event
waits if its request has a higher number than the last ledger entry. An event that fails again is withdrawn from its
request, and stays in quarantine.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headwater.store.commit.commit import SideOutput
from headwater.store.commit.ledger import LedgerEntry, last_entry
from headwater.store.dialect import Session

__all__ = [
    "EventPosition",
    "QuarantinedEvent",
    "RetriedEvent",
    "newest_retries",
    "preview_retry",
    "read_retries",
    "request_retry",
    "withdraw_retries",
]

EventPosition: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset of an event."""
_MINE = 'query = ? AND topic = ? AND partition = ? AND "offset" = ?'


@dataclass(frozen=True)
class RetriedEvent:
    """A quarantined event that a request names.

    Attributes:
        number: The number of the request.
        topic: The topic of the event.
        partition: Its partition.
        offset: Its offset.
        waits: Whether no batch has taken the request yet.

    Example:
        >>> RetriedEvent(1, "orders", 0, 17, waits=True).position
        ('orders', 0, 17)
    """

    number: int
    topic: str
    partition: int
    offset: int
    waits: bool

    @property
    def position(self) -> EventPosition:
        """Topic, partition and offset."""
        return self.topic, self.partition, self.offset


@dataclass(frozen=True)
class QuarantinedEvent:
    """A quarantined event and what a retry would do with it.

    Attributes:
        topic: The topic of the event.
        partition: Its partition.
        offset: Its offset.
        reason: Why it is in quarantine.
        outcome: "retry" if it can be retried; "waits" if a request names it already; "rebuild" if only a rebuild can
            use it: its event time is not above the watermark of its input, or it is a row of a table; "never" if the
            pipeline cannot use it, because it is not after 1970.
        unreadable: Whether it could not be read under the topic's type when it was quarantined.

    Example:
        >>> QuarantinedEvent("orders", 0, 17, "ZeroDivisionError", "retry").position
        ('orders', 0, 17)
    """

    topic: str
    partition: int
    offset: int
    reason: str
    outcome: Literal["retry", "waits", "rebuild", "never"]
    unreadable: bool = False

    @property
    def position(self) -> EventPosition:
        """Topic, partition and offset."""
        return self.topic, self.partition, self.offset


_ARROW_STREAM = b"\xff\xff\xff\xff"  # the first bytes of a row that was read; other data are bytes of a message


def preview_retry(session: Session, query: str) -> list[QuarantinedEvent]:
    """Returns the quarantined events of a query, in the order of their offsets, with what a retry would do."""
    entry = last_entry(session, query)
    waiting = {one.position for one in read_retries(session, query) if one.waits}
    name, _, version = query.rpartition("@")
    reported = "SELECT retries FROM hw$reports WHERE pipeline = ? AND version = ?"
    (text,) = session.execute(reported, (name, int(version))).fetchone() or ("{}",)
    rules: dict[str, str] = json.loads(text)
    select = """
        SELECT topic, partition, "offset", reason, occurred_at, data FROM hw$quarantine WHERE query = ? ORDER BY 1, 2, 3
    """
    return [
        QuarantinedEvent(
            *(topic, partition, offset, reason),
            "waits" if (topic, partition, offset) in waiting else _outcome(rules, entry, topic, at),
            unreadable=bool(data) and not bytes(data).startswith(_ARROW_STREAM),
        )
        for topic, partition, offset, reason, at, data in session.execute(select, (query,)).fetchall()
    ]


def _outcome(
    rules: dict[str, str], entry: LedgerEntry | None, topic: str, at: int
) -> Literal["retry", "rebuild", "never"]:
    rule = rules.get(topic, "watermark")  # a report of an older version has no rules
    if rule == "after 1970" and at <= 0:
        return "never"
    if rule not in ("watermark", "after 1970") or entry is None:
        return "retry" if rule == "always" else "rebuild"
    watermarks = [read.watermark for read in entry.inputs if read.topic == topic and read.watermark is not None]
    return "retry" if at > max(watermarks, default=entry.watermark or 0) else "rebuild"


def read_retries(session: Session, query: str) -> list[RetriedEvent]:
    """Returns the events of all requests of a query, except for those that were withdrawn."""
    entry = last_entry(session, query)
    taken = {read.topic: read.retry for read in entry.inputs} if entry else {}
    found = 'SELECT number, topic, partition, "offset" FROM hw$retries WHERE query = ? AND active ORDER BY 1, 2, 3, 4'
    rows = session.execute(found, (query,)).fetchall()
    return [
        RetriedEvent(number, topic, partition, offset, waits=number > taken.get(topic, 0))
        for number, topic, partition, offset in rows
    ]


def newest_retries(session: Session) -> dict[str, int]:
    """Returns the number of the newest request of each query that has one."""
    return dict(session.execute("SELECT query, max(number) FROM hw$retries GROUP BY query").fetchall())


def request_retry(session: Session, query: str, positions: Collection[EventPosition]) -> list[RetriedEvent]:
    """Request a retry of quarantined events; returns those that wait now, also from earlier requests.

    Events that cannot be retried are ignored. Runs in a transaction that excludes other writers of the query.
    """
    known = {one.position for one in preview_retry(session, query) if one.outcome == "retry"}
    (newest,) = session.execute("SELECT max(number) FROM hw$retries WHERE query = ?", (query,)).fetchone()
    chosen = sorted(set(positions) & known)
    session.executemany(
        """
        INSERT INTO hw$retries VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT (query, topic, partition, "offset") DO UPDATE SET number = excluded.number, active = excluded.active
        """,
        [(query, *position, (newest or 0) + 1, True) for position in chosen],
    )
    return [one for one in read_retries(session, query) if one.waits and one.position in set(positions)]


def withdraw_retries(session: Session, query: str, events: Sequence[SideOutput]) -> list[SideOutput]:
    """Withdraw waiting events that failed again, and record the new reason; returns the events that did not wait."""
    waiting = {one.position for one in read_retries(session, query) if one.waits}
    others = []
    for event in events:
        position = (event.topic, event.partition, event.offset)
        if position in waiting:
            # The row stays, because the numbers of a query must never go back.
            session.execute(f"UPDATE hw$retries SET active = ? WHERE {_MINE}", (False, query, *position))
            session.execute(f"UPDATE hw$quarantine SET reason = ? WHERE {_MINE}", (event.reason, query, *position))
        else:
            others.append(event)
    return others
