"""SqliteSource: types, DDL, restarts, faults of the file, and a second process that writes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headwater.capture.source import RecordKind, SourceTable
from headwater.capture.sqlite.source import SqliteSource
from headwater.errors import (
    BadQueryError,
    BadSettingError,
    NotCapturableError,
    SlotLostError,
    SourceReplacedError,
    UnreachableError,
)
from tests.capture.sqlite.replay import Replay, RestartedSource
from tests.capture.sqlite.test_random_statements import rows_of

PRODUCTS = [SourceTable("products", "products")]


class Shop:
    """A database and a connection of its program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = sqlite3.connect(path, isolation_level=None, timeout=5)
        self.db.execute("PRAGMA journal_mode = wal")
        self.db.execute("PRAGMA synchronous = OFF")
        self.db.execute("CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, price REAL)")
        self.db.execute("INSERT INTO products VALUES (1, 'pen', 1.5), (2, 'ink', 2.5)")

    def capture(self, tables: list[SourceTable] = PRODUCTS, restarts: float = 0.0) -> RestartedSource:
        return RestartedSource(self.path, tables, restarts=restarts)

    def insert(self, table: str, rows: Any) -> None:
        """Insert rows in one transaction."""
        rows = list(rows)
        self.db.execute("BEGIN")
        self.db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        self.db.execute("COMMIT")

    def rows(self, table: str = "products", key: tuple[str, ...] = ("id",)) -> Any:
        return rows_of(self.db, table, key)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop.db")
    yield made
    made.db.close()


def test_values_keep_their_kind(shop: Shop) -> None:
    shop.db.execute(
        "CREATE TABLE kinds (id TEXT PRIMARY KEY NOT NULL, i BIGINT, r DOUBLE, t VARCHAR(9), b BLOB, yes BOOLEAN,"
        " money DECIMAL(10, 2), n NUMERIC, d DATE, j JSON, anything)"
    )
    rows = [
        ("min", -(2**63), -1.7976931348623157e308, "", b"", 0, -99999999.99, -(2**63), "0000-00-00", "", -1),
        ("max", 2**63 - 1, 5e-324, "ü€😀\0x", bytes(range(256)), 1, "12.50", 1e20, "2026-02-30", '{"a":1}', "x"),
        ("null", *[None] * 10),
        ("inf", 0, float("inf"), "inf", b"\0", None, 3, 2.5, 2460000.5, 7, 1.25),
    ]
    captured = shop.capture([SourceTable("kinds", "kinds")])
    insert = f"INSERT INTO kinds VALUES ({', '.join('?' * 11)})"
    shop.db.executemany(insert, rows[:2])
    captured.drain()
    shop.db.executemany(insert, rows[2:])
    replay = captured.drain()
    printed = "id, i, r, t, b, yes, " + ", ".join(
        f"CAST({one} AS TEXT)" for one in ("money", "n", "d", "j", "anything")
    )
    for row in shop.db.execute(f"SELECT {printed} FROM kinds"):
        found = replay.rows["kinds"][(row[0],)]
        expected = dict(zip(found, row, strict=True))
        expected |= {"yes": None if row[5] is None else bool(row[5]), "money": row[6] and Decimal(row[6])}
        assert found == expected
    before = {key: dict(row) for key, row in replay.rows["kinds"].items()}
    captured.source.request_snapshot("kinds")
    assert captured.drain().rows["kinds"] == before  # a snapshot gives the values that the changes gave


def test_a_value_of_another_kind_goes_to_quarantine(shop: Shop) -> None:
    captured = shop.capture()
    captured.drain()
    shop.db.execute(
        "INSERT INTO products VALUES (3, 'a', 'much'), (4, CAST(x'ff' AS TEXT), 2), (5, x'00', 1), (6, 'ok', 6)"
    )
    shop.db.execute("UPDATE products SET price = 3 WHERE id = 3")
    replay = captured.drain()
    refused = [json.loads(text) for text in replay.quarantine]
    assert [(one["op"], one["after"]["id"]) for one in refused] == [("insert", 3), ("insert", 4), ("insert", 5)]
    assert refused[0]["after"]["price"] == "much"
    assert refused[1]["after"]["name"] == {"text": "ff"}
    assert {key for (key,) in replay.rows["products"]} == {1, 2, 3, 6}
    assert replay.changes[-1] == (
        "update",
        "products",
        {"id": 3, "name": None, "price": None},
        {"id": 3, "name": "a", "price": 3.0},
    )


