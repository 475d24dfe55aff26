"""Runs the examples as a reader of the docs would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def printed(tmp_path: Path) -> Callable[..., list[str]]:
    """`printed("01_first_events.py")` returns the output of an example as lines; stderr must be empty."""

    def run(name: str, longest: int = 50) -> list[str]:
        assert len((EXAMPLES / name).read_text().splitlines()) <= longest
        done = subprocess.run(
            [sys.executable, "-W", "error", EXAMPLES / name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert list(tmp_path.iterdir()) == []
        return done.stdout.splitlines()

    return run
