"""A process that produces: its programs send at their own pace until they are told to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from headwater.client import Client, Producer, connect
from headwater.demo.journal import Journal
from headwater.demo.traffic import PROGRAMS, Program, Sent, Setting
from headwater.errors import HeadwaterError

__all__ = ["Job", "Tally", "produce"]


@dataclass
class Tally:
    """How many events were sent to one topic, and how that was answered."""

    offered: int = 0
    acknowledged: int = 0
    duplicate: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Job:
    """What a producing process is to do.

    Args:
        place: Folder or address of the log.
        process: Which of `PROGRAMS`.
        journals: The folder for what was acknowledged.
        run: Tells the events of this run from those of others on the same log.
        rate: Events a second of all processes together.
        seed: Decides what is sent.
        poison: Whether some events make a pipeline's function fail.
    """

    place: str
    process: str
    journals: Path
    run: str
    rate: float
    seed: int = 1
    poison: bool = False


def produce(job: Job, control: Connection) -> None:
    """Do a job; report what was sent when `control` says anything, or closes.

    Args:
        job: What to do.
        control: Answers with the tallies by topic and a list of errors.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the one in front decides
    stop = threading.Event()
    with connect(job.place) as client:
        desks = [_Desk(client, program, job, stop) for program in PROGRAMS[job.process]]
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

    def __init__(self, client: Client, program: Program, job: Job, stop: threading.Event) -> None:
        super().__init__(name=program.name, daemon=True)
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self.failure: HeadwaterError | None = None
        self._client = client
        self._rate = job.rate * program.share
        setting = Setting(program.name, job.seed, lambda: datetime.now(UTC), job.run, job.poison)
        self._id = f"{program.name}-{job.run}"
        self._events = program.events(setting)
        self._journal = Journal(job.journals / f"{program.name}.csv")
        self._stopped = stop
        self._producers: dict[str, Producer] = {}
        self._unanswered: defaultdict[str, deque[str]] = defaultdict(deque)

    def run(self) -> None:
        """Send until told to stop, then wait for the last answers."""
        try:
            self._work()
        except HeadwaterError as error:
            self.failure = error
        finally:
            self._journal.close()

    def _work(self) -> None:
        begun = time.monotonic()
        for number, sent in enumerate(self._events, 1):
            due = begun + number / self._rate
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                break
            self._send(sent)
            if number % max(1, int(self._rate)) == 0:
                self._collect()
        self._collect()

    def _send(self, sent: Sent) -> None:
        if sent.topic not in self._producers:
            self._producers[sent.topic] = self._client.producer(sent.topic, id=self._id)
        self._producers[sent.topic].send(sent.value, sequence=sent.sequence)
        self.tallies[sent.topic].offered += 1
        self._unanswered[sent.topic].append(next(iter(sent.value.values())))

    def _collect(self) -> None:
        """Wait for the answers to everything sent, count them and write them down."""
        for topic, producer in self._producers.items():
            tally = self.tallies[topic]
            for receipt in producer.flush():
                event = self._unanswered[topic].popleft()
                tally.duplicate += receipt.duplicate
                if not receipt.duplicate:
                    tally.acknowledged += 1
                    self._journal.note(event, receipt)
