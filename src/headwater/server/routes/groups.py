"""Routes of consumer groups: members, offsets and lag; join, sync, commit, leave, reset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from headwater.client.consumer import Lag, group_lag, reset_group
from headwater.errors import (
    BadOffsetError,
    BadSettingError,
    FencedError,
    RefusedError,
    UnknownGroupError,
    UnknownTopicError,
    UsageError,
)
from headwater.log import GroupState, Membership
from headwater.server.gateway import Gateway, json_response
from headwater.server.middleware import parse_json
from headwater.server.notifier import Subscription
from headwater.server.routes.openapi import Route, body, list_of, router_of
from headwater.server.serializers.documents import (
    CommitRequest,
    GroupChangeDocument,
    GroupChangeRequest,
    JoinRequest,
    LagDocument,
    OffsetResetDocument,
    ResetRequest,
)
from headwater.server.serializers.responses import parse_start

__all__ = ["routes"]

R = TypeVar("R")
_MAX_SESSION = 86_400.0  # seconds


_GROUP_PATH = "/api/groups/{group}/{topic}"
_ROUTES = (
    Route("GET", "/api/groups", "states", "List groups", list_of("groups", GroupState)),
    Route("GET", "/api/lag", "lag", "How far groups are behind", list_of("lag", LagDocument), (UnknownGroupError,)),
    Route("GET", _GROUP_PATH, "state", "A group on a topic", body(GroupState), (UnknownGroupError,)),
    Route(
        "POST",
        f"{_GROUP_PATH}/members",
        "join",
        "Join a group",
        body(Membership),
        (UnknownTopicError,),
        request_body=body(JoinRequest),
    ),
    Route(
        "POST",
        f"{_GROUP_PATH}/members/{{member}}/sync",
        "sync",
        "Stay a member, and learn what is mine now",
        body(Membership),
        (UnknownGroupError, FencedError),
        request_body=body(CommitRequest),
    ),
    Route(
        "POST",
        f"{_GROUP_PATH}/members/{{member}}/commit",
        "commit",
        "Say that everything below these offsets is done",
        errors=(UnknownGroupError, FencedError, BadOffsetError),
        request_body=body(CommitRequest),
        status=204,
    ),
    Route(
        "DELETE", f"{_GROUP_PATH}/members/{{member}}", "leave", "Leave a group", errors=(UnknownGroupError,), status=204
    ),
    Route(
        "POST",
        f"{_GROUP_PATH}/changes",
        "changes",
        "Keep members alive, and wait for a change of the group",
        body(GroupChangeDocument),
        (UnknownGroupError,),
        request_body=body(GroupChangeRequest),
    ),
    Route(
        "POST",
        f"{_GROUP_PATH}/offsets",
        "reset",
        "Set the committed offsets of a group",
        list_of("moves", OffsetResetDocument),
        (UnknownTopicError, RefusedError, BadOffsetError),
        request_body=body(ResetRequest),
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The routes of groups."""
    return router_of(_GroupRoutes(gateway), "groups", _ROUTES)


