"""Consumer groups over HTTP.

One thread per group and topic sends the heartbeats of this process's members; the responses report changes of
the group.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from headwater.errors import HeadwaterError, UnreachableError
from headwater.events.values import format_moment
from headwater.log.consumer_groups import GroupState, Membership
from headwater.log.event_log import Start
from headwater.log.http.transport import Transport
from headwater.log.topic import check_name

__all__ = ["HttpGroups", "format_start"]

_HEARTBEAT_INTERVAL: Final = 10.0  # seconds between two heartbeats; a third of the node's session timeout
_RETRY_PAUSE: Final = 0.5  # seconds after a failed heartbeat


def format_start(start: Start) -> str:
    """Returns a start position as a query parameter."""
    return format_moment(start) if isinstance(start, datetime) else str(start)


class HttpGroupWaiter:
    """Waits for changes of one group; all waiters of a process share one heartbeat thread."""

    def __init__(self, heartbeat: GroupHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._changed = threading.Event()
        heartbeat.waiters.append(self)

    def notify(self) -> None:
        """Report a change of the group."""
        self._changed.set()

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as the group changed since the last wait."""
        changed = self._changed.wait(timeout)
        self._changed.clear()
        return changed

    def close(self) -> None:
        """Stop waiting."""
        if self in self._heartbeat.waiters:
            self._heartbeat.waiters.remove(self)
        self._heartbeat.stop_if_unused()


class GroupHeartbeat:
    """The heartbeat thread of one group on one topic; ends when no member or waiter is left."""

    def __init__(self, transport: Transport, path: str) -> None:
        self.members: list[str] = []
        self.waiters: list[HttpGroupWaiter] = []
        self.stopped = threading.Event()
        self._transport = transport
        self._path = path
        self._thread = threading.Thread(target=self._run, name="headwater-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it runs already; its first request then includes the first member."""
        if self._thread.ident is None:
            self._thread.start()

    def notify(self) -> None:
        """Wake the waiters."""
        for waiter in list(self.waiters):
            waiter.notify()

    def stop_if_unused(self) -> None:
        """Stop when no member or waiter is left."""
        if not self.members and not self.waiters:
            self.stopped.set()

    def _run(self) -> None:
        mark = None
        while not self.stopped.is_set():
            try:
                wanted = {"members": list(self.members), "mark": mark, "wait": _HEARTBEAT_INTERVAL}
                answer = self._transport.json(
                    "POST", f"{self._path}/changes", document=wanted, wait=_HEARTBEAT_INTERVAL
                )
            except UnreachableError:
                self.stopped.wait(_RETRY_PAUSE)
            except HeadwaterError:
                self.notify()
                self.stopped.wait(_RETRY_PAUSE)
            else:
                mark = answer["mark"]  # the state of the group that this process knows
                if answer["changed"]:
                    self.notify()


class HttpGroups:
    """The groups of a node's log."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._heartbeats: dict[tuple[str, str], GroupHeartbeat] = {}  # by group and topic
        self._lock = threading.Lock()  # guards `_heartbeats`

    def join(
        self, group: str, topic: str, *, start: Start = "earliest", session: timedelta = timedelta(minutes=5)
    ) -> Membership:
        """Join a group. If this process dies, its partitions are released when the session times out on the node."""
        wanted = {"start": format_start(start), "session": session.total_seconds()}
        joined = self._transport.json("POST", f"{_group_path(group, topic)}/members", document=wanted)
        membership = msgspec.convert(joined, Membership, strict=False)
        self._ensure_heartbeat(group, topic, member=membership.member)
        return membership

    def sync(self, membership: Membership) -> Membership:
        """Send a heartbeat and return the partitions assigned now."""
        wanted = {"generation": membership.generation}
        synced = self._transport.json("POST", f"{_member_path(membership)}/sync", document=wanted)
        found = msgspec.convert(synced, Membership, strict=False)
        return membership if found.generation == membership.generation else found

    def commit(self, membership: Membership, offsets: Mapping[int, int]) -> None:
        """Commit offsets: all events below them are processed."""
        wanted = {"generation": membership.generation, "offsets": dict(offsets)}
        self._transport.call("POST", f"{_member_path(membership)}/commit", document=wanted)

    def leave(self, membership: Membership) -> None:
        """Leave the group and release its partitions."""
        heartbeat = self._heartbeats.get((membership.group, membership.topic))
        if heartbeat is not None and membership.member in heartbeat.members:
            heartbeat.members.remove(membership.member)
            heartbeat.stop_if_unused()
        self._transport.call("DELETE", _member_path(membership))

    def states(self) -> list[GroupState]:
        """Returns the state of all groups."""
        return msgspec.convert(self._transport.json("GET", "/api/groups")["groups"], list[GroupState], strict=False)

    def state(self, group: str, topic: str) -> GroupState:
        """Returns the state of one group."""
        return msgspec.convert(self._transport.json("GET", _group_path(group, topic)), GroupState, strict=False)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group."""
        self._transport.call("POST", f"{_group_path(group, topic)}/offsets", document={"offsets": dict(offsets)})

    def watch(self, group: str, topic: str) -> HttpGroupWaiter:
        """Returns a waiter for changes of a group."""
        return HttpGroupWaiter(self._ensure_heartbeat(group, topic))

    def notify_changed(self, group: str, topic: str) -> None:
        """Wake the waiters of a group after a fetch reported a change."""
        heartbeat = self._heartbeats.get((group, topic))
        if heartbeat is not None:
            heartbeat.notify()

    def close(self) -> None:
        """Stop all heartbeats; the node reassigns the partitions of members that did not leave."""
        with self._lock:
            for heartbeat in self._heartbeats.values():
                heartbeat.stopped.set()
            self._heartbeats.clear()

    def _ensure_heartbeat(self, group: str, topic: str, member: str | None = None) -> GroupHeartbeat:
        with self._lock:
            heartbeat = self._heartbeats.get((group, topic))
            if heartbeat is None or heartbeat.stopped.is_set():
                heartbeat = self._heartbeats[group, topic] = GroupHeartbeat(self._transport, _group_path(group, topic))
            if member is not None:
                heartbeat.members.append(member)
            heartbeat.start()
            return heartbeat


def _group_path(group: str, topic: str) -> str:
    return f"/api/groups/{check_name(group, what='group')}/{check_name(topic)}"


def _member_path(membership: Membership) -> str:
    return f"{_group_path(membership.group, membership.topic)}/members/{membership.member}"
