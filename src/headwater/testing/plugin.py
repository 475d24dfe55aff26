"""The pytest plugin: the fixture `run_app`, and the stop of Spark when the tests end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headwater.testing.world import World

__all__ = ["run_app"]


@pytest.fixture(scope="session")
def run_app() -> Iterator[Callable[..., AbstractContextManager[World]]]:
    """Returns `headwater.testing.run`; stops Spark after the last test."""
    from headwater.testing.world import run, stop_spark

    yield run
    stop_spark()
