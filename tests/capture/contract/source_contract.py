"""What every source of changes must hold: one suite, which each implementation of `Source` inherits.

A subclass gives the fixture `database`. Where a source cannot do a case, its `gaps` say why; the test is then left out
of it. `docs/support.md` has the table of cases and sources, generated from this file.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from headwater.capture.capture_runner import CaptureRunner
from headwater.capture.journal import journal_topic, read_journal
from headwater.capture.source import Record, RecordKind, Source, SourceTable
from headwater.events.change import OPS
from headwater.log import EventLog
from headwater.memory import process_memory
from tests.capture.contract.databases import CapturedDatabase, make_source
from tests.capture.scripted_source import read_table
from tests.capture.version_chain import Replica, Writers, follow, read_all
from tests.faults.counts import injected, times

__all__ = ["Capture", "SourceContract"]

CHAIN = "CREATE TABLE {name} (id int PRIMARY KEY, life bigint, ver int, note {text}, big {large})"
ITEMS = "CREATE TABLE {name} (id int PRIMARY KEY, name {text}, amount int, more {large})"
MAX_CHANGES = 25_000  # of one record
ROOT = Path(__file__).parents[3]


class ShapedReplica(Replica):
    """A replica whose rows have the columns of the last shape of their table."""

    def __init__(self, *chained: str) -> None:
        super().__init__(chained)
        self.columns: dict[str, list[str]] = {}

    def apply(self, record: Record) -> None:
        """Apply one record."""
        if record.shape is not None:
            names = self.columns[record.table] = record.shape.schema.names
            rows = self.rows.get(record.table, {})
            self.rows[record.table] = {key: {name: row.get(name) for name in names} for key, row in rows.items()}
        super().apply(record)


class Capture:
    """An open source and the tables that its records make."""

    def __init__(self, database: CapturedDatabase, *names: str, chained: bool = False) -> None:
        self.database, self.names = database, list(names)
        self.replica = ShapedReplica(*(map(database.full_name, names) if chained else ()))
        self.source = database.source()
        self.source.open(None, self.tables)

    @property
    def tables(self) -> list[SourceTable]:
        """The captured tables."""
        return [self.database.table(one) for one in self.names]

    @property
    def resume(self) -> Any:
        """Where the last record says to continue, as the journal keeps it."""
        return json.loads(json.dumps(self.replica.records[-1].resume))

    def read(self) -> list[Record]:
        """Returns the new records up to the present end of the database."""
        known = len(self.replica.records)
        read_all(self.source, self.replica)
        return self.replica.records[known:]

    def changes(self) -> list[dict[str, Any]]:
        """Returns the new changes, in the order of their transactions."""
        found = [one.batch for one in self.read() if one.kind is RecordKind.CHANGES]
        changes = [change for batch in found if batch for change in batch.changes.to_pylist()]
        return sorted(changes, key=lambda one: (one["commit"], one["index"]))

    def poll(self) -> list[Record]:
        """Apply the records of one poll, and return them."""
        records = self.source.poll(0.05)
        for one in records:
            self.replica.apply(one)
        return records

    def read_until(self, done: Callable[[Record], bool]) -> None:
        """Apply records until one of them is what was waited for."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if any(done(one) for one in self.poll()):
                return
        raise AssertionError("the record never came")

    def open_again(self, source: Source | None = None) -> None:
        """Close the source, and open one at the last record."""
        self.source.close()
        self.source = source or self.database.source()
        self.source.open(self.resume, self.tables)

    def expect_equal(self, *names: str, key: tuple[str, ...] = ("id",)) -> None:
        """Check tables against the database, read with SQL."""
        for one in names or self.names:
            self.replica.expect(self.database.full_name(one), self.database.rows(one), key)

    def load_if_needed(self) -> None:
        """Load the tables whose rows changed without events, as a user does."""
        marked = {one.table for one in self.replica.records if one.kind is RecordKind.BACKFILL}
        for one in marked:
            self.source.request_snapshot(one)
        self.read()


