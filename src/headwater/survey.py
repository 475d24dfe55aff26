"""What of an app is there already, where its profile says, and what a run would create or change; nothing is touched.

Log, store and Spark are asked one by one: what does not answer is named, and the rest is still told.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from headwater.address import redacted
from headwater.client.views.changes import changes_topic
from headwater.errors import HeadwaterError, UnreachableError
from headwater.log import Topic
from headwater.log.places import survey_log
from headwater.log.survey import LogSurvey, TopicVerdict, compared
from headwater.pipelines import Graph, Kind, Pipeline
from headwater.profiles import Profile
from headwater.store import ViewTable
from headwater.store.places import survey_store
from headwater.store.survey import StoreStanding

__all__ = ["Found", "Part", "Survey", "survey"]

Verdict: TypeAlias = TopicVerdict | Literal["rebuild", "unused", "unknown"]

_WORDS: Final[dict[Verdict, str]] = {
    "create": "would be created",
    "declare": "was made by others, would be declared",
    "kept": "is there",
    "change": "is there, would be changed",
    "rebuild": "is there, would need a rebuild",
    "refused": "does not fit",
    "unused": "is there, and the app does not have it",
    "unknown": "not asked",
}
_GLANCE: Final = 2.0  # seconds for a master to take a connection


@dataclass(frozen=True)
class Found:
    """One thing that a run needs, and what it would do about it.

    Example:
        >>> Found("topic", "orders", "create", ("1 partition", "kept for ever")).lines()
        ['  topic orders: would be created', '    1 partition', '    kept for ever']
    """

    kind: str
    name: str
    verdict: Verdict
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """As a person reads it."""
        heading = f"  {self.kind} {self.name}".rstrip()
        return [f"{heading}: {_WORDS[self.verdict]}", *(f"    {note}" for note in self.notes)]


@dataclass(frozen=True)
class Part:
    """One service, and what is there; or why it could not be asked."""

    part: str
    where: str
    found: tuple[Found, ...] = ()
    error: HeadwaterError | None = None

    def lines(self) -> list[str]:
        """As a person reads it."""
        told = [line for found in self.found for line in found.lines()]
        if self.error is not None:
            told += [f"  {line}" for line in self.error.render().splitlines()]
        return [f"{self.part.ljust(12)} {self.where}", *told]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "where": self.where,
            "found": [asdict(found) | {"notes": list(found.notes)} for found in self.found],
            "error": self.error and self.error.problem(),
        }


@dataclass(frozen=True)
class Survey:
    """What is there; made by `survey`.

    Attributes:
        parts: Log, store, Spark and checkpoints.
        tables: Views that the store has.
    """

    parts: tuple[Part, ...]
    tables: dict[str, ViewTable]

    @property
    def refused(self) -> bool:
        """Whether something that is there does not fit the app."""
        return any(found.verdict == "refused" for part in self.parts for found in part.found)

    @property
    def errors(self) -> list[HeadwaterError]:
        """Why services could not be asked."""
        return [part.error for part in self.parts if part.error is not None]

    def lines(self) -> list[str]:
        """As a person reads it."""
        return [line for part in self.parts for line in part.lines()]

    def document(self) -> dict[str, Any]:
        """As JSON, by part."""
        return {part.part: part.document() for part in self.parts}


def survey(profile: Profile, data: Path, graph: Graph, *, kafka: bool | None = None) -> Survey:
    """Look at everything that an app would use; nothing is made or changed, and Spark is not started.

    Args:
        profile: Where log, store and Spark are.
        data: The data folder.
        graph: The app's topics and pipelines.
        kafka: Whether the log is the profile's Kafka rather than the data folder, where that was chosen apart.

    Example:
        >>> from headwater.app import App
        >>> app = App("shop")
        >>> orders = app.topic("orders", "id int")
        >>> survey(Profile("embedded"), Path("nowhere"), app.resolve()).parts[0].found[0].verdict
        'create'
    """
    on_kafka = profile.kafka if kafka is None else kafka
    tables: dict[str, ViewTable] = {}

    def store() -> Iterator[Found]:
        standing = survey_store(profile.store.resolved() if profile.store else None, data)
        tables.update(standing.views)
        return _store(standing, graph)

    def log() -> Iterator[Found]:
        with contextlib.closing(
            survey_log(profile.log.resolved() if profile.log and on_kafka else str(data))
        ) as asked:
            yield from _log(asked, graph, tables)

    told_store = _asked("store", str(profile.store or f"SQLite in {data}"), store)
    told_log = _asked("log", str(profile.log if on_kafka else data), log)
    spark = _asked("spark", str(profile.spark), lambda: _spark(profile.spark.resolved()))
    checkpoints = _asked("checkpoints", str(profile.checkpoints or data), lambda: _checkpoints(profile, data))
    return Survey((told_log, told_store, spark, checkpoints), tables)


def _asked(part: str, where: str, ask: Callable[[], Iterator[Found]]) -> Part:
    try:
        return Part(part, where, tuple(ask()))
    except HeadwaterError as error:
        return Part(part, where, error=error)


def _log(log: LogSurvey, graph: Graph, tables: dict[str, ViewTable]) -> Iterator[Found]:
    for topic in graph.topics:
        yield _topic(log, topic)
    made = {name: pipeline for pipeline in graph.pipelines if (name := _output(pipeline, tables))}
    for name, pipeline in made.items():
        there = log.standing(name)
        note = (
            f"{'changes' if pipeline.kind is Kind.VIEW else 'rows'} of {pipeline.kind.value} {pipeline.name}"
        )
        yield Found("topic", name, "kept" if there.partitions else "create", (note,))
    read = dict.fromkeys(edge.source for edge in graph.edges)
    outputs = {pipeline.name: name for name, pipeline in made.items()}
    for name in log.side_topics([outputs.get(one, one) for one in read]):
        yield Found("side topic", name, "kept" if log.standing(name).partitions else "create")


def _topic(log: LogSurvey, topic: Topic) -> Found:
    there = log.standing(topic.name)
    verdict, notes = compared(topic, there)
    meant = log.meant(topic)
    if verdict == "create":
        settings = dict(there.settings) | meant
        notes += [", ".join(f"{name}={value}" for name, value in settings.items())] if settings else []
    elif verdict != "refused":
        for name, value in (log.meant(there.known) if there.known else meant).items():
            if there.settings.get(name) != value:
                notes.append(
                    f"{name} is {there.settings.get(name)} there, declared {value}; it stays as it is"
                )
    return Found("topic", topic.name, verdict, tuple(notes))


def _output(pipeline: Pipeline, tables: dict[str, ViewTable]) -> str | None:
    """The topic that a pipeline feeds."""
    if pipeline.kind is Kind.VIEW:
        table = tables.get(pipeline.name)
        return changes_topic(pipeline.name, table.version if table else 1)
    return pipeline.name if pipeline.kind is Kind.STREAM else None


def _store(there: StoreStanding, graph: Graph) -> Iterator[Found]:
    yield _own_tables(there)
    views = {pipeline.name: pipeline for pipeline in graph.pipelines if pipeline.kind is Kind.VIEW}
    if there.format <= there.newest:
        yield from (_view(pipeline, there) for pipeline in views.values())
    for name in there.views:
        if name not in views:
            yield Found("view", name, "unused")


def _own_tables(there: StoreStanding) -> Found:
    steps = f"format {there.format}, this version of Headwater has {there.newest}"
    if there.refusal:
        return Found("own tables", "", "refused", (there.refusal,))
    if there.format > there.newest:
        return Found("own tables", "", "refused", (f"{steps}: use the newer one",))
    if 0 < there.format < there.newest:
        return Found("own tables", "", "change", (steps,))
    return Found("own tables", "", "kept" if there.format else "create", (f"format {there.newest}",))


def _view(pipeline: Pipeline, there: StoreStanding) -> Found:
    name = pipeline.name
    table = there.views.get(name)
    if table is None:
        return Found("view", name, "create", (f"key {', '.join(pipeline.key)}",))
    about = f"version {table.version}, key {', '.join(table.key)}"
    if name in there.altered:
        return Found("view", name, "refused", (about, *there.altered[name].splitlines()))
    if table.key != pipeline.key:
        return Found("view", name, "rebuild", (f"{about}; the key would be {', '.join(pipeline.key)}",))
    return Found("view", name, "kept", (about,))


def _spark(master: str) -> Iterator[Found]:
    """Whether a standalone master takes connections; of several, one is enough."""
    if not master.startswith("spark://"):
        yield Found("master", "", "kept" if master.startswith("local") else "unknown")
        return
    why = ""
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _GLANCE).close()
        except OSError as error:
            why = error.strerror or str(error)
        else:
            yield Found("master", place, "kept")
            return
    raise UnreachableError(f"no Spark master answers at {master}", detail=why, url=master, sent=False)


def _checkpoints(profile: Profile, data: Path) -> Iterator[Found]:
    where = profile.checkpoints.resolved() if profile.checkpoints else str(data)
    if "://" in where.removeprefix("file://"):
        yield Found("folder", redacted(where), "unknown")
        return
    if profile.checkpoints is None and not profile.spark.resolved().startswith("local"):
        yield Found(
            "folder", "", "refused", (f"the workers of {profile.spark} do not reach the data folder",)
        )
        return
    folder = Path(where.removeprefix("file://"))
    yield Found("folder", "", "kept" if folder.is_dir() else "create")
