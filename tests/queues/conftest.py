"""Fixtures over the data folder, and the selection of contract tests that a broker supports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.backends import open_responder
from headwater.events import ManualClock, SystemClock
from headwater.log import EventLog
from headwater.queues.embedded import EmbeddedBroker
from headwater.queues.request_reply.dispatcher import Answer
from headwater.queues.request_reply.protocol import Responder
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


@pytest.fixture
def place(tmp_path: Path) -> str:
    """The data folder or URL through which requests go."""
    return str(tmp_path)


@pytest.fixture
def subject() -> str:
    """The subject of the requests."""
    return "it"


@pytest.fixture
def connected(place: str, tmp_path: Path) -> hw.Client:
    """A client of `place`; the test closes it."""
    return hw.Client(EventLog(tmp_path), SystemClock(), folder=tmp_path, queues=place)


@pytest.fixture
def client(connected: hw.Client) -> Iterator[hw.Client]:
    with connected:
        yield connected


@pytest.fixture
def answer(place: str, subject: str) -> Iterator[Callable[..., Responder]]:
    """`answer(function)` starts a responder that runs until the end of the test."""
    begun: list[Responder] = []

    def begin(function: Callable[..., Any], **options: Any) -> Responder:
        begun.append(open_responder(place, [Answer.from_function(function, subject, **options)]))
        return begun[-1]

    yield begin
    for one in begun:
        one.close(grace=1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deselect contract tests of features that a broker does not support, so that none counts as skipped."""
    items[:] = [item for item in items if _wanted(item)]


def _wanted(item: pytest.Item) -> bool:
    supports = getattr(getattr(item, "module", None), "SUPPORTS", EVERYTHING)
    return all(what in supports for mark in item.iter_markers("broker_needs") for what in mark.args)