class _GroupRoutes:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._log = gateway.log
        self._groups = gateway.log.groups
        self._threads = gateway.threads

    async def states(self) -> Response:
        """All groups on all topics: owners and committed offsets per partition."""
        return json_response({"groups": await self._threads.read(self._groups.states)})

    async def state(self, group: str, topic: str) -> Response:
        """Owners and committed offsets per partition."""
        return json_response(await self._threads.read(self._groups.state, group, topic))

    async def lag(self, group: str | None = None) -> Response:
        """Per partition: events not read, and how long the oldest of them has waited."""
        lags = await self._threads.read(self._read_lags, group)
        return json_response({"lag": [_lag_document(lag) for lag in lags]})

    def _read_lags(self, group: str | None) -> list[Lag]:
        states = [state for state in self._groups.states() if group in (None, state.group)]
        if group is not None and not states:
            raise UnknownGroupError(f'no group "{group[:100]}"', group=group[:100])
        return [lag for state in states for lag in group_lag(self._log, self._log.clock, state)]

    async def join(self, request: Request, group: str, topic: str) -> Response:
        """The answer has the member's id, the group's generation, and the partitions with their next offsets."""
        async with self._gateway.bodies.read(request) as data:
            wanted = parse_json(data, JoinRequest)
        if not 0 < wanted.session <= _MAX_SESSION:
            what = f"a session of {wanted.session} seconds cannot be"
            raise BadSettingError(what, detail=f"more than 0, up to {_MAX_SESSION:g}")
        membership = await self._threads.read(
            self._groups.join,
            group,
            topic,
            start=parse_start(str(wanted.start)),
            session=timedelta(seconds=wanted.session),
        )
        self._gateway.sessions.add(membership)
        return json_response(membership)

    async def sync(self, request: Request, group: str, topic: str, member: str) -> Response:
        """With an unchanged generation the answer has no positions: what the member knows still holds."""
        membership, _ = await self._read_member(request, group, topic, member)
        return json_response(await self._call_as_member(self._groups.sync, membership))

    async def commit(self, request: Request, group: str, topic: str, member: str) -> Response:
        """None of the offsets is taken if one of the partitions belongs to another member by now."""
        membership, offsets = await self._read_member(request, group, topic, member)
        await self._threads.read(self._check_offsets, topic, offsets)
        await self._call_as_member(self._groups.commit, membership, offsets)
        return Response(status_code=204)

    async def leave(self, group: str, topic: str, member: str) -> Response:
        """Its partitions go to the others at once."""
        self._gateway.sessions.remove(member)
        await self._call_as_member(self._groups.leave, Membership(group, topic, member, 0, {}))
        return Response(status_code=204)

    async def _read_member(
        self, request: Request, group: str, topic: str, member: str
    ) -> tuple[Membership, dict[int, int]]:
        async with self._gateway.bodies.read(request) as data:
            wanted = parse_json(data, CommitRequest)
        self._gateway.sessions.renew(member)
        return Membership(group, topic, member, wanted.generation, {}), wanted.offsets

    async def _call_as_member(self, call: Callable[..., R], membership: Membership, *args: Any) -> R:
        try:
            return await self._threads.read(call, membership, *args)
        except FileNotFoundError:
            what = f'no group "{membership.group}" on topic "{membership.topic}"'
            raise UnknownGroupError(what, group=membership.group) from None

    def _check_offsets(self, topic: str, offsets: dict[int, int]) -> None:
        ends = {held.partition: held.end for held in self._log.ends(topic)}
        for partition, offset in offsets.items():
            if not 0 <= offset <= ends.get(partition, -1):
                what = f"offset {offset} is outside partition {partition}"
                raise BadOffsetError(what, offset=offset, end=ends.get(partition), partition=partition)

    async def changes(self, request: Request, group: str, topic: str) -> Response:
        """Members whose connection breaks while they wait here lose their partitions soon after."""
        async with self._gateway.bodies.read(request) as data:
            wanted = parse_json(data, GroupChangeRequest)
        await self._threads.read(self._groups.state, group, topic)
        for member in wanted.members:
            self._gateway.sessions.renew(member)
        with await self._gateway.notifier.watch_group(group, topic) as subscription:
            if wanted.mark == subscription.token and await self._wait_or_disconnect(request, subscription, wanted.wait):
                for member in wanted.members:
                    self._gateway.sessions.expire_soon(member)
            return json_response(GroupChangeDocument(wanted.mark != subscription.token, subscription.token))

    async def _wait_or_disconnect(self, request: Request, subscription: Subscription, wait: float) -> bool:
        """Wait for a change; True when the client's connection was lost instead."""
        disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait(
                {subscription.next_change, disconnect, self._gateway.notifier.stop_future},
                timeout=self._gateway.cap_wait(wait),
                return_when=asyncio.FIRST_COMPLETED,
            )
            return disconnect.done()
        finally:
            disconnect.cancel()
            with suppress(asyncio.CancelledError):
                await disconnect

    async def reset(self, request: Request, group: str, topic: str) -> Response:
        """Only while none of the group's members is running; with `dry_run` it only says what would change."""
        async with self._gateway.bodies.read(request) as data:
            wanted = parse_json(data, ResetRequest)
        if (wanted.to is None) == (wanted.offsets is None):
            raise UsageError("say where the group is to go on", fix='{"to": "earliest"} or {"offsets": {"0": 0}}')
        if wanted.offsets is not None:
            return await self._reset_offsets(group, topic, wanted.offsets, dry_run=wanted.dry_run)
        to = parse_start(str(wanted.to))
        moves = await self._threads.append(reset_group, self._log, group, topic, to, dry_run=wanted.dry_run)
        return json_response({"moves": [OffsetResetDocument(move.partition, move.old, move.new) for move in moves]})

    async def _reset_offsets(self, group: str, topic: str, offsets: dict[int, int], *, dry_run: bool) -> Response:
        await self._threads.read(self._check_offsets, topic, offsets)
        states = await self._threads.read(self._groups.states)
        known = next((s.committed for s in states if (s.group, s.topic) == (group, topic)), {})
        if not dry_run:
            await self._threads.append(self._groups.reset, group, topic, offsets)
        return json_response({"moves": [OffsetResetDocument(p, known.get(p), new) for p, new in offsets.items()]})


async def _wait_for_disconnect(request: Request) -> None:
    """Done when the client's connection is lost."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _lag_document(lag: Lag) -> LagDocument:
    return LagDocument(
        lag.group,
        lag.topic,
        lag.partition,
        lag.committed,
        lag.end,
        lag.events,
        lag.behind.total_seconds(),
        lag.gone,
        lag.owner,
    )
