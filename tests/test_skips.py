"""Under CI a skipped test fails the run, with and without worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import packages, require_program
from tests.skips import ALLOWED, allowed, unexpected

ROOT = Path(__file__).parent.parent
SKIPPING = """
import pytest

def test_that_passes(): pass

@pytest.mark.skip(reason="no such machine")
def test_that_needs_another_machine(): pass
"""

SETTINGS = """
[pytest]
pythonpath = .
addopts = --import-mode=importlib
asyncio_default_fixture_loop_scope = function
"""


def run(folder: Path, *, ci: bool, allow: str = "", options: tuple[str, ...] = ()) -> tuple[int, str]:
    """Runs a small suite that uses our conftest; its exit code and output."""
    tests = folder / "tests"
    tests.mkdir()
    for name in ("conftest.py", "programs.py", "skips.py", "system_packages.sh"):
        (tests / name).write_text((ROOT / "tests" / name).read_text())
    (tests / "allowed_skips.txt").write_text(allow)
    (tests / "test_small.py").write_text(SKIPPING)
    (folder / "pytest.ini").write_text(SETTINGS)
    outside = ("PYTEST_", "CI", "HYPOTHESIS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "tests"],
        cwd=folder,
        env=environment | ({"CI": "true"} if ci else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_skip_passes_on_a_developers_machine(tmp_path):
    assert run(tmp_path, ci=False)[0] == 0


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_skip_fails_the_run_under_ci(tmp_path, options):
    code, output = run(tmp_path, ci=True, options=options)
    assert code == 1
    assert "test_small.py::test_that_needs_another_machine" in output


def test_a_named_skip_passes_under_ci(tmp_path):
    line = "tests/test_small.py::test_that_needs  # needs another machine"
    assert run(tmp_path, ci=True, allow=line, options=("-n", "2"))[0] == 0


def test_every_allowed_skip_names_a_test_file_and_a_reason():
    for prefix, reason in allowed(ALLOWED.read_text()).items():
        assert reason, prefix
        assert (ROOT / prefix.split("::")[0]).exists(), prefix


def test_unexpected_skips_are_those_without_a_prefix():
    assert unexpected(["tests/b.py::two", "tests/a.py::one", "tests/b.py::two"], ["tests/a.py"]) == ["tests/b.py::two"]


def test_a_missing_program_skips_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(pytest.skip.Exception, match=r"apt-get install .* strace"):
        require_program("strace")


def test_every_program_of_the_tests_has_a_package():
    assert packages()["mkfs.ext4"] == "e2fsprogs"