def test_a_row_without_key_goes_to_quarantine(shop: Shop) -> None:
    shop.db.execute("CREATE TABLE odd (k TEXT PRIMARY KEY, n INTEGER)")
    shop.db.execute("INSERT INTO odd VALUES (NULL, 1), ('a', 2)")
    captured = shop.capture([SourceTable("odd", "odd")])
    captured.drain()
    shop.db.execute("INSERT INTO odd VALUES (NULL, 3)")
    shop.db.execute("UPDATE odd SET k = 'b' WHERE n = 3")
    replay = captured.drain()
    assert len(replay.quarantine) == 2
    assert replay.rows["odd"] == {("a",): {"k": "a", "n": 2}, ("b",): {"k": "b", "n": 3}}


@pytest.mark.parametrize(
    ("statement", "wanted", "part"),
    [
        ("CREATE TABLE t (a, b)", SourceTable("t", "t"), "nothing identifies"),
        ("CREATE TABLE t (a UNIQUE, b)", SourceTable("t", "t"), "nothing identifies"),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY, b)", SourceTable("t", "t", key=("b",)), "does not identify"),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY, b)", SourceTable("t", "t", columns=("c",)), "no column 'c'"),
        ("CREATE VIEW t AS SELECT 1", SourceTable("t", "t"), "is a view"),
        ("CREATE VIRTUAL TABLE t USING fts5 (a)", SourceTable("t", "t"), "virtual"),
        ("CREATE TABLE tea (a INTEGER PRIMARY KEY)", SourceTable("t", "t"), "no table 't'"),
    ],
)
def test_what_cannot_be_captured_is_named_and_other_tables_go_on(
    shop: Shop, statement: str, wanted: SourceTable, part: str
) -> None:
    shop.db.execute(statement)
    (remedy,) = [one for one in SqliteSource(str(shop.path), "test").inspect([wanted]).remedies if one.blocking]
    assert part in remedy.what
    captured = shop.capture([wanted, *PRODUCTS])
    replay = captured.drain()
    assert any(part in text for text in replay.quarantine)
    assert replay.rows["products"] == shop.rows()


def test_a_unique_not_null_column_is_a_key(shop: Shop) -> None:
    shop.db.execute("CREATE TABLE t (a TEXT, b TEXT NOT NULL UNIQUE)")
    captured = shop.capture([SourceTable("t", "t")])
    shop.db.execute("INSERT INTO t VALUES ('x', 'k')")
    captured.drain()
    shop.db.execute("INSERT OR REPLACE INTO t VALUES ('y', 'k')")
    assert captured.drain().changes[-1] == ("update", "t", {"a": "x", "b": "k"}, {"a": "y", "b": "k"})


def test_only_the_wanted_columns_are_captured(shop: Shop) -> None:
    captured = shop.capture([SourceTable("products", "products", columns=("price",))])
    shop.db.execute("UPDATE products SET name = 'x', price = 9 WHERE id = 1")
    assert captured.drain().rows["products"] == {(1,): {"id": 1, "price": 9.0}, (2,): {"id": 2, "price": 2.5}}


@pytest.mark.parametrize(
    ("ddl", "loads"),
    [
        ("ALTER TABLE products ADD COLUMN stock INTEGER", 0),
        ("ALTER TABLE products ADD COLUMN stock INTEGER NOT NULL DEFAULT 7", 1),
        ("ALTER TABLE products RENAME COLUMN price TO cost", 1),
        ("CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO n SELECT id, name || '!' FROM products;"
         " DROP TABLE products; ALTER TABLE n RENAME TO products", 1),
        ("DROP TABLE products; CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, price REAL);"
         " INSERT INTO products VALUES (7, 'new', 1)", 1),
    ],
)  # fmt: skip
def test_ddl_of_the_program_is_followed(shop: Shop, ddl: str, loads: int) -> None:
    captured = shop.capture()
    captured.drain()
    shop.db.executescript(ddl)
    captured.drain()
    shop.db.execute("UPDATE products SET name = 'later' WHERE id < 3")
    shop.db.execute("INSERT INTO products (name) VALUES ('more')")
    replay = captured.drain()
    assert replay.kinds.count("backfill needed") == loads
    assert {
        key: {n: v for n, v in row.items() if n in replay.shapes["products"][-1]} for key, row in shop.rows().items()
    } == {
        key: dict.fromkeys(replay.shapes["products"][-1]) | row for key, row in replay.rows["products"].items()
    }  # a row without a later column has NULL there
    assert replay.shapes["products"][-1] == [one[1] for one in shop.db.execute("PRAGMA table_info(products)")]


