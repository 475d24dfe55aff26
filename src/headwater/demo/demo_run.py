"""Runs the demo: starts node, database, producers and pipelines, shows them, stops them, and checks the numbers."""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from headwater.app import App
from headwater.capture.capture_status import CaptureStatus, read_statuses
from headwater.capture_process import describe_status
from headwater.captures import bind_captures
from headwater.client import Client, connect
from headwater.config import PROFILE
from headwater.demo.audit import Audit, PipelineFacts, TableFacts, TopicFacts
from headwater.demo.producers import PROGRAMS, ProducerJob, SendCounts, produce
from headwater.demo.shop_database import ShopConnection, ShopDatabase, run_database
from headwater.errors import BadQueryError, HeadwaterError, UnknownViewError, UnreachableError
from headwater.events import SystemClock
from headwater.profiles import Profile
from headwater.runner import INTERRUPT_TIMEOUT, CaptureProcesses, EngineProcess
from headwater.store.status import EngineStatus, read_engine_status, write_engine_status
from headwater.store.views.view_query import ViewQuery, ViewResult

if TYPE_CHECKING:
    from headwater.log.protocol import TimedLog

__all__ = ["SHOP", "DemoResult", "DemoRun", "DemoSettings"]

logger = logging.getLogger("headwater.demo")


def _serve_node(folder: str, port: int, control: Connection) -> None:
    """Serve a folder until a message arrives on `control`, or it closes.

    Sends the node's URL on `control` once it answers, or the problem that kept it from starting.
    """
    from headwater.server import Node  # not at the top: the parent process needs no web server

    os.setsid()  # a new session: Ctrl-C in the terminal does not reach this process
    try:
        node = Node(folder, port)
    except HeadwaterError as error:
        control.send(error.problem())
        return

    def stop_on_message() -> None:
        with contextlib.suppress(EOFError, OSError):
            control.recv()
        node.stop()

    threading.Thread(target=stop_on_message, daemon=True).start()
    node.serve(lambda: control.send(node.url))


