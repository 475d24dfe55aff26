"""Functions of the user inside operators: where they are written, what they return, and what to say when they fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from headwater.engine.keyed.keys import require_keys
from headwater.engine.keyed.operator import OFFSET, PARTITION, REFUSED
from headwater.errors import BadPipelineError, BadTypeError, Place
from headwater.events import from_ddl

__all__ = ["GIVEN_BACK", "UserCode", "declared_columns", "given_back", "key_schema", "rows_table"]

GIVEN_BACK: Final = pa.schema(
    [pa.field(PARTITION, pa.int64()), pa.field(OFFSET, pa.int64()), pa.field(REFUSED, pa.string())]
)
"""Of an event on which a function fails: where it stands, and why."""


class UserCode:
    """A function of the user's; an error inside it gets a note that names the function and the key.

    Example:
        >>> def halved(key, n):
        ...     return 1 / n
        >>> code = UserCode(halved)
        >>> code("k", 2), str(code)
        (0.5, 'halved')
        >>> try:
        ...     code("k", 0)
        ... except ZeroDivisionError as error:
        ...     print(error.__notes__[0].startswith("in halved ("), error.__notes__[0].endswith("key 'k'"))
        True True
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self._name = getattr(fn, "__qualname__", type(fn).__name__).rpartition(".<locals>.")[2]
        self.place = _place(fn)

    def __str__(self) -> str:
        return self._name

    @property
    def where(self) -> str:
        """Its name, with file and line when they are known."""
        return f"{self._name} ({self.place})" if self.place else self._name

    def __call__(self, key: Any, *arguments: Any) -> Any:
        """Call it for a key."""
        try:
            return self.fn(key, *arguments)
        except Exception as error:
            error.add_note(f"in {self.where}, for the key {key!r}")
            raise


def declared_columns(returns: pa.Schema | str, code: UserCode) -> pa.Schema:
    """The columns that a function is to return.

    Example:
        >>> declared_columns("n bigint", UserCode(len)).names
        ['n']

    Raises:
        BadPipelineError: The text cannot be read.
    """
    if isinstance(returns, pa.Schema):
        return returns
    try:
        return from_ddl(returns)
    except BadTypeError as error:
        what = f"{code}: what it returns cannot be read: {error.what}"
        raise BadPipelineError(what, detail=error.detail, fix=error.fix, place=code.place) from error


def key_schema(events: pa.Schema, by: Sequence[str], code: UserCode) -> pa.Schema:
    """The columns of the key.

    Example:
        >>> key_schema(pa.schema([("k", pa.int64()), ("n", pa.int64())]), ["k"], UserCode(len)).names
        ['k']

    Raises:
        BadPipelineError: There is no such column, or it cannot be a key.
    """
    missing = [name for name in by if name not in events.names]
    if missing or not by:
        what = (
            f"{code}: no column {missing[0]!r} to go by" if missing else f"{code}: there is no key to go by"
        )
        raise BadPipelineError(what, fix=f"by= one of {', '.join(events.names)}", place=code.place)
    found = pa.schema([events.field(name) for name in by])
    try:
        require_keys(found)
    except TypeError as error:
        raise BadPipelineError(f"{code}: {error}", fix="go by another column", place=code.place) from error
    return found


def rows_table(rows: list[dict[str, Any]], schema: pa.Schema, code: UserCode) -> pa.Table:
    """Rows as columns; a column that is not declared is an error, one that is missing is null.

    Example:
        >>> rows_table([{"n": 1}], pa.schema([("n", pa.int64())]), UserCode(len)).to_pylist()
        [{'n': 1}]

    Raises:
        BadPipelineError: A row has other columns, or a value of another type.
    """
    names = frozenset(schema.names)
    other = next((row for row in rows if not row.keys() <= names), None)
    if other is not None:
        unknown = ", ".join(sorted(other.keys() - names))
        what = f"{code} returned a row with columns that it does not declare: {unknown}"
        raise BadPipelineError(what, fix=f"declared are {', '.join(schema.names)}", place=code.place)
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        what = f"{code} returned a value of another type than it declares: {error}"
        raise BadPipelineError(what, fix="see its returns=", place=code.place) from error


def given_back(events: pa.Table, error: Exception) -> pa.Table:
    """Where events stand, and why they are given back.

    Example:
        >>> given_back(pa.table({PARTITION: [0], OFFSET: [7]}), ValueError("no")).to_pylist()
        [{'_hw_partition': 0, '_hw_offset': 7, '_hw_refused': 'ValueError: no'}]
    """
    where = error.__notes__[0] if getattr(error, "__notes__", None) else ""
    reason = f"{type(error).__name__}: {error}{f', {where}' if where else ''}"
    places = events.select([PARTITION, OFFSET])
    return places.append_column(REFUSED, pa.repeat(reason, len(places))).cast(GIVEN_BACK)


def _place(fn: Callable[..., Any]) -> Place | None:
    try:
        file, line = inspect.getsourcefile(fn), inspect.getsourcelines(fn)[1]
    except (TypeError, OSError):
        code = getattr(fn, "__code__", None)
        file, line = (code.co_filename, code.co_firstlineno) if code else (None, 0)
    return None if file is None else Place.near(file, line)
