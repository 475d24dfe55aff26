"""Consumer groups: who reads what, how far they are, how far behind; join, sync, commit, leave, reset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from headwater.client.progress import Lag, lag_of, reset_group
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
from headwater.server.edge.bodies import as_json
from headwater.server.forms.documents import (
    Changes,
    ChangesWanted,
    CommitWanted,
    JoinWanted,
    LagDocument,
    MoveDocument,
    ResetWanted,
)
from headwater.server.forms.formats import start_of
from headwater.server.gateway import Gateway, json_answer
from headwater.server.routes.openapi import Address, body, listed, router_of
from headwater.server.wakes import Watch

__all__ = ["routes"]

R = TypeVar("R")
_LONGEST_SESSION = 86_400.0  # seconds


_ONE = "/api/groups/{group}/{topic}"
_ADDRESSES = (
    Address("GET", "/api/groups", "states", "List groups", listed("groups", GroupState)),
    Address(
        "GET",
        "/api/lag",
        "lag",
        "How far groups are behind",
        listed("lag", LagDocument),
        (UnknownGroupError,),
    ),
    Address("GET", _ONE, "state", "A group on a topic", body(GroupState), (UnknownGroupError,)),
    Address(
        "POST",
        f"{_ONE}/members",
        "join",
        "Join a group",
        body(Membership),
        (UnknownTopicError,),
        takes=body(JoinWanted),
    ),
    Address(
        "POST",
        f"{_ONE}/members/{{member}}/sync",
        "sync",
        "Stay a member, and learn what is mine now",
        body(Membership),
        (UnknownGroupError, FencedError),
        takes=body(CommitWanted),
    ),
    Address(
        "POST",
        f"{_ONE}/members/{{member}}/commit",
        "commit",
        "Say that everything below these offsets is done",
        errors=(UnknownGroupError, FencedError, BadOffsetError),
        takes=body(CommitWanted),
        status=204,
    ),
    Address(
        "DELETE",
        f"{_ONE}/members/{{member}}",
        "leave",
        "Leave a group",
        errors=(UnknownGroupError,),
        status=204,
    ),
    Address(
        "POST",
        f"{_ONE}/changes",
        "changes",
        "Keep members alive, and wait for a change of the group",
        body(Changes),
        (UnknownGroupError,),
        takes=body(ChangesWanted),
    ),
    Address(
        "POST",
        f"{_ONE}/offsets",
        "reset",
        "Set where a group goes on",
        listed("moves", MoveDocument),
        (UnknownTopicError, RefusedError, BadOffsetError),
        takes=body(ResetWanted),
    ),
)


def routes(gateway: Gateway) -> APIRouter:
    """The routes of groups."""
    return router_of(_Groups(gateway), "groups", _ADDRESSES)


class _Groups:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._log = gateway.log
        self._book = gateway.log.groups
        self._threads = gateway.threads

    async def states(self) -> Response:
        """All groups on all topics: owners and committed offsets per partition."""
        return json_answer({"groups": await self._threads.read(self._book.states)})

    async def state(self, group: str, topic: str) -> Response:
        """Owners and committed offsets per partition."""
        return json_answer(await self._threads.read(self._book.state, group, topic))

    async def lag(self, group: str | None = None) -> Response:
        """Per partition: events not read, and how long the oldest of them has waited."""
        lags = await self._threads.read(self._lags, group)
        return json_answer({"lag": [_lag_document(lag) for lag in lags]})

    def _lags(self, group: str | None) -> list[Lag]:
        states = [state for state in self._book.states() if group in (None, state.group)]
        if group is not None and not states:
            raise UnknownGroupError(f'no group "{group[:100]}"', group=group[:100])
        return [lag for state in states for lag in lag_of(self._log, self._log.clock, state)]

    async def join(self, request: Request, group: str, topic: str) -> Response:
        """The answer has the member's id, the group's generation, and the partitions with their next offsets."""
        async with self._gateway.bodies.of(request) as data:
            wanted = as_json(data, JoinWanted)
        if not 0 < wanted.session <= _LONGEST_SESSION:
            what = f"a session of {wanted.session} seconds cannot be"
            raise BadSettingError(what, detail=f"more than 0, up to {_LONGEST_SESSION:g}")
        membership = await self._threads.read(
            self._book.join,
            group,
            topic,
            start=start_of(str(wanted.start)),
            session=timedelta(seconds=wanted.session),
        )
        self._gateway.members.joined(membership)
        return json_answer(membership)

    async def sync(self, request: Request, group: str, topic: str, member: str) -> Response:
        """With an unchanged generation the answer has no positions: what the member knows still holds."""
        spoken, _ = await self._spoken(request, group, topic, member)
        return json_answer(await self._of_member(self._book.sync, spoken))

    async def commit(self, request: Request, group: str, topic: str, member: str) -> Response:
        """None of the offsets is taken if one of the partitions belongs to another member by now."""
        spoken, offsets = await self._spoken(request, group, topic, member)
        await self._threads.read(self._check_offsets, topic, offsets)
        await self._of_member(self._book.commit, spoken, offsets)
        return Response(status_code=204)

    async def leave(self, group: str, topic: str, member: str) -> Response:
        """Its partitions go to the others at once."""
        self._gateway.members.left(member)
        await self._of_member(self._book.leave, Membership(group, topic, member, 0, {}))
        return Response(status_code=204)

    async def _spoken(
        self, request: Request, group: str, topic: str, member: str
    ) -> tuple[Membership, dict[int, int]]:
        async with self._gateway.bodies.of(request) as data:
            wanted = as_json(data, CommitWanted)
        self._gateway.members.heard(member)
        return Membership(group, topic, member, wanted.generation, {}), wanted.offsets

    async def _of_member(self, call: Callable[..., R], spoken: Membership, *args: Any) -> R:
        try:
            return await self._threads.read(call, spoken, *args)
        except FileNotFoundError:
            what = f'no group "{spoken.group}" on topic "{spoken.topic}"'
            raise UnknownGroupError(what, group=spoken.group) from None

    def _check_offsets(self, topic: str, offsets: dict[int, int]) -> None:
        ends = {held.partition: held.end for held in self._log.ends(topic)}
        for partition, offset in offsets.items():
            if not 0 <= offset <= ends.get(partition, -1):
                what = f"offset {offset} is outside partition {partition}"
                raise BadOffsetError(what, offset=offset, end=ends.get(partition), partition=partition)

    async def changes(self, request: Request, group: str, topic: str) -> Response:
        """Members whose connection breaks while they wait here lose their partitions soon after."""
        async with self._gateway.bodies.of(request) as data:
            wanted = as_json(data, ChangesWanted)
        await self._threads.read(self._book.state, group, topic)
        for member in wanted.members:
            self._gateway.members.heard(member)
        with await self._gateway.wakes.group(group, topic) as watch:
            if wanted.mark == watch.mark and await self._gone_while_waiting(request, watch, wanted.wait):
                for member in wanted.members:
                    self._gateway.members.lost(member)
            return json_answer(Changes(wanted.mark != watch.mark, watch.mark))

    async def _gone_while_waiting(self, request: Request, watch: Watch, wait: float) -> bool:
        """Wait for a change; True when the client's connection was lost instead."""
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait(
                {watch.next, gone, self._gateway.wakes.ending},
                timeout=self._gateway.waiting(wait),
                return_when=asyncio.FIRST_COMPLETED,
            )
            return gone.done()
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError):
                await gone

    async def reset(self, request: Request, group: str, topic: str) -> Response:
        """Only while none of the group's members is running; with `dry_run` it only says what would change."""
        async with self._gateway.bodies.of(request) as data:
            wanted = as_json(data, ResetWanted)
        if (wanted.to is None) == (wanted.offsets is None):
            raise UsageError(
                "say where the group is to go on", fix='{"to": "earliest"} or {"offsets": {"0": 0}}'
            )
        if wanted.offsets is not None:
            return await self._reset_each(group, topic, wanted.offsets, dry_run=wanted.dry_run)
        to = start_of(str(wanted.to))
        moves = await self._threads.append(reset_group, self._log, group, topic, to, dry_run=wanted.dry_run)
        return json_answer({"moves": [MoveDocument(move.partition, move.old, move.new) for move in moves]})

    async def _reset_each(
        self, group: str, topic: str, offsets: dict[int, int], *, dry_run: bool
    ) -> Response:
        await self._threads.read(self._check_offsets, topic, offsets)
        states = await self._threads.read(self._book.states)
        known = next((s.committed for s in states if (s.group, s.topic) == (group, topic)), {})
        if not dry_run:
            await self._threads.append(self._book.reset, group, topic, offsets)
        return json_answer({"moves": [MoveDocument(p, known.get(p), new) for p, new in offsets.items()]})


async def _gone(request: Request) -> None:
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
