"""The long fault suites are divided so that each test is in one part, and what a part has run is recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fault_parts import (
    BEGIN,
    END,
    LONGEST,
    PAGE,
    PART,
    RECORDED,
    RUNS,
    TABLE,
    Suite,
    assign,
    find_suite,
    parse_part,
    read_suites,
    render,
    write_page,
)
from tests.small_suite import run_suite

ROOT = Path(__file__).parent.parent
SUITES = read_suites(TABLE.read_text())
SMALL = """
import pytest
from tests.fault_parts import injected

@pytest.mark.parametrize("share", range(3))
def test_long(share): injected(5); injected(share)

def test_other(): pass

def test_failing(): assert False
"""
ROWS = """suite,fault,seconds
tests/test_small.py,F09,1
tests/test_small.py::test_long[0],F01,40
tests/test_small.py::test_long[1],F01,20
tests/test_small.py::test_long,F01,10
"""


def run_part(folder: Path, part: str, suite: str = SMALL, rows: str = ROWS, **options: Any) -> tuple[int, str, Any]:
    recorded = folder / "runs"
    given = {PART: part, RUNS: str(recorded), "CI": ""}
    code, output = run_suite(folder, suite, ci=False, faults=rows, **options, **given)
    return code, output, json.loads(recorded.read_text().splitlines()[-1]) if recorded.exists() else None


def test_every_test_is_in_one_part_and_its_outcome_is_recorded(tmp_path):
    code, _, first = run_part(tmp_path, "1/2", options=("-n", "2"))
    assert (code, first["part"], first["cores"] > 0, first["memory"] > 0) == (0, "1/2", True, True)
    [alone] = first["suites"]
    assert (alone["suite"], alone["fault"]) == ("tests/test_small.py::test_long[0]", "F01")
    assert [alone[name] for name in ("selected", "passed", "failed", "injected")] == [1, 1, [], 5]
    assert [alone[name] for name in ("lost", "duplicated", "unaccounted")] == [0, 0, 0]
    code, _, second = run_part(tmp_path, "2/2")
    found = {suite["suite"]: suite for suite in second["suites"]}
    assert (code, set(found)) == (1, set(read_suites(ROWS)) - {alone["suite"]})
    assert [found["tests/test_small.py::test_long"][name] for name in ("passed", "injected")] == [1, 7]
    mixed = found["tests/test_small.py"]
    assert (mixed["selected"], mixed["passed"], mixed["failed"]) == (2, 1, ["tests/test_small.py::test_failing"])
    assert (mixed["lost"], mixed["injected"]) == (None, 2)
    assert len((tmp_path / "runs").read_text().splitlines()) == 2


def test_a_test_that_belongs_to_no_part_fails(tmp_path):
    suite = "def test_new(): pass\n"
    code, output, run = run_part(tmp_path, "1/2", suite, "suite,fault,seconds\ntests/test_other.py,F01,1\n")
    assert (code, [outcome["suite"] for outcome in run["suites"]]) == (1, ["-"])
    assert "tests/test_small.py::test_new belongs to no part: name it in tests/fault_suites.csv" in output


def test_a_run_that_ends_early_records_what_it_did_not_run(tmp_path):
    code, _, run = run_part(tmp_path, "1/1", SMALL.replace("assert False", "pytest.exit('stopped')"))
    assert code
    assert re.search(r"part 1/1.*: 4 of 5 tests", render([run]))


@pytest.mark.parametrize("part", ["0/3", "4/3", "2", "x/3", "/"])
def test_a_part_that_does_not_exist_is_refused(part):
    with pytest.raises(pytest.UsageError):
        parse_part(part)


def test_parts_of_the_makefile_take_at_most_an_hour():
    makefile = (ROOT / "Makefile").read_text()
    parts = int(re.search(r"^FAULT_PARTS := (\d+)$", makefile, re.MULTILINE)[1])
    assigned = assign(SUITES.values(), parts)
    assert set(assigned) == set(SUITES)
    for part in range(1, parts + 1):
        assert 0 < sum(SUITES[name].seconds for name in assigned if assigned[name] == part) <= LONGEST


def fault_tests() -> list[str]:
    """The files with tests that `make faults` runs."""
    files = [path for room in ("faults", "queues", "engine", "scale") for path in (ROOT / "tests" / room).rglob("*.py")]
    spark = re.compile(r"mark\.spark\b")
    return [
        str(path.relative_to(ROOT))
        for path in files
        if path.name.startswith("test_")
        and (path.parts[-2] not in ("engine", "scale") or spark.search(path.read_text()))
    ]


@pytest.mark.parametrize("file", fault_tests())
def test_every_file_that_make_faults_runs_has_a_suite(file):
    assert find_suite(f"{file}::test_of_tomorrow", SUITES)


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_every_suite_names_what_exists(suite):
    file, _, test = suite.name.partition("::")
    assert (ROOT / file).exists()
    assert not test or f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()
    assert re.fullmatch(r"F\d\d|-", suite.fault)


def test_a_longer_suite_moves_no_test_into_two_parts():
    before = [Suite(name, "-", seconds) for name, seconds in zip("abcdef", (9, 7, 6, 5, 4, 3), strict=True)]
    for parts in range(1, 8):
        assert sorted(assign(before, parts)) == list("abcdef")
        assert set(assign(before, parts).values()) <= set(range(1, parts + 1))
    assert assign(before, 3) == assign(reversed(before), 3)


def test_the_page_shows_the_recorded_runs(tmp_path):
    page = tmp_path / "reliability.md"
    page.write_text(PAGE.read_text())
    write_page(page, RECORDED)
    assert page.read_text() == PAGE.read_text(), "run .venv/bin/python -m tests.fault_parts"


def test_the_table_of_a_commit_adds_up_its_runs(tmp_path):
    suite = {
        "suite": "t", "fault": "F01", "selected": 3, "passed": 3, "failed": [], "skipped": 0,
        "injected": 500, "seconds": 90.0, "lost": 0, "duplicated": 0, "unaccounted": 0,
    }  # fmt: skip
    broken = suite | {"fault": "F02", "passed": 1, "failed": ["t::x"], "skipped": 1, "lost": None}
    run = {
        "commit": "abc", "changed": False, "date": "2026-01-01 00:00", "cores": 2, "memory": 24, "load": 9.5,
        "note": "Shared.", "part": "1/9", "marks": "spark", "only": "", "seconds": 95, "suites": [suite, broken],
    }  # fmt: skip
    page, recorded = tmp_path / "page.md", tmp_path / "runs"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    recorded.write_text("".join(f"{json.dumps(one)}\n" for one in (run, run | {"part": "2/9", "suites": [suite]})))
    write_page(page, recorded)
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert "2 cores, 24 GiB. Shared." in lines
    assert "| F01 | 6 | 6 | 1,000 | 0 | 0 | 0 | 3.0 |" in lines
    assert "| F02 | 3 | 1, skipped 1, failed `t::x` | 500 | unknown | 0 | 0 | 1.5 |" in lines
    assert "- 2026-01-01 00:00: part 1/9, `spark`: 6 of 6 tests in 95 s, load 9.5" in lines
