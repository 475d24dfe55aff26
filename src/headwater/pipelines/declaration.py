"""Declarations of topics, tables and views: their options, and the checks that turn them into a `Pipeline`.

`TopicOptions` and `ViewOptions` are the options that users may pass. `PipelineDeclaration` checks the options of a
pipeline and builds it from a function or SQL text. `declare_table` declares the table of a topic of changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypedDict

import pyarrow as pa

from headwater.errors import BadNameError, BadPipelineError, HeadwaterError, SourceLocation
from headwater.events import DeviceClock, change_row_schema
from headwater.log import Durability, Overload, Retention, ValueFormat
from headwater.log.topic import Topic, check_name
from headwater.pipelines.function import check_function, doc_of, inputs_of, location_of, source_of, table_inputs
from headwater.pipelines.pipeline import Function, KeepLate, LatePolicy, Pipeline, PipelineKind, parse_late
from headwater.pipelines.sql_text import tables_of
from headwater.units import duration

__all__ = [
    "VALID_FROM",
    "Columns",
    "PipelineDeclaration",
    "TopicOptions",
    "ViewOptions",
    "check_not_reserved",
    "declare_table",
]

VALID_FROM = "valid_from"
"""The column of a view with history that has the start of a row's validity; it is part of the key."""

# Our own topics, tables and columns; SQLite's tables; the tables in which versions of a view are stored.
_RESERVED = re.compile(r"_?hw[._].*|_hw.*|sqlite_.*|v\d+_.*", re.IGNORECASE)


_ENGINE_FILES = frozenset({"app", "lock", "engine.log", "spark.log", "state.json", "memory.json", "out-of-memory"})
"""Files in the folder in which each pipeline has a folder of its name."""


def check_not_reserved(name: str, *, location: SourceLocation | None) -> None:
    """Refuse a name that Headwater reserves.

    Example:
        >>> check_not_reserved("hw_orders", location=None)
        Traceback (most recent call last):
        headwater.errors.BadNameError: BAD_NAME: the name "hw_orders" is reserved
          names that begin with hw_, _hw, sqlite_ or v1_ are used internally
    """
    if _RESERVED.fullmatch(name):
        what = f'the name "{name}" is reserved'
        detail = "names that begin with hw_, _hw, sqlite_ or v1_ are used internally"
        raise BadNameError(what, detail=detail, location=location, name=name)


@dataclass(frozen=True)
class PipelineDeclaration:
    """A pipeline without its function or SQL; create it with `of`, which checks the options.

    Its fields are fields of `Pipeline`.
    """

    kind: PipelineKind
    name: str | None
    key: tuple[str, ...]
    late: LatePolicy
    path: str | None
    latency: str | None
    history: timedelta | None
    location: SourceLocation | None

    @classmethod
    def of(
        cls,
        kind: PipelineKind,
        name: str | None = None,
        *,
        key: Any = None,
        late: LatePolicy | str | None = None,
        path: str | None = None,
        latency: str | None = None,
        history: bool | str | timedelta = False,
        location: SourceLocation | None = None,
    ) -> PipelineDeclaration:
        """Check and complete the options.

        Example:
            >>> PipelineDeclaration.of(PipelineKind.VIEW, "totals", key="user_id", late="drop").key
            ('user_id',)
        """
        if name is not None:
            _check_name(name, kind, location)
        if latency not in (None, "realtime"):
            what = f"unknown latency {latency!r}"
            detail = 'the only value is "realtime"; without it, a pipeline runs in batches'
            raise BadPipelineError(what, detail=detail, fix='latency="realtime"', location=location)
        policy: LatePolicy = KeepLate() if late is None else parse_late(late, location=location)
        columns = _parse_key(kind, name, key, location)
        retention = timedelta.max if history is True else duration(history) if history else None
        if retention is not None:  # a view with history has one row per key and version
            columns += (VALID_FROM,)
        return cls(kind, name, columns, policy, path, latency, retention, location)

    def from_function(self, function: Function) -> Pipeline:
        """Returns the pipeline that runs this function."""
        check_function(function, noun=self.kind.noun, location=self.location)
        location = location_of(function) or self.location
        name = self.name or getattr(function, "__name__", None)
        if name is None:
            what = f"{function!r:.40} has no name"
            raise BadPipelineError(what, fix=f'app.{self.kind}("name", …)', location=location)
        _check_name(name, self.kind, location)
        inputs = inputs_of(function, name=name, location=location)
        options = vars(self) | {"name": name, "location": location}
        source, doc = source_of(function), doc_of(function)
        return Pipeline(
            **options, inputs=inputs, tables=table_inputs(function), function=function, source=source, doc=doc
        )

    def from_sql(self, sql: Any) -> Pipeline:
        """Returns the pipeline that runs this query."""
        if self.name is None:
            what = f"a {self.kind.noun} in SQL needs a name"
            raise BadPipelineError(what, fix=f'app.{self.kind}("name", …, sql=…)', location=self.location)
        what = f'{self.kind.noun} "{self.name}"'
        if not isinstance(sql, str):
            raise BadPipelineError(f"the sql of {what} is not text", fix='sql="select …"', location=self.location)
        inputs = tables_of(sql, what=what, location=self.location)
        return Pipeline(**vars(self), inputs=inputs, sql=sql, source=sql)


