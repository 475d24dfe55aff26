"""Where a SQLite source is: what it has delivered of each table, and the resume point that says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headwater.capture.source import Resume
from headwater.capture.sqlite.values import decode_value, encode_value

__all__ = ["SqlitePosition", "TablePosition"]


@dataclass
class TablePosition:
    """How far one table is.

    Attributes:
        shape: The id of the shape that was announced last; 0 before the first.
        loading: Whether rows of a load are still to come.
        begun: Whether the load was announced.
        after: Where the load is: the key of the last row; None before the first.
        stopped: Why the table is not captured any longer; "" if it is.
    """

    shape: int = 0
    loading: bool = True
    begun: bool = False
    after: tuple[Any, ...] | None = None
    stopped: str = ""

    def load(self) -> None:
        """Begin a load."""
        self.loading, self.begun, self.after = True, False, None


@dataclass
class SqlitePosition:
    """How far a source is.

    SQLite gives transactions no number. A read ends at a commit, so the changes of one read are a group: whole
    transactions, which are delivered as one.

    Attributes:
        id: The history of the file.
        epoch: Counts the loads.
        sequence: The changes up to here are delivered.
        ahead: Tables of which more is delivered, up to that sequence number.
        first: The first change of the group that is being delivered.
        end: The last one.
        at: The time up to which the file is known, in microseconds since 1970.
        confirmed: Changes up to here were removed from the file.
        tables: The captured tables.
    """

    id: str
    epoch: int = 1
    sequence: int = 0
    ahead: dict[str, int] = field(default_factory=dict)
    first: int = 0
    end: int = 0
    at: int = 0
    confirmed: int = 0
    tables: dict[str, TablePosition] = field(default_factory=dict)

    def to_resume(self) -> Resume:
        """Returns the resume point.

        Example:
            >>> position = SqlitePosition("a1", tables={"t": TablePosition(after=(b"k",))})
            >>> SqlitePosition.from_resume(position.to_resume()) == position
            True
        """
        tables = {
            name: {
                "shape": one.shape,
                "loading": one.loading,
                "begun": one.begun,
                "after": None if one.after is None else [encode_value(value) for value in one.after],
                "stopped": one.stopped,
            }
            for name, one in self.tables.items()
        }
        return {**self.__dict__, "ahead": dict(self.ahead), "tables": tables}

    @classmethod
    def from_resume(cls, resume: Resume) -> SqlitePosition:
        """Returns the position of a resume point."""
        tables = {
            name: TablePosition(
                one["shape"],
                one["loading"],
                one["begun"],
                None if one["after"] is None else tuple(decode_value(value) for value in one["after"]),
                one["stopped"],
            )
            for name, one in resume["tables"].items()
        }
        return cls(**{**resume, "ahead": dict(resume["ahead"]), "tables": tables})
