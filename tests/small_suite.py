"""Runs a small suite of its own under our conftest, to test the rules that it sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SETTINGS = """
[pytest]
pythonpath = .
addopts = --import-mode=importlib
asyncio_default_fixture_loop_scope = function
markers =
    services
    spark
"""
OUTSIDE = ("PYTEST_", "CI", "HYPOTHESIS_", "HEADWATER_FLAKY", "HEADWATER_FAULTS")


def run_suite(
    folder: Path,
    suite: str,
    *,
    ci: bool,
    allow: str = "",
    faults: str = "",
    options: tuple[str, ...] = (),
    **variables: str,
) -> tuple[int, str]:
    """Runs the suite in a process; returns its exit code and output."""
    tests = folder / "tests"
    tests.mkdir(exist_ok=True)
    for name in ("conftest.py", "fault_parts.py", "flaky.py", "programs.py", "skips.py", "system_packages.sh"):
        (tests / name).write_text((Path(__file__).parent / name).read_text())
    (tests / "allowed_skips.txt").write_text(allow)
    (tests / "fault_suites.csv").write_text(faults)
    (tests / "test_small.py").write_text(suite)
    (folder / "pytest.ini").write_text(SETTINGS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OUTSIDE)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "tests"],
        cwd=folder,
        env=environment | variables | ({"CI": "true"} if ci else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
