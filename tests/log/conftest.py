"""A test clock, and a log in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.events import ManualClock
from headwater.log import EventLog


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock("2026-01-01T00:00:00Z")


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[EventLog]:
    with EventLog(tmp_path / "data", clock=clock) as log:
        yield log
