"""A client of the shared broker, and plain clients of the driver that know nothing of Headwater."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headwater as hw
from tests.services.kafka import Broker


@pytest.fixture(scope="module")
def client(kafka: Broker) -> Iterator[hw.Client]:
    """One connection for the tests of a module; each has topics of its own."""
    with hw.connect(f"kafka://{kafka.address}?session.timeout.ms=1500") as client:
        yield client
