"""Supervises one pipeline: starts its query, reacts to failures, and gives up after repeated ones.

`choose_reaction` decides from the error alone. `PipelineSupervisor` carries the decision out in a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum, auto
from typing import Final

from pyspark.sql import SparkSession

from headwater.backoff import Backoff, RestartLimit
from headwater.engine.batch_division import divide_batch, is_out_of_memory
from headwater.engine.build.inputs import Input
from headwater.engine.compatibility import Rebuild, ViewVersions
from headwater.engine.context import EngineContext
from headwater.engine.failpoints import CrashError
from headwater.engine.quarantine.search import check_failures, find_failing_events, find_unstorable_events
from headwater.engine.query import OffsetBounds, Query, rebuild_error
from headwater.engine.realtime.realtime_query import RealtimeQuery, TaskSlots
from headwater.engine.sink.stateful_stage import STATE_LOST
from headwater.engine.spark.error_translation import source_error, translate_error
from headwater.engine.start_turn import StartTurn
from headwater.errors import (
    BadCredentialsError,
    BadRowError,
    DamagedError,
    DataError,
    DataGoneError,
    DiskFullError,
    FencedError,
    HeadwaterError,
    LedgerMismatchError,
    MissingPackageError,
    SchemaConflictError,
    SequenceGapError,
    StateChangedError,
    UnreachableError,
    UsageError,
)
from headwater.pipelines import Pipeline, PipelineKind
from headwater.store import PipelineReport
from headwater.store.commit.commit import PipelineState
from headwater.store.status import folder_id

__all__ = ["PipelineSupervisor", "Reaction", "choose_reaction"]

logger = logging.getLogger("headwater.engine")
_MAX_FAILURES: Final = 4
_FAILURE_WINDOW: Final = timedelta(minutes=1)
_BACKOFF: Final = Backoff(timedelta(seconds=0.5), timedelta(seconds=2.5))
_BUSY_DELAY: Final = 2.0  # seconds
_MAX_ENDS: Final = 3
"""How often memory may be short at a batch that cannot be divided, before its pipeline is given up."""
_MAX_ENGINE_ENDS: Final = 12
"""The same if the engine ended. The cause may be another pipeline, each of whose halvings is an end of the engine."""
_STOP_TIMEOUT: Final = 60.0  # seconds
_FOLDER_INTERVAL: Final = 1.0  # seconds between looks whether the data folder is back
_PERMANENT_ERRORS: Final = (
    UsageError,
    DataError,
    LedgerMismatchError,
    SchemaConflictError,
    SequenceGapError,
    StateChangedError,
    BadCredentialsError,
    MissingPackageError,
)
"""Errors that every further attempt would meet again."""
_STATE_LOST: Final = re.compile(
    rf"{STATE_LOST}|state directory is empty or missing|CANNOT_LOAD_STATE_STORE\.(?!UNRELEASED|\w*OUT_OF_MEMORY)"
)
"""Messages of Spark and of the stateful stage when the state of a query is missing or damaged."""


_DISK_FULL: Final = re.compile(r"No space left on device|database or disk is full|\bDISK_FULL: ")
_BAD_ROW: Final = re.compile(r"^headwater\.errors\.BadRowError: BAD_ROW: (.*)$", re.MULTILINE)


class Reaction(Enum):
    """The response of a supervisor to the end of its query."""

    RESTART = auto()
    """Start the query again at once: it ended without an error, or at a failpoint of a test."""
    GIVE_UP = auto()
    """Stop for good: every further attempt would fail in the same way."""
    WAIT_FOR_SERVER = auto()
    """Try again without limit: a broker or database is unreachable."""
    WAIT_FOR_SPACE = auto()
    """Try again without limit: the disk is full."""
    WAIT_FOR_CPU = auto()
    """Try again without limit: Spark could not start a Python process in time."""
    WAIT_FOR_SLOTS = auto()
    """Try again without limit: other queries occupy Spark's task slots."""
    DIVIDE = auto()
    """Plan the batch again with half of its bytes: it needed more memory than Java has."""
    REBUILD = auto()
    """Build the view again from the log: its state is missing or damaged, or it has missed deletions."""
    RETRY = auto()
    """Quarantine the events that cause the error; if there are none, retry a limited number of times."""


