"""Row events of many transactions, gathered until they are worth a batch, and made into batches of changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.capture.mariadb.binlog.binlog_events import INSERT
from headwater.capture.mariadb.binlog.column_readers import fixed_array
from headwater.capture.mariadb.binlog.row_changes import BadRow, RowChanges, RowsEvent, TableLayout, read_changes
from headwater.capture.mariadb.cascades import Parent
from headwater.capture.mariadb.resume_point import Place
from headwater.capture.source import ChangeBatch, TableShape, change_columns
from headwater.events.change import OPS
from headwater.events.values import flags_column, times_column

__all__ = ["Gathered", "Gathering", "TableEvents", "Transaction", "truncate_batch"]

_FIRST_GUESS: Final = 50  # bytes of a row, until some are decoded


@dataclass(frozen=True)
class Transaction:
    """A transaction: where it was committed, its id, and its time in microseconds since 1970."""

    commit: int
    id: int
    at: int


@dataclass
class TableEvents:
    """A captured table as its events lie in the log.

    Attributes:
        table: Its name.
        layout: How its rows are read.
        events: The gathered events.
        numbers: The number of each among all gathered events.
        skip: How many of them are delivered already, and only counted.
        row_bytes: The mean size of its rows.
        parent: What it is to other captured tables.
    """

    table: str
    layout: TableLayout
    events: list[RowsEvent] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    skip: int = 0
    row_bytes: float = _FIRST_GUESS
    parent: Parent | None = None

    def clear(self) -> None:
        """Forget the gathered events."""
        self.events, self.numbers, self.skip = [], [], 0


@dataclass(frozen=True)
class Gathered:
    """The changes of one table, out of one gathering.

    Attributes:
        batch: The changes; None if none is left.
        bad: The changes that cannot be delivered: each with what is known of it.
        at: The time of the last transaction.
        incomplete: Whether inserted rows came without some of their columns.
    """

    table: TableEvents
    batch: ChangeBatch | None
    bad: list[dict[str, Any]]
    at: int
    incomplete: bool = False


class Gathering:
    """Events of captured tables since the last batch.

    Attributes:
        transactions: The transactions, in commit order; the last one may go on.
        index: The index of the first change in the first transaction.
        end: Where the last gathered event ends.
        bytes: The size of the rows.
        rows: About how many rows there are.
    """

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self._members: list[int] = []  # for each event the transaction it belongs to
        self._tables: dict[int, TableEvents] = {}
        self.index = 0
        self.end: Place = (0, 0)
        self.bytes = 0
        self.rows = 0.0

    def __len__(self) -> int:
        return len(self._members)

    def has(self, table: str) -> bool:
        """Whether events of a table are gathered."""
        return any(one.table == table and one.events for one in self._tables.values())

    def begin(self, transaction: Transaction, index: int = 0) -> None:
        """Note a transaction; the events that are added next belong to it, and count from `index`."""
        if self.transactions and (not self._members or self._members[-1] != len(self.transactions) - 1):
            self.transactions.pop()  # the one before had no captured change
        self.transactions.append(transaction)
        if len(self.transactions) == 1:
            self.index = index

    def add(self, table: TableEvents, event: RowsEvent, end: Place, *, skip: bool) -> None:
        """Add an event; `skip` says that its changes are delivered already."""
        if not table.events:
            self._tables[id(table)] = table
        table.numbers.append(len(self._members))
        table.events.append(event)
        table.skip += skip
        self._members.append(len(self.transactions) - 1)
        self.end = end
        self.bytes += len(event.rows)
        self.rows += 1 if len(event.rows) < table.row_bytes else len(event.rows) / table.row_bytes

    def last_has_events(self) -> bool:
        """Whether the last transaction has events here."""
        return bool(self._members) and self._members[-1] == len(self.transactions) - 1

    def cut(self, count: int) -> None:
        """Forget events of the last transaction, but not the first `count` of all."""
        last = len(self.transactions) - 1
        count = max(count, sum(1 for one in self._members if one != last))
        for table in self._tables.values():
            keep = sum(number < count for number in table.numbers)
            table.numbers, table.events = table.numbers[:keep], table.events[:keep]
            table.skip = min(table.skip, keep)
        del self._members[count:]

    def finish(self, *, complete: bool) -> tuple[list[Gathered], int]:
        """Returns the changes of each table, and the index of the next change of the last transaction.

        Args:
            complete: Whether the last transaction is complete.
        """
        tables = [table for table in self._tables.values() if table.events]
        read = [read_changes(table.layout, table.events) for table in tables]
        counts = np.zeros(len(self._members), np.int64)
        for table, changes in zip(tables, read, strict=True):
            of_event = np.bincount(changes.event, minlength=len(table.events))
            counts[table.numbers] = of_event
            table.row_bytes = sum(len(one.rows) for one in table.events) / max(1, len(changes.event))
        owners = np.array(self._members, np.int64)
        begins = np.cumsum(counts) - counts
        first = np.searchsorted(owners, np.arange(len(self.transactions)))
        begins -= begins[np.minimum(first, len(begins) - 1)][owners] if len(begins) else 0
        begins[owners == 0] += self.index
        lasts = np.append(first[1:], len(owners)) - 1
        final = np.zeros(len(owners), bool)
        final[lasts[: None if complete else -1]] = True
        gathered = [
            self._assemble(table, changes, owners, begins, final) for table, changes in zip(tables, read, strict=True)
        ]
        for table in tables:
            table.clear()
        return gathered, int(begins[-1] + counts[-1])

    def _assemble(
        self,
        table: TableEvents,
        changes: RowChanges,
        owners: npt.NDArray[np.int64],
        begins: npt.NDArray[np.int64],
        final: npt.NDArray[np.bool_],
    ) -> Gathered:
        number = np.array(table.numbers, np.int64)[changes.event]
        owner = owners[number]
        count = len(number)
        new_event = np.append(True, number[1:] != number[:-1])
        starts = new_event.nonzero()[0]
        in_event = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
        is_last = final[number] & np.append(new_event[1:], True)
        known = self.transactions
        commits = np.array([one.commit for one in known], np.uint64)
        ids = np.array([one.id for one in known], np.uint64)
        times = np.array([one.at for one in known], np.int64)
        columns = [
            fixed_array(pa.int8(), changes.operation, None),
            fixed_array(pa.uint64(), commits[owner], None),
            fixed_array(pa.uint32(), (begins[number] + in_event).astype(np.uint32), None),
            fixed_array(pa.uint64(), ids[owner], None),
            times_column(times[owner]),
            flags_column(is_last),
            fixed_array(pa.int8(), changes.before_holds, None),
            pa.nulls(count, pa.list_(pa.string())) if changes.unchanged is None else changes.unchanged,
            changes.before,
            changes.after,
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=change_columns(table.layout.shape.schema))
        keep = changes.event >= table.skip
        bad = _describe_bad(batch, changes.bad, keep, table.layout.shape)
        keep[[one.row for one in changes.bad]] = False
        if not keep.all():
            batch = batch.filter(flags_column(keep))
        delivered = ChangeBatch(table.layout.shape, batch) if batch.num_rows else None
        incomplete = _has_incomplete_insert(changes)
        return Gathered(table, delivered, bad, int(times[owner[-1]]), incomplete)


def _has_incomplete_insert(changes: RowChanges) -> bool:
    if changes.unchanged is None:
        return False
    inserts = flags_column(changes.operation == INSERT)
    return bool(pc.any(pc.and_(inserts, pc.is_valid(changes.unchanged))).as_py())


def _describe_bad(
    batch: pa.RecordBatch, bad: list[BadRow], keep: npt.NDArray[np.bool_], shape: TableShape
) -> list[dict[str, Any]]:
    """Returns what is known of changes that cannot be delivered."""
    by_row: dict[int, dict[str, str]] = {}
    for one in bad:
        if keep[one.row]:
            by_row.setdefault(one.row, {})[one.column] = one.text
    found = []
    for row, texts in sorted(by_row.items()):
        change = batch.slice(row, 1).to_pylist()[0]
        values = change["after"] or change["before"]
        found.append(
            {
                "op": OPS[change["op"]],
                "key": {name: values[name] for name in shape.key},
                "raw": texts,
                "row": values | texts,
                "commit": change["commit"],
                "index": change["index"],
            }
        )
    return found


def truncate_batch(shape: TableShape, transaction: Transaction) -> ChangeBatch:
    """Returns the change that deletes all rows of a table."""
    row = {
        "op": OPS.index("truncate"),
        "commit": transaction.commit,
        "index": 0,
        "transaction": transaction.id,
        "at": transaction.at,
        "last": True,
        "before_holds": 0,
    }
    schema = change_columns(shape.schema)
    arrays = [pa.array([row.get(one.name)], one.type) for one in schema]
    return ChangeBatch(shape, pa.RecordBatch.from_arrays(arrays, schema=schema))
