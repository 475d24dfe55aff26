"""The log of a node, over HTTP.

`HttpLog` implements the `Log` protocol with requests to a node's gateway. `HttpTopicWriter` is a thread per
topic that sends single events in their order, several in one request. A request is retried only when it
carries a producer's sequence numbers: without them, a retry after a lost answer could append the events
twice.
"""

from __future__ import annotations

import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import HeadwaterError, RefusedError, UnreachableError, UsageError
from headwater.events import Codec, Receipt, storage_schema, upgrade
from headwater.events.envelope import Receipts
from headwater.log.batch import LogBatch
from headwater.log.event_log import PartitionRange, Start
from headwater.log.http.consumer_groups import HttpGroups, format_start
from headwater.log.http.transport import Transport
from headwater.log.notifier import Waiter
from headwater.log.storage.frame import Frame, FrameKind, decode_columns
from headwater.log.topic import OPTION_NAMES, Topic, check_name
from headwater.log.wire import FRAMES_MEDIA_TYPE, pack_batch, unpack_frames, unpack_receipts
from headwater.log.write_batch import PendingEvent, WriteBatch, coalesce

__all__ = ["HttpLog", "HttpTopicWriter", "PendingSend"]

_MAX_PENDING: Final = 10_000
_MAX_EVENTS_PER_REQUEST: Final = 5_000
_MAX_REQUEST_BYTES: Final = 8 << 20  # bytes of one request


class PendingSend:
    """One submitted event, and later its receipt or its error."""

    __slots__ = ("_done", "error", "receipt", "row")

    def __init__(self, row: PendingEvent) -> None:
        self.row = row
        self.receipt: Receipt | None = None
        self.error: BaseException | None = None
        self._done = threading.Event()

    def complete(self, outcome: Receipt | BaseException) -> None:
        """Set the receipt or the error."""
        if isinstance(outcome, Receipt):
            self.receipt = outcome
        else:
            self.error = outcome
        self._done.set()

    def wait(self) -> Receipt:
        """Returns the receipt as soon as there is one; raises the error of the send."""
        self._done.wait()
        if self.receipt is None:
            raise self.error or UnreachableError("the event was not sent")
        return self.receipt


