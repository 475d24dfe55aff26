"""Runs the demo: starts the node, producers and pipelines, shows them, stops them, and checks the numbers."""

from __future__ import annotations

import contextlib
import importlib
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
from typing import Any, Final

from headwater.app import App
from headwater.client import Client, connect
from headwater.demo.audit import Audit, PipelineFacts, TopicFacts
from headwater.demo.producers import PROGRAMS, ProducerJob, SendCounts, produce
from headwater.errors import BadQueryError, HeadwaterError, UnknownViewError, UnreachableError
from headwater.events import SystemClock
from headwater.runner import INTERRUPT_TIMEOUT, EngineProcess
from headwater.store.status import EngineStatus, read_engine_status, write_engine_status
from headwater.store.views.view_query import ViewQuery, ViewResult

__all__ = ["SHOP", "DemoResult", "DemoRun", "DemoSettings"]


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
_SETTLE_TIMEOUT: Final = 60.0  # seconds in which windows may still close
_PRELOADED: Final = ["headwater.demo.producers", "headwater.server.node"]
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
    """The result of a run; `missing` says why no pipelines ran."""

    topics: list[TopicFacts]
    pipelines: list[PipelineFacts]
    failures: list[str]
    missing: str = ""

    @property
    def faults(self) -> list[str]:
        """All differences and failures."""
        facts: list[TopicFacts | PipelineFacts] = [*self.topics, *self.pipelines]
        return [*self.failures, *(fault for one in facts for fault in one.faults())]


@dataclass
class _ChildProcess:
    """A process of the demo, and the pipe to it."""

    name: str
    process: Any
    pipe: Connection

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
    """A node, the engine with its pipelines, and producers, each in its own process.

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
        self._run = f"{time.time_ns():x}"
        self._journals = folder / "demo" / self._run
        self._initial_counts: dict[str, int] = {}
        self._sent: dict[str, SendCounts] = {}
        self._failures: list[str] = []
        self._expected: dict[str, int] = {}
        self.client: Client = connect(folder)

    # -- start ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the node, create the topics, start the engine, then the producers."""
        node = self._spawn("node", _serve_node, (str(self.folder), self._port))
        self.app, self.missing = _load_shop()
        for topic in self.app.topics.values():
            self.client.log.create(topic)
        starts = {name: {part.partition: part.end for part in self.client.log.ends(name)} for name in self.app.topics}
        self._initial_counts = {name: self.client.log.counts(name)["appended"] for name in self.app.topics}
        self._audit = Audit(self.client, self.app, starts)
        answer = node.receive()
        if isinstance(answer, dict):
            raise HeadwaterError.from_problem(answer)
        self.url = answer
        if self.missing:
            write_engine_status(self.folder, EngineStatus("failed", SystemClock().micros(), self.missing))
        else:
            self._engine = EngineProcess(SHOP, self.folder)
            self._engine.start()
        for process in PROGRAMS:
            target = self.url if process in _VIA_NODE else str(self.folder)
            job = ProducerJob(target, process, self._journals, self._run, **asdict(self.settings))
            self._producers.append(self._spawn(process, produce, (job,)))

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

    def engine_status(self) -> EngineStatus:
        """Returns the state of the engine."""
        return read_engine_status(self.folder) or EngineStatus("starting", SystemClock().micros())

    # -- stop ----------------------------------------------------------------------------------------------------

    def stop_producers(self) -> None:
        """Stop the producers and collect their counts."""
        for producer in self._producers:
            with contextlib.suppress(OSError):
                producer.pipe.send("stop")
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
            return DemoResult(topics, [], self._failures, self.missing)
        state = self.engine_status()
        failures = [*self._failures, *([f"Spark: {state.detail}"] if state.state == "failed" else [])]
        pipelines = [self._compare(facts) for facts in self.pipelines()]
        return DemoResult(topics, pipelines, failures)

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
        if self._engine is not None:
            stop = threading.Thread(target=self._engine.interrupt, daemon=True)
            stop.start()
            self._stop_children(INTERRUPT_TIMEOUT)
            stop.join()
            self._engine = None
        else:
            self._stop_children(INTERRUPT_TIMEOUT)

    def close(self) -> None:
        """Stop all processes."""
        if self._engine is not None:
            self._engine.stop()
        self._stop_children(_STOP_TIMEOUT)
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
