"""The store in PostgreSQL: the contract of all stores, and what a DBA finds."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
import textwrap
from dataclasses import replace

import pyarrow as pa
import pytest

from headwater.errors import BadNameError, BadRowError, NewerFormatError, SchemaConflictError
from headwater.store import SqlStore, ViewReader, ViewTable
from headwater.store.commit.row_checks import MAX_KEY_BYTES, check_rows
from headwater.store.postgres import PostgresDialect
from tests.store.contract import StoreContract
from tests.store.given import MOMENT, REVENUE, TOTALS, WINDOW, Runner, aside, minute

STORES = ("postgres",)
KINDS = pa.schema(
    [
        *[("w", WINDOW), ("k", pa.string()), ("flag", pa.bool_()), ("small", pa.int16()), ("n", pa.int64())],
        *[("f", pa.float64()), ("amount", pa.decimal128(12, 2)), ("at", MOMENT), ("day", pa.date32())],
        *[("data", pa.binary()), ("tags", pa.list_(pa.string()))],
    ]
)


class TestPostgresDialect(StoreContract):
    def rows_of(self, store, name):
        return ViewReader(store).rows(name)


def ask(store, statement):
    with store.dialect.pool.session() as session:
        return session.connection.execute(statement).fetchall()


def test_everything_is_there_after_opening_again(url):
    store = SqlStore(PostgresDialect(url))
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}], late=(aside(1),), quarantined=(aside(2, data=b"x", reason="no\0nul"),))
    before = (store.last_entry(runner.query), runner.changes())
    store.close()
    again = SqlStore(PostgresDialect(url))
    assert (again.last_entry(runner.query), [again.outbox(runner.query)[0].changes.num_rows]) == (before[0], [1])
    assert again.open_epoch(runner.query) == 2
    again.close()


def test_columns_have_the_types_that_are_expected(store):
    store.create(ViewTable("kinds", 1, KINDS, ("w", "k"), "w"))
    found = ask(
        store,
        "select column_name, data_type, numeric_precision, numeric_scale from information_schema.columns"
        " where table_schema = 'headwater_views' and table_name = 'kinds' order by ordinal_position",
    )
    assert [(name, kind) for name, kind, *_ in found] == [
        *[("w.start", "timestamp with time zone"), ("w.end", "timestamp with time zone"), ("k", "text")],
        *[("flag", "boolean"), ("small", "smallint"), ("n", "bigint"), ("f", "double precision")],
        *[("amount", "numeric"), ("at", "timestamp with time zone"), ("day", "date"), ("data", "bytea")],
        ("tags", "jsonb"),
    ]
    assert found[7][2:] == (12, 2)


def test_a_store_of_a_newer_format_is_not_touched(store, url):
    with store.dialect.pool.session() as session:
        session.execute("UPDATE hw$format SET format = format + 1")
    with pytest.raises(NewerFormatError):
        SqlStore(PostgresDialect(url))


def test_system_views_of_an_older_text_are_made_anew(store, url):
    with store.dialect.pool.session() as session:
        session.execute("UPDATE hw$format SET views = 'old'")
        session.execute("DROP VIEW headwater_views.hw_late")
    again = SqlStore(PostgresDialect(url))
    assert ViewReader(again).sql("select count(*) from hw_late").rows == [(0,)]
    again.close()


def test_a_table_that_was_changed_by_hand_is_told(store):
    store.create(TOTALS)
    with store.dialect.pool.session() as session:
        session.execute("DROP VIEW headwater_views.totals")
        session.execute("ALTER TABLE headwater.v1_totals ALTER n TYPE text")
    with pytest.raises(SchemaConflictError) as caught:
        store.create(TOTALS)
    assert caught.value.detail == "exists: k text, n text\nexpected: k text, n bigint"


def test_a_table_in_the_way_is_told(store):
    with store.dialect.pool.session() as session:
        session.execute("CREATE TABLE headwater.v1_totals (x text)")
    with pytest.raises(SchemaConflictError):
        store.create(TOTALS)
    assert store.current_table("totals") is None


def test_a_table_that_was_dropped_by_hand_is_told(store):
    runner = Runner(store)
    with store.dialect.pool.session() as session:
        session.execute("DROP TABLE headwater.v1_totals CASCADE")
    with pytest.raises(SchemaConflictError):
        runner.commit([{"k": "a", "n": 1}])
    assert store.last_entry(runner.query) is None


def test_names_too_long_for_the_server_are_refused(store):
    with pytest.raises(BadNameError):
        store.create(replace(TOTALS, name="x" * 60))


def test_names_that_differ_by_case_are_refused(store):
    store.create(TOTALS)
    with pytest.raises(BadNameError):
        store.create(replace(TOTALS, name="Totals"))


def test_the_longest_key_fits_into_the_index(store):
    noise = "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(40))[:MAX_KEY_BYTES]
    assert Runner(store).commit([{"k": noise, "n": 1}])


def longest(kind: pa.DataType, values: list) -> ViewTable:
    """The longest prefix of a list that may be a key, and its view."""
    view = ViewTable("nested", 1, pa.schema([("k", kind), ("n", pa.int64())]), ("k",))
    for end in range(len(values), 0, -1):
        with contextlib.suppress(BadRowError):
            check_rows(view, pa.Table.from_pylist([{"k": values[:end], "n": 1}], view.schema))
            return view, values[:end]
    raise AssertionError


def test_the_longest_nested_key_fits_into_the_index(store):
    noise = [int.from_bytes(hashlib.sha256(bytes([n % 251, n // 251])).digest()[:7]) for n in range(400)]
    kinds = [
        (pa.list_(pa.int64()), noise),
        (pa.list_(pa.int64()), [number % 10 for number in noise]),
        (pa.list_(pa.string()), [f"{number:x}" for number in noise]),
        (pa.list_(pa.float64()), [number / 2**60 for number in noise]),
        (pa.list_(pa.struct([("a", pa.bool_())])), [{"a": bool(number % 2)} for number in noise]),
    ]
    for number, (kind, values) in enumerate(kinds):
        view, key = longest(kind, values)
        assert Runner(store, replace(view, name=f"nested{number}")).commit([{"k": key, "n": 1}])


@pytest.mark.parametrize("k", ["a\0", "x" * (MAX_KEY_BYTES + 1)])
def test_staged_rows_are_checked_too(store, k):
    store.create(TOTALS)
    with pytest.raises(BadRowError):
        store.dialect.stage(TOTALS, 0, pa.table({"k": [k], "n": [1]}, TOTALS.schema))


def test_a_commit_waits_for_the_disk_whatever_the_database_says(postgres):
    name = postgres.database()
    postgres.execute(name, f"ALTER DATABASE {name} SET synchronous_commit = off")
    store = SqlStore(PostgresDialect(postgres.url(name)))
    assert ask(store, "show synchronous_commit") == [("on",)]
    store.close()


@pytest.mark.parametrize("key", ["9", None])
def test_a_small_batch_in_a_large_table_looks_by_the_index(store, key):
    """The cost of a batch grows with its rows, not with the table's."""
    from headwater.store.postgres.upsert import PostgresViewWriter

    runner = Runner(store)
    runner.commit([{"k": str(number), "n": number} for number in range(30_000)])
    write = PostgresViewWriter(TOTALS, runner.work([{"k": key, "n": -1}]))
    with store.dialect.pool.session() as session:
        write.prepare(session)
        with session.connection.transaction(force_rollback=True):
            write.stage(session)
            write.apply(session, None)
            plan = session.connection.execute(f"EXPLAIN {write._upsert_sql()}").fetchall()
    assert "v1_totals$key" in str(plan)
    assert "Seq Scan on v1_totals v" not in str(plan)