class HttpTopicWriter:
    """A thread that sends the events of one topic.

    Args:
        post: Sends the body of an append; its argument says whether a retry is safe.
        codec_of: The codec of the topic's type at a version.
    """

    def __init__(self, post: Callable[[bytes, bool], Receipts], codec_of: Callable[[int], Codec]) -> None:
        self._post = post
        self._codec_of = codec_of
        self._pending: deque[PendingSend] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="headwater-sender", daemon=True)
        self._thread.start()

    def submit(self, row: PendingEvent) -> PendingSend:
        """Submit an event; blocks only while the buffer is full."""
        sent = PendingSend(row)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._pending) < _MAX_PENDING)
            if self._closed:
                raise UnreachableError("the client is closed", fix="hw.connect(...) again")
            self._pending.append(sent)
            self._changed.notify_all()
        return sent

    def close(self) -> None:
        """Send the remaining events, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._pending)
                taken = list(self._pending)
                self._pending.clear()
                self._changed.notify_all()
            if not taken:
                return
            lost: UnreachableError | None = None
            for run in _group_sends(taken):
                if lost is None:
                    lost = self._send(run)
                else:
                    _fail_all(run, lost)

    def _send(self, run: list[PendingSend]) -> UnreachableError | None:
        """Send events as one request; if one is invalid, send each by itself so the others are unaffected."""
        first = run[0].row
        try:
            body = pack_batch(coalesce(self._codec_of(first.version), [sent.row for sent in run]))
            if len(body) > _MAX_REQUEST_BYTES and len(run) > 1:
                return self._send_halves(run)
            receipts = self._post(body, bool(first.producer))
        except UsageError as error:
            if len(run) > 1:
                return self._send_halves(run)
            run[0].complete(error)
        except UnreachableError as error:
            _fail_all(run, error)
            return error
        except (HeadwaterError, OSError, ValueError) as error:
            _fail_all(run, error)
        else:
            for sent, receipt in zip(run, receipts, strict=True):
                sent.complete(receipt)
        return None

    def _send_halves(self, run: list[PendingSend]) -> UnreachableError | None:
        middle = len(run) // 2
        lost = self._send(run[:middle])
        if lost is not None:
            # Behind a lost event nothing of its producer may follow: the log would take the lost one for a repeat.
            _fail_all(run[middle:], lost)
            return lost
        return self._send(run[middle:])


def _fail_all(run: list[PendingSend], error: BaseException) -> None:
    for sent in run:
        sent.complete(error)


def _group_sends(taken: list[PendingSend]) -> Iterator[list[PendingSend]]:
    """Returns groups of events that fit one batch, in order within each partition of a producer."""
    open_runs: dict[tuple[str, int | None], list[PendingSend]] = {}
    for sent in taken:
        key = (sent.row.producer, sent.row.partition)
        run = open_runs.get(key)
        if run and (len(run) >= _MAX_EVENTS_PER_REQUEST or not sent.row.can_follow(run[-1].row)):
            yield open_runs.pop(key)
            run = None
        if run is None:
            open_runs[key] = run = []
        run.append(sent)
    yield from open_runs.values()


_MAX_POLL: Final = 20.0  # seconds one request waits for events
_LARGE_RESPONSE: Final = 8 << 20  # bytes; it may have left out partitions
_GROUP_CHANGED: Final = "headwater-group-changed"
_STORED_FIELDS: Final = {item.name for item in fields(Topic)} - {"schema", "location", "given"} | set(OPTION_NAMES)


@dataclass
class _KnownTopic:
    """A topic as this client has cached it."""

    definition: Topic
    codec: Codec
    stored_schema: pa.Schema
    codecs: dict[int, Codec] = field(default_factory=dict)


class HttpLog:
    """The log at a node's address; same calls as `EventLog`, safe to share between threads.

    Args:
        url: Such as "http://127.0.0.1:8642".
        patience: How long to retry when a node that answered before does not answer or is busy.
        timeout: How long an answer may take.

    Example:
        >>> log = HttpLog("http://127.0.0.1:9", patience=timedelta(0))
        >>> log.topics()
        Traceback (most recent call last):
        headwater.errors.UnreachableError: UNREACHABLE: no node answers at http://127.0.0.1:9
        ...
    """

    def __init__(
        self, url: str, *, patience: timedelta = timedelta(seconds=15), timeout: timedelta = timedelta(seconds=60)
    ) -> None:
        self._transport = Transport(url, patience, timeout)
        self.groups = HttpGroups(self._transport)
        self._known: dict[str, _KnownTopic] = {}
        self._writers: dict[str, HttpTopicWriter] = {}
        self._lock = threading.Lock()
        self._rotation = 0

    @property
    def url(self) -> str:
        """The node's address."""
        return self._transport.url

    @property
    def transport(self) -> Transport:
        """The transport that sends requests to the node."""
        return self._transport

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Returns the names of all topics."""
        return [topic["name"] for topic in self._transport.json("GET", "/api/topics")["topics"]]

    def topic(self, name: str) -> Topic:
        """Returns a topic's definition under its newest type."""
        return self._remember_topic(self._transport.json("GET", _topic_path(name))).definition

    def create(self, topic: Topic) -> Topic:
        """Create a topic, or update an existing one to this definition."""
        wanted = msgspec.json.decode(topic.to_json())
        del wanted["version"]
        wanted["schema"] = {"arrow": b64encode(topic.schema.serialize().to_pybytes()).decode()}
        stored = {option: name for name, option in OPTION_NAMES.items()}
        wanted["given"] = sorted(stored.get(option, option) for option in topic.given)
        try:
            return self._remember_topic(self._transport.json("POST", "/api/topics", document=wanted)).definition
        except RefusedError as error:
            error.location = error.location or topic.location
            raise

    def _remember_topic(self, document: dict[str, Any]) -> _KnownTopic:
        schema = pa.ipc.read_schema(pa.py_buffer(b64decode(document["schema"]["arrow"])))
        settings = {name: value for name, value in document.items() if name in _STORED_FIELDS}
        topic = Topic.from_json(msgspec.json.encode(settings), schema)
        known = self._known.get(topic.name)
        if known is None or known.definition != topic:
            codecs = {} if known is None else known.codecs
            known = _KnownTopic(topic, Codec(schema), storage_schema(schema), codecs)
            self._known[topic.name] = known
        return known

    def _topic_info(self, name: str, version: int = 0) -> _KnownTopic:
        """Returns the cached topic if its type has at least this version; else asks the node."""
        known = self._known.get(name)
        if known is None or known.definition.version < version:
            known = self._remember_topic(self._transport.json("GET", _topic_path(name)))
        return known

    def _codec(self, name: str, version: int) -> Codec:
        known = self._topic_info(name, version)
        if version == known.definition.version:
            return known.codec
        if version not in known.codecs:
            document = self._transport.json("GET", f"{_topic_path(name)}/schema", params={"version": version})
            schema = pa.ipc.read_schema(pa.py_buffer(b64decode(document["arrow"])))
            known.codecs[version] = Codec(schema)
        return known.codecs[version]

    # -- in ------------------------------------------------------------------------------------------------------

    def append(self, name: str, batch: WriteBatch) -> Receipts:
        """Append rows and wait for the acknowledgement; retried after a lost answer only with a producer."""
        return self._post(name, pack_batch(batch), repeatable=bool(batch.producer))

    def append_one(self, name: str, event: PendingEvent) -> Receipt:
        """Append one event and wait for the acknowledgement."""
        return self.append(name, coalesce(self._codec(name, event.version), [event]))[0]

    def begin_append(self, name: str, event: PendingEvent) -> PendingSend:
        """Pass one event to the sending thread; `await_append` waits for it."""
        with self._lock:
            sender = self._writers.get(name)
            if sender is None:
                sender = self._writers[name] = HttpTopicWriter(
                    lambda body, repeatable: self._post(name, body, repeatable=repeatable),
                    lambda version: self._codec(name, version),
                )
        return sender.submit(event)

    def await_append(self, name: str, pending: PendingSend) -> Receipt:
        """Wait for an event passed to `begin_append`."""
        return pending.wait()

    def _post(self, name: str, body: bytes, *, repeatable: bool) -> Receipts:
        path = f"{_topic_path(name)}/frames"
        answer = self._transport.call("POST", path, content=body, media=FRAMES_MEDIA_TYPE, repeatable=repeatable)
        return unpack_receipts(name, answer.content)

    def last_sequences(self, name: str, producer: str) -> list[int]:
        """Returns the highest sequence number of a producer per partition; -1 where it has none."""
        found = self._transport.json("GET", f"{_topic_path(name)}/sequences", params={"producer": producer})
        sequences: list[int] = found["sequences"]
        return sequences

    def counts(self, name: str) -> dict[str, int]:
        """Returns the append counters of the topic, summed over all processes."""
        counts: dict[str, int] = self._transport.json("GET", f"{_topic_path(name)}/counts")["counts"]
        return counts

    # -- out -----------------------------------------------------------------------------------------------------

    def ends(self, name: str) -> list[PartitionRange]:
        """Returns what each partition holds now."""
        found = self._transport.json("GET", f"{_topic_path(name)}/ends")["partitions"]
        return [PartitionRange(**held) for held in found]

    def find_offset(self, name: str, partition: int, start: Start) -> int:
        """Returns the offset to start from."""
        params: dict[str, str | int | float] = {"partition": partition, "start": format_start(start)}
        return int(self._transport.json("GET", f"{_topic_path(name)}/find", params=params)["offset"])

    def fetch(
        self,
        name: str,
        positions: Mapping[int, int],
        *,
        max_bytes: int = 1 << 20,
        timeout: float = 0,
        waiter: Waiter | None = None,
    ) -> list[LogBatch]:
        """Returns batches from these offsets; the node waits up to `timeout` seconds for the first.

        Returns an empty list after the timeout, or when the group of the waiter changed.
        """
        group = waiter.group if isinstance(waiter, HttpTopicWaiter) else None
        deadline = time.monotonic() + timeout
        while True:
            wait = max(0.0, min(deadline - time.monotonic(), _MAX_POLL))
            wanted = {"positions": self._rotate(positions), "max_bytes": max_bytes, "wait": wait, "group": group}
            answer = self._transport.call("POST", f"{_topic_path(name)}/fetch", document=wanted, wait=wait)
            if answer.content:
                self._rotation += len(answer.content) >= _LARGE_RESPONSE
                found = unpack_frames(answer.content)
                return [self._decode(name, *frame).from_offset(positions[frame[0]]) for frame in found]
            if _GROUP_CHANGED in answer.headers and group is not None:
                self.groups.notify_changed(group, name)
                return []
            if time.monotonic() >= deadline:
                return []

    def _rotate(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Put another partition first after a large answer: answers are bounded, and no partition may starve."""
        pairs = list(positions.items())
        at = self._rotation % len(pairs) if pairs else 0
        return dict(pairs[at:] + pairs[:at])

    def _decode(self, name: str, partition: int, frame: Frame, data: memoryview) -> LogBatch:
        known = self._topic_info(name, frame.schema)
        if frame.kind is not FrameKind.EVENTS:
            empty = pa.RecordBatch.from_pylist([], known.stored_schema)
            return LogBatch(known.definition, partition, frame, empty, {}, known.codec)
        current = frame.schema == known.definition.version
        schema = known.stored_schema if current else storage_schema(self._codec(name, frame.schema).schema)
        columns = decode_columns(frame, data[frame.body_at :], schema)
        width = len(schema)
        values = pa.RecordBatch.from_arrays(columns.columns[:width], schema=schema)
        envelope = dict(zip(columns.schema.names[width:], columns.columns[width:], strict=True))
        values = values if current else upgrade(values, known.stored_schema)
        return LogBatch(known.definition, partition, frame, values, envelope, known.codec)

    def watch(self, name: str, group: str | None = None) -> HttpTopicWaiter:
        """Returns a waiter for appends to a topic and, with `group`, for changes of that group."""
        return HttpTopicWaiter(self._transport, check_name(name), group)

    def close(self) -> None:
        """Send the remaining events and close all connections."""
        with self._lock:
            senders, self._writers = list(self._writers.values()), {}
        for sender in senders:
            sender.close()
        self.groups.close()
        self._transport.close()

    def __enter__(self) -> HttpLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HttpTopicWaiter:
    """Waits for appends to one topic; `fetch` lets the node wait instead, also for this group."""

    def __init__(self, transport: Transport, name: str, group: str | None) -> None:
        self.group = group
        self._transport = transport
        self._name = name
        self._ends: dict[int, int] | None = None

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as the topic grew since the last wait."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._ends is None:
            self._ends = self._poll_ends(0)
        while True:
            left = _MAX_POLL if deadline is None else deadline - time.monotonic()
            before, self._ends = self._ends, self._poll_ends(max(0.0, min(left, _MAX_POLL)))
            if before != self._ends:
                return True
            if left <= 0:
                return False

    def _poll_ends(self, wait: float) -> dict[int, int]:
        known = "" if not self._ends else ",".join(f"{p}:{end}" for p, end in self._ends.items())
        params: dict[str, str | int | float] = {"known": known, "wait": wait} if wait and known else {}
        found = self._transport.json("GET", f"{_topic_path(self._name)}/ends", params=params, wait=wait)
        return {held["partition"]: held["end"] for held in found["partitions"]}

    def close(self) -> None:
        """Stop waiting."""


def _topic_path(name: str) -> str:
    return f"/api/topics/{check_name(name)}"
