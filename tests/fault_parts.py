"""Divides the long fault suites into parts, and records what each run of a part has injected and found.

`fault_suites.csv` lists the suites: a folder, a file, a test or one case of a test, with its fault number and the
seconds it takes on an idle machine. A test belongs to its most specific row. `assign` gives each row to one part, from
this table alone, so a test is in the same part in every process. `make faults` sets the environment variables below;
each pytest process appends one line to `docs/fault_runs.jsonl`. `python -m tests.fault_parts` writes the tables of
`docs/reliability.md` from that file.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PART = "HEADWATER_FAULTS_PART"  # such as "2/8"; all tests run if it is not set
RUNS = "HEADWATER_FAULTS_RUNS"  # the file that a run is recorded in; none if it is not set
NOTE = "HEADWATER_FAULTS_NOTE"  # what readers of the figures should know, such as other load on the machine
ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_name("fault_suites.csv")
RECORDED = ROOT / "docs" / "fault_runs.jsonl"
PAGE = ROOT / "docs" / "reliability.md"
LONGEST = 3_600  # seconds that a part may take
BEGIN, END = "<!-- runs: begin -->", "<!-- runs: end -->"


class Suite(NamedTuple):
    """A row of the table: tests, the number of their fault ("-" if none) and the seconds that they take together."""

    name: str
    fault: str
    seconds: float


def read_suites(text: str) -> dict[str, Suite]:
    """Returns the suites of the table by name."""
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {row["suite"]: Suite(row["suite"], row["fault"], float(row["seconds"])) for row in rows}


def find_suite(nodeid: str, suites: Mapping[str, Suite]) -> Suite | None:
    r"""Returns the most specific suite that a test belongs to.

    Example:
        >>> suites = read_suites("suite,fault,seconds\ntests/a,F01,10\ntests/a/test_b.py::test_c,F02,20")
        >>> [find_suite(f"tests/a/test_b.py::{test}", suites).fault for test in ("test_c[1]", "test_d")]
        ['F02', 'F01']
    """
    name = nodeid
    while name and name not in suites:
        base = name.partition("[")[0]
        name = base if base != name else name[: max(name.rfind("::"), name.rfind("/"), 0)]
    return suites.get(name)


def assign(suites: Iterable[Suite], parts: int) -> dict[str, int]:
    """Returns the part of each suite, from 1: the longest suite first, into the part with the least to do.

    Example:
        >>> assign([Suite("a", "-", 5), Suite("b", "-", 9), Suite("c", "-", 5)], 2)
        {'b': 1, 'a': 2, 'c': 2}
    """
    load = [0.0] * parts
    found: dict[str, int] = {}
    for suite in sorted(suites, key=lambda suite: (-suite.seconds, suite.name)):
        least = load.index(min(load))
        load[least] += suite.seconds
        found[suite.name] = least + 1
    return found


def parse_part(text: str) -> tuple[int, int]:
    """Returns the number of a part and how many there are.

    Example:
        >>> parse_part("2/8")
        (2, 8)
    """
    number, _, parts = text.partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        message = f"no such part: PART={text}. Write a number and how many parts there are, such as PART=1/8"
        raise pytest.UsageError(message)
    return int(number), int(parts)


# -- counts of a run -------------------------------------------------------------------------------------------------

_injected: list[int] = []


def injected(number: int = 1) -> None:
    """Count faults that the running test has injected; a test that counts none has injected one."""
    _injected.append(number)


@dataclass
class Outcome:
    """What became of the tests of a suite.

    `lost`, `duplicated` and `unaccounted` are zero if every test passed: each compares all events with its oracle.
    Otherwise they are not known.
    """

    suite: str
    fault: str
    selected: int = 0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: int = 0
    injected: int = 0
    seconds: float = 0.0
    lost: int | None = None
    duplicated: int | None = None
    unaccounted: int | None = None


class FaultParts:
    """The plugin: selects the tests of a part, and records their outcomes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.suites = read_suites(TABLE.read_text())
        self.part = os.environ.get(PART) or "1/1"
        self.number, parts = parse_part(self.part)
        self.parts = assign(self.suites.values(), parts)
        self.selected: dict[str, int] = {}
        self.phases: dict[str, list[pytest.TestReport]] = {}
        self.started = time.monotonic()

    # Last, so that tests which -m and -k leave out are not counted.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            suite = find_suite(item.nodeid, self.suites)
            # A test without a suite runs in every part, and fails there.
            mine = suite is None or self.parts[suite.name] == self.number
            (kept if mine else left_out).append(item)
            if mine and suite is not None:
                self.selected[suite.name] = self.selected.get(suite.name, 0) + 1
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if find_suite(item.nodeid, self.suites) is None:
            pytest.fail(f"{item.nodeid} belongs to no part: name it in tests/{TABLE.name}", pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        _injected.clear()
        try:
            return (yield)
        finally:
            item.user_properties.append(("injected", sum(_injected) or 1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.phases.setdefault(report.nodeid, []).append(report)

    def pytest_sessionfinish(self) -> None:
        path = os.environ.get(RUNS)
        if hasattr(self.config, "workerinput"):
            self.config.workeroutput["fault_tests"] = self.selected  # type: ignore[attr-defined]
        elif path and self.phases:
            with Path(path).open("a") as file:
                file.write(json.dumps(self.describe_run()) + "\n")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of xdist has collected: the process that records collects nothing."""
        self.selected = getattr(node, "workeroutput", {}).get("fault_tests") or self.selected

    def describe_run(self) -> dict[str, Any]:
        """Returns the line of this run: where it ran, what was selected, and the outcome of each suite."""
        outcomes = self.outcomes()
        return {
            "commit": _git("rev-parse", "--short=10", "HEAD"),
            "changed": bool(_git("status", "--porcelain", "--", "src", "tests")),
            "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
            "cores": len(os.sched_getaffinity(0)),
            "memory": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
            "load": round(os.getloadavg()[2], 1),
            "note": os.environ.get(NOTE, ""),
            "part": self.part,
            "marks": self.config.getoption("markexpr", ""),
            "only": self.config.getoption("keyword", ""),
            "seconds": round(time.monotonic() - self.started),
            "suites": [asdict(outcome) for outcome in outcomes],
        }

    def outcomes(self) -> list[Outcome]:
        """Returns the outcome of every suite of which a test was selected."""
        found = {name: Outcome(name, self.suites[name].fault, number) for name, number in self.selected.items()}
        for nodeid, reports in self.phases.items():
            suite = find_suite(nodeid, self.suites) or Suite("-", "-", 0)
            _add(found.setdefault(suite.name, Outcome(suite.name, suite.fault)), nodeid, reports)
        for outcome in found.values():
            outcome.seconds = round(outcome.seconds, 1)
            if outcome.passed and not outcome.failed:
                outcome.lost = outcome.duplicated = outcome.unaccounted = 0
        return [found[name] for name in sorted(found)]


def _add(outcome: Outcome, nodeid: str, reports: list[pytest.TestReport]) -> None:
    """Add one test; its last try counts, if it had several."""
    last = {report.when: report for report in reports}
    outcome.seconds += sum(report.duration for report in reports)
    if any(report.failed for report in last.values()):
        outcome.failed.append(nodeid)
    elif any(report.skipped for report in last.values()):
        outcome.skipped += 1
        return
    elif "call" in last:
        outcome.passed += 1
    if "call" in last:
        outcome.injected += sum(int(str(n)) for name, n in last["call"].user_properties if name == "injected")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("unknown" if arguments[0] == "rev-parse" else "")


# -- the page --------------------------------------------------------------------------------------------------------

COLUMNS = ("fault", "tests", "passed", "injected", "lost", "duplicated", "unaccounted", "minutes")


def render(runs: Iterable[Mapping[str, Any]]) -> str:
    """Returns a table of results for each commit, the newest first."""
    commits: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        commits.setdefault(run["commit"] + (", with changes" if run["changed"] else ""), []).append(run)
    return "\n".join(_render_commit(commit, runs) for commit, runs in reversed(commits.items()))


def _render_commit(commit: str, runs: list[Mapping[str, Any]]) -> str:
    machines = sorted({f"{run['cores']} cores, {run['memory']} GiB" for run in runs})
    notes = sorted({run["note"] for run in runs if run["note"]})
    lines = [f"### Commit {commit}", "", f"{'; '.join(machines)}. {'. '.join(notes)}".strip(), ""]
    lines += [f"- {_render_run(run)}" for run in runs]
    lines += ["", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    faults: dict[str, list[Mapping[str, Any]]] = {}
    for suite in (suite for run in runs for suite in run["suites"]):
        faults.setdefault(suite["fault"], []).append(suite)
    return "\n".join([*lines, *(_render_fault(fault, faults[fault]) for fault in sorted(faults)), ""])


def _render_run(run: Mapping[str, Any]) -> str:
    selected = sum(suite["selected"] for suite in run["suites"])
    ended = sum(suite["passed"] + len(suite["failed"]) + suite["skipped"] for suite in run["suites"])
    which = f"part {run['part']}, `{run['marks']}`" + (f", only `{run['only']}`" if run["only"] else "")
    return f"{run['date']}: {which}: {ended} of {selected} tests in {run['seconds']} s, load {run['load']}"


def _render_fault(fault: str, suites: list[Mapping[str, Any]]) -> str:
    def total(name: str) -> str:
        values = [suite[name] for suite in suites]
        return "unknown" if None in values else f"{sum(values):,}"

    skipped = sum(suite["skipped"] for suite in suites)
    failed = [f"failed `{nodeid}`" for suite in suites for nodeid in suite["failed"]]
    cells = [
        fault,
        total("selected"),
        ", ".join([total("passed"), *([f"skipped {skipped}"] if skipped else []), *failed]),
        total("injected"),
        *map(total, ("lost", "duplicated", "unaccounted")),
        f"{sum(suite['seconds'] for suite in suites) / 60:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def write_page(page: Path = PAGE, recorded: Path = RECORDED) -> None:
    """Write the tables of all recorded runs between the two marks of the page."""
    runs = [json.loads(line) for line in recorded.read_text().splitlines()] if recorded.exists() else []
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{render(runs)}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    write_page(*map(Path, sys.argv[1:]))
