"""The embedded broker keeps the contract, and what only it can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headwater.events import ManualClock
from headwater.queues.embedded import EmbeddedBroker
from tests.queues.contract import (  # noqa: F401
    TestCounts,
    TestFailures,
    TestLimits,
    TestOrder,
    TestPatterns,
    TestPublishAndReceive,
    TestSharing,
    TestStaleSettling,
    TestTime,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "queues", clock) as broker:
        yield broker


@pytest.fixture
def pass_time(clock: ManualClock) -> Callable[[float], None]:
    return lambda seconds: clock.advance(timedelta(seconds=seconds))
