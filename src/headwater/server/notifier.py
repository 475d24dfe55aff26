"""`Notifier`: wakes waiting requests on the event loop.

All requests that wait for the same topic, group or store share one watch.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from headwater.errors import EnvironmentFaultError, UnknownGroupError
from headwater.log import EventLog
from headwater.log.notifier import FileNotifier, PollableWaiter
from headwater.server.limits import ThreadLimits

__all__ = ["Notifier", "Subscription"]

_IDLE_TIMEOUT: Final = 30.0  # seconds after the last waiting request until the watch is closed
_POLL_INTERVAL: Final = 0.05  # seconds, where the operating system has no notifications


class Subscription:
    """Notifications of one topic, group or store.

    Take `next_change` first, then read, then wait for it: a change between the read and the wait is not lost.
    """

    def __init__(self, waiter: PollableWaiter, on_idle: Callable[[], None]) -> None:
        self.changes = 0
        self._name = os.urandom(6).hex()
        self._users = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._waiter = waiter
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._next_change: asyncio.Future[None] = self._loop.create_future()
        self._handle = waiter.fileno()
        self._timer: asyncio.TimerHandle | None = None
        if self._handle is None:
            self._timer = self._loop.call_later(_POLL_INTERVAL, self._poll)
        else:
            self._loop.add_reader(self._handle, self._on_readable)

    def __enter__(self) -> Subscription:
        self._users += 1
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users and not self._loop.is_closed():
            # Clients that poll come back soon. Keeping the watch saves them a thread and an inotify handle each time.
            self._idle_timer = self._loop.call_later(_IDLE_TIMEOUT, self._on_idle)

    @property
    def next_change(self) -> asyncio.Future[None]:
        """A future that is done at the next change."""
        return self._next_change

    @property
    def token(self) -> str:
        """A token that differs after each change, so that a client can detect changes between two requests."""
        return f"{self._name}-{self.changes}"

    def _on_readable(self) -> None:
        self._waiter.wait(0)
        self._notify()

    def _poll(self) -> None:
        self._notify()
        self._timer = self._loop.call_later(_POLL_INTERVAL, self._poll)

    def _notify(self) -> None:
        self.changes += 1
        # The new future comes first: a waiter that wakes up and takes `next_change` must not get the one that is done.
        change, self._next_change = self._next_change, self._loop.create_future()
        change.set_result(None)

    def is_current(self) -> bool:
        """Whether the watch is still on the files of the topic."""
        return not isinstance(self._waiter, FileNotifier) or self._waiter.is_current()

    def close(self) -> None:
        """Wake those who wait, and stop watching."""
        self._notify()
        if self._handle is not None:
            self._loop.remove_reader(self._handle)
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._waiter.close()


class Notifier:
    """All watches of the node. All methods run on the event loop, so there is no lock."""

    def __init__(self, log: EventLog, threads: ThreadLimits) -> None:
        self._log = log
        self._threads = threads
        self._subscriptions: dict[tuple[str, str | None], Subscription] = {}
        self._stop_future: asyncio.Future[None] | None = None

    async def watch_topic(self, name: str) -> Subscription:
        """Watch appends to a topic, inside a `with` block."""
        known = self._subscriptions.get((name, None))
        if known is not None and not known.is_current():  # the topic was deleted and created again
            self._unsubscribe((name, None), known)
        return await self._get((name, None), lambda: self._log.watch(name))

    async def watch_group(self, group: str, topic: str) -> Subscription:
        """Watch the members of a group on a topic, inside a `with` block."""
        return await self._get((topic, group), lambda: self._log.groups.watch(group, topic))

    async def watch_store(self, make: Callable[[], PollableWaiter]) -> Subscription:
        """Watch the commits of all pipelines, inside a `with` block."""
        return await self._get(("/store", None), make)

    async def _get(self, what: tuple[str, str | None], make: Callable[[], PollableWaiter]) -> Subscription:
        if what in self._subscriptions:
            return self._subscriptions[what]
        try:
            waiter = await self._threads.read(make)
        except FileNotFoundError:
            topic, group = what
            raise UnknownGroupError(f'no group "{group}" on topic "{topic}"', group=group) from None
        except OSError as error:
            raise EnvironmentFaultError(
                "this user has no file watches left", detail=str(error), fix="sysctl fs.inotify.max_user_instances=1024"
            ) from None
        if what in self._subscriptions:  # another request subscribed while the thread ran
            waiter.close()
        else:
            made = Subscription(waiter, lambda: self._unsubscribe(what, made))
            self._subscriptions[what] = made
        return self._subscriptions[what]

    def _unsubscribe(self, what: tuple[str, str | None], subscription: Subscription) -> None:
        if self._subscriptions.get(what) is subscription:
            del self._subscriptions[what]
            subscription.close()

    async def wait(self, *changes: asyncio.Future[None], timeout: float) -> bool:
        """Wait for one of the changes; returns False after `timeout` seconds or when the node stops."""
        if not self.stopping:
            await asyncio.wait(
                {*changes, self.stop_future}, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED
            )
        return any(change.done() for change in changes)

    @property
    def stop_future(self) -> asyncio.Future[None]:
        """A future that is done when the node begins to stop."""
        if self._stop_future is None:
            self._stop_future = asyncio.get_running_loop().create_future()
        return self._stop_future

    @property
    def stopping(self) -> bool:
        """Whether the node has begun to stop."""
        return self._stop_future is not None and self._stop_future.done()

    def stop(self) -> None:
        """End all waits and live streams, so that connections can close."""
        if not self.stop_future.done():
            self.stop_future.set_result(None)

    def close(self) -> None:
        """Close all watches."""
        for what, subscription in list(self._subscriptions.items()):
            self._unsubscribe(what, subscription)
