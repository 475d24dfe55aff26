"""Supervises one pipeline: starts it, restarts it when it fails, and stops after repeated failures."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pyspark.sql import SparkSession

from headwater.backoff import Backoff, RestartLimit
from headwater.engine.build.inputs import Input
from headwater.engine.compatibility import Rebuild, ViewVersions
from headwater.engine.context import EngineContext
from headwater.engine.failpoints import CrashError
from headwater.engine.quarantine import find_failing_events
from headwater.engine.query import OffsetBounds, Query
from headwater.engine.realtime.realtime_query import RealtimeQuery, TaskSlots
from headwater.engine.sink.stateful_stage import STATE_LOST
from headwater.engine.spark.error_translation import source_error, translate_error
from headwater.errors import (
    BadCredentialsError,
    DamagedError,
    DataError,
    FencedError,
    HeadwaterError,
    LedgerMismatchError,
    MissingPackageError,
    SchemaConflictError,
    StateChangedError,
    UnreachableError,
    UsageError,
)
from headwater.pipelines import Pipeline, PipelineKind
from headwater.store import PipelineReport
from headwater.store.commit import PipelineState

__all__ = ["PipelineSupervisor"]

logger = logging.getLogger("headwater.engine")
_MAX_FAILURES: Final = 4
_FAILURE_WINDOW: Final = timedelta(minutes=1)
_BACKOFF: Final = Backoff(timedelta(seconds=0.5), timedelta(seconds=2.5))
_PERMANENT_ERRORS: Final = (
    UsageError,
    DataError,
    LedgerMismatchError,
    SchemaConflictError,
    StateChangedError,
    BadCredentialsError,
    MissingPackageError,
)
"""Errors that every further attempt would meet again."""
_STOP_TIMEOUT: Final = 60.0
_WORKER_START_TIMEOUT: Final = "failed to connect back"
"""Spark's timeout of ten seconds for the start of a Python process, which a busy machine exceeds: retry."""
_BUSY_DELAY: Final = 2.0
_NO_TASK_SLOT: Final = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"
"""All tasks of a real-time query start at once; it waits while others occupy the slots."""
_STATE_LOST: Final = re.compile(
    rf"{STATE_LOST}|state directory is empty or missing|CANNOT_LOAD_STATE_STORE\.(?!UNRELEASED|\w*OUT_OF_MEMORY)"
)
"""What Spark says when the state of a query is gone or damaged."""


