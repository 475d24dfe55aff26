"""The log of a node, over HTTP.

`HttpLog` implements the `Log` protocol with requests to a node's gateway. Events sent in the background pass
through an `AppendBuffer` per topic, as in the embedded log; its commit function sends them in order, several
in one request. A request is retried only when it carries a producer's sequence numbers: without them, a
retry after a lost response could append the events twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import BadEventError, BadKeyError, HeadwaterError, RefusedError, TooLargeError, UnreachableError
from headwater.events import Codec, Receipt
from headwater.events.envelope import Receipts
from headwater.events.schema_export import from_arrow_base64, to_arrow_base64
from headwater.log.batch import LogBatch
from headwater.log.event_log import PartitionRange, Start
from headwater.log.http.consumer_groups import HttpGroups, format_start
from headwater.log.http.transport import Transport
from headwater.log.invalid_events import invalid_topic_of
from headwater.log.notifier import Waiter
from headwater.log.reader import FrameDecoder
from headwater.log.tombstones import TombstoneHorizon
from headwater.log.topic import OPTION_NAMES, Overload, Topic, check_name
from headwater.log.wire import FRAMES_MEDIA_TYPE, pack_batch, unpack_frames, unpack_receipts
from headwater.log.write.append_buffer import AppendBuffer, PendingAppend
from headwater.log.write.topic_writer import Run, group_by_producer, write_run
from headwater.log.write.write_batch import PendingEvent, WriteBatch, coalesce

__all__ = ["HttpLog"]

_MAX_EVENTS_PER_REQUEST: Final = 5_000
_MAX_REQUEST_BYTES: Final = 8 << 20
_MAX_POLL: Final = 20.0  # seconds that one request waits for events
_LARGE_RESPONSE: Final = 8 << 20  # bytes; it may have left out partitions
_GROUP_CHANGED: Final = "headwater-group-changed"
_STORED_FIELDS: Final = {item.name for item in fields(Topic)} - {"schema", "location", "given"} | set(OPTION_NAMES)


class HttpLog:
    """The log at a node's address; same calls as `EventLog`, safe to share between threads.

    Args:
        url: Such as "http://127.0.0.1:8642".
        patience: How long to retry when a node that has responded before is unreachable or busy.
        timeout: How long a response may take.

    Example:
        >>> log = HttpLog("http://127.0.0.1:9", patience=timedelta(0))
        >>> log.topics()
        Traceback (most recent call last):
        headwater.errors.UnreachableError: UNREACHABLE: no node answers at http://127.0.0.1:9
        ...
    """

    repeats_appends = True

    def __init__(
        self, url: str, *, patience: timedelta = timedelta(seconds=15), timeout: timedelta = timedelta(seconds=60)
    ) -> None:
        self.transport = Transport(url, patience, timeout)
        self.url = self.transport.url
        self.groups = HttpGroups(self.transport)
        self._decoders: dict[str, FrameDecoder] = {}
        self._buffers: dict[str, AppendBuffer] = {}
        self._lock = threading.Lock()  # guards `_buffers`
        self._rotation = 0  # which partition is first in the next fetch

    # -- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Returns the names of all topics."""
        return [topic["name"] for topic in self.transport.json("GET", "/api/topics")["topics"]]

    def topic(self, name: str) -> Topic:
        """Returns a topic's definition under its newest type."""
        return self._cache_decoder(self.transport.json("GET", _topic_path(name))).topic

    def create(self, topic: Topic) -> Topic:
        """Create a topic, or update an existing one to this definition."""
        wanted = msgspec.json.decode(topic.to_json())
        del wanted["version"]
        wanted["invalid"] = topic.invalid
        wanted["schema"] = {"arrow": to_arrow_base64(topic.schema)}
        stored = {option: name for name, option in OPTION_NAMES.items()}
        wanted["given"] = sorted(stored.get(option, option) for option in topic.given)
        try:
            return self._cache_decoder(self.transport.json("POST", "/api/topics", document=wanted)).topic
        except RefusedError as error:
            error.location = error.location or topic.location
            raise

    def delete(self, name: str) -> None:
        """Delete a topic; the node refuses it while something uses the topic."""
        self.delete_topic(name)

    def delete_topic(self, name: str, *, dry_run: bool = False) -> Any:
        """Delete a topic, or only look; returns the node's document about what goes."""
        self._decoders.pop(name, None)
        return self.transport.json("DELETE", _topic_path(name), params={"dry_run": str(dry_run).lower()})

    def size(self, name: str) -> int | None:
        """Returns the size of a topic in bytes."""
        found: int | None = self.delete_topic(name, dry_run=True)["size"]
        return found

    def side_topics(self, name: str) -> list[str]:
        """Returns none: a node keeps everything of a topic in its folder."""
        return []

    def _cache_decoder(self, document: dict[str, Any]) -> FrameDecoder:
        settings = {name: value for name, value in document.items() if name in _STORED_FIELDS}
        topic = Topic.from_json(msgspec.json.encode(settings), from_arrow_base64(document["schema"]["arrow"]))
        decoder = self._decoders.get(topic.name)
        if decoder is None or decoder.topic != topic:
            decoder = self._decoders[topic.name] = FrameDecoder(topic, partial(self._load_schema, topic.name))
        return decoder

    def _load_schema(self, name: str, version: int) -> pa.Schema:
        found = self.transport.json("GET", f"{_topic_path(name)}/schema", params={"version": version})
        return from_arrow_base64(found["arrow"])

    def _decoder(self, name: str, version: int) -> FrameDecoder:
        """Returns the cached decoder if its type has at least this version; otherwise loads the newest type."""
        decoder = self._decoders.get(name)
        if decoder is None or decoder.topic.version < version:
            decoder = self._cache_decoder(self.transport.json("GET", _topic_path(name)))
        return decoder

    def _codec_of(self, name: str, version: int) -> Codec:
        return self._decoder(name, version).codec_of(version)

    # -- append --------------------------------------------------------------------------------------------------

    def append(self, name: str, batch: WriteBatch) -> Receipts:
        """Append rows and wait for the acknowledgement; batches of several threads are sent in parallel."""
        return self._post(name, batch, pack_batch(batch))

    def append_one(self, name: str, event: PendingEvent) -> Receipt:
        """Append one event and wait for the acknowledgement.

        Each call is a request of its own, so that the node applies the topic's overload policy to each caller.
        """
        return self.append(name, coalesce(partial(self._codec_of, name), [event]))[0]

    def begin_append(self, name: str, event: PendingEvent) -> PendingAppend:
        """Put one event into the append buffer and return at once; `await_append` waits for it."""
        return self._buffer(name).begin_append(PendingAppend(event, 1))

    def await_append(self, name: str, pending: PendingAppend) -> Receipt:
        """Wait for an event passed to `begin_append`."""
        self._buffer(name).await_append(pending)
        receipt: Receipt = pending.outcome
        return receipt

    def _buffer(self, name: str) -> AppendBuffer:
        with self._lock:
            if name not in self._buffers:
                # The node applies the topic's overload policy and counts; here, callers wait while the buffer is full.
                commit = partial(self._commit, name)
                self._buffers[name] = AppendBuffer(commit, Overload(), count=lambda counts: None)
            return self._buffers[name]

    def _commit(self, name: str, appends: list[PendingAppend]) -> None:
        try:
            for run in group_by_producer(appends):
                write_run(run, partial(self._send, name))
        except UnreachableError as error:
            # Fail all later events, too: each would wait as long for a node that does not answer.
            for append in appends:
                if append.outcome is None:
                    append.error = append.error or error

    def _send(self, name: str, run: Run) -> None:
        """Send the events of a run in one request; raises if they must be sent in smaller ones."""
        try:
            batch = coalesce(partial(self._codec_of, name), [rows for _, rows in run])
            body = pack_batch(batch)
            if len(run) > 1 and (len(run) > _MAX_EVENTS_PER_REQUEST or len(body) > _MAX_REQUEST_BYTES):
                raise TooLargeError("the events do not fit into one request")
            receipts = self._post(name, batch, body)
        except (BadEventError, BadKeyError, TooLargeError, UnreachableError):
            raise
        except (HeadwaterError, OSError, ValueError) as error:
            for append, _ in run:
                append.error = error
        else:
            for (append, _), receipt in zip(run, receipts, strict=True):
                append.outcome = receipt

    def _post(self, name: str, batch: WriteBatch, body: bytes, diverted_from: str | None = None) -> Receipts:
        """Send a packed batch; a request whose response was lost is repeated only if the batch has a producer."""
        params = {"previous": batch.previous, "diverted_from": diverted_from}
        answer = self.transport.call(
            "POST",
            f"{_topic_path(name)}/frames",
            content=body,
            media=FRAMES_MEDIA_TYPE,
            params={name: value for name, value in params.items() if value is not None},
            repeatable=bool(batch.producer),
        )
        return unpack_receipts(name, answer.content)

    def divert(self, name: str, batch: WriteBatch) -> Receipts:
        """Append rows to the topic of a topic's invalid events; the node counts them as diverted."""
        target = invalid_topic_of(self.topic(name))
        return self._post(target, batch, pack_batch(batch), diverted_from=name)

    def complete(self, name: str) -> int:
        """Advance the event time of a topic to the present and return it, in microseconds since 1970."""
        return int(self.transport.json("PUT", f"{_topic_path(name)}/complete")["event_time"])

    def last_sequences(self, name: str, producer: str) -> list[int]:
        """Returns the highest sequence number of a producer per partition; -1 where it has none."""
        found = self.transport.json("GET", f"{_topic_path(name)}/sequences", params={"producer": producer})
        sequences: list[int] = found["sequences"]
        return sequences

    def counts(self, name: str) -> dict[str, int]:
        """Returns the append counters of the topic, summed over all processes."""
        counts: dict[str, int] = self.transport.json("GET", f"{_topic_path(name)}/counts")["counts"]
        return counts

    # -- read ----------------------------------------------------------------------------------------------------

    def ends(self, name: str) -> list[PartitionRange]:
        """Returns what each partition holds now."""
        found = self.transport.json("GET", f"{_topic_path(name)}/ends")["partitions"]
        return [PartitionRange(**held) for held in found]

    def tombstone_horizons(self, name: str) -> list[TombstoneHorizon]:
        """Returns which tombstones compaction has removed; partitions with none are left out."""
        found = self.transport.json("GET", f"{_topic_path(name)}/tombstones")["partitions"]
        return [TombstoneHorizon(**removed) for removed in found]

    def count_events(self, name: str, starts: Mapping[int, int] | None = None) -> dict[int, int]:
        """Returns the number of events in each partition, from an offset on; idle markers are not events."""
        positions = None if starts is None else ",".join(f"{number}:{start}" for number, start in starts.items())
        params: dict[str, str | int | float] = {} if positions is None else {"positions": positions}
        found = self.transport.json("GET", f"{_topic_path(name)}/events/count", params=params)["partitions"]
        return {int(number): count for number, count in found.items()}

    def find_offset(self, name: str, partition: int, start: Start) -> int:
        """Returns the offset to start from."""
        params: dict[str, str | int | float] = {"partition": partition, "start": format_start(start)}
        return int(self.transport.json("GET", f"{_topic_path(name)}/find", params=params)["offset"])

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
            answer = self.transport.call("POST", f"{_topic_path(name)}/fetch", document=wanted, wait=wait)
            if answer.content:
                self._rotation += len(answer.content) >= _LARGE_RESPONSE
                return [
                    self._decoder(name, frame.schema).decode(partition, frame, data).from_offset(positions[partition])
                    for partition, frame, data in unpack_frames(answer.content)
                ]
            if _GROUP_CHANGED in answer.headers and group is not None:
                self.groups.notify_changed(group, name)
                return []
            if time.monotonic() >= deadline:
                return []

    def _rotate(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Put another partition first after a large response: responses are bounded, and no partition may starve."""
        pairs = list(positions.items())
        at = self._rotation % len(pairs) if pairs else 0
        return dict(pairs[at:] + pairs[:at])

    def watch(self, name: str, group: str | None = None) -> HttpTopicWaiter:
        """Returns a waiter for appends to a topic and, with `group`, for changes of that group."""
        return HttpTopicWaiter(self.transport, check_name(name), group)

    def close(self) -> None:
        """Send the remaining events and close all connections."""
        with self._lock:
            buffers, self._buffers = list(self._buffers.values()), {}
        for buffer in buffers:
            buffer.close()
        self.groups.close()
        self.transport.close()

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
