"""The shop's programs that follow: each consumer group is a process with a consumer per topic."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing.connection import Connection
from typing import Final

from headwater.client import Client, connect
from headwater.errors import HeadwaterError

__all__ = ["GROUPS", "Followed", "follow"]

GROUPS: Final = {
    "billing": ("orders", "payments", "products"),
    "fraud": ("orders", "payments", "clicks"),
    "cooling": ("sensors",),
}
_PAUSE: Final = 0.25  # seconds without events after which a group that was told to finish is at the end


@dataclass
class Followed:
    """What a group read of one topic."""

    events: int = 0
    late: int = 0
    amount: Decimal = Decimal(0)


def follow(place: str, group: str, control: Connection) -> None:
    """Follow the group's topics; when `control` says anything, read to the end and report.

    Args:
        place: Folder or address of the log.
        group: Which of `GROUPS`.
        control: Says "ready" once the group has joined, and answers with what was read by topic and a list of errors.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = threading.Event()
    with connect(place) as client:
        readers = [_Reader(client, group, topic, stop) for topic in GROUPS[group]]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.joined.wait()
        control.send("ready")
        try:
            control.recv()
        except EOFError:
            raise SystemExit(1) from None
        stop.set()
        for reader in readers:
            reader.join()
    failures = [str(reader.failure) for reader in readers if reader.failure]
    control.send(({reader.topic: reader.followed for reader in readers}, failures))


class _Reader(threading.Thread):
    """One consumer at work: count, sum up, commit."""

    def __init__(self, client: Client, group: str, topic: str, stop: threading.Event) -> None:
        super().__init__(name=f"{group}-{topic}", daemon=True)
        self.topic = topic
        self.followed = Followed()
        self.joined = threading.Event()
        self.failure: HeadwaterError | None = None
        self._client = client
        self._group = group
        self._stopped = stop

    def run(self) -> None:
        try:
            self._work()
        except HeadwaterError as error:
            self.failure = error
        finally:
            self.joined.set()

    def _work(self) -> None:
        with self._client.consumer(self.topic, group=self._group, start="latest") as consumer:
            self.joined.set()
            while True:
                finishing = self._stopped.is_set()
                events = consumer.poll(_PAUSE)
                for event in events:
                    self.followed.events += 1
                    self.followed.late += event.late
                    self.followed.amount += (event.value or {}).get("amount", 0)
                consumer.commit()
                if finishing and not events:
                    return
