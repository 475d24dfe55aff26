"""The topic of a captured table: its definition at first contact, and its type after the source's columns changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headwater.capture.source import TableShape
from headwater.errors import NotCapturableError, SchemaConflictError, SourceLocation
from headwater.events import arrow_schema, merge
from headwater.log import Topic

__all__ = ["define_table_topic", "merge_shape"]


def define_table_topic(
    name: str,
    shape: TableShape,
    key: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
    location: SourceLocation | None = None,
) -> Topic:
    """Returns the definition of the topic of a captured table.

    It is compacted, its event time is kept by the capture, and its appends are not synced: the journal is, and the
    table is routed from it again after a crash. All columns but the key are optional, so that the source may drop one.

    Args:
        name: The topic.
        shape: The table in the source.
        key: The key columns; those of the source, if omitted.
        options: Options of the topic that the user gave.
        location: Where the user declared it.

    Example:
        >>> shape = TableShape("public.products", 1, pa.schema([("id", pa.int32()), ("name", pa.string())]), ("id",))
        >>> topic = define_table_topic("products", shape)
        >>> topic.key, topic.compact, topic.external_time, topic.schema.field("name").nullable
        (('id',), True, True, True)

    Raises:
        NotCapturableError: The table has no key.
    """
    chosen = key or shape.key
    missing = [column for column in chosen if column not in shape.schema.names]
    if not chosen or missing:
        what = f"table {shape.table!r} has no " + (f"column {missing[0]!r}" if missing else "primary key")
        fix = f'name the key: hw.capture(…, table="{shape.table}", key="{shape.schema.names[0]}")'
        detail = f"its columns: {', '.join(shape.schema.names)}"
        raise NotCapturableError(what, detail=detail, fix=fix, location=location, table=shape.table)
    fields = [pa.field(field.name, field.type, nullable=field.name not in chosen) for field in shape.schema]
    fixed = {"compact": True, "external_time": True, "durability": "fast", "lateness": "0 seconds"}
    return Topic.declare(
        name, arrow_schema(pa.schema(fields)), location=location, **{**(options or {}), "key": chosen, **fixed}
    )


def merge_shape(known: pa.Schema, shape: TableShape, key: tuple[str, ...]) -> pa.Schema:
    """Returns the type of a table's topic after the source's columns changed.

    New columns are added, numbers become wider, and a column that the source dropped stays and is null from then on.

    Raises:
        SchemaConflictError: A column has another type, or a key column is gone.

    Example:
        >>> known = pa.schema([pa.field("id", pa.int32(), False), ("name", pa.string())])
        >>> shape = TableShape("products", 2, pa.schema([("id", pa.int64()), ("price", pa.float64())]), ("id",))
        >>> merge_shape(known, shape, ("id",)).names
        ['id', 'name', 'price']
    """
    fresh = {field.name: field for field in shape.schema}
    gone = [column for column in key if column not in fresh]
    if gone or (shape.key and set(shape.key) != set(key) and not set(key) <= set(fresh)):
        what = f"the key column {gone[0]!r} of table {shape.table!r} is gone"
        raise SchemaConflictError(what, fix="capture the table into a new topic", fields=gone)
    fields = [field if field.name not in fresh else fresh[field.name].with_nullable(field.nullable) for field in known]
    fields += [field.with_nullable(True) for field in shape.schema if field.name not in known.names]
    return merge(known, arrow_schema(pa.schema(fields)))
