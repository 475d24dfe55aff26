"""A process that produces: its programs send at their own pace until they are told to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing.connection import Connection
from typing import Any

from headwater.client import Client, Producer, connect
from headwater.demo.traffic import PROGRAMS, Program, Sent
from headwater.errors import HeadwaterError

__all__ = ["Tally", "produce"]


@dataclass
class Tally:
    """What was sent to one topic, how it was answered, and how much money it was about."""

    offered: int = 0
    appended: int = 0
    duplicate: int = 0
    dropped: int = 0
    amount: Decimal = Decimal(0)

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def produce(place: str, process: str, seed: int, run: str, control: Connection) -> None:
    """Run the programs of one process; report what they sent when `control` says anything, or closes.

    Args:
        place: Folder or address of the log.
        process: Which of `PROGRAMS`.
        seed: Decides what is sent.
        run: Part of the producers' ids, so that another run on the same log counts anew.
        control: Answers with the tallies by topic and a list of errors.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the one in front decides
    stop = threading.Event()
    with connect(place) as client:
        desks = [_Desk(client, program, seed, run, stop) for program in PROGRAMS[process]]
        for desk in desks:
            desk.start()
        _told(control)
        stop.set()
        for desk in desks:
            desk.join()
    totals: defaultdict[str, Tally] = defaultdict(Tally)
    for desk in desks:
        for topic, tally in desk.tallies.items():
            totals[topic] += tally
    control.send((dict(totals), [str(desk.failure) for desk in desks if desk.failure]))


def _told(control: Connection) -> None:
    try:
        control.recv()
    except EOFError:  # the process in front is gone
        raise SystemExit(1) from None


class _Desk(threading.Thread):
    """One program at work."""

    def __init__(self, client: Client, program: Program, seed: int, run: str, stop: threading.Event) -> None:
        super().__init__(name=program.name, daemon=True)
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self.failure: HeadwaterError | None = None
        self._client = client
        self._program = program
        self._seed = seed
        self._run = run
        self._stopped = stop
        self._producers: dict[str, Producer] = {}
        self._unanswered: defaultdict[str, deque[Decimal]] = defaultdict(deque)

    def run(self) -> None:
        """Send until told to stop, then wait for the last answers."""
        try:
            self._work()
        except HeadwaterError as error:
            self.failure = error

    def _work(self) -> None:
        program, begun = self._program, time.monotonic()
        events = program.events(program.number, self._seed, lambda: datetime.now(UTC))
        for number, sent in enumerate(events, 1):
            due = begun + number / program.rate
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                break
            self._send(sent)
            if number % max(1, int(program.rate)) == 0:
                self._collect()
        self._collect()

    def _send(self, sent: Sent) -> None:
        if sent.topic not in self._producers:
            name = f"{self._program.name}-{self._run}"
            self._producers[sent.topic] = self._client.producer(sent.topic, id=name)
        self._producers[sent.topic].send(sent.value, sequence=sent.sequence)
        self.tallies[sent.topic].offered += 1
        self._unanswered[sent.topic].append(_amount(sent.value))

    def _collect(self) -> None:
        """Wait for the answers to everything sent, and count them."""
        for topic, producer in self._producers.items():
            tally = self.tallies[topic]
            for receipt in producer.flush():
                amount = self._unanswered[topic].popleft()
                tally.duplicate += receipt.duplicate
                tally.dropped += receipt.dropped is not None
                if not receipt.duplicate and receipt.dropped is None:
                    tally.appended += 1
                    tally.amount += amount


def _amount(value: Any) -> Decimal:
    found: Decimal = getattr(value, "amount", Decimal(0))
    return found
