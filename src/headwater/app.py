"""An app: the topics, tables, pipelines, queues and answers of one Python file, as data.

Declarations do no I/O; nothing is created until the app runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict, TypeVar, Unpack, overload

from headwater.capture.declaration import CapturedTable
from headwater.errors import BadAppError, BadPipelineError, HeadwaterError, SourceLocation
from headwater.log import Topic
from headwater.log.topic import check_name, normalize_name
from headwater.pipelines import Function, Graph, LatePolicy, Pipeline, PipelineDeclaration, PipelineKind
from headwater.pipelines.declaration import Columns, TopicOptions, ViewOptions, check_not_reserved, declare_table
from headwater.queues import Bridge, DeclaredQueue, Queue, QueueOptions, TargetKind
from headwater.queues.request_reply.dispatcher import Answer

__all__ = ["App", "StreamOptions", "TopicOptions", "ViewOptions"]

F = TypeVar("F", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[Function], Pipeline]


_CAPTURE_OPTIONS: Final = frozenset({"partitions", "retention", "segment_size", "value_format", "overload"})


class StreamOptions(TypedDict, total=False):
    """The options of a stream besides its name and its function or SQL; see `App.stream`."""

    key: Columns | None
    late: LatePolicy | str
    latency: str | None


class App:
    """The declarations of a user's file; `headwater run app.py` creates and runs them.

    Args:
        name: Letters, digits, `.`, `_`, `-`.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Order:
        ...     order_id: str
        ...     customer_id: int
        >>> app = App("shop")
        >>> orders = app.topic("orders", Order, key="customer_id", partitions=3)
        >>> orders.name, orders.partitions, list(app.topics)
        ('orders', 3, ['orders'])
        >>> @app.view(key="customer_id")
        ... def totals(orders):
        ...     return orders.groupBy("customer_id").count()
        >>> list(app.pipelines), totals.inputs
        (['totals'], ('orders',))
    """

    def __init__(self, name: str) -> None:
        self.name = check_name(name, what="app")
        self._topics: dict[str, Topic] = {}
        self._pipelines: dict[str, Pipeline] = {}
        self._queues: dict[str, DeclaredQueue] = {}
        self._answers: dict[str, Answer] = {}
        self._bridges: list[Bridge] = []
        self._captures: dict[str, tuple[CapturedTable, TopicOptions]] = {}

    @property
    def captures(self) -> dict[str, CapturedTable]:
        """All captured tables by the name of their topic, in the order they were declared."""
        return {name: declared for name, (declared, _) in self._captures.items()}

    def capture_options(self, name: str) -> TopicOptions:
        """Returns the options of the topic of a captured table."""
        return self._captures[name][1]

    def bind_capture(self, name: str, topic: Topic) -> None:
        """Set the topic of a captured table, whose type and key come from the database or the log."""
        self._topics[name] = topic

    @property
    def topics(self) -> dict[str, Topic]:
        """All topics and tables by name, in the order they were declared."""
        return dict(self._topics)

    @property
    def pipelines(self) -> dict[str, Pipeline]:
        """All views, streams and file outputs by name, in the order they were declared."""
        return dict(self._pipelines)

    @property
    def queues(self) -> dict[str, DeclaredQueue]:
        """All queues by name, in the order they were declared, with their workers."""
        return dict(self._queues)

    @property
    def answers(self) -> dict[str, Answer]:
        """All functions that answer requests, by subject."""
        return dict(self._answers)

    @property
    def bridges(self) -> tuple[Bridge, ...]:
        """All bridges between topics and queues."""
        return tuple(self._bridges)

    def topic(self, name: str, type_: object, /, **options: Unpack[TopicOptions]) -> Topic:
        """Declare a topic.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: Dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema of its events.
            options: `key`, `time`, `lateness`, `partitions`, `durability`, `retention`, `compact`, `overload`, `idle`,
                `ahead`, `segment_size`, `value_format`; see `TopicOptions`.

        Raises:
            UsageError: The definition is invalid; the error quotes the user's line.
        """
        return self._declare(name, type_, options)

    @overload
    def table(self, name: str, source: Topic, /, *, key: Columns) -> Pipeline: ...  # type: ignore[overload-overlap]
    @overload
    def table(  # type: ignore[overload-overlap]
        self, name: str, source: CapturedTable, /, **options: Unpack[TopicOptions]
    ) -> CapturedTable: ...
    @overload
    def table(self, name: str, source: object, /, **options: Unpack[TopicOptions]) -> Topic: ...
    def table(self, name: str, source: object, /, **options: Unpack[TopicOptions]) -> Topic | Pipeline | CapturedTable:
        """Declare a table: a compacted topic, a captured table, or the table behind a topic of changes.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            source: The type of its rows, `hw.capture(…)`, or a topic of this app whose type is `hw.changes(…)`.
            options: Those of `topic`. A table needs a key; a table of a topic of changes has no other option. `time`
                is the column with the time from which a row is valid. A captured table takes type, key and time from
                the database; it can have `partitions`, `retention`, `segment_size` and `value_format`.

        Raises:
            UsageError: The definition is invalid; the error quotes the user's line.

        Example:
            >>> App("shop").table("products", "product_id int, price decimal(10,2)", key="product_id").compact
            True
        """
        if isinstance(source, Topic | Pipeline):
            return self._add(declare_table(name, source, self._topics, options, location=SourceLocation.of_caller()))
        if isinstance(source, CapturedTable):
            return self._declare_capture(name, source, options)
        return self._declare(name, source, {**options, "compact": True})

    def queue(self, name: str, type_: object = None, /, **options: Unpack[QueueOptions]) -> DeclaredQueue:
        """Declare a queue. Each message goes to one worker of each group.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: The type of its values; any dict that JSON can represent, if omitted.
            options: `groups`, `key`, `ordered`, `retry`, `visibility_timeout`, `ttl`, `deduplication_window`, `limit`,
                `overload`, `durability`; see `QueueOptions`.

        Raises:
            UsageError: The definition is invalid; the error quotes the user's line.

        Example:
            >>> import headwater as hw
            >>> app = App("shop")
            >>> emails = app.queue("emails", "to string", retry=hw.retry(5, backoff="2s"))
            >>> @emails.worker(threads=4)
            ... def send(email): ...
            >>> list(app.queues), emails.workers[0].threads
            (['emails'], 4)
        """
        location = SourceLocation.of_caller()
        try:
            _check_unique(self.name, "queue", name, self._queues)
            definition = Queue.declare(name, type_, location=location, **options)
            check_not_reserved(name, location=location)
        except HeadwaterError as error:
            error.location = error.location or location
            raise
        kind = type_ if isinstance(type_, type) else None
        self._queues[name] = DeclaredQueue(definition, kind, groups_given="groups" in options)
        return self._queues[name]

    def bridge(self, source: Topic | Pipeline | DeclaredQueue, target: DeclaredQueue | Topic, /) -> Bridge:
        """Declare a bridge: it copies each event of a topic to a queue, or each message of a queue to a topic, once.

        A bridge from a queue receives every message, in addition to the queue's workers. A message that does not match
        the topic's type becomes a dead letter.

        Args:
            source: A topic, a stream of this app, or a queue.
            target: A queue, if the source is a topic; otherwise a topic.

        Raises:
            BadAppError: They are not one topic and one queue, or the bridge is declared already.

        Example:
            >>> app = App("shop")
            >>> orders, parcels = app.topic("orders", "order_id string"), app.queue("parcels")
            >>> app.bridge(orders, parcels).name
            'orders to parcels'
        """
        location = SourceLocation.of_caller()
        # A stream's topic has its name, so a stream may stand for a topic.
        target_kind = TargetKind.TOPIC if isinstance(source, DeclaredQueue) else TargetKind.QUEUE
        topic, queue = (source, target) if target_kind is TargetKind.QUEUE else (target, source)
        fits = isinstance(topic, Topic) or (isinstance(topic, Pipeline) and topic.kind is PipelineKind.STREAM)
        if not fits or not isinstance(queue, DeclaredQueue):
            what = f"a bridge connects a topic with a queue, not {source!r} with {target!r}"
            raise BadAppError(what, fix="app.bridge(orders, parcels)", location=location)
        if isinstance(topic, Topic) and topic.compact and target_kind is TargetKind.QUEUE:
            what = f'a bridge cannot read the table "{topic.name}": a deleted row has no message'
            raise BadAppError(what, fix="use a topic as the source", location=location)
        bridge = Bridge(source.name, target.name, target_kind, location)
        if bridge in self._bridges:
            raise BadAppError(f'app "{self.name}" declares the bridge {bridge.name} twice', location=location)
        if target_kind is TargetKind.TOPIC:
            queue.add_bridge(bridge)
        self._bridges.append(bridge)
        return bridge

    def answer(
        self, subject: str, /, *, threads: int = 4, processes: int | None = None, limit: int = 1_000
    ) -> Callable[[F], F]:
        """Declare a function that answers requests made with `client.ask(subject, …)`.

        Args:
            subject: The subject of the requests, such as "prices.quote".
            threads: The number of requests that each process answers at a time.
            processes: The number of its own processes; it shares a process with the app's workers, if omitted.
            limit: The number of requests that may wait in a process, or on RabbitMQ in all processes; further ones are
                refused at once with `OverloadedError`.

        Raises:
            BadWorkerError: The function cannot answer requests.

        Example:
            >>> app = App("shop")
            >>> @app.answer("prices.quote")
            ... def quote(question):
            ...     return {"article": question["article"], "price": 9.9}
            >>> list(app.answers), quote({"article": "tea"})["price"]
            (['prices.quote'], 9.9)
        """

        def declare(function: F) -> F:
            answer = Answer.from_function(function, subject, threads=threads, processes=processes, limit=limit)
            _check_unique(self.name, "answer", subject, self._answers)
            self._answers[subject] = answer
            return function

        return declare

    @overload
    def view(self, name: str | None = ..., /, **options: Unpack[ViewOptions]) -> Decorator: ...
    @overload
    def view(self, name: str, /, *, sql: str, **options: Unpack[ViewOptions]) -> Pipeline: ...
    def view(
        self,
        name: str | Function | None = None,
        /,
        *,
        key: Columns | None = None,
        late: LatePolicy | str = "keep",
        latency: str | None = None,
        history: bool | str | timedelta = False,
        sql: str | None = None,
    ) -> Decorator | Pipeline:
        """Declare a view: a table with one row per key, kept up to date, and a topic of its changes.

        Args:
            name: The name of the view; that of the function, if omitted.
            key: The column or columns that identify a row; a view needs a key.
            late: What happens to late events: "keep" them in the late table, "drop" them, or `hw.correct(for_=…)`.
            latency: Refused by the plan: a view is computed in batches, and only a stream can be "realtime".
            history: For a view of one table: also keep its earlier rows, for ever or for a time, with `valid_from` and
                `valid_to`.
            sql: A query in place of a function; the name is then required.

        Raises:
            BadPipelineError: The definition is invalid; the error quotes the user's line.

        Example:
            >>> app = App("shop")
            >>> sql = "select category, count(*) n from orders group by category"
            >>> app.view("by_category", key="category", sql=sql).inputs
            ('orders',)
        """
        return self._pipeline(PipelineKind.VIEW, name, sql, key=key, late=late, latency=latency, history=history)

    @overload
    def stream(self, function: Function, /) -> Pipeline: ...
    @overload
    def stream(self, name: str | None = ..., /, **options: Unpack[StreamOptions]) -> Decorator: ...
    @overload
    def stream(self, name: str, /, *, sql: str, **options: Unpack[StreamOptions]) -> Pipeline: ...
    def stream(
        self,
        name: str | Function | None = None,
        /,
        *,
        key: Columns | None = None,
        late: LatePolicy | str = "keep",
        latency: str | None = None,
        sql: str | None = None,
    ) -> Decorator | Pipeline:
        """Declare a stream: its rows become events of a topic. It can be used as a bare decorator.

        Args:
            name: The name of the stream; that of the function, if omitted.
            key: The key column or columns; rows with equal keys stay in order.
            late: What happens to late events: "keep" them in the late table, "drop" them, or `hw.correct(for_=…)`.
            latency: "realtime" for results within milliseconds: on Kafka, for a stream that reads one topic and uses
                Spark SQL only; at least once, without ledger. `headwater plan` says whether real-time mode can run it.
            sql: A query in place of a function; the name is then required.

        Raises:
            BadPipelineError: The definition is invalid; the error quotes the user's line.

        Example:
            >>> app = App("shop")
            >>> @app.stream
            ... def big(orders):
            ...     return orders.where("amount > 100")
            >>> big.kind.value, big.inputs
            ('stream', ('orders',))
            >>> fast = app.stream("fast", latency="realtime", sql="select * from orders where amount > 100")
            >>> fast.delivery
            'at least once, outside ledger and identity'
        """
        return self._pipeline(PipelineKind.STREAM, name, sql, key=key, late=late, latency=latency)

    def files(self, path: str | Path, /, *, name: str | None = None, late: LatePolicy | str = "keep") -> Decorator:
        """Declare an output of Parquet files in a folder, with a manifest of complete files.

        Args:
            path: The folder, relative to the data folder.
            name: The name of the output; that of the function, if omitted.
            late: What happens to late events; see `stream`.

        Example:
            >>> app = App("shop")
            >>> @app.files("exports/orders")
            ... def exported(orders):
            ...     return orders
            >>> exported.path
            'exports/orders'
        """
        location = SourceLocation.of_caller()
        if not isinstance(path, str | Path) or not str(path):
            what, fix = "an output of files needs a folder", '@app.files("exports/orders")'
            raise BadPipelineError(what, fix=fix, location=location)
        wanted = PipelineDeclaration.of(PipelineKind.FILES, name, late=late, path=str(path), location=location)
        return lambda function: self._add(wanted.from_function(function))

    def resolve(self) -> Graph:
        """Returns the graph of topics and pipelines, checked as far as that is possible without Spark.

        Raises:
            UnknownInputError: A pipeline reads an input that is not declared.
            CycleError: Pipelines read one another.

        Example:
            >>> app = App("shop")
            >>> big = app.stream("big", sql="select * from orders where amount > 100")
            >>> orders = app.topic("orders", "amount int")
            >>> app.resolve().edges
            (Edge(source='orders', target='big'),)
        """
        return Graph.of(self._topics.values(), self._pipelines.values())

    def _pipeline(
        self, kind: PipelineKind, name: str | Function | None, sql: str | None, **options: Any
    ) -> Decorator | Pipeline:
        location = SourceLocation.of_caller()
        text = name if isinstance(name, str) else None
        wanted = PipelineDeclaration.of(kind, text, location=location, **options)
        if sql is not None:
            return self._add(wanted.from_sql(sql))
        if name is None or isinstance(name, str):
            return lambda function: self._add(wanted.from_function(function))
        return self._add(wanted.from_function(name))  # a bare decorator

    def _add(self, pipeline: Pipeline) -> Pipeline:
        self._check_undeclared(pipeline.name, pipeline.location)
        self._pipelines[pipeline.name] = pipeline
        return pipeline

    def _declare(self, name: str, type_: object, options: TopicOptions) -> Topic:
        location = SourceLocation.of_caller()
        try:
            self._check_undeclared(name, location)
            topic = Topic.declare(name, type_, location=location, **options)
            check_not_reserved(name, location=location)
        except HeadwaterError as error:
            error.location = error.location or location
            raise
        self._topics[name] = topic
        return topic

    def _declare_capture(self, name: str, source: CapturedTable, options: TopicOptions) -> CapturedTable:
        location = SourceLocation.of_caller()
        if wrong := sorted(set(options) - _CAPTURE_OPTIONS):
            what = f'the captured table "{name}" cannot have the option {wrong[0]!r}'
            detail = f"type, key and time come from the database; options: {', '.join(sorted(_CAPTURE_OPTIONS))}"
            raise BadAppError(what, detail=detail, fix="leave it out", location=location)
        try:
            check_name(name)
            self._check_undeclared(name, location)
            check_not_reserved(name, location=location)
        except HeadwaterError as error:
            error.location = error.location or location
            raise
        self._captures[name] = (source, options)
        return source

    def _check_undeclared(self, name: str, location: SourceLocation | None) -> None:
        """Reject a name that is in use: topics, tables and pipelines share one namespace."""
        known: list[Topic | Pipeline] = [*self._topics.values(), *self._pipelines.values()]
        declared = {one.name: one.location for one in known}
        declared |= {topic: captured.location for topic, (captured, _) in self._captures.items()}
        for before, place in declared.items():
            if before == name:
                what = f'app "{self.name}" declares "{name}" twice'
            elif isinstance(name, str) and normalize_name(before) == normalize_name(name):
                what = f'app "{self.name}" declares "{name}" and "{before}", which would share files'
            else:
                continue
            raise BadAppError(what, detail=f"first at {place}", fix="choose another name", location=location)

    def __repr__(self) -> str:
        return f"App({self.name!r}, topics={list(self._topics)}, pipelines={list(self._pipelines)})"


def _check_unique(app: str, noun: str, name: str, declared: Collection[str]) -> None:
    if name in declared:
        what = f'app "{app}" declares the {noun} "{name}" twice'
        raise BadAppError(what, fix="choose another name")