SHOP: Final = Path(__file__).with_name("shop.py")
"""The app file of the demo."""
_RECEIVE_TIMEOUT: Final = 60.0  # seconds for a process to answer, also on a busy machine
_STOP_TIMEOUT: Final = 15.0  # seconds for a process to exit; the node waits 8 s for requests in progress
_NEWEST_ROWS: Final = ViewQuery("revenue", order=("-minute", "category"), limit=5)
_PRODUCTS: Final = ViewQuery("products", order=("product_id",), limit=3)
_SETTLE_TIMEOUT: Final = 60.0  # seconds in which windows may still close
_PRELOADED: Final = ["headwater.demo.producers", "headwater.server.node"]
_DATABASE_VARIABLE: Final = "SHOP_DATABASE"  # where the app looks for the address
# Tills send through the node; the other programs open the folder. Both append to the same log.
_VIA_NODE: Final = frozenset(["tills"])


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the producers.

    Args:
        rate: Events per second.
        seed: Seed of the generated events.
        failing_events: Whether some events make a pipeline's function fail.
    """

    rate: float = 300.0
    seed: int = 1
    failing_events: bool = False


@dataclass(frozen=True)
class DemoResult:
    """The result of a run; `missing` says why no captures and pipelines ran."""

    topics: list[TopicFacts]
    tables: list[TableFacts]
    pipelines: list[PipelineFacts]
    failures: list[str]
    missing: str = ""

    @property
    def faults(self) -> list[str]:
        """All differences and failures."""
        facts: list[TopicFacts | TableFacts | PipelineFacts] = [*self.topics, *self.tables, *self.pipelines]
        return [*self.failures, *(fault for one in facts for fault in one.faults())]


@dataclass
class _ChildProcess:
    """A process of the demo, and the pipe to it."""

    name: str
    process: Any
    pipe: Connection

    def receive_answer(self) -> Any:
        """Returns its next message; raises the problem if it is one."""
        answer = self.receive()
        if isinstance(answer, dict):
            raise HeadwaterError.from_problem(answer)
        return answer

    def receive(self) -> Any:
        """Returns its next message.

        Raises:
            UnreachableError: The process died, or sent nothing in time.
        """
        with contextlib.suppress(EOFError, OSError):
            if self.pipe.poll(_RECEIVE_TIMEOUT):
                return self.pipe.recv()
        raise UnreachableError(f"the demo's process {self.name!r} did not answer", process=self.name)


class DemoRun:
    """A node, the shop's database, its capture, the engine with its pipelines, and producers, each in its own process.

    Args:
        folder: The data folder; created if missing.
        port: The node's port; 0 takes a free one.
        settings: Settings of the producers.
    """

    def __init__(self, folder: Path, port: int, settings: DemoSettings | None = None) -> None:
        self.folder = folder
        self.url = ""
        self.missing = ""
        self.settings = settings or DemoSettings()
        self._port = port
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._children: list[_ChildProcess] = []
        self._producers: list[_ChildProcess] = []
        self._engine: EngineProcess | None = None
        self._captures: CaptureProcesses | None = None
        self.database: ShopDatabase | None = None
        self._run = f"{time.time_ns():x}"
        self._journals = folder / "demo" / self._run
        self._initial_counts: dict[str, int] = {}
        self._sent: dict[str, SendCounts] = {}
        self._failures: list[str] = []
        self._expected: dict[str, int] = {}
        self.client: Client = connect(folder)

    # -- start ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start node and database, create the topics, start engine and capture, then the producers."""
        place = str((self.folder / "demo").absolute())
        self._database = self._spawn("database", run_database, (place, self.settings.seed))
        node = self._spawn("node", _serve_node, (str(self.folder), self._port))
        self.app, self.missing = _load_shop()
        for topic in self.app.topics.values():
            self.client.log.create(topic)
        self.url = node.receive_answer()
        if self.missing:
            write_engine_status(self.folder, EngineStatus("failed", SystemClock().micros(), self.missing))
        else:
            self._start_pipelines(self._database.receive_answer())
        starts = {name: {part.partition: part.end for part in self.client.log.ends(name)} for name in self.app.topics}
        self._initial_counts = {name: self.client.log.counts(name)["appended"] for name in self.app.topics}
        self._audit = Audit(self.client, self.app, starts)
        for process in PROGRAMS:
            target = self.url if process in _VIA_NODE else str(self.folder)
            job = ProducerJob(target, process, self._journals, self._run, **asdict(self.settings))
            self._producers.append(self._spawn(process, produce, (job,)))

    def _start_pipelines(self, database: ShopDatabase) -> None:
        """Start the engine, and the capture of a database that answers."""
        self.database = database
        os.environ[_DATABASE_VARIABLE] = database.url  # engine and capture load the app, too
        log = cast("TimedLog", self.client.log)  # the folder's
        captures = bind_captures(self.app, Profile(PROFILE.default), self.folder, log)
        self._engine = EngineProcess(SHOP, self.folder)
        self._engine.start()
        self._captures = CaptureProcesses(SHOP, self.folder, [each.name for each in captures], notify=logger.info)
        self._captures.start()

    # -- watch ---------------------------------------------------------------------------------------------------

    def count_appended(self) -> dict[str, int]:
        """Returns how many events were appended to each topic in this run."""
        return {
            name: self.client.log.counts(name)["appended"] - before for name, before in self._initial_counts.items()
        }

    def pipelines(self) -> list[PipelineFacts]:
        """Returns the present state of all pipelines."""
        return self._audit.pipelines()

    def newest_rows(self) -> ViewResult | None:
        """Returns the newest rows of the view `revenue`; None before its first ones."""
        try:
            found = self.client.view_source.read(_NEWEST_ROWS)
        except (UnknownViewError, BadQueryError):
            return None
        return found if found.table.num_rows else None

    def products(self) -> ViewResult | None:
        """Returns some rows of the captured table; None before its first ones."""
        try:
            found = self.client.view_source.read(_PRODUCTS)
        except (UnknownViewError, BadQueryError):
            return None
        return found if found.table.num_rows else None

    def capture_status(self) -> CaptureStatus | None:
        """Returns how far the capture is; None before its process runs."""
        return next(iter(read_statuses(self.folder)), None)

    def engine_status(self) -> EngineStatus:
        """Returns the state of the engine."""
        return read_engine_status(self.folder) or EngineStatus("starting", SystemClock().micros())

    # -- stop ----------------------------------------------------------------------------------------------------

    def stop_producers(self) -> None:
        """Stop the producers and the changes of the database, and collect the counts of the producers."""
        database = [self._database] if self.database is not None else []
        for child in (*self._producers, *database):
            with contextlib.suppress(OSError):
                child.pipe.send("stop")
        for child in database:
            try:
                child.receive_answer()
            except HeadwaterError as error:
                self._failures.append(error.what)
        for producer in self._producers:
            try:
                report, faults = producer.receive()
            except HeadwaterError as error:
                self._failures.append(error.what)
                continue
            self._failures.extend(f"{producer.name}: {fault}" for fault in faults)
            for topic, counts in report.items():
                self._sent[topic] = self._sent.get(topic, SendCounts()) + counts
        self._expected = {name: self._audit.input_events(name) for name in self.app.pipelines}

    def is_caught_up(self) -> bool:
        """Returns whether every pipeline has read all its input, or has failed."""
        if self.missing or self.engine_status().state == "failed":
            return True
        if self._is_lagging():
            return False
        # Only now are the final rows of upstream views complete, which are events of the pipelines behind them.
        chained = [one.name for one in self.app.pipelines.values() if not set(one.inputs) <= set(self.app.topics)]
        self._expected |= {name: self._audit.input_events(name) for name in chained}
        return not self._is_lagging()

    def _is_lagging(self) -> bool:
        return any(
            facts.state != "failed" and facts.counts["in_"] < self._expected[facts.name] for facts in self.pipelines()
        )

    def result(self) -> DemoResult:
        """Compare producers, topics and pipelines."""
        topics = self._audit.topics(self._sent, self._journals)
        if self.missing:
            return DemoResult(topics, [], [], self._failures, self.missing)
        state = self.engine_status()
        failures = [*self._failures, *([f"Spark: {state.detail}"] if state.state == "failed" else [])]
        if (status := self.capture_status()) is not None and status.error is not None:
            failures.append(describe_status(status))
        tables = [self._compare_table(name) for name in self.app.captures]
        pipelines = [self._compare(facts) for facts in self.pipelines()]
        return DemoResult(topics, tables, pipelines, failures)

    def _compare_table(self, name: str) -> TableFacts:
        """Compare a captured table with the database; retry for a while if they differ: the last changes may follow."""
        assert self.database is not None
        end = time.monotonic() + _SETTLE_TIMEOUT
        with contextlib.closing(ShopConnection(self.database.url)) as shop:
            rows = shop.query(f"select * from {name}")
        while (compared := self._audit.table(name, rows)).faults() and time.monotonic() < end:
            time.sleep(0.1)
        return compared

    def _compare(self, facts: PipelineFacts) -> PipelineFacts:
        """Compare a pipeline's rows; retry for a while if they differ, because windows may close meanwhile."""
        if facts.state == "failed":
            return replace(facts, events=self._audit.input_events(facts.name))
        end = time.monotonic() + _SETTLE_TIMEOUT
        while (compared := self._audit.compare(facts)).faults() and time.monotonic() < end:
            time.sleep(0.5)
            facts = next(now for now in self.pipelines() if now.name == facts.name)
        return compared

    def interrupt(self) -> None:
        """Stop all processes within some seconds, after Ctrl-C; nothing waits for events that are not processed."""
        supervised = [each for each in (self._engine, self._captures) if each is not None]
        stops = [threading.Thread(target=each.interrupt, daemon=True) for each in supervised]
        for stop in stops:
            stop.start()
        self._stop_children(INTERRUPT_TIMEOUT)
        for stop in stops:
            stop.join()
        self._engine = self._captures = None

    def close(self) -> None:
        """Stop all processes."""
        for supervised in (self._engine, self._captures):
            if supervised is not None:
                supervised.stop()
        self._stop_children(_STOP_TIMEOUT)
        os.environ.pop(_DATABASE_VARIABLE, None)
        self.client.close()

    def _stop_children(self, timeout: float) -> None:
        for child in self._children:
            child.pipe.close()
        deadline = time.monotonic() + timeout
        for child in self._children:
            child.process.join(max(0.0, deadline - time.monotonic()))
            if child.process.is_alive():
                child.process.kill()
        self._children.clear()

    def _spawn(self, name: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> _ChildProcess:
        here, there = self._context.Pipe()
        process = self._context.Process(target=work, args=(*arguments, there), name=name, daemon=True)
        process.start()
        there.close()  # or `recv` would not end when the child dies
        self._children.append(_ChildProcess(name, process, here))
        return self._children[-1]


def _load_shop() -> tuple[App, str]:
    """Returns the app, and what is missing to run its pipelines; without Spark a stub module lets the app load."""
    try:
        importlib.import_module("pyspark.sql")
        from headwater.engine.spark.java import find_java

        find_java()
        missing = ""
    except ImportError:
        missing = "the package pyspark is not installed: pip install pyspark"
        stand_in = ModuleType("pyspark.sql")
        stand_in.__dict__.update(DataFrame=None, functions=None)
        sys.modules.update({"pyspark": ModuleType("pyspark"), "pyspark.sql": stand_in})
    except HeadwaterError as error:
        missing = f"{error.what}: {error.fix}"
    app: App = importlib.import_module("headwater.demo.shop").app
    return app, missing
