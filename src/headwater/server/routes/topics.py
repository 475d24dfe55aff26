"""Routes of topics: list, create, definition, schemas, ends, counts."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request, Response
from msgspec import UNSET

from headwater.capture.capture_status import read_statuses
from headwater.client.deletion import Deletion, delete_topic
from headwater.errors import (
    BadNameError,
    BadOffsetError,
    BadSettingError,
    BadTimeError,
    BadTypeError,
    RefusedError,
    SchemaConflictError,
    TopicExistsError,
    UnknownTopicError,
)
from headwater.events import DeviceClock, to_ddl
from headwater.events.schema_export import from_arrow_base64, schema_document, to_json_schema
from headwater.log import Overload, PartitionRange, Retention, Topic
from headwater.log.tombstones import TombstoneHorizon
from headwater.log.topic import OPTION_NAMES, WhenFull
from headwater.server.gateway import json_response
from headwater.server.problems import http_problem
from headwater.server.routes.openapi import Route, Routes, body, list_of
from headwater.server.serializers import documents
from headwater.server.serializers.responses import parse_positions, parse_start
from headwater.units import duration, size

__all__ = ["TopicRoutes"]

ARROW_SCHEMA = "application/vnd.apache.arrow.schema"
DDL = "text/plain"
JSON_SCHEMA = "application/schema+json"
_PATH = "/api/topics/{name}"
_STALE = 10_000_000  # microseconds; a capture writes its status about once a second


class TopicRoutes(Routes):
    """Creates and describes topics."""

    tag = "topics"

    @Route("GET", "/api/topics", "List topics", list_of("topics", documents.TopicSummary))
    async def all(self) -> Response:
        """Returns all topics with the number of events they hold."""
        return json_response({"topics": await self._threads.read(self._read_summaries)})

    def _read_summaries(self) -> list[documents.TopicSummary]:
        summaries, captures = [], self._read_captures()
        for name in self._log.topics():
            held = self._log.ends(name)
            summaries.append(
                documents.TopicSummary(
                    name,
                    len(held),
                    sum(self._log.count_events(name).values()),
                    sum(part.end for part in held),
                    max(part.appended_at for part in held),
                    captures.get(name),
                )
            )
        return summaries

    def _read_captures(self) -> dict[str, documents.CaptureSummary]:
        """Returns the captures of tables, by topic."""
        now = self._log.clock.micros()
        found: dict[str, documents.CaptureSummary] = {}
        for status in read_statuses(self._log.folder):
            running = now - status.updated_at < _STALE or status.error is not None
            behind = round(status.lag, 1) if running and status.lag >= 0 else None
            summary = documents.CaptureSummary(status.name, status.state if running else "not running", behind)
            found |= {table.topic: summary for table in status.tables}
        return found

    @Route(
        "POST",
        "/api/topics",
        "Create a topic, or update it to a definition",
        body(documents.TopicDocument),
        (BadNameError, BadTypeError, SchemaConflictError, TopicExistsError),
        request_body=body(documents.NewTopic),
    )
    async def create(self, request: Request) -> Response:
        """An existing topic gets the given options and, if old events stay readable, the new type."""
        wanted = await self._gateway.bodies.read_json(request, documents.NewTopic)
        most = self._gateway.limits.partitions
        if wanted.partitions is not UNSET and wanted.partitions > most:
            what = f"{wanted.partitions} partitions are more than this node allows"
            raise BadSettingError(what, detail=f"a topic has at most {most}", limit=most)
        topic = await self._threads.append(lambda: self._log.create(topic_from_request(wanted)))
        return json_response(documents.topic_document(topic))

    @Route("GET", _PATH, "Get a topic's definition", body(documents.TopicDocument), (UnknownTopicError,))
    async def get(self, name: str) -> Response:
        """Returns the options and the newest type."""
        return json_response(documents.topic_document(await self._threads.read(self._log.topic, name)))

    @Route(
        "DELETE",
        _PATH,
        "Delete a topic, or see what would go",
        body(Deletion),
        (UnknownTopicError, RefusedError),
    )
    async def delete(self, name: str, dry_run: bool = False) -> Response:
        """Refused while a running pipeline or bridge reads it, and while a pipeline that exists writes it.

        With `dry_run`, nothing is deleted, and `refused` in the response says why it would be.
        """
        call = partial(delete_topic, self._log, self._views, self._log.folder, name, dry_run=dry_run)
        return json_response(await self._threads.append(call))

    @Route(
        "GET",
        f"{_PATH}/schema",
        "Get a topic's type, the newest or of a version",
        body(documents.SchemaDocument) | body(None, JSON_SCHEMA) | body(None, ARROW_SCHEMA) | body(None, DDL),
        (UnknownTopicError,),
    )
    async def schema(self, request: Request, name: str, version: int | None = None) -> Response:
        """The Accept header chooses JSON Schema, Spark DDL or an Arrow schema message; JSON, the default, has all."""
        topic = await self._threads.read(self._log.topic, name)
        number = topic.version if version is None else version
        if not topic.first_version <= number <= topic.version:
            detail = f"it has {topic.first_version} to {topic.version}"
            raise http_problem(404, f'topic "{name}" has no schema {number}', detail=detail)
        schema = (await self._threads.read(self._log.open_topic(name).codec_of, number)).schema
        accept = request.headers.get("accept", "")
        if ARROW_SCHEMA in accept:
            return Response(schema.serialize().to_pybytes(), media_type=ARROW_SCHEMA)
        if DDL in accept:
            return Response(to_ddl(schema), media_type=DDL)
        if JSON_SCHEMA in accept:
            return Response(msgspec.json.encode(to_json_schema(schema, name)), media_type=JSON_SCHEMA)
        return json_response(schema_document(schema, number, name))

    @Route(
        "GET",
        f"{_PATH}/ends",
        "Get the offset range of each partition, now or after a change",
        list_of("partitions", PartitionRange),
        (UnknownTopicError,),
    )
    async def ends(self, name: str, known: str | None = None, wait: Annotated[float, Query(ge=0)] = 0) -> Response:
        """With `known`, such as 0:13,1:7, waits up to `wait` seconds until an end differs from it."""
        if known is None or not wait:
            return json_response({"partitions": await self._threads.read(self._log.ends, name)})
        expected = parse_positions(known)
        with await self._notifier.watch_topic(name) as subscription:
            deadline = time.monotonic() + self._gateway.cap_wait(wait)
            while True:
                change = subscription.next_change
                held = await self._threads.read(self._log.ends, name)
                left = deadline - time.monotonic()
                same = all(part.end == expected.get(part.partition, part.end) for part in held)
                if not same or left <= 0 or not await self._notifier.wait(change, timeout=left):
                    return json_response({"partitions": held})

    @Route(
        "GET",
        f"{_PATH}/tombstones",
        "Get the offsets up to which compaction has removed tombstones",
        list_of("partitions", TombstoneHorizon),
        (UnknownTopicError,),
    )
    async def tombstones(self, name: str) -> Response:
        """Partitions without removed tombstones are left out."""
        return json_response({"partitions": await self._threads.read(self._log.tombstone_horizons, name)})

    @Route(
        "GET",
        f"{_PATH}/find",
        "Find the offset of a start in a partition",
        body(documents.OffsetDocument),
        (UnknownTopicError, BadOffsetError, BadTimeError),
    )
    async def find(self, name: str, partition: int = 0, start: str = "earliest") -> Response:
        """`start` is "earliest", "latest", an offset, or a time such as 2026-01-01T00:00:00Z or -10m."""
        offset = await self._threads.read(self._log.find_offset, name, partition, parse_start(start))
        return json_response(documents.OffsetDocument(partition, offset))

    @Route(
        "PUT",
        f"{_PATH}/complete",
        "Say that the history of a topic is complete",
        body(documents.CompleteDocument),
        (UnknownTopicError, RefusedError),
    )
    async def complete(self, name: str) -> Response:
        """Advances the topic's event time to the present, in microseconds since 1970, so that its windows close."""
        return json_response(documents.CompleteDocument(name, await self._threads.append(self._log.complete, name)))

    @Route(
        "GET",
        f"{_PATH}/events/count",
        "Count the events of each partition, from an offset on",
        body(documents.EventCountDocument),
        (UnknownTopicError, BadOffsetError),
    )
    async def count(self, name: str, positions: str | None = None) -> Response:
        """`positions` are the first offsets, such as 0:13,1:7; without it, all events count. Idle markers do not."""
        starts = None if positions is None else parse_positions(positions)
        found = await self._threads.read(self._log.count_events, name, starts)
        return json_response(documents.EventCountDocument(name, {str(number): n for number, n in found.items()}))

    @Route(
        "GET",
        f"{_PATH}/counts",
        "Get the append counters of a topic",
        body(documents.CountsDocument),
        (UnknownTopicError,),
    )
    async def counts(self, name: str) -> Response:
        """The counters are sums over all processes: offered = appended + duplicate + refused + dropped."""
        return json_response(documents.CountsDocument(await self._threads.read(self._log.counts, name)))

    @Route(
        "GET",
        f"{_PATH}/sequences",
        "Get the highest sequence of a producer per partition",
        body(documents.SequencesDocument),
        (UnknownTopicError,),
    )
    async def sequences(self, name: str, producer: str) -> Response:
        """The sequence is -1 in partitions to which the producer has appended nothing."""
        found = await self._threads.read(self._log.last_sequences, name, producer)
        return json_response(documents.SequencesDocument(producer, found))