def test_rows_written_between_ddl_and_the_next_read_are_right(shop: Shop) -> None:
    captured = shop.capture()
    captured.drain()
    shop.db.execute("INSERT INTO products VALUES (3, 'before', 1)")
    shop.db.execute("ALTER TABLE products ADD COLUMN stock INTEGER")
    shop.db.execute("INSERT INTO products VALUES (4, 'after', 1, 44)")
    shop.db.execute("UPDATE products SET stock = 5 WHERE id = 1")
    assert captured.drain().rows["products"] == shop.rows()


def test_sqlite_refuses_to_drop_a_captured_column_and_alter_does_it(shop: Shop) -> None:
    captured = shop.capture()
    captured.drain()
    with pytest.raises(sqlite3.OperationalError, match="error in trigger"):
        shop.db.execute("ALTER TABLE products DROP COLUMN price")
    shop.db.execute("INSERT INTO products VALUES (3, 'cap', 3.5)")
    with contextlib.closing(SqliteSource(str(shop.path), "test")) as other:  # as a command does, beside the process
        assert (
            other.alter("ALTER TABLE products DROP COLUMN price; ALTER TABLE products ADD COLUMN stock INT DEFAULT 4")
            == []
        )
    shop.db.execute("INSERT INTO products VALUES (4, 'map', 9)")
    replay = captured.drain()
    assert replay.shapes["products"] == [["id", "name", "price"], ["id", "name", "stock"]]
    assert replay.rows["products"] == shop.rows()
    assert [after for _, _, _, after in replay.changes] == [
        {"id": 3, "name": "cap", "price": 3.5},
        {"id": 4, "name": "map", "stock": 9},
    ]


def test_alter_without_new_values_loads_nothing(shop: Shop) -> None:
    captured = shop.capture()
    captured.drain()
    shop.db.execute("INSERT INTO products VALUES (3, 'cap', 3.5)")
    captured.source.alter("ALTER TABLE products ADD COLUMN stock INTEGER")
    shop.db.execute("UPDATE products SET stock = 1 WHERE id = 1")
    replay = captured.drain()
    assert "backfill needed" not in replay.kinds
    assert replay.rows["products"][(1,)] == shop.rows()[(1,)]


def test_a_refused_alter_changes_nothing(shop: Shop) -> None:
    captured = shop.capture()
    captured.drain()
    with pytest.raises(BadQueryError):
        captured.source.alter("ALTER TABLE products ADD COLUMN a INT; ALTER TABLE products ADD COLUMN name TEXT")
    shop.db.execute("INSERT INTO products VALUES (3, 'cap', 3.5)")
    assert captured.drain().rows["products"] == shop.rows()


def test_a_dropped_table_stops_alone_and_comes_back(shop: Shop) -> None:
    shop.db.execute("CREATE TABLE other (id INTEGER PRIMARY KEY)")
    captured = shop.capture([*PRODUCTS, SourceTable("other", "other")])
    captured.drain()
    shop.db.execute("DROP TABLE products")
    shop.db.execute("INSERT INTO other VALUES (1)")
    replay = captured.drain()
    assert "no table 'products'" in replay.quarantine[-1]
    assert replay.rows["other"] == {(1,): {"id": 1}}
    captured.restart()
    assert len(captured.drain().quarantine) == 1  # reported once
    shop.db.execute("CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT)")
    shop.db.execute("INSERT INTO products VALUES (2, 'again')")
    assert captured.drain().rows["products"] == shop.rows()


@pytest.mark.parametrize("sql", ['DROP TRIGGER "_hw:test:update_products"', 'DROP TRIGGER "_hw:test:insert_products"'])
def test_a_missing_trigger_is_made_again_and_the_table_loaded(shop: Shop, sql: str) -> None:
    captured = shop.capture()
    captured.drain()
    shop.db.execute(sql)
    shop.db.execute("UPDATE products SET price = 99")
    shop.db.execute("INSERT INTO products VALUES (3, 'cap', 3.5)")
    replay = captured.drain()
    assert replay.kinds.count("backfill needed") == 1
    assert replay.rows["products"] == shop.rows()


