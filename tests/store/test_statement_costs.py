"""The statements of a batch, and those of the status, cost the same after a long history.

They are counted in steps of SQLite's virtual machine, which do not depend on the speed of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import headwater as hw
from headwater.backends import open_views
from headwater.log import EventLog
from headwater.store import PipelineReport, SideOutput, SqliteDialect, SqlStore
from headwater.store.views.lag import pipeline_lags
from tests.store.given import TOTALS, Runner, aside

SHORT, LONG = 20, 400
EACH = 10  # events, and late, quarantined and skipped ones, of a batch


def count_steps(store: SqlStore, work: Callable[[], object]) -> int:
    """Returns the number of steps that the statements of some work take."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    store.dialect.connection.set_progress_handler(step, 1)
    work()
    store.dialect.connection.set_progress_handler(None, 0)
    return steps


@contextmanager
def history(folder: Path, batches: int) -> Iterator[Runner]:
    """A view with so many batches, all with late and quarantined events, whose changes are published."""
    store = SqlStore(SqliteDialect(folder))
    store.dialect.connection.execute("PRAGMA synchronous = OFF")
    runner = Runner(store)
    for _ in range(batches):
        commit(runner)
    store.report(PipelineReport("totals", 1, "view", "running"))
    yield runner
    store.close()


def outputs(runner: Runner) -> tuple[SideOutput, ...]:
    return tuple(aside(runner.batch * EACH + n, data=b"x" * 100) for n in range(EACH))


def commit(runner: Runner) -> None:
    runner.commit([{"k": "a", "n": runner.batch}], late=outputs(runner), quarantined=outputs(runner))


def skip(runner: Runner) -> None:
    runner.store.skip(runner.query, outputs(runner))


def read_for_batch(runner: Runner) -> None:
    """What the sink asks before it commits."""
    store, start = runner.store, runner.batch * EACH
    store.check_epoch(runner.query, runner.epoch)
    store.entry(runner.query, runner.batch)
    assert len(store.skips(runner.query, [("orders", 0, start - EACH, start)])) == EACH


def publish(runner: Runner) -> None:
    [newest] = runner.store.outbox(runner.query)[-1:]
    runner.store.last_published(runner.query)
    runner.store.mark_published(runner.query, newest.batch, {0: 1})


def status(runner: Runner) -> None:
    runner.store.dialect.connection.execute("SELECT * FROM hw_pipelines").fetchall()


def test_a_batch_and_its_status_cost_the_same_after_a_long_history(tmp_path):
    found: dict[str, list[int]] = {}
    for batches in (SHORT, LONG):
        with history(tmp_path / str(batches), batches) as runner:
            for number in range(batches):
                runner.store.mark_published(runner.query, number, {0: number})
                runner.store.skip(runner.query, tuple(aside(number * EACH + n) for n in range(EACH)))
            for work in (read_for_batch, commit, publish, skip, status):
                found.setdefault(work.__name__, []).append(count_steps(runner.store, lambda w=work: w(runner)))  # type: ignore[misc]

    assert all(short > 5 for short, _ in found.values()), found
    assert {name: steps for name, steps in found.items() if steps[1] > 1.2 * steps[0]} == {}


@pytest.mark.parametrize("pipelines", [1, 12])
def test_the_lag_of_all_pipelines_takes_one_query(tmp_path, pipelines):
    with EventLog(tmp_path) as log:
        hw.Client(log, log.clock).create_topic("orders", "n int", partitions=1)
        hw.Client(log, log.clock).send_many("orders", [{"n": n} for n in range(25)])
        store = SqlStore(SqliteDialect(tmp_path / "store"))
        for number in range(pipelines):
            runner = Runner(store, replace(TOTALS, name=f"v{number}"))
            for _ in range(number % 3):  # the first has no batch yet
                runner.commit([{"k": "a", "n": runner.batch}])
            store.report(PipelineReport(f"v{number}", 1, "view", "running", inputs=("orders",)))
        views, asked = open_views(log), []
        sql = views.sql
        views.sql = lambda text, *more, **options: asked.append(text) or sql(text, *more, **options)  # type: ignore[method-assign, func-returns-value]
        found = {lag.pipeline: lag.events for lag in pipeline_lags(log, log.clock, views)}
        views.close()
        store.close()

    assert found == {f"v{number}": 25 - 10 * (number % 3) for number in range(pipelines)}
    assert len(asked) == 1
