"""One RabbitMQ for all tests that do not harm it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta

import pytest

from headwater.queues.rabbitmq import RabbitBroker
from tests.services.rabbitmq import Rabbit, rabbit_broker
from tests.services.system_packages import UnavailableError


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rabbit]:
    """The server."""
    try:
        with rabbit_broker(tmp_path_factory.mktemp("rabbit")) as server:
            yield server
    except UnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def shared(rabbit: Rabbit) -> Iterator[RabbitBroker]:
    """A client of it."""
    broker = RabbitBroker(rabbit.url(), patience=timedelta(seconds=60))
    yield broker
    broker.close()


@pytest.fixture
def name() -> str:
    """The name of a queue that no other test has."""
    return f"q-{uuid.uuid4().hex[:12]}"
