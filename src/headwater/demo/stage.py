"""Start the shop, watch it, end it, and check that its numbers add up."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from headwater.app import App
from headwater.client import Client, connect
from headwater.demo.audit import Audit, PipelineFacts, TopicFacts
from headwater.demo.producing import Job, Tally, produce
from headwater.demo.serving import serve
from headwater.demo.traffic import PROGRAMS
from headwater.errors import HeadwaterError, UnreachableError
from headwater.events import SystemClock
from headwater.runner import EngineProcess
from headwater.store.engine_state import EngineState, read_engine_state, write_engine_state

__all__ = ["SHOP", "Outcome", "Play", "Stage"]

SHOP: Final = Path(__file__).with_name("shop.py")
"""The app that is run."""
_PATIENCE: Final = 60.0  # seconds for a process to answer on a busy machine
_PARTING: Final = 15.0  # seconds for a process to end; the node waits 8 for requests under way
_SETTLING: Final = 60.0  # seconds in which rows that wait for time may still come
_PRELOADED: Final = ["headwater.demo.producing", "headwater.server.node"]
# Tills go through the node, the other programs open the folder: both ways lead into the same log.
_BY_NODE: Final = frozenset(["tills"])


@dataclass(frozen=True)
class Play:
    """What is played.

    Args:
        rate: Events a second.
        seed: Decides what the producers send.
        poison: Whether some events make a pipeline's function fail.
    """

    rate: float = 300.0
    seed: int = 1
    poison: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a run of the shop ended; `missing` says why no pipelines ran."""

    topics: list[TopicFacts]
    pipelines: list[PipelineFacts]
    failures: list[str]
    missing: str = ""

    @property
    def faults(self) -> list[str]:
        """Everything that does not add up or went wrong."""
        facts: list[TopicFacts | PipelineFacts] = [*self.topics, *self.pipelines]
        return [*self.failures, *(fault for one in facts for fault in one.faults())]


@dataclass
class _Player:
    """A process of the shop, and the line to it."""

    name: str
    process: Any
    line: Connection

    def hear(self) -> Any:
        """What it says next.

        Raises:
            UnreachableError: It died, or says nothing.
        """
        with contextlib.suppress(EOFError, OSError):
            if self.line.poll(_PATIENCE):
                return self.line.recv()
        raise UnreachableError(f"the demo's process {self.name!r} gave no answer", process=self.name)


