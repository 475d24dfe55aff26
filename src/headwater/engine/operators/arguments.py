"""Arguments of operators: checks of columns, keys and durations, and calls of user functions.

`UserFunction` calls a function of the user, checks what it returns, and reports the user's line when it fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NoReturn

import pyarrow as pa

from headwater.engine.state.encoding import require_keys
from headwater.engine.state.state import OFFSET, PARTITION, QUARANTINE_REASON
from headwater.errors import BadPipelineError, BadTypeError, SourceLocation
from headwater.events import from_ddl

__all__ = [
    "QUARANTINE_SCHEMA",
    "ColumnPairs",
    "JoinType",
    "UserFunction",
    "build_table",
    "key_schema",
    "parse_columns",
    "quarantine_rows",
    "refuse",
    "require_duration",
    "require_join_columns",
    "require_key",
    "value_columns",
]

JoinType = Literal["inner", "left"]
"""Events without a row of the table: left out, or kept with nulls."""
ColumnPairs = tuple[tuple[str, str], ...]
"""Columns that must be equal: of the event, of the table."""


def value_columns(table: pa.Schema, on: ColumnPairs) -> pa.Schema:
    """Returns the columns of a table that are not its key.

    Example:
        >>> value_columns(pa.schema([("id", pa.int64()), ("price", pa.int64())]), (("product_id", "id"),)).names
        ['price']
    """
    keys = {right for _, right in on}
    return pa.schema([field for field in table if field.name not in keys])


def require_join_columns(name: str, events: pa.Schema, table: pa.Schema, on: ColumnPairs) -> None:
    """Refuse a join whose columns are missing, cannot be compared, or would be in the result twice.

    Args:
        name: The operator, for error messages.
        events: The event's columns.
        table: The table's columns.
        on: The pairs.

    Raises:
        BadPipelineError: With the part that is refused.

    Example:
        >>> events, table = pa.schema([("id", pa.int64()), ("n", pa.int64())]), pa.schema([("id", pa.int64())])
        >>> require_join_columns("enrich", events, table, (("id", "id"),))
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
    twice = [column for column in value_columns(table, on).names if column in events.names]
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


def require_duration(name: str, option: str, value: int, lowest: int = 1) -> None:
    """Refuse a duration below the minimum.

    Raises:
        BadPipelineError: It is below the lowest.
    """
    if value < lowest:
        what = f"{name} has {option} = {value} microseconds"
        refuse(what, f"{option} of at least {lowest} microseconds", option=option, value=value)


def refuse(what: str, fix: str, **data: Any) -> NoReturn:
    """Refuse an argument, with the user's source location.

    Raises:
        BadPipelineError: Always.
    """
    raise BadPipelineError(what, fix=fix, location=SourceLocation.of_caller(), **data)


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


QUARANTINE_SCHEMA: Final = pa.schema(
    [pa.field(PARTITION, pa.int64()), pa.field(OFFSET, pa.int64()), pa.field(QUARANTINE_REASON, pa.string())]
)
"""Of an event on which a function fails: where it stands, and why."""


class UserFunction:
    """A user function; an error inside it gets a note with the function and the key.

    Example:
        >>> def halved(key, n):
        ...     return 1 / n
        >>> function = UserFunction(halved)
        >>> function("k", 2), str(function)
        (0.5, 'halved')
        >>> try:
        ...     function("k", 0)
        ... except ZeroDivisionError as error:
        ...     print(error.__notes__[0].startswith("in halved ("), error.__notes__[0].endswith("key 'k'"))
        True True
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self._name = getattr(fn, "__qualname__", type(fn).__name__).rpartition(".<locals>.")[2]
        self.location = _locate(fn)

    def __str__(self) -> str:
        return self._name

    @property
    def description(self) -> str:
        """Its name, with file and line when they are known."""
        return f"{self._name} ({self.location})" if self.location else self._name

    def __call__(self, key: Any, *arguments: Any) -> Any:
        """Call the function for a key."""
        try:
            return self.fn(key, *arguments)
        except Exception as error:
            error.add_note(f"in {self.description}, for the key {key!r}")
            raise


def parse_columns(returns: pa.Schema | str, function: UserFunction) -> pa.Schema:
    """Returns the columns that a function is to return.

    Example:
        >>> parse_columns("n bigint", UserFunction(len)).names
        ['n']

    Raises:
        BadPipelineError: The text cannot be read.
    """
    if isinstance(returns, pa.Schema):
        return returns
    try:
        return from_ddl(returns)
    except BadTypeError as error:
        what = f"{function}: what it returns cannot be read: {error.what}"
        raise BadPipelineError(what, detail=error.detail, fix=error.fix, location=function.location) from error


def key_schema(events: pa.Schema, by: Sequence[str], function: UserFunction) -> pa.Schema:
    """Returns the columns of the key.

    Example:
        >>> key_schema(pa.schema([("k", pa.int64()), ("n", pa.int64())]), ["k"], UserFunction(len)).names
        ['k']

    Raises:
        BadPipelineError: There is no such column, or it cannot be a key.
    """
    missing = [name for name in by if name not in events.names]
    if missing or not by:
        what = f"{function}: no column {missing[0]!r} to go by" if missing else f"{function}: there is no key to go by"
        raise BadPipelineError(what, fix=f"by= one of {', '.join(events.names)}", location=function.location)
    found = pa.schema([events.field(name) for name in by])
    try:
        require_keys(found)
    except TypeError as error:
        raise BadPipelineError(
            f"{function}: {error}", fix="go by another column", location=function.location
        ) from error
    return found


def build_table(rows: list[dict[str, Any]], schema: pa.Schema, function: UserFunction) -> pa.Table:
    """Returns rows as columns; an undeclared column is an error, a missing one is null.

    Example:
        >>> build_table([{"n": 1}], pa.schema([("n", pa.int64())]), UserFunction(len)).to_pylist()
        [{'n': 1}]

    Raises:
        BadPipelineError: A row has other columns, or a value of another type.
    """
    names = frozenset(schema.names)
    other = next((row for row in rows if not row.keys() <= names), None)
    if other is not None:
        unknown = ", ".join(sorted(other.keys() - names))
        what = f"{function} returned a row with columns that it does not declare: {unknown}"
        raise BadPipelineError(what, fix=f"declared are {', '.join(schema.names)}", location=function.location)
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        what = f"{function} returned a value of another type than it declares: {error}"
        raise BadPipelineError(what, fix="see its returns=", location=function.location) from error


def quarantine_rows(events: pa.Table, error: Exception) -> pa.Table:
    """Returns the positions of rejected events, with the reason.

    Example:
        >>> quarantine_rows(pa.table({PARTITION: [0], OFFSET: [7]}), ValueError("no")).to_pylist()
        [{'_hw_partition': 0, '_hw_offset': 7, '_hw_refused': 'ValueError: no'}]
    """
    where = error.__notes__[0] if getattr(error, "__notes__", None) else ""
    reason = f"{type(error).__name__}: {error}{f', {where}' if where else ''}"
    places = events.select([PARTITION, OFFSET])
    return places.append_column(QUARANTINE_REASON, pa.repeat(reason, len(places))).cast(QUARANTINE_SCHEMA)


def _locate(fn: Callable[..., Any]) -> SourceLocation | None:
    try:
        file, line = inspect.getsourcefile(fn), inspect.getsourcelines(fn)[1]
    except (TypeError, OSError):
        code = getattr(fn, "__code__", None)
        file, line = (code.co_filename, code.co_firstlineno) if code else (None, 0)
    return None if file is None else SourceLocation.at(file, line)
