"""What can happen in a MariaDB database while it is captured: large transactions, DDL, formats, restarts, purges."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from headwater.capture.source import RecordKind
from headwater.errors import (
    BadCredentialsError,
    FencedError,
    NotCapturableError,
    SlotLostError,
    SourceReplacedError,
    UnreachableError,
)
from tests.capture.mariadb.copies import Copy, copy_of, expect_equal
from tests.capture.mariadb.server import Database, Server
from tests.capture.version_chain import read_all

pytestmark = pytest.mark.services

PRODUCTS = "CREATE TABLE products (id INT PRIMARY KEY, name VARCHAR(100), price DECIMAL(12,2))"


def changes_of(copy: Copy) -> list[dict[str, Any]]:
    """All changes so far, without those of snapshots."""
    batches = [one.batch.changes for one in copy.records if one.kind is RecordKind.CHANGES and one.batch]
    return [row for batch in batches for row in batch.to_pylist()]


def in_session(database: Database, *statements: str) -> None:
    """Execute statements in a session of their own."""
    session = database.connect()
    with session.cursor() as cursor:
        for one in statements:
            cursor.execute(one)


def test_what_is_rolled_back_is_never_seen(database: Database) -> None:
    database.run(PRODUCTS, "CREATE TABLE notes (id INT PRIMARY KEY, text VARCHAR(9)) ENGINE=MyISAM")
    source, copy = copy_of(database, "products")
    product, note = "INSERT INTO products VALUES", "INSERT INTO notes VALUES"
    in_session(database, "BEGIN", f"{product} (1, 'undone', 1)", f"{note} (1, 'stays')", "ROLLBACK")
    in_session(
        database, "BEGIN", f"{product} (2, 'kept', 1)", "SAVEPOINT s", f"{product} (3, 'undone', 1)",
        f"{note} (2, 'stays')", "ROLLBACK TO s", f"{product} (4, 'kept', 1)", "COMMIT",
    )  # fmt: skip
    read_all(source, copy)
    assert [(one["after"]["id"], one["index"], one["last"]) for one in changes_of(copy)] == [
        (2, 0, False),
        (4, 1, True),
    ]


def test_columns_that_come_go_and_change(database: Database) -> None:
    database.run(PRODUCTS, "INSERT INTO products VALUES (1, 'a', 1)")
    source, copy = copy_of(database, "products")
    database.run(
        "ALTER TABLE products ADD COLUMN code UUID",
        "INSERT INTO products VALUES (2, 'b', 2, '00000000-0000-0000-0000-0000000000ab')",
        "ALTER TABLE products ADD COLUMN stock INT NOT NULL DEFAULT 7 FIRST",
        "INSERT INTO products (id, name) VALUES (3, 'c')",
        "ALTER TABLE products RENAME COLUMN name TO title, MODIFY price DECIMAL(15,3)",
        "INSERT INTO products (id, title, price) VALUES (4, 'd', 1.234)",
        "ALTER TABLE products DROP COLUMN title",
        "INSERT INTO products (id) VALUES (5)",
        "ALTER TABLE products ADD INDEX (price)",
        "INSERT INTO products (id) VALUES (6)",
    )
    read_all(source, copy)
    shapes = [one.shape for one in copy.records if one.kind is RecordKind.SHAPE and one.shape]
    assert [(one.version, list(one.types.items())) for one in shapes[1:]] == [
        (2, [("id", "int"), ("name", "varchar"), ("price", "decimal(12,2)"), ("code", "uuid")]),
        (3, [("stock", "int"), ("id", "int"), ("name", "varchar"), ("price", "decimal(12,2)"), ("code", "uuid")]),
        (4, [("stock", "int"), ("id", "int"), ("title", "varchar"), ("price", "decimal(15,3)"), ("code", "uuid")]),
        (5, [("stock", "int"), ("id", "int"), ("price", "decimal(15,3)"), ("code", "uuid")]),
    ]
    backfills = [one.detail for one in copy.records if one.kind is RecordKind.BACKFILL]
    assert [one.split("ADD COLUMN")[-1].split()[0] for one in backfills] == ["stock", "ALTER"]
    assert copy.rows[f"{database.name}.products"][(2,)]["code"] == "00000000-0000-0000-0000-0000000000ab"
    source.request_snapshot(f"{database.name}.products")
    read_all(source, copy)
    expect_equal(database, copy, "products")


def test_a_dropped_table_is_reported_and_others_go_on(database: Database) -> None:
    database.run(PRODUCTS, "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO products VALUES (1, 'a', 1)")
    source, copy = copy_of(database, "products", "other")
    database.run("DROP TABLE products", "INSERT INTO other VALUES (1)")
    read_all(source, copy)
    dropped = copy.last(RecordKind.QUARANTINE)
    assert (dropped.table, json.loads(dropped.detail)["reason"]) == (
        f"{database.name}.products",
        "the table was dropped",
    )
    assert copy.rows[f"{database.name}.other"] == {(1,): {"id": 1}}
    database.run("CREATE TABLE products (id INT PRIMARY KEY, label TEXT)", "INSERT INTO products VALUES (2, 'new')")
    read_all(source, copy)
    assert copy.last(RecordKind.BACKFILL).table == f"{database.name}.products"
    source.request_snapshot(f"{database.name}.products")
    read_all(source, copy)
    expect_equal(database, copy, "products")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("ALTER TABLE products DROP PRIMARY KEY", "ALTER TABLE products ADD PRIMARY KEY (id)", "has no key"),
        ("SET GLOBAL binlog_row_metadata = 'NO_LOG'", "SET GLOBAL binlog_row_metadata = 'FULL'", "without the names"),
    ],
)
def test_a_table_that_cannot_be_decoded_stops_alone(database: Database, before: str, after: str, reason: str) -> None:
    """Its changes are kept raw, the others go on, and another snapshot brings it back."""
    database.run(PRODUCTS, "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO products VALUES (1, 'a', 1)")
    source, copy = copy_of(database, "products", "other")
    name = f"{database.name}.products"
    try:
        database.run("UPDATE products SET price = 2", before, "INSERT INTO products VALUES (2, 'kept raw', 1)")
    finally:
        database.run(after)
    in_session(
        database, "BEGIN", "INSERT INTO other VALUES (1)", "DELETE FROM products WHERE id = 1",
        "INSERT INTO other VALUES (2)", "COMMIT",
    )  # fmt: skip
    read_all(source, copy)
    assert copy.rows[f"{database.name}.other"] == {(1,): {"id": 1}, (2,): {"id": 2}}
    assert [(one["index"], one["last"]) for one in changes_of(copy)][-2:] == [(0, False), (1, True)]
    kept = [json.loads(one.detail) for one in copy.records if one.kind is RecordKind.QUARANTINE]
    assert len(kept) == 2
    assert reason in kept[0]["reason"]
    assert b"kept raw" in bytes.fromhex(kept[0]["rows"])
    source.close()
    source = database.source()
    source.open(copy.records[-1].resume, database.tables("products", "other"))
    database.run("INSERT INTO products VALUES (3, 'raw too', 1)")
    read_all(source, copy)
    assert copy.last(RecordKind.QUARANTINE).table == name
    source.request_snapshot(name)
    database.run("INSERT INTO products VALUES (4, 'd', 1)")
    read_all(source, copy)
    database.run("INSERT INTO products VALUES (5, 'e', 1)")
    read_all(source, copy)
    expect_equal(database, copy, "products")
    assert RecordKind.QUARANTINE not in copy.kinds()[-3:]


def test_an_interrupted_snapshot_goes_on_behind_its_last_row(database: Database) -> None:
    """By a key of two columns, one of them a text with quotes; rows before and behind that point change meanwhile."""
    database.run("CREATE TABLE pairs (a VARCHAR(20), b INT, v INT, PRIMARY KEY (a, b))")
    database.run("INSERT INTO pairs SELECT CONCAT('it''s \\\\ ', seq DIV 10), seq % 10, 0 FROM seq_1_to_300")
    source, copy = database.source(chunk_rows=50), Copy()
    source.open(None, database.tables("pairs"))
    for _ in range(3 + 2):  # after the epoch and the shape
        for record in source.poll(0.05):
            copy.apply(record)
    source.close()
    assert copy.kinds().count(RecordKind.SNAPSHOT) == 3
    database.run(
        "UPDATE pairs SET v = 1 WHERE b = 3", "DELETE FROM pairs WHERE b = 4", "UPDATE pairs SET b = 40 WHERE b = 5"
    )
    source = database.source(chunk_rows=50)
    source.open(json.loads(json.dumps(copy.records[-1].resume)), database.tables("pairs"))
    read_all(source, copy)
    assert copy.kinds().count(RecordKind.EPOCH) == 1
    read = sum(one.batch.changes.num_rows for one in copy.records if one.kind is RecordKind.SNAPSHOT and one.batch)
    assert read < 330  # the first 150 were not read again; keys that moved come again
    expect_equal(database, copy, "pairs", ("a", "b"))


@pytest.mark.parametrize("statement", ["DROP TABLE products", "ALTER TABLE products DROP PRIMARY KEY"])
def test_a_snapshot_of_a_table_that_cannot_be_loaded_is_refused_once(database: Database, statement: str) -> None:
    database.run(PRODUCTS, "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO products VALUES (1, 'a', 1)")
    source, copy = copy_of(database, "products", "other")
    database.run(statement)
    read_all(source, copy)
    source.request_snapshot(f"{database.name}.products")
    database.run("INSERT INTO other VALUES (1)")
    read_all(source, copy, timeout=10)
    assert copy.last(RecordKind.QUARANTINE).table == f"{database.name}.products"
    assert copy.rows[f"{database.name}.other"] == {(1,): {"id": 1}}


def test_a_table_that_another_takes_the_name_of_needs_a_snapshot(database: Database) -> None:
    database.run(PRODUCTS, "INSERT INTO products VALUES (1, 'a', 1)", "CREATE TABLE new_products LIKE products")
    source, copy = copy_of(database, "products")
    database.run(
        "INSERT INTO new_products VALUES (7, 'x', 1)", "RENAME TABLE products TO old, new_products TO products"
    )
    read_all(source, copy)
    assert copy.last(RecordKind.BACKFILL).detail.startswith("RENAME TABLE")
    source.request_snapshot(f"{database.name}.products")
    read_all(source, copy)
    expect_equal(database, copy, "products")


def test_compressed_events_are_read(database: Database) -> None:
    database.run(PRODUCTS)
    source, copy = copy_of(database, "products")
    in_session(database, "SET GLOBAL log_bin_compress = ON")
    try:
        database.run(
            "INSERT INTO products SELECT seq, REPEAT('long', 20), seq FROM seq_1_to_500",
            "UPDATE products SET name = REPEAT('other', 20) WHERE id < 100",
            "DELETE FROM products WHERE id > 400",
            f"ALTER TABLE products ADD COLUMN x INT COMMENT '{'long ' * 100}'",
        )
    finally:
        in_session(database, "SET GLOBAL log_bin_compress = OFF")
    read_all(source, copy)
    for row in copy.rows[f"{database.name}.products"].values():
        row.setdefault("x", None)
    expect_equal(database, copy, "products")


def test_columns_that_were_not_sent_are_unchanged_not_null(database: Database) -> None:
    database.run(
        "CREATE TABLE stock (id INT PRIMARY KEY, name VARCHAR(9), amount INT DEFAULT 5, note TEXT)",
        "INSERT INTO stock VALUES (1, 'a', 1, 'x'), (2, 'b', 2, NULL)",
    )
    source, copy = copy_of(database, "stock")
    in_session(
        database, "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE stock SET amount = 10 WHERE id = 1",
        "UPDATE stock SET name = NULL WHERE id = 2", "INSERT INTO stock (id, name) VALUES (3, 'c')",
        "UPDATE stock SET id = 7 WHERE id = 1", "DELETE FROM stock WHERE id = 2",
        "SET SESSION binlog_row_image = 'NOBLOB'", "UPDATE stock SET name = 'z' WHERE id = 3",
    )  # fmt: skip
    read_all(source, copy)
    changes = changes_of(copy)
    assert (changes[0]["unchanged"], changes[0]["after"]["id"], changes[0]["before_holds"]) == (["name", "note"], 1, 1)
    assert changes[1]["unchanged"] == ["amount", "note"]
    assert changes[1]["after"]["name"] is None
    assert changes[2]["unchanged"] == ["amount", "note"]
    assert "without columns" in copy.last(RecordKind.BACKFILL).detail
    source.request_snapshot(f"{database.name}.stock")
    read_all(source, copy)
    expect_equal(database, copy, "stock")


def test_statements_without_events_mark_the_table(database: Database) -> None:
    database.run(PRODUCTS, "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO products VALUES (1, 'a', 1)")
    source, copy = copy_of(database, "products", "other")
    in_session(database, "SET SESSION binlog_format = 'STATEMENT'", "UPDATE products SET price = price * 2")
    read_all(source, copy)
    marks = [one for one in copy.records if one.kind is RecordKind.BACKFILL]
    assert [(one.table, one.detail) for one in marks] == [
        (f"{database.name}.products", "UPDATE products SET price = price * 2")
    ]
    source.request_snapshot(f"{database.name}.products")
    read_all(source, copy)
    expect_equal(database, copy, "products")


def test_rows_that_a_foreign_key_changes_mark_the_table(database: Database) -> None:
    database.run(
        "CREATE TABLE customers (id INT PRIMARY KEY)",
        "CREATE TABLE orders (id INT PRIMARY KEY, customer INT, FOREIGN KEY (customer) REFERENCES customers (id) "
        "ON DELETE CASCADE ON UPDATE SET NULL)",
        "INSERT INTO customers VALUES (1), (2), (3)", "INSERT INTO orders VALUES (1, 1), (2, 2), (3, 3)",
    )  # fmt: skip
    source, copy = copy_of(database, "orders")
    assert any("ON DELETE CASCADE" in one.what for one in source.inspect(database.tables("orders")).remedies)
    for statement in ("DELETE FROM customers WHERE id = 1", "UPDATE customers SET id = 9 WHERE id = 2"):
        before = copy.kinds().count(RecordKind.BACKFILL)
        database.run(statement)
        read_all(source, copy)
        assert copy.kinds().count(RecordKind.BACKFILL) == before + 1, statement
        source.request_snapshot(f"{database.name}.orders")
        read_all(source, copy)
        expect_equal(database, copy, "orders")
    database.run("INSERT INTO customers VALUES (20)")
    read_all(source, copy)
    assert copy.kinds().count(RecordKind.BACKFILL) == 2


def test_xa_transactions_mark_their_tables_when_they_commit(database: Database) -> None:
    database.run(PRODUCTS)
    source, copy = copy_of(database, "products")
    for name, end in (("one", "ROLLBACK"), ("two", "COMMIT")):
        row = f"INSERT INTO products VALUES ({len(name + end)}, 'x', 1)"
        in_session(
            database, f"XA START '{name}'", row, f"XA END '{name}'", f"XA PREPARE '{name}'", f"XA {end} '{name}'"
        )
    read_all(source, copy)
    assert changes_of(copy) == []
    assert copy.kinds().count(RecordKind.BACKFILL) == 1


def test_a_table_altered_after_the_view_is_fixed_is_read_in_the_next_view(database: Database) -> None:
    database.run(PRODUCTS, "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO products VALUES (1, 'a', 1)")
    source, copy = database.source(), Copy()
    source.open(None, database.tables("other", "products"))
    while RecordKind.SNAPSHOT_DONE not in copy.kinds():
        for record in source.poll(0.1):
            copy.apply(record)
    database.run("ALTER TABLE products MODIFY price DECIMAL(15,3)", "INSERT INTO other VALUES (5)")
    read_all(source, copy)
    assert [one.table for one in copy.records if one.kind is RecordKind.EPOCH] == [""]  # no row of it was read
    expect_equal(database, copy, "products")
    expect_equal(database, copy, "other")


def test_a_snapshot_asked_for_during_a_load_comes_after_it(database: Database) -> None:
    database.run(PRODUCTS, "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO products VALUES (1, 'a', 1)")
    source, copy = database.source(), Copy()
    source.open(None, database.tables("products", "other"))
    while RecordKind.SNAPSHOT_DONE not in copy.kinds():
        for record in source.poll(0.1):
            copy.apply(record)
    source.request_snapshot(f"{database.name}.products")
    read_all(source, copy)
    done = [one.table.rpartition(".")[2] for one in copy.records if one.kind is RecordKind.SNAPSHOT_DONE]
    assert done == ["products", "other", "products"]
    expect_equal(database, copy, "products")


def test_time_is_known_only_when_all_tables_are_delivered(database: Database) -> None:
    names = ("a", "b", "c")
    database.run(*(f"CREATE TABLE {one} (id INT PRIMARY KEY)" for one in names))
    source, copy = copy_of(database, *names)
    done = len(copy.records)
    for number in range(5):
        in_session(database, "BEGIN", *(f"INSERT INTO {one} VALUES ({number})" for one in names), "COMMIT")
    read_all(source, copy)
    known = 0
    for record in copy.records[done:]:
        if record.batch is not None:
            assert min(record.batch.changes["at"].cast("int64").to_pylist()) >= known
        known = max(known, record.at if record.kind in (RecordKind.CHANGES, RecordKind.POSITION) else 0)
    groups = [one.open for one in copy.records[done:] if one.kind is RecordKind.CHANGES]
    assert groups[:3] == [True, True, False]


def test_a_restarted_server_continues(own_server: Server) -> None:
    database = own_server.database()
    database.run(PRODUCTS)
    source, copy = copy_of(database, "products")
    resume = copy.records[-1].resume
    own_server.stop()
    with pytest.raises(UnreachableError):  # noqa: PT012 - what came before the end may still be delivered
        for _ in range(50):
            source.poll(0.1)
    with pytest.raises(UnreachableError):
        source.open(resume, database.tables("products"))
    own_server.start()
    database.forget_connection()
    database.run("INSERT INTO products VALUES (1, 'a', 1)")
    source.open(resume, database.tables("products"))
    read_all(source, copy)
    expect_equal(database, copy, "products")
    database.close()


def test_a_purged_log_and_another_server_stop_the_capture(own_server: Server) -> None:
    database = own_server.database()
    database.run(PRODUCTS)
    source, copy = copy_of(database, "products")
    source.close()
    resume, tables = copy.records[-1].resume, database.tables("products")
    database.run("INSERT INTO products VALUES (1, 'a', 1)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    source.open(resume, tables)  # files may end
    read_all(source, copy)
    source.close()
    latest = copy.records[-1].resume
    newest = database.run("SHOW BINARY LOGS")[-1][0]
    end = time.monotonic() + 20
    while len(database.run("SHOW BINARY LOGS")) > 1 and time.monotonic() < end:
        database.run(f"PURGE BINARY LOGS TO '{newest}'")  # leaves files alone that the closed stream still holds
        time.sleep(0.05)
    with pytest.raises(SlotLostError, match=r"bl\.000001") as lost:
        source.open(resume, tables)
    assert lost.value.data["file"] == "bl.000001"
    database.run("RESET MASTER", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", "INSERT INTO products VALUES (2, 'b', 1)")
    with pytest.raises(SlotLostError, match="another history"):
        source.open(latest, tables)
    own_server.stop()
    own_server.start("--server-id=8")
    with pytest.raises(SourceReplacedError, match="server 8, not server 7"):
        source.open(latest, tables)
    fresh = Copy()
    source.open({"epoch": latest["epoch"]}, tables)
    database.forget_connection()
    read_all(source, fresh)
    assert fresh.records[0].resume["epoch"] == latest["epoch"] + 1
    expect_equal(database, fresh, "products")
    database.close()


def test_the_newer_of_two_readers_goes_on(database: Database) -> None:
    database.run(PRODUCTS)
    older, copy = copy_of(database, "products")
    newer = database.source()
    newer.open(copy.records[-1].resume, database.tables("products"))
    database.run("INSERT INTO products VALUES (1, 'a', 1)")
    with pytest.raises(FencedError, match="another reader"):  # noqa: PT012
        for _ in range(100):
            older.poll(0.1)
    read_all(newer, copy)
    expect_equal(database, copy, "products")


def test_a_server_that_says_nothing_is_unreachable(own_server: Server) -> None:
    database = own_server.database()
    database.run(PRODUCTS)
    source = database.source(patience=1.0)
    source.open(None, database.tables("products"))
    read_all(source, Copy())
    own_server.pause()
    try:
        with pytest.raises(UnreachableError, match="no heartbeat"):  # noqa: PT012
            for _ in range(100):
                source.poll(0.1)
    finally:
        own_server.resume()
    database.close()


def test_missing_rights_and_settings_name_their_statement(own_server: Server) -> None:
    database = own_server.database()
    database.run(PRODUCTS, "CREATE TABLE keyless (id INT)", "CREATE TABLE old (id INT PRIMARY KEY) ENGINE=MyISAM")
    database.run("CREATE USER poor@'%' IDENTIFIED BY 'pw'", f"GRANT SELECT ON {database.name}.* TO poor@'%'")
    poor = type(database.source())(database.url.replace("root@", "poor:pw@"), "poor")
    fixes = [one.fix for one in poor.inspect(database.tables("products")).remedies if one.blocking]
    assert fixes == ["GRANT REPLICATION SLAVE ON *.* TO 'poor'@'%'", "GRANT BINLOG MONITOR ON *.* TO 'poor'@'%'"]
    with pytest.raises(NotCapturableError, match="lacks the right REPLICATION SLAVE"):
        poor.open(None, database.tables("products"))
    for fix in fixes:
        database.run(fix)
    poor.open(None, database.tables("products"))
    copy = Copy()
    read_all(poor, copy)
    poor.close()
    source = database.source()
    for name, words in (("keyless", "primary key"), ("old", "MyISAM"), ("none", "no such table")):
        with pytest.raises(NotCapturableError, match=words):
            source.open(None, database.tables(name))
    with pytest.raises(BadCredentialsError):
        type(source)(database.url.replace("root@", "root:wrong@"), "x").inspect()
    assert [one.table for one in source.inspect().tables] == [
        f"{database.name}.{one}" for one in ("keyless", "old", "products")
    ]
    for name, value in (("binlog_format", "MIXED"), ("binlog_row_metadata", "MINIMAL")):
        database.run(f"SET GLOBAL {name} = '{value}'")
        with pytest.raises(NotCapturableError, match=f"{name} is {value}"):
            source.open(None, database.tables("products"))
        assert any(f"SET GLOBAL {name}" in one.fix for one in source.inspect().remedies)
        database.run(f"SET GLOBAL {name} = DEFAULT")
        database.run("SET GLOBAL binlog_format = 'ROW'", "SET GLOBAL binlog_row_metadata = 'FULL'")
    own_server.stop()
    own_server.start("--skip-log-bin")
    with pytest.raises(NotCapturableError, match="no binary log"):
        source.open(None, database.tables("products"))
    database.close()


def test_mysql_is_refused_by_name() -> None:
    from headwater.capture.mariadb.maria_source import MariaSource

    with pytest.raises(NotCapturableError, match="is MySQL"):
        MariaSource("mysql://root@127.0.0.1/shop", "shop")
