"""An app: the topics, tables and pipelines of one Python file, as frozen data; nothing is touched until it runs."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypedDict, Unpack, overload

from headwater.errors import BadAppError, BadPipelineError, HeadwaterError, Place
from headwater.events import DeviceClock
from headwater.log import Durability, Overload, Retention, Topic, Values
from headwater.log.definition import check_name, same_file
from headwater.pipelines import Function, Graph, Kind, Late, Pipeline, Wanted
from headwater.pipelines.declaring import check_free

__all__ = ["App", "TopicOptions", "ViewOptions", "checked_file", "load_app", "module_name"]

Columns: TypeAlias = str | tuple[str, ...]
Decorator: TypeAlias = Callable[[Function], Pipeline]


class TopicOptions(TypedDict, total=False):
    """What may be said about a topic besides its name and type; durations may be text such as "10 minutes"."""

    key: str | tuple[str, ...]
    """The column, or columns, that say what an event is about; events of one key stay in order."""
    time: str | DeviceClock
    """The column that says when an event happened, or `hw.device_clock(…)`; arrival, if there is none."""
    lateness: str | timedelta
    """How long to wait for stragglers."""
    partitions: int
    """How many sequences the events are spread over; fixed once the topic exists."""
    durability: str | Durability
    """What an acknowledgement promises: "durable", "fast" or "memory"."""
    retention: str | timedelta | Retention
    """How long events are kept; for ever, if left out."""
    compact: bool
    """Keep only the newest event of each key."""
    overload: str | Overload
    """What happens when producers are faster than the disk: "backpressure", "buffer", "drop" or `hw.drop(…)`."""
    idle: str | timedelta
    """After this long without events, time moves on by itself."""
    ahead: str | timedelta
    """A time further in the future than this is a wrong clock and does not move time on."""
    values: str | Values
    """What others find in Kafka: "json", "avro" or "arrow"; in a folder it changes nothing."""


class ViewOptions(TypedDict, total=False):
    """What may be said about a view besides its name and what it is made of."""

    key: Columns
    """The column or columns that identify a row."""
    late: Late | str
    """What happens to late events: "keep" them aside, "drop" them, or `hw.correct(for_=…)`."""
    latency: str | None
    """A view is made in batches: "realtime", which a stream can ask for, is refused by the plan."""
    history: bool | str | timedelta
    """Of a table: also keep its earlier rows, for ever or for a time, with `valid_from` and `valid_to`."""


class App:
    """What a user's file declares; `headwater run app.py` creates it and keeps it running.

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

    @property
    def topics(self) -> dict[str, Topic]:
        """All topics and tables by name, in the order they were declared."""
        return dict(self._topics)

    @property
    def pipelines(self) -> dict[str, Pipeline]:
        """All views, streams and file outputs by name, in the order they were declared."""
        return dict(self._pipelines)

    def topic(self, name: str, type_: object, /, **options: Unpack[TopicOptions]) -> Topic:
        """Declare a topic.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: Dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema of its events.
            options: See `TopicOptions`.

        Raises:
            UsageError: The definition cannot be right; the error quotes the user's line.
        """
        return self._declare(name, type_, options)

    def table(self, name: str, type_: object, /, **options: Unpack[TopicOptions]) -> Topic:
        """Declare a table that programs write to: a topic of which the newest event per key is kept.

        Args:
            name: Letters, digits, `.`, `_`, `-`.
            type_: The type of its rows.
            options: See `TopicOptions`. A table needs a key; `time` is the column that says since when a row holds.

        Raises:
            UsageError: The definition cannot be right; the error quotes the user's line.

        Example:
            >>> App("shop").table("products", "product_id int, price decimal(10,2)", key="product_id").compact
            True
        """
        return self._declare(name, type_, {**options, "compact": True})

    @overload
    def view(self, name: str | None = ..., /, **options: Unpack[ViewOptions]) -> Decorator: ...
    @overload
    def view(self, name: str, /, *, sql: str, **options: Unpack[ViewOptions]) -> Pipeline: ...
    def view(
        self,
        name: str | Function | None = None,
        /,
        *,
        sql: str | None = None,
        **options: Unpack[ViewOptions],
    ) -> Decorator | Pipeline:
        """Declare a view: a table with one row per key, kept up to date, and a topic of its changes.

        Args:
            name: Its name; that of the function, if left out.
            sql: A query in place of a function; then the name is needed, and no function follows.
            options: See `ViewOptions`; a view needs a key.

        Raises:
            BadPipelineError: The definition cannot be right; the error quotes the user's line.

        Example:
            >>> app = App("shop")
            >>> sql = "select category, count(*) n from orders group by category"
            >>> app.view("by_category", key="category", sql=sql).inputs
            ('orders',)
        """
        return self._pipeline(Kind.VIEW, name, sql, **options)

    @overload
    def stream(self, function: Function, /) -> Pipeline: ...
    @overload
    def stream(
        self,
        name: str | None = ...,
        /,
        *,
        key: Columns | None = ...,
        late: Late | str = ...,
        latency: str | None = ...,
    ) -> Decorator: ...
    @overload
    def stream(
        self,
        name: str,
        /,
        *,
        key: Columns | None = ...,
        late: Late | str = ...,
        latency: str | None = ...,
        sql: str,
    ) -> Pipeline: ...
    def stream(
        self,
        name: str | Function | None = None,
        /,
        *,
        key: Columns | None = None,
        late: Late | str = "keep",
        latency: str | None = None,
        sql: str | None = None,
    ) -> Decorator | Pipeline:
        """Declare a stream: rows that become events of a topic; it may be used as a bare decorator.

        Args:
            name: Its name; that of the function, if left out.
            key: The column or columns that say what a row is about; rows of one key stay in order.
            late: What happens to late events: "keep" them aside, "drop" them, or `hw.correct(for_=…)`.
            latency: "realtime" for results within milliseconds, on Kafka, for a stream that reads one topic and is
                Spark SQL throughout; at least once, outside ledger and identity. `headwater plan` says whether it can.
            sql: A query in place of a function; then the name is needed, and no function follows.

        Raises:
            BadPipelineError: The definition cannot be right; the error quotes the user's line.

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
        return self._pipeline(Kind.STREAM, name, sql, key=key, late=late, latency=latency)

    def files(self, path: str | Path, /, *, name: str | None = None, late: Late | str = "keep") -> Decorator:
        """Declare Parquet files, with a list of those that are complete, in a folder.

        Args:
            path: The folder, from the data folder on.
            name: The name of the output; that of the function, if left out.
            late: What happens to late events.

        Example:
            >>> app = App("shop")
            >>> @app.files("exports/orders")
            ... def exported(orders):
            ...     return orders
            >>> exported.path
            'exports/orders'
        """
        place = Place.of_caller()
        if not isinstance(path, str | Path) or not str(path):
            what, fix = "files need a folder to go to", '@app.files("exports/orders")'
            raise BadPipelineError(what, fix=fix, place=place)
        wanted = Wanted.of(Kind.FILES, name, late=late, path=str(path), place=place)
        return lambda function: self._add(wanted.of_function(function))

    def resolve(self) -> Graph:
        """The app as a whole, checked as far as that is possible without Spark.

        Raises:
            UnknownInputError: A pipeline reads what is not declared.
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
        self,
        kind: Kind,
        name: str | Function | None,
        sql: str | None,
        **options: Any,
    ) -> Decorator | Pipeline:
        place = Place.of_caller()
        text = name if isinstance(name, str) else None
        wanted = Wanted.of(kind, text, place=place, **options)
        if sql is not None:
            return self._add(wanted.of_sql(sql))
        if name is None or isinstance(name, str):
            return lambda function: self._add(wanted.of_function(function))
        return self._add(wanted.of_function(name))  # a bare decorator

    def _add(self, pipeline: Pipeline) -> Pipeline:
        self._refuse_twice(pipeline.name, pipeline.place)
        self._pipelines[pipeline.name] = pipeline
        return pipeline

    def _declare(self, name: str, type_: object, options: TopicOptions) -> Topic:
        place = Place.of_caller()
        try:
            self._refuse_twice(name, place)
            topic = Topic.declare(name, type_, place=place, **options)
            check_free(name, place=place)
        except HeadwaterError as error:
            error.place = error.place or place
            raise
        self._topics[name] = topic
        return topic

    def _refuse_twice(self, name: str, place: Place | None) -> None:
        """Topics, tables and pipelines share their names: a view's changes are a topic too."""
        declared: list[Topic | Pipeline] = [*self._topics.values(), *self._pipelines.values()]
        for before in declared:
            if before.name == name:
                what = f'app "{self.name}" declares "{name}" twice'
            elif isinstance(name, str) and same_file(before.name) == same_file(name):
                what = f'app "{self.name}" declares "{name}" beside "{before.name}": they would share files'
            else:
                continue
            raise BadAppError(what, detail=f"first at {before.place}", fix="choose another name", place=place)

    def __repr__(self) -> str:
        return f"App({self.name!r}, topics={list(self._topics)}, pipelines={list(self._pipelines)})"


