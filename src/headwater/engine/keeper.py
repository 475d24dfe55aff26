"""Keeps one pipeline running: starts it, starts it again when it fails, gives up when it fails again and again."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from headwater.engine.building.inputs import Input
from headwater.engine.points import CrashError
from headwater.engine.poison import find_poison
from headwater.engine.query import Bounds, Query
from headwater.engine.realtime.query import RealtimeQuery
from headwater.engine.realtime.slots import Slots
from headwater.engine.sink.remembering import STATE_LOST
from headwater.engine.spark.translation import raised_by_source, translated
from headwater.engine.surroundings import Surroundings
from headwater.engine.versions import Rebuild, Versions
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
from headwater.pipelines import Kind, Pipeline
from headwater.store import PipelineReport
from headwater.store.definition import PipelineState

__all__ = ["Keeper"]

logger = logging.getLogger("headwater.engine")
_TRIES: Final = 3
_TRIES_WITHIN: Final = 60.0
_FIRST_PAUSE: Final = 0.5
_HOPELESS: Final = (
    UsageError,
    DataError,
    LedgerMismatchError,
    SchemaConflictError,
    StateChangedError,
    BadCredentialsError,
    MissingPackageError,
)
"""Errors that the next try would meet again."""
_PATIENCE: Final = 60.0
_SLOW: Final = "failed to connect back"
"""Spark gives each of its Python processes ten seconds to start, whatever else the machine does: nobody's fault."""
_SLOW_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 5.0
_NO_SLOT: Final = "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT"
"""All tasks of a real-time query start at once; when others have the slots, it waits for its turn."""
_STATE_LOST: Final = re.compile(
    rf"{STATE_LOST}|state directory is empty or missing|CANNOT_LOAD_STATE_STORE\.(?!UNRELEASED|\w*OUT_OF_MEMORY)"
)
"""What Spark says when the state of a query is gone or damaged."""


