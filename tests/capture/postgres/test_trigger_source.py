"""Capture of PostgreSQL by triggers: versions without gap, rights, DDL, restarts, and values."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from headwater.capture.postgres.triggers.trigger_source import PostgresTriggerSource
from headwater.capture.source import Record, RecordKind, SourceTable
from headwater.errors import BadCredentialsError, NotCapturableError, SlotLostError, SourceReplacedError
from tests.capture.postgres.servers import Database
from tests.capture.version_chain import Replica, read_all, rows_of

pytestmark = pytest.mark.services
ITEMS = [SourceTable("public.items", "items")]


class ReshapedReplica(Replica):
    """A replica whose rows get the columns of a new shape."""

    def apply(self, record: Record) -> None:
        if record.shape is not None:
            for row in self.rows.get(record.table, {}).values():
                for name in record.shape.schema.names:
                    row.setdefault(name, None)
        super().apply(record)


def maker(url: str, **options: Any) -> Callable[[], PostgresTriggerSource]:
    return lambda: PostgresTriggerSource(
        url, "shop", **{"position_interval": 0.3, "poll_interval": 0.005, "check_interval": 0.1, **options}
    )


def drain(source: PostgresTriggerSource, replica: Replica) -> list[Record]:
    before = len(replica.records)
    read_all(source, replica)
    return replica.records[before:]


@pytest.fixture
def items(database18: Database) -> Database:
    database18.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(8, 2))",
        "INSERT INTO items VALUES (1, 'pen', 1.5), (2, 'ink', 2.25)",
    )
    return database18


@pytest.fixture
def captured(items: Database) -> Iterator[tuple[Database, PostgresTriggerSource, Replica]]:
    source, replica = maker(items.url)(), ReshapedReplica()
    source.open(None, ITEMS)
    drain(source, replica)
    yield items, source, replica
    source.close()


def expect(database: Database, replica: Replica, columns: tuple[str, ...] = ("id", "name", "price")) -> None:
    with database.connect() as connection:
        replica.expect("public.items", rows_of(connection, "items", columns))


def test_a_transaction_that_commits_late_is_neither_lost_nor_split(captured: Any) -> None:
    database, source, replica = captured
    with database.connect() as slow, database.connect() as quick:
        slow.execute("UPDATE items SET name = 'slow' WHERE id = 1")
        quick.execute("UPDATE items SET name = 'quick' WHERE id = 2")
        quick.commit()
        first = [one for one in drain(source, replica) if one.batch]
        source.confirm(first[-1].resume)
        slow.execute("INSERT INTO items VALUES (3, 'slow', 1)")
        slow.commit()
    second = [one for one in drain(source, replica) if one.batch]
    assert [one.batch.changes.num_rows for one in (*first, *second)] == [1, 2]
    assert second[0].batch.changes["last"].to_pylist() == [False, True]
    assert second[0].batch.changes["commit"][0].as_py() > first[0].batch.changes["commit"][0].as_py()
    expect(database, replica)


def test_a_user_without_replication_needs_select_and_trigger_only(items: Database) -> None:
    user = f"u{items.name}"
    items.execute(f"CREATE ROLE {user} LOGIN")
    source = maker(items.server.url(items.name, user))()
    with pytest.raises(NotCapturableError) as refused:
        source.open(None, ITEMS)
    assert "GRANT SELECT, TRIGGER" in str(refused.value.fix)
    items.execute(f"GRANT SELECT, TRIGGER ON items TO {user}")
    with pytest.raises(BadCredentialsError) as missing:
        source.open(None, ITEMS)
    assert "CREATE SCHEMA" in str(missing.value.fix)
    items.execute(f"CREATE SCHEMA headwater AUTHORIZATION {user}")
    replica = Replica()
    source.open(None, ITEMS)
    items.execute("UPDATE items SET price = 9 WHERE id = 1")
    drain(source, replica)
    expect(items, replica)
    source.close()


def test_truncate_stands_between_the_right_changes(captured: Any) -> None:
    database, source, replica = captured
    with database.connect() as connection:
        connection.execute("INSERT INTO items VALUES (3, 'gone', 1)")
        connection.execute("TRUNCATE items")
        connection.execute("INSERT INTO items VALUES (4, 'here', 1)")
    drain(source, replica)
    assert set(replica.rows["public.items"]) == {(4,)}


@pytest.mark.parametrize(
    ("ddl", "loads"),
    [
        ("ALTER TABLE items ADD COLUMN stock int", 0),
        ("ALTER TABLE items ADD COLUMN stock int DEFAULT 7", 1),
        ("ALTER TABLE items RENAME COLUMN name TO title", 1),
        ("ALTER TABLE items DROP COLUMN name", 0),
        ("ALTER TABLE items ALTER COLUMN price TYPE text USING price || ' EUR'", 1),
        (
            "DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY, name text); INSERT INTO items VALUES (7, 'new')",
            1,
        ),
    ],
)
def test_ddl_is_followed(captured: Any, ddl: str, loads: int) -> None:
    database, source, replica = captured
    database.execute("UPDATE items SET price = 3 WHERE id = 1", *ddl.split("; "))
    database.execute("INSERT INTO items (id) VALUES (10)", "UPDATE items SET id = 11 WHERE id = 10")
    found = drain(source, replica)
    time.sleep(0.2)  # the catalog is looked at ten times a second
    found += drain(source, replica)
    assert sum(one.kind is RecordKind.BACKFILL for one in found) == loads
    listed = "SELECT attname FROM pg_attribute WHERE attrelid = 'items'::regclass AND attnum > 0 AND NOT attisdropped"
    names = [name for (name,) in database.execute(listed)]
    shapes = [one.shape.schema.names for one in found if one.shape is not None]
    assert shapes[-1] == names
    for key, row in replica.rows["public.items"].items():
        replica.rows["public.items"][key] = {name: row.get(name) for name in names}
    expect(database, replica, tuple(names))


def test_a_disabled_trigger_is_found_and_the_table_loaded(captured: Any) -> None:
    database, source, replica = captured
    database.execute("ALTER TABLE items DISABLE TRIGGER ALL", "DELETE FROM items WHERE id = 1")
    time.sleep(0.2)
    found = drain(source, replica)
    assert [one.kind for one in found if one.kind is RecordKind.BACKFILL]
    expect(database, replica)


def test_values_of_changes_are_those_of_a_snapshot(database18: Database) -> None:
    types = "float8 numeric numeric(12,3) timestamptz timestamp date time interval bytea json jsonb uuid int[] text[]"
    types += " inet money int4range"
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(types.split()))
    database18.execute(
        f"CREATE TABLE items (id int PRIMARY KEY, {columns})",
        "INSERT INTO items VALUES (1, 0.1::float8 + 0.2, 1.500, 2.5, now(), '2026-01-01 10:00', '2026-02-03', '10:00',"
        " '1 mon -2 days 03:00:00', '\\x00ff', '{\"b\": 1,  \"a\": [1.10, null]}', '{\"x\": \"ü\"}',"
        " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{1,null,3}', '{\"a,b\",null,\"\"}', '10.0.0.1/8', '12.34', '[1,5)')",
        "INSERT INTO items (id) VALUES (2)",
    )
    source, replica = maker(database18.url)(), Replica()
    source.open(None, ITEMS)
    drain(source, replica)
    loaded = {key: dict(row) for key, row in replica.rows["public.items"].items()}
    assert len(loaded) == 2
    with psycopg.connect(
        database18.url, options="-c datestyle=German -c timezone=Asia/Tokyo -c bytea_output=escape"
    ) as other:
        other.execute("SET intervalstyle = iso_8601; SET extra_float_digits = 0; UPDATE items SET id = id + 10")
    drain(source, replica)
    changed = replica.rows["public.items"]
    assert {(key[0] - 10,): {**row, "id": row["id"] - 10} for key, row in changed.items()} == loaded
    database18.execute("INSERT INTO items (id, c3) VALUES (3, 'infinity')")
    refused = [one for one in drain(source, replica) if one.kind is RecordKind.QUARANTINE]
    assert json.loads(refused[0].detail)["after"]["c3"] == "infinity"
    source.close()


def test_another_history_stops_the_capture(captured: Any) -> None:
    database, source, replica = captured
    old = replica.records[-1].resume
    database.execute("UPDATE items SET price = 7")
    new = drain(source, replica)[-1].resume
    time.sleep(0.5)
    source.confirm(new)
    with pytest.raises(SlotLostError):
        maker(database.url)().open(old, ITEMS)
    other = maker(database.url)()
    other.open(None, ITEMS)
    other.close()
    with pytest.raises(SourceReplacedError):
        source.poll(0)


def test_drop_leaves_nothing_and_inspect_changes_nothing(captured: Any) -> None:
    database, source, _ = captured
    found = source.inspect(ITEMS)
    assert found.mode == "trigger"
    assert not any(one.blocking for one in found.remedies)
    source.drop()
    left = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE '%headwater%'"
    assert database.execute(left) == [(0,)]
    assert database.execute("SELECT to_regclass('headwater.shop_changes')") == [(None,)]
    database.execute("UPDATE items SET price = 8")
