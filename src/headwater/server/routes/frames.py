"""Routes of Headwater's own clients: typed rows and stored frames, in the binary format of the log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from fastapi import Request, Response

from headwater.errors import (
    BadEventError,
    BadKeyError,
    BadOffsetError,
    DataGoneError,
    DiskFullError,
    OverloadedError,
    SequenceGapError,
    TooLargeError,
    UnknownTopicError,
    UsageError,
)
from headwater.events import Codec
from headwater.events.envelope import Receipts
from headwater.log.open_topic import OpenTopic
from headwater.log.topic import deleted_topic_error
from headwater.log.wire import FRAMES_MEDIA_TYPE, RECEIPTS_MEDIA_TYPE, pack_frames, pack_receipts, unpack_batch
from headwater.server.middleware import media_type
from headwater.server.problems import http_problem
from headwater.server.routes.openapi import Route, Routes, body, parse_query
from headwater.server.serializers.documents import FetchRequest
from headwater.server.serializers.requests import parse_previous

__all__ = ["GROUP_CHANGED", "FrameRoutes"]

GROUP_CHANGED: Final = "headwater-group-changed"
_MAX_PARTITION_BYTES: Final = 16 << 20
_MAX_BYTES: Final = 32 << 20  # approximate bytes of one response
_APPEND_QUERY: Final = {
    "previous": "The sequence that the producer sent to the partition before; -1 if none",
    "diverted_from": "The topic to which these events were sent; they do not match its type, and it counts them",
}


class FrameRoutes(Routes):
    """Appends and fetches frames of the log."""

    tag = "frames"

    @Route(
        "POST",
        "/api/topics/{name}/frames",
        "Append typed rows as one frame",
        body(None, RECEIPTS_MEDIA_TYPE),
        (
            UnknownTopicError,
            BadEventError,
            BadKeyError,
            TooLargeError,
            SequenceGapError,
            OverloadedError,
            DiskFullError,
        ),
        request_body=body(None, FRAMES_MEDIA_TYPE),
        query=_APPEND_QUERY,
    )
    async def append(self, request: Request) -> Response:
        """With a producer and sequence in the frame's header, a repeated send is recognised and not appended again.

        With `previous`, the frame is refused if that is not the producer's last sequence in the partition.
        """
        if media_type(request) != FRAMES_MEDIA_TYPE:
            what = f"a body of {media_type(request) or 'no media type'} is not a frame"
            raise http_problem(415, what, detail=f"the media type must be {FRAMES_MEDIA_TYPE}")
        async with self._gateway.bodies.read(request, self._gateway.limits.frames) as data:
            receipts = await self._threads.append(
                self._append, request.path_params["name"], data, parse_query(request, _APPEND_QUERY)
            )
        return Response(pack_receipts(receipts), media_type=RECEIPTS_MEDIA_TYPE)

    def _append(self, name: str, data: bytes, query: Mapping[str, str]) -> Receipts:
        topic = self._log.open_topic(name)
        rows = unpack_batch(data, lambda version: _codec_for(topic, version))
        rows = replace(rows, previous=parse_previous(query.get("previous")))
        if rows.partition is not None:
            _check_partition(topic, rows.partition)
        elif rows.producer and len(topic.partitions) > 1:
            what = "a frame of a producer must name its partition"
            raise BadEventError(what, detail="sequences are counted per partition; nothing was appended")
        source = query.get("diverted_from")
        if source is None:
            return self._log.append(name, rows)
        if self._log.topic(source).invalid != name:
            raise UsageError(f'invalid events of topic "{source}" do not go to "{name}"', parameter="diverted_from")
        return self._log.divert(source, rows)

    @Route(
        "POST",
        "/api/topics/{name}/fetch",
        "Fetch stored frames from offsets on, now or when there are some",
        body(None, FRAMES_MEDIA_TYPE),
        (UnknownTopicError, BadOffsetError, DataGoneError),
        request_body=body(FetchRequest),
        query={},
    )
    async def fetch(self, request: Request) -> Response:
        """Returns at least one frame of each partition that has any, up to a size limit for all.

        A change of `group` ends the wait, too. The response then has the header headwater-group-changed.
        """
        wanted = await self._gateway.bodies.read_json(request, FetchRequest)
        name = request.path_params["name"]
        left = self._gateway.cap_wait(wanted.wait)
        if not left:
            return _frames_response(await self._threads.read(self._read_frames, name, wanted))
        return await self._fetch_waiting(name, wanted, time.monotonic() + left)

    async def _fetch_waiting(self, name: str, wanted: FetchRequest, deadline: float) -> Response:
        notifier = self._notifier
        with ExitStack() as stack:
            subscriptions = [stack.enter_context(await notifier.watch_topic(name))]
            if wanted.group is not None:
                subscriptions.append(stack.enter_context(await notifier.watch_group(wanted.group, name)))
            changes = [watch.next_change for watch in subscriptions]
            while True:
                # Only the topic's future is taken anew: a change of the group ends the wait whenever it came.
                changes[0] = subscriptions[0].next_change
                found = await self._threads.read(self._read_frames, name, wanted)
                left = deadline - time.monotonic()
                if found or left <= 0 or not await notifier.wait(*changes, timeout=left):
                    return _frames_response(found)
                if any(change.done() for change in changes[1:]):
                    return _frames_response(b"", group_changed=True)

    def _read_frames(self, name: str, wanted: FetchRequest) -> bytes:
        topic = self._log.open_topic(name)
        most = max(1, min(wanted.max_bytes, _MAX_PARTITION_BYTES))
        found: list[bytes] = []
        size = 0
        for partition, offset in wanted.positions.items():
            _check_partition(topic, partition)
            if size >= _MAX_BYTES:
                break
            frames = topic.partitions[partition].fetch(offset, most)
            if frames:
                found.append(pack_frames(partition, frames))
                size += len(found[-1])
        return b"".join(found)


def _frames_response(data: bytes, *, group_changed: bool = False) -> Response:
    headers: Mapping[str, str] = {GROUP_CHANGED: "true"} if group_changed else {}
    return Response(data, headers=headers, media_type=FRAMES_MEDIA_TYPE)


def _codec_for(topic: OpenTopic, version: int) -> Codec:
    if version > topic.definition.version:
        topic.reload()
    if 0 < version < topic.definition.first_version:
        raise deleted_topic_error(topic.definition.name, replaced=True)
    if not 1 <= version <= topic.definition.version:
        what = f'topic "{topic.definition.name}" has no schema {version}'
        raise BadEventError(what, detail=f"it has 1 to {topic.definition.version}")
    return topic.codec_of(version)


def _check_partition(topic: OpenTopic, partition: int) -> None:
    if not 0 <= partition < len(topic.partitions):
        what = f'topic "{topic.definition.name}" has no partition {partition}'
        raise BadOffsetError(what, detail=f"it has {len(topic.partitions)}", partition=partition)
