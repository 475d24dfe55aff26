"""The user's Python functions as a probe calls them: they report on which rows they fail, and go on.

Spark has pickled these functions into its plan. They are unpickled here in Spark's workers, never in the driver. A
function that fails on a batch of rows is called on halves of it, within the worker.
"""

from __future__ import annotations

import importlib
import inspect
import json
import linecache
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.serializers import CPickleSerializer

__all__ = [
    "ROW",
    "WHY",
    "ArrowVectors",
    "PandasVectors",
    "ProbedBatches",
    "ProbedMap",
    "ProbedRows",
    "UserFunction",
    "Vectors",
    "describe_failure",
    "failing_rows",
]

_MAX_REASON: Final = 2_000
"""The length at which the message of an exception is cut."""
ROW: Final = "_hw_row"
"""The column with the number of a row, which the leaves of a probed plan must have."""
WHY: Final = "_hw_why"
"""The column with the failure of a row."""


@dataclass(frozen=True)
class UserFunction:
    """Functions that Spark calls one after another: each receives the result of the one before.

    Args:
        commands: The pickled functions, in the order of their calls.
        names: The parameter of each argument that was given by name; None for the others.
    """

    commands: tuple[bytes, ...]
    names: tuple[str | None, ...] = ()

    @cached_property
    def _functions(self) -> list[Callable[..., Any]]:
        loaded = [CPickleSerializer().loads(command) for command in self.commands]  # type: ignore[no-untyped-call]
        return [one[0] if isinstance(one, tuple) else one for one in loaded]

    def load(self) -> None:
        """Unpickle the functions; an error of this step is not the failure of an event."""
        self._functions  # noqa: B018

    def __call__(self, *args: Any) -> Any:
        """Returns the result of the last function."""
        named = {name: value for name, value in zip(self.names, args, strict=False) if name}
        unnamed = [value for name, value in zip(self.names or (None,) * len(args), args, strict=True) if not name]
        first, *others = self._functions
        result = first(*unnamed, **named)
        for function in others:
            result = function(result)
        return result

    @property
    def files(self) -> set[str]:
        """The files in which the functions are written."""
        codes = [getattr(inspect.unwrap(function), "__code__", None) for function in self._functions]
        return {code.co_filename for code in codes if code is not None}