class Stage:
    """The whole shop: a node, the engine with its pipelines, and producers, each in a process of its own.

    Args:
        folder: Where the log is, or will be.
        port: The node's port; 0 takes a free one.
        play: What is played.
    """

    def __init__(self, folder: Path, port: int, play: Play | None = None) -> None:
        self.folder = folder
        self.url = ""
        self.missing = ""
        self.play = play or Play()
        self._port = port
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._node: _Player | None = None
        self._producers: list[_Player] = []
        self._engine: EngineProcess | None = None
        self._run = f"{time.time_ns():x}"
        self._appended: dict[str, int] = {}
        self._sent: dict[str, Tally] = {}
        self._failures: list[str] = []
        self._expected: dict[str, int] = {}
        self.client: Client = connect(folder)

    # -- begin ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the node, create the topics, start the engine, then the producers."""
        self._node = self._player("node", serve, (str(self.folder), self._port))
        self.app, self.missing = _loaded()
        for topic in self.app.topics.values():
            self.client.log.create(topic)
        starts = {
            name: {part.partition: part.end for part in self.client.log.ends(name)}
            for name in self.app.topics
        }
        self._appended = {name: self.client.log.counts(name)["appended"] for name in self.app.topics}
        self._audit = Audit(self.client, self.app, starts)
        answer = self._node.hear()
        if isinstance(answer, dict):
            raise HeadwaterError.from_problem(answer)
        self.url = answer
        self._start_engine()
        for process in PROGRAMS:
            place = self.url if process in _BY_NODE else str(self.folder)
            job = Job(
                place, process, self._journals, self._run, self.play.rate, self.play.seed, self.play.poison
            )
            self._producers.append(self._player(process, produce, (job,)))

    @property
    def _journals(self) -> Path:
        return self.folder / "demo" / self._run

    def _start_engine(self) -> None:
        if self.missing:
            write_engine_state(self.folder, EngineState("failed", SystemClock().micros(), self.missing))
            return
        self._engine = EngineProcess(SHOP, self.folder)
        self._engine.start()

    # -- watch ---------------------------------------------------------------------------------------------------

    def appended(self) -> dict[str, int]:
        """How many events each topic took in this run."""
        return {
            name: self.client.log.counts(name)["appended"] - before for name, before in self._appended.items()
        }

    def pipelines(self) -> list[PipelineFacts]:
        """All pipelines as they are."""
        return self._audit.pipelines()

    def engine(self) -> EngineState:
        """How Spark is doing."""
        return read_engine_state(self.folder) or EngineState("starting", SystemClock().micros())

    # -- end -----------------------------------------------------------------------------------------------------

    def hush(self) -> None:
        """Stop the producers, and hear what they sent."""
        for _, report in self._reports(self._producers):
            for topic, tally in report.items():
                self._sent[topic] = self._sent.get(topic, Tally()) + tally
        self._expected = {name: self._audit.events(name) for name in self.app.pipelines}

    def current(self) -> bool:
        """Whether every pipeline has taken in all there is, or never will."""
        if self.missing or self.engine().state == "failed":
            return True
        if self._behind():
            return False
        chained = [one for one in self.app.pipelines.values() if not set(one.inputs) <= set(self.app.topics)]
        self._expected |= {one.name: self._audit.events(one.name) for one in chained}
        return not self._behind()

    def _behind(self) -> list[str]:
        return [
            facts.name
            for facts in self.pipelines()
            if facts.state != "failed" and facts.counts["in_"] < self._expected[facts.name]
        ]

    def outcome(self) -> Outcome:
        """Compare everything with everything."""
        topics = self._audit.topics(self._sent, self._journals)
        if self.missing:
            return Outcome(topics, [], self._failures, self.missing)
        state = self.engine()
        failures = [*self._failures, *([f"Spark: {state.detail}"] if state.state == "failed" else [])]
        pipelines = [self._compared(facts) for facts in self.pipelines()]
        return Outcome(topics, pipelines, failures)

    def _compared(self, facts: PipelineFacts) -> PipelineFacts:
        """A pipeline with its rows compared; again after a moment if they differ, since time goes on."""
        if facts.state == "failed":
            return replace(facts, events=self._audit.events(facts.name))
        end = time.monotonic() + _SETTLING
        while (compared := self._audit.compared(facts)).faults() and time.monotonic() < end:
            time.sleep(0.5)
            facts = next(now for now in self.pipelines() if now.name == facts.name)
        return compared

    def close(self) -> None:
        """End every process that is still there."""
        if self._engine is not None:
            self._engine.stop()
        players = [*self._producers, *([self._node] if self._node else [])]
        for player in players:
            player.line.close()
        for player in players:
            player.process.join(_PARTING)
            if player.process.is_alive():
                player.process.kill()
        self.client.close()

    def _reports(self, players: list[_Player]) -> Iterator[tuple[str, dict[str, Any]]]:
        """What processes report once they are told to stop."""
        for player in players:
            with contextlib.suppress(OSError):
                player.line.send("stop")
        for player in players:
            try:
                report, faults = player.hear()
            except HeadwaterError as error:
                self._failures.append(error.what)
                continue
            self._failures.extend(f"{player.name}: {fault}" for fault in faults)
            yield player.name, report

    def _player(self, name: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> _Player:
        here, there = self._context.Pipe()
        process = self._context.Process(target=work, args=(*arguments, there), name=name, daemon=True)
        process.start()
        there.close()
        return _Player(name, process, here)


def _loaded() -> tuple[App, str]:
    """The shop, and what is missing to run its pipelines; its topics are there in any case."""
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
