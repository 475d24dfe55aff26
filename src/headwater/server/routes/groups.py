"""Routes of consumer groups: join, sync, commit, leave, reset; states and lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from fastapi import Request, Response

from headwater.client.consumer import OffsetReset, group_lags, refuse_pipeline_group, reset_group
from headwater.client.deletion import Deletion, delete_group
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
from headwater.server.notifier import Subscription
from headwater.server.routes.openapi import Route, Routes, body, list_of
from headwater.server.serializers import documents
from headwater.server.serializers.responses import parse_start

__all__ = ["GroupRoutes"]

R = TypeVar("R")
_MAX_SESSION = 86_400.0  # seconds
_PATH = "/api/groups/{group}/{topic}"


class GroupRoutes(Routes):
    """Serves consumer groups to remote members, and shows their offsets and lag."""

    tag = "groups"

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._groups = gateway.log.groups
        self._sessions = gateway.sessions

    @Route("GET", "/api/groups", "List groups", list_of("groups", GroupState))
    async def states(self) -> Response:
        """Returns the owners and committed offsets per partition, for all groups on all topics."""
        return json_response({"groups": await self._threads.read(self._groups.states)})

    @Route("GET", "/api/lag", "Get the lag of groups", list_of("lag", documents.LagDocument), (UnknownGroupError,))
    async def lag(self, group: str | None = None) -> Response:
        """Returns per partition the number of unread events, and how long the oldest of them has waited."""
        lags = await self._threads.read(group_lags, self._log, self._log.clock, group)
        rows = [vars(lag) | {"events": lag.events, "behind": lag.behind.total_seconds()} for lag in lags]
        return json_response({"lag": [documents.LagDocument(**row) for row in rows]})

    @Route("GET", _PATH, "Get a group on a topic", body(GroupState), (UnknownGroupError,))
    async def state(self, group: str, topic: str) -> Response:
        """Returns the owners and committed offsets per partition."""
        return json_response(await self._threads.read(self._groups.state, group, topic))

    @Route("DELETE", _PATH, "Delete a group on a topic", body(Deletion), (UnknownGroupError, RefusedError))
    async def delete_on_topic(self, group: str, topic: str, dry_run: bool = False) -> Response:
        """Its committed offsets go, so retention no longer waits for it. With `dry_run`, nothing is deleted."""
        return await self._delete(group, topic, dry_run=dry_run)

    @Route("DELETE", "/api/groups/{group}", "Delete a group", body(Deletion), (UnknownGroupError, RefusedError))
    async def delete(self, group: str, dry_run: bool = False) -> Response:
        """Refused while a member runs, and for the group of a pipeline of the running app.

        With `dry_run`, nothing is deleted, and `refused` in the response says why it would be.
        """
        return await self._delete(group, None, dry_run=dry_run)

    async def _delete(self, group: str, topic: str | None, *, dry_run: bool) -> Response:
        call = partial(delete_group, self._log, self._views, self._log.folder, group, topic, dry_run=dry_run)
        return json_response(await self._threads.append(call))

    @Route(
        "POST",
        f"{_PATH}/members",
        "Join a group",
        body(Membership),
        (UnknownTopicError, RefusedError),
        request_body=body(documents.JoinRequest),
    )
    async def join(self, request: Request, group: str, topic: str) -> Response:
        """Returns the member's id, the group's generation, and the assigned partitions with their next offsets."""
        refuse_pipeline_group(group)
        wanted = await self._gateway.bodies.read_json(request, documents.JoinRequest)
        if not 0 < wanted.session <= _MAX_SESSION:
            what = f"session timeout {wanted.session:g} is out of range (more than 0, up to {_MAX_SESSION:g} seconds)"
            raise BadSettingError(what)
        membership = await self._threads.read(
            self._groups.join,
            group,
            topic,
            start=parse_start(str(wanted.start)),
            session=timedelta(seconds=wanted.session),
        )
        self._sessions.add(membership)
        return json_response(membership)

    @Route(
        "POST",
        f"{_PATH}/members/{{member}}/sync",
        "Renew a membership, and get its assignment",
        body(Membership),
        (UnknownGroupError, FencedError),
        request_body=body(documents.CommitRequest),
    )
    async def sync(self, request: Request, group: str, topic: str, member: str) -> Response:
        """If the generation is unchanged, the assignment is too, and the response has no positions."""
        membership, _ = await self._read_member(request, group, topic, member)
        return json_response(await self._call_as_member(self._groups.sync, membership))

    @Route(
        "POST",
        f"{_PATH}/members/{{member}}/commit",
        "Commit offsets",
        errors=(UnknownGroupError, FencedError, BadOffsetError),
        request_body=body(documents.CommitRequest),
        status=204,
    )
    async def commit(self, request: Request, group: str, topic: str, member: str) -> Response:
        """Commits none of the offsets if one of the partitions belongs to another member by now."""
        membership, offsets = await self._read_member(request, group, topic, member)
        await self._threads.read(self._check_offsets, topic, offsets)
        await self._call_as_member(self._groups.commit, membership, offsets)
        return Response(status_code=204)

    @Route("DELETE", f"{_PATH}/members/{{member}}", "Leave a group", errors=(UnknownGroupError,), status=204)
    async def leave(self, group: str, topic: str, member: str) -> Response:
        """The member's partitions are assigned to other members at once."""
        self._sessions.remove(member)
        await self._call_as_member(self._groups.leave, Membership(group, topic, member, 0, {}))
        return Response(status_code=204)

    async def _read_member(
        self, request: Request, group: str, topic: str, member: str
    ) -> tuple[Membership, dict[int, int]]:
        wanted = await self._gateway.bodies.read_json(request, documents.CommitRequest)
        self._sessions.renew(member)
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

    @Route(
        "POST",
        f"{_PATH}/changes",
        "Keep members alive, and wait for a change of the group",
        body(documents.GroupChangeDocument),
        (UnknownGroupError,),
        request_body=body(documents.GroupChangeRequest),
    )
    async def changes(self, request: Request, group: str, topic: str) -> Response:
        """Members whose connection is lost during the wait lose their partitions soon after."""
        wanted = await self._gateway.bodies.read_json(request, documents.GroupChangeRequest)
        await self._threads.read(self._groups.state, group, topic)  # raises if there is no such group
        self._sessions.renew(*wanted.members)
        with await self._notifier.watch_group(group, topic) as subscription:
            if wanted.mark == subscription.token and await self._wait_or_disconnect(request, subscription, wanted.wait):
                self._sessions.expire_soon(*wanted.members)
            return json_response(documents.GroupChangeDocument(wanted.mark != subscription.token, subscription.token))

    async def _wait_or_disconnect(self, request: Request, subscription: Subscription, wait: float) -> bool:
        """Wait for a change; returns True if the client's connection was lost instead."""
        disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait(
                {subscription.next_change, disconnect, self._notifier.stop_future},
                timeout=self._gateway.cap_wait(wait),
                return_when=asyncio.FIRST_COMPLETED,
            )
            return disconnect.done()
        finally:
            disconnect.cancel()
            with suppress(asyncio.CancelledError):
                await disconnect

    @Route(
        "POST",
        f"{_PATH}/offsets",
        "Set the committed offsets of a group",
        list_of("moves", OffsetReset),
        (UnknownTopicError, RefusedError, BadOffsetError),
        request_body=body(documents.ResetRequest),
    )
    async def reset(self, request: Request, group: str, topic: str) -> Response:
        """Refused while a member is running, and for the group of a pipeline. `dry_run` returns what would change."""
        wanted = await self._gateway.bodies.read_json(request, documents.ResetRequest)
        if (wanted.to is None) == (wanted.offsets is None):
            raise UsageError("a reset needs either to or offsets", fix='{"to": "earliest"} or {"offsets": {"0": 0}}')
        to = parse_start(str(wanted.to)) if wanted.offsets is None else wanted.offsets
        if wanted.offsets is not None:
            await self._threads.read(self._check_offsets, topic, wanted.offsets)
        moves = await self._threads.append(reset_group, self._log, group, topic, to, dry_run=wanted.dry_run)
        return json_response({"moves": moves})


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the client's connection is lost."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
