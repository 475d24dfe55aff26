"""The plan of an app, without running it: graph, types, keys, lateness, and the delivery class of each result.

The plan of the file is available at once. The engine adds what only Spark knows, as `PipelineCheck`: result types,
state, and compatibility with the previous run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from headwater.app import App
from headwater.errors import SourceLocation
from headwater.events import to_ddl
from headwater.inspection import Inspection
from headwater.log import Topic, ValueFormat
from headwater.pipelines import ALL, CorrectLate, Graph, Pipeline, Selection
from headwater.queues import Bridge, DeclaredQueue, Worker
from headwater.queues.request_reply.dispatcher import Answer
from headwater.store import ViewTable
from headwater.units import format_duration

__all__ = ["Mode", "PipelineCheck", "Plan", "StateVerdict"]

Mode: TypeAlias = Literal["append", "update"]
StateVerdict: TypeAlias = Literal["new", "kept", "rebuild", "refused"]

_VERDICT_TEXT: Final = {
    "new": "starts at the beginning of its inputs",
    "kept": "resumes where it stopped",
    "rebuild": "is rebuilt from the log, beside the current version, and then replaces it",
    "refused": "is not compatible with the previous run",
}


@dataclass(frozen=True)
class PipelineCheck:
    """The engine's findings about one pipeline, from a dry run.

    Args:
        pipeline: The name of the pipeline.
        schema_ddl: The type of its rows.
        mode: Whether Spark emits each row once, when it is final, or whenever it changes.
        stateful: Descriptions of the steps that keep state.
        compatibility: Whether the state of an earlier run is kept.
        notes: Notes for the user.
        error: Why it cannot run, as a problem document.

    Example:
        >>> PipelineCheck("totals", "user_id int, n bigint", "update", ("aggregate",)).compatibility
        'new'
    """

    pipeline: str
    schema_ddl: str = ""
    mode: Mode = "append"
    stateful: tuple[str, ...] = ()
    compatibility: StateVerdict = "new"
    notes: tuple[str, ...] = ()
    error: dict[str, Any] | None = None


@dataclass(frozen=True)
class Plan:
    r"""A plan that can be shown as text, as a Mermaid graph or as JSON; make one with `Plan.of`.

    Example:
        >>> app = App("shop")
        >>> orders = app.topic("orders", "order_id string, amount int", key="order_id")
        >>> big = app.stream("big", sql="select * from orders where amount > 100")
        >>> print("\n".join(Plan.of(app).tree()))
        orders (topic)
        └── big (stream)
    """

    app: str
    graph: Graph
    checks: tuple[PipelineCheck, ...] = ()
    inspection: Inspection | None = None
    queues: tuple[DeclaredQueue, ...] = ()
    answers: tuple[Answer, ...] = ()
    bridges: tuple[Bridge, ...] = ()
    selected: tuple[str, ...] = ()

    @classmethod
    def of(cls, app: App, selection: Selection = ALL) -> Plan:
        """Returns the plan of an app's file, with the details of the selected pipelines.

        Raises:
            UnknownInputError: A pipeline reads an input that is not declared.
            CycleError: Pipelines read one another.
        """
        queues, answers = tuple(app.queues.values()), tuple(app.answers.values())
        graph = app.resolve()
        return cls(
            app.name, graph, queues=queues, answers=answers, bridges=app.bridges, selected=selection.names(graph)
        )

    def with_checks(self, checks: Iterable[PipelineCheck]) -> Plan:
        """Returns the plan with the engine's findings; a view whose table has other columns is refused."""
        tables = self.inspection.tables if self.inspection else {}
        return replace(self, checks=tuple(_compare_columns(check, tables.get(check.pipeline)) for check in checks))

    @property
    def has_errors(self) -> bool:
        """Whether a pipeline cannot run."""
        return any(check.error for check in self.checks)

    @property
    def is_refused(self) -> bool:
        """Whether a pipeline is not compatible with its previous run, or the app with its backends."""
        inspected = self.inspection is not None and self.inspection.is_refused
        return inspected or any(check.compatibility == "refused" for check in self.checks)

    # -- as data -------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """Returns the plan as a JSON document."""
        checks = {
            check.pipeline: asdict(check) | {"stateful": list(check.stateful), "notes": list(check.notes)}
            for check in self.checks
        }
        return {
            "app": self.app,
            "topics": [_topic_document(topic) for topic in self.graph.topics],
            "pipelines": [
                self._pipeline_document(pipeline) | {"checked": checks.get(pipeline.name)}
                for pipeline in self._selected_pipelines()
            ],
            "edges": [edge._asdict() for edge in self.graph.edges],
            "queues": [_queue_document(queue) for queue in self.queues],
            "answers": [_fields(answer, "subject", "threads", "processes", "limit") for answer in self.answers],
            "bridges": [_fields(bridge, "source", "target") for bridge in self.bridges],
            "inspection": self.inspection and self.inspection.document(),
        }

    def _pipeline_document(self, pipeline: Pipeline) -> dict[str, Any]:
        corrects = pipeline.late.for_ if isinstance(pipeline.late, CorrectLate) else timedelta(0)
        return {
            "name": pipeline.name,
            "kind": pipeline.kind.value,
            "inputs": list(pipeline.inputs),
            "key": list(pipeline.key),
            "late": str(pipeline.late),
            "waits": {name: length.total_seconds() for name, length in self._input_lateness(pipeline)},
            "corrects_for": corrects.total_seconds() or None,
            "latency": pipeline.latency,
            "delivery": pipeline.delivery,
            "path": pipeline.path,
            "sql": pipeline.sql,
            "doc": pipeline.doc,
            "fingerprint": pipeline.fingerprint,
            "location": _format_location(pipeline.location),
        }

    def _input_lateness(self, pipeline: Pipeline) -> list[tuple[str, timedelta]]:
        """Returns the lateness of each input that is a topic; other inputs depend on these."""
        topics = {topic.name: topic for topic in self.graph.topics}
        return [(name, topics[name].lateness) for name in pipeline.inputs if name in topics]

    # -- as text -------------------------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """Returns the plan as text: the graph, then each topic, pipeline, queue, answer and bridge."""
        pipelines = self._selected_pipelines()
        topics = self.graph.topics
        if len(pipelines) < len(self.graph.pipelines):  # a plan of the whole app shows topics without readers, too
            topics = tuple(topic for topic in topics if any(topic.name in one.inputs for one in pipelines))
        blocks = [self.tree()]
        blocks += [list(self._topic_lines(topic)) for topic in topics]
        blocks += [list(self._pipeline_lines(pipeline)) for pipeline in pipelines]
        blocks += [list(_queue_lines(queue)) for queue in self.queues]
        blocks += [[_heading("answer", answer.subject, answer.location)] for answer in self.answers]
        blocks += [[_heading("bridge", bridge.name, bridge.location)] for bridge in self.bridges]
        return [line for block in blocks if block for line in (*block, "")][:-1]

    def _selected_pipelines(self) -> list[Pipeline]:
        return [pipeline for pipeline in self.graph.pipelines if pipeline.name in self.selected]

    def tree(self) -> list[str]:
        """Returns the graph as a tree: its readers below each topic; three dots stand for a branch shown before."""
        kinds = {topic.name: _topic_kind(topic) for topic in self.graph.topics}
        kinds |= {pipeline.name: _pipeline_kind(pipeline) for pipeline in self.graph.pipelines}
        readers: dict[str, list[str]] = {}
        for source, target in self.graph.edges:
            readers.setdefault(source, []).append(target)
        drawn: set[str] = set()

        def below(name: str, indent: str) -> Iterator[str]:
            targets = readers.get(name, [])
            for target in targets:
                last = target == targets[-1]
                again = target in drawn and target in readers
                yield f"{indent}{'└── ' if last else '├── '}{target} ({kinds[target]}){' …' if again else ''}"
                if not again:
                    drawn.add(target)
                    yield from below(target, indent + ("    " if last else "│   "))

        return [
            line
            for topic in self.graph.topics
            for line in (f"{topic.name} ({kinds[topic.name]})", *below(topic.name, ""))
        ]

    def _topic_lines(self, topic: Topic) -> Iterator[str]:
        yield _heading(_topic_kind(topic), topic.name, topic.location)
        yield f"  type      {to_ddl(topic.schema)}"
        if topic.key:
            yield f"  key       {', '.join(topic.key)}"
        yield f"  time      {topic.event_time_source}, waits {format_duration(topic.lateness)} for stragglers"
        if topic.value_format is not ValueFormat.JSON:
            yield f"  format    {topic.value_format.value} (value format on Kafka)"
        readers = [edge.target for edge in self.graph.edges if edge.source == topic.name]
        if readers:
            yield f"  readers   {', '.join(readers)}"

    def _pipeline_lines(self, pipeline: Pipeline) -> Iterator[str]:
        yield _heading(_pipeline_kind(pipeline), pipeline.name, pipeline.location)
        if pipeline.doc:
            yield f"  {pipeline.doc}"
        yield f"  reads     {', '.join(pipeline.inputs)}"
        if pipeline.key:
            yield f"  key       {', '.join(pipeline.key)}"
        if pipeline.path:
            yield f"  folder    {pipeline.path}"
        yield f"  late      {self._late(pipeline)}"
        if pipeline.latency:
            yield f"  latency   {pipeline.latency}: Spark's real-time mode"
        yield f"  delivery  {pipeline.delivery}"

    def _late(self, pipeline: Pipeline) -> str:
        if pipeline.realtime:
            return "every event counts, late or not"
        if pipeline.of_changes:
            return "none: every change counts, in the order of the topic"
        lateness = self._input_lateness(pipeline)
        waits = ", ".join(f"{format_duration(length)} behind in {name}" for name, length in lateness)
        return f"{pipeline.late}{f' (late is more than {waits})' if waits else ''}"

    def check_lines(self) -> list[str]:
        """Returns the engine's findings as text."""
        return [line for check in self.checks for line in _check_lines(check)]

    # -- as a Mermaid graph --------------------------------------------------------------------------------------

    def mermaid(self) -> str:
        """Returns the graph as Mermaid text, which documentation tools render.

        Example:
            >>> app = App("shop")
            >>> orders = app.topic("orders", "amount int")
            >>> big = app.stream("big", sql="select * from orders where amount > 100")
            >>> print(Plan.of(app).mermaid())
            flowchart LR
              n0[("orders<br/>topic")]
              n1(["big<br/>stream"])
              n0 --> n1
        """
        shapes = {
            "topic": '[("{}")]', "table": '[["{}"]]', "view": '["{}"]', "stream": '(["{}"])', "files": '[/"{}"/]'
        }  # fmt: skip
        nodes = [(topic.name, _topic_kind(topic), topic.key) for topic in self.graph.topics]
        nodes += [(pipeline.name, pipeline.kind.value, pipeline.key) for pipeline in self.graph.pipelines]
        numbers = {name: f"n{number}" for number, (name, _, _) in enumerate(nodes)}
        lines = ["flowchart LR"]
        for name, kind, key in nodes:
            about = f"{kind}, key {', '.join(key)}" if key else kind
            lines.append(f"  {numbers[name]}{shapes[kind].format(f'{name}<br/>{_escape_label(about)}')}")
        lines += [f"  {numbers[source]} --> {numbers[target]}" for source, target in self.graph.edges]
        return "\n".join(lines)


