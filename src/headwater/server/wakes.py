"""Requests that wait for events or for changes of a group: one watch for all that wait for the same."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from headwater.errors import EnvironmentFaultError, UnknownGroupError
from headwater.log import EventLog
from headwater.log.wakeup import Waker
from headwater.server.threads import Threads

__all__ = ["Wakes", "Watch"]

_KEPT_FOR: Final = 30.0  # seconds after the last request that waited
_LOOK_EVERY: Final = 0.05  # seconds, where the operating system tells nothing


class Watch:
    """Changes of one topic or group. Take `next`, look at the log, and if there is nothing, wait for what you took."""

    def __init__(self, wakeup: Waker, forget: Callable[[], None]) -> None:
        self.changes = 0
        self._name = os.urandom(6).hex()
        self._users = 0
        self._unused: asyncio.TimerHandle | None = None
        self._wakeup = wakeup
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Future[None] = self._loop.create_future()
        self._handle = wakeup.fileno()
        self._timer: asyncio.TimerHandle | None = None
        if self._handle is None:
            self._timer = self._loop.call_later(_LOOK_EVERY, self._look_again)
        else:
            self._loop.add_reader(self._handle, self._changed)

    def __enter__(self) -> Watch:
        self._users += 1
        if self._unused is not None:
            self._unused.cancel()
            self._unused = None
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users and not self._loop.is_closed():
            self._unused = self._loop.call_later(_KEPT_FOR, self._forget)

    @property
    def next(self) -> asyncio.Future[None]:
        """Done at the next change."""
        return self._next

    @property
    def mark(self) -> str:
        """Another one after each change: whoever was away can see that it missed one."""
        return f"{self._name}-{self.changes}"

    def _changed(self) -> None:
        self._wakeup.wait(0)
        self._tell()

    def _look_again(self) -> None:
        self._tell()
        self._timer = self._loop.call_later(_LOOK_EVERY, self._look_again)

    def _tell(self) -> None:
        self.changes += 1
        told, self._next = self._next, self._loop.create_future()
        told.set_result(None)

    def close(self) -> None:
        """Stop watching."""
        if self._handle is not None:
            self._loop.remove_reader(self._handle)
        for timer in (self._timer, self._unused):
            if timer is not None:
                timer.cancel()
        self._wakeup.close()


class Wakes:
    """All watches of the node."""

    def __init__(self, log: EventLog, threads: Threads) -> None:
        self._log = log
        self._threads = threads
        self._watches: dict[tuple[str, str | None], Watch] = {}
        self._ending: asyncio.Future[None] | None = None

    async def topic(self, name: str) -> Watch:
        """Watch appends to a topic, inside a `with` block."""
        return await self._on((name, None), lambda: self._log.watch(name))

    async def group(self, group: str, topic: str) -> Watch:
        """Watch the members of a group on a topic, inside a `with` block."""
        return await self._on((topic, group), lambda: self._log.groups.watch(group, topic))

    async def store(self, make: Callable[[], Waker]) -> Watch:
        """Watch everything that pipelines commit, inside a `with` block."""
        return await self._on(("/store", None), make)

    async def _on(self, what: tuple[str, str | None], make: Callable[[], Waker]) -> Watch:
        return self._watches.get(what) or await self._made(what, make)

    async def _made(self, what: tuple[str, str | None], make: Callable[[], Waker]) -> Watch:
        try:
            wakeup = await self._threads.read(make)
        except FileNotFoundError:
            topic, group = what
            raise UnknownGroupError(f'no group "{group}" on topic "{topic}"', group=group) from None
        except OSError as error:
            raise EnvironmentFaultError(
                "the operating system has no more watches for this user",
                detail=str(error),
                fix="sysctl fs.inotify.max_user_instances=1024",
            ) from None
        if what in self._watches:  # another request was faster
            wakeup.close()
        else:
            self._watches[what] = Watch(wakeup, lambda: self._forget(what))
        return self._watches[what]

    def _forget(self, what: tuple[str, str | None]) -> None:
        watch = self._watches.pop(what, None)
        if watch is not None:
            watch.close()

    async def wait(self, *changes: asyncio.Future[None], timeout: float) -> bool:
        """True as soon as one of the changes happened; False after `timeout` seconds, or when the node stops."""
        if not self.stopping:
            await asyncio.wait(
                {*changes, self.ending}, timeout=max(0.0, timeout), return_when=asyncio.FIRST_COMPLETED
            )
        return any(change.done() for change in changes)

    @property
    def ending(self) -> asyncio.Future[None]:
        """Done when the node is about to stop: whoever waits goes home."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_future()
        return self._ending

    @property
    def stopping(self) -> bool:
        """Whether the node is about to stop."""
        return self._ending is not None and self._ending.done()

    def stop(self) -> None:
        """End all waits."""
        if not self.ending.done():
            self.ending.set_result(None)

    def close(self) -> None:
        """Close all watches."""
        for what in list(self._watches):
            self._forget(what)