def test_a_later_trigger_of_the_program_does_not_overtake(shop: Shop) -> None:
    captured = shop.capture()
    captured.drain()
    shop.db.execute(
        "CREATE TRIGGER mine AFTER INSERT ON products BEGIN UPDATE products SET price = 0 WHERE id = NEW.id; END"
    )
    shop.db.execute("INSERT INTO products VALUES (3, 'cap', 3.5)")
    assert captured.drain().rows["products"] == shop.rows()
    loads = captured.replay.kinds.count("backfill needed")
    shop.db.execute("INSERT INTO products VALUES (4, 'map', 3.5)")
    assert captured.drain().rows["products"] == shop.rows()
    assert captured.replay.kinds.count("backfill needed") == loads == 1


def test_a_table_added_later_is_loaded_beside_the_changes(shop: Shop) -> None:
    captured = shop.capture()
    captured.drain()
    shop.db.execute("CREATE TABLE other (id INTEGER PRIMARY KEY, n INT)")
    shop.insert("other", [(i, 1) for i in range(50_000)])
    captured.tables = [*PRODUCTS, SourceTable("other", "other")]
    captured.restart()
    captured.restarts = 0.3
    loads = 0
    while captured.source.position.tables["other"].loading or not loads:
        shop.db.execute("UPDATE other SET n = n + 1 WHERE id % 500 = ?", (loads,))
        shop.db.execute("UPDATE other SET id = -id WHERE id = ?", (loads * 7,))
        shop.db.execute("DELETE FROM other WHERE id = ?", (49_999 - loads,))
        captured.poll()
        loads += 1
    assert loads >= 3
    assert captured.drain().rows["other"] == shop.rows("other")
    captured.tables = PRODUCTS
    captured.restart()
    assert [one for (one,) in shop.db.execute("SELECT name FROM sqlite_schema WHERE name LIKE '%other' ")] == ["other"]


def test_records_of_large_values_stay_small(shop: Shop) -> None:
    shop.db.execute("CREATE TABLE files (id INTEGER PRIMARY KEY, content BLOB)")
    shop.db.executemany("INSERT INTO files VALUES (?, zeroblob(100000))", [(i,) for i in range(400)])
    captured = shop.capture([SourceTable("files", "files")], restarts=0.2)
    shop.db.execute("UPDATE files SET content = zeroblob(100001)")
    largest = 0
    while captured.source.position.sequence < 401 or captured.source.position.tables["files"].loading:
        largest = max([largest, *(one.batch.changes.nbytes for one in captured.poll() if one.batch is not None)])
    assert largest < 24 << 20
    assert captured.drain().rows["files"] == shop.rows("files")


def test_confirmed_changes_leave_the_file(shop: Shop) -> None:
    captured = shop.capture()
    shop.insert("products", [(i, "n", 1) for i in range(3, 30_003)])
    captured.drain()
    captured.source.confirm(captured.resume)
    assert shop.db.execute('SELECT count(*) FROM "_hw:test:changes"').fetchone() == (0,)
    assert captured.source.progress().phase == "streaming"


def test_confirm_does_not_wait_for_a_writer(shop: Shop) -> None:
    captured = shop.capture()
    shop.insert("products", [(i, "n", 1) for i in range(3, 9_003)])
    captured.source.poll(0)
    resume = captured.source.position.to_resume()
    shop.db.execute("BEGIN IMMEDIATE")
    captured.source.confirm(resume)  # neither an error nor ten seconds
    shop.db.execute("COMMIT")
    assert shop.db.execute('SELECT count(*) FROM "_hw:test:changes"').fetchone()[0] > 9_000
    captured.source.confirm(resume)
    assert shop.db.execute('SELECT count(*) FROM "_hw:test:changes"').fetchone() == (0,)


def test_a_writer_that_holds_the_lock_too_long_is_a_retryable_error(shop: Shop) -> None:
    shop.db.execute("BEGIN EXCLUSIVE")
    source = SqliteSource(str(shop.path), "test", busy_timeout=0.05)
    with pytest.raises(UnreachableError, match="locked") as caught:
        source.open(None, PRODUCTS)
    assert caught.value.retryable
    shop.db.execute("COMMIT")
    source.open(None, PRODUCTS)
    source.close()


def test_another_file_in_its_place_is_noticed(shop: Shop, tmp_path: Path) -> None:
    captured = shop.capture()
    captured.drain()
    (tmp_path / "new").mkdir()
    other = Shop(tmp_path / "new" / "shop.db")
    other.db.execute("PRAGMA journal_mode = delete")
    other.db.close()
    shop.db.close()
    os.replace(other.path, shop.path)
    with pytest.raises(UnreachableError, match="replaced"):
        captured.source.poll(0)
    captured.source.close()
    for ending in ("-wal", "-shm"):
        shop.path.with_name(shop.path.name + ending).unlink(missing_ok=True)
    with pytest.raises(SourceReplacedError, match="another history"):
        captured.restart()
    captured.resume = None  # what the user asks for with the command of the fix
    captured.restart()
    assert set(captured.drain().rows["products"]) == {(1,), (2,)}


