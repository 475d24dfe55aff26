"""The small SQL interface that shared statements run on; a SQLite connection implements it directly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

__all__ = ["Cursor", "Session"]


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    def fetchone(self) -> Any:
        """Returns the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Returns all rows that are left."""


class Session(Protocol):
    """Executes statements in the transaction of its owner."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor:
        """Execute one statement."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Any:
        """Execute one statement for each of these rows."""
