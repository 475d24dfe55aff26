"""Declarations of topics, tables and views: their options, and the checks that turn them into a `Pipeline`.

`TopicOptions` and `ViewOptions` are the options a user may give. `PipelineDeclaration` checks the options of a function
or SQL text. `declare_table` declares a table that a topic of changes describes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
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
"""The column of a view with history that says since when a row held; it is part of the key."""

# Names of our own topics, tables and columns; SQLite's; and those under which versions of a view are stored.
_RESERVED = re.compile(r"_?hw[._].*|_hw.*|sqlite_.*|v\d+_.*", re.IGNORECASE)


def check_not_reserved(name: str, *, location: SourceLocation | None) -> None:
    """Refuse a name that Headwater keeps for itself.

    Example:
        >>> check_not_reserved("hw_orders", location=None)
        Traceback (most recent call last):
        headwater.errors.BadNameError: BAD_NAME: the name "hw_orders" is reserved
          names that begin with hw_, _hw, sqlite_ or v1_ are used inside
    """
    if _RESERVED.fullmatch(name):
        what = f'the name "{name}" is reserved'
        detail = "names that begin with hw_, _hw, sqlite_ or v1_ are used inside"
        raise BadNameError(what, detail=detail, location=location, name=name)


@dataclass(frozen=True)
class PipelineDeclaration:
    """A pipeline without its function or SQL; `of` checks its options."""

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
        policy: LatePolicy = KeepLate() if late is None else parse_late(late, location=location)
        if name is not None:
            _check_name(name, kind, location)
        if latency not in (None, "realtime"):
            what = f"unknown latency {latency!r}"
            detail = 'it can be "realtime"; without it, a pipeline runs in batches'
            raise BadPipelineError(what, detail=detail, fix='latency="realtime"', location=location)
        columns = _parse_key(kind, name, key, location)
        kept_for = timedelta.max if history is True else duration(history) if history else None
        if kept_for is not None:
            columns += (VALID_FROM,)
        return cls(kind, name, columns, policy, path, latency, kept_for, location)

    def from_function(self, function: Function) -> Pipeline:
        """Returns the pipeline that runs this function."""
        check_function(function, noun=self.kind.noun, location=self.location)
        location = location_of(function) or self.location
        name = self.name or getattr(function, "__name__", None)
        if name is None:
            what = f"{function!r:.40} has no name"
            raise BadPipelineError(what, fix=f'app.{self.kind}("name", …)', location=location)
        _check_name(name, self.kind, location)
        return self._make_pipeline(
            name,
            inputs=inputs_of(function, name=name, location=location),
            tables=table_inputs(function),
            function=function,
            source=source_of(function),
            doc=doc_of(function),
            location=location,
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
        return self._make_pipeline(self.name, inputs=inputs, sql=sql, source=sql, location=self.location)

    def from_changes(self, topic: str) -> Pipeline:
        """Returns the table that a topic of changes describes; `declare_table` checks the declaration first."""
        return self._make_pipeline(self.name or "", inputs=(topic,), of_changes=True, location=self.location)

    def _make_pipeline(self, name: str, **fields: Any) -> Pipeline:
        return Pipeline(
            name=name,
            kind=self.kind,
            key=self.key,
            late=self.late,
            path=self.path,
            latency=self.latency,
            history=self.history,
            **fields,
        )


def _check_name(name: Any, kind: PipelineKind, location: SourceLocation | None) -> None:
    try:
        check_name(name, what=kind.noun)
    except HeadwaterError as error:
        error.location = error.location or location
        raise
    check_not_reserved(name, location=location)


def _parse_key(kind: PipelineKind, name: str | None, key: Any, location: SourceLocation | None) -> tuple[str, ...]:
    about = f'{kind.noun} "{name}"' if name else f"a {kind.noun}"
    if key is None or key in ((), []):
        if kind is not PipelineKind.VIEW:
            return ()
        detail = "a view has one row per key; without one, no row could ever be replaced"
        fix = '@app.view(key="user_id"), or app.stream if every row is new'
        raise BadPipelineError(f"{about} needs a key", detail=detail, fix=fix, location=location)
    columns = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, tuple | list) else ()
    if not columns or not all(isinstance(column, str) and column for column in columns):
        detail = f"a key is the name of a column, or several: {key!r:.60} is not"
        raise BadPipelineError(f"the key of {about} is wrong", detail=detail, fix='key="user_id"', location=location)
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
        source: What the user gave as the topic.
        topics: The topics of the app.
        options: What the user said besides: `key`.
        location: The source location of the declaration.

    Raises:
        BadPipelineError: It cannot be a table of that.

    Example:
        >>> from headwater.events import changes
        >>> raw = Topic.declare("raw", changes("id int, name string"))
        >>> declare_table("products", raw, {"raw": raw}, {"key": "id"}, location=None).key
        ('id',)
    """
    about = f'table "{name}"'
    if isinstance(source, Pipeline):
        what = f"{about} is to be made of {source}, which is a table already"
        fix = f"def {name}({source.name}: hw.Table) -> hw.Table: …"
        if source.kind is not PipelineKind.VIEW:
            what, fix = f"{about} is to be made of {source}, which has no changes", "a topic of hw.changes(…)"
        raise BadPipelineError(what, fix=fix, location=location, pipeline=name)
    if topics.get(source.name) is not source:
        what = f'{about} is to be made of topic "{source.name}", which this app does not declare'
        fix = f'{source.name} = app.topic("{source.name}", hw.changes(…))'
        raise BadPipelineError(what, fix=fix, location=location, pipeline=name)
    if others := sorted(options.keys() - {"key"}):
        what = f"{about} has the option {others[0]!r}, and takes only a key"
        detail = "time, lateness and the like are those of its topic of changes"
        raise BadPipelineError(
            what, detail=detail, fix=f'app.topic("{source.name}", …)', location=location, pipeline=name
        )
    if not options.get("key"):
        what, detail = f"{about} needs a key", "a table has one row per key"
        raise BadPipelineError(what, detail=detail, fix='key="product_id"', location=location, pipeline=name)
    declaration = PipelineDeclaration.of(PipelineKind.VIEW, name, key=options["key"], location=location)
    _check_table_key(about, _row_schema(about, source, declaration), declaration)
    return declaration.from_changes(source.name)


