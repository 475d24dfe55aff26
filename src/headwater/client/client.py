"""The client: one object for sending, reading and following; it delegates to the log, views and queues.

`connect` opens a client on a folder, a node, Kafka, or a profile. `headwater.backends` chooses the
implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from headwater.backends import open_log, open_views
from headwater.client.consumer import Consumer, Lag, OffsetReset, group_lags, open_reader, reset_group
from headwater.client.producer import Producer
from headwater.client.queue import QueueMethods
from headwater.client.view import TableReader, View
from headwater.errors import BadEventError, BadSettingError, HeadwaterError, SourceLocation
from headwater.events import Clock, Event, Receipt, SystemClock, from_row
from headwater.events.envelope import Receipts
from headwater.log import EventLog, LogBatch, Start, Topic
from headwater.log.protocol import Log
from headwater.log.write_batch import EventEncoder
from headwater.profiles import Profile, read_profile, redact
from headwater.store import SqlResult
from headwater.store.views.lag import PipelineLag, pipeline_lags
from headwater.store.views.view_query import ViewSource
from headwater.units import duration

__all__ = ["Client", "connect"]

R = TypeVar("R")


class Client(QueueMethods):
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
        self._encoders: dict[str, EventEncoder] = {}
        self._views = views

    # -- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, type_: object, **options: Any) -> Topic:
        """Create a topic, or update an existing one to this type and these options.

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
        location = SourceLocation.of_caller()
        try:
            topic = self.log.create(Topic.declare(name, type_, location=location, **options))
        except HeadwaterError as error:
            error.location = error.location or location
            raise
        self._encoders.pop(name, None)
        return topic

    def topics(self) -> list[str]:
        """Returns the names of all topics."""
        return self.log.topics()

    def topic(self, name: str) -> Topic:
        """Returns a topic's definition."""
        return self.log.topic(name)

    # -- in ------------------------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any, *, key: Any = None, **attributes: Any) -> Receipt:
        """Send one event and wait until it is as safe as the topic's durability promises.

        Args:
            topic: Where to.
            value: A dict, or an instance of the topic's type.
            key: For topics without a key column; otherwise it fills the key column or must equal it.
            attributes: `id`, `occurred_at`, `sent_at`, `headers`, `traceparent`, `source`.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string")
            >>> client.send("orders", {"order_id": "a"}).offset
            0
        """
        row = self._encode(topic, lambda incoming, now: incoming.encode_one(value, now, key, **attributes))
        return self.log.append_one(topic, row)

    def send_many(self, topic: str, rows: Any, *, keys: Sequence[Any] | None = None) -> Receipts:
        """Send many events at once; those of one partition are appended completely or not at all.

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
        return self.log.append(topic, self._encode(topic, lambda incoming, now: incoming.encode_many(rows, keys, now)))

    def send_json(self, topic: str, lines: Sequence[bytes]) -> Receipts:
        """Send events given as JSON objects, one per line."""
        return self.log.append(topic, self._encode(topic, lambda incoming, now: incoming.encode_json(lines, now)))

    def delete(self, topic: str, key: Any) -> Receipt:
        """Delete a key from a compacted topic by appending a tombstone.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("products", "product_id int, name string", key="product_id", compact=True)
            >>> _ = client.send("products", {"product_id": 7, "name": "pen"})
            >>> _ = client.delete("products", 7)
            >>> client.table("products").rows()
            []
        """
        rows = self._encode(topic, lambda incoming, now: incoming.encode_tombstone(key, now))
        return self.log.append(topic, rows)[0]

    def producer(self, topic: str, *, id: str | None = None) -> Producer:
        """Returns a producer that sends in the background; with an `id`, repeated sends are recognised."""
        return Producer(self.log, self._clock, self._encoder(topic), id)

    def _encode(self, topic: str, make: Callable[[EventEncoder, int], R]) -> R:
        encoder = self._encoder(topic)
        try:
            return make(encoder, self._clock.micros())
        except BadEventError:  # the type may have grown since this client looked
            newest = self._encoder(topic, fresh=True)
            if newest.topic.version == encoder.topic.version:
                raise
            return make(newest, self._clock.micros())

    def _encoder(self, topic: str, *, fresh: bool = False) -> EventEncoder:
        found = self._encoders.get(topic)
        if found is None or fresh:
            found = self._encoders[topic] = EventEncoder(self.log.topic(topic))
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
        """Yields the events of a topic, in order within each partition.

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
                    yield event if event.value is None else _to_type(event, as_)

    def read_arrow(
        self,
        topic: str,
        start: Start = "earliest",
        stop: Start | None = "end",
        *,
        partitions: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yields events as typed Arrow columns, without tombstones and undecodable events; faster than `read`."""
        for batch in self._batches(topic, start, stop, partitions):
            if batch.values.num_rows:
                excluded = batch.tombstones | batch.bad
                yield batch.select(~excluded).values if excluded.any() else batch.values

    def _batches(
        self, topic: str, start: Start, stop: Start | None, partitions: Sequence[int] | None
    ) -> Iterator[LogBatch]:
        reader = open_reader(self.log, topic, start, stop, partitions)
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
        """Returns a member of a consumer group.

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
        """Returns the lag of each group per partition: in time first, then in events.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string")
            >>> with client.consumer("orders", group="billing") as consumer:
            ...     _ = client.send("orders", {"order_id": "a"})
            ...     [lag.events for lag in client.lag("billing")]
            [1]
        """
        return group_lags(self.log, self._clock, group)

    def reset(self, group: str, topic: str, to: Start, *, dry_run: bool = False) -> list[OffsetReset]:
        """Set the committed offsets of a group; with `dry_run`, only return what would change.

        Args:
            group: None of its consumers may be running.
            topic: What it reads.
            to: "earliest", "latest", an offset or a time.
            dry_run: Change nothing.
        """
        return reset_group(self.log, group, topic, to, dry_run=dry_run)

    def table(self, topic: str) -> TableReader:
        """Returns a reader of a compacted topic as a table."""
        return TableReader(self.log, topic)

    # -- views ---------------------------------------------------------------------------------------------------

    def view(self, name: str) -> View:
        """Returns a view: its rows, one row by key, its history, its changes.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> client.view("revenue")
            View('revenue')
        """
        return View(self.view_source, self.log, name)

    def views(self) -> list[str]:
        """Returns the names of all views."""
        return [info.name for info in self.view_source.views() if info.kind == "view"]

    def sql(self, text: str, parameters: Sequence[Any] = (), *, limit: int = 1000) -> SqlResult:
        """Run one SELECT over views and the system views hw_pipelines, hw_batches, hw_late, hw_quarantine.

        Args:
            text: A query as SQLite takes it; it cannot write, and is ended when it takes too much.
            parameters: Values for the question marks in it.
            limit: So many rows at most; `complete` of the answer is false when there are more.

        Raises:
            BadQueryError: The text is wrong, does what it may not, or takes too much.
        """
        return self.view_source.sql(text, parameters, limit)

    def pipeline_lag(self) -> list[PipelineLag]:
        """Returns the lag of each pipeline on each of its inputs: in time first, then in events.

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
            self._views = _find_views(self.log)
        return self._views

    def close(self) -> None:
        """Finish pending sends and close files and connections."""
        self.close_queues()
        if self._views is not None:
            self._views.close()
        self.log.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _find_views(log: Log) -> ViewSource:
    if isinstance(log, EventLog):
        return open_views(log)
    from headwater.client.http_views import HttpViews
    from headwater.log.http import HttpLog

    if not isinstance(log, HttpLog):
        what = "it is not known where the views of this Kafka are kept"
        raise BadSettingError(what, fix='hw.connect(profile="…"), with a profile that names log and store')
    return HttpViews(log.transport)


def _to_type(event: Event, as_: type) -> Event:
    return msgspec.structs.replace(event, value=from_row(as_, event.value or {}))


def connect(where: str | Path | None = None, *, profile: str | None = None, clock: Clock | None = None) -> Client:
    """Returns a client for the log in a folder, on a node or on Kafka.

    Args:
        where: A folder, a node's "http://127.0.0.1:8642", or "kafka://host:port"; if left out, the log of the profile.
        profile: A profile of headwater.toml or pyproject.toml (default: `HEADWATER_PROFILE`; without one, the log is
            in the folder `HEADWATER_DATA`, else in ".headwater" here).
        clock: What time it is, for tests.

    Example:
        >>> import tempfile
        >>> client = connect(tempfile.mkdtemp())
        >>> client.topics()
        []
    """
    if where in (None, ""):
        return _connect_profile(read_profile(profile), clock or SystemClock())
    if profile is not None:
        what = "both a place and a profile are given, and each says where the log is"
        raise BadSettingError(what, fix=f'hw.connect(profile="{profile}")')
    address = str(where)
    if address.startswith(("http://", "https://")):
        from headwater.log.http import HttpLog  # httpx is slow to import and not needed for a folder

        return Client(HttpLog(address), clock or SystemClock())
    if address.startswith("kafka://"):
        from headwater.log.kafka import KafkaLog

        return Client(KafkaLog(address, clock=clock), clock or SystemClock())
    if "://" in address:
        what = f"cannot connect to {redact(address)!r}"
        forms = "it can be a folder, http://host:port or kafka://host:port"
        raise BadSettingError(what, detail=forms, fix='hw.connect(".headwater")')
    return Client(EventLog(address, clock=clock), clock or SystemClock())


def _connect_profile(profile: Profile, clock: Clock) -> Client:
    """A client for the log and the views of a profile."""
    if profile.log is None and profile.store is None and profile.queues is None:
        return connect(profile.data_folder(), clock=clock)
    folder = Path(profile.data_folder())
    log = open_log(profile.log.resolve() if profile.log else str(folder), clock)
    url = profile.store.resolve() if profile.store else None
    queues = profile.queues.resolve() if profile.queues else None
    return Client(log, clock, open_views(log, url, folder), folder=folder, queues=queues)
