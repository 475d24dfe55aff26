"""The way into one topic: the same door as in front of the embedded log, with the brokers behind it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np
import pyarrow as pa

from headwater.errors import BadEventError, HeadwaterError, TooLargeError
from headwater.events import Clock, Receipt, partitions_of
from headwater.log.definition import Topic, check_producer, keyless
from headwater.log.door import Door, Entry
from headwater.log.door.counts import COUNTED
from headwater.log.event_time import EventTimes
from headwater.log.kafka.brokers import Brokers
from headwater.log.kafka.forms import Form
from headwater.log.kafka.records import Encoded, encoded
from headwater.log.kafka.sending.delivery import Delivery, IdempotentProducer, Offsets
from headwater.log.kafka.sending.named import NamedProducers, Numbered
from headwater.log.receipts import Receipts
from headwater.log.rows import Row, Rows, together

__all__ = ["Route", "TopicSender"]

_KNOWN_FOR: Final = 10.0  # seconds until the number of partitions is asked for again


@dataclass(frozen=True)
class Route:
    """What a sender needs of the log around it."""

    brokers: Brokers
    producer: IdempotentProducer
    named: NamedProducers
    form_of: Callable[[str, int], Form]
    partitions_of: Callable[[str], int]
    clock: Clock


@dataclass(frozen=True)
class _Part:
    """Rows that are produced together, and the entries they came in."""

    rows: Rows
    encoded: Encoded
    partitions: Offsets
    members: list[Entry]


class TopicSender:
    """Appends to one topic from all threads of this process.

    Args:
        topic: Its definition.
        route: The way to the brokers.
    """

    def __init__(self, topic: Topic, route: Route) -> None:
        self.definition = topic
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._route = route
        self._times = EventTimes(route.clock)
        self._turn = count()
        self._partitions = topic.partitions
        self._asked_at = time.monotonic()
        self.door = Door(self._commit, topic.overload, self.counts.update)

    def define(self, topic: Topic) -> None:
        """A newer definition."""
        self.definition = topic
        self.door.overload = topic.overload
        self._partitions = topic.partitions

    def entry(self, rows: Row | Rows) -> Entry:
        """Rows ready for the door; refused here when they lack their key."""
        if rows.producer:
            check_producer(rows.producer)
        key = self.definition.key
        if isinstance(rows, Row):
            parts = self._form(rows.version).codec.members(rows.struct, key)
            for name, part in zip(key, parts, strict=True):
                if part is None:
                    raise keyless(self.definition, name, 0)
            return Entry(rows, 1)
        for name in key:
            column = rows.values.column(name)
            if column.null_count:
                raise keyless(self.definition, name, column.is_null().index(True).as_py())
        return Entry(rows, rows.values.num_rows)

    def receipts(self, entry: Entry) -> Receipts:
        """The receipts of an entry that is done."""
        name = self.definition.name
        if entry.dropped:
            nowhere = np.full(entry.rows, -1, np.int64)
            return Receipts(name, nowhere, nowhere, np.zeros(entry.rows, bool), entry.dropped)
        partitions, offsets, repeats = entry.outcome
        return Receipts(name, partitions, offsets, np.arange(entry.rows) < repeats)

    def receipt(self, entry: Entry) -> Receipt:
        """The receipt of a single event that is done."""
        return self.receipts(entry)[0]

    def _form(self, version: int) -> Form:
        return self._route.form_of(self.definition.name, version)

    # -- behind the door -----------------------------------------------------------------------------------------

    def _commit(self, entries: list[Entry]) -> None:
        self._look_at_partitions()
        parts = [part for run in _runs(entries) for part in self._built(run)]
        named: dict[str, list[_Part]] = {}
        delivery = Delivery(self._route.brokers)
        plain = [part for part in parts if not part.rows.producer]
        for part in plain:
            delivery.produce(self._route.producer.get(), self.definition.name, part.encoded, part.partitions)
        for part in parts:
            if part.rows.producer:
                named.setdefault(part.rows.producer, []).append(part)
        for id, mine in named.items():
            self._append_named(id, mine)
        if plain:
            delivery.wait()
        for part, outcome in zip(plain, delivery.outcomes(), strict=True):
            _settle(part, outcome, 0)
        self._count(entries)

    def _append_named(self, id: str, parts: list[_Part]) -> None:
        numbered = [Numbered(part.rows, part.encoded, int(part.partitions[0])) for part in parts]
        try:
            found = self._route.named.get(self.definition.name, id).append(numbered)
        except HeadwaterError as error:
            for part in parts:
                _settle(part, error, 0)
            return
        for part, (offsets, repeats) in zip(parts, found, strict=True):
            _settle(part, offsets, repeats)

    def _look_at_partitions(self) -> None:
        if time.monotonic() - self._asked_at > _KNOWN_FOR:
            self._asked_at = time.monotonic()
            self._partitions = self._route.partitions_of(self.definition.name) or self._partitions

    def _built(self, run: list[Entry]) -> Iterator[_Part]:
        """Entries as one part; if one of several does not fit, each by itself."""
        first = run[0].content
        try:
            rows = (
                first
                if isinstance(first, Rows)
                else together(self._form(first.version).codec, [entry.content for entry in run])
            )
            _, envelope = self._times.of(self.definition, rows)
            ready = encoded(self.definition, self._form(rows.version), rows, envelope)
            if ready.values:
                yield _Part(rows, ready, self._places(rows, ready), run)
            else:
                run[0].outcome = (np.empty(0, np.int64), np.empty(0, np.int64), 0)
        except (BadEventError, TooLargeError) as error:
            if len(run) == 1:
                run[0].error = error
                return
            for entry in run:
                yield from self._built([entry])

    def _places(self, rows: Rows, ready: Encoded) -> Offsets:
        """The partition of each row: the one said, the one of its key as Kafka's own clients find it, or in turn."""
        number, size = self._partitions, len(ready.values)
        if rows.partition is not None or number == 1 or rows.producer:
            return np.full(size, rows.partition or 0, np.int64)
        column = pa.array(ready.keys, pa.binary())
        if column.null_count == size:
            return np.full(size, next(self._turn) % number, np.int64)
        if not column.null_count:
            return partitions_of(column, number)
        lacking = np.array(column.is_null().to_pylist(), bool)
        return np.where(lacking, next(self._turn) % number, partitions_of(column.fill_null(b""), number))

    def _count(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.counts["offered"] += entry.rows
            if entry.outcome is None:
                self.counts["refused"] += entry.rows
            else:
                self.counts["duplicate"] += entry.outcome[2]
                self.counts["appended"] += entry.rows - entry.outcome[2]


def _runs(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Entries that can be written as one part, in the order they came within each partition of a producer."""
    open_runs: dict[tuple[str, int | None], list[Entry]] = {}
    for entry in entries:
        content = entry.content
        place = (content.producer, content.partition)
        run = open_runs.get(place)
        if run and not (
            isinstance(content, Row) and isinstance(run[-1].content, Row) and content.follows(run[-1].content)
        ):
            yield open_runs.pop(place)
            run = None
        if run is None:
            run = open_runs[place] = []
        run.append(entry)
    yield from open_runs.values()


def _settle(part: _Part, outcome: Offsets | HeadwaterError, repeats: int) -> None:
    at = 0
    for entry in part.members:
        if isinstance(outcome, HeadwaterError):
            entry.error = outcome
        else:
            mine = slice(at, at + entry.rows)
            again = max(0, min(entry.rows, repeats - at))
            entry.outcome = (part.partitions[mine], outcome[mine], again)
        at += entry.rows