class PipelineSupervisor:
    """Runs one pipeline in its own thread.

    Args:
        spark: Gives the session.
        pipeline: What to run.
        inputs: Gives what it reads, once its inputs are there.
        context: The engine context.
        rebuild: Given when it is to be rebuilt.
        is_leaf: Whether no other pipeline reads it, so that it may be rebuilt without them.
        slots: Who holds Spark's task slots, for real-time pipelines.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        pipeline: Pipeline,
        inputs: Callable[[], tuple[Input, ...]],
        context: EngineContext,
        rebuild: Rebuild | None = None,
        *,
        is_leaf: bool = True,
        slots: TaskSlots | None = None,
    ) -> None:
        self.pipeline = pipeline
        self._is_leaf = is_leaf
        self._slots = slots or TaskSlots()
        self.error: HeadwaterError | None = None
        self._spark = spark
        self._inputs = inputs
        self._context = context
        self._versions = ViewVersions(context, pipeline.name, self._make_query, rebuild)
        self._query: Query | None = None
        self._restarts = RestartLimit(_MAX_FAILURES, _FAILURE_WINDOW)
        self._unreachable_since: float | None = None
        self._unreachable_attempts = 0
        self._stopping = threading.Event()
        self._state: PipelineState = "starting"
        self._state_changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"headwater-{pipeline.name}", daemon=True)

    # -- from outside --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._report_state("starting")
        self._thread.start()

    @property
    def query(self) -> Query | None:
        """The query, once it runs."""
        return self._query

    def wait_until_running(self) -> Query:
        """Wait until the query runs.

        Raises:
            HeadwaterError: It cannot.
        """
        with self._state_changed:
            self._state_changed.wait_for(
                lambda: self.error is not None or self._state in ("running", "rebuilding", "stopped")
            )
        if self.error is not None:
            raise self.error
        assert self._query is not None
        return self._query

    def catch_up(self) -> None:
        """Return when everything now in the log is committed, across failures and restarts.

        Raises:
            HeadwaterError: The pipeline has failed for good.
        """
        while True:
            query = self.wait_until_running()
            try:
                query.catch_up()
            except Exception:
                logger.debug("%s ended while catching up", self.pipeline.name, exc_info=True)
                query.wait()
            if query.failure is None and query.active:
                return
            with self._state_changed:  # until the thread has seen the failure, and started another query or given up
                while self._query is query and self.error is None:
                    self._state_changed.wait()

    def stop(self) -> None:
        """Stop the query and the thread."""
        self._stopping.set()
        deadline = time.monotonic() + _STOP_TIMEOUT
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._query is not None:
                self._query.stop()
            self._thread.join(timeout=0.2)  # it may be about to start a query

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            failure = self._run_once()
            if self._stopping.is_set():
                break
            try:
                delay = self._handle_failure(failure)
            except Exception as error:  # release waiters when the thread ends
                self._give_up(translate_error(error, self.pipeline))
                return
            if delay is None:
                return
            self._stopping.wait(delay)
        self._report_state("stopped")

    def _run_once(self) -> BaseException | None:
        """Run the query until it ends; returns the error that ended it."""
        try:
            query = self._versions.next_query()
            query.start()
        except (Exception, CrashError) as error:
            return error
        self._query = query
        if self._stopping.is_set():
            query.stop()
        self._report_state("rebuilding" if self._versions.rebuilding else "running")
        query.wait()
        return query.failure

    def _make_query(self, version: int, bounds: OffsetBounds | None) -> Query:
        arguments = self._spark(), self.pipeline, self._inputs(), version, self._context
        if self.pipeline.realtime:
            return RealtimeQuery(*arguments, self._slots, lambda words: self._report_state("starting", words))
        return Query(*arguments, self._on_commit, bounds)

    def _handle_failure(self, failure: BaseException | None) -> float | None:
        """Returns the seconds until the next attempt; None if there is none."""
        if failure is None or isinstance(failure, CrashError):
            self._clear_query()
            return 0.0
        if isinstance(failure, FencedError):  # perhaps by an older driver, which may run for a moment yet
            with contextlib.suppress(UnreachableError):
                self._context.check_owner()
        permanent = self._permanent_error(failure)
        if permanent is not None:
            self._give_up(permanent)
            return None
        ours = source_error(failure) or failure
        if isinstance(ours, UnreachableError):
            return self._wait_for_server(ours)
        retry_delay = self._try_repair(failure)
        if retry_delay is not None:
            self._clear_query()
            return retry_delay
        error = translate_error(failure, self.pipeline)
        if self._restarts.record(self._context.clock.monotonic()):
            self._give_up(error)
            return None
        delay = _BACKOFF.delay(self._restarts.recent).total_seconds()
        self._report_state("waiting", f"{error.what}; next try in {delay:g} s")
        logger.warning("%s failed, next try in %g s: %s", self.pipeline, delay, error)
        self._clear_query()
        return delay

    def _permanent_error(self, failure: BaseException) -> HeadwaterError | None:
        """Returns the error that every attempt would meet again; None if another attempt may help."""
        if _STATE_LOST.search(str(failure)):
            return None if self._can_rebuild() else self._state_lost_error(failure)
        return translate_error(failure, self.pipeline) if isinstance(failure, _PERMANENT_ERRORS) else None

    def _wait_for_server(self, error: UnreachableError) -> float:
        """Wait without limit for an unreachable broker or database, and report that."""
        now = self._context.clock.monotonic()
        if self._unreachable_since is None:
            self._unreachable_since, self._unreachable_attempts = now, 0
        self._report_state("waiting", f"{error.what}; waiting for {now - self._unreachable_since:.0f} s so far")
        logger.warning("%s waits: %s", self.pipeline, error)
        self._clear_query()
        self._unreachable_attempts += 1
        return _BACKOFF.delay(self._unreachable_attempts).total_seconds()

    def _try_repair(self, failure: BaseException) -> float | None:
        """Repair a known cause; returns the seconds until the next attempt, or None if the cause is unknown."""
        if _WORKER_START_TIMEOUT in str(failure):
            self._report_state("waiting", f"the machine is busy, Spark starts slowly; next try in {_BUSY_DELAY:g} s")
            return _BUSY_DELAY
        if _NO_TASK_SLOT in str(failure):
            self._report_state("waiting", f"others have Spark's task slots; next try in {_BUSY_DELAY:g} s")
            return _BUSY_DELAY
        if _STATE_LOST.search(str(failure)):
            self._report_state("waiting", "its state is damaged; it is made anew from the log")
            logger.warning("%s: its state is damaged, a rebuild begins: %s", self.pipeline, _state_error_line(failure))
            self._versions.rebuild = Rebuild()
            return 0.0
        return 0.0 if self._quarantine_failing_events(failure) else None

    def _can_rebuild(self) -> bool:
        """Returns whether the view can be rebuilt from the log without a user's request."""
        return self.pipeline.kind is PipelineKind.VIEW and self._is_leaf and not self._versions.rebuilding

    def _state_lost_error(self, failure: BaseException) -> DamagedError:
        view = self.pipeline.kind is PipelineKind.VIEW
        return DamagedError(
            f"the state of {self.pipeline} is gone or damaged",
            detail=_state_error_line(failure),
            fix=f"headwater run --rebuild {self.pipeline.name}" if view else "give it another name",
            location=self.pipeline.location,
            pipeline=self.pipeline.name,
        )

    def _quarantine_failing_events(self, failure: BaseException) -> bool:
        """Find the rows that make the batch fail, and skip them."""
        query = self._query
        ours = isinstance(failure, HeadwaterError) or source_error(failure) is not None
        if query is None or ours or self._stopping.is_set():
            return False
        if self.pipeline.realtime or query.built.before_state is None:  # half a batch would mean nothing
            return False
        self._report_state("waiting", "looking for the event that makes the function fail")
        try:
            found = find_failing_events(self._spark(), query, self._context)
        except Exception:
            logger.warning("%s: the search for the event was cut short", self.pipeline, exc_info=True)
            return False
        if found:
            self._context.store.skip(query.directory.query_id, found)
            logger.warning("%s: %d events quarantined: %s", self.pipeline, len(found), found[0].reason)
        return bool(found)

    def _clear_query(self) -> None:
        with self._state_changed:
            self._query = None
            self._state = "starting"
            self._state_changed.notify_all()

    def _give_up(self, error: HeadwaterError) -> None:
        logger.error("%s has failed: %s", self.pipeline, error)
        with self._state_changed:
            self.error = error
        self._report_state("failed", error.what, error)

    def _on_commit(self) -> None:
        self._restarts.reset()
        self._unreachable_since = None
        if self._versions.on_commit():
            self._report_state("running")

    def _report_state(self, state: PipelineState, detail: str = "", error: HeadwaterError | None = None) -> None:
        pipeline = self.pipeline
        report = PipelineReport(
            pipeline.name,
            self._versions.version,
            pipeline.kind.value,
            state,
            detail,
            error.problem() if error else None,
            pipeline.inputs,
            str(pipeline.location or ""),
            pipeline.doc,
            self._context.clock.micros(),
            pipeline.latency or "",
            pipeline.delivery,
        )
        try:
            self._context.check_owner()
            self._context.store.report(report)
        except FencedError:  # then the other driver reports
            pass
        except UnreachableError as away:  # a lost report must not stop the pipeline
            logger.warning("%s: %s is not in the store: %s", pipeline, state, away.what)
        with self._state_changed:
            self._state = state
            self._state_changed.notify_all()


def _state_error_line(failure: BaseException) -> str:
    """Returns the line of Spark's message that is about state."""
    return next(line.strip() for line in str(failure).splitlines() if _STATE_LOST.search(line))
