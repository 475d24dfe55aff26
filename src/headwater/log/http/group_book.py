"""Consumer groups over HTTP: a thread for each group says that its members live, and hears when the group changes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from headwater.errors import HeadwaterError, UnreachableError
from headwater.events.values import moment_text
from headwater.log.definition import check_name
from headwater.log.event_log import Start
from headwater.log.groups import GroupState, Membership
from headwater.log.http.transport import Transport

__all__ = ["HttpGroups", "start_text"]

_BEAT: Final = 10.0  # seconds between two signs of life; a third of the node's session
_PAUSE: Final = 0.5  # seconds after one that failed


def start_text(start: Start) -> str:
    """A start as a query says it."""
    return moment_text(start) if isinstance(start, datetime) else str(start)


class GroupWaiter:
    """Changes of one group, heard by the pulse that all members and waiters of this process share."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._changed = threading.Event()
        pulse.waiters.append(self)

    def notify(self) -> None:
        """The group changed."""
        self._changed.set()

    def wait(self, timeout: float | None) -> bool:
        """True as soon as the group changed since the last wait."""
        changed = self._changed.wait(timeout)
        self._changed.clear()
        return changed

    def close(self) -> None:
        """Stop waiting."""
        if self in self._pulse.waiters:
            self._pulse.waiters.remove(self)
        self._pulse.end_if_unused()


class Pulse:
    """The thread of one group on one topic; ends when this process has neither members nor waiters there."""

    def __init__(self, transport: Transport, path: str) -> None:
        self.members: list[str] = []
        self.waiters: list[GroupWaiter] = []
        self.ended = False
        self._transport = transport
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-pulse", daemon=True)

    def begin(self) -> None:
        """Start beating."""
        self._thread.start()

    def tell(self) -> None:
        """Wake whoever waits for a change."""
        for waiter in list(self.waiters):
            waiter.notify()

    def end_if_unused(self) -> None:
        """Stop when nobody is left."""
        if not self.members and not self.waiters:
            self.end()

    def end(self) -> None:
        """Stop; a request under way is left alone."""
        self.ended = True
        self._stop.set()

    def _run(self) -> None:
        mark = None
        while not self._stop.is_set():
            try:
                wanted = {"members": list(self.members), "mark": mark, "wait": _BEAT}
                answer = self._transport.json("POST", f"{self._path}/changes", document=wanted, wait=_BEAT)
            except UnreachableError:
                self._stop.wait(_PAUSE)
            except HeadwaterError:
                self.tell()
                self._stop.wait(_PAUSE)
            else:
                mark = answer["mark"]
                if answer["changed"]:
                    self.tell()


class HttpGroups:
    """The groups of a node's log."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._pulses: dict[tuple[str, str], Pulse] = {}
        self._lock = threading.Lock()

    def join(
        self,
        group: str,
        topic: str,
        *,
        start: Start = "earliest",
        session: timedelta = timedelta(minutes=5),
    ) -> Membership:
        """Become a member. If this process dies, its partitions come free seconds later."""
        wanted = {"start": start_text(start), "session": session.total_seconds()}
        path = _path(group, topic)
        membership = self._read(self._transport.json("POST", f"{path}/members", document=wanted))
        self._pulse(group, topic, member=membership.member)
        return membership

    def sync(self, membership: Membership) -> Membership:
        """Stay a member; learn what is mine now."""
        wanted = {"generation": membership.generation}
        found = self._read(self._transport.json("POST", f"{_member(membership)}/sync", document=wanted))
        return membership if found.generation == membership.generation else found

    def commit(self, membership: Membership, offsets: Mapping[int, int]) -> None:
        """Everything below these offsets is done."""
        wanted = {"generation": membership.generation, "offsets": dict(offsets)}
        self._transport.call("POST", f"{_member(membership)}/commit", document=wanted)

    def leave(self, membership: Membership) -> None:
        """Give the partitions back."""
        pulse = self._pulses.get((membership.group, membership.topic))
        if pulse is not None and membership.member in pulse.members:
            pulse.members.remove(membership.member)
            pulse.end_if_unused()
        self._transport.call("DELETE", _member(membership))

    def states(self) -> list[GroupState]:
        """All groups."""
        return msgspec.convert(
            self._transport.json("GET", "/api/groups")["groups"], list[GroupState], strict=False
        )

    def state(self, group: str, topic: str) -> GroupState:
        """One group."""
        return msgspec.convert(self._transport.json("GET", _path(group, topic)), GroupState, strict=False)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set where a group goes on."""
        self._transport.call("POST", f"{_path(group, topic)}/offsets", document={"offsets": dict(offsets)})

    def watch(self, group: str, topic: str) -> GroupWaiter:
        """A wake-up for changes of a group."""
        return GroupWaiter(self._pulse(group, topic))

    def changed(self, group: str, topic: str) -> None:
        """Another answer said that the group changed."""
        pulse = self._pulses.get((group, topic))
        if pulse is not None:
            pulse.tell()

    def close(self) -> None:
        """End all pulses; the node gives the partitions of members that did not leave to others."""
        with self._lock:
            for pulse in self._pulses.values():
                pulse.end()
            self._pulses.clear()

    def _pulse(self, group: str, topic: str, member: str | None = None) -> Pulse:
        with self._lock:
            pulse = self._pulses.get((group, topic))
            fresh = pulse is None or pulse.ended
            if pulse is None or pulse.ended:
                pulse = self._pulses[group, topic] = Pulse(self._transport, _path(group, topic))
            if member is not None:
                pulse.members.append(member)
            if fresh:
                pulse.begin()
            return pulse

    @staticmethod
    def _read(document: Any) -> Membership:
        return msgspec.convert(document, Membership, strict=False)


def _path(group: str, topic: str) -> str:
    return f"/api/groups/{check_name(group, what='group')}/{check_name(topic)}"


def _member(membership: Membership) -> str:
    return f"{_path(membership.group, membership.topic)}/members/{membership.member}"
