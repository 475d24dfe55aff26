"""Cases of tables: replica identity, large values, keys, shapes that change, partitions, truncate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headwater.capture.postgres.log.source import PostgresSource
from headwater.capture.source import Record, RecordKind, SourceTable
from headwater.errors import NotCapturableError
from tests.capture.postgres.servers import Database
from tests.capture.version_chain import Replica, read_all

pytestmark = pytest.mark.services

LARGE = "(SELECT string_agg(md5(s::text), '') FROM generate_series(1, 400) s)"


class Capture:
    """A source and the tables that its records make."""

    def __init__(self, database: Database, *tables: str, **options: Any) -> None:
        self.tables = [SourceTable(name, name.partition(".")[2]) for name in tables]
        self.replica, self.source = Replica(), PostgresSource(database.url, "t", **options)
        self.source.open(None, self.tables)
        self.read()

    def read(self) -> list[Record]:
        """Returns the new records."""
        known = len(self.replica.records)
        read_all(self.source, self.replica)
        return self.replica.records[known:]

    def changes(self) -> list[dict[str, Any]]:
        """Returns the new changes."""
        found = [one.batch for one in self.read() if one.kind is RecordKind.CHANGES]
        return [change for batch in found if batch for change in batch.changes.to_pylist()]


@contextmanager
def capture(database: Database, *tables: str, **options: Any) -> Iterator[Capture]:
    made = Capture(database, *tables, **options)
    try:
        yield made
    finally:
        made.source.close()


def test_default_identity_sends_the_old_key_only_when_it_changes(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    with capture(database, "public.t") as found:
        database.execute("UPDATE t SET v = 'b'", "UPDATE t SET id = 2", "DELETE FROM t")
        update, moved, deleted = found.changes()
    assert (update["before_holds"], update["before"], update["after"]) == (0, None, {"id": 1, "v": "b"})
    assert (moved["before_holds"], moved["before"], moved["after"]) == (1, {"id": 1, "v": None}, {"id": 2, "v": "b"})
    assert (deleted["before_holds"], deleted["before"], deleted["after"]) == (1, {"id": 2, "v": None}, None)


def test_full_identity_sends_the_old_row(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("INSERT INTO t VALUES (1, 'a')")
    with capture(database, "public.t") as found:
        database.execute("UPDATE t SET v = 'b'", "DELETE FROM t")
        update, deleted = found.changes()
    assert (update["before_holds"], update["before"]) == (2, {"id": 1, "v": "a"})
    assert (deleted["before_holds"], deleted["before"]) == (2, {"id": 1, "v": "b"})


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_large_value_that_was_not_changed_is_not_null(database: Database, identity: str) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text)", f"ALTER TABLE t REPLICA IDENTITY {identity}"
    )
    database.execute(f"INSERT INTO t VALUES (1, 0, {LARGE})")
    big = database.execute("SELECT big FROM t")[0][0]
    with capture(database, "public.t") as found:
        database.execute("UPDATE t SET n = 1", "UPDATE t SET big = NULL", f"UPDATE t SET big = {LARGE} || 'x'")
        kept, emptied, replaced = found.changes()
    if identity == "FULL":
        assert (kept["unchanged"], kept["after"]["big"]) == (None, big)
    else:
        assert (kept["unchanged"], kept["after"]["big"]) == (["big"], None)
    assert (emptied["unchanged"], emptied["after"]["big"]) == (None, None)
    assert (replaced["unchanged"], replaced["after"]["big"]) == (None, big + "x")


def test_large_key_that_was_not_changed_comes_from_the_old_key(database: Database) -> None:
    database.execute("CREATE TABLE t (id text, n int, PRIMARY KEY (id))", "ALTER TABLE t ALTER id SET STORAGE EXTERNAL")
    database.execute("INSERT INTO t VALUES (left(repeat('key', 1000), 2400), 0)")
    with capture(database, "public.t") as found:
        database.execute("UPDATE t SET n = 1")
        (change,) = found.changes()
        found.replica.expect("public.t", [{"id": "key" * 800, "n": 1}])
    assert (change["unchanged"], change["after"]) == (None, {"id": "key" * 800, "n": 1})


@pytest.mark.parametrize(
    ("definition", "fix"),
    [
        ("CREATE TABLE t (id int)", "ADD PRIMARY KEY"),
        ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", "REPLICA IDENTITY DEFAULT"),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "SET LOGGED"),
        ("CREATE VIEW t AS SELECT 1 id", "capture the tables"),
        ("CREATE TABLE r (id int PRIMARY KEY) PARTITION BY HASH (id);"
         "CREATE TABLE t PARTITION OF r FOR VALUES WITH (MODULUS 1, REMAINDER 0)", "partitioned table"),
        ("SELECT 1", "schema.table"),
    ],
)  # fmt: skip
def test_table_that_cannot_be_captured_is_refused_and_not_published(
    database18: Database, definition: str, fix: str
) -> None:
    """A keyless table in a publication would make the application's own UPDATE fail."""
    database18.execute(*definition.split(";"))
    with pytest.raises(NotCapturableError) as refused:
        Capture(database18, "public.t")
    assert fix in (refused.value.fix or "")
    assert database18.execute("SELECT count(*) FROM pg_publication")[0][0] == 0
    inspection = PostgresSource(database18.url, "t").inspect([SourceTable("public.t", "t")])
    assert any(one.blocking and fix in one.fix for one in inspection.remedies)