def describe_failure(error: Exception, files: Iterable[str]) -> str:
    """Returns an exception with the innermost line that is in one of these files, as JSON.

    Example:
        >>> try:
        ...     [].pop()
        ... except IndexError as error:
        ...     describe_failure(error, ())
        '["IndexError: pop from empty list", "", 0, ""]'
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    file, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
    return json.dumps([reason[:_MAX_REASON], file, line, linecache.getline(file, line).strip()])


def failing_rows(call: Callable[[range], object], rows: range) -> Iterator[tuple[int, Exception]]:
    """Yields the rows on which a call fails when it gets them alone; halves of failing rows are tried first.

    Example:
        >>> def call(rows):
        ...     return [1 // (row - 3) for row in rows]
        >>> list(failing_rows(call, range(8)))
        [(3, ZeroDivisionError('integer division or modulo by zero'))]
    """
    try:
        call(rows)
    except Exception as error:
        if len(rows) == 1:
            yield rows[0], error
            return
        middle = len(rows) // 2
        yield from failing_rows(call, rows[:middle])
        yield from failing_rows(call, rows[middle:])


@dataclass(frozen=True)
class ProbedRows:
    """A function that Spark calls for each row.

    Args:
        function: The user's function.
        explains: Whether a call returns why the function failed, None for no failure; otherwise its result, None for a
            failure.
    """

    function: UserFunction
    explains: bool

    def __call__(self, *args: Any) -> Any:
        """Returns the result for one row."""
        self.function.load()
        try:
            result = self.function(*args)
        except Exception as error:
            return describe_failure(error, self.function.files) if self.explains else None
        return None if self.explains else result


class Vectors(Protocol):
    """What a probe needs of pandas or Arrow columns, or of batches of these."""

    def take(self, rows: Any, numbers: Sequence[int]) -> Any:
        """Returns some rows of a column or batch."""

    def texts(self, values: list[str | None]) -> Any:
        """Returns a column of texts."""

    def nulls(self, count: int, fields: Sequence[str]) -> Any:
        """Returns a column of nulls; of structs, if fields are given."""

    def split(self, batch: Any) -> tuple[Any, list[int], list[str | None]]:
        """Returns a batch without its last two columns, and these: the numbers of its rows and their failures."""

    def failures(self, numbers: list[int], reasons: list[str]) -> Any:
        """Returns a batch of numbers of rows and their failures."""


class PandasVectors:
    """Columns are Series; batches and columns of structs are DataFrames."""

    def take(self, rows: Any, numbers: Sequence[int]) -> Any:
        """Returns some rows of a column or batch."""
        return rows.iloc[list(numbers)].reset_index(drop=True)

    def texts(self, values: list[str | None]) -> Any:
        """Returns a column of texts."""
        return _pandas().Series(values, dtype=object)

    def nulls(self, count: int, fields: Sequence[str]) -> Any:
        """Returns a column of nulls; of structs, if fields are given."""
        values = [None] * count
        return _pandas().DataFrame(dict.fromkeys(fields, values)) if fields else self.texts([None] * count)

    def split(self, batch: Any) -> tuple[Any, list[int], list[str | None]]:
        """Returns a batch without its last two columns, and these."""
        reasons = [one if isinstance(one, str) else None for one in batch.iloc[:, -1]]
        return batch.iloc[:, :-2], batch.iloc[:, -2].tolist(), reasons

    def failures(self, numbers: list[int], reasons: list[str]) -> Any:
        """Returns a batch of numbers of rows and their failures."""
        return _pandas().DataFrame({ROW: numbers, WHY: reasons})


class ArrowVectors:
    """Columns are arrays, batches are record batches."""

    def take(self, rows: Any, numbers: Sequence[int]) -> Any:
        """Returns some rows of a column or batch."""
        return rows.take(pa.array(numbers, pa.int64()))

    def texts(self, values: list[str | None]) -> Any:
        """Returns a column of texts."""
        return pa.array(values, pa.string())

    def nulls(self, count: int, fields: Sequence[str]) -> Any:
        """Returns a column of nulls."""
        return pa.nulls(count)

    def split(self, batch: Any) -> tuple[Any, list[int], list[str | None]]:
        """Returns a batch without its last two columns, and these."""
        last = batch.num_columns - 1
        rows = batch.select(list(range(last - 1)))
        return rows, batch.column(last - 1).to_pylist(), batch.column(last).to_pylist()

    def failures(self, numbers: list[int], reasons: list[str]) -> Any:
        """Returns a batch of numbers of rows and their failures."""
        return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), pa.array(reasons, pa.string())], [ROW, WHY])


def _pandas() -> Any:
    """Returns pandas, which is there only if the user's function uses it."""
    return importlib.import_module("pandas")


@dataclass(frozen=True)
class ProbedBatches:
    """A function that Spark calls for columns of many rows, from pandas or Arrow.

    Args:
        function: The user's function.
        explains: See `ProbedRows`.
        vectors: The kind of its columns.
        iterates: Whether it takes and returns an iterator of batches.
        fields: If it returns structs, the names of their fields.
    """

    function: UserFunction
    explains: bool
    vectors: Vectors
    iterates: bool
    fields: tuple[str, ...]

    def __call__(self, *columns: Any) -> Any:
        """Returns one value for each row."""
        self.function.load()
        count = len(columns[0])
        failed = dict(failing_rows(lambda rows: self._call(columns, rows), range(count))) if count else {}
        if self.explains:
            files = self.function.files
            whys = [describe_failure(failed[row], files) if row in failed else None for row in range(count)]
            return self.vectors.texts(whys)
        if failed and len(failed) == count:
            return self.vectors.nulls(count, self.fields)
        # The results of failing rows are never used: a row that succeeds takes their place.
        good = next((row for row in range(count) if row not in failed), 0)
        return self._call(columns, [good if row in failed else row for row in range(count)])

    def _call(self, columns: Sequence[Any], rows: Sequence[int]) -> Any:
        taken = tuple(self.vectors.take(column, rows) for column in columns)
        if not self.iterates:
            return self.function(*taken)
        [result] = self.function(iter([taken[0] if len(taken) == 1 else taken]))
        return result


@dataclass(frozen=True)
class ProbedMap:
    """A function for `mapInArrow` or `mapInPandas`; the last two columns are the number of the row and its failure.

    Args:
        function: The user's function.
        vectors: The kind of its batches.
    """

    function: UserFunction
    vectors: Vectors

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the numbers of failing rows, each with the reason."""
        self.function.load()
        for batch in batches:
            rows, numbers, reasons = self.vectors.split(batch)
            untried = [index for index, reason in enumerate(reasons) if reason is None]
            found = failing_rows(partial(self._run, rows, untried), range(len(untried))) if untried else ()
            for index, error in found:
                reasons[untried[index]] = describe_failure(error, self.function.files)
            failed = [(number, reason) for number, reason in zip(numbers, reasons, strict=True) if reason is not None]
            yield self.vectors.failures([number for number, _ in failed], [reason for _, reason in failed])

    def _run(self, rows: Any, untried: Sequence[int], some: range) -> None:
        taken = self.vectors.take(rows, [untried[index] for index in some])
        for _ in self.function(iter([taken])):
            pass