_WAITS: Final = {
    _DISK_FULL: Reaction.WAIT_FOR_SPACE,
    # Spark gives a Python process ten seconds to start. A busy machine exceeds that.
    re.compile("failed to connect back"): Reaction.WAIT_FOR_CPU,
    # All tasks of a real-time query start at once. The query waits while others occupy the slots.
    re.compile("CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"): Reaction.WAIT_FOR_SLOTS,
}
"""Messages after which a further attempt helps, with the reaction."""
_BUSY_TEXT: Final = {
    Reaction.WAIT_FOR_CPU: "Spark starts slowly on a busy machine",
    Reaction.WAIT_FOR_SLOTS: "other queries occupy Spark's task slots",
}


def choose_reaction(failure: BaseException | None, *, can_rebuild: bool) -> Reaction:
    """Decide what follows the end of a query.

    Args:
        failure: The error that ended the query; None if it was stopped.
        can_rebuild: Whether the pipeline may be rebuilt without a request by the user.

    Example:
        >>> choose_reaction(UnreachableError("no broker"), can_rebuild=True)
        <Reaction.WAIT_FOR_SERVER: 3>
    """
    if failure is None or isinstance(failure, CrashError):
        return Reaction.RESTART
    text = _message(failure)
    if find_bad_row(failure) is not None:
        return Reaction.RETRY
    state_lost = _STATE_LOST.search(text) is not None or _misses_deletions(failure)
    # A DamagedError about state is permanent only if the state cannot be computed again.
    if (not can_rebuild) if state_lost else isinstance(failure, _PERMANENT_ERRORS):
        return Reaction.GIVE_UP
    # A message can name lost state as well, as the consequence of a server or process that did not answer.
    if isinstance(source_error(failure) or failure, UnreachableError):
        return Reaction.WAIT_FOR_SERVER
    for words, reaction in _WAITS.items():
        if words.search(text):
            return reaction
    if isinstance(failure, MemoryError) or is_out_of_memory(text):
        return Reaction.DIVIDE
    return Reaction.REBUILD if state_lost else Reaction.RETRY