def _topic_document(topic: Topic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "kind": _topic_kind(topic),
        "type": to_ddl(topic.schema),
        "key": list(topic.key),
        "time": topic.event_time_source,
        "lateness": topic.lateness.total_seconds(),
        "partitions": topic.partitions,
        "value_format": topic.value_format.value,
        "location": _format_location(topic.location),
    }


def _queue_document(queue: DeclaredQueue) -> dict[str, Any]:
    definition = queue.definition
    return {
        "name": queue.name,
        "type": None if definition.schema is None else to_ddl(definition.schema),
        "key": definition.key,
        "ordered": definition.ordered,
        "attempts": definition.retry.attempts,
        "backoff": definition.retry.backoff.total_seconds(),
        "visibility_timeout": definition.visibility_timeout.total_seconds(),
        "durability": definition.durability.value,
        "groups": [asdict(group) for group in definition.groups],
        "workers": [_fields(w, "name", "group", "threads", "processes", "prefetch") for w in queue.workers],
        "location": _format_location(definition.location),
    }


def _fields(declared: Worker | Answer | Bridge, *names: str) -> dict[str, Any]:
    fields = {name: getattr(declared, name) for name in names}
    return {**fields, "location": _format_location(declared.location)}


def _queue_lines(queue: DeclaredQueue) -> Iterator[str]:
    definition = queue.definition
    yield _heading("queue", queue.name, definition.location)
    if definition.schema is not None:
        yield f"  type      {to_ddl(definition.schema)}"
    if definition.key:
        yield f"  key       {definition.key}{', in order' if definition.ordered else ''}"
    retry = definition.retry
    yield f"  retry     {retry.attempts} attempts, first delay {format_duration(retry.backoff)}"
    for group in definition.groups:
        names = [f"{one.name} ({one})" if str(one) else one.name for one in queue.workers if one.group == group.name]
        title = f"group {group.name}" if group.name else "workers"
        yield f"  {title:9} {', '.join(names) or 'none in this file'}"


