"""The search for the events of a failed batch on which the user's code fails.

`find_failing_events` first probes all rows at once through the narrow part of the plan (see `probe_plan`). Only if that
finds none, or cannot run, it runs halves of the batch separately, within a budget.
"""

from __future__ import annotations

import io
import itertools
import logging
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from headwater.engine.build.inputs import Input
from headwater.engine.build.plan_analysis import WATERMARK_DELAY_KEY
from headwater.engine.context import EngineContext
from headwater.engine.quarantine.failure import Failure
from headwater.engine.quarantine.failure_limit import FailureLimit, past_outcomes, pending_outcomes
from headwater.engine.quarantine.probe_plan import probe_frame, probe_session
from headwater.engine.quarantine.probed_function import ROW
from headwater.engine.query import Query
from headwater.engine.sink.accounting import read_planned_retries, to_side_outputs
from headwater.engine.sink.checkpoint import pending_batch, read_planned_batch
from headwater.errors import BadRowError
from headwater.log import LogBatch
from headwater.store import SideOutput

__all__ = [
    "Candidates",
    "SearchBudget",
    "SearchResult",
    "bisect",
    "check_failures",
    "find_failing_events",
    "find_unstorable_events",
]

logger = logging.getLogger("headwater.engine")


@dataclass(frozen=True)
class Candidates:
    """Rows of one log batch, as one input sees them."""

    input_: Input
    batch: LogBatch

    def __len__(self) -> int:
        return int(self.batch.values.num_rows)

    def rows(self, start: int, end: int) -> Candidates:
        """Returns the rows from `start` up to, but not including, `end`."""
        indexes = np.arange(len(self))
        return self.select((indexes >= start) & (indexes < end))

    def select(self, mask: np.ndarray) -> Candidates:
        """Returns the rows for which the mask is true."""
        return Candidates(self.input_, self.batch.select(mask))


@dataclass(frozen=True)
class SearchResult:
    """What a search has found.

    Attributes:
        failing: The rows on which the function fails.
        failures: The failure of each of these rows, in their order.
        passed: Rows on which it succeeds.
        complete: Whether the budget sufficed.
    """

    failing: list[Candidates]
    failures: list[Failure]
    passed: list[Candidates]
    complete: bool = True

    def side_outputs(self) -> list[SideOutput]:
        """Returns the failing events as they are quarantined."""
        reasons = map(str, self.failures)
        return [aside for some in self.failing for aside in _to_side_outputs(some.batch, reasons)]

    def outcomes(self) -> np.ndarray:
        """Returns whether each event failed, in the order of arrival."""
        times = [some.batch.arrival_times for some in (*self.failing, *self.passed)]
        failed = np.arange(sum(map(len, times))) < len(self.failures)
        return failed[np.argsort(np.concatenate(times), kind="stable")] if times else failed


@dataclass
class SearchBudget:
    """The number of Spark jobs, and the seconds, that a search by halves may take.

    Example:
        >>> budget = SearchBudget(jobs=3)
        >>> [budget.take(), budget.take(), budget.take(2), budget.take()]
        [True, True, False, False]
    """

    jobs: int = 100
    seconds: float = 60.0
    exhausted: bool = False
    _began: float = field(default_factory=time.monotonic)

    def take(self, jobs: int = 1) -> bool:
        """Returns whether some more jobs may run; if they may not, none may."""
        self.jobs -= jobs
        self.exhausted |= self.jobs < 0 or time.monotonic() - self._began > self.seconds
        return not self.exhausted


RowCheck = Callable[[pa.Table], None]
"""Raises `BadRowError` if rows cannot be stored."""


