"""SQL of users: how much a query may take, what it answers, and conditions that can stand in a larger query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pyarrow as pa

from headwater.errors import BadQueryError
from headwater.events.values import shown

__all__ = ["Answer", "QueryLimits", "checked_condition", "ended", "size_of"]

Reached = Literal["time", "memory", "cancelled"]
_PIECE = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] | --[^\n]* | /\*.*?\*/
    | (?P<mark> ['"`\[();] | /\* )""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class QueryLimits:
    """How much one query may take.

    Args:
        time: After this long it is ended.
        rows: More rows than this are left out of the answer, which then says so.
        size: So many bytes of answer; rows beyond are left out.
        memory: By how many bytes the process may grow meanwhile.
        cell: The longest text, binary or row, in bytes.
        columns: The most columns of an answer.

    Example:
        >>> QueryLimits(rows=10).time.total_seconds()
        5.0
    """

    time: timedelta = timedelta(seconds=5)
    rows: int = 10_000
    size: int = 16 << 20
    memory: int = 256 << 20
    cell: int = 1 << 20
    columns: int = 200


@dataclass(frozen=True)
class Answer:
    """The rows of a query, as the store has them; `complete` is false when rows were left out by a limit.

    Example:
        >>> answer = Answer(("n",), [(1,), (2,)], complete=True)
        >>> answer.table().to_pylist()
        [{'n': 1}, {'n': 2}]
    """

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    complete: bool

    def table(self) -> pa.Table:
        """The rows as Arrow columns; where values of a column differ in type, all are text."""
        columns = list(zip(*self.rows, strict=True)) or [() for _ in self.columns]
        return pa.Table.from_arrays([_column(values) for values in columns], names=list(self.columns))


def ended(limits: QueryLimits, reached: Reached) -> BadQueryError:
    """The error of a query that was ended because it reached a limit."""
    words = {
        "time": f"the query took longer than {limits.time.total_seconds():g} s and was ended",
        "memory": f"the query took more than {limits.memory >> 20} MB of memory and was ended",
        "cancelled": "the query was cancelled",
    }
    fix = None if reached == "cancelled" else "read less: add a condition or a limit"
    return BadQueryError(words[reached], fix=fix, limit=reached)


def checked_condition(text: str, pieces: re.Pattern[str] = _PIECE) -> str:
    """A condition that can stand in parentheses: it cannot close them and go on behind.

    Args:
        text: The condition.
        pieces: What strings, names and comments look like; a piece with the group `mark` is a sign outside of them.

    Example:
        >>> checked_condition("n > 1 and name <> ')'")
        "n > 1 and name <> ')'"

    Raises:
        BadQueryError: It has a parenthesis too many, a quote too few or a semicolon.
    """
    depth = 0
    for piece in pieces.finditer(text):
        mark = piece["mark"]
        depth += {"(": 1, ")": -1}.get(mark or "", 0)
        if depth < 0 or mark not in (None, "(", ")"):
            raise BadQueryError(f"{shown(text)} is not one condition", detail=f"at {mark}", text=shown(text))
    if depth or not text.strip():
        raise BadQueryError(f"{shown(text)} is not one condition", text=shown(text))
    return text


def _column(values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])


def size_of(row: tuple[Any, ...]) -> int:
    """About how many bytes a row of an answer has."""
    return sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row)