def _compare_columns(check: PipelineCheck, table: ViewTable | None) -> PipelineCheck:
    """Returns the check as refused if the pipeline would continue in a table with other columns."""
    if table is None or not check.schema_ddl or check.compatibility not in ("new", "kept"):
        return check
    columns = to_ddl(table.schema)
    if columns == check.schema_ddl:
        return check
    return replace(check, compatibility="refused", notes=(*check.notes, f"its table in the store has {columns}"))


def _check_lines(check: PipelineCheck) -> Iterator[str]:
    if check.error is not None:
        yield f"{check.pipeline}: error {check.error.get('code', 'ERROR')}: {check.error.get('title', '')}"
        place = f"{check.error.get('location') or ''}   {check.error.get('source') or ''}"
        more = [place.strip(), *str(check.error.get("detail") or "").splitlines()]
        yield from (f"  {line}" for line in more if line)
        if check.error.get("fix"):
            yield f"  fix: {check.error['fix']}"
        return
    yield f"{check.pipeline}: {check.compatibility}, {_VERDICT_TEXT[check.compatibility]}"
    if check.schema_ddl:
        yield f"  type      {check.schema_ddl}"
    changing = "as they change" if check.stateful else "as they arrive"
    when = changing if check.mode == "update" else "when they are final"
    state = f"; state: {', '.join(check.stateful)}" if check.stateful else ""
    yield f"  rows      {when} ({check.mode}){state}"
    yield from (f"  note      {note}" for note in check.notes)


def _escape_label(text: str) -> str:
    """Returns text as part of a Mermaid label; special characters become entities."""
    return "".join(letter if letter.isalnum() or letter in " ,._-" else f"#{ord(letter)};" for letter in text)


def _pipeline_kind(pipeline: Pipeline) -> str:
    return pipeline.noun if pipeline.of_changes else pipeline.kind.value


def _topic_kind(topic: Topic) -> str:
    return "table" if topic.compact else "topic"


def _heading(kind: str, name: str, location: SourceLocation | None) -> str:
    return f"{kind} {name}".ljust(48) + f" {_format_location(location) or ''}".rstrip()


def _format_location(location: SourceLocation | None) -> str | None:
    return None if location is None else str(location)