class PipelineSupervisor:
    """Runs one pipeline in its own thread.

    Args:
        spark: Returns the session.
        pipeline: The pipeline.
        resolve_input: Returns the input of a name; blocks until the pipeline that produces it runs.
        context: The engine context.
        rebuild: A request to rebuild the view.
        is_leaf: Whether no other pipeline reads it, so that it can be rebuilt alone.
        slots: The reservations of Spark's task slots, for real-time pipelines.
        waits_for_upstream: Returns whether a view that it reads is rebuilt.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        pipeline: Pipeline,
        resolve_input: Callable[[str], Input],
        context: EngineContext,
        rebuild: Rebuild | None = None,
        *,
        is_leaf: bool,
        slots: TaskSlots,
        waits_for_upstream: Callable[[], bool] = lambda: False,
    ) -> None:
        self.pipeline = pipeline
        self.error: HeadwaterError | None = None
        """The error after which the pipeline was given up."""
        self.detail = ""
        """What it waits for; empty while it runs."""
        self.is_leaf = is_leaf
        self._spark = spark
        self._resolve_input = resolve_input
        self._context = context
        self._slots = slots
        self._versions = ViewVersions(context, pipeline.name, self._make_query, rebuild, waits_for_upstream)
        self._restarts = RestartLimit(_MAX_FAILURES, _FAILURE_WINDOW)
        self._unreachable_since: float | None = None
        self._unreachable_attempts = 0
        self._memory_reason = context.out_of_memory
        self._folder_id = folder_id(context.data)
        self._stopping = threading.Event()
        self._turn = StartTurn(context.turns, self._stopping)
        # Guards `_state` and `error`, and is notified after they or `_query` change. It is not held during calls to
        # Spark or the store, so threads that wait here never wait for a batch.
        self._state_changed = threading.Condition()
        self._query: Query | None = None
        self._prepared: Query | None = None
        self._state: PipelineState = "starting"
        self._thread = threading.Thread(target=self._run, name=f"headwater-{pipeline.name}", daemon=True)

    # -- from outside --------------------------------------------------------------------------------------------

    @property
    def query(self) -> Query | None:
        """The running query; None while there is none."""
        return self._query

    @property
    def rebuilding(self) -> bool:
        """Whether the view is rebuilt."""
        return self._versions.rebuilding

    @property
    def settled(self) -> bool:
        """Whether its start has come to an end: it runs, waits or was given up."""
        return self.error is not None or self._state != "starting"

    def prepare(self) -> None:
        """Make the first query before the start, to learn of errors while another definition of the pipeline runs.

        Raises:
            HeadwaterError: The pipeline would be given up.
        """
        try:
            self._prepared = self._versions.next_query()
        except UnreachableError:  # it waits once it is started
            return
        except Exception as failure:
            error = translate_error(failure, self.pipeline)
            self._context.invocation.complete_error(error)
            raise error from failure
        finally:
            self._turn.give_back()

    def start(self) -> None:
        """Start the thread."""
        self._report_state("starting")
        self._thread.start()

    def wait_until_running(self) -> Query:
        """Wait until the query runs, and return it.

        Raises:
            HeadwaterError: The pipeline was given up.
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
            HeadwaterError: The pipeline was given up.
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
            with self._state_changed:  # until the thread has seen the failure and replaced the query or given up
                self._state_changed.wait_for(lambda q=query: self._query is not q or self.error is not None)  # type: ignore[misc]

    def take_retries(self, newest: Mapping[str, int]) -> None:
        """Pass a new request to retry quarantined events to the running query.

        Args:
            newest: The number of the newest request, by query.
        """
        query = self._query
        if query is not None:
            query.take_retries(newest)

    def finish_rebuild(self) -> None:
        """Let readers see the rebuilt view, if it has caught up; a rebuild over no events commits nothing."""
        if self._query is not None and self._versions.finish_rebuild():
            self._report_state("running")

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
                folder_was_gone = self._wait_for_folder()
                delay = 0.0 if folder_was_gone else self._react(failure)
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
            query, self._prepared = self._prepared or self._versions.next_query(), None
            self._divide_after_end(query)
            query.start()
        except (Exception, CrashError) as error:
            return error
        finally:
            self._turn.give_back()
        self._query = query
        if self._stopping.is_set():  # `stop` may have looked before the query was set
            query.stop()
        rebuilding = self._versions.rebuilding
        self._report_state("rebuilding" if rebuilding else "running")
        if rebuilding and not self._versions.rebuilding:  # a first commit may have reported that before this thread
            self._report_state("running")
        query.wait()
        return query.failure

    def _divide_after_end(self, query: Query) -> None:
        """Divide the batch that was running when the last engine ended for lack of memory.

        The batch of another pipeline may be the cause. So one that cannot be divided is given up only after it was
        running many times in a row.

        Raises:
            BatchTooLargeError: The batch cannot be divided any further.
        """
        reason, self._memory_reason = self._memory_reason, ""
        if not reason or self.pipeline.realtime:
            return
        logger.warning("%s: the last engine ended: %s", self.pipeline, reason)
        error = divide_batch(query, self._context.log, self._context.store)
        if error is not None and query.budget.record_end() >= _MAX_ENGINE_ENDS:
            raise error

    def _make_query(self, version: int, bounds: OffsetBounds | None) -> Query:
        spark = self._spark()  # before the wait for inputs, so that each pipeline reports a failed start of Spark
        self._turn.give_back()
        inputs = tuple(self._resolve_input(name) for name in self.pipeline.inputs)
        arguments = spark, self.pipeline, inputs, version, self._context
        if self.pipeline.realtime:  # it may wait for others to end
            return RealtimeQuery(*arguments, self._slots, lambda text: self._report_state("starting", text))
        self._turn.take()
        return Query(*arguments, self._on_commit, bounds)

    def _wait_for_folder(self) -> bool:
        """Wait while the data folder is gone, and create nothing in its place; returns whether it was gone."""
        if folder_id(self._context.data) == self._folder_id:
            return False
        logger.error("%s waits: the data folder %s is gone", self.pipeline, self._context.data)
        with self._state_changed:
            self._query, self._state = None, "starting"
        while not self._stopping.wait(_FOLDER_INTERVAL) and folder_id(self._context.data) != self._folder_id:
            pass
        return True

    def _react(self, failure: BaseException | None) -> float | None:
        """Carry out the reaction to a failure.

        Returns:
            The seconds until the next attempt; None if there is none.

        Raises:
            FencedError: Another driver has taken over the pipelines.
        """
        if isinstance(failure, FencedError):
            # If a newer driver has fenced this one, the check raises. Otherwise an older one has not ended yet: retry.
            with contextlib.suppress(UnreachableError):
                self._context.check_owner()
        view = self.pipeline.kind is PipelineKind.VIEW
        can_rebuild = view and self.is_leaf and not self._versions.rebuilding
        reaction = choose_reaction(failure, can_rebuild=can_rebuild)
        delay: float | None = 0.0
        if failure is None or reaction is Reaction.RESTART:
            pass
        elif reaction in _BUSY_TEXT:
            delay = _BUSY_DELAY
            self._report_state("waiting", f"{_BUSY_TEXT[reaction]}; next try in {delay:g} s")
        elif reaction in (Reaction.WAIT_FOR_SERVER, Reaction.WAIT_FOR_SPACE):
            error = _find_disk_full(failure) or source_error(failure) or translate_error(failure, self.pipeline)
            delay = self._wait_without_limit(error)
        elif reaction is Reaction.REBUILD:
            why = "it has missed deletions" if _misses_deletions(failure) else "its state is damaged"
            self._report_state("waiting", f"{why}; it is rebuilt from the log")
            logger.warning("%s: %s, a rebuild begins: %s", self.pipeline, why, _state_error_line(failure))
            self._versions.rebuild = Rebuild()
        elif reaction in (Reaction.DIVIDE, Reaction.RETRY):
            delay = self._change_batch(failure, reaction)
        else:
            self._give_up(self._permanent_error(failure))
            delay = None
        if delay is not None:
            with self._state_changed:
                self._query = None
                self._state = "starting"
                self._state_changed.notify_all()
        return delay

    def _change_batch(self, failure: BaseException, reaction: Reaction) -> float | None:
        """Divide a batch, or quarantine the events that make it fail; if neither helps, retry it as it is."""
        if reaction is Reaction.DIVIDE:
            return self._divide(failure)
        if self._quarantine_failing_events(failure):
            return 0.0
        python = is_out_of_memory(_message(failure), python=True)
        return self._divide(failure) if python else self._retry(failure)

    def _divide(self, failure: BaseException) -> float | None:
        """Have the batch planned again with half of its bytes; a batch that cannot be divided is retried."""
        query = self._query
        if query is None or self.pipeline.realtime:
            return self._retry(failure)
        error = divide_batch(query, self._context.log, self._context.store)
        smaller = query.budget.smaller
        if error is not None and query.budget.record_end() >= _MAX_ENDS:
            self._give_up(error)
            return None
        if error is not None:
            return self._retry(failure)
        if smaller is None or smaller.batch is None:  # no batch was running
            return self._retry(failure)
        text = f"a batch needed too much memory; it is planned again with at most {smaller.size:,} bytes"
        self._report_state("waiting", text)
        return 0.0

    def _wait_without_limit(self, error: HeadwaterError) -> float:
        """Report what cannot be reached or written; returns the delay, which doubles up to a limit."""
        now = self._context.clock.monotonic()
        if self._unreachable_since is None:
            self._unreachable_since, self._unreachable_attempts = now, 0
        self._report_state("waiting", f"{error.what}; waiting for {now - self._unreachable_since:.0f} s so far")
        logger.warning("%s waits: %s", self.pipeline, error)
        self._unreachable_attempts += 1
        return _BACKOFF.delay(self._unreachable_attempts).total_seconds()

    def _retry(self, failure: BaseException) -> float | None:
        """Returns the delay, which doubles; gives up after too many failures in the window."""
        error = find_bad_row(failure) or translate_error(failure, self.pipeline)
        # A row that cannot be stored comes again at every attempt.
        if isinstance(error, BadRowError) or self._restarts.record(self._context.clock.monotonic()):
            self._give_up(error)
            return None
        delay = _BACKOFF.delay(self._restarts.recent).total_seconds()
        self._report_state("waiting", f"{error.what}; next try in {delay:g} s")
        logger.warning("%s failed, next try in %g s: %s", self.pipeline, delay, error)
        return delay

    def _permanent_error(self, failure: BaseException) -> HeadwaterError:
        if not _STATE_LOST.search(_message(failure)):
            return translate_error(failure, self.pipeline)
        what = f"the state of {self.pipeline} is missing or damaged"
        return rebuild_error(DamagedError, self.pipeline, what, _state_error_line(failure))

    def _quarantine_failing_events(self, failure: BaseException) -> bool:
        """Quarantine the events that make the batch fail; returns False if no single event is the cause.

        Raises:
            HeadwaterError: Too many events fail, or the search took too long.
        """
        query, bad_row = self._query, find_bad_row(failure)
        ours = bad_row is None and (isinstance(failure, HeadwaterError) or source_error(failure) is not None)
        if query is None or ours or self.pipeline.realtime or self._stopping.is_set():
            return False
        # Part of a batch can run alone only up to the first step with state.
        has_operators = query.built.sink_stage is not None or bool(query.built.spark_operators)
        if query.built.before_state is None and bad_row is None:
            return False
        text = "searching for the events on which the function fails"
        self._report_state("waiting", text)
        try:
            if bad_row is not None and (has_operators or query.built.before_state is None):
                found = find_unstorable_events(query, self._context, bad_row)
            else:
                check = None if bad_row is None else query.check_rows
                found = find_failing_events(
                    self._spark(), query, self._context, check, lambda done: self._report_search(f"{text}: {done}")
                )
        except Exception:
            logger.warning("%s: the search for failing events was interrupted", self.pipeline, exc_info=True)
            return False
        check_failures(query, self._context, found)
        if found.failures:
            self._context.store.skip(query.directory.query_id, found.side_outputs())
            logger.warning("%s: %d events quarantined: %s", self.pipeline, len(found.failures), found.failures[0])
        elif not found.complete:  # another search would end in the same way
            error = translate_error(failure, self.pipeline)
            error.detail = "the search for failing events took too long, and has found none"
            raise error
        return bool(found.failures)

    def _report_search(self, text: str) -> None:
        if self._stopping.is_set():  # the search would go on for a minute
            what = "the pipeline is stopped"
            raise InterruptedError(what)
        self._report_state("waiting", text)

    def _give_up(self, error: HeadwaterError) -> None:
        self._context.invocation.complete_error(error)
        logger.error("%s has failed: %s", self.pipeline, error)
        with self._state_changed:
            self.error = error
        self._report_state("failed", error.what, error)

    def _on_commit(self) -> None:
        # Called in a thread of Spark, while the thread of this supervisor waits for the query.
        self._restarts.reset()
        self._unreachable_since = None
        self.finish_rebuild()

    def _report_state(self, state: PipelineState, detail: str = "", error: HeadwaterError | None = None) -> None:
        pipeline, self.detail = self.pipeline, detail
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
            _retry_rules(self._query),
        )
        try:
            self._context.check_owner()
            self._context.store.report(report)
        except FencedError:  # the newer driver reports
            pass
        except (UnreachableError, DiskFullError) as lost:  # a lost report must not stop the pipeline
            logger.warning("%s: the store does not show that it is %s: %s", pipeline, state, lost.what)
        with self._state_changed:
            self._state = state
            self._state_changed.notify_all()


