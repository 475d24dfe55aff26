"""Compares an app with what its profile's backends hold: what a run would create or change. Read-only.

Log, store and Spark are inspected one by one. A backend that does not answer is reported, and the others
are still shown.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from headwater.backends import inspect_log, inspect_store
from headwater.errors import HeadwaterError, UnreachableError
from headwater.log import Topic
from headwater.log.inspection import LogInspector, TopicVerdict, compare_topic
from headwater.pipelines import Graph, Pipeline, PipelineKind
from headwater.profiles import Profile, redact
from headwater.store import ViewTable
from headwater.store.changelog import changelog_topic
from headwater.store.protocol import StoreInspection

__all__ = ["Finding", "Inspection", "ServiceInspection", "inspect_app"]

Verdict: TypeAlias = TopicVerdict | Literal["rebuild", "unused", "unknown"]

_VERDICT_TEXT: Final[dict[Verdict, str]] = {
    "create": "would be created",
    "declare": "was made by others, would be declared",
    "kept": "is there",
    "change": "is there, would be changed",
    "rebuild": "is there, would need a rebuild",
    "refused": "does not fit",
    "unused": "is there, and the app does not have it",
    "unknown": "not asked",
}
_CONNECT_TIMEOUT: Final = 2.0  # seconds for a master to take a connection


@dataclass(frozen=True)
class Finding:
    """One object that a run needs, and what the run would do about it.

    Example:
        >>> Finding("topic", "orders", "create", ("1 partition", "kept for ever")).lines()
        ['  topic orders: would be created', '    1 partition', '    kept for ever']
    """

    kind: str
    name: str
    verdict: Verdict
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """As a person reads it."""
        heading = f"  {self.kind} {self.name}".rstrip()
        return [f"{heading}: {_VERDICT_TEXT[self.verdict]}", *(f"    {note}" for note in self.notes)]


@dataclass(frozen=True)
class ServiceInspection:
    """One service, and what is there; or why it could not be asked."""

    service: str
    where: str
    findings: tuple[Finding, ...] = ()
    error: HeadwaterError | None = None

    def lines(self) -> list[str]:
        """As a person reads it."""
        lines = [line for found in self.findings for line in found.lines()]
        if self.error is not None:
            lines += [f"  {line}" for line in self.error.render().splitlines()]
        return [f"{self.service.ljust(12)} {self.where}", *lines]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "where": self.where,
            "found": [asdict(found) | {"notes": list(found.notes)} for found in self.findings],
            "error": self.error and self.error.problem(),
        }


@dataclass(frozen=True)
class Inspection:
    """What is there; made by `inspect_app`.

    Attributes:
        services: Log, store, Spark and checkpoints.
        tables: Views that the store has.
    """

    services: tuple[ServiceInspection, ...]
    tables: dict[str, ViewTable]

    @property
    def is_refused(self) -> bool:
        """Whether something that is there does not fit the app."""
        return any(found.verdict == "refused" for part in self.services for found in part.findings)

    @property
    def errors(self) -> list[HeadwaterError]:
        """Why services could not be asked."""
        return [part.error for part in self.services if part.error is not None]

    def lines(self) -> list[str]:
        """As a person reads it."""
        return [line for part in self.services for line in part.lines()]

    def document(self) -> dict[str, Any]:
        """As JSON, by part."""
        return {part.service: part.document() for part in self.services}


def inspect_app(profile: Profile, data: Path, graph: Graph, *, kafka: bool | None = None) -> Inspection:
    """Inspect everything that an app would use; creates and changes nothing, and does not start Spark.

    Args:
        profile: Where log, store and Spark are.
        data: The data folder.
        graph: The app's topics and pipelines.
        kafka: Whether the log is the profile's Kafka rather than the data folder, where that was chosen apart.

    Example:
        >>> from headwater.app import App
        >>> app = App("shop")
        >>> orders = app.topic("orders", "id int")
        >>> inspect_app(Profile("embedded"), Path("nowhere"), app.resolve()).services[0].findings[0].verdict
        'create'
    """
    on_kafka = profile.kafka if kafka is None else kafka
    tables: dict[str, ViewTable] = {}

    def store() -> Iterator[Finding]:
        standing = inspect_store(profile.store.resolve() if profile.store else None, data)
        tables.update(standing.views)
        return _store_findings(standing, graph)

    def log() -> Iterator[Finding]:
        with contextlib.closing(inspect_log(profile.log.resolve() if profile.log and on_kafka else str(data))) as asked:
            yield from _log_findings(asked, graph, tables)

    store_inspection = _inspect_service("store", str(profile.store or f"SQLite in {data}"), store)
    log_inspection = _inspect_service("log", str(profile.log if on_kafka else data), log)
    spark = _inspect_service("spark", str(profile.spark), lambda: _spark_findings(profile.spark.resolve()))
    checkpoints = _inspect_service(
        "checkpoints", str(profile.checkpoints or data), lambda: _checkpoint_findings(profile, data)
    )
    return Inspection((log_inspection, store_inspection, spark, checkpoints), tables)


def _inspect_service(service: str, where: str, ask: Callable[[], Iterator[Finding]]) -> ServiceInspection:
    try:
        return ServiceInspection(service, where, tuple(ask()))
    except HeadwaterError as error:
        return ServiceInspection(service, where, error=error)


def _log_findings(log: LogInspector, graph: Graph, tables: dict[str, ViewTable]) -> Iterator[Finding]:
    for topic in graph.topics:
        yield _topic_finding(log, topic)
    made = {name: pipeline for pipeline in graph.pipelines if (name := _output_topic(pipeline, tables))}
    for name, pipeline in made.items():
        there = log.inspect_topic(name)
        note = f"{'changes' if pipeline.kind is PipelineKind.VIEW else 'rows'} of {pipeline.kind.value} {pipeline.name}"
        yield Finding("topic", name, "kept" if there.partitions else "create", (note,))
    read = dict.fromkeys(edge.source for edge in graph.edges)
    outputs = {pipeline.name: name for name, pipeline in made.items()}
    for name in log.side_topics([outputs.get(one, one) for one in read]):
        yield Finding("side topic", name, "kept" if log.inspect_topic(name).partitions else "create")


def _topic_finding(log: LogInspector, topic: Topic) -> Finding:
    there = log.inspect_topic(topic.name)
    verdict, notes = compare_topic(topic, there)
    meant = log.settings_for(topic)
    if verdict == "create":
        settings = dict(there.settings) | meant
        notes += [", ".join(f"{name}={value}" for name, value in settings.items())] if settings else []
    elif verdict != "refused":
        for name, value in (log.settings_for(there.definition) if there.definition else meant).items():
            if there.settings.get(name) != value:
                notes.append(f"{name} is {there.settings.get(name)} there, declared {value}; it stays as it is")
    return Finding("topic", topic.name, verdict, tuple(notes))


def _output_topic(pipeline: Pipeline, tables: dict[str, ViewTable]) -> str | None:
    """Returns the topic that a pipeline feeds."""
    if pipeline.kind is PipelineKind.VIEW:
        table = tables.get(pipeline.name)
        return changelog_topic(pipeline.name, table.version if table else 1)
    return pipeline.name if pipeline.kind is PipelineKind.STREAM else None


def _store_findings(there: StoreInspection, graph: Graph) -> Iterator[Finding]:
    yield _internal_tables_finding(there)
    views = {pipeline.name: pipeline for pipeline in graph.pipelines if pipeline.kind is PipelineKind.VIEW}
    if there.format <= there.latest_format:
        yield from (_view_finding(pipeline, there) for pipeline in views.values())
    for name in there.views:
        if name not in views:
            yield Finding("view", name, "unused")


def _internal_tables_finding(there: StoreInspection) -> Finding:
    steps = f"format {there.format}, this version of Headwater has {there.latest_format}"
    if there.refusal:
        return Finding("own tables", "", "refused", (there.refusal,))
    if there.format > there.latest_format:
        return Finding("own tables", "", "refused", (f"{steps}: use the newer one",))
    if 0 < there.format < there.latest_format:
        return Finding("own tables", "", "change", (steps,))
    return Finding("own tables", "", "kept" if there.format else "create", (f"format {there.latest_format}",))


def _view_finding(pipeline: Pipeline, there: StoreInspection) -> Finding:
    name = pipeline.name
    table = there.views.get(name)
    if table is None:
        return Finding("view", name, "create", (f"key {', '.join(pipeline.key)}",))
    about = f"version {table.version}, key {', '.join(table.key)}"
    if name in there.altered:
        return Finding("view", name, "refused", (about, *there.altered[name].splitlines()))
    if table.key != pipeline.key:
        return Finding("view", name, "rebuild", (f"{about}; the key would be {', '.join(pipeline.key)}",))
    return Finding("view", name, "kept", (about,))


def _spark_findings(master: str) -> Iterator[Finding]:
    """Whether a standalone master takes connections; of several, one is enough."""
    if not master.startswith("spark://"):
        yield Finding("master", "", "kept" if master.startswith("local") else "unknown")
        return
    why = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
        except OSError as error:
            why = error.strerror or str(error)
        else:
            yield Finding("master", address, "kept")
            return
    raise UnreachableError(f"no Spark master answers at {master}", detail=why, url=master, sent=False)


def _checkpoint_findings(profile: Profile, data: Path) -> Iterator[Finding]:
    where = profile.checkpoints.resolve() if profile.checkpoints else str(data)
    if "://" in where.removeprefix("file://"):
        yield Finding("folder", redact(where), "unknown")
        return
    if profile.checkpoints is None and not profile.spark.resolve().startswith("local"):
        yield Finding("folder", "", "refused", (f"the workers of {profile.spark} do not reach the data folder",))
        return
    folder = Path(where.removeprefix("file://"))
    yield Finding("folder", "", "kept" if folder.is_dir() else "create")
