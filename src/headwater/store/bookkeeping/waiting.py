"""Has a view taken in a certain event yet? Followed through the pipelines between the event's topic and the view."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from headwater.errors import UnknownTopicError
from headwater.log.wakeup import Waiter
from headwater.store.bookkeeping.ledger_rows import first_entry_where, last_entry
from headwater.store.bookkeeping.session import Session
from headwater.store.definition import ViewTable
from headwater.store.ledger import LedgerEntry

__all__ = ["Chain"]


class Chain:
    """The way of one event to a view.

    A query that reads the event's topic has taken it in when its ledger goes past the event's offset. One behind other
    pipelines has when it has read its input up to where that ended after the batch that held the event.
    """

    def __init__(self, topic: str, partition: int, offset: int, producers: Mapping[str, str] | None) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._producers = producers

    def wait(self, reached: Callable[[], bool], watch_store: Callable[[], Waiter], timeout: float) -> bool:
        """Ask, and again whenever something was committed, until yes or until the time is over."""
        end = time.monotonic() + timeout
        if reached():
            return True
        watch = watch_store()
        try:
            while not reached():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                watch.wait(left)
            return True
        finally:
            watch.close()

    def reached(self, session: Session, table: ViewTable) -> bool:
        """Whether the view has taken the event in.

        Raises:
            UnknownTopicError: Nothing leads from the topic to the view.
        """
        if not self._leads(session, table.name):
            raise UnknownTopicError(
                f'view "{table.name}" does not read topic "{self._topic}", nor does anything before it',
                detail=f"it reads: {', '.join(sorted(self._inputs(session, table.name))) or 'nothing yet'}",
                topic=self._topic,
                view=table.name,
            )
        entry = last_entry(session, table.query)
        return entry is not None and self._held(session, entry, frozenset({table.name}))

    def _leads(self, session: Session, pipeline: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a pipeline reads the topic, itself or through others; a circle leads nowhere."""
        inputs = self._inputs(session, pipeline)
        if self._topic in inputs:
            return True
        before = {self._producer(session, topic) for topic in inputs} - {None, pipeline, *seen}
        return any(self._leads(session, str(other), seen | {pipeline}) for other in before)

    def _held(self, session: Session, entry: LedgerEntry, behind: frozenset[str]) -> bool:
        """Whether the event was taken in with this batch or before it, on all ways that lead here."""
        for read in entry.inputs:
            if read.topic == self._topic:
                needed: Mapping[int, int] | None = {self._partition: self._offset + 1}
            else:
                producer = self._producer(session, read.topic)
                if producer is None or producer in behind or not self._leads(session, producer):
                    continue
                needed = self._published(session, producer, behind | {producer})
            if needed is None or any(read.end.get(p, 0) < end for p, end in needed.items()):
                return False
        return True

    def _published(self, session: Session, pipeline: str, behind: frozenset[str]) -> Mapping[int, int] | None:
        """Where a pipeline's topic ended after it had published what the event caused; None while it has not."""
        query = _query(session, pipeline)
        first = first_entry_where(session, query, lambda entry: self._held(session, entry, behind))
        if first is None:
            return None
        entry, ends = first
        if ends is not None:
            return {int(partition): end for partition, end in json.loads(ends).items()}
        waiting = "SELECT 1 FROM hw$outbox WHERE query = ? AND batch = ?"
        return None if session.execute(waiting, (query, entry.batch)).fetchone() else {}

    def _producer(self, session: Session, topic: str) -> str | None:
        if self._producers is not None:
            return self._producers.get(topic)
        known = "SELECT 1 FROM hw$reports WHERE pipeline = ? UNION SELECT 1 FROM hw$totals WHERE pipeline = ?"
        return topic if session.execute(known, (topic, topic)).fetchone() else None

    def _inputs(self, session: Session, pipeline: str) -> set[str]:
        """What a pipeline reads: by its newest ledger entry, and before there is one by its report."""
        query = _query(session, pipeline)
        entry = last_entry(session, query)
        if entry is not None and entry.inputs:
            return {read.topic for read in entry.inputs}
        told = "SELECT inputs FROM hw$reports WHERE pipeline || '@' || version = ?"
        row = session.execute(told, (query,)).fetchone()
        return set(json.loads(row[0])) if row else set()


def _query(session: Session, pipeline: str) -> str:
    """The query of a pipeline that readers see: a view's current version, else the newest."""
    current = "SELECT version FROM hw$views WHERE name = ? AND current"
    newest = "SELECT max(version) FROM (SELECT version FROM hw$totals WHERE pipeline = ?"
    newest += " UNION SELECT version FROM hw$reports WHERE pipeline = ?) AS known"
    found = session.execute(current, (pipeline,)).fetchone()
    found = found or session.execute(newest, (pipeline, pipeline)).fetchone()
    return f"{pipeline}@{found[0] if found else None}"