def test_table_without_key_but_full_identity_needs_a_declared_key(database18: Database) -> None:
    database18.execute("CREATE TABLE t (id int, v text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    database18.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    source, replica = PostgresSource(database18.url, "t"), Replica()
    source.open(None, [SourceTable("public.t", "t", key=("id",))])
    read_all(source, replica)
    database18.execute("UPDATE t SET id = 3 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    read_all(source, replica)
    source.close()
    replica.expect("public.t", [{"id": 3, "v": "a"}])


def test_added_dropped_and_renamed_columns_give_shapes(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int, b text)", "INSERT INTO t VALUES (1, 1, 'x')")
    with capture(database, "public.t") as found:
        database.execute("ALTER TABLE t ADD c int", "UPDATE t SET c = 5")
        kinds = [(one.kind, one.shape and one.shape.version) for one in found.read()]
        assert kinds[:2] == [(RecordKind.SHAPE, 2), (RecordKind.CHANGES, None)]
        database.execute("ALTER TABLE t ADD d int DEFAULT 7", "UPDATE t SET c = 6")
        added = found.read()
        assert [one.kind for one in added[:3]] == [RecordKind.SHAPE, RecordKind.BACKFILL, RecordKind.CHANGES]
        assert "d" in added[1].detail
        database.execute("ALTER TABLE t DROP a", "UPDATE t SET c = 7")
        assert [one.kind for one in found.read()[:2]] == [RecordKind.SHAPE, RecordKind.CHANGES]
        database.execute("ALTER TABLE t RENAME b TO e", "UPDATE t SET c = 8")
        renamed = found.read()
        assert [one.kind for one in renamed[:2]] == [RecordKind.SHAPE, RecordKind.BACKFILL]
        database.execute("ALTER TABLE t ALTER c TYPE bigint", "UPDATE t SET c = 9")
        retyped = found.read()
        assert [one.kind for one in retyped[:2]] == [RecordKind.SHAPE, RecordKind.BACKFILL]
        assert str(retyped[0].shape.schema.field("c").type) == "int64"
        assert list(retyped[0].shape.schema.names) == ["id", "e", "c", "d"]
        found.replica.expect("public.t", [{"id": 1, "e": "x", "c": 9, "d": 7}])


def test_renamed_key_stays_the_key(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    with capture(database, "public.t") as found:
        database.execute("ALTER TABLE t RENAME id TO code", "UPDATE t SET v = 'b'")
        shape = next(one.shape for one in found.read() if one.kind is RecordKind.SHAPE)
    assert shape.key == ("code",)


def test_backfill_is_loaded_on_request_beside_changes(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT g, g FROM generate_series(1, 500) g"
    )
    with capture(database, "public.t", chunk_rows=50) as found:
        database.execute("ALTER TABLE t ADD d int DEFAULT 7", "UPDATE t SET v = 0 WHERE id = 1")
        assert RecordKind.BACKFILL in {one.kind for one in found.read()}
        found.source.request_snapshot("public.t")
        database.execute("UPDATE t SET v = -1 WHERE id % 7 = 0")
        found.read()
        expected = [dict(zip(("id", "v", "d"), row, strict=True)) for row in database.execute("SELECT id, v, d FROM t")]
        found.replica.expect("public.t", expected)


def test_shape_that_changed_while_nobody_read_is_announced(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    with capture(database, "public.t") as found:
        pass
    resume = found.replica.records[-1].resume
    database.execute("UPDATE t SET v = 2", "ALTER TABLE t ADD w int", "UPDATE t SET w = 3")
    found.source.open(resume, found.tables)
    records = found.read()
    found.source.close()
    kinds = [one.kind for one in records if one.kind is not RecordKind.POSITION]
    assert kinds == [RecordKind.CHANGES, RecordKind.SHAPE, RecordKind.CHANGES]
    found.replica.expect("public.t", [{"id": 1, "v": 2, "w": 3}])


def test_generated_columns_are_left_out(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v * 2) STORED)")
    database.execute("INSERT INTO t VALUES (1, 1)")
    with capture(database, "public.t") as found:
        database.execute("INSERT INTO t VALUES (2, 2)")
        found.read()
        found.replica.expect("public.t", [{"id": 1, "v": 1}, {"id": 2, "v": 2}])


def test_some_columns_only(database18: Database) -> None:
    database18.execute("CREATE TABLE t (a text, id int PRIMARY KEY, secret text, v int)")
    database18.execute("INSERT INTO t VALUES ('a', 1, 'x', 1)")
    source, replica = PostgresSource(database18.url, "t"), Replica()
    source.open(None, [SourceTable("public.t", "t", columns=("v",))])
    read_all(source, replica)
    database18.execute("INSERT INTO t VALUES ('b', 2, 'y', 2)", "DELETE FROM t WHERE id = 1")
    read_all(source, replica)
    source.close()
    replica.expect("public.t", [{"id": 2, "v": 2}])


def test_partitions_have_the_name_of_their_table(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
        "CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a')",
        "CREATE TABLE t_b (v int, region text NOT NULL, id int NOT NULL)",  # another order of columns
        "ALTER TABLE t ATTACH PARTITION t_b FOR VALUES IN ('b')",
        "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'a', 3)",
    )
    with capture(database, "public.t", chunk_rows=2) as found:
        database.execute("UPDATE t SET v = 9 WHERE id = 2", "UPDATE t SET region = 'b' WHERE id = 1", "DELETE FROM t_a")
        database.execute("CREATE TABLE t_c PARTITION OF t FOR VALUES IN ('c')", "INSERT INTO t VALUES (4, 'c', 4)")
        found.read()
        names = ("id", "region", "v")
        expected = [dict(zip(names, row, strict=True)) for row in database.execute("SELECT id, region, v FROM t")]
        found.replica.expect("public.t", expected, ("id", "region"))


def test_truncate_of_several_tables_clears_each(database: Database) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)",
        "CREATE TABLE c (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1)",
        "INSERT INTO b VALUES (1, 1)",
        "INSERT INTO c VALUES (1)",
    )
    with capture(database, "public.a", "public.b", "public.c") as found:
        with database.connect() as connection:
            connection.execute("INSERT INTO a VALUES (2)")
            connection.execute("TRUNCATE a CASCADE")
            connection.execute("INSERT INTO a VALUES (3)")
            connection.execute("TRUNCATE c")
        records = found.read()
        changes = [one for record in records if record.batch for one in record.batch.changes.to_pylist()]
        assert sorted(one["index"] for one in changes) == list(range(len(changes)))
        assert [one["last"] for one in sorted(changes, key=lambda one: one["index"])] == [False] * 4 + [True]
        found.replica.expect("public.a", [{"id": 3}])
        found.replica.expect("public.b", [])
        found.replica.expect("public.c", [])


def test_dropped_table_is_named_and_others_go_on(database18: Database) -> None:
    """It is captured again on request, as an epoch of its own."""
    database18.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    database18.execute("INSERT INTO a VALUES (7), (8)")
    with capture(database18, "public.a", "public.b") as found:
        database18.execute("DROP TABLE a", "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
        found.source.close()
        found.source.open(found.replica.records[-1].resume, found.tables)
        database18.execute("INSERT INTO b VALUES (1)")
        records = found.read()
        (gone,) = [one for one in records if one.kind is RecordKind.QUARANTINE]
        assert gone.table == "public.a"
        found.replica.expect("public.b", [{"id": 1}])
        found.source.request_snapshot("public.a")
        database18.execute("INSERT INTO a VALUES (2)", "INSERT INTO b VALUES (2)")
        assert found.read()[0].kind is RecordKind.EPOCH
        database18.execute("INSERT INTO a VALUES (3)")
        found.read()
        found.replica.expect("public.a", [{"id": 1}, {"id": 2}, {"id": 3}])
        found.replica.expect("public.b", [{"id": 1}, {"id": 2}])


def test_table_added_later_is_loaded_beside_the_changes_of_others(database: Database) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)", "INSERT INTO b VALUES (1)"
    )
    with capture(database, "public.a") as found:
        pass
    database.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (2)")
    found.tables.append(SourceTable("public.b", "b"))
    found.source.open(found.replica.records[-1].resume, found.tables)
    database.execute("INSERT INTO b VALUES (3)", "INSERT INTO a VALUES (2)")
    found.read()
    found.replica.expect("public.a", [{"id": 1}, {"id": 2}])
    found.replica.expect("public.b", [{"id": 1}, {"id": 2}, {"id": 3}])
    resume = found.replica.records[-1].resume
    found.source.close()
    found.tables.pop(0)
    found.source.open(resume, found.tables)
    database.execute("INSERT INTO a VALUES (3)")
    assert "public.a" not in {one.table for one in found.read()}
    found.source.close()
    members = database.execute("SELECT tablename FROM pg_publication_tables")
    assert members == [("b",)]


