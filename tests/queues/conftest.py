"""The embedded broker, for tests that say nothing else, and which tests of the contract a broker need not keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headwater.events import ManualClock
from headwater.queues.embedded import EmbeddedBroker
from tests.queues.contract import EVERYTHING


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of what a broker says it cannot do are left out, so that none counts as skipped."""
    items[:] = [item for item in items if _wanted(item)]


def _wanted(item: pytest.Item) -> bool:
    supports = getattr(getattr(item, "module", None), "SUPPORTS", EVERYTHING)
    return all(what in supports for mark in item.iter_markers("broker_needs") for what in mark.args)
