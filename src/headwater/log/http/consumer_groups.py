"""Consumer groups over HTTP.

One thread per group and topic sends the heartbeats of this process's members; the responses report changes of
the group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

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

    def __init__(self, release: Callable[[HttpGroupWaiter], None]) -> None:
        self.changed = threading.Event()
        self._release = release

    def wait(self, timeout: float | None) -> bool:
        """Returns True as soon as the group changed since the last wait."""
        changed = self.changed.wait(timeout)
        if changed:  # after a timeout there may be a change by now, which the next wait must see
            self.changed.clear()
        return changed

    def close(self) -> None:
        """Stop waiting."""
        self._release(self)


class GroupHeartbeat:
    """The heartbeat thread of one group on one topic; its users are ids of members, and waiters."""

    def __init__(self, transport: Transport, path: str, user: str | HttpGroupWaiter) -> None:
        self.users = [user]  # before the thread starts: the first request includes the first member
        self.stopped = threading.Event()
        self._transport = transport
        self._path = path
        threading.Thread(target=self._run, name="headwater-heartbeat", daemon=True).start()

    def notify(self) -> None:
        """Wake the waiters."""
        for user in list(self.users):
            if isinstance(user, HttpGroupWaiter):
                user.changed.set()

    def _run(self) -> None:
        mark = None
        while not self.stopped.is_set():
            try:
                members = [user for user in list(self.users) if isinstance(user, str)]
                wanted = {"members": members, "mark": mark, "wait": _HEARTBEAT_INTERVAL}
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
        # Guards `_heartbeats` and their users: a heartbeat whose last user goes must not get another one meanwhile.
        self._lock = threading.Lock()

    def join(
        self, group: str, topic: str, *, start: Start = "earliest", session: timedelta = timedelta(minutes=5)
    ) -> Membership:
        """Join a group. If this process dies, its partitions are released when the session times out on the node."""
        wanted = {"start": format_start(start), "session": session.total_seconds()}
        joined = self._transport.json("POST", f"{_group_path(group, topic)}/members", document=wanted)
        membership = msgspec.convert(joined, Membership, strict=False)
        self._add_user(group, topic, membership.member)
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
        self._remove_user(membership.group, membership.topic, membership.member)
        self._transport.call("DELETE", _member_path(membership))

    def states(self, topic: str | None = None) -> list[GroupState]:
        """Returns the state of all groups on all topics, or on one."""
        found = self._transport.json("GET", "/api/groups")["groups"]
        return [
            state for state in msgspec.convert(found, list[GroupState], strict=False) if topic in (None, state.topic)
        ]

    def state(self, group: str, topic: str) -> GroupState:
        """Returns the state of one group."""
        return msgspec.convert(self._transport.json("GET", _group_path(group, topic)), GroupState, strict=False)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group."""
        self._transport.call("POST", f"{_group_path(group, topic)}/offsets", document={"offsets": dict(offsets)})

    def report(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the committed offsets of a group without members."""
        self.reset(group, topic, offsets)

    def delete(self, group: str, topic: str | None = None) -> None:
        """Delete the committed offsets of a group on a topic, or on all."""
        self.delete_group(group, topic)

    def delete_group(self, group: str, topic: str | None = None, *, dry_run: bool = False) -> Any:
        """Delete a group on one topic or on all, or only look; returns the node's document about what goes."""
        path = f"/api/groups/{check_name(group, what='group')}" if topic is None else _group_path(group, topic)
        return self._transport.json("DELETE", path, params={"dry_run": str(dry_run).lower()})

    def watch(self, group: str, topic: str) -> HttpGroupWaiter:
        """Returns a waiter for changes of a group."""
        waiter = HttpGroupWaiter(partial(self._remove_user, group, topic))
        self._add_user(group, topic, waiter)
        return waiter

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

    def _add_user(self, group: str, topic: str, user: str | HttpGroupWaiter) -> None:
        with self._lock:
            heartbeat = self._heartbeats.get((group, topic))
            if heartbeat is None or heartbeat.stopped.is_set():
                path = _group_path(group, topic)
                self._heartbeats[group, topic] = GroupHeartbeat(self._transport, path, user)
            else:
                heartbeat.users.append(user)

    def _remove_user(self, group: str, topic: str, user: str | HttpGroupWaiter) -> None:
        with self._lock:
            heartbeat = self._heartbeats.get((group, topic))
            if heartbeat is not None and user in heartbeat.users:
                heartbeat.users.remove(user)
                if not heartbeat.users:
                    heartbeat.stopped.set()


def _group_path(group: str, topic: str) -> str:
    return f"/api/groups/{check_name(group, what='group')}/{check_name(topic)}"


def _member_path(membership: Membership) -> str:
    return f"{_group_path(membership.group, membership.topic)}/members/{membership.member}"
