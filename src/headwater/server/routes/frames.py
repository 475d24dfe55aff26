"""The path of our own clients: typed rows in, stored batches out, as the bytes of the log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from fastapi import APIRouter, Request, Response

from headwater.errors import (
    BadEventError,
    BadKeyError,
    BadOffsetError,
    DataGoneError,
    DiskFullError,
    OverloadedError,
    TooLargeError,
    UnknownTopicError,
)
from headwater.events import Codec
from headwater.log import Receipts, Rows
from headwater.log.topic import OpenTopic
from headwater.log.wire import FRAMES, RECEIPTS, pack_frames, pack_receipts, read_rows
from headwater.server.edge.bodies import as_json, media_type
from headwater.server.edge.problems import refused
from headwater.server.forms.documents import Fetch
from headwater.server.gateway import Gateway
from headwater.server.routes.openapi import Address, body, router_of

__all__ = ["GROUP_CHANGED", "routes"]

GROUP_CHANGED: Final = "headwater-group-changed"
_MOST_OF_A_PARTITION: Final = 16 << 20
_MOST: Final = 32 << 20  # bytes of one answer, about


_ADDRESSES: Final = (
    Address(
        "POST",
        "/api/topics/{name}/frames",
        "append",
        "Append typed rows as one frame",
        body(None, RECEIPTS),
        (UnknownTopicError, BadEventError, BadKeyError, TooLargeError, OverloadedError, DiskFullError),
        takes=body(None, FRAMES),
        query={},
    ),
    Address(
        "POST",
        "/api/topics/{name}/fetch",
        "fetch",
        "Fetch stored frames from offsets on; may wait for the first",
        body(None, FRAMES),
        (UnknownTopicError, BadOffsetError, DataGoneError),
        takes=body(Fetch),
        query={},
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The routes of frames."""
    return router_of(_Frames(gateway), "frames", _ADDRESSES)


class _Frames:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._log = gateway.log
        self._threads = gateway.threads

    async def append(self, request: Request) -> Response:
        """With a producer and sequence in the frame's header a repeated send is told apart and not written again."""
        if media_type(request) != FRAMES:
            raise refused(
                415, f"a body of {media_type(request) or 'no type'} is not a frame", detail=f"send {FRAMES}"
            )
        async with self._gateway.bodies.of(request, self._gateway.limits.frames) as data:
            name = request.path_params["name"]
            receipts = await self._threads.append(self._append, name, data)
        return Response(pack_receipts(receipts), media_type=RECEIPTS)

    def _append(self, name: str, data: bytes) -> Receipts:
        topic = self._log.opened(name)
        rows = read_rows(data, lambda version: _codec(topic, version))
        _check_place(topic, rows)
        return self._log.append(name, rows)

    async def fetch(self, request: Request) -> Response:
        """Frames of several partitions, at least one whole frame of each that has any, up to a bound for all.

        A change of `group` ends the wait, too; the answer then has the header headwater-group-changed.
        """
        async with self._gateway.bodies.of(request) as data:
            wanted = as_json(data, Fetch)
        name = request.path_params["name"]
        left = self._gateway.waiting(wanted.wait)
        if not left:
            return _answer(await self._threads.read(self._look, name, wanted))
        return await self._fetch_waiting(name, wanted, time.monotonic() + left)

    async def _fetch_waiting(self, name: str, wanted: Fetch, deadline: float) -> Response:
        wakes = self._gateway.wakes
        with ExitStack() as stack:
            watches = [stack.enter_context(await wakes.topic(name))]
            if wanted.group is not None:
                watches.append(stack.enter_context(await wakes.group(wanted.group, name)))
            changes = [watch.next for watch in watches]
            while True:
                changes[0] = watches[0].next
                found = await self._threads.read(self._look, name, wanted)
                left = deadline - time.monotonic()
                if found or left <= 0 or not await wakes.wait(*changes, timeout=left):
                    return _answer(found)
                if any(change.done() for change in changes[1:]):
                    return _answer(b"", group_changed=True)

    def _look(self, name: str, wanted: Fetch) -> bytes:
        topic = self._log.opened(name)
        most = max(1, min(wanted.max_bytes, _MOST_OF_A_PARTITION))
        found: list[bytes] = []
        size = 0
        for partition, offset in wanted.positions.items():
            _check_partition(topic, partition)
            if size >= _MOST:
                break
            frames = topic.fetch(partition, offset, most)
            if frames:
                found.append(pack_frames(partition, frames))
                size += len(found[-1])
        return b"".join(found)


def _answer(data: bytes, *, group_changed: bool = False) -> Response:
    headers: Mapping[str, str] = {GROUP_CHANGED: "true"} if group_changed else {}
    return Response(data, headers=headers, media_type=FRAMES)


def _codec(topic: OpenTopic, version: int) -> Codec:
    if version > topic.definition.version:
        topic.reload()
    if not 1 <= version <= topic.definition.version:
        what = f'topic "{topic.definition.name}" has no schema {version}'
        raise BadEventError(what, detail=f"it has 1 to {topic.definition.version}")
    return topic.codec_of(version)


def _check_place(topic: OpenTopic, rows: Rows) -> None:
    if rows.partition is not None:
        _check_partition(topic, rows.partition)
    elif rows.producer and len(topic.partitions) > 1:
        what = "rows of a producer name their partition"
        raise BadEventError(what, detail="its sequences are kept per partition; nothing was appended")


def _check_partition(topic: OpenTopic, partition: int) -> None:
    if not 0 <= partition < len(topic.partitions):
        what = f'topic "{topic.definition.name}" has no partition {partition}'
        raise BadOffsetError(what, detail=f"it has {len(topic.partitions)}", partition=partition)
