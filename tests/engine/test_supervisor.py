"""How a supervisor reacts to the end of its query; Spark is a function that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headwater.backends import open_view_reader
from headwater.backoff import Backoff
from headwater.engine import supervisor
from headwater.engine.build.inputs import Input
from headwater.engine.context import EngineContext
from headwater.engine.failpoints import CrashError
from headwater.engine.realtime.realtime_query import TaskSlots
from headwater.engine.sink.stateful_stage import STATE_LOST
from headwater.engine.source.batch_budget import BatchBudget
from headwater.engine.supervisor import PipelineSupervisor, Reaction, choose_reaction
from headwater.errors import (
    BadCredentialsError,
    BadPipelineError,
    BadRowError,
    BatchTooLargeError,
    DamagedError,
    DataGoneError,
    DiskFullError,
    EngineFailedError,
    FencedError,
    HeadwaterError,
    LedgerMismatchError,
    RowsDroppedError,
    SequenceGapError,
    StateChangedError,
    UnreachableError,
)
from headwater.events import ManualClock
from headwater.log import EventLog
from headwater.pipelines import PipelineKind
from headwater.store import SqliteDialect, SqlStore
from tests.engine.given import orders, pipeline

UNREACHABLE_IN_SOURCE = 'File "log_source.py", line 1\nheadwater.errors.UnreachableError: UNREACHABLE: no broker\n'
LOST_IN_SPARK = "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_CHECKPOINT] an error"


@pytest.mark.parametrize(
    ("failure", "reaction"),
    [
        (None, Reaction.RESTART),
        (CrashError("before-sink"), Reaction.RESTART),
        (BadPipelineError("wrong"), Reaction.GIVE_UP),
        (DamagedError("a checksum"), Reaction.GIVE_UP),
        (LedgerMismatchError("other offsets"), Reaction.GIVE_UP),
        (RowsDroppedError("a row is gone"), Reaction.GIVE_UP),
        (SequenceGapError("a batch is missing"), Reaction.GIVE_UP),
        (StateChangedError("edited"), Reaction.GIVE_UP),
        (BadCredentialsError("who?"), Reaction.GIVE_UP),
        (UnreachableError("no database"), Reaction.WAIT_FOR_SERVER),
        (RuntimeError(UNREACHABLE_IN_SOURCE), Reaction.WAIT_FOR_SERVER),
        (DiskFullError("no space left on the disk"), Reaction.WAIT_FOR_SPACE),
        (RuntimeError("java.io.IOException: No space left on device"), Reaction.WAIT_FOR_SPACE),
        (RuntimeError("Python worker failed to connect back"), Reaction.WAIT_FOR_CPU),
        (RuntimeError("[CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT] 2 of 3"), Reaction.WAIT_FOR_SLOTS),
        (RuntimeError("org.apache.spark.SparkException: java.lang.OutOfMemoryError: Java heap space"), Reaction.DIVIDE),
        (RuntimeError("Total size of serialized results is bigger than spark.driver.maxResultSize"), Reaction.DIVIDE),
        (RuntimeError("[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes of memory"), Reaction.DIVIDE),
        (RuntimeError("java.lang.OutOfMemoryError: Direct buffer memory"), Reaction.DIVIDE),
        (RuntimeError("java.lang.OutOfMemoryError"), Reaction.DIVIDE),
        (RuntimeError("java.lang.OutOfMemoryError: unable to create native thread"), Reaction.RETRY),
        (RuntimeError("java.lang.OutOfMemoryError: Metaspace"), Reaction.RETRY),
        (RuntimeError("java.lang.OutOfMemoryError: Compressed class space"), Reaction.RETRY),
        (MemoryError(), Reaction.DIVIDE),
        (pa.ArrowMemoryError("malloc of size 1073741824 failed"), Reaction.DIVIDE),
        (RuntimeError("[CANNOT_LOAD_STATE_STORE.UNRELEASED_THREAD_ERROR] busy"), Reaction.RETRY),
        (FencedError("an older epoch"), Reaction.RETRY),
        (EngineFailedError("counts differ"), Reaction.RETRY),
        (RuntimeError("boom"), Reaction.RETRY),
        (BadRowError("a NUL"), Reaction.RETRY),
        (RuntimeError("Traceback\nheadwater.errors.BadRowError: BAD_ROW: a NUL\n"), Reaction.RETRY),
        (DataGoneError("removed by retention"), Reaction.GIVE_UP),
        (DataGoneError("deletions, and the rows cannot be computed again", reload=False), Reaction.GIVE_UP),
    ],
)
def test_the_error_decides(failure: BaseException | None, reaction: Reaction):
    assert choose_reaction(failure, can_rebuild=True) is reaction
    assert choose_reaction(failure, can_rebuild=False) is reaction


@pytest.mark.parametrize(
    "failure",
    [
        DamagedError(STATE_LOST),
        RuntimeError(f"first line\n{LOST_IN_SPARK}"),
        DataGoneError("deletions", reload=True),
    ],
)
def test_lost_state_is_rebuilt_where_that_is_possible(failure: Exception):
    assert choose_reaction(failure, can_rebuild=True) is Reaction.REBUILD
    assert choose_reaction(failure, can_rebuild=False) is Reaction.GIVE_UP


def test_a_server_that_is_unreachable_comes_before_lost_state():
    assert choose_reaction(RuntimeError(f"failed to connect back\n{LOST_IN_SPARK}"), can_rebuild=True) is (
        Reaction.WAIT_FOR_CPU
    )


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineContext]:
    """A driver that owns its pipelines; retries come at once."""
    monkeypatch.setattr(supervisor, "_BACKOFF", Backoff(timedelta(milliseconds=1), timedelta(milliseconds=5)))
    monkeypatch.setattr(supervisor, "_BUSY_DELAY", 0.001)
    clock = ManualClock()
    with EventLog(tmp_path, clock=clock) as log:
        store = SqlStore(SqliteDialect(tmp_path / "store"), clock)
        yield EngineContext(tmp_path, log, store, clock).claim_ownership()
        store.close()


class Attempts:
    """Fails to return a session, each time with the next error; the last one repeats."""

    def __init__(self, *errors: Exception, before: Callable[[int], Any] = lambda _: None) -> None:
        self.count = 0
        self._errors = errors
        self._before = before

    def __call__(self) -> Any:
        self.count += 1
        self._before(self.count)
        raise self._errors[min(self.count, len(self._errors)) - 1]


def give_up(attempts: Attempts, context: EngineContext, kind: PipelineKind = PipelineKind.VIEW) -> HeadwaterError:
    """The error after which a pipeline was given up."""
    started = PipelineSupervisor(
        attempts, pipeline(kind), lambda _: orders(), context, is_leaf=True, slots=TaskSlots()
    )  # fmt: skip
    started.start()
    try:
        with pytest.raises(HeadwaterError) as caught:
            started.wait_until_running()
    finally:
        started.stop()
    assert started.error is caught.value
    return caught.value


def test_a_pipeline_is_given_up_after_three_retries(context: EngineContext):
    attempts = Attempts(RuntimeError("boom"))
    assert type(give_up(attempts, context)) is BadPipelineError
    assert attempts.count == 4


def test_old_failures_do_not_count(context: EngineContext):
    attempts = Attempts(RuntimeError("boom"), before=lambda n: context.clock.advance("50s") if n < 4 else None)
    give_up(attempts, context)
    assert attempts.count == 5  # the first failure is more than a minute old at the third


def test_an_error_that_would_come_again_ends_the_pipeline_at_once(context: EngineContext):
    attempts = Attempts(BadPipelineError("wrong"))
    assert type(give_up(attempts, context)) is BadPipelineError
    assert attempts.count == 1


def test_an_unreachable_server_a_full_disk_and_a_busy_machine_are_waited_for_without_limit(context: EngineContext):
    patience = [UnreachableError("no broker")] * 5 + [RuntimeError("failed to connect back")] * 5
    patience += [DiskFullError("no space left")] * 5
    attempts = Attempts(*patience, BadPipelineError("wrong"))
    give_up(attempts, context)
    assert attempts.count == 16


def test_a_report_that_finds_no_space_does_not_stop_the_pipeline(
    context: EngineContext, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_: object) -> None:
        raise DiskFullError("no space left for the store")

    monkeypatch.setattr(context.store, "report", refuse)
    attempts = Attempts(DiskFullError("no space left"), BadPipelineError("wrong"))
    assert give_up(attempts, context).what == "wrong"


def test_a_data_folder_that_is_gone_is_waited_for_and_then_all_goes_on(
    context: EngineContext, monkeypatch: pytest.MonkeyPatch
):
    away = context.data.with_name("away")
    errors = BadPipelineError("no topic"), BadPipelineError("wrong")  # the first only because the folder is gone
    attempts = Attempts(*errors, before=lambda number: context.data.rename(away) if number == 1 else None)
    monkeypatch.setattr(supervisor, "_FOLDER_INTERVAL", 0.001)
    monkeypatch.setattr(supervisor.logger, "error", lambda *_: away.rename(context.data) if away.exists() else None)
    assert give_up(attempts, context).what == "wrong"
    assert attempts.count == 2


def test_a_driver_that_was_replaced_ends_and_reports_nothing(context: EngineContext):
    attempts = Attempts(FencedError("a newer epoch"), before=lambda _: context.claim_ownership())
    assert type(give_up(attempts, context)) is FencedError
    assert attempts.count == 1
    assert open_view_reader(context.store).sql("select state from hw_pipelines").rows == [("starting",)]


def test_a_driver_fenced_by_an_older_one_tries_again(context: EngineContext):
    attempts = Attempts(FencedError("a newer epoch"), BadPipelineError("wrong"))
    assert type(give_up(attempts, context)) is BadPipelineError
    assert attempts.count == 2


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        (PipelineKind.STREAM, "give it another name"),
        (PipelineKind.VIEW, "stop the app; headwater run app.py --rebuild big"),
    ],
)
def test_lost_state_that_cannot_be_rebuilt_says_what_to_do(context: EngineContext, kind: PipelineKind, fix: str):
    started = PipelineSupervisor(
        Attempts(), pipeline(kind), lambda _: orders(), context, is_leaf=False, slots=TaskSlots()
    )
    error = started._permanent_error(RuntimeError(f"first line\n{LOST_IN_SPARK}"))
    assert (type(error), error.fix, error.detail) == (DamagedError, fix, LOST_IN_SPARK)


def test_a_batch_of_one_frame_outlasts_the_halvings_of_another_pipeline(
    context: EngineContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervisor, "divide_batch", lambda *_: BatchTooLargeError("one frame"))
    query: Any = SimpleNamespace(budget=BatchBudget(tmp_path / "budget.json", 64))

    def start_after_an_end() -> None:
        ended = replace(context, out_of_memory="Java's heap was too small")
        PipelineSupervisor(
            Attempts(), pipeline(), lambda _: orders(), ended, is_leaf=True, slots=TaskSlots()
        )._divide_after_end(query)

    for _ in range(11):  # from 96 MB to a frame takes fewer
        start_after_an_end()
    with pytest.raises(BatchTooLargeError):
        start_after_an_end()


def test_a_pipeline_that_waits_for_its_turn_to_start_can_be_stopped(context: EngineContext):
    waiting = threading.Event()

    def resolve(_: str) -> Input:
        waiting.set()
        return orders()

    taken = replace(context, turns=threading.Semaphore(0))
    one = PipelineSupervisor(lambda: None, pipeline(), resolve, taken, is_leaf=True, slots=TaskSlots())
    one.start()
    assert waiting.wait(30)
    one.stop()
    assert (one.query, one.error, one._thread.is_alive()) == (None, None, False)