class Keeper:
    """One pipeline, in a thread of its own.

    Args:
        spark: Gives the session.
        pipeline: What to run.
        inputs: Gives what it reads, once its inputs are there.
        around: What it shares with others.
        rebuild: Given when it is to be made anew.
        alone: Whether no other pipeline reads it, so that it may be made anew without them.
        slots: Who holds Spark's task slots, for real-time pipelines.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        pipeline: Pipeline,
        inputs: Callable[[], tuple[Input, ...]],
        around: Surroundings,
        rebuild: Rebuild | None = None,
        *,
        alone: bool = True,
        slots: Slots | None = None,
    ) -> None:
        self.pipeline = pipeline
        self._alone = alone
        self._slots = slots or Slots()
        self.error: HeadwaterError | None = None
        self._spark = spark
        self._inputs = inputs
        self._around = around
        self._versions = Versions(around, pipeline.name, self._made, rebuild)
        self._query: Query | None = None
        self._failures: deque[float] = deque()
        self._away_since: float | None = None
        self._pause = _FIRST_PAUSE
        self._stopping = threading.Event()
        self._state: PipelineState = "starting"
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"headwater-{pipeline.name}", daemon=True)

    # -- from outside --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin in the background."""
        self._tell("starting")
        self._thread.start()

    @property
    def query(self) -> Query | None:
        """The query, once it runs."""
        return self._query

    def ready(self) -> Query:
        """Wait until the query runs.

        Raises:
            HeadwaterError: It cannot.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self.error is not None or self._state in ("running", "rebuilding", "stopped")
            )
        if self.error is not None:
            raise self.error
        assert self._query is not None
        return self._query

    def catch_up(self) -> None:
        """Return when everything in the log now is committed; over failures and restarts.

        Raises:
            HeadwaterError: The pipeline has failed for good.
        """
        while True:
            query = self.ready()
            try:
                query.catch_up()
            except Exception:
                logger.debug("%s ended while catching up", self.pipeline.name, exc_info=True)
                query.wait()
            if query.failure is None and query.active:
                return
            with self._changed:  # the thread takes note of the failure and starts another one
                self._changed.wait_for(lambda ended=query: self._query is not ended or self.error is not None)  # type: ignore[misc]

    def stop(self) -> None:
        """End the query and the thread."""
        self._stopping.set()
        deadline = time.monotonic() + _PATIENCE
        while self._thread.is_alive() and time.monotonic() < deadline:
            if self._query is not None:
                self._query.stop()
            self._thread.join(timeout=0.2)  # it may be about to start a query

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            failure = self._once()
            if self._stopping.is_set():
                break
            try:
                pause = self._after(failure)
            except Exception as error:  # nobody may wait for a thread that is gone
                self._give_up(translated(error, self.pipeline))
                return
            if pause is None:
                return
            self._stopping.wait(pause)
        self._tell("stopped")

    def _once(self) -> BaseException | None:
        """Run the query until it ends; what ended it."""
        try:
            query = self._versions.query()
            query.start()
        except (Exception, CrashError) as error:
            return error
        self._query = query
        if self._stopping.is_set():
            query.stop()
        self._tell("rebuilding" if self._versions.rebuilding else "running")
        query.wait()
        return query.failure

    def _made(self, version: int, bounds: Bounds | None) -> Query:
        known = self._spark(), self.pipeline, self._inputs(), version, self._around
        if self.pipeline.realtime:
            return RealtimeQuery(*known, self._slots, lambda words: self._tell("starting", words))
        return Query(*known, self._committed, bounds)

    def _after(self, failure: BaseException | None) -> float | None:
        """Seconds until the next try; None when there is none."""
        if failure is None or isinstance(failure, CrashError):
            self._forget()
            return 0.0
        if isinstance(failure, FencedError):  # perhaps by an older driver, which may run for a moment yet
            with contextlib.suppress(UnreachableError):
                self._around.require_owner()
        final = self._final(failure)
        if final is not None:
            self._give_up(final)
            return None
        ours = raised_by_source(failure) or failure
        if isinstance(ours, UnreachableError):
            return self._await_server(ours)
        mended = self._mended(failure)
        if mended is not None:
            self._forget()
            return mended
        now = self._around.clock.monotonic()
        self._failures.append(now)
        while now - self._failures[0] > _TRIES_WITHIN:
            self._failures.popleft()
        error = translated(failure, self.pipeline)
        if len(self._failures) > _TRIES:
            self._give_up(error)
            return None
        pause: float = _FIRST_PAUSE * 2 ** (len(self._failures) - 1)
        self._tell("waiting", f"{error.what}; next try in {pause:g} s")
        logger.warning("%s failed, next try in %g s: %s", self.pipeline, pause, error)
        self._forget()
        return pause

    def _final(self, failure: BaseException) -> HeadwaterError | None:
        """What the next try would meet again; None when it may help."""
        if _STATE_LOST.search(str(failure)):
            return None if self._may_rebuild() else self._damaged(failure)
        return translated(failure, self.pipeline) if isinstance(failure, _HOPELESS) else None

    def _await_server(self, error: UnreachableError) -> float:
        """Brokers or the database are away: wait for as long as it takes, and say so."""
        now = self._around.clock.monotonic()
        if self._away_since is None:
            self._away_since, self._pause = now, _FIRST_PAUSE
        self._tell("waiting", f"{error.what}; waiting for {now - self._away_since:.0f} s so far")
        logger.warning("%s waits: %s", self.pipeline, error)
        self._forget()
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return self._pause / 2

    def _mended(self, failure: BaseException) -> float | None:
        """Remove the cause of a failure, if it is known how: seconds until the next try; None when it is not."""
        if _SLOW in str(failure):
            self._tell("waiting", f"the machine is busy, Spark starts slowly; next try in {_SLOW_PAUSE:g} s")
            return _SLOW_PAUSE
        if _NO_SLOT in str(failure):
            self._tell("waiting", f"others have Spark's task slots; next try in {_SLOW_PAUSE:g} s")
            return _SLOW_PAUSE
        if _STATE_LOST.search(str(failure)):
            self._tell("waiting", "its state is damaged; it is made anew from the log")
            logger.warning("%s: its state is damaged, a rebuild begins: %s", self.pipeline, _about(failure))
            self._versions.rebuild = Rebuild()
            return 0.0
        return 0.0 if self._quarantined(failure) else None

    def _may_rebuild(self) -> bool:
        """Whether the view can be made anew from the log without anybody's asking."""
        return self.pipeline.kind is Kind.VIEW and self._alone and not self._versions.rebuilding

    def _damaged(self, failure: BaseException) -> DamagedError:
        view = self.pipeline.kind is Kind.VIEW
        return DamagedError(
            f"the state of {self.pipeline} is gone or damaged",
            detail=_about(failure),
            fix=f"headwater run --rebuild {self.pipeline.name}" if view else "give it another name",
            place=self.pipeline.place,
            pipeline=self.pipeline.name,
        )

    def _quarantined(self, failure: BaseException) -> bool:
        """Find the rows that make the batch fail, and have them left out."""
        query = self._query
        ours = isinstance(failure, HeadwaterError) or raised_by_source(failure) is not None
        if query is None or ours or self._stopping.is_set():
            return False
        if self.pipeline.realtime or query.built.before_state is None:  # half a batch would mean nothing
            return False
        self._tell("waiting", "looking for the event that makes the function fail")
        try:
            found = find_poison(self._spark(), query, self._around)
        except Exception:
            logger.warning("%s: the search for the event was cut short", self.pipeline, exc_info=True)
            return False
        if found:
            self._around.store.skip(query.home.query, found)
            logger.warning("%s: %d events quarantined: %s", self.pipeline, len(found), found[0].reason)
        return bool(found)

    def _forget(self) -> None:
        with self._changed:
            self._query = None
            self._state = "starting"
            self._changed.notify_all()

    def _give_up(self, error: HeadwaterError) -> None:
        logger.error("%s has failed: %s", self.pipeline, error)
        with self._changed:
            self.error = error
        self._tell("failed", error.what, error)

    def _committed(self) -> None:
        self._failures.clear()
        self._away_since = None
        if self._versions.committed():
            self._tell("running")

    def _tell(self, state: PipelineState, detail: str = "", error: HeadwaterError | None = None) -> None:
        pipeline = self.pipeline
        report = PipelineReport(
            pipeline.name,
            self._versions.number,
            pipeline.kind.value,
            state,
            detail,
            error.problem() if error else None,
            pipeline.inputs,
            str(pipeline.place or ""),
            pipeline.doc,
            self._around.clock.micros(),
            pipeline.latency or "",
            pipeline.delivery,
        )
        try:
            self._around.require_owner()
            self._around.store.tell(report)
        except FencedError:  # then the other driver tells
            pass
        except UnreachableError as away:  # the report is lost, the pipeline is not
            logger.warning("%s: %s is not in the store: %s", pipeline, state, away.what)
        with self._changed:
            self._state = state
            self._changed.notify_all()


def _about(failure: BaseException) -> str:
    """The line of Spark's many that speaks of the state."""
    return next(line.strip() for line in str(failure).splitlines() if _STATE_LOST.search(line))
