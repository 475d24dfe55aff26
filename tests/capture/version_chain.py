"""The version-chain test: the measure of every source of changes.

Writers insert, update, delete, change keys, roll back and hold long transactions; every change of a row raises its
`ver` by one, and every insert gives it a new `life`. A `Replica` applies the records of a source by their definition
and fails at the first gap or repeat. At the end it must equal the table. `follow` restarts the source at random
records.

    CREATE TABLE chain (id INT PRIMARY KEY, life BIGINT, ver INT, note VARCHAR(200), big TEXT)
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headwater.capture.source import BEFORE_KINDS, Record, RecordKind, Source, SourceTable
from headwater.events.change import OPS

__all__ = ["COLUMNS", "ChainError", "Replica", "Writers", "follow", "read_all"]

COLUMNS = ("id", "life", "ver", "note", "big")
Row = dict[str, Any]
Key = tuple[Any, ...]


class ChainError(AssertionError):
    """The records do not make a copy of the table, or a version is missing or repeated."""


class _Absent:
    """The value of a column that was not sent for a row that is not known yet."""

    def __repr__(self) -> str:
        return "<absent>"


ABSENT = _Absent()


class Replica:
    """Tables that follow from records, as their definition says.

    Args:
        chained: The tables whose rows have `life` and `ver`.
    """

    def __init__(self, chained: Iterable[str] = ()) -> None:
        self.rows: dict[str, dict[Key, Row]] = {}
        self.records: list[Record] = []
        self.epoch = -1
        self._epochs: dict[str, dict[Key, tuple[int, int]]] = {}
        self._own_epochs: dict[str, int] = {}
        self._chained = set(chained)
        self._ended: set[tuple[str, Any]] = set()  # lives that were deleted
        self._seen: set[tuple[str, int, int]] = set()
        self.loaded: set[str] = set()
        self.changes = 0

    def apply(self, record: Record) -> None:
        """Apply one record."""
        self.records.append(record)
        if record.kind is RecordKind.EPOCH and record.table:
            self._own_epochs[record.table] = self._own_epochs.get(record.table, 0) + 1
            self.loaded.discard(record.table)
        elif record.kind is RecordKind.EPOCH:
            self.epoch += 1
            self.loaded.clear()
        elif record.kind is RecordKind.SNAPSHOT_DONE:
            self._finish(record.table)
        elif record.kind in (RecordKind.CHANGES, RecordKind.SNAPSHOT):
            assert record.batch is not None
            for change in record.batch.changes.to_pylist():
                self._change(record.table, record.batch.shape.key, change)

    def _change(self, table: str, key: tuple[str, ...], change: Row) -> None:
        rows = self.rows.setdefault(table, {})
        epochs = self._epochs.setdefault(table, {})
        op, before, after = OPS[change["op"]], change["before"], change["after"]
        if op != "read":
            self._note_place((table, change["commit"], change["index"]))
        if op == "truncate":
            for row in rows.values():
                self._end_life(table, row)
            rows.clear()
            return
        old_key = tuple(before[one] for one in key) if BEFORE_KINDS[change["before_holds"]] != "nothing" else None
        if op == "delete":
            self._delete(table, old_key)
            return
        new_key = tuple(after[one] for one in key)
        old = rows.pop(old_key, None) if old_key is not None else rows.get(new_key)
        row = dict(after)
        for name in change["unchanged"] or ():
            row[name] = ABSENT if old is None else old[name]
        if table in self._chained:
            self._check(table, op, old, row)
        rows[new_key] = row
        epochs[new_key] = self._epoch_of(table)

    def _note_place(self, place: tuple[str, int, int]) -> None:
        if place in self._seen:
            raise ChainError(f"{place} came twice")
        self._seen.add(place)
        self.changes += 1

    def _delete(self, table: str, key: Key | None) -> None:
        assert key is not None
        gone = self.rows[table].pop(key, None)
        if gone is not None:
            self._end_life(table, gone)
        elif table in self.loaded:
            raise ChainError(f"{table} {key}: deleted, but it was not there")

    def _check(self, table: str, op: str, old: Row | None, row: Row) -> None:
        place = f"{table} {row['id']}: {op} of version {row['ver']}"
        if (table, row["life"]) in self._ended:
            raise ChainError(f"{place} after its life {row['life']} ended")
        if op == "insert":
            if row["ver"] != 1 or old is not None:
                raise ChainError(f"{place}, before that {old}")
        elif op == "update":
            if old is None and table in self.loaded:
                raise ChainError(f"{place}, but the row was not there")
            if old is not None and (old["life"], old["ver"] + 1) != (row["life"], row["ver"]):
                raise ChainError(f"{place}, before that {old['ver']} of life {old['life']}")
        elif op == "read" and old is not None and (old["life"], old["ver"]) != (row["life"], row["ver"]):
            # The changes that a snapshot contains come before it, and rows with later changes are left out.
            raise ChainError(f"{place}, before that {old}")

    def _epoch_of(self, table: str) -> tuple[int, int]:
        return self.epoch, self._own_epochs.get(table, 0)

    def _end_life(self, table: str, row: Row) -> None:
        if table in self._chained:
            self._ended.add((table, row["life"]))

    def _finish(self, table: str) -> None:
        self.loaded.add(table)
        epochs = self._epochs.get(table, {})
        rows = self.rows.setdefault(table, {})
        for key in [one for one in rows if epochs[one] != self._epoch_of(table)]:
            self._end_life(table, rows.pop(key))
        for key, row in rows.items():
            if any(value is ABSENT for value in row.values()):
                raise ChainError(f"{table} {key}: a value never came: {row}")

    def expect(self, table: str, rows: Iterable[Row], key: tuple[str, ...] = ("id",)) -> None:
        """Check that the replica equals the table."""
        wanted = {tuple(row[one] for one in key): row for row in rows}
        found = self.rows.get(table, {})
        if found != wanted:
            missing = [one for one in wanted if one not in found][:5]
            extra = [one for one in found if one not in wanted][:5]
            other = [(found[one], wanted[one]) for one in wanted if one in found and found[one] != wanted[one]][:3]
            raise ChainError(f"{table}: missing {missing}, too many {extra}, different {other}")


class Writers:
    """Threads that change a table with the columns `COLUMNS`, until they are stopped.

    Args:
        connect: Opens a DB-API connection whose transactions begin by themselves (no autocommit).
        table: The table.
        threads: How many writers.
        keys: The keys are 1 to this number.
        seed: Of the random choices.
        placeholder: How a statement writes a parameter.
        pause: The longest pause between two transactions, in seconds.
        large: A text long enough to be stored apart from its row, where the database does so.
        retry: Errors after which a writer rolls back and goes on.
        savepoints: Whether to roll back to savepoints.
        key_changes: Whether to change keys.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str,
        *,
        retry: tuple[type[BaseException], ...],
        threads: int = 4,
        keys: int = 60,
        seed: int = 0,
        placeholder: str = "%s",
        pause: float = 0.002,
        large: int = 9_000,
        savepoints: bool = True,
        key_changes: bool = True,
    ) -> None:
        self._connect, self._table, self._retry = connect, table, retry
        self._keys, self._seed, self._mark, self._pause, self._large = keys, seed, placeholder, pause, large
        self._savepoints, self._key_changes = savepoints, key_changes
        self._stop = threading.Event()
        self._lives = itertools.count(1)
        self.errors: list[BaseException] = []
        self.commits = 0
        self._threads = [threading.Thread(target=self._write, args=(one,), daemon=True) for one in range(threads)]

    def __enter__(self) -> Writers:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the writers; raises what one of them failed with."""
        self._stop.set()
        for one in self._threads:
            one.join()
        if self.errors:
            raise self.errors[0]

    def _write(self, number: int) -> None:
        chance = random.Random(self._seed * 1000 + number)
        try:
            connection = self._connect()
            try:
                while not self._stop.is_set():
                    self._transaction(connection, chance)
                    time.sleep(chance.random() * self._pause)
            finally:
                connection.close()
        except BaseException as error:  # the test reports it
            self.errors.append(error)

    def _transaction(self, connection: Any, chance: random.Random) -> None:
        cursor = connection.cursor()
        try:
            for _ in range(chance.choice((1, 1, 2, 3, 8))):
                if self._savepoints and chance.random() < 0.1:
                    self._undone(cursor, chance)
                self._statement(cursor, chance)
            if chance.random() < 0.03:
                self._stop.wait(chance.random() * 0.5)
            if chance.random() < 0.12:
                connection.rollback()
            else:
                connection.commit()
                self.commits += 1
        except self._retry:
            connection.rollback()
        finally:
            with contextlib.suppress(Exception):
                cursor.close()

    def _undone(self, cursor: Any, chance: random.Random) -> None:
        cursor.execute("SAVEPOINT undone")
        self._statement(cursor, chance)
        cursor.execute("ROLLBACK TO SAVEPOINT undone")

    def _statement(self, cursor: Any, chance: random.Random) -> None:
        key, mark, table = chance.randint(1, self._keys), self._mark, self._table
        kind = chance.random()
        note = chance.choice(("", "plain", "zażółć 🐘", 'quote " and \\ and \n', None))
        if kind < 0.3:
            big = chance.choice((None, "", self._text(chance)))
            values = (key, next(self._lives) * 100 + chance.randrange(100), note, big)
            cursor.execute(
                f"INSERT INTO {table} (id, life, ver, note, big) VALUES ({mark}, {mark}, 1, {mark}, {mark})", values
            )
        elif kind < 0.65:
            cursor.execute(f"UPDATE {table} SET ver = ver + 1, note = {mark} WHERE id = {mark}", (note, key))
        elif kind < 0.72:
            cursor.execute(
                f"UPDATE {table} SET ver = ver + 1, big = {mark} WHERE id = {mark}", (self._text(chance), key)
            )
        elif kind < 0.78 and self._key_changes:
            other = chance.randint(1, self._keys)
            if other != key:
                cursor.execute(f"UPDATE {table} SET ver = ver + 1, id = {mark} WHERE id = {mark}", (other, key))
        elif kind < 0.8:
            low = chance.randint(1, self._keys)
            cursor.execute(f"UPDATE {table} SET ver = ver + 1 WHERE id BETWEEN {mark} AND {mark}", (low, low + 20))
        else:
            cursor.execute(f"DELETE FROM {table} WHERE id = {mark}", (key,))

    def _text(self, chance: random.Random) -> str:
        # Not compressible, so that the database stores it apart.
        return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789é", k=self._large))


def follow(
    make: Callable[[], Source],
    tables: Sequence[SourceTable],
    replica: Replica,
    *,
    until: Callable[[Replica], bool],
    seed: int = 0,
    restart: float = 0.0,
    resume: dict[str, Any] | None = None,
    timeout: float = 120.0,
) -> tuple[dict[str, Any] | None, int]:
    """Follow a source until `until`, with restarts; returns the last resume point and how often it restarted.

    A restart loses the records behind a random one of the last poll, which is what a crash between two writes does.

    Args:
        make: Makes the source.
        tables: The captured tables.
        replica: Takes the records.
        until: Whether to stop, asked after each poll.
        seed: Of the random choices.
        restart: How likely a restart is after a poll with records.
        resume: Where to begin.
        timeout: Seconds after which it fails.
    """
    chance, restarts = random.Random(seed), 0
    end = time.monotonic() + timeout
    source = make()
    source.open(resume, tables)
    try:
        while not until(replica):
            if time.monotonic() > end:
                raise ChainError(f"not done in {timeout} seconds: {source.progress()}")
            records = source.poll(0.05)
            broken = bool(records) and chance.random() < restart
            kept = records[: chance.randint(0, len(records))] if broken else records
            for record in kept:
                replica.apply(record)
                resume = record.resume
            if broken:
                source.close()
                restarts += 1
                source = make()
                source.open(resume, tables)
            elif records and chance.random() < 0.7:
                source.confirm(resume or {})
    finally:
        source.close()
    return resume, restarts


def read_all(source: Source, replica: Replica, *, timeout: float = 60.0) -> None:
    """Apply records until everything that is committed now is delivered; confirm the last."""
    end = time.monotonic() + timeout
    source.reached_end()
    resume = None
    while True:
        for record in source.poll(0.05):
            replica.apply(record)
            resume = record.resume
        if source.reached_end():
            break
        if time.monotonic() > end:
            raise ChainError(f"not done in {timeout} seconds: {source.progress()}")
    if resume:
        source.confirm(resume)


def rows_of(connection: Any, table: str, columns: Sequence[str] = COLUMNS) -> Iterator[Row]:
    """Yields the rows of a table, read with SQL."""
    cursor = connection.cursor()
    cursor.execute(f"SELECT {', '.join(columns)} FROM {table}")
    for values in cursor.fetchall():
        yield dict(zip(columns, values, strict=True))
