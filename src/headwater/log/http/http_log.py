"""The log of a node, over HTTP."""

from __future__ import annotations

import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import RefusedError
from headwater.events import Codec, Receipt, storage_schema, upgrade
from headwater.log.batch import LogBatch
from headwater.log.definition import Topic, check_name
from headwater.log.event_log import PartitionRange, Start
from headwater.log.http.group_book import HttpGroups, start_text
from headwater.log.http.sender import Sender, Sent
from headwater.log.http.transport import Transport
from headwater.log.receipts import Receipts
from headwater.log.rows import Row, Rows, together
from headwater.log.storage.frame import Frame, Kind, decode_columns
from headwater.log.wakeup import Waiter
from headwater.log.wire import FRAMES, pack_rows, read_frames, read_receipts

__all__ = ["HttpLog"]

_LONGEST_POLL: Final = 20.0  # seconds one request waits for events
_LARGE_ANSWER: Final = 8 << 20  # bytes; it may have left out partitions
_GROUP_CHANGED: Final = "headwater-group-changed"
_SETTINGS: Final = {item.name for item in fields(Topic)} - {"schema", "place", "given"}


@dataclass
class _Known:
    """A topic as far as this client knows it."""

    definition: Topic
    codec: Codec
    stored: pa.Schema
    codecs: dict[int, Codec] = field(default_factory=dict)