def find_failing_events(
    spark: SparkSession,
    query: Query,
    context: EngineContext,
    check: RowCheck | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Returns the events of the failed batch on which the user's function fails alone.

    None are found if the batch now succeeds, because the cause was elsewhere and has passed, or if no single event is
    the cause.

    Args:
        spark: The session.
        query: The query whose batch has failed.
        context: The engine context.
        check: If the batch failed because a row cannot be stored: the check of rows.
        report: Called with the progress, as text.
    """
    candidates = [some for some in _candidates(query, context) if len(some)]
    if not candidates:
        return SearchResult([], [], [])
    report(f"{sum(map(len, candidates)):,} events")
    # The probe runs the narrow part of the plan, and rows can be checked only at its end.
    found = _probe_rows(spark, query, candidates) if check is None else None
    return found or _search_by_halves(spark, query, candidates, check, report)


def find_unstorable_events(query: Query, context: EngineContext, error: BadRowError) -> SearchResult:
    """Returns the events of the failed batch with a value that no store can hold; without Spark.

    For pipelines with operators and queries over tables: their rows cannot be traced back to events, but they pass
    values on.

    Args:
        query: The query whose batch has failed.
        context: The engine context.
        error: The error of the row.
    """
    passed: list[Candidates] = []

    def check(some: Sequence[Candidates]) -> Failure | None:
        try:
            for one in some:
                columns = query.built.input_options.columns_of(one.input_)
                query.check_values(_to_table(query, one.input_, [one]).select(columns), error.data.get("column"))
        except BadRowError as found:
            return Failure(f"{found.code}: {found.what}")
        passed.extend(some)
        return None

    found = list(bisect(list(_candidates(query, context)), check, SearchBudget(sys.maxsize, math.inf)))
    return SearchResult([one for one, _ in found], [failure for _, failure in found], passed)


def check_failures(query: Query, context: EngineContext, found: SearchResult) -> None:
    """Refuse to quarantine the events of a batch if the function fails on too many.

    Raises:
        TooManyFailuresError: The latest events of the pipeline, up to any of this batch, exceed the limit.
    """
    if not found.failures:
        return
    store, query_id, limit = context.store, query.directory.query_id, FailureLimit.of_settings()
    skipped = store.skips(query_id)
    past = past_outcomes(store, query_id, skipped, limit.window)
    outcomes = np.concatenate((past, pending_outcomes(store, query_id, skipped), found.outcomes()))
    failure = next((one for one in found.failures if one.location is not None), found.failures[0])
    limit.check(query.pipeline, outcomes, len(past) + 1, failure)


def _candidates(query: Query, context: EngineContext) -> Iterator[Candidates]:
    """Yields the rows that the function received in the failed batch."""
    batch = pending_batch(query.directory.checkpoint)
    if batch is None:
        return
    planned = read_planned_batch(query.directory.checkpoint, batch, list(query.starts), query.starts)
    skipped = set(context.store.skip_positions(query.directory.query_id))
    for input_ in query.built.inputs:
        visible = query.built.input_options.visible_rows(input_)
        for partition, start in planned[input_.name].start.items() if input_.name in planned else ():
            topic, end = context.log.open_topic(input_.topic.name), planned[input_.name].end[partition]
            for found in topic.batches(partition, start, end):
                mask = visible.mask(found)
                mask &= [(input_.topic.name, partition, int(offset)) not in skipped for offset in found.offsets]
                yield Candidates(input_, found.select(mask))
        if input_.name in planned and planned[input_.name].retries:
            retries = context.store.retries(query.directory.query_id)
            for found in read_planned_retries(context.log, query.built, input_, planned[input_.name], retries):
                yield Candidates(input_, found)


# -- all rows at once ----------------------------------------------------------------------------------------------


def _probe_rows(spark: SparkSession, query: Query, candidates: Sequence[Candidates]) -> SearchResult | None:
    """Returns the rows that fail in the narrow part of the plan, in at most three jobs; None if there are none."""
    session = probe_session(spark)
    try:
        first = _failures_of_rows(session, query, candidates)
        # Once more, alone: a failure that came from outside must not quarantine an event.
        again = _failures_of_rows(session, query, _select(candidates, first)) if first else {}
    except (Py4JNetworkError, OSError):
        raise  # Spark itself has ended; no event is the cause
    except Exception as error:
        failure = Failure.of_error(error, query.pipeline)
        logger.info("%s: its events are searched by halves: %s", query.pipeline, failure)
        return None
    failures = {row: again[number] for number, row in enumerate(sorted(first)) if number in again}
    if not failures:
        return None
    failing = _select(candidates, failures)
    explained = _explain(spark, query, failing, [failures[row] for row in sorted(failures)])
    return SearchResult(failing, explained, _select(candidates, failures, inverted=True))


def _failures_of_rows(session: SparkSession, query: Query, candidates: Sequence[Candidates]) -> dict[int, Failure]:
    """Returns the failures by the number of the row, counted over all candidates."""
    assert query.built.before_state is not None
    starts = np.cumsum([0, *map(len, candidates)])
    frames = {}
    for input_ in query.built.inputs:
        numbers = [
            np.arange(start, start + len(some))
            for start, some in zip(starts, candidates, strict=False)
            if some.input_ is input_
        ]
        rows = _to_table(query, input_, candidates)
        column = pa.array(np.concatenate([np.zeros(0, np.int64), *numbers]), pa.int64())
        frames[input_.name] = _to_frame(session, input_, rows.append_column(ROW, column)).drop(ROW)
    probe = probe_frame(query.built.before_state(frames))
    found: dict[int, Failure] = {}
    for row, why in probe.collect() if probe is not None else ():
        found.setdefault(row, Failure.of_row(why))
    return found


def _select(candidates: Sequence[Candidates], rows: Collection[int], *, inverted: bool = False) -> list[Candidates]:
    """Returns the candidates with only the rows of these numbers, or without these."""
    mask = np.full(sum(map(len, candidates)), inverted)
    mask[list(rows)] = not inverted
    parts = np.split(mask, np.cumsum([len(some) for some in candidates])[:-1])
    selected = [some.select(part) for some, part in zip(candidates, parts, strict=True)]
    return [some for some in selected if len(some)]


def _explain(
    spark: SparkSession, query: Query, failing: Sequence[Candidates], failures: list[Failure]
) -> list[Failure]:
    """Ask Spark for the message of the first expression that failed; all others are named by the expression."""
    number = next((index for index, failure in enumerate(failures) if failure.expression), None)
    if number is None:
        return failures
    explained = _run(spark.newSession(), query, _select(failing, [number])) or failures[number]
    return [*failures[:number], explained, *failures[number + 1 :]]


# -- by halves -----------------------------------------------------------------------------------------------------


def _search_by_halves(
    spark: SparkSession,
    query: Query,
    candidates: Sequence[Candidates],
    check: RowCheck | None,
    report: Callable[[str], None],
) -> SearchResult:
    session = spark.newSession()
    budget = SearchBudget()
    limit, events = budget.jobs, sum(map(len, candidates))
    passed: list[Candidates] = []

    def probe(some: Sequence[Candidates]) -> Failure | None:
        known = sum(map(len, passed))
        report(f"{known:,} of {events:,} events are good, job {limit - budget.jobs} of at most {limit}")
        failure = _run(session, query, some, check)
        if failure is None:
            passed.extend(some)
        return failure

    found = list(bisect(candidates, probe, budget))
    failing, failures = [one for one, _ in found], [failure for _, failure in found]
    return SearchResult(failing, failures, passed, complete=not budget.exhausted)


def _run(
    session: SparkSession, query: Query, candidates: Sequence[Candidates], check: RowCheck | None = None
) -> Failure | None:
    """Run the function on some rows, and check the rows that it returns; returns why it failed, or None."""
    assert query.built.before_state is not None
    frames = {
        input_.name: _to_frame(session, input_, _to_table(query, input_, candidates)) for input_ in query.built.inputs
    }
    try:
        result = query.built.before_state(frames)
        if check is None:
            result.write.format("noop").mode("overwrite").save()
        else:
            check(result.toArrow())
    except BadRowError as error:
        return Failure(f"{error.code}: {error.what}")
    except (Py4JNetworkError, OSError):
        raise  # Spark itself has ended; no event is the cause
    except Exception as error:
        return Failure.of_error(error, query.pipeline)
    return None


def bisect(
    candidates: Sequence[Candidates],
    probe: Callable[[Sequence[Candidates]], Failure | None],
    budget: SearchBudget | None = None,
) -> Iterator[tuple[Candidates, Failure]]:
    """Split failing rows in halves until single rows are left; yields each with its failure.

    Args:
        candidates: The rows.
        probe: Runs the function on some rows; returns why it failed, or None.
        budget: How often it may be run.
    """
    budget = budget or SearchBudget()
    remaining = [some for some in candidates if len(some)]
    if remaining and budget.take() and probe(remaining) is not None:
        yield from _split(remaining, probe, budget)


def _split(
    failing: Sequence[Candidates], probe: Callable[[Sequence[Candidates]], Failure | None], budget: SearchBudget
) -> Iterator[tuple[Candidates, Failure]]:
    """Search rows that have failed together."""
    if sum(map(len, failing)) == 1:
        # Twice: a worker killed from outside must not quarantine an event.
        if budget.take(2) and probe(failing) is not None and (failure := probe(failing)) is not None:
            yield failing[0], failure
        return
    if len(failing) == 1:
        middle = len(failing[0]) // 2
        failing = [failing[0].rows(0, middle), failing[0].rows(middle, len(failing[0]))]
    first, second = failing[: len(failing) // 2], failing[len(failing) // 2 :]
    if not budget.take():
        return
    first_fails = probe(first) is not None
    if first_fails:
        yield from _split(first, probe, budget)
    # Without a failure in the first half, the cause is in the second.
    if not first_fails or (budget.take() and probe(second) is not None):
        yield from _split(second, probe, budget)


# -- rows ----------------------------------------------------------------------------------------------------------


def _to_table(query: Query, input_: Input, candidates: Sequence[Candidates]) -> pa.Table:
    """Returns the rows of one input, in order."""
    visible = query.built.input_options.visible_rows(input_)
    mine = [some.batch for some in candidates if some.input_ is input_]
    rows = [visible.rows(batch, np.ones(batch.values.num_rows, bool)) for batch in mine]
    return pa.Table.from_batches(rows, input_.schema)


def _to_frame(session: SparkSession, input_: Input, rows: pa.Table) -> DataFrame:
    # Operators look for the column that is marked as event time.
    return session.createDataFrame(rows).withMetadata(input_.time, {WATERMARK_DELAY_KEY: 0})


def _to_side_outputs(batch: LogBatch, reasons: Iterator[str]) -> Iterator[SideOutput]:
    """Yields the rows of a batch with their reasons, each with its own bytes."""
    mine = itertools.islice(reasons, batch.values.num_rows)
    for number, aside in enumerate(to_side_outputs(batch, mine)):
        target = io.BytesIO()
        with pa.ipc.new_stream(target, batch.values.schema) as writer:
            writer.write_batch(batch.values.slice(number, 1))
        yield replace(aside, data=target.getvalue())
