"""Routes of topics: list, create, definition, schemas, ends, counts."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from msgspec import UNSET

from headwater.errors import (
    BadNameError,
    BadOffsetError,
    BadSettingError,
    BadTimeError,
    BadTypeError,
    SchemaConflictError,
    TopicExistsError,
    UnknownTopicError,
)
from headwater.events import DeviceClock, to_ddl
from headwater.events.schema_export import from_arrow_base64, schema_document, to_json_schema
from headwater.log import Overload, Retention, Topic
from headwater.log.topic import OPTION_NAMES, WhenFull
from headwater.server.gateway import Gateway, json_response
from headwater.server.middleware import parse_json
from headwater.server.problems import http_problem
from headwater.server.routes.openapi import Route, body, list_of, router_of
from headwater.server.serializers.documents import (
    CountsDocument,
    DeviceClockDocument,
    EndsDocument,
    NewTopic,
    OffsetDocument,
    OverloadDocument,
    RetentionDocument,
    SchemaDocument,
    SequencesDocument,
    TopicDocument,
    TopicSummary,
    topic_document,
)
from headwater.server.serializers.responses import parse_positions, parse_start
from headwater.units import duration, size

__all__ = ["routes"]

ARROW_SCHEMA = "application/vnd.apache.arrow.schema"
DDL = "text/plain"
JSON_SCHEMA = "application/schema+json"


_TOPIC_PATH = "/api/topics/{name}"
_ROUTES = (
    Route("GET", "/api/topics", "all", "List topics", list_of("topics", TopicSummary)),
    Route(
        "POST",
        "/api/topics",
        "create",
        "Create a topic, or bring it up to a definition",
        body(TopicDocument),
        (BadNameError, BadTypeError, SchemaConflictError, TopicExistsError),
        request_body=body(NewTopic),
    ),
    Route("GET", _TOPIC_PATH, "get", "A topic's definition", body(TopicDocument), (UnknownTopicError,)),
    Route(
        "GET",
        f"{_TOPIC_PATH}/schema",
        "schema",
        "A topic's type, newest or at a version",
        body(SchemaDocument) | body(None, JSON_SCHEMA) | body(None, ARROW_SCHEMA) | body(None, DDL),
        (UnknownTopicError,),
    ),
    Route(
        "GET",
        f"{_TOPIC_PATH}/ends",
        "ends",
        "What each partition holds; may wait for a change",
        list_of("partitions", EndsDocument),
        (UnknownTopicError,),
    ),
    Route(
        "GET",
        f"{_TOPIC_PATH}/find",
        "find",
        "The offset of a start in a partition",
        body(OffsetDocument),
        (UnknownTopicError, BadOffsetError, BadTimeError),
    ),
    Route(
        "GET",
        f"{_TOPIC_PATH}/counts",
        "counts",
        "Append counters of the topic",
        body(CountsDocument),
        (UnknownTopicError,),
    ),
    Route(
        "GET",
        f"{_TOPIC_PATH}/sequences",
        "sequences",
        "Highest sequence of a producer per partition",
        body(SequencesDocument),
        (UnknownTopicError,),
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The routes of topics."""
    return router_of(_TopicRoutes(gateway), "topics", _ROUTES)


