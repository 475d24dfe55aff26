"""Foreign keys by which InnoDB changes rows of a captured table without a change in the binary log.

`ON DELETE CASCADE`, `ON DELETE SET NULL` and the same for updates are done by the storage engine; the log has only the
change of the parent row. A parent is therefore watched, captured or not: where it may have changed rows of a captured
table, that table is marked for a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow.compute as pc

from headwater.capture.mariadb.binlog.binlog_events import DELETE, UPDATE
from headwater.capture.mariadb.binlog.row_changes import RowsEvent, TableLayout, read_changes
from headwater.capture.mariadb.connection import Connection

__all__ = ["ForeignKey", "Parent", "find_parents", "read_foreign_keys"]

_ACTIVE: Final = ("CASCADE", "SET NULL", "SET DEFAULT")
_QUERY: Final = """SELECT r.CONSTRAINT_NAME, r.CONSTRAINT_SCHEMA, r.TABLE_NAME, k.REFERENCED_TABLE_SCHEMA,
        r.REFERENCED_TABLE_NAME, r.DELETE_RULE, r.UPDATE_RULE, GROUP_CONCAT(k.REFERENCED_COLUMN_NAME SEPARATOR '\\n')
    FROM information_schema.REFERENTIAL_CONSTRAINTS r JOIN information_schema.KEY_COLUMN_USAGE k
        ON k.CONSTRAINT_SCHEMA = r.CONSTRAINT_SCHEMA AND k.CONSTRAINT_NAME = r.CONSTRAINT_NAME
        AND k.TABLE_NAME = r.TABLE_NAME
    WHERE r.DELETE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
        OR r.UPDATE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
    GROUP BY 1, 2, 3, 4, 5, 6, 7"""


@dataclass(frozen=True)
class ForeignKey:
    """A foreign key that changes rows of `child` with those of `parent`."""

    name: str
    child: str
    parent: str
    on_delete: str
    on_update: str
    columns: tuple[str, ...]

    @property
    def rules(self) -> list[str]:
        """The rules that change rows, as SQL."""
        found = {"ON DELETE": self.on_delete, "ON UPDATE": self.on_update}
        return [f"{when} {rule}" for when, rule in found.items() if rule in _ACTIVE]


@dataclass
class Parent:
    """A table whose changes can change captured tables.

    Attributes:
        on_delete: Captured tables that a deleted row changes.
        on_update: Captured tables that a changed value of a column changes, by column.
        layout: How its rows are read; None until they are needed.
    """

    on_delete: set[str] = field(default_factory=set)
    on_update: dict[str, set[str]] = field(default_factory=dict)
    layout: TableLayout | None = None

    def touched(self, event: RowsEvent) -> set[str]:
        """Returns the captured tables that the engine may have changed along with these rows."""
        if event.operation == DELETE:
            return self.on_delete
        if event.operation != UPDATE or self.layout is None:
            return set()
        changes = read_changes(self.layout, [event])
        found: set[str] = set()
        for n, name in enumerate(self.layout.shape.schema.names):
            before, after = changes.before.field(n), changes.after.field(n)
            if pc.any(pc.not_equal(before, after)).as_py():
                found |= self.on_update[name]
        return found


def read_foreign_keys(connection: Connection) -> list[ForeignKey]:
    """Returns the foreign keys of all databases that change rows."""
    return [
        ForeignKey(name, f"{schema}.{table}", f"{other}.{parent}", on_delete, on_update, tuple(columns.split("\n")))
        for name, schema, table, other, parent, on_delete, on_update, columns in connection.query(_QUERY)
    ]


def find_parents(keys: Iterable[ForeignKey], captured: set[str]) -> dict[str, Parent]:
    """Returns the tables to watch; a chain of foreign keys may lead from one to a captured table.

    Example:
        >>> keys = [ForeignKey("f", "shop.lines", "shop.orders", "CASCADE", "RESTRICT", ("id",)),
        ...         ForeignKey("g", "shop.orders", "shop.customers", "CASCADE", "RESTRICT", ("id",))]
        >>> {name: one.on_delete for name, one in find_parents(keys, {"shop.lines"}).items()}
        {'shop.orders': {'shop.lines'}, 'shop.customers': {'shop.lines'}}
    """
    keys = list(keys)
    reach = _captured_behind(keys, captured)
    parents: dict[str, Parent] = {}
    for key in keys:
        changed = reach.get(key.child)
        if not changed:
            continue
        parent = parents.setdefault(key.parent, Parent())
        if key.on_delete in _ACTIVE:
            parent.on_delete |= changed
        for column in key.columns if key.on_update in _ACTIVE else ():
            parent.on_update.setdefault(column, set()).update(changed)
    return parents


def _captured_behind(keys: list[ForeignKey], captured: set[str]) -> dict[str, set[str]]:
    """Returns for each table the captured tables that may change when its rows do."""
    reach = {name: {name} for name in captured}
    while True:
        before = sum(map(len, reach.values()))
        for key in keys:
            reach.setdefault(key.parent, set()).update(reach.get(key.child, set()))
        if sum(map(len, reach.values())) == before:
            return reach