@contextmanager
def capture(database: CapturedDatabase, *names: str, chained: bool = False) -> Iterator[Capture]:
    made = Capture(database, *names, chained=chained)
    try:
        yield made
    finally:
        made.source.close()


def create(database: CapturedDatabase, definition: str, *names: str) -> None:
    for one in names:
        text = definition.format(name=database.quote(one), text=database.text, large=database.large)
        database.run(text)


def fill_items(database: CapturedDatabase, count: int, name: str = "items") -> None:
    database.run(f"INSERT INTO {name} SELECT n, 'first', n, NULL {database.series(count)}")


def writers(database: CapturedDatabase, table: str = "chain", **options: Any) -> Writers:
    settings = {"retry": database.retry, "placeholder": database.placeholder, "large": 3_000, "keys": 200, **options}
    return Writers(database.connect, table, **settings)


class SourceContract:
    """The cases. `gaps` names those that the source cannot do, with the reason."""

    gaps: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in cls.gaps:
            assert hasattr(SourceContract, name), name
            setattr(cls, name, None)

    # -- values

    def test_values_of_snapshot_and_stream_are_equal(self, database: CapturedDatabase) -> None:
        """Each value of each type; those of the database are in the tests of the source."""
        values = [(f"c{place}", kind, given) for place, (kind, given) in enumerate(database.types.items())]
        columns = ", ".join(f"{name} {kind} NULL" for name, kind, _ in values)
        database.run(f"CREATE TABLE items (id int PRIMARY KEY, {columns})")
        rows = max(len(given) for _, _, given in values)
        inserts = [
            f"INSERT INTO items VALUES (:id, {', '.join(given[row % len(given)] for _, _, given in values)})"
            for row in range(rows)
        ] + ["INSERT INTO items (id) VALUES (:id)"]
        database.run(*(one.replace(":id", str(number)) for number, one in enumerate(inserts)))
        with capture(database, "items") as found:
            found.read()
            database.run(*(one.replace(":id", str(100 + number)) for number, one in enumerate(inserts)))
            found.read()
            table = found.replica.rows[database.full_name("items")]
            assert RecordKind.QUARANTINE not in {one.kind for one in found.replica.records}
            for number in range(len(inserts)):
                loaded, streamed = table[(number,)], table[(100 + number,)]
                differing = {one for one in loaded if repr(streamed[one]) != repr(loaded[one])}  # NaN is not NaN
                assert {one: (loaded[one], streamed[one]) for one in differing - {"id"}} == {}

    def test_large_value_kept_replaced_and_emptied(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items")
        large = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=60_000))
        database.run(f"INSERT INTO items VALUES (1, 'a', 1, '{large}'), (2, 'b', 2, '{large}'), (3, 'c', 3, '{large}')")
        with capture(database, "items") as found:
            found.read()
            database.run(
                "UPDATE items SET amount = 7 WHERE id = 1",
                "UPDATE items SET more = NULL WHERE id = 2",
                f"UPDATE items SET more = '{large}x' WHERE id = 3",
                "DELETE FROM items WHERE id = 2",
            )
            found.read()
            found.expect_equal()

    def test_names_may_be_anything(self, database: CapturedDatabase) -> None:
        name, key, column = database.odd_name, "order", 'a"b`c, %s'
        table = database.quote(name)
        database.run(
            f"CREATE TABLE {table} ({database.quote(key)} int PRIMARY KEY, {database.quote(column)} {database.text})"
        )
        percent = "%%" if database.placeholder == "%s" else "%"
        insert = f"INSERT INTO {table} VALUES ({{}}, 'x {percent}')"
        database.run(insert.format(1), insert.format(2))
        with capture(database, name) as found:
            found.read()
            database.run(f"DELETE FROM {table} WHERE {database.quote(key)} = 1", insert.format(3))
            found.read()
            found.expect_equal(name, key=(key,))

    def test_chosen_columns_and_another_key(self, database: CapturedDatabase) -> None:
        database.run(f"CREATE TABLE people (id int PRIMARY KEY, email {database.text} NOT NULL UNIQUE, secret int)")
        database.run("INSERT INTO people VALUES (1, 'a@x', 1), (2, 'b@x', 2)")
        if database.own_key:
            database.run(database.own_key.format("people"))
        source, replica = database.source(), ShapedReplica()
        source.open(None, [database.table("people", key=("email",), columns=("email", "id"))])
        read_all(source, replica)
        database.run("UPDATE people SET email = 'c@x', secret = 5 WHERE id = 1", "DELETE FROM people WHERE id = 2")
        read_all(source, replica)
        source.close()
        assert replica.rows[database.full_name("people")] == {("c@x",): {"id": 1, "email": "c@x"}}

    # -- shapes

    def follow_ddl(self, database: CapturedDatabase, *ddl: str) -> list[RecordKind]:
        """Change a table between two transactions; returns the kinds of the records that follow."""
        create(database, ITEMS, "items")
        fill_items(database, 3)
        with capture(database, "items") as found:
            found.read()
            database.run("UPDATE items SET name = 'before' WHERE id = 1", *ddl)
            database.run("INSERT INTO items (id) VALUES (10)", "DELETE FROM items WHERE id = 3")
            kinds = [one.kind for one in found.read()]
            found.load_if_needed()
            assert list(found.replica.columns[database.full_name("items")]) == list(database.rows("items")[0])
            found.expect_equal()
            return kinds

    def test_added_column(self, database: CapturedDatabase) -> None:
        self.follow_ddl(database, "ALTER TABLE items ADD COLUMN stock int", "UPDATE items SET stock = 5 WHERE id = 2")

    def test_added_column_with_a_default_needs_a_snapshot(self, database: CapturedDatabase) -> None:
        kinds = self.follow_ddl(database, "ALTER TABLE items ADD COLUMN stock int NOT NULL DEFAULT 7")
        assert RecordKind.BACKFILL in kinds

    def test_dropped_column(self, database: CapturedDatabase) -> None:
        self.follow_ddl(database, "ALTER TABLE items DROP COLUMN name")

    def test_renamed_column(self, database: CapturedDatabase) -> None:
        self.follow_ddl(database, "ALTER TABLE items RENAME COLUMN amount TO quantity")

    def test_column_of_another_type(self, database: CapturedDatabase) -> None:
        self.follow_ddl(database, database.retype.format("items"))

    def test_table_added_later_joins_the_stream(self, database: CapturedDatabase) -> None:
        create(database, CHAIN, "chain", "other")
        with writers(database, threads=2, seed=4) as first, writers(database, "other", threads=2, seed=5) as second:
            with capture(database, "chain", chained=True) as found:
                replica = found.replica
            both = [database.table("chain"), database.table("other")]
            resume, _ = follow(database.source, both[:1], replica, until=lambda one: one.changes > 100)
            resume, _ = follow(
                database.source, both, replica, until=lambda one: one.changes > 400, restart=0.2, resume=resume
            )
            first.stop()
            second.stop()
        self.finish(database, replica, resume, "chain", "other")

    def test_dropped_table_stops_alone_and_comes_back(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items", "other")
        fill_items(database, 3)
        with capture(database, "items", "other") as found:
            found.read()
            database.run("DROP TABLE items", "INSERT INTO other (id) VALUES (1)")
            name = database.full_name("items")
            reported = lambda one: one.kind is RecordKind.QUARANTINE and one.table == name  # noqa: E731
            if not any(reported(one) for one in found.read()):
                found.open_again()  # a table without changes is looked at when the source is opened
                assert any(reported(one) for one in found.read())
            found.expect_equal("other")
            create(database, ITEMS, "items")
            fill_items(database, 2)
            found.read()
            found.source.request_snapshot(name)
            database.run("INSERT INTO items (id) VALUES (7)", "INSERT INTO other (id) VALUES (2)")
            found.read()
            found.expect_equal()

    # -- truncates and keys

    def truncate(self, database: CapturedDatabase) -> str:
        return "DELETE FROM items" if database.kind == "SQLite" else "TRUNCATE TABLE items"

    def test_truncate_clears_the_table(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items")
        fill_items(database, 3)
        with capture(database, "items") as found:
            found.read()
            insert = "INSERT INTO items (id) VALUES ({})"
            database.run(insert.format(4), self.truncate(database), insert.format(5))
            ops = [OPS[one["op"]] for one in found.changes()]
            assert ops == (
                ["insert", *["delete"] * 4, "insert"] if database.kind == "SQLite" else ["insert", "truncate", "insert"]
            )
            found.expect_equal()

    def test_truncate_while_the_table_loads(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items")
        fill_items(database, 500)
        with capture(database, "items") as found:
            found.read_until(lambda one: one.kind is RecordKind.SNAPSHOT)
            statements = (self.truncate(database), "INSERT INTO items (id) VALUES (1), (450), (900)")
            with ThreadPoolExecutor(1) as pool:  # DDL may wait for the lock of a snapshot
                done = pool.submit(database.run, *statements)
                while not done.done():
                    found.poll()
                done.result()
            found.read()
            found.expect_equal()

    def test_keys_that_change_and_swap(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items")
        fill_items(database, 2)
        with capture(database, "items") as found:
            found.read()
            database.transaction(
                "UPDATE items SET id = 9 WHERE id = 1",
                "UPDATE items SET id = 1 WHERE id = 2",
                "UPDATE items SET id = 2 WHERE id = 9",
                "UPDATE items SET id = 12 WHERE id = 2",
            )
            moves = [(one["before"]["id"], one["after"]["id"]) for one in found.changes()]
            assert moves == [(1, 9), (2, 1), (9, 2), (2, 12)]
            found.expect_equal()

    def test_keys_change_while_the_table_loads(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items")
        fill_items(database, 500)
        with capture(database, "items") as found:
            found.read_until(lambda one: one.kind is RecordKind.SNAPSHOT)
            database.run(
                "UPDATE items SET id = 1000 WHERE id = 1",  # from a row that is loaded behind the end, and so on
                "UPDATE items SET id = 1 WHERE id = 499",
                "UPDATE items SET id = id + 500 WHERE id BETWEEN 2 AND 20",
                "UPDATE items SET id = 3 WHERE id = 498",
            )
            found.read()
            found.expect_equal()

    # -- transactions

    def test_rolled_back_changes_are_never_seen(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items")
        insert = "INSERT INTO items (id) VALUES ({})"
        with capture(database, "items") as found:
            found.read()
            database.transaction(insert.format(1), commit=False)
            database.transaction(
                insert.format(2), "SAVEPOINT s", insert.format(3), "ROLLBACK TO SAVEPOINT s", insert.format(4)
            )
            changes = found.changes()
        assert [(one["after"]["id"], one["last"]) for one in changes] == [(2, False), (4, True)]

    def test_transaction_over_two_tables_is_marked(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items", "other")
        insert = "INSERT INTO {} (id) VALUES ({})"
        with capture(database, "items", "other") as found:
            found.read()
            database.transaction(insert.format("items", 1), insert.format("other", 1), insert.format("items", 2))
            records = [one for one in found.read() if one.kind is RecordKind.CHANGES]
        assert [one.open for one in records] == [*[True] * (len(records) - 1), False]
        changes = sorted(
            (change["index"], change["after"]["id"], change["last"], change["commit"], change["transaction"])
            for one in records
            if one.batch
            for change in one.batch.changes.to_pylist()
        )
        assert [one[:3] for one in changes] == [(0, 1, False), (1, 1, False), (2, 2, True)]
        assert len({one[3:] for one in changes}) == 1

    def test_large_transaction_comes_in_parts_with_flat_memory(self, database: CapturedDatabase) -> None:
        """`make faults` has a million changes in it. A restart in the middle repeats and loses nothing."""
        create(database, ITEMS, "items")
        rows = times(100_000, 1_000_000)
        with capture(database, "items") as found:
            found.read()
            database.run(f"INSERT INTO items SELECT n, 'the name of an item', n, 'more of it' {database.series(rows)}")
            before, most, count, middle = process_memory(os.getpid()), 0, 0, False
            found.source.reached_end()
            while not found.source.reached_end():
                for record in found.source.poll(0.1):
                    found.replica.records.append(record)
                    if record.batch is None:
                        continue
                    changes = record.batch.changes
                    assert changes.num_rows <= MAX_CHANGES
                    assert changes["index"].to_pylist() == list(range(count, count + changes.num_rows))
                    count += changes.num_rows
                    lasts = changes["last"].to_pylist()
                    assert (any(lasts), lasts[-1], record.open) == (count == rows, count == rows, count < rows)
                    most = max(most, process_memory(os.getpid()))
                del found.replica.records[:-1]
                if count > rows // 2 and not middle:
                    middle = True
                    found.open_again()
            assert count == rows
            assert most - before < 150 << 20

    # -- handover and resume

    def finish(self, database: CapturedDatabase, replica: Replica, resume: Any, *names: str) -> None:
        """Read to the end, and compare with the tables."""
        source = database.source()
        source.open(resume, [database.table(one) for one in names])
        read_all(source, replica)
        source.close()
        for one in names:
            replica.expect(database.full_name(one), database.rows(one))

    def test_versions_run_without_gap_through_restarts(self, database: CapturedDatabase) -> None:
        """Six writers on two tables, from the first row of the snapshot on; restarts at random records."""
        create(database, CHAIN, "chain", "other")
        for one in ("chain", "other"):
            database.run(f"INSERT INTO {one} SELECT n, -n, 1, 'first', NULL {database.series(300)}")
        names, wanted = ("chain", "other"), times(1_200, 40_000)
        replica = ShapedReplica(*map(database.full_name, names))
        with writers(database, threads=3, seed=1) as first, writers(database, "other", threads=3, seed=2) as second:
            resume, restarts = follow(
                database.source,
                [database.table(one) for one in names],
                replica,
                until=lambda one: one.changes > wanted and len(one.loaded) == 2,
                restart=0.2,
                seed=5,
                timeout=times(120, 900),
            )
            first.stop()
            second.stop()
        self.finish(database, replica, resume, *names)
        injected(restarts)
        assert restarts > 5

    def test_interrupted_load_of_an_idle_table_goes_on(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items")
        fill_items(database, 300)
        with capture(database, "items") as found:
            found.read_until(lambda one: one.kind is RecordKind.SNAPSHOT)
            found.open_again()
            found.read()
            found.expect_equal()
            assert [one.kind for one in found.replica.records].count(RecordKind.EPOCH) == 1

    def test_every_record_is_a_point_to_continue_from(self, database: CapturedDatabase) -> None:
        """Of the snapshot, of transactions over two tables, of one in parts; nothing is confirmed."""
        create(database, ITEMS, "items", "other")
        fill_items(database, 90)
        fill_items(database, 90, "other")
        source, records = database.source(), list[Record]()
        source.open(None, [database.table("items"), database.table("other")])
        collect(source, records)
        database.transaction(
            "UPDATE items SET amount = 1 WHERE id < 5",
            "UPDATE other SET amount = 1 WHERE id < 5",
            f"INSERT INTO items SELECT n + 1000, 'x', n, NULL {database.series(21_000)}",
            "UPDATE other SET amount = 2 WHERE id < 7",
        )
        database.run("UPDATE items SET id = -id WHERE id < 4", "DELETE FROM other WHERE id > 80")
        collect(source, records)
        source.close()
        expected = {one: database.rows(one) for one in ("items", "other")}
        assert len(records) > 8
        for count in range(1, len(records), 1):
            replica, rest = Replica(), list[Record]()
            again = database.source()
            again.open(json.loads(json.dumps(records[count - 1].resume)), [database.table(one) for one in expected])
            collect(again, rest)
            again.close()
            for record in (*records[:count], *rest):
                replica.apply(record)
            for name, rows in expected.items():
                replica.expect(database.full_name(name), rows)

    def test_unconfirmed_changes_come_once(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items")
        fill_items(database, 3)
        with capture(database, "items") as found:
            collect_into(found)
            for number in range(10, 14):
                database.run(f"INSERT INTO items (id) VALUES ({number})")
                collect_into(found)
                found.open_again()
            collect_into(found)
            assert found.replica.changes == 4
            found.expect_equal()

    def test_killed_process_loses_and_repeats_nothing(self, database: CapturedDatabase, tmp_path: Path) -> None:
        """Kill -9 in the snapshot, between the steps of a batch and while streaming; the topic equals the table."""
        create(database, CHAIN, "chain")
        database.run(f"INSERT INTO chain SELECT n, -n, 1, 'first', NULL {database.series(400)}")
        name, chance, kills = database.full_name("chain"), random.Random(7), times(3, 40)
        command = [sys.executable, "-m", "tests.capture.contract.killed_capture", database.kind, database.url, name]
        with writers(database, threads=3, keys=500, seed=9) as running:
            for _ in range(kills):
                child = subprocess.Popen([*command, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
                assert child.stdout is not None
                for _ in range(chance.randint(2, 40)):
                    assert child.stdout.readline(), "the capture ended by itself"
                child.kill()
                child.wait()
                child.stdout.close()
            running.stop()
        injected(kills)
        replica = ShapedReplica(name)
        with EventLog(tmp_path / "log") as log:
            run_capture(log, database.kind, database.url, name, tmp_path, until_end=True)
            topic = journal_topic("shop")
            for entry in read_journal(log, topic, 0, log.ends(topic)[0].end):
                replica.apply(entry.record)
        rows = database.rows("chain")
        replica.expect(name, rows)
        assert read_table(tmp_path, "topic") == {row["id"]: row for row in rows}

    def test_requested_snapshot_changes_nothing_in_an_exact_copy(self, database: CapturedDatabase) -> None:
        create(database, CHAIN, "chain")
        database.run(f"INSERT INTO chain SELECT n, -n, 1, 'first', NULL {database.series(200)}")
        with capture(database, "chain", chained=True) as found:
            found.read()
            with writers(database, threads=2, seed=6) as running:
                found.source.request_snapshot(database.full_name("chain"))
                found.read_until(lambda one: one.kind is RecordKind.SNAPSHOT_DONE)
                running.stop()
            found.read()
            found.expect_equal()

    def test_idle_source_says_how_far_it_is(self, database: CapturedDatabase) -> None:
        create(database, ITEMS, "items")
        with capture(database, "items") as found:
            found.read()
            now = time.time_ns() // 1000
            found.read_until(lambda one: one.kind is RecordKind.POSITION and one.at >= now)


def collect(source: Source, records: list[Record]) -> None:
    """Read to the present end without confirming."""
    source.reached_end()
    while not source.reached_end():
        records += source.poll(0.05)


def collect_into(found: Capture) -> None:
    records: list[Record] = []
    collect(found.source, records)
    for record in records:
        found.replica.apply(record)


def run_capture(
    log: EventLog,
    kind: str,
    url: str,
    table: str,
    folder: Path,
    *,
    until_end: bool = False,
    reached: Callable[[str], None] = lambda _: None,
) -> None:
    """Capture one table into the topic "topic"."""
    runner = CaptureRunner(
        log, "shop", lambda: make_source(kind, url), [SourceTable(table, "topic")], folder / "capture", reached=reached
    )
    runner.run(threading.Event(), until_end=until_end)