def load_app(path: str | Path) -> App:
    """The app that a Python file defines.

    The file runs as a module: what stands under `if __name__ == "__main__"` does not. Its folder is on the path, so it
    may import its neighbours.

    Raises:
        BadAppError: The file is missing, does not run, or defines no app, or several.
    """
    module = _imported(checked_file(path))
    apps = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, App)}
    if not apps:
        raise BadAppError(f"{path} defines no app", fix='app = hw.App("shop")', path=str(path))
    if len(apps) > 1:
        names = ", ".join(name for name, _ in apps.values())
        what = f"{path} defines {len(apps)} apps: {names}"
        raise BadAppError(what, detail="one file is one app", fix="keep one of them", path=str(path))
    return next(iter(apps.values()))[1]


def checked_file(path: str | Path) -> Path:
    """A file that may define an app: it is there and it is Python. Nothing of it is run.

    Raises:
        BadAppError: The file is missing or has a syntax error.
    """
    file = Path(path)
    if not file.is_file():
        near = sorted(name.name for name in file.parent.glob("*.py"))[:5]
        detail = f"files here: {', '.join(near)}" if near else "there is no Python file in that folder"
        raise BadAppError(f"no file {str(path)!r}", detail=detail, fix="headwater run app.py", path=str(path))
    try:
        compile(file.read_bytes(), str(file.absolute()), "exec")
    except (SyntaxError, ValueError) as error:
        raise _broken(file, error) from error
    return file