def topic_from_request(wanted: documents.NewTopic) -> Topic:
    """Returns the topic that a request describes, checked like one declared in Python."""
    schema = wanted.schema if isinstance(wanted.schema, str) else from_arrow_base64(wanted.schema.arrow)
    options: dict[str, Any] = {}
    for name in wanted.__struct_fields__:
        value = getattr(wanted, name)
        if value is not UNSET and name not in ("name", "schema", "given"):
            options[OPTION_NAMES.get(name, name)] = _parse_option(name, value)
    topic = Topic.declare(wanted.name, schema, **options)
    if wanted.given is UNSET:
        return topic
    given = frozenset(OPTION_NAMES.get(name, name) for name in wanted.given)
    return replace(topic, given=topic.given & given)


def _parse_option(name: str, value: Any) -> Any:
    if name in ("lateness", "idle", "ahead"):
        return _parse_duration(value)
    if isinstance(value, documents.DeviceClockDocument):
        return DeviceClock(value.column, value.sent, tuple(value.device), _parse_duration(value.limit))
    if isinstance(value, documents.RetentionDocument):
        return Retention(_parse_duration(value.time), None if value.size is None else size(value.size), value.force)
    if isinstance(value, documents.OverloadDocument):
        known = [policy.value for policy in WhenFull]
        if value.when_full not in known:
            what = f"unknown overload policy {value.when_full!r}"
            raise BadSettingError(what, detail=f"policies: {', '.join(known)}")
        return Overload(WhenFull(value.when_full), value.events, _parse_duration(value.timeout), value.one_in)
    return value


def _parse_duration(value: float | str | None) -> timedelta | None:
    """Returns a duration given in seconds or as text such as "10 minutes"."""
    return None if value is None else duration(value if isinstance(value, str) else f"{value:f} s")
