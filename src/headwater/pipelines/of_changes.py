"""A table that a topic of changes is about: what the user wrote, checked."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headwater.errors import BadPipelineError, Place
from headwater.events import row_of_changes
from headwater.log.definition import Topic
from headwater.pipelines.declaring import Wanted
from headwater.pipelines.pipeline import Kind, Pipeline

__all__ = ["table_of"]


def table_of(
    name: str,
    source: Topic | Pipeline,
    topics: Mapping[str, Topic],
    options: Mapping[str, object],
    *,
    place: Place | None,
) -> Pipeline:
    """The pipeline that follows a topic of changes.

    Args:
        name: The table's name.
        source: What the user gave as the topic.
        topics: The topics of the app.
        options: What the user said besides: `key`.
        place: Where the user wrote it.

    Raises:
        BadPipelineError: It cannot be a table of that.

    Example:
        >>> from headwater.events import changes
        >>> raw = Topic.declare("raw", changes("id int, name string"))
        >>> table_of("products", raw, {"raw": raw}, {"key": "id"}, place=None).key
        ('id',)
    """
    about = f'table "{name}"'
    if isinstance(source, Pipeline):
        what = f"{about} is to be made of {source}, which is a table already"
        fix = f"def {name}({source.name}: hw.Table) -> hw.Table: …"
        if source.kind is not Kind.VIEW:
            what, fix = f"{about} is to be made of {source}, which has no changes", "a topic of hw.changes(…)"
        raise BadPipelineError(what, fix=fix, place=place, pipeline=name)
    if topics.get(source.name) is not source:
        what = f'{about} is to be made of topic "{source.name}", which this app does not declare'
        fix = f'{source.name} = app.topic("{source.name}", hw.changes(…))'
        raise BadPipelineError(what, fix=fix, place=place, pipeline=name)
    if others := sorted(options.keys() - {"key"}):
        what = f"{about} has the option {others[0]!r}, and takes only a key"
        detail = "time, lateness and the like are those of its topic of changes"
        raise BadPipelineError(
            what, detail=detail, fix=f'app.topic("{source.name}", …)', place=place, pipeline=name
        )
    if not options.get("key"):
        what, detail = f"{about} needs a key", "a table has one row per key"
        raise BadPipelineError(what, detail=detail, fix='key="product_id"', place=place, pipeline=name)
    wanted = Wanted.of(Kind.VIEW, name, key=options["key"], place=place)
    _check_key(about, _row_of(about, source, wanted), wanted)
    return wanted.of_changes(source.name)


def _row_of(about: str, topic: Topic, wanted: Wanted) -> pa.Schema:
    """The columns of the table."""
    row, fix = row_of_changes(topic.schema), f'app.topic("{topic.name}", hw.changes(…))'
    if row is None:
        what = f'{about} is to be made of topic "{topic.name}", which is not one of changes'
        raise _bad(wanted, what, f"its columns: {', '.join(topic.schema.names)}", fix)
    if topic.partitions > 1:
        what = f'{about} is to be made of topic "{topic.name}", which has {topic.partitions} partitions'
        detail = "a change may be about rows of several partitions: all of them must stand in one order"
        raise _bad(wanted, what, detail, "partitions=1")
    if topic.compact:
        what = f'{about} is to be made of topic "{topic.name}", which is compacted'
        raise _bad(wanted, what, "a change may need those before it: each of them counts", fix)
    return row


def _check_key(about: str, row: pa.Schema, wanted: Wanted) -> None:
    for column in wanted.key:
        if column not in row.names:
            what = f'{about} has no column "{column}", which is to be its key'
            raise _bad(wanted, what, f"columns: {', '.join(row.names)}", f'key="{row.names[0]}"')
        if pa.types.is_nested(row.field(column).type):
            what = f'the key of {about} is a column of several values: "{column}"'
            raise _bad(wanted, what, f"its type is {row.field(column).type}", "a column of a plain type")


def _bad(wanted: Wanted, what: str, detail: str, fix: str) -> BadPipelineError:
    return BadPipelineError(what, detail=detail, fix=fix, place=wanted.place, pipeline=wanted.name)
