"""The oracle of the fault tests: compares what was sent and acknowledged with what is in the log.

Producers number their events and record, outside the log, what they send and what was acknowledged. A journal is
written line by line without a buffer, so it survives the death of its producer.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

TYPE = "producer string, seq bigint, key string, pad string"


class Numbered(NamedTuple):
    """An event's name in the test: its producer, and the producer's number for it."""

    producer: str
    seq: int


class Found(NamedTuple):
    """An event as it was read."""

    partition: int
    offset: int
    event: Numbered
    key: str | None = None


class Journal:
    """What producers sent (`>`), and what was acknowledged (`<`), in a file that several processes append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def sent(self, events: Iterable[Numbered]) -> None:
        """Record events before they are sent."""
        self._write(">", events)

    def acknowledged(self, events: Iterable[Numbered]) -> None:
        """Record events that the log acknowledged."""
        self._write("<", events)

    def _write(self, mark: str, events: Iterable[Numbered]) -> None:
        # A kill can cut a write short: each line ends with a marker, so that a torn line is recognised.
        os.write(self._handle, "".join(f"\n{mark} {e.producer} {e.seq} ." for e in events).encode())

    def read(self) -> tuple[set[Numbered], set[Numbered]]:
        """Returns what was sent, and what was acknowledged."""
        events: dict[str, set[Numbered]] = {">": set(), "<": set()}
        for line in self.path.read_text().splitlines():
            mark, *words = line.split() or ["cut"]
            if len(words) == 3:
                events[mark].add(Numbered(words[0], int(words[1])))
        return events[">"], events["<"]

    def close(self) -> None:
        os.close(self._handle)


@dataclass
class Verdict:
    """The differences that were found; the log is correct if all lists are empty."""

    lost: list[Numbered] = field(default_factory=list)
    duplicated: list[Numbered] = field(default_factory=list)
    phantom: list[Numbered] = field(default_factory=list)
    reordered: list[tuple[Found, Found]] = field(default_factory=list)
    two_values: list[tuple[Found, Found]] = field(default_factory=list)
    vanished: list[Found] = field(default_factory=list)
    events: int = 0

    @property
    def sound(self) -> bool:
        return not any((self.lost, self.duplicated, self.phantom, self.reordered, self.two_values, self.vanished))

    def __str__(self) -> str:
        counts = {name: len(found) for name, found in vars(self).items() if isinstance(found, list)}
        first = {name: found[:3] for name, found in vars(self).items() if isinstance(found, list) and found}
        return f"{self.events} events, {counts}, first: {first}"


def check(
    sent: set[Numbered],
    acknowledged: set[Numbered],
    found: list[Found],
    seen_before: Iterable[Found] = (),
    *,
    repeats_allowed: bool = False,
) -> Verdict:
    """Compare.

    Args:
        sent: Everything producers tried to send.
        acknowledged: What the log said was safe.
        found: The whole log, partition by partition in the order of offsets.
        seen_before: What readers saw at any earlier time.
        repeats_allowed: Producers without an id that send again may leave an event twice.
    """
    counted = Counter(event.event for event in found)
    verdict = Verdict(
        lost=sorted(acknowledged - counted.keys()),
        duplicated=[] if repeats_allowed else sorted(e for e, number in counted.items() if number > 1),
        phantom=sorted(counted.keys() - sent),
        events=len(found),
    )
    verdict.reordered = _reordered(found)
    _compare_readings(verdict, found, seen_before)
    return verdict


def _reordered(found: list[Found]) -> list[tuple[Found, Found]]:
    """Offsets that do not rise, and events of one producer and key that are not in the order they were sent."""
    wrong = [
        (one, other)
        for one, other in pairwise(found)
        if one.partition == other.partition and one.offset >= other.offset
    ]
    last: dict[tuple[str, str | None, int], Found] = {}
    first_time: set[Numbered] = set()
    for event in found:
        if event.event in first_time:
            continue  # a repeat, counted elsewhere
        first_time.add(event.event)
        line = (event.event.producer, event.key, event.partition)
        before = last.get(line)
        if before is not None and before.event.seq > event.event.seq:
            wrong.append((before, event))
        last[line] = event
    return wrong


def _compare_readings(verdict: Verdict, found: list[Found], seen_before: Iterable[Found]) -> None:
    """One value per offset, and what was read once stays."""
    now = {(event.partition, event.offset): event for event in found}
    for event in seen_before:
        same_place = now.get((event.partition, event.offset))
        if same_place is None:
            verdict.vanished.append(event)
        elif same_place.event != event.event:
            verdict.two_values.append((event, same_place))
