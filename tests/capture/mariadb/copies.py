"""A copy of tables that follows from records, for sources that load a table again after a crash."""

from __future__ import annotations

from typing import Any

from headwater.capture.source import Record, RecordKind
from tests.capture.mariadb.server import Database
from tests.capture.version_chain import Replica, read_all

__all__ = ["Copy", "copy_of", "expect_equal"]


class Copy(Replica):
    """A replica to which rows of a new load may bring later versions, because an unfinished load was given up."""

    def _change(self, table: str, key: tuple[str, ...], change: dict[str, Any]) -> None:
        if change["op"] == 0:
            place = tuple(change["after"][one] for one in key)
            if self._epochs.get(table, {}).get(place) != self.epoch:
                self.rows.get(table, {}).pop(place, None)
        super()._change(table, key, change)

    def kinds(self) -> list[RecordKind]:
        """The kinds of the records so far, without positions."""
        return [one.kind for one in self.records if one.kind is not RecordKind.POSITION]

    def last(self, kind: RecordKind) -> Record:
        """The last record of a kind."""
        return [one for one in self.records if one.kind is kind][-1]


def copy_of(database: Database, *names: str, chained: bool = False) -> tuple[Any, Copy]:
    """An open source of these tables, and their copy with everything that is committed."""
    source = database.source()
    source.open(None, database.tables(*names))
    copy = Copy([f"{database.name}.{one}" for one in names] if chained else ())
    read_all(source, copy)
    return source, copy


def expect_equal(database: Database, copy: Replica, table: str, key: tuple[str, ...] = ("id",)) -> None:
    """Check the copy of a table against the table, read with SQL."""
    columns = [row[0] for row in database.run(f"SHOW COLUMNS FROM {table}")]
    rows = database.run(f"SELECT * FROM {table}")
    copy.expect(f"{database.name}.{table}", [dict(zip(columns, row, strict=True)) for row in rows], key)
