"""The client of a Kafka passes the contract, against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater import errors
from headwater.events import SystemClock
from headwater.log.kafka import KafkaLog
from tests.client.contract import ClientContract
from tests.client.shop import fresh
from tests.services.kafka import Broker

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def shared(kafka: Broker) -> Iterator[KafkaLog]:
    """One connection for all tests; each has topics of its own."""
    with KafkaLog(f"kafka://{kafka.address}?session.timeout.ms=1500") as log:
        yield log


class TestKafkaClient(ClientContract):
    """Everything the client of a folder can do, but for what is overridden here with its reason."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def where(self, kafka: Broker) -> str:
        return f"kafka://{kafka.address}?session.timeout.ms=1500"

    @pytest.fixture
    def client(self, shared: KafkaLog) -> hw.Client:
        return hw.Client(shared, SystemClock())