def test_finals_and_windows_beside_the_key(store):
    session = ViewTable("s", 1, pa.schema([("w", WINDOW), ("k", pa.string())]), ("k",), "w")
    runner = Runner(store, session)
    runner.commit([{"w": minute(0), "k": "a"}, {"w": None, "k": "b"}])
    runner.commit([{"w": None, "k": "a"}, {"w": minute(1), "k": "b"}])
    assert [(op, before["w"] is None, after["w"] is None) for op, before, after in runner.changes()[1]] == [
        ("update", False, True),
        ("update", True, False),
    ]


NO_DRIVER = """
    import sys
    sys.modules["psycopg"] = None
    import headwater, headwater.store
    from headwater.errors import MissingPackageError
    try:
        import headwater.store.postgres
    except MissingPackageError as error:
        print(error.fix)
"""


def test_without_the_driver_the_line_that_installs_it_is_told():
    command = [sys.executable, "-c", textwrap.dedent(NO_DRIVER)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == 'pip install "headwater[postgres]"\n'


def test_a_swap_drops_the_older_tables(store):
    Runner(store, REVENUE)
    Runner(store, replace(REVENUE, version=2))
    store.make_current("revenue", 2)
    tables = "select relname from pg_class where relkind = 'r' and relname like 'v%_revenue'"
    assert ask(store, tables) == [("v2_revenue",)]


def test_the_size_of_each_table_is_known(store):
    Runner(store).commit([{"k": str(number), "n": number} for number in range(2_000)])
    found = store.dialect.table_sizes()
    assert found["v1_totals"] > 2_000 * 20
    assert found["ledger"] > 0
