"""Tests that fail once and pass on a second try: which may have one, and how CI learns their names.

A test with real servers or Spark may fail because the machine was busy. CI runs it once more, names it in its
last lines, and fails if there are more than a few (`.ci/run`). Every named test is to be mended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

FILE = "HEADWATER_FLAKY_TESTS"  # the environment variable with the path of the list


def may_rerun(item: pytest.Item) -> bool:
    """Whether the test talks to a server or to Spark."""
    return any(item.get_closest_marker(name) for name in ("services", "spark"))


def record(nodeids: Iterable[str]) -> None:
    """Append the names of tests that were run again to CI's list, each once."""
    path = os.environ.get(FILE)
    if path is None:
        return
    with Path(path).open("a") as file:
        file.writelines(f"{nodeid}\n" for nodeid in sorted(set(nodeids)))