def _check_name(name: Any, kind: PipelineKind, location: SourceLocation | None) -> None:
    try:
        check_name(name, what=kind.noun)
    except HeadwaterError as error:
        error.location = error.location or location
        raise
    check_not_reserved(name, location=location)
    if name in _ENGINE_FILES:
        what = f'the name "{name}" is reserved'
        raise BadNameError(what, detail="a file of the engine has this name", location=location, name=name)


def _parse_key(kind: PipelineKind, name: str | None, key: Any, location: SourceLocation | None) -> tuple[str, ...]:
    about = f'{kind.noun} "{name}"' if name else f"a {kind.noun}"
    if key is None or key in ((), []):
        if kind is not PipelineKind.VIEW:
            return ()
        detail = "a view has one row per key; without a key, no row could be replaced"
        fix = '@app.view(key="user_id"), or app.stream if every row is new'
        raise BadPipelineError(f"{about} needs a key", detail=detail, fix=fix, location=location)
    columns = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, tuple | list) else ()
    if not columns or not all(isinstance(column, str) and column for column in columns):
        detail = f"a key is one column name or several, not {key!r:.60}"
        raise BadPipelineError(f"the key of {about} is invalid", detail=detail, fix='key="user_id"', location=location)
    if len(set(columns)) < len(columns):
        detail = f"columns: {', '.join(columns)}"
        raise BadPipelineError(f"the key of {about} names a column twice", detail=detail, location=location)
    return columns


def declare_table(
    name: str,
    source: Topic | Pipeline,
    topics: Mapping[str, Topic],
    options: Mapping[str, object],
    *,
    location: SourceLocation | None,
) -> Pipeline:
    """Returns the pipeline that applies a topic of changes to a table.

    Args:
        name: The table's name.
        source: The topic that the user passed.
        topics: The topics of the app.
        options: The other options; only `key` is allowed.
        location: The source location of the declaration.

    Raises:
        BadPipelineError: The source is not a topic of changes of this app, or the options are invalid.

    Example:
        >>> from headwater.events import changes
        >>> raw = Topic.declare("raw", changes("id int, name string"))
        >>> declare_table("products", raw, {"raw": raw}, {"key": "id"}, location=None).key
        ('id',)
    """
    about, error = f'table "{name}"', partial(BadPipelineError, location=location, pipeline=name)
    if isinstance(source, Pipeline):
        if source.kind is not PipelineKind.VIEW:
            what, fix = f"{about} cannot be made from {source}, which has no changes", "a topic of hw.changes(…)"
        else:
            what = f"{about} cannot be made from {source}, which is a table already"
            fix = f"def {name}({source.name}: hw.Table) -> hw.Table: …"
        raise error(what, fix=fix, source=source.name)
    if topics.get(source.name) is not source:
        what = f'{about} cannot be made from topic "{source.name}", which this app does not declare'
        raise error(what, fix=f'{source.name} = app.topic("{source.name}", hw.changes(…))', source=source.name)
    if others := sorted(options.keys() - {"key"}):
        what, detail = f"{about} has no option {others[0]!r}", "time, lateness and so on are options of its topic"
        raise error(what, detail=detail, fix=f'app.topic("{source.name}", …)', option=others[0])
    if not options.get("key"):
        raise error(f"{about} needs a key", detail="a table has one row per key", fix='key="product_id"')
    declaration = PipelineDeclaration.of(PipelineKind.VIEW, name, key=options["key"], location=location)
    _check_table_key(about, _row_schema(about, source, error), declaration.key, error)
    return Pipeline(**vars(declaration), inputs=(source.name,), of_changes=True)


