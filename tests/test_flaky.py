"""Under CI a test with servers or Spark has a second try, and is named if it needed one."""

from __future__ import annotations

import pytest

from tests.flaky import FILE
from tests.small_suite import run_suite

FLAKY = """
import pytest
from pathlib import Path

def fail_once(name):
    marker = Path(__file__).with_name(name)
    if not marker.exists():
        marker.touch()
        raise AssertionError("the machine was busy")

@pytest.mark.services
def test_with_a_server(): fail_once("server")

@pytest.mark.spark
def test_with_spark(): fail_once("spark")
"""
ALONE = (
    FLAKY
    + """
def test_without_either(): fail_once("neither")
"""
)
BROKEN = (
    FLAKY
    + """
@pytest.mark.spark
def test_that_always_fails(): assert False
"""
)


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_test_with_servers_or_spark_passes_on_its_second_try_and_is_named(tmp_path, options):
    found = tmp_path / "flaky"
    code, _ = run_suite(tmp_path, FLAKY, ci=True, options=options, **{FILE: str(found)})
    assert code == 0
    assert found.read_text().split() == [
        "tests/test_small.py::test_with_a_server",
        "tests/test_small.py::test_with_spark",
    ]


@pytest.mark.parametrize("suite", [ALONE, BROKEN], ids=["without servers", "broken"])
def test_other_failures_fail_the_run(tmp_path, suite):
    assert run_suite(tmp_path, suite, ci=True)[0] == 1


def test_a_developer_sees_the_first_failure(tmp_path):
    assert run_suite(tmp_path, FLAKY, ci=False)[0] == 1
