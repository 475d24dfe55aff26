"""Has a view taken in a certain event yet? Followed through the pipelines between the event's topic and the view."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping

from headwater.errors import UnknownTopicError
from headwater.store.definition import ViewTable
from headwater.store.ledger import LedgerEntry
from headwater.store.protocol import Store
from headwater.store.sqlite.ledger_rows import entries_newest_first, last_entry

__all__ = ["Chain"]

_LONGEST = 64  # pipelines one behind the other; more could only be a circle


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

    def wait(self, reached: Callable[[], bool], store: Store, timeout: float) -> bool:
        """Ask, and again whenever something was committed, until yes or until the time is over."""
        end = time.monotonic() + timeout
        if reached():
            return True
        watch = store.watch()
        try:
            while not reached():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                watch.wait(left)
            return True
        finally:
            watch.close()

    def reached(self, connection: sqlite3.Connection, table: ViewTable) -> bool:
        """Whether the view has taken the event in.

        Raises:
            UnknownTopicError: Nothing leads from the topic to the view.
        """
        if not self._leads(connection, table.name, 0):
            raise UnknownTopicError(
                f'view "{table.name}" does not read topic "{self._topic}", nor does anything before it',
                detail=f"it reads: {', '.join(sorted(self._inputs(connection, table.name))) or 'nothing yet'}",
                topic=self._topic,
                view=table.name,
            )
        return self._done(connection, table.name)

    def _leads(self, connection: sqlite3.Connection, pipeline: str, depth: int) -> bool:
        inputs = self._inputs(connection, pipeline)
        if self._topic in inputs or depth > _LONGEST:
            return self._topic in inputs
        before = filter(None, (self._producer(connection, topic) for topic in inputs))
        return any(self._leads(connection, other, depth + 1) for other in before if other != pipeline)

    def _done(self, connection: sqlite3.Connection, pipeline: str) -> bool:
        entry = last_entry(connection, _query(connection, pipeline))
        for topic in self._inputs(connection, pipeline):
            if topic == self._topic:
                needed: Mapping[int, int] | None = {self._partition: self._offset + 1}
            else:
                producer = self._producer(connection, topic)
                if producer in (None, pipeline) or not self._leads(connection, str(producer), 0):
                    continue
                if not self._done(connection, str(producer)):
                    return False
                needed = self._published(connection, str(producer))
            if needed is None or not _past(entry, topic, needed):
                return False
        return True

    def _published(self, connection: sqlite3.Connection, pipeline: str) -> Mapping[int, int] | None:
        """Where a pipeline's topic ended after it had published what the event caused; None while it has not."""
        query = _query(connection, pipeline)
        first: tuple[LedgerEntry, str | None] | None = None
        for entry, ends in entries_newest_first(connection, query):
            if not self._held(connection, entry):
                break
            first = (entry, ends)
        if first is None:
            return {}
        entry, ends = first
        if ends is not None:
            return {int(partition): end for partition, end in json.loads(ends).items()}
        waiting = "SELECT 1 FROM hw$outbox WHERE query = ? AND batch = ?"
        return None if connection.execute(waiting, (query, entry.batch)).fetchone() else {}

    def _held(self, connection: sqlite3.Connection, entry: LedgerEntry) -> bool:
        """Whether the event was taken in with this batch or before it."""
        if any(read.topic == self._topic for read in entry.inputs):
            return _past(entry, self._topic, {self._partition: self._offset + 1})
        for read in entry.inputs:
            producer = self._producer(connection, read.topic)
            if producer is not None and self._leads(connection, producer, 0):
                needed = self._published(connection, producer)
                if needed is None or not _past(entry, read.topic, needed):
                    return False
        return True

    def _producer(self, connection: sqlite3.Connection, topic: str) -> str | None:
        if self._producers is not None:
            return self._producers.get(topic)
        known = (
            "SELECT 1 FROM hw$reports WHERE pipeline = ?1 UNION SELECT 1 FROM hw$totals WHERE pipeline = ?1"
        )
        return topic if connection.execute(known, (topic,)).fetchone() else None

    def _inputs(self, connection: sqlite3.Connection, pipeline: str) -> set[str]:
        """What a pipeline reads: by its newest ledger entry, and before there is one by its report."""
        query = _query(connection, pipeline)
        entry = last_entry(connection, query)
        if entry is not None and entry.inputs:
            return {read.topic for read in entry.inputs}
        told = "SELECT inputs FROM hw$reports WHERE pipeline || '@' || version = ?"
        row = connection.execute(told, (query,)).fetchone()
        return set(json.loads(row[0])) if row else set()


def _query(connection: sqlite3.Connection, pipeline: str) -> str:
    """The query of a pipeline that readers see: a view's current version, else the newest."""
    current = "SELECT version FROM hw$views WHERE name = ? AND current"
    newest = "SELECT max(version) FROM (SELECT version FROM hw$totals WHERE pipeline = ?1"
    newest += " UNION SELECT version FROM hw$reports WHERE pipeline = ?1)"
    found = connection.execute(current, (pipeline,)).fetchone()
    found = found or connection.execute(newest, (pipeline,)).fetchone()
    return f"{pipeline}@{found[0] if found else None}"


def _past(entry: LedgerEntry | None, topic: str, needed: Mapping[int, int]) -> bool:
    """Whether an entry has read a topic up to these offsets, wherever it reads it."""
    if not needed:
        return True
    reads = [read for read in entry.inputs if read.topic == topic] if entry else []
    return bool(reads) and all(read.end.get(p, 0) >= end for read in reads for p, end in needed.items())
