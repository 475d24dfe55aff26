"""The SQL of the triggers that record each change of a SQLite table in the table of changes.

A row of the changes has the values of the row after the change in the columns `c0`, `c1`, ..., and those before it in
the columns behind them. The columns have no type, so that SQLite stores each value as it is.

A REPLACE removes the rows that stand in its way without firing a delete trigger (unless the writer sets
`recursive_triggers`). So a trigger before the statement copies such rows into a pending table, and the one after it
records the deletion of those that are gone. Neither knows whether the conflict is resolved by REPLACE: rows that an
INSERT OR IGNORE or an upsert leaves in place stay pending until they are changed or deleted. A pending table has no
constraint, because the conflict clause of the program's statement applies to the statements of triggers, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headwater.capture.sqlite.definition import TableDefinition
from headwater.sql.identifiers import quote

__all__ = ["DELETE", "INSERT", "KINDS", "MARK", "UPDATE", "TableTriggers"]

INSERT: Final = 1  # the index in `OPS`
UPDATE: Final = 2
DELETE: Final = 3
KINDS: Final = ("check_insert", "check_update", "insert", "update", "delete")
MARK: Final = -1  # a row that says that the table has another shape from here on

# The time of the statement, as a Julian day; SQLite records no time of a commit.
_NOW: Final = "julianday('now')"


@dataclass(frozen=True)
class TableTriggers:
    """The triggers on one table.

    Args:
        prefix: Begins the names of everything that capture creates.
        shape: The id of the table's shape.
        table: The table.
    """

    prefix: str
    shape: int
    table: TableDefinition

    def name(self, kind: str) -> str:
        """Returns the name of a trigger, or of the pending table."""
        return f"{self.prefix}{kind}_{self.table.name}"

    def pending_table(self) -> str:
        """Returns the statement that creates the pending table."""
        columns = ", ".join(f"c{place}" for place in range(len(self.table.columns)))
        return f"CREATE TABLE {self._pending} ({columns})"

    def statements(self) -> dict[str, str]:
        """Returns the CREATE TRIGGER statements by name.

        SQLite fires the trigger that was created last first. Triggers of the program on the same event must come after
        ours, so ours are created again when it creates one.
        """
        in_the_way = f"{self._in_the_way('1')} AND NOT ({self._same('hw_row', 'OLD')})"
        bodies = {
            "check_insert": ("BEFORE INSERT", f"WHEN EXISTS ({self._in_the_way('1')})", [self._collect("0")]),
            "check_update": (
                "BEFORE UPDATE",
                f"WHEN ({self.table.changed}) AND EXISTS ({in_the_way})",
                [self._collect(self._same("hw_row", "OLD"))],
            ),
            "insert": ("AFTER INSERT", "", list(self._after_insert())),
            "update": ("AFTER UPDATE", "", list(self._after_update())),
            "delete": ("AFTER DELETE", "", list(self._after_delete())),
        }
        return {
            self.name(kind): f"CREATE TRIGGER {quote(self.name(kind))} {event} ON {quote(self.table.name)} {when} "
            f"BEGIN {' '.join(f'{one};' for one in statements)} END"
            for kind, (event, when, statements) in bodies.items()
        }

    def _row(self, source: str) -> str:
        return ", ".join(f"{source}.{quote(name)}" for name in self.table.names)

    def _columns(self, first: int) -> str:
        return ", ".join(f"c{first + place}" for place in range(len(self.table.columns)))

    def _pending_row(self) -> str:
        return ", ".join(f"c{place}" for place in range(len(self.table.columns)))

    def _same(self, source: str, other: str) -> str:
        """Returns the condition that two rows have one key. The left side decides how text is compared."""
        return " AND ".join(f"{source}.{quote(name)} IS {other}.{quote(name)}" for name in self.table.key)

    @property
    def _pending(self) -> str:
        return quote(self.name("pending"))

    def _is_pending(self, source: str) -> str:
        """Returns the condition that a pending row has the key of a row."""
        places = {name: self.table.names.index(name) for name in self.table.key}
        return " AND ".join(f"{source}.{quote(name)} IS {self._pending}.c{place}" for name, place in places.items())

    def _in_the_way(self, selected: str) -> str:
        conflicts = " OR ".join(f"({one})" for one in self.table.conflicts)
        return f"SELECT {selected} FROM {quote(self.table.name)} AS hw_row WHERE ({conflicts})"

    def _collect(self, but: str) -> str:
        """Returns the statement that copies the rows in the way of NEW, each once."""
        return (
            f"INSERT INTO {self._pending} {self._in_the_way(self._row('hw_row'))} AND NOT ({but}) "
            f"AND NOT EXISTS (SELECT 1 FROM {self._pending} WHERE {self._is_pending('hw_row')})"
        )

    def _is_gone(self) -> str:
        return f"NOT EXISTS (SELECT 1 FROM {quote(self.table.name)} AS hw_row WHERE {self._is_pending('hw_row')})"

    def _record(self, op: str, after: str, before: str, rows: str) -> str:
        """Returns the statement that records a change: its columns after and before, and where its rows come from."""
        width = len(self.table.columns)
        columns = ", ".join([*([self._columns(0)] if after else []), *([self._columns(width)] if before else [])])
        values = ", ".join(one for one in (after, before) if one)
        return (
            f"INSERT INTO {quote(self.prefix + 'changes')} (at, op, shape, {columns}) "
            f"SELECT {_NOW}, {op}, {self.shape}, {values}{rows}"
        )

    def _clear(self, condition: str) -> str:
        return f"DELETE FROM {self._pending} WHERE {condition}"

    def _after_insert(self) -> Iterator[str]:
        yield self._record(str(DELETE), "", self._pending_row(), f" FROM {self._pending} WHERE {self._is_gone()}")
        # A row that was replaced by one with its key was updated.
        op = f"CASE WHEN {self._pending}.rowid IS NULL THEN {INSERT} ELSE {UPDATE} END"
        joined = f" FROM (SELECT 1) LEFT JOIN {self._pending} ON {self._is_pending('NEW')}"
        yield self._record(op, self._row("NEW"), self._pending_row(), joined)
        yield self._clear(f"{self._is_pending('NEW')} OR {self._is_gone()}")

    def _after_update(self) -> Iterator[str]:
        yield self._clear(self._is_pending("OLD"))
        replaced = f"({self._is_pending('NEW')}) OR {self._is_gone()}"
        yield self._record(str(DELETE), "", self._pending_row(), f" FROM {self._pending} WHERE {replaced}")
        yield self._clear(replaced)
        yield self._record(str(UPDATE), self._row("NEW"), self._row("OLD"), "")

    def _after_delete(self) -> Iterator[str]:
        yield self._clear(self._is_pending("OLD"))
        yield self._record(str(DELETE), "", self._row("OLD"), "")
