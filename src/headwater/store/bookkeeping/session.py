"""What the statements of this room are executed on: a connection to SQLite is one as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

__all__ = ["Found", "Session"]


class Found(Protocol):
    """What a statement found or did."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    def fetchone(self) -> Any:
        """The next row, or None."""

    def fetchall(self) -> list[Any]:
        """All rows that are left."""


class Session(Protocol):
    """Executes statements, each inside the transaction of whoever has the session."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Found:
        """Execute one statement."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Any:
        """Execute one statement for each of these rows."""
