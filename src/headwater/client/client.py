"""The client: one object for sending, reading and following; it delegates to the log, the views and the queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from headwater.client.consumer import Consumer
from headwater.client.producer import Producer
from headwater.client.progress import Lag, Move, lag_of, reset_group
from headwater.client.queueing import QueueCalls
from headwater.client.rows import Incoming
from headwater.client.table import TableReader
from headwater.client.views import FolderViews, PipelineLag, View, ViewSource, pipeline_lags
from headwater.errors import BadEventError, BadSettingError, HeadwaterError, Place, UnknownGroupError
from headwater.events import Clock, Event, Receipt, from_row
from headwater.log import EventLog, LogBatch, Receipts, Start, Topic
from headwater.log.protocol import Log
from headwater.log.reader import Reader
from headwater.store import Answer
from headwater.units import duration

__all__ = ["Client"]

R = TypeVar("R")


class Client(QueueCalls):
    """Sends to and reads from topics; safe to share between threads. Made by `hw.connect`."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        views: ViewSource | None = None,
        *,
        folder: Path | None = None,
        queues: str | None = None,
    ) -> None:
        folder = log.folder if isinstance(log, EventLog) else folder
        super().__init__(folder, queues, clock)
        self.log = log
        self._incoming: dict[str, Incoming] = {}
        self._views = views

    # -- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, type_: object, **options: Any) -> Topic:
        """Create a topic, or bring an existing one up to this type and these options.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: Dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema.
            options: `key`, `time`, `lateness`, `partitions`, `durability`, `retention`, `compact`, `overload`,
                `idle`, `ahead`, `segment_size`, `values`.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> topic = client.create_topic("orders", "customer_id int, amount int", key="customer_id", partitions=3)
            >>> topic.partitions
            3
        """
        place = Place.of_caller()
        try:
            topic = self.log.create(Topic.declare(name, type_, place=place, **options))
        except HeadwaterError as error:
            error.place = error.place or place
            raise
        self._incoming.pop(name, None)
        return topic

    def topics(self) -> list[str]:
        """Names of all topics."""
        return self.log.topics()

    def topic(self, name: str) -> Topic:
        """A topic's definition."""
        return self.log.topic(name)

    # -- in ------------------------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any, *, key: Any = None, **about: Any) -> Receipt:
        """Send one event and wait until it is as safe as the topic's durability says.

        Args:
            topic: Where to.
            value: A dict, or an instance of the topic's type.
            key: For topics without a key column; otherwise it fills the key column or must equal it.
            about: `id`, `occurred_at`, `sent_at`, `headers`, `traceparent`, `source`.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string")
            >>> client.send("orders", {"order_id": "a"}).offset
            0
        """
        row = self._made(topic, lambda incoming, now: incoming.one(value, now, key, **about))
        return self.log.append_one(topic, row)

    def send_many(self, topic: str, rows: Any, *, keys: Sequence[Any] | None = None) -> Receipts:
        """Send many events at once; those of one partition are appended whole or not at all.

        Args:
            topic: Where to.
            rows: Dicts or instances of the topic's type; an Arrow table or batch; a pandas or Polars frame.
            keys: For topics without a key column: one per row.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string")
            >>> len(client.send_many("orders", [{"order_id": "a"}, {"order_id": "b"}]))
            2
        """
        return self.log.append(topic, self._made(topic, lambda incoming, now: incoming.many(rows, keys, now)))

    def send_json(self, topic: str, lines: Sequence[bytes]) -> Receipts:
        """Send events given as JSON objects, one per line."""
        return self.log.append(topic, self._made(topic, lambda incoming, now: incoming.json(lines, now)))

    def delete(self, topic: str, key: Any) -> Receipt:
        """Delete a key from a compacted topic, by a tombstone.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("products", "product_id int, name string", key="product_id", compact=True)
            >>> _ = client.send("products", {"product_id": 7, "name": "pen"})
            >>> _ = client.delete("products", 7)
            >>> client.table("products").rows()
            []
        """
        rows = self._made(topic, lambda incoming, now: incoming.tombstone(key, now))
        return self.log.append(topic, rows)[0]

    def producer(self, topic: str, *, id: str | None = None) -> Producer:
        """A producer that sends in the background; with an `id`, never twice."""
        return Producer(self.log, self._clock, self._known(topic), id)

    def _made(self, topic: str, make: Callable[[Incoming, int], R]) -> R:
        incoming = self._known(topic)
        try:
            return make(incoming, self._clock.micros())
        except BadEventError:  # the type may have grown since this client looked
            newest = self._known(topic, fresh=True)
            if newest.topic.version == incoming.topic.version:
                raise
            return make(newest, self._clock.micros())

    def _known(self, topic: str, *, fresh: bool = False) -> Incoming:
        found = self._incoming.get(topic)
        if found is None or fresh:
            found = self._incoming[topic] = Incoming(self.log.topic(topic))
        return found

    # -- out -----------------------------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        start: Start = "earliest",
        stop: Start | None = "end",
        *,
        partitions: Sequence[int] | None = None,
        as_: type | None = None,
    ) -> Iterator[Event]:
        """Events of a topic, in order within each partition.

        Args:
            topic: What to read.
            start: "earliest", "latest", an offset, or a time (the first offset at which event time reaches it).
            stop: "end" for what is there now, an offset or a time (exclusive), or None to follow for ever.
            partitions: Only these.
            as_: The class to make of each value; dicts if left out.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string")
            >>> _ = client.send("orders", {"order_id": "a"})
            >>> [(event.offset, event.value) for event in client.read("orders")]
            [(0, {'order_id': 'a'})]
        """
        for batch in self._batches(topic, start, stop, partitions):
            if as_ is None:
                yield from batch.events()
            else:
                for event in batch.events():
                    yield event if event.value is None else _typed(event, as_)

    def read_arrow(
        self,
        topic: str,
        start: Start = "earliest",
        stop: Start | None = "end",
        *,
        partitions: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as typed Arrow columns, much faster; tombstones and what cannot be read are left out."""
        for batch in self._batches(topic, start, stop, partitions):
            if batch.values.num_rows:
                out = batch.deleted | batch.bad
                yield batch.select(~out).values if out.any() else batch.values

    def _batches(
        self, topic: str, start: Start, stop: Start | None, partitions: Sequence[int] | None
    ) -> Iterator[LogBatch]:
        numbers = range(self.log.topic(topic).partitions) if partitions is None else partitions
        positions = {number: self.log.find(topic, number, start) for number in numbers}
        last = None if stop is None else "latest" if stop == "end" else stop
        stops = None if last is None else {number: self.log.find(topic, number, last) for number in numbers}
        reader = Reader(self.log, topic, positions, stops)
        try:
            yield from reader
        finally:
            reader.close()

    def consumer(
        self,
        topic: str,
        *,
        group: str,
        start: Start = "earliest",
        timeout: str | timedelta | None = None,
        session: str | timedelta = "5 minutes",
    ) -> Consumer:
        """A member of a consumer group.

        Args:
            topic: What to read.
            group: Members of one group share the partitions.
            start: Where a new group begins.
            timeout: Iteration ends after this long without events; it waits for ever if left out.
            session: A member that does not come back for more within this time loses its partitions.
        """
        wait = None if timeout is None else duration(timeout)
        return Consumer(self.log, topic, group, start=start, timeout=wait, session=duration(session))

    def lag(self, group: str | None = None) -> list[Lag]:
        """How far each group is behind, per partition: in time first, then in events.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string")
            >>> with client.consumer("orders", group="billing") as consumer:
            ...     _ = client.send("orders", {"order_id": "a"})
            ...     [lag.events for lag in client.lag("billing")]
            [1]
        """
        states = self.log.groups.states()
        wanted = [state for state in states if group in (None, state.group)]
        if group is not None and not wanted:
            known = sorted({state.group for state in states})
            what = f'no group "{group}"'
            raise UnknownGroupError(what, detail=f"groups: {', '.join(known) or 'none yet'}", group=group)
        return [lag for state in wanted for lag in lag_of(self.log, self._clock, state)]

    def reset(self, group: str, topic: str, to: Start, *, dry_run: bool = False) -> list[Move]:
        """Set where a group goes on; with `dry_run`, only say what would change.

        Args:
            group: None of its consumers may be running.
            topic: What it reads.
            to: "earliest", "latest", an offset or a time.
            dry_run: Change nothing.
        """
        return reset_group(self.log, group, topic, to, dry_run=dry_run)

    def table(self, topic: str) -> TableReader:
        """A compacted topic as the table it stands for."""
        return TableReader(self.log, topic)

    # -- views ---------------------------------------------------------------------------------------------------

    def view(self, name: str) -> View:
        """A view: its rows, one row by key, its past, its changes.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> client.view("revenue")
            View('revenue')
        """
        return View(self.view_source, self.log, name)

    def views(self) -> list[str]:
        """Names of all views."""
        return [info.name for info in self.view_source.views() if info.kind == "view"]

    def sql(self, text: str, parameters: Sequence[Any] = (), *, limit: int = 1000) -> Answer:
        """The answer to one SELECT over views and the system views hw_pipelines, hw_batches, hw_late, hw_quarantine.

        Args:
            text: A query as SQLite takes it; it cannot write, and is ended when it takes too much.
            parameters: Values for the question marks in it.
            limit: So many rows at most; `complete` of the answer is false when there are more.

        Raises:
            BadQueryError: The text is wrong, does what it may not, or takes too much.
        """
        return self.view_source.sql(text, parameters, limit)

    def pipeline_lag(self) -> list[PipelineLag]:
        """How far each pipeline is behind each of its inputs: in time first, then in events.

        Example:
            >>> import headwater as hw, tempfile
            >>> hw.connect(tempfile.mkdtemp()).pipeline_lag()
            []
        """
        return pipeline_lags(self.log, self._clock, self.view_source)

    @property
    def view_source(self) -> ViewSource:
        """Where the views are: in the folder, or at the node."""
        if self._views is None:
            self._views = _views_beside(self.log)
        return self._views

    def close(self) -> None:
        """Finish what waits and let go of files and connections."""
        self.close_queues()
        if self._views is not None:
            self._views.close()
        self.log.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _views_beside(log: Log) -> ViewSource:
    if isinstance(log, EventLog):
        return FolderViews(log)
    from headwater.client.views.remote import HttpViews  # httpx is there already, with the log of the node
    from headwater.log.http import HttpLog

    if not isinstance(log, HttpLog):
        what = "it is not known where the views of this Kafka are kept"
        raise BadSettingError(what, fix='hw.connect(profile="…"), with a profile that names log and store')
    return HttpViews(log.transport)


def _typed(event: Event, as_: type) -> Event:
    return msgspec.structs.replace(event, value=from_row(as_, event.value or {}))