class HttpLog:
    """Behaves like `EventLog`, at a node's address; safe to share between threads.

    Args:
        url: Such as "http://127.0.0.1:8642".
        patience: How long to go on when a node that answered before does not, or is busy.
        timeout: How long an answer may take.

    Example:
        >>> log = HttpLog("http://127.0.0.1:9", patience=timedelta(0))
        >>> log.topics()
        Traceback (most recent call last):
        headwater.errors.UnreachableError: UNREACHABLE: no node answers at http://127.0.0.1:9
        ...
    """

    def __init__(
        self,
        url: str,
        *,
        patience: timedelta = timedelta(seconds=15),
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        self._transport = Transport(url, patience, timeout)
        self.groups = HttpGroups(self._transport)
        self._known: dict[str, _Known] = {}
        self._senders: dict[str, Sender] = {}
        self._lock = threading.Lock()
        self._turn = 0

    @property
    def url(self) -> str:
        """The node's address."""
        return self._transport.url

    @property
    def transport(self) -> Transport:
        """What carries requests to the node."""
        return self._transport

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Names of all topics."""
        return [topic["name"] for topic in self._transport.json("GET", "/api/topics")["topics"]]

    def topic(self, name: str) -> Topic:
        """A topic's definition under its newest type."""
        return self._learn(self._transport.json("GET", _path(name))).definition

    def create(self, topic: Topic) -> Topic:
        """Create a topic, or bring an existing one up to this definition."""
        wanted = msgspec.json.decode(topic.to_json())
        del wanted["version"]
        wanted["schema"] = {"arrow": b64encode(topic.schema.serialize().to_pybytes()).decode()}
        wanted["given"] = sorted(topic.given)
        try:
            return self._learn(self._transport.json("POST", "/api/topics", document=wanted)).definition
        except RefusedError as error:
            error.place = error.place or topic.place
            raise

    def _learn(self, document: dict[str, Any]) -> _Known:
        schema = pa.ipc.read_schema(pa.py_buffer(b64decode(document["schema"]["arrow"])))
        settings = {name: value for name, value in document.items() if name in _SETTINGS}
        topic = Topic.from_json(msgspec.json.encode(settings), schema)
        known = self._known.get(topic.name)
        if known is None or known.definition != topic:
            codecs = {} if known is None else known.codecs
            known = _Known(topic, Codec(schema), storage_schema(schema), codecs)
            self._known[topic.name] = known
        return known

    def _of(self, name: str, version: int = 0) -> _Known:
        """What is known of a topic, if its type is at least of this version."""
        known = self._known.get(name)
        if known is None or known.definition.version < version:
            known = self._learn(self._transport.json("GET", _path(name)))
        return known

    def _codec(self, name: str, version: int) -> Codec:
        known = self._of(name, version)
        if version == known.definition.version:
            return known.codec
        if version not in known.codecs:
            document = self._transport.json("GET", f"{_path(name)}/schema", params={"version": version})
            schema = pa.ipc.read_schema(pa.py_buffer(b64decode(document["arrow"])))
            known.codecs[version] = Codec(schema)
        return known.codecs[version]

    # -- in ------------------------------------------------------------------------------------------------------

    def append(self, name: str, rows: Rows) -> Receipts:
        """Append rows and wait for the acknowledgement; without a producer it is not repeated when that gets lost."""
        return self._post(name, pack_rows(rows), repeatable=bool(rows.producer))

    def append_one(self, name: str, row: Row) -> Receipt:
        """Append one event and wait for the acknowledgement."""
        return self.append(name, together(self._codec(name, row.version), [row]))[0]

    def put(self, name: str, row: Row) -> Sent:
        """Hand one event to a thread that sends it; `finish` waits."""
        with self._lock:
            sender = self._senders.get(name)
            if sender is None:
                sender = self._senders[name] = Sender(
                    lambda body, repeatable: self._post(name, body, repeatable=repeatable),
                    lambda version: self._codec(name, version),
                )
        return sender.put(row)

    def finish(self, name: str, entry: Sent) -> Receipt:
        """Wait for an event that was `put`."""
        return entry.wait()

    def _post(self, name: str, body: bytes, *, repeatable: bool) -> Receipts:
        path = f"{_path(name)}/frames"
        answer = self._transport.call("POST", path, content=body, media=FRAMES, repeatable=repeatable)
        return read_receipts(name, answer.content)

    def last_sequences(self, name: str, producer: str) -> list[int]:
        """Highest sequence of a producer in each partition; -1 where it has none."""
        found = self._transport.json("GET", f"{_path(name)}/sequences", params={"producer": producer})
        sequences: list[int] = found["sequences"]
        return sequences

    def counts(self, name: str) -> dict[str, int]:
        """What the topic's door decided so far, over all processes."""
        counts: dict[str, int] = self._transport.json("GET", f"{_path(name)}/counts")["counts"]
        return counts

    # -- out -----------------------------------------------------------------------------------------------------

    def ends(self, name: str) -> list[PartitionRange]:
        """What each partition holds now."""
        found = self._transport.json("GET", f"{_path(name)}/ends")["partitions"]
        return [PartitionRange(**held) for held in found]

    def find(self, name: str, partition: int, start: Start) -> int:
        """The offset to start from."""
        params: dict[str, str | int | float] = {"partition": partition, "start": start_text(start)}
        return int(self._transport.json("GET", f"{_path(name)}/find", params=params)["offset"])

    def fetch(
        self,
        name: str,
        positions: Mapping[int, int],
        *,
        max_bytes: int = 1 << 20,
        timeout: float = 0,
        waiter: Waiter | None = None,
    ) -> list[LogBatch]:
        """Batches from these offsets on, partition by partition; the node waits up to `timeout` seconds for the first.

        Comes back with nothing when the time is over, or when the group of the waiter changed.
        """
        group = waiter.group if isinstance(waiter, TopicWaiter) else None
        deadline = time.monotonic() + timeout
        while True:
            wait = max(0.0, min(deadline - time.monotonic(), _LONGEST_POLL))
            wanted = {
                "positions": self._in_turn(positions),
                "max_bytes": max_bytes,
                "wait": wait,
                "group": group,
            }
            answer = self._transport.call("POST", f"{_path(name)}/fetch", document=wanted, wait=wait)
            if answer.content:
                self._turn += len(answer.content) >= _LARGE_ANSWER
                found = read_frames(answer.content)
                return [self._decode(name, *frame).since(positions[frame[0]]) for frame in found]
            if _GROUP_CHANGED in answer.headers and group is not None:
                self.groups.changed(group, name)
                return []
            if time.monotonic() >= deadline:
                return []

    def _in_turn(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Another partition first after a large answer: answers have a bound, and none may be left out for ever."""
        pairs = list(positions.items())
        at = self._turn % len(pairs) if pairs else 0
        return dict(pairs[at:] + pairs[:at])

    def _decode(self, name: str, partition: int, frame: Frame, data: memoryview) -> LogBatch:
        known = self._of(name, frame.schema)
        if frame.kind is not Kind.EVENTS:
            empty = pa.RecordBatch.from_pylist([], known.stored)
            return LogBatch(known.definition, partition, frame, empty, {}, known.codec)
        current = frame.schema == known.definition.version
        schema = known.stored if current else storage_schema(self._codec(name, frame.schema).schema)
        columns = decode_columns(frame, data[frame.body_at :], schema)
        width = len(schema)
        values = pa.RecordBatch.from_arrays(columns.columns[:width], schema=schema)
        envelope = dict(zip(columns.schema.names[width:], columns.columns[width:], strict=True))
        values = values if current else upgrade(values, known.stored)
        return LogBatch(known.definition, partition, frame, values, envelope, known.codec)

    def watch(self, name: str, group: str | None = None) -> TopicWaiter:
        """A wake-up for appends to a topic and, with `group`, for changes of that group."""
        return TopicWaiter(self._transport, check_name(name), group)

    def close(self) -> None:
        """Send what waits, and close all connections."""
        with self._lock:
            senders, self._senders = list(self._senders.values()), {}
        for sender in senders:
            sender.close()
        self.groups.close()
        self._transport.close()

    def __enter__(self) -> HttpLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TopicWaiter:
    """Waits for appends to one topic. `fetch` lets the node wait instead, with the group that is named here."""

    def __init__(self, transport: Transport, name: str, group: str | None) -> None:
        self.group = group
        self._transport = transport
        self._name = name
        self._ends: dict[int, int] | None = None

    def wait(self, timeout: float | None) -> bool:
        """True as soon as the topic grew since the last wait."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._ends is None:
            self._ends = self._look(0)
        while True:
            left = _LONGEST_POLL if deadline is None else deadline - time.monotonic()
            before, self._ends = self._ends, self._look(max(0.0, min(left, _LONGEST_POLL)))
            if before != self._ends:
                return True
            if left <= 0:
                return False

    def _look(self, wait: float) -> dict[int, int]:
        known = "" if not self._ends else ",".join(f"{p}:{end}" for p, end in self._ends.items())
        params: dict[str, str | int | float] = {"known": known, "wait": wait} if wait and known else {}
        found = self._transport.json("GET", f"{_path(self._name)}/ends", params=params, wait=wait)
        return {held["partition"]: held["end"] for held in found["partitions"]}

    def close(self) -> None:
        """Stop waiting."""


def _path(name: str) -> str:
    return f"/api/topics/{check_name(name)}"