def module_name(file: Path) -> str:
    """The name under which an app's file is a module of this process, and of no other.

    Example:
        >>> module_name(Path("shop/orders.py"))
        'headwater_app_orders'
    """
    return f"headwater_app_{file.stem}"


def _imported(file: Path) -> ModuleType:
    name = module_name(file)
    spec = importlib.util.spec_from_file_location(name, file.absolute())
    if spec is None or spec.loader is None:
        raise BadAppError(f"{file} is not a Python file", fix="headwater run app.py", path=str(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints of the user's classes are looked up there
    sys.path.insert(0, str(file.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except HeadwaterError:
        raise
    except Exception as error:
        raise _broken(file, error) from error
    return module


def _broken(file: Path, error: Exception) -> BadAppError:
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        line = (error.text or "").strip()
        place = Place.near(error.filename or str(file), error.lineno or 1, line)
        return BadAppError(f"{file} has a syntax error: {error.msg}", place=place, path=str(file))
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file.absolute())
    ]
    found = frames[-1] if frames else None
    place = Place.near(found.filename, found.lineno or 1, found.line or "") if found else Place(str(file), 1)
    what = f"{file} cannot be loaded: {kind}: {error}".rstrip(": ")
    return BadAppError(what, fix=f"python {file}", place=place, path=str(file))