def test_a_restored_older_copy_is_noticed(shop: Shop, tmp_path: Path) -> None:
    shop.db.execute("PRAGMA journal_mode = delete")
    captured = shop.capture()
    captured.drain()
    captured.source.close()
    shutil.copy(shop.path, tmp_path / "copy.db")
    captured.restart()
    shop.db.execute("INSERT INTO products VALUES (3, 'lost', 1)")
    captured.drain()
    captured.source.close()
    shop.db.close()
    os.replace(tmp_path / "copy.db", shop.path)
    with pytest.raises(SourceReplacedError, match="older"):
        captured.restart()


def test_a_log_restored_from_an_older_copy_is_noticed(shop: Shop) -> None:
    captured = shop.capture()
    captured.drain()
    old = captured.resume
    shop.insert("products", [(i, "n", 1) for i in range(3, 9_003)])
    captured.drain()
    captured.source.confirm(captured.resume)
    captured.resume = old
    with pytest.raises(SlotLostError, match="removed as delivered"):
        captured.restart()


def test_a_second_installation_under_the_same_name_stops_the_first(shop: Shop) -> None:
    first = shop.capture()
    first.drain()
    second = shop.capture()
    shop.db.execute("INSERT INTO products VALUES (3, 'cap', 1)")
    assert second.drain().rows["products"] == shop.rows()
    with pytest.raises(SourceReplacedError):
        first.source.poll(0)


def test_two_captures_of_one_file_do_not_disturb_each_other(shop: Shop) -> None:
    first = shop.capture()
    first.drain()
    other = SqliteSource(str(shop.path), "test-2")
    other.open(None, PRODUCTS)
    shop.db.execute("INSERT OR REPLACE INTO products VALUES (1, 'cap', 1)")
    assert first.drain().rows["products"] == shop.rows()
    seen = Replay()
    while not other.reached_end():
        for record in other.poll(0):
            seen.apply(record)
    assert seen.rows["products"] == shop.rows()
    other.drop()
    other.close()
    shop.db.execute("INSERT INTO products VALUES (5, 'cap', 1)")
    assert first.drain().rows["products"] == shop.rows()


def test_drop_leaves_nothing(shop: Shop) -> None:
    before = shop.db.execute("SELECT name, sql FROM sqlite_schema").fetchall()
    captured = shop.capture()
    captured.drain()
    captured.source.close()
    SqliteSource(str(shop.path), "test").drop()
    after = [one for one in shop.db.execute("SELECT name, sql FROM sqlite_schema") if one[0] != "sqlite_sequence"]
    assert after == before


def test_a_file_that_is_missing_or_no_database_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="no SQLite file"):
        SqliteSource(str(tmp_path / "none.db"), "test").open(None, PRODUCTS)
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("no database, but long enough to be read as the header of one" * 20)
    with pytest.raises(NotCapturableError, match="not a SQLite file"):
        SqliteSource(str(tmp_path / "text.db"), "test").inspect()
    with pytest.raises(BadSettingError):
        SqliteSource("postgresql://localhost/shop", "test")


def test_inspect_changes_nothing(shop: Shop) -> None:
    before = list(shop.db.iterdump())
    found = SqliteSource(f"sqlite:///{shop.path}", "test").inspect()
    assert [shape.table for shape in found.tables] == ["products"]
    assert found.tables[0].key == ("id",)
    assert found.facts["journal mode"] == "wal"
    assert not any(one.blocking for one in found.remedies)
    assert list(shop.db.iterdump()) == before


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_commit_wakes_a_waiting_poll(shop: Shop, mode: str) -> None:
    shop.db.execute(f"PRAGMA journal_mode = {mode}")
    captured = shop.capture()
    captured.drain()
    captured.poll()  # the position of this second
    writer = threading.Timer(0.2, lambda: sqlite3.connect(shop.path).executescript("DELETE FROM products WHERE id = 1"))
    writer.start()
    for _ in range(20):
        if any(one.kind is RecordKind.CHANGES for one in captured.poll(1)):
            break
    writer.join()
    assert len(captured.replay.changes) == 1
    assert captured.drain().rows["products"] == shop.rows()
