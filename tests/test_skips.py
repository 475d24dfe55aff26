"""Under CI a skipped test fails the run, with and without worker processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import packages, require_program
from tests.skips import ALLOWED, allowed, unexpected
from tests.small_suite import run_suite

ROOT = Path(__file__).parent.parent
SKIPPING = """
import pytest

def test_that_passes(): pass

@pytest.mark.skip(reason="no such machine")
def test_that_needs_another_machine(): pass
"""


def test_a_skip_passes_on_a_developers_machine(tmp_path):
    assert run_suite(tmp_path, SKIPPING, ci=False)[0] == 0


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_skip_fails_the_run_under_ci(tmp_path, options):
    code, output = run_suite(tmp_path, SKIPPING, ci=True, options=options)
    assert code == 1
    assert "test_small.py::test_that_needs_another_machine" in output


def test_a_named_skip_passes_under_ci(tmp_path):
    line = "tests/test_small.py::test_that_needs  # needs another machine"
    assert run_suite(tmp_path, SKIPPING, ci=True, allow=line, options=("-n", "2"))[0] == 0


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
