"""Arguments of operators: checks of columns, keys and durations, and calls of user functions.

`UserFunction` calls a function of the user and names its source location when it fails. `build_table` checks the rows
that it returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import pyarrow as pa

from headwater.engine.state.encoding import require_keys
from headwater.engine.state.state import LOCATION_MARK, OFFSET, PARTITION, QUARANTINE_REASON, QUARANTINE_SCHEMA
from headwater.errors import BadPipelineError, BadTypeError, SourceLocation
from headwater.events import from_ddl

__all__ = [
    "ColumnPairs",
    "JoinType",
    "UserFunction",
    "build_table",
    "parse_columns",
    "quarantine_rows",
    "refuse",
    "require_choice",
    "require_distinct",
    "require_duration",
    "require_join_columns",
    "require_key",
    "value_columns",
]

JoinType = Literal["inner", "left"]
"""Whether an event without a row of the table is dropped or gets nulls."""
ColumnPairs = tuple[tuple[str, str], ...]
"""Pairs of columns that must be equal: the event's, the table's."""


def value_columns(table: pa.Schema, on: ColumnPairs) -> pa.Schema:
    """Returns the columns of a table that are not part of its key.

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
        on: The pairs of columns that must be equal.

    Raises:
        BadPipelineError: The join is refused.

    Example:
        >>> events, table = pa.schema([("id", pa.int64()), ("n", pa.int64())]), pa.schema([("id", pa.int64())])
        >>> require_join_columns("enrich", events, table, (("id", "id"),))
    """
    if not on:
        refuse(f"{name} has no columns to join on", 'on="product_id"', on=[])
    for left, right in on:
        for side, schema, column in (("event", events, left), ("table", table, right)):
            if column not in schema.names:
                what = f"{name} joins on {column}, which the {side} does not have"
                refuse(what, f"one of: {', '.join(schema.names)}", column=column, side=side)
        one, other = events.field(left).type, table.field(right).type
        if one != other:
            what = f"{name} cannot compare {left} ({one}) with {right} ({other})"
            refuse(what, f"cast one of them, so that both are {other}", on=[left, right])
    require_key(name, events, tuple(left for left, _ in on))
    columns = [*events.names, *value_columns(table, on).names]
    require_distinct(name, columns, "rename the column in the event or in the table")


def require_key(
    name: str, columns: pa.Schema, key: tuple[str, ...], location: SourceLocation | None = None
) -> pa.Schema:
    """Returns the columns of a key; refuses a key that rows cannot be grouped by.

    Args:
        name: The operator or function, for error messages.
        columns: The columns of the rows.
        key: The key columns.
        location: The source location for error messages; that of the caller if None.

    Raises:
        BadPipelineError: The key is empty, or a column is missing or of a type without an order.

    Example:
        >>> require_key("sliding", pa.schema([("k", pa.int64()), ("n", pa.int64())]), ("k",)).names
        ['k']
    """
    fix = f"one of: {', '.join(columns.names)}"
    if not key:
        refuse(f"{name} has no key", fix, location, key=[])
    for column in key:
        if column not in columns.names:
            refuse(f"{name} is by {column}, which its input does not have", fix, location, column=column)
        try:
            require_keys(pa.schema([columns.field(column)]))
        except TypeError:
            what = f"{name} cannot use {column} as a key: it is of type {columns.field(column).type}"
            refuse(what, "a column of a plain type", location, column=column)
    return pa.schema([columns.field(column) for column in key])


def require_distinct(name: str, columns: list[str], fix: str = "another name") -> None:
    """Refuse a result with two columns of one name.

    Raises:
        BadPipelineError: There are such columns.
    """
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        refuse(f"{name} would give two columns named {', '.join(twice)}", fix, columns=twice)


def require_duration(name: str, option: str, value: int, lowest: int = 1) -> None:
    """Refuse a duration below the minimum.

    Raises:
        BadPipelineError: The duration is below the minimum.
    """
    if value < lowest:
        what = f"{name} has {option} = {value} microseconds"
        refuse(what, f"{option} of at least {lowest} microseconds", option=option, value=value)


def require_choice(name: str, option: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices of an option.

    Raises:
        BadPipelineError: The value is not among them.
    """
    if value not in choices:
        refuse(f"{name} has {option} = {value!r}", f"one of: {', '.join(choices)}", option=option, value=value)