def _message(failure: BaseException) -> str:
    """Returns the text of an error; only its type if Java, which has the text, has ended."""
    try:
        return str(failure)
    except Exception:
        return type(failure).__name__


def _retry_rules(query: Query | None) -> dict[str, str]:
    """Returns for each topic of a query when its quarantined events can be retried; empty without a query."""
    if query is None or query.pipeline.realtime:
        return {}
    built = query.built
    # A retried event comes after later ones of its key, whose row it would overwrite.
    rule = "rebuild" if built.overwrites_rows else None
    return {input_.topic.name: rule or built.input_options.retry_rule(input_) for input_ in built.inputs}


def find_bad_row(failure: BaseException) -> BadRowError | None:
    """Returns the error about a row that cannot be stored; a worker that stages rows reports it as text."""
    if isinstance(failure, BadRowError):
        return failure
    found = _BAD_ROW.search(_message(failure))
    return None if found is None else BadRowError(found[1])


def _find_disk_full(failure: BaseException) -> DiskFullError | None:
    """Returns the error about a full disk; that of Spark and its processes is known by its text."""
    if isinstance(failure, DiskFullError):
        return failure
    return DiskFullError("no space left on the disk") if _DISK_FULL.search(_message(failure)) else None


def _misses_deletions(failure: BaseException) -> bool:
    """Whether compaction has removed tombstones that the pipeline has not read, and a rebuild mends its view."""
    return isinstance(failure, DataGoneError) and bool(failure.data.get("reload"))


def _state_error_line(failure: BaseException) -> str:
    """Returns the line of the message that is about state; the first if none is."""
    lines = str(failure).splitlines()
    return next((line.strip() for line in lines if _STATE_LOST.search(line)), lines[0])
