"""Runs an app inside one test, with real Spark, a temporary folder and a test clock."""

from __future__ import annotations

import atexit
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from headwater.app import App
from headwater.backends import open_responder
from headwater.capture.capture_runner import CaptureRunner
from headwater.captures import bind_captures, make_runner
from headwater.client import Client, OpenQueue, connect
from headwater.client.view import ReadOptions
from headwater.config import PROFILE
from headwater.engine.context import EngineContext
from headwater.engine.engine import Engine
from headwater.engine.failpoints import arm, failpoint
from headwater.engine.spark.session import Spark, SparkSettings
from headwater.errors import HeadwaterError
from headwater.events import ManualClock, Receipt
from headwater.events.envelope import Receipts
from headwater.log import EventLog
from headwater.log.maintenance.maintenance import Maintenance
from headwater.pipelines import Selection
from headwater.profiles import Profile
from headwater.store import EventCounts, SqliteDialect, SqlStore
from headwater.workers import WorkerPool

__all__ = ["World", "run"]

_WAIT = 0.02  # seconds that an input waits for events at most; a test has sent them before
_spark: list[Spark] = []  # at most one: all tests of a process share it


@contextmanager
def run(
    app: App, *, now: datetime | str | None = None, rows: int = 400_000, only: Sequence[str] = ()
) -> Iterator[World]:
    """Run an app on real Spark, in a temporary folder that is removed afterwards.

    The first test of a process starts Spark; all tests share it.

    Args:
        app: The app.
        now: The initial time of the test clock; the current time, if omitted. Only `advance` moves the clock. With it,
            events that are old when they arrive are history, as on a node; without it, every topic is live.
        rows: The approximate number of events in a batch; a small number divides the same events into more batches.
        only: The pipelines to run, with those that they read; all, if empty. So a test of one view takes seconds.

    Example:
        >>> import headwater as hw
        >>> app = hw.App("shop")
        >>> orders = app.topic("orders", "customer int, amount int", key="customer")
        >>> sql = "select customer, sum(amount) spent from orders group by customer"
        >>> spent = app.view("spent", key="customer", sql=sql)
        >>> with run(app) as world:
        ...     _ = world.send("orders", {"customer": 1, "amount": 3}, {"customer": 1, "amount": 4})
        ...     world.settle()
        ...     world.rows("spent"), world.counts("spent").used
        ([{'customer': 1, 'spent': 7}], 2)
    """
    clock = ManualClock(now or datetime.now(UTC))
    with tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as folder:
        log = EventLog(folder, clock=clock)
        profile = Profile(PROFILE.default)
        captures = [
            make_runner(capture, log, Path(folder)) for capture in bind_captures(app, profile, Path(folder), log)
        ]
        graph = app.resolve()
        store = SqlStore(SqliteDialect(Path(folder, "store")), clock, partial(failpoint, "in-sink-commit"))
        context = EngineContext(log.folder, log, store, clock, rows=rows, wait=_WAIT)
        names = Selection(tuple(f"+{name.removeprefix('+')}" for name in only)).names(graph)
        engine = Engine(graph, lambda: get_spark().session, context, names=names, app=app.name)
        engine.start()
        world = World(engine, context, Maintenance(log, assume_live=now is None), clock, app, captures)
        try:
            yield world
        finally:
            engine.stop()
            world.close()
            store.close()
            log.close()


def get_spark() -> Spark:
    """Returns Spark, which all tests of this process share."""
    if not _spark:
        folder = tempfile.mkdtemp(prefix="headwater-spark-")
        _spark.append(Spark(Path(folder), SparkSettings(lifetime="short")))
        atexit.register(stop_spark)
    return _spark[0]


def stop_spark() -> None:
    """Stop Spark, if it was started."""
    while _spark:
        _spark.pop().stop()