class _TopicRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._log = gateway.log
        self._threads = gateway.threads

    async def all(self) -> Response:
        """All topics, with how many offsets they hold."""
        return json_response({"topics": await self._threads.read(self._read_summaries)})

    def _read_summaries(self) -> list[TopicSummary]:
        summaries = []
        for name in self._log.topics():
            held = self._log.ends(name)
            summaries.append(
                TopicSummary(
                    name,
                    len(held),
                    sum(part.end - part.start for part in held),
                    sum(part.end for part in held),
                    max(part.appended_at for part in held),
                )
            )
        return summaries

    async def create(self, request: Request) -> Response:
        """Creates the topic; one that exists gets the given options and, if old events stay readable, the new type."""
        async with self._gateway.bodies.read(request) as data:
            wanted = parse_json(data, NewTopic)
            topic = await self._threads.append(self._create, wanted)
        return json_response(topic_document(topic))

    def _create(self, wanted: NewTopic) -> Topic:
        most = self._gateway.limits.partitions
        if wanted.partitions is not UNSET and wanted.partitions > most:
            what = f"{wanted.partitions} partitions are more than the node serves"
            raise BadSettingError(what, detail=f"up to {most}", limit=most)
        return self._log.create(topic_from_request(wanted))

    async def get(self, name: str) -> Response:
        """Settings and newest type."""
        return json_response(topic_document(await self._threads.read(self._log.topic, name)))

    async def schema(self, request: Request, name: str, version: int | None = None) -> Response:
        """As JSON with all forms; or, by the Accept header, JSON Schema, Spark DDL or an Arrow schema message."""
        topic = await self._threads.read(self._log.topic, name)
        number = topic.version if version is None else version
        if not 1 <= number <= topic.version:
            raise http_problem(404, f'topic "{name}" has no schema {number}', detail=f"it has 1 to {topic.version}")
        schema = (await self._threads.read(self._log.open_topic(name).codec_of, number)).schema
        accept = request.headers.get("accept", "")
        if ARROW_SCHEMA in accept:
            return Response(schema.serialize().to_pybytes(), media_type=ARROW_SCHEMA)
        if DDL in accept:
            return Response(to_ddl(schema), media_type=DDL)
        if JSON_SCHEMA in accept:
            answer = json_response(to_json_schema(schema, name))
            answer.headers["content-type"] = JSON_SCHEMA
            return answer
        return json_response(schema_document(schema, number, name))

    async def ends(self, name: str, known: str | None = None, wait: Annotated[float, Query(ge=0)] = 0) -> Response:
        """With `known`, such as 0:13,1:7, waits up to `wait` seconds until an end is another one."""
        if known is None or not wait:
            return json_response({"partitions": await self._threads.read(self._log.ends, name)})
        expected = parse_positions(known)
        with await self._gateway.notifier.watch_topic(name) as subscription:
            deadline = time.monotonic() + self._gateway.cap_wait(wait)
            while True:
                change = subscription.next_change
                held = await self._threads.read(self._log.ends, name)
                left = deadline - time.monotonic()
                same = all(part.end == expected.get(part.partition, part.end) for part in held)
                if not same or left <= 0 or not await self._gateway.notifier.wait(change, timeout=left):
                    return json_response({"partitions": held})

    async def find(self, name: str, partition: int = 0, start: str = "earliest") -> Response:
        """`start` is "earliest", "latest", an offset, or a time such as 2026-01-01T00:00:00Z or -10m."""
        offset = await self._threads.read(self._log.find_offset, name, partition, parse_start(start))
        return json_response(OffsetDocument(partition, offset))

    async def counts(self, name: str) -> Response:
        """Over all processes: offered = appended + duplicate + refused + dropped."""
        return json_response(CountsDocument(await self._threads.read(self._log.counts, name)))

    async def sequences(self, name: str, producer: str) -> Response:
        """-1 where the producer has appended nothing."""
        found = await self._threads.read(self._log.last_sequences, name, producer)
        return json_response(SequencesDocument(producer, found))


def topic_from_request(wanted: NewTopic) -> Topic:
    """The topic that a request describes, checked like one written in Python."""
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
    if isinstance(value, DeviceClockDocument):
        return DeviceClock(value.column, value.sent, tuple(value.device), _parse_duration(value.limit))
    if isinstance(value, RetentionDocument):
        return Retention(_parse_duration(value.time), None if value.size is None else size(value.size), value.force)
    if isinstance(value, OverloadDocument):
        known = [policy.value for policy in WhenFull]
        if value.when_full not in known:
            what = f"unknown overload policy {value.when_full!r}"
            raise BadSettingError(what, detail=f"it can be: {', '.join(known)}")
        return Overload(WhenFull(value.when_full), value.events, _parse_duration(value.timeout), value.one_in)
    return value


def _parse_duration(value: float | str | None) -> timedelta | None:
    """Seconds, or text such as "10 minutes"."""
    return None if value is None else duration(value if isinstance(value, str) else f"{value:f} s")
