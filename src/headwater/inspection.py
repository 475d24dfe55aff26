"""Compares an app with the backends of its profile: what a run would create or change. Read-only.

Log, store, Spark and checkpoints are inspected one by one. A backend that does not answer is reported, and the others
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
    "declare": "exists without a definition, would be declared",
    "kept": "exists",
    "change": "exists, would be changed",
    "rebuild": "exists, would need a rebuild",
    "refused": "is not compatible",
    "unused": "exists, and the app does not declare it",
    "unknown": "not inspected",
}
_CONNECT_TIMEOUT: Final = 2.0  # seconds for a master to accept a connection


@dataclass(frozen=True)
class Finding:
    """One object that a run needs, and what the run would do with it.

    Example:
        >>> Finding("topic", "orders", "create", ("1 partition", "kept for ever")).lines()
        ['  topic orders: would be created', '    1 partition', '    kept for ever']
    """

    kind: str
    name: str
    verdict: Verdict
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns the finding as text."""
        heading = f"  {self.kind} {self.name}".rstrip()
        return [f"{heading}: {_VERDICT_TEXT[self.verdict]}", *(f"    {note}" for note in self.notes)]


@dataclass(frozen=True)
class ServiceInspection:
    """The findings of one service, or the error that prevented its inspection."""

    service: str
    where: str
    findings: tuple[Finding, ...] = ()
    error: HeadwaterError | None = None

    def lines(self) -> list[str]:
        """Returns the findings as text."""
        lines = [line for found in self.findings for line in found.lines()]
        if self.error is not None:
            lines += [f"  {line}" for line in self.error.render().splitlines()]
        return [f"{self.service.ljust(12)} {self.where}", *lines]

    def document(self) -> dict[str, Any]:
        """Returns the findings as a JSON document."""
        return {
            "where": self.where,
            "found": [asdict(found) | {"notes": list(found.notes)} for found in self.findings],
            "error": self.error and self.error.problem(),
        }


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect_app`.

    Attributes:
        services: Log, store, Spark and checkpoints.
        tables: The tables of views in the store, by name.
    """

    services: tuple[ServiceInspection, ...]
    tables: dict[str, ViewTable]

    @property
    def is_refused(self) -> bool:
        """Whether an existing object is not compatible with the app."""
        return any(found.verdict == "refused" for part in self.services for found in part.findings)

    @property
    def errors(self) -> list[HeadwaterError]:
        """The errors of services that could not be inspected."""
        return [part.error for part in self.services if part.error is not None]

    def lines(self) -> list[str]:
        """Returns all findings as text."""
        return [line for part in self.services for line in part.lines()]

    def document(self) -> dict[str, Any]:
        """Returns all findings as a JSON document, by service."""
        return {part.service: part.document() for part in self.services}


def inspect_app(profile: Profile, data: Path, graph: Graph, *, kafka: bool | None = None) -> Inspection:
    """Inspect everything that an app would use; creates and changes nothing, and does not start Spark.

    Args:
        profile: The profile, which names log, store and Spark.
        data: The data folder.
        graph: The app's topics and pipelines.
        kafka: Whether the log is the profile's Kafka rather than the data folder; as the profile says, if omitted.

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
        there = inspect_store(profile.store.resolve() if profile.store else None, data)
        tables.update(there.views)
        return _store_findings(there, graph)

    def log() -> Iterator[Finding]:
        url = profile.log.resolve() if profile.log and on_kafka else str(data)
        with contextlib.closing(inspect_log(url)) as inspector:
            yield from _log_findings(inspector, graph, tables)

    # The store first: the name of a view's changelog topic depends on the version of its table.
    from_store = _inspect_service("store", str(profile.store or f"SQLite in {data}"), store)
    from_log = _inspect_service("log", str(profile.log if on_kafka else data), log)
    spark = _inspect_service("spark", str(profile.spark), lambda: _spark_findings(profile.spark.resolve()))
    where = str(profile.checkpoints or data)
    checkpoints = _inspect_service("checkpoints", where, lambda: _checkpoint_findings(profile, data))
    return Inspection((from_log, from_store, spark, checkpoints), tables)


def _inspect_service(service: str, where: str, ask: Callable[[], Iterator[Finding]]) -> ServiceInspection:
    try:
        return ServiceInspection(service, where, tuple(ask()))
    except HeadwaterError as error:
        return ServiceInspection(service, where, error=error)


def _log_findings(log: LogInspector, graph: Graph, tables: dict[str, ViewTable]) -> Iterator[Finding]:
    for topic in graph.topics:
        yield _topic_finding(log, topic)
    outputs: dict[str, str] = {}
    for pipeline in graph.pipelines:
        if pipeline.kind is PipelineKind.FILES:
            continue
        table, name = tables.get(pipeline.name), pipeline.name
        if pipeline.kind is PipelineKind.VIEW:
            name = changelog_topic(name, table.version if table else 1)
        outputs[pipeline.name] = name
        there = log.inspect_topic(name)
        note = f"{'changes' if pipeline.kind is PipelineKind.VIEW else 'rows'} of {pipeline.kind.value} {pipeline.name}"
        yield Finding("topic", name, "kept" if there.partitions else "create", (note,))
    read = dict.fromkeys(edge.source for edge in graph.edges)
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
                notes.append(f"{name} is {there.settings.get(name)}, declared {value}; it stays unchanged")
    return Finding("topic", topic.name, verdict, tuple(notes))


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
        return Finding("own tables", "", "refused", (f"{steps}: use a newer version",))
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
    """Checks that a standalone master accepts connections; of several masters, one is enough."""
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
        yield Finding("folder", "", "refused", (f"the workers of {profile.spark} cannot access the data folder",))
        return
    folder = Path(where.removeprefix("file://"))
    yield Finding("folder", "", "kept" if folder.is_dir() else "create")