def _row_schema(about: str, topic: Topic, declaration: PipelineDeclaration) -> pa.Schema:
    """Returns the columns of the table."""
    row, fix = change_row_schema(topic.schema), f'app.topic("{topic.name}", hw.changes(…))'
    if row is None:
        what = f'{about} is to be made of topic "{topic.name}", which is not one of changes'
        raise _table_error(declaration, what, f"its columns: {', '.join(topic.schema.names)}", fix)
    if topic.partitions > 1:
        what = f'{about} is to be made of topic "{topic.name}", which has {topic.partitions} partitions'
        detail = "a change may be about rows of several partitions: all of them must stand in one order"
        raise _table_error(declaration, what, detail, "partitions=1")
    if topic.compact:
        what = f'{about} is to be made of topic "{topic.name}", which is compacted'
        raise _table_error(declaration, what, "a change may need those before it: each of them counts", fix)
    return row


def _check_table_key(about: str, row: pa.Schema, declaration: PipelineDeclaration) -> None:
    for column in declaration.key:
        if column not in row.names:
            what = f'{about} has no column "{column}", which is to be its key'
            raise _table_error(declaration, what, f"columns: {', '.join(row.names)}", f'key="{row.names[0]}"')
        if pa.types.is_nested(row.field(column).type):
            what = f'the key of {about} is a column of several values: "{column}"'
            raise _table_error(declaration, what, f"its type is {row.field(column).type}", "a column of a plain type")


def _table_error(declaration: PipelineDeclaration, what: str, detail: str, fix: str) -> BadPipelineError:
    return BadPipelineError(what, detail=detail, fix=fix, location=declaration.location, pipeline=declaration.name)


Columns: TypeAlias = str | tuple[str, ...]


class TopicOptions(TypedDict, total=False):
    """The options of a topic besides its name and type; durations may be text such as "10 minutes"."""

    key: str | tuple[str, ...]
    """The key column or columns; events of one key stay in order."""
    time: str | DeviceClock
    """The column that says when an event happened, or `hw.device_clock(…)`; arrival, if there is none."""
    lateness: str | timedelta
    """How long to wait for late events."""
    partitions: int
    """The number of partitions; fixed once the topic exists."""
    durability: str | Durability
    """What an acknowledgement promises: "durable", "fast" or "memory"."""
    retention: str | timedelta | Retention
    """How long events are kept; for ever, if left out."""
    compact: bool
    """Keep only the newest event of each key."""
    overload: str | Overload
    """What happens when producers are faster than the disk: "backpressure", "buffer", "drop" or `hw.drop(…)`."""
    idle: str | timedelta
    """After this long without events, the topic is idle and its event time advances by itself."""
    ahead: str | timedelta
    """An event time further in the future than this is treated as a wrong clock and does not advance the watermark."""
    value_format: str | ValueFormat
    """What others find in Kafka: "json", "avro" or "arrow"; in a folder it changes nothing."""


class ViewOptions(TypedDict, total=False):
    """The options of a view besides its name and its function or SQL."""

    key: Columns
    """The column or columns that identify a row."""
    late: LatePolicy | str
    """What happens to late events: "keep" them as side output, "drop" them, or `hw.correct(for_=…)`."""
    latency: str | None
    """A view is made in batches: "realtime", which a stream can ask for, is refused by the plan."""
    history: bool | str | timedelta
    """Of a table: also keep its earlier rows, for ever or for a time, with `valid_from` and `valid_to`."""
