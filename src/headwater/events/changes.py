"""The type of a topic of changes: what happened to a row, the row before and after, and what the source left out."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, get_args

import pyarrow as pa

from headwater.events.declared import arrow_schema

__all__ = ["AFTER", "AT", "BEFORE", "OP", "OPS", "UNCHANGED", "Op", "changes", "row_of_changes"]

Op: TypeAlias = Literal["read", "insert", "update", "delete", "truncate"]
"""What can happen to a row, or with a truncate to all of them."""
OPS: Final[tuple[str, ...]] = get_args(Op)
OP: Final = "op"
BEFORE: Final = "before"
AFTER: Final = "after"
UNCHANGED: Final = "unchanged"
AT: Final = "at"
_NAMES: Final = pa.list_(pa.field("element", pa.string(), nullable=False))


def changes(row: Any, /) -> pa.Schema:
    """The type of a topic whose events are changes of the rows of a table; `app.table` makes the table of it.

    Its columns: `op` is "read" (a row of a snapshot), "insert", "update", "delete" or "truncate". `before` and `after`
    are the row, in which any column may be left out. `unchanged` names columns that the source did not send: they keep
    the value they have. `at` says when the change was committed. The events may be dicts, or `hw.Change` objects.

    Args:
        row: The type of the rows: a dataclass, pydantic model, msgspec struct, Spark DDL text or Arrow schema.

    Raises:
        BadTypeError: A field's type cannot be kept.

    Example:
        >>> import headwater as hw
        >>> hw.changes("product_id int, name string").names
        ['op', 'before', 'after', 'unchanged', 'at']
        >>> app = hw.App("shop")
        >>> raw = app.topic("product_changes", hw.changes("product_id int, name string"), time="at")
        >>> app.table("products", raw, key="product_id").inputs
        ('product_changes',)
    """
    # What stands in a field's metadata is a default, and a column that was not sent has none.
    members = [pa.field(field.name, field.type) for field in arrow_schema(row)]
    fields = [
        pa.field(OP, pa.string(), nullable=False),
        pa.field(BEFORE, pa.struct(members)),
        pa.field(AFTER, pa.struct(members)),
        pa.field(UNCHANGED, _NAMES),
        pa.field(AT, pa.timestamp("us", "UTC")),
    ]
    return arrow_schema(pa.schema(fields))


def row_of_changes(schema: pa.Schema) -> pa.Schema | None:
    """The columns of the rows whose changes have this type; None when it is not one of changes.

    A topic of changes may have more columns than `changes` gives it.

    Example:
        >>> row_of_changes(changes("id int, name string")).names
        ['id', 'name']
        >>> row_of_changes(arrow_schema("op string, before int, after int, unchanged int")) is None
        True
    """
    kinds = {field.name: field.type for field in schema}
    row = kinds.get(AFTER)
    if row is None or not pa.types.is_struct(row) or not pa.types.is_string(kinds.get(OP, pa.null())):
        return None
    if kinds.get(BEFORE) != row or kinds.get(UNCHANGED) != _NAMES:
        return None
    return pa.schema(list(row))
