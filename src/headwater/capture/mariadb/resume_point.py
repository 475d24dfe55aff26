"""Where a capture of MariaDB continues, as it stands in every record of the journal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headwater.capture.mariadb.binlog.column_types import arrow_type
from headwater.capture.source import Resume, TableShape
from headwater.errors import NewerFormatError

__all__ = ["Place", "ResumePoint", "TableState", "file_number"]

_FORMAT: Final = 1
_OPTIONAL: Final = ("loaded", "reload", "begun", "last", "dropped", "stopped")

Place: TypeAlias = tuple[int, int]
"""A position in the binary log that can be compared: the number of the file, and the position in it."""


def file_number(file: str) -> int:
    """Returns the number of a binary log file; its positions come after those of all files of smaller numbers.

    Example:
        >>> file_number("mysql-bin.000012")
        12
    """
    return int(file.rpartition(".")[2])


@dataclass(frozen=True)
class TableState:
    """What the capture knows of one table.

    Attributes:
        types: The type of each captured column, by name.
        key: The key columns.
        version: The version of this shape.
        loaded: Whether its first snapshot is in the journal.
        reload: Whether another snapshot was asked for and is not in the journal yet.
        begun: Whether the epoch of the present snapshot is in the journal.
        last: The key of the last row of the present snapshot that is in the journal, as SQL.
        dropped: Whether the table was dropped.
        stopped: Why its changes can no longer be delivered; they are kept raw until another snapshot.
    """

    types: dict[str, str] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    version: int = 0
    loaded: bool = False
    reload: bool = False
    begun: bool = False
    last: tuple[str, ...] = ()
    dropped: bool = False
    stopped: str = ""

    @property
    def streamed(self) -> bool:
        """Whether the log must be read for it: all rows, or the first of them, are in the journal."""
        return self.loaded or bool(self.last)

    @property
    def live(self) -> bool:
        """Whether its changes are delivered."""
        return self.streamed and not self.stopped

    def load_again(self) -> TableState:
        """Returns the state in which the present snapshot begins with the first row."""
        return replace(self, begun=False, last=())

    def shape(self, table: str) -> TableShape:
        """Returns the columns in Arrow types."""
        schema = pa.schema([pa.field(name, arrow_type(kind)) for name, kind in self.types.items()])
        return TableShape(table, self.version, schema, self.key, dict(self.types))

    def reshape(self, types: dict[str, str], key: tuple[str, ...]) -> TableState:
        """Returns the state with these columns; a new version if they differ."""
        if list(types.items()) == list(self.types.items()) and key == self.key:
            return self
        return replace(self, types=types, key=key, version=self.version + 1)


@dataclass(frozen=True)
class ResumePoint:
    """Where a capture continues.

    Attributes:
        epoch: Counts the loads.
        server: The server id that wrote the log.
        file: The binary log file.
        position: The end of the last whole transaction in it.
        event: Inside a transaction that begins there: the end of the last event that is delivered; 0: none is.
        index: The index of the next change in that transaction.
        at: The time up to which the source is known, in microseconds since 1970.
        gtid: The last transaction of each domain, as "SERVER-SEQUENCE".
        tables: The captured tables.
        delivered: Tables of which everything up to a place is delivered, while others wait for the next record.
        prepared: XA transactions that wait for their commit, and the captured tables that they change.
    """

    epoch: int = 0
    server: int = 0
    file: str = ""
    position: int = 0
    event: int = 0
    index: int = 0
    at: int = 0
    gtid: dict[str, str] = field(default_factory=dict)
    tables: dict[str, TableState] = field(default_factory=dict)
    delivered: dict[str, Place] = field(default_factory=dict)
    prepared: dict[str, list[str]] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        """Where the last whole transaction ends."""
        return file_number(self.file), self.position

    def to_resume(self) -> Resume:
        """Returns it as JSON."""
        tables = {
            name: {"types": one.types, "key": list(one.key), "version": one.version}
            | {name: getattr(one, name) for name in _OPTIONAL if getattr(one, name)}
            for name, one in self.tables.items()
        }
        found = {name: value for name, value in vars(self).items() if value or name == "position"}
        return found | {"format": _FORMAT, "tables": tables}

    @classmethod
    def from_resume(cls, resume: Resume) -> ResumePoint:
        """Returns the point in a record.

        Example:
            >>> point = ResumePoint(epoch=1, file="bl.000001", position=4, delivered={"shop.orders": (1, 90)})
            >>> ResumePoint.from_resume(point.to_resume()) == point
            True

        Raises:
            NewerFormatError: A newer version of Headwater wrote it.
        """
        if resume.get("format", _FORMAT) != _FORMAT:
            raise NewerFormatError(f"the resume point of MariaDB has format {resume['format']}, not {_FORMAT}")
        known: dict[str, Any] = {name: value for name, value in resume.items() if name != "format"}
        known["tables"] = {
            name: TableState(**(one | {"key": tuple(one["key"]), "last": tuple(one.get("last", ()))}))
            for name, one in resume.get("tables", {}).items()
        }
        known["delivered"] = {name: (place[0], place[1]) for name, place in resume.get("delivered", {}).items()}
        return cls(**known)
