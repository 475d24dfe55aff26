"""The client: one object for sending, reading and following; it delegates to the log, views and queues.

`connect` opens a client on a folder, a node, Kafka, or a profile. `headwater.backends` chooses the
implementations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import pyarrow as pa

from headwater.backends import open_log, open_views
from headwater.capture.change_reader import ChangeReader
from headwater.client.consumer import Consumer, Lag, OffsetReset, group_lags, open_reader, reset_group
from headwater.client.deletion import Deletion, delete_group, delete_topic
from headwater.client.disk_usage import DiskUsage, measure_disk
from headwater.client.producer import Producer
from headwater.client.queue import QueueMethods
from headwater.client.sender import EventSender, FrameRows, JsonRows, ValueRows, origin_of_caller
from headwater.client.view import TableReader, View
from headwater.errors import BadSettingError, HeadwaterError, SourceLocation
from headwater.events import Clock, Event, Receipt, SystemClock, from_row
from headwater.events.envelope import Receipts
from headwater.log import EventLog, LogBatch, Start, Topic, WriteBatch
from headwater.log.protocol import Log
from headwater.log.write.write_batch import EventAttributes, EventEncoder
from headwater.pipelines.declaration import TopicOptions
from headwater.profiles import Profile, read_profile, redact
from headwater.store import SqlResult
from headwater.store.views.lag import PipelineLag, pipeline_lags
from headwater.store.views.view_query import ViewSource
from headwater.units import duration

if TYPE_CHECKING:
    from headwater.log.http import HttpLog

__all__ = ["Client", "connect"]


class Client(QueueMethods):
    """Sends to and reads from topics, views and queues; thread-safe. Created by `hw.connect`."""

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
        self._sender = EventSender(log, clock)
        self._encoders = self._sender.encoders
        self._views = views

    # -- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, type_: object, **options: Unpack[TopicOptions]) -> Topic:
        """Create a topic, or update an existing one to this type and these options.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: Dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema.
            options: `key`, `time`, `lateness`, `partitions`, `durability`, `retention`, `compact`, `overload`,
                `idle`, `ahead`, `segment_size`, `value_format`, `invalid`; see `TopicOptions`.

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
        self._encoders.remove(name)
        return topic

    def topics(self) -> list[str]:
        """Returns the names of all topics."""
        return self.log.topics()

    def topic(self, name: str) -> Topic:
        """Returns a topic's definition."""
        return self.log.topic(name)

    def delete_topic(self, name: str, *, dry_run: bool = False) -> Deletion:
        """Delete a topic with its events and the offsets of its groups; with `dry_run`, only return what would go.

        Programs that have it open get UNKNOWN_TOPIC. A topic that is created again under the name is another one.

        Raises:
            UnknownTopicError: There is no such topic.
            RefusedError: A running pipeline or bridge reads it, or a pipeline that exists writes it.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string")
            >>> client.delete_topic("orders").events, client.topics()
            (0, [])
        """
        self._encoders.remove(name)
        if (remote := _remote_log(self.log)) is not None:
            return msgspec.convert(remote.delete_topic(name, dry_run=dry_run), Deletion)
        return delete_topic(self.log, self._known_views(), self._folder, name, dry_run=dry_run)

    def delete_group(self, name: str, topic: str | None = None, *, dry_run: bool = False) -> Deletion:
        """Delete the committed offsets of a group; retention no longer waits for it.

        Args:
            name: The group; none of its consumers may be running.
            topic: The topic; all that the group reads, if left out.
            dry_run: Only return what would go.

        Raises:
            UnknownGroupError: There is no such group.
            RefusedError: A consumer is running, or the group belongs to a pipeline of the running app.
        """
        if (remote := _remote_log(self.log)) is not None:
            return msgspec.convert(remote.groups.delete_group(name, topic, dry_run=dry_run), Deletion)
        return delete_group(self.log, self._known_views(), self._folder, name, topic, dry_run=dry_run)

    def disk_usage(self) -> DiskUsage:
        """Returns what the data folder holds by part, how long it is kept, and who holds back retention."""
        if (remote := _remote_log(self.log)) is not None:
            return msgspec.convert(remote.transport.json("GET", "/api/disk"), DiskUsage)
        return measure_disk(self.log, self._clock, self._known_views(), self._folder)

    def _known_views(self) -> ViewSource | None:
        """Returns the views; None for a Kafka URL, which does not say where they are."""
        return self.view_source if self._views is not None or isinstance(self.log, EventLog) else None

    # -- write ---------------------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any, *, key: Any = None, **attributes: Unpack[EventAttributes]) -> Receipt:
        """Send one event and wait until it is as safe as the topic's durability promises.

        Args:
            topic: The topic.
            value: A dict, or an instance of the topic's type.
            key: The key, for topics without a key column; otherwise it fills the key column or must equal it.
            attributes: `id`, `occurred_at`, `sent_at`, `headers`, `traceparent`, `source`; see `EventAttributes`.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string")
            >>> client.send("orders", {"order_id": "a"}).offset
            0
        """
        return self._sender.send_one(
            topic, lambda encoder, now: encoder.encode_one(value, now, key, **attributes), value, origin_of_caller
        )

    def send_many(
        self, topic: str, rows: Any, *, keys: Sequence[Any] | None = None, skip_invalid: bool = False
    ) -> Receipts:
        """Send many events at once; those of one partition are appended completely or not at all.

        Args:
            topic: The topic.
            rows: Dicts or instances of the topic's type; an Arrow table or batch; a pandas or Polars frame.
            keys: One key per row, for topics without a key column.
            skip_invalid: Leave invalid rows out in place of refusing the call; their receipts have `refused`. Rows of a
                topic with `invalid=` are diverted in any case.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string")
            >>> len(client.send_many("orders", [{"order_id": "a"}, {"order_id": "b"}]))
            2
        """
        if hasattr(rows, "__iter__") and not hasattr(rows, "__len__"):
            rows = list(rows)
        of: type[ValueRows] | type[FrameRows] = ValueRows if isinstance(rows, list | tuple) else FrameRows
        return self._sender.send_rows(topic, of(rows, keys), lambda row: origin_of_caller(), skip_invalid=skip_invalid)

    def send_json(self, topic: str, lines: Sequence[bytes], *, skip_invalid: bool = False) -> Receipts:
        """Send events given as JSON objects, one per line; `skip_invalid` is that of `send_many`."""
        return self._sender.send_rows(
            topic, JsonRows(lines), lambda row: f"{origin_of_caller()}, line {row + 1}", skip_invalid=skip_invalid
        )

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
        return self._append(topic, lambda encoder, now: encoder.encode_tombstone(key, now))[0]

    def complete(self, topic: str) -> datetime:
        """Say that the history of a topic is complete: its event time advances to the present, and windows close.

        Events that happened long before they arrive are history. No silence ends it, because the next file may come in
        an hour. Events from before the returned time that arrive later than this are late.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> _ = client.create_topic("orders", "order_id string, at timestamp", time="at")
            >>> _ = client.send("orders", {"order_id": "a", "at": "2020-01-01T00:00:00Z"})
            >>> client.complete("orders").year > 2020
            True
        """
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.log.complete(topic))

    def _append(self, topic: str, make: Callable[[EventEncoder, int], WriteBatch]) -> Receipts:
        batch = self._encoders.encode(topic, make)
        with self._encoders.removed_if_deleted(topic):
            return self.log.append(topic, batch)

    def producer(self, topic: str, *, id: str | None = None) -> Producer:
        """Returns a producer that sends in the background; with an `id`, repeated sends are recognised."""
        return Producer(self.log, self._clock, self._encoders.get(topic), id)

    # -- read ----------------------------------------------------------------------------------------------------

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
            topic: The topic.
            start: "earliest", "latest", an offset, or a time (the first offset at which event time reaches it).
            stop: "end" for the events there are now, an offset or a time (exclusive), or None to follow without an end.
            partitions: The partitions to read; all if left out.
            as_: The class of the values; dicts if left out.

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
                    value = None if event.value is None else from_row(as_, event.value)
                    yield msgspec.structs.replace(event, value=value)

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
        with closing(open_reader(self.log, topic, start, stop, partitions)) as reader:
            yield from reader

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
            topic: The topic.
            group: The group's name; its members share the partitions.
            start: Where a new group begins: "earliest", "latest", an offset or a time.
            timeout: The time without events after which iteration ends; never if left out.
            session: The session timeout. A member that does not read for this long loses its partitions.
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
            group: The group; none of its consumers may be running.
            topic: The topic it reads.
            to: "earliest", "latest", an offset or a time.
            dry_run: Change nothing.

        Raises:
            RefusedError: A consumer is running, or the group belongs to a pipeline: rebuild its view instead.
        """
        return reset_group(self.log, group, topic, to, dry_run=dry_run)

    def table(self, topic: str) -> TableReader:
        """Returns a reader of a compacted topic as a table."""
        return TableReader(self.log, topic)

    # -- views ---------------------------------------------------------------------------------------------------

    def view(self, name: str) -> View:
        """Returns a view: its rows, one row by key, its history, its changes; or a table by its name.

        Example:
            >>> import headwater as hw, tempfile
            >>> client = hw.connect(tempfile.mkdtemp())
            >>> client.view("revenue")
            View('revenue')
        """
        return View(self.view_source, self.log, name)

    def capture(self, name: str) -> ChangeReader:
        """Returns the changes of a captured database as it committed them, also as whole transactions.

        Args:
            name: The capture, as `headwater capture status` shows it.

        Raises:
            UnknownTopicError: There is no such capture.

        Example:
            >>> import headwater as hw, tempfile
            >>> hw.connect(tempfile.mkdtemp()).capture("shop")
            Traceback (most recent call last):
            headwater.errors.UnknownTopicError: UNKNOWN_TOPIC: there is no capture 'shop'
            ...
        """
        return ChangeReader(self.log, name)

    def views(self) -> list[str]:
        """Returns the names of all views."""
        return [info.name for info in self.view_source.views() if info.kind == "view"]

    def sql(self, text: str, parameters: Sequence[Any] = (), *, limit: int = 1000) -> SqlResult:
        """Run one SELECT over views, tables and the system views hw_pipelines, hw_batches, hw_late, hw_quarantine.

        A table (compacted topic) that the query names is loaded for it, with at most a million rows.

        Args:
            text: A query in the SQL of the store (SQLite, PostgreSQL). It cannot write; time and memory are limited.
            parameters: The values of its `?` placeholders.
            limit: The maximum number of rows; `complete` of the result is False if there are more.

        Raises:
            BadQueryError: The query is invalid, uses something forbidden, or exceeds a limit.
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
        """The views: in the data folder, in a database, or at a node."""
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

    if (remote := _remote_log(log)) is None:
        what = "a Kafka URL does not say where the views are stored"
        raise BadSettingError(what, fix='hw.connect(profile="…"), with a profile that names log and store')
    return HttpViews(remote.transport)