def test_hostile_names_are_names(database: Database) -> None:
    schema, table, column = 'wild "schema".x', "select 🐘 '" + "é" * 20, 'a"b\\c, %s'
    name = f'"{schema.replace(chr(34), chr(34) * 2)}"."{table}"'
    quoted = '"' + column.replace('"', '""') + '"'
    database.execute(
        f'CREATE SCHEMA "{schema.replace(chr(34), chr(34) * 2)}"',
        f'CREATE TABLE {name} ("order" text PRIMARY KEY, {quoted} text)',
        f"INSERT INTO {name} VALUES (E'it''s \\\\ 1', 'x'), ('2', NULL), ('', '')",
    )
    with capture(database, f"{schema}.{table}", chunk_rows=1) as found:
        database.execute(f"UPDATE {name} SET {quoted} = 'y' WHERE \"order\" = '2'")
        found.read()
        rows = [{"order": "it's \\ 1", column: "x"}, {"order": "2", column: "y"}, {"order": "", column: ""}]
        found.replica.expect(f"{schema}.{table}", rows, ("order",))


def test_application_update_on_a_captured_table_never_fails(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE other (v int)")
    database.execute("INSERT INTO other VALUES (1)", "INSERT INTO t VALUES (1, 1)")
    with capture(database, "public.t"):
        database.execute("UPDATE other SET v = 2", "DELETE FROM other", "UPDATE t SET v = 2", "DELETE FROM t")


def test_generated_columns_that_a_publication_has_are_captured(database18: Database) -> None:
    """Since version 18; the snapshot and the stream agree on the columns."""
    database18.execute("CREATE TABLE t (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v * 2) STORED)")
    database18.execute("INSERT INTO t VALUES (1, 1)")
    options = "publish_generated_columns = stored, publish_via_partition_root = true"
    database18.execute(f"CREATE PUBLICATION headwater_t FOR TABLE t WITH ({options})")
    with capture(database18, "public.t") as found:
        database18.execute("INSERT INTO t VALUES (2, 2)")
        found.read()
        found.replica.expect("public.t", [{"id": 1, "v": 1, "g": 2}, {"id": 2, "v": 2, "g": 4}])
        assert [one.kind for one in found.replica.records].count(RecordKind.SHAPE) == 1
