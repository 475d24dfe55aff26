"""Tests that fail once and pass on a second try: how CI learns their names.

A test with processes, servers or Spark may fail because the machine was busy. CI runs every failed test once more,
names those that then passed in its last lines, and fails if there are more than a few (`.ci/run`). Every named test is
to be mended. A test without threads and processes fails again: under CI, Hypothesis tries the same examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FILE = "HEADWATER_FLAKY_TESTS"  # the environment variable with the path of the list


def record(nodeids: Iterable[str]) -> None:
    """Append the names of tests that were run again to CI's list, each once."""
    path = os.environ.get(FILE)
    if path is None:
        return
    with Path(path).open("a") as file:
        file.writelines(f"{nodeid}\n" for nodeid in sorted(set(nodeids)))
