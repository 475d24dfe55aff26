"""How far consumer groups have come, and how to move them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from headwater.errors import DamagedError, DataGoneError, UnknownGroupError
from headwater.events import Clock
from headwater.log import GroupState, Start
from headwater.log.protocol import Log

__all__ = ["Lag", "Move", "lag_of", "reset_group", "waited"]


@dataclass(frozen=True)
class Lag:
    """How far one group is behind in one partition.

    `behind` is how long the oldest unread event has waited. `gone` is how many events it can no longer read.
    """

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    behind: timedelta
    gone: int = 0
    owner: str | None = None

    @property
    def events(self) -> int:
        """Events (and time marks) it has not read."""
        return self.end - self.committed


@dataclass(frozen=True)
class Move:
    """A committed offset before and after a reset."""

    partition: int
    old: int | None
    new: int


def lag_of(log: Log, clock: Clock, state: GroupState) -> list[Lag]:
    """The lag of a group in each partition of a topic."""
    lags = []
    for held in log.ends(state.topic):
        committed = state.committed.get(held.partition, held.start)
        lags.append(
            Lag(
                state.group,
                state.topic,
                held.partition,
                committed,
                held.end,
                waited(log, clock, state.topic, held.partition, max(committed, held.start)),
                max(0, held.start - committed),
                state.owners.get(held.partition),
            )
        )
    return lags


def waited(log: Log, clock: Clock, topic: str, partition: int, offset: int) -> timedelta:
    """How long the event at an offset has waited by now; no time when there is none yet."""
    try:
        unread = log.fetch(topic, {partition: offset}, max_bytes=1, timeout=0, waiter=None)
    except DataGoneError:  # removed between two looks
        return timedelta(0)
    if not unread:
        return timedelta(0)
    received = unread[0].received
    first = int(received[0]) if len(received) else unread[0].frame.appended_at
    return max(timedelta(0), timedelta(microseconds=clock.micros() - first))


def reset_group(log: Log, group: str, topic: str, to: Start, *, dry_run: bool = False) -> list[Move]:
    """Move a group to a start; shows old and new offset per partition, and changes nothing with `dry_run`."""
    known: Mapping[int, int] = {}
    with contextlib.suppress(UnknownGroupError, DamagedError):  # a reset makes the one and mends the other
        known = log.groups.state(group, topic).committed
    numbers = range(log.topic(topic).partitions)
    moves = [Move(number, known.get(number), log.find(topic, number, to)) for number in numbers]
    if not dry_run:
        log.groups.reset(group, topic, {move.partition: move.new for move in moves})
    return moves