def _check_table_key(about: str, row: pa.Schema, key: Sequence[str], error: Callable[..., BadPipelineError]) -> None:
    for column in key:
        if column not in row.names:
            what, detail = f'{about} has no column "{column}" for its key', f"columns: {', '.join(row.names)}"
            raise error(what, detail=detail, fix=f'key="{row.names[0]}"', column=column)
        if pa.types.is_nested(kind := row.field(column).type):
            what = f'the key column "{column}" of {about} is nested'
            raise error(what, detail=f"its type is {kind}", fix="a column of a plain type", column=column)


def _row_schema(about: str, topic: Topic, error: Callable[..., BadPipelineError]) -> pa.Schema:
    """Returns the columns of the table; refuses a topic that does not describe one."""
    what, fix = f'{about} cannot be made from topic "{topic.name}", which', f'app.topic("{topic.name}", hw.changes(…))'
    error, row = partial(error, source=topic.name), change_row_schema(topic.schema)
    if row is None:
        detail = f"its columns: {', '.join(topic.schema.names)}"
        raise error(f"{what} is not a topic of changes", detail=detail, fix=fix)
    if topic.partitions > 1:
        detail = "a change may depend on changes of other rows, so all changes must be in one partition"
        raise error(f"{what} has {topic.partitions} partitions", detail=detail, fix="partitions=1")
    if topic.compact:
        raise error(f"{what} is compacted", detail="a change may depend on earlier changes", fix=fix)
    return row


Columns: TypeAlias = str | tuple[str, ...]


class TopicOptions(TypedDict, total=False):
    """The options of a topic besides its name and type; durations may be text such as "10 minutes"."""

    key: str | tuple[str, ...]
    """The key column or columns; events of one key stay in order."""
    time: str | DeviceClock
    """The column with the event time, or `hw.device_clock(…)`; without it, the time of arrival."""
    lateness: str | timedelta
    """How far an event may lag behind the max event time of its partition before it is late (default: 10 seconds)."""
    partitions: int
    """The number of partitions; fixed once the topic exists (default: 1)."""
    durability: str | Durability
    """What an acknowledgement guarantees: "durable" (default), "fast" or "memory"."""
    retention: str | timedelta | Retention
    """How long events are kept: "7 days", or `hw.Retention.of("7 days", "10 GB")`; for ever if omitted."""
    compact: bool
    """Keep only the newest event of each key."""
    overload: str | Overload
    """When producers are faster than the disk: "backpressure" (default), "buffer", "drop", `hw.drop(…)`."""
    idle: str | timedelta
    """After this long without events, the topic is idle and its event time advances by itself (default: 30 seconds)."""
    ahead: str | timedelta
    """An event time further in the future than this does not advance the watermark (default: 5 minutes)."""
    segment_size: str | int
    """The size at which a partition begins a new file; retention removes whole files (default: 64 MB)."""
    value_format: str | ValueFormat
    """The format of values in Kafka: "json" (default), "avro" or "arrow"; no effect on the embedded log."""
    invalid: str
    """The topic for events that do not match the type, as `hw.InvalidEvent`; without it, they are refused."""


class ViewOptions(TypedDict, total=False):
    """The options of a view besides its name and its function or SQL."""

    key: Columns
    """The column or columns that identify a row."""
    late: LatePolicy | str
    """What happens to late events: "keep" them as side output, "drop" them, or `hw.correct(for_=…)`."""
    latency: str | None
    """Refused by the plan: a view is computed in batches, and only a stream can be "realtime"."""
    history: bool | str | timedelta
    """For a view of one table: also keep its earlier rows, for ever or for a time, with `valid_from` and `valid_to`."""