def _remote_log(log: Log) -> HttpLog | None:
    """Returns the log if it is a node's."""
    if isinstance(log, EventLog):
        return None
    from headwater.log.http import HttpLog  # httpx is slow to import and not needed for a folder

    return log if isinstance(log, HttpLog) else None


def connect(where: str | Path | None = None, *, profile: str | None = None, clock: Clock | None = None) -> Client:
    """Returns a client for the log in a folder, on a node or on Kafka.

    Args:
        where: A folder, a node's URL such as "http://127.0.0.1:8642", or "kafka://host:port"; the profile's log if left
            out.
        profile: A profile of headwater.toml or pyproject.toml (default: `HEADWATER_PROFILE`; without one, the log is
            in the folder `HEADWATER_DATA`, else in ".headwater" here).
        clock: The clock, for tests.

    Example:
        >>> import tempfile
        >>> client = connect(tempfile.mkdtemp())
        >>> client.topics()
        []
    """
    if where in (None, ""):
        return _connect_profile(read_profile(profile), clock)
    if profile is not None:
        what = "both an address and a profile are given, and each says where the log is"
        raise BadSettingError(what, fix=f'hw.connect(profile="{profile}")')
    address = str(where)
    if address.startswith(("http://", "https://")):
        from headwater.log.http import HttpLog

        return Client(HttpLog(address), clock or SystemClock())
    if address.startswith("kafka://"):
        from headwater.log.kafka import KafkaLog

        return Client(KafkaLog(address, clock=clock), clock or SystemClock())
    if "://" in address:
        what = f"cannot connect to {redact(address)!r}"
        forms = "the address is a folder, http://host:port or kafka://host:port"
        raise BadSettingError(what, detail=forms, fix='hw.connect(".headwater")')
    log = EventLog(address, clock=clock)
    return Client(log, log.clock)


def _connect_profile(profile: Profile, clock: Clock | None) -> Client:
    """Returns a client for the log, views and queues of a profile."""
    if profile.log is None and profile.store is None and profile.queues is None:
        return connect(profile.data_folder(), clock=clock)
    folder = Path(profile.data_folder())
    log = open_log(profile.log.resolve() if profile.log else str(folder), clock, data=folder)
    url = profile.store.resolve() if profile.store else None
    queues = profile.queues.resolve() if profile.queues else None
    return Client(log, log.clock, open_views(log, url, folder), folder=folder, queues=queues)
