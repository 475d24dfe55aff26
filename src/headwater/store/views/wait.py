"""Waits until a view includes an event, through all pipelines between the event's topic and the view."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headwater.errors import UnknownTopicError
from headwater.log.notifier import Waiter
from headwater.store.commit.commit import ViewTable
from headwater.store.commit.ledger import LedgerEntry, find_first_entry, last_entry
from headwater.store.dialect import Session
from headwater.store.views.view_query import ViewQuery

if TYPE_CHECKING:  # `StoreViews` waits with `EventWait`
    from headwater.store.views.store_views import StoreViews

__all__ = ["STORE_POLL", "EventPath", "EventWait"]

STORE_POLL: Final = 0.2  # seconds between checks for a store that does not exist yet


class EventWait:
    """Waits until a view includes the events of `query.after`, at most `query.timeout` seconds from now.

    A thread calls `run`. The server calls `poll` in a thread and waits for the next commit on its event loop.

    Args:
        views: The views.
        query: The view's name, the events and the timeout.
    """

    def __init__(self, views: StoreViews, query: ViewQuery) -> None:
        self._views = views
        self._query = query
        self._deadline = time.monotonic() + query.timeout

    def poll(self) -> float:
        """Returns 0 if the view includes all events, otherwise the seconds that are left.

        Raises:
            ViewBehindError: The time is over.
        """
        if self._views.has_events(self._query):
            return 0.0
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._views.behind_error(self._query)
        return left

    def run(self) -> None:
        """Poll after every commit, until the view includes all events.

        Raises:
            ViewBehindError: The time is over.
        """
        watch: Waiter | None = None
        try:
            while left := self.poll():
                if watch is not None:
                    watch.wait(left)
                elif (store := self._views.store) is not None:
                    watch = store.watch()  # then poll again: a commit before the watch began wakes nobody
                else:
                    time.sleep(min(left, STORE_POLL))
        finally:
            if watch is not None:
                watch.close()


class EventPath:
    """The path of one event to a view, through the pipelines between them.

    A query that reads the event's topic includes the event once its ledger is past the event's offset. A downstream
    query includes it once it has read its input up to the end that the input had after the batch with the event.

    Args:
        topic: The event's topic.
        partition: The event's partition.
        offset: The event's offset.
        producers: The pipeline that writes each topic.
    """

    def __init__(self, topic: str, partition: int, offset: int, producers: Mapping[str, str]) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._producers = producers

    def has_event(self, session: Session, table: ViewTable) -> bool:
        """Returns whether the view includes the event.

        Raises:
            UnknownTopicError: Nothing leads from the topic to the view.
        """
        if not self._reads_topic(session, table.name):
            raise UnknownTopicError(
                f'view "{table.name}" does not read topic "{self._topic}", nor does anything before it',
                detail=f"it reads: {', '.join(sorted(self._inputs(session, table.name))) or 'nothing yet'}",
                topic=self._topic,
                view=table.name,
            )
        entry = last_entry(session, table.query)
        return entry is not None and self._includes_event(session, entry, frozenset({table.name}))

    def _reads_topic(self, session: Session, pipeline: str, seen: frozenset[str] = frozenset()) -> bool:
        """Returns whether a pipeline reads the topic, directly or through others; cycles are cut."""
        inputs = self._inputs(session, pipeline)
        if self._topic in inputs:
            return True
        before = {self._producers[topic] for topic in inputs if topic in self._producers} - {pipeline, *seen}
        return any(self._reads_topic(session, other, seen | {pipeline}) for other in before)

    def _includes_event(self, session: Session, entry: LedgerEntry, visited: frozenset[str]) -> bool:
        """Returns whether this batch or an earlier one includes the event, on all paths that lead here."""
        for read in entry.inputs:
            if read.topic == self._topic:
                needed: Mapping[int, int] | None = {self._partition: self._offset + 1}
            else:
                producer = self._producers.get(read.topic)
                if producer is None or producer in visited or not self._reads_topic(session, producer):
                    continue
                needed = self._output_ends(session, producer, visited | {producer})
            if needed is None or any(read.end.get(p, 0) < end for p, end in needed.items()):
                return False
        return True

    def _output_ends(self, session: Session, pipeline: str, visited: frozenset[str]) -> Mapping[int, int] | None:
        """Returns where a pipeline's topic ended after it published the effects of the event; None if not yet."""
        query = _current_query(session, pipeline)
        first = find_first_entry(session, query, lambda entry: self._includes_event(session, entry, visited))
        if first is None:
            return None
        entry, ends = first
        if ends is not None:
            return {int(partition): end for partition, end in json.loads(ends).items()}
        waiting = "SELECT 1 FROM hw$outbox WHERE query = ? AND batch = ?"
        return None if session.execute(waiting, (query, entry.batch)).fetchone() else {}

    def _inputs(self, session: Session, pipeline: str) -> set[str]:
        """Returns what a pipeline reads: from its newest ledger entry, or from its report before the first batch."""
        query = _current_query(session, pipeline)
        entry = last_entry(session, query)
        if entry is not None and entry.inputs:
            return {read.topic for read in entry.inputs}
        reported = "SELECT inputs FROM hw$reports WHERE pipeline || '@' || version = ?"
        row = session.execute(reported, (query,)).fetchone()
        return set(json.loads(row[0])) if row else set()


def _current_query(session: Session, pipeline: str) -> str:
    """Returns the query that readers see: a view's current version, otherwise the newest."""
    current = "SELECT version FROM hw$views WHERE name = ? AND current"
    newest = "SELECT max(version) FROM (SELECT version FROM hw$totals WHERE pipeline = ?"
    newest += " UNION SELECT version FROM hw$reports WHERE pipeline = ?) AS known"
    found = session.execute(current, (pipeline,)).fetchone()
    found = found or session.execute(newest, (pipeline, pipeline)).fetchone()
    return f"{pipeline}@{found[0] if found else None}"
