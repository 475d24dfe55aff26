"""The two sides of a join of events with a table: which columns meet, and which are in the result."""

from __future__ import annotations

from typing import Any, Literal, NoReturn

import pyarrow as pa

from headwater.engine.keyed.keys import require_keys
from headwater.errors import BadPipelineError, Place

__all__ = ["How", "Pairs", "others", "refuse", "require_key", "require_sides", "require_time"]

How = Literal["inner", "left"]
"""Events without a row of the table: left out, or kept with nulls."""
Pairs = tuple[tuple[str, str], ...]
"""Columns that must be equal: of the event, of the table."""


def others(table: pa.Schema, on: Pairs) -> pa.Schema:
    """The columns of a table that are not its key.

    Example:
        >>> others(pa.schema([("id", pa.int64()), ("price", pa.int64())]), (("product_id", "id"),)).names
        ['price']
    """
    keys = {right for _, right in on}
    return pa.schema([field for field in table if field.name not in keys])


def require_sides(name: str, events: pa.Schema, table: pa.Schema, on: Pairs) -> None:
    """Refuse a join whose columns are missing, cannot be compared, or would be in the result twice.

    Args:
        name: The operator, for the error.
        events: The event's columns.
        table: The table's columns.
        on: The pairs.

    Raises:
        BadPipelineError: With the part that is refused.

    Example:
        >>> events, table = pa.schema([("id", pa.int64()), ("n", pa.int64())]), pa.schema([("id", pa.int64())])
        >>> require_sides("enrich", events, table, (("id", "id"),))
    """
    if not on:
        refuse(f"{name} has no columns to join on", 'on="product_id"', on=[])
    for left, right in on:
        _require_column(name, "event", events, left)
        _require_column(name, "table", table, right)
        one, other = events.field(left).type, table.field(right).type
        if one != other:
            what = f"{name} cannot compare {left} ({one}) with {right} ({other})"
            refuse(what, f"cast one of them, so that both are {other}", on=[left, right])
        _require_comparable(name, events.field(left))
    twice = [column for column in others(table, on).names if column in events.names]
    if twice:
        what = f"{name} would give two columns named {', '.join(twice)}"
        refuse(what, f"rename {twice[0]} in the event or in the table", columns=twice)


def require_key(name: str, columns: pa.Schema, key: tuple[str, ...]) -> None:
    """Refuse a key that rows cannot be grouped by.

    Raises:
        BadPipelineError: It is empty, or has a column that is not there or is of a type without an order.
    """
    if not key:
        refuse(f"{name} has no key", f"one of: {', '.join(columns.names)}", key=[])
    for column in key:
        if column not in columns.names:
            what = f"{name} is by {column}, which its input does not have"
            refuse(what, f"one of: {', '.join(columns.names)}", column=column)
        _require_comparable(name, columns.field(column))


def require_time(name: str, option: str, value: int, lowest: int = 1) -> None:
    """Refuse a length of time that cannot be.

    Raises:
        BadPipelineError: It is below the lowest.
    """
    if value < lowest:
        what = f"{name} has {option} = {value} microseconds"
        refuse(what, f"{option} of at least {lowest} microseconds", option=option, value=value)


def refuse(what: str, fix: str, **data: Any) -> NoReturn:
    """Refuse what the user wrote, with the place where it stands.

    Raises:
        BadPipelineError: Always.
    """
    raise BadPipelineError(what, fix=fix, place=Place.of_caller(), **data)


def _require_column(name: str, side: str, schema: pa.Schema, column: str) -> None:
    if column not in schema.names:
        what = f"{name} joins on {column}, which the {side} does not have"
        refuse(what, f"one of: {', '.join(schema.names)}", column=column, side=side)


def _require_comparable(name: str, field: pa.Field) -> None:
    try:
        require_keys(pa.schema([field]))
    except TypeError:
        what = f"{name} cannot use {field.name} as a key: it is of type {field.type}"
        refuse(what, "a column of a plain type", column=field.name)
