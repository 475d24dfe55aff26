"""What all tests share: the rules about skipped and flaky tests, and programs of the operating system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests import fault_parts, flaky, programs, skips

if TYPE_CHECKING:
    from tests.services.kafka import Broker

# Deadlines measure the machine, not the code; CI repeats the same examples in every run.
hypothesis.settings.register_profile("headwater", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "headwater")


def pytest_configure(config: pytest.Config) -> None:
    """Select and record a part of the long fault suites, where `make faults` asks for it."""
    if os.environ.get(fault_parts.PART) or os.environ.get(fault_parts.RUNS):
        config.pluginmanager.register(fault_parts.FaultParts(config))


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """`require_program("strace")` is its path, or skips the test with the line that installs it."""
    return programs.require_program


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all tests that do not harm it; each has topics of its own."""
    from tests.services.kafka import start_kafka
    from tests.services.system_packages import UnavailableError

    try:
        # Members may be counted as dead sooner than brokers allow by default, so that tests need not wait. Topics that
        # somebody asks for are made, as brokers do by default: none of our questions may have that effect.
        # Compaction looks for work each second, not every 15; transactions that took too long are aborted as soon.
        settings = {
            "group.min.session.timeout.ms": 100,
            "auto.create.topics.enable": "true",
            "log.cleaner.backoff.ms": 1000,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
        }
        broker = start_kafka(tmp_path_factory.mktemp("kafka"), settings)
    except UnavailableError as missing:
        pytest.skip(str(missing))
    yield broker
    broker.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they start, run long files first, and allow CI one more try with servers and Spark.

    Some doctests start Spark, and those of Kafka start the driver's threads. Tests that fork must not be in a
    process with such threads: `make test` runs services apart from them.
    """
    for item in items:
        if item.nodeid.endswith("headwater.testing.world.run") or "/engine/dsl" in item.nodeid:
            item.add_marker(pytest.mark.spark)
        if "/log/kafka/" in item.nodeid:
            item.add_marker(pytest.mark.services)
        if os.environ.get("CI") and flaky.may_rerun(item):
            item.add_marker(pytest.mark.flaky(reruns=1))
    # Whole files go to one of two processes: those that take minutes first, or one process waits for the other.
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/scale/", "tests/faults/")))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Under CI a skipped test is a failure, unless `allowed_skips.txt` names it; flaky tests are recorded."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    # The workers of xdist end here too, but only the process that prints has all reports.
    if reporter is None or hasattr(session.config, "workerinput") or not os.environ.get("CI"):
        return
    flaky.record(report.nodeid for report in reporter.stats.get("rerun", []))
    prefixes = skips.allowed(skips.ALLOWED.read_text())
    found = skips.unexpected((report.nodeid for report in reporter.stats.get("skipped", [])), prefixes)
    if found:
        reporter.ensure_newline()
        reporter.section("skipped, which CI does not allow", red=True)
        for nodeid in found:
            reporter.write_line(nodeid)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
