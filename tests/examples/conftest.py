"""How the tests of the examples run them: as a reader of the docs would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def printed(tmp_path: Path) -> Callable[..., list[str]]:
    """`printed("01_first_events.py")` is what the example prints, line by line; it must not complain."""

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
