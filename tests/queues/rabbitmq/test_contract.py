"""The contract of all brokers on RabbitMQ, as far as RabbitMQ supports it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from headwater.queues.rabbitmq import RabbitBroker
from tests.queues.contract import (  # noqa: F401
    EVERYTHING,
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

pytestmark = pytest.mark.services
# The table of docs/rabbitmq.md has the reasons.
SUPPORTS = EVERYTHING - {"priority", "ordered", "dedup", "totals", "drop oldest"}


@pytest.fixture
def broker(shared: RabbitBroker) -> Iterator[RabbitBroker]:
    """One client for all tests; receivers that a test has not closed are closed after it."""
    yield shared
    for receiver in shared._receivers:
        receiver.close()


@pytest.fixture
def pass_time() -> Callable[[float], None]:
    return time.sleep