def refuse(what: str, fix: str, location: SourceLocation | None = None, **data: Any) -> NoReturn:
    """Refuse an argument, with the given source location or that of the caller.

    Raises:
        BadPipelineError: Always.
    """
    raise BadPipelineError(what, fix=fix, location=location or SourceLocation.of_caller(), **data)


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
        try:
            file, line = inspect.getsourcefile(fn), inspect.getsourcelines(fn)[1]
        except (TypeError, OSError):  # the source text is not available
            code = getattr(fn, "__code__", None)
            file, line = (code.co_filename, code.co_firstlineno) if code else (None, 0)
        self.location = None if file is None else SourceLocation.at(file, line)

    def __str__(self) -> str:
        return self._name

    @property
    def description(self) -> str:
        """The name of the function, with file and line if known."""
        return f"{self._name} ({self.location})" if self.location else self._name

    def __call__(self, key: Any, *arguments: Any) -> Any:
        """Call the function for a key."""
        try:
            return self.fn(key, *arguments)
        except Exception as error:
            error.add_note(f"in {self.description}, for the key {key!r}")
            raise


def parse_columns(returns: pa.Schema | str, function: UserFunction) -> pa.Schema:
    """Returns the columns that a function declares, from a schema or from DDL text.

    Example:
        >>> parse_columns("n bigint", UserFunction(len)).names
        ['n']

    Raises:
        BadPipelineError: The DDL text is invalid.
    """
    if isinstance(returns, pa.Schema):
        return returns
    try:
        return from_ddl(returns)
    except BadTypeError as error:
        what = f"{function} has invalid columns: {error.what}"
        raise BadPipelineError(what, detail=error.detail, fix=error.fix, location=function.location) from error


def build_table(rows: list[dict[str, Any]], schema: pa.Schema, function: UserFunction) -> pa.Table:
    """Returns rows as a table; a column that is missing in a row is null.

    Example:
        >>> build_table([{"n": 1}], pa.schema([("n", pa.int64())]), UserFunction(len)).to_pylist()
        [{'n': 1}]

    Raises:
        BadPipelineError: A row has an undeclared column, or a value of another type.
    """
    names = frozenset(schema.names)
    other = next((row for row in rows if not row.keys() <= names), None)
    if other is not None:
        unknown = ", ".join(sorted(other.keys() - names))
        what = f"{function} returned a row with undeclared columns: {unknown}"
        raise BadPipelineError(what, fix=f"one of: {', '.join(schema.names)}", location=function.location)
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        what = f"{function} returned a value that does not fit its declared type: {error}"
        raise BadPipelineError(what, fix="change the value, or returns=", location=function.location) from error


def quarantine_rows(events: pa.Table, error: Exception) -> pa.Table:
    """Returns the positions of rejected events with the reason, in the columns of `QUARANTINE_SCHEMA`.

    The reason has a second line with the line of the user's code that raised the error.

    Example:
        >>> quarantine_rows(pa.table({PARTITION: [0], OFFSET: [7]}), ValueError("no")).to_pylist()
        [{'_hw_partition': 0, '_hw_offset': 7, '_hw_refused': 'ValueError: no'}]
    """
    where = error.__notes__[0] if getattr(error, "__notes__", None) else ""
    reason = f"{type(error).__name__}: {error}{f', {where}' if where else ''}"
    if location := SourceLocation.of_error(error):
        reason = f"{reason}{LOCATION_MARK}{location}  {location.source}"
    positions = events.select([PARTITION, OFFSET])
    return positions.append_column(QUARANTINE_REASON, pa.repeat(reason, len(positions))).cast(QUARANTINE_SCHEMA)
