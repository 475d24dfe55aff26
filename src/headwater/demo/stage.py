"""Start the shop, watch it, end it, and check that its numbers add up."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from headwater.client import Client, connect
from headwater.demo.followers import GROUPS, Followed, follow
from headwater.demo.producing import Tally, produce
from headwater.demo.serving import serve
from headwater.demo.shop import app
from headwater.demo.traffic import PROGRAMS
from headwater.errors import HeadwaterError, UnreachableError

__all__ = ["Outcome", "Stage", "TopicFacts"]

_PATIENCE: Final = 60.0  # seconds for a process to answer on a busy machine
_PARTING: Final = 15.0  # seconds for a process to end; the node waits 8 for requests under way
_PRELOADED: Final = ["headwater.demo.producing", "headwater.demo.followers", "headwater.server.node"]
# Tills go through the node, the other programs open the folder: both ways lead into the same log.
_BY_NODE: Final = frozenset(["tills"])


@dataclass(frozen=True)
class TopicFacts:
    """What is known of one topic: at the door, and by the groups that read it."""

    topic: str
    partitions: int
    counts: dict[str, int]
    sent: Tally = field(default_factory=Tally)
    read: dict[str, Followed] = field(default_factory=dict)

    @property
    def dropped(self) -> int:
        """Events that the topic's overload policy dropped."""
        return sum(number for name, number in self.counts.items() if name.startswith("drop"))

    def faults(self) -> list[str]:
        """What does not add up; nothing, if all is well."""
        door, sent = self.counts, self.sent
        claims = {
            "offered = appended + duplicate + refused + dropped": (
                door["offered"],
                door["appended"] + door["duplicate"] + door["refused"] + self.dropped,
            ),
            "the door counted what producers sent": (door["offered"], sent.offered),
            "producers were told what was appended": (sent.appended, door["appended"]),
            "producers were told what was repeated": (sent.duplicate, door["duplicate"]),
            "producers were told what was dropped": (sent.dropped, self.dropped),
        }
        for group, followed in self.read.items():
            claims[f"{group} read what was appended"] = (followed.events, door["appended"])
        faults = [f"{self.topic}: {claim}: {a:,} against {b:,}" for claim, (a, b) in claims.items() if a != b]
        for group, followed in self.read.items():
            if followed.amount != sent.amount:
                faults.append(
                    f"{self.topic}: {group} saw an amount of {followed.amount} against {sent.amount}"
                )
        return faults


@dataclass(frozen=True)
class Outcome:
    """How a run of the shop ended."""

    topics: list[TopicFacts]
    failures: list[str]

    @property
    def faults(self) -> list[str]:
        """Everything that does not add up or went wrong."""
        return [*self.failures, *(fault for topic in self.topics for fault in topic.faults())]


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
    """The whole shop: a node, producers and followers, each in a process of its own.

    Args:
        folder: Where the log is, or will be.
        port: The node's port; 0 takes a free one.
        seed: Decides what the producers send.
    """

    def __init__(self, folder: Path, port: int, seed: int = 1) -> None:
        self.folder = folder
        self.url = ""
        self._port = port
        self._seed = seed
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        self._node: _Player | None = None
        self._producers: list[_Player] = []
        self._followers: list[_Player] = []
        self._before: dict[str, dict[str, int]] = {}
        self.client: Client = connect(folder)

    def start(self) -> None:
        """Create the topics, start the node, then the followers, then the producers."""
        for topic in app.topics.values():
            self.client.log.create(topic)
        self._skip_what_is_old()
        self._before = {name: self.client.log.counts(name) for name in app.topics}
        self._node = self._player("node", serve, (str(self.folder), self._port))
        answer = self._node.hear()
        if isinstance(answer, dict):
            raise HeadwaterError.from_problem(answer)
        self.url = answer
        self._followers = [self._player(group, follow, (str(self.folder), group)) for group in GROUPS]
        for player in self._followers:
            player.hear()
        run = f"{time.time_ns():x}"
        for process in PROGRAMS:
            place = self.url if process in _BY_NODE else str(self.folder)
            self._producers.append(self._player(process, produce, (place, process, self._seed, run)))

    def facts(self) -> list[TopicFacts]:
        """What the log knows of this run at the moment."""
        found = []
        for name, topic in app.topics.items():
            counts, before = self.client.log.counts(name), self._before[name]
            since = {decision: counts[decision] - before[decision] for decision in counts}
            found.append(TopicFacts(name, topic.partitions, since))
        return found

    def finish(self) -> Outcome:
        """Stop the producers, let the followers read to the end, and count."""
        sent: dict[str, Tally] = {}
        read: dict[str, dict[str, Followed]] = {}
        failures: list[str] = []
        for _, report in self._reports(self._producers, failures):
            for topic, tally in report.items():
                sent[topic] = sent.get(topic, Tally()) + tally
        for group, report in self._reports(self._followers, failures):
            for topic, followed in report.items():
                read.setdefault(topic, {})[group] = followed
        topics = [
            TopicFacts(
                known.topic,
                known.partitions,
                known.counts,
                sent.get(known.topic, Tally()),
                read.get(known.topic, {}),
            )
            for known in self.facts()
        ]
        return Outcome(topics, failures)

    def close(self) -> None:
        """End every process that is still there."""
        players = [*self._producers, *self._followers, *([self._node] if self._node else [])]
        for player in players:
            player.line.close()
        for player in players:
            player.process.join(_PARTING)
            if player.process.is_alive():
                player.process.kill()
        self.client.close()

    def _reports(self, players: list[_Player], failures: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """What processes report once they are told to stop; faults are added to `failures`."""
        for player in players:
            with contextlib.suppress(OSError):
                player.line.send("stop")
        for player in players:
            try:
                report, faults = player.hear()
            except HeadwaterError as error:
                failures.append(error.what)
                continue
            failures.extend(f"{player.name}: {fault}" for fault in faults)
            yield player.name, report

    def _player(self, name: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> _Player:
        here, there = self._context.Pipe()
        process = self._context.Process(target=work, args=(*arguments, there), name=name, daemon=True)
        process.start()
        there.close()
        return _Player(name, process, here)

    def _skip_what_is_old(self) -> None:
        """Groups begin at the end of what an earlier run left."""
        known = {(state.group, state.topic) for state in self.client.log.groups.states()}
        for group, topics in GROUPS.items():
            for topic in topics:
                if (group, topic) in known:
                    self.client.reset(group, topic, "latest")
