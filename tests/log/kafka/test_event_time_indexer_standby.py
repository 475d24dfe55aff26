"""An `EventTimeIndexer` that stands by, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headwater.errors import FencedError, UnreachableError
from headwater.events import SystemClock
from headwater.log.kafka.event_time_indexer import EventTimeIndexer


class ScriptedIndexer(EventTimeIndexer):
    """Is fenced as leader, loses the brokers while it stands by, and stops when it leads again."""

    def __init__(self, log: Any) -> None:
        self.calls: list[str] = []
        super().__init__(log, "orders", "__headwater.times.orders.ID")

    def _run_as_leader(self) -> None:
        self.calls.append("lead")
        if len(self.calls) == 1:
            raise FencedError("another process writes the index")
        self._stopped.set()

    def _stand_by(self) -> None:
        self.calls.append("stand by")
        if self.calls.count("stand by") == 1:
            raise UnreachableError("no broker answers")


@pytest.fixture
def log() -> Any:
    topics = SimpleNamespace(brokers=SimpleNamespace(kafka=None), create=lambda *_: None)
    topic = SimpleNamespace(external_time=False, compact=False, partitions=1)
    return SimpleNamespace(clock=SystemClock(), kafka_topics=topics, topic=lambda _: topic)


def test_an_outage_does_not_end_the_standby(log: Any):
    indexer = ScriptedIndexer(log)
    indexer._thread.join(10)
    assert indexer.calls == ["lead", "stand by", "stand by", "lead"]
