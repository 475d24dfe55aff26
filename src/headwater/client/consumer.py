"""A consumer: one member of a group, notified of new events, going on where the group committed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from headwater.events import Event
from headwater.log import Start
from headwater.log.protocol import Log
from headwater.log.reader import Reader
from headwater.units import duration

__all__ = ["Consumer"]

_LOOK_EVERY = 0.1  # seconds between two looks at the group while events are at hand


class Consumer:
    """Iterate over it, and `commit` when what you did with the events is done.

    Events that were handed out but not committed are handed out again after a crash or when their partition moves to
    another member: at least once. The group's members share the partitions; one that dies is noticed at once.

    Example:
        >>> import headwater as hw, tempfile
        >>> client = hw.connect(tempfile.mkdtemp())
        >>> _ = client.create_topic("orders", "order_id string")
        >>> _ = client.send("orders", {"order_id": "a"})
        >>> with client.consumer("orders", group="billing") as consumer:
        ...     for event in consumer:
        ...         print(event.value)
        ...         consumer.commit()
        ...         break
        {'order_id': 'a'}
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        group: str,
        *,
        start: Start = "earliest",
        timeout: timedelta | None = None,
        session: timedelta = timedelta(minutes=5),
    ) -> None:
        self._log = log
        self._timeout = timeout
        self._session = session.total_seconds()
        self._membership = log.groups.join(group, topic, start=start, session=session)
        self._reader = Reader(log, topic, self._membership.positions, group=group)
        self._changes = log.groups.watch(group, topic)
        self._ready: deque[Event] = deque()
        self._done: dict[int, int] = {}
        self._looked_at = time.monotonic()
        self._synced_at = -self._session  # the group may have changed before it was watched: look once
        self._closed = False

    @property
    def assignment(self) -> tuple[int, ...]:
        """The partitions this consumer reads now."""
        return tuple(sorted(self._membership.positions))

    @property
    def generation(self) -> int:
        """How often the group's partitions have been shared anew."""
        return self._membership.generation

    def poll(self, timeout: float | str | timedelta = 0, most: int = 500) -> list[Event]:
        """Up to `most` events; waits up to `timeout` for the first."""
        seconds = duration(timeout).total_seconds() if isinstance(timeout, str | timedelta) else timeout
        self._fill(seconds)
        events = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        for event in events:
            self._done[event.partition] = event.offset + 1
        return events

    def __iter__(self) -> Iterator[Event]:
        while not self._closed:
            if not self._ready or time.monotonic() - self._looked_at > _LOOK_EVERY:
                self._fill(None if self._timeout is None else self._timeout.total_seconds())
                if not self._ready:
                    return
            event = self._ready.popleft()
            self._done[event.partition] = event.offset + 1
            yield event

    def commit(self) -> None:
        """Everything handed out so far is done; the group goes on behind it.

        Raises:
            FencedError: A partition belongs to another member by now; nothing was committed.
        """
        if self._done:
            self._log.groups.commit(self._membership, self._done)
            self._done = {}

    def _fill(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        changed = False
        while not self._closed:
            self._sync_if_due(changed)
            if self._ready:
                return
            left = self._session / 3 if deadline is None else deadline - time.monotonic()
            wait = max(0.0, min(left, self._session / 3))
            if self._reader.positions:
                for batch in self._reader.next(wait):
                    self._ready.extend(batch.events())
            else:  # more members than partitions: only a change of the group brings something to read
                changed = self._changes.wait(wait)
                if changed:
                    continue
            if self._ready or (deadline is not None and time.monotonic() >= deadline):
                return

    def _sync_if_due(self, changed: bool) -> None:
        now = self._looked_at = time.monotonic()
        if not (self._changes.wait(0) or changed) and now - self._synced_at < self._session / 3:
            return
        self._synced_at = now
        known = self._membership
        self._membership = self._log.groups.sync(known)
        if self._membership.generation == known.generation:
            return
        mine, was = self._membership.positions, self._reader.positions
        self._reader.positions = {p: was.get(p, offset) for p, offset in mine.items()}
        self._done = {p: offset for p, offset in self._done.items() if p in mine}
        self._ready = deque(event for event in self._ready if event.partition in mine)

    def close(self) -> None:
        """Leave the group; what was not committed goes to the others again."""
        if not self._closed:
            self._closed = True
            self._log.groups.leave(self._membership)
            self._reader.close()
            self._changes.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