class World:
    """A running app, created by `run`.

    Attributes:
        client: A client of its log, views and queues.
        data: Its data folder.
        clock: The test clock, which all its parts use.
    """

    def __init__(
        self,
        engine: Engine,
        context: EngineContext,
        maintenance: Maintenance,
        clock: ManualClock,
        app: App,
        captures: Sequence[CaptureRunner] = (),
    ) -> None:
        self._engine = engine
        self._captures = captures
        self._context = context
        self._maintenance = maintenance
        self.clock = clock
        self.data = context.data
        self.client: Client = connect(context.data, clock=clock)
        for queue in app.queues.values():
            self.client.broker.declare(queue.definition)
        workers = [worker for queue in app.queues.values() for worker in queue.workers]
        self._worker_pool = WorkerPool(self.client, workers, app.bridges) if workers or app.bridges else None
        answers = list(app.answers.values())
        self._responder = open_responder(str(self.data), answers) if answers else None

    def send(self, topic: str, *events: Any) -> Receipts:
        """Append events to a topic, in this order."""
        receipts = self.client.send_many(topic, list(events))
        self._append_idle_markers()
        return receipts

    def delete(self, topic: str, key: Any) -> Receipt:
        """Delete a key of a table."""
        receipt = self.client.delete(topic, key)
        self._append_idle_markers()
        return receipt

    def advance(self, by: str | timedelta) -> None:
        """Advance the test clock; idle topics get their idle markers, as on a running node."""
        # Before and after: idle time is measured from the check that first saw the current end of a partition.
        self._append_idle_markers()
        self.clock.advance(by)
        self._append_idle_markers()

    def _append_idle_markers(self) -> None:
        self._maintenance.for_each_topic(self._maintenance.append_idle_markers)

    def settle(self) -> None:
        """Return when every pipeline has committed all events, and workers have processed every message that is due.

        Before, captured tables are brought to the present end of their databases. Workers run in the thread of the
        test, one message at a time. A failed message is due again after `advance` has passed its backoff.

        Raises:
            HeadwaterError: A pipeline was given up.
        """
        for capture in self._captures:
            capture.run(threading.Event(), until_end=True)
        self._engine.catch_up()
        while self._worker_pool is not None and self._worker_pool.drain():
            self._engine.catch_up()  # workers may have sent events

    def queue(
        self,
        name: str,
        *,
        group: str | None = None,
        as_: type | None = None,
        prefetch: int = 10,
        timeout: str | timedelta | None = None,
    ) -> OpenQueue:
        """Returns a queue of the app, as `client.queue` does."""
        return self.client.queue(name, group=group, as_=as_, prefetch=prefetch, timeout=timeout)

    def rows(self, view: str, **options: Unpack[ReadOptions]) -> list[dict[str, Any]]:
        """Returns the rows of a view in the order of its key.

        The rows that a failed pipeline has committed can still be read.

        Args:
            view: The view.
            options: `after`, `timeout`, `where`, `key`, `limit`, `as_of`, `open`, `order`; see `ReadOptions`.

        Raises:
            HeadwaterError: There is no such view, or its pipeline failed before its first commit.
        """
        if view in self._engine.supervisors:
            try:
                self._engine.supervisors[view].wait_until_running()
            except HeadwaterError:
                if view not in self.client.views():
                    raise
        return self.client.view(view).rows(**options)

    def counts(self, pipeline: str) -> EventCounts:
        """Returns the outcome of all events that a pipeline has read, as counts."""
        sql = "select in_, used, late, quarantined, dropped from hw_pipelines where name = ?"
        found = self.client.sql(sql, [pipeline]).rows
        return EventCounts(*found[0]) if found else EventCounts()

    def close(self) -> None:
        """Close the client, the workers and the responder."""
        if self._worker_pool is not None:
            self._worker_pool.stop()
        if self._responder is not None:
            self._responder.close()
        self.client.close()

    def crash(self, point: str) -> None:
        """Make the next batch that reaches a failpoint fail there; it runs again from the checkpoint.

        Args:
            point: "before-sink", "before-sink-commit", "in-sink-commit", "after-sink-commit", "in-publish"
                or "after-publish".
        """
        arm(point)
