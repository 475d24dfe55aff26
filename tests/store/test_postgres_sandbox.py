"""SQL of users on PostgreSQL: it reads views and nothing else, and ends in time whatever it tries."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from headwater.errors import BadQueryError
from headwater.sql.guard import check_select
from headwater.store import QueryLimits, SqlStore, ViewTable
from headwater.store.postgres import PostgresDialect
from headwater.store.postgres.sandbox import PostgresSandbox
from headwater.store.protocol import TableRows
from tests.store.given import REVENUE, Runner, aside, minute

pytestmark = pytest.mark.services
SHORT = QueryLimits(time=timedelta(milliseconds=400))
SECRET = "canary-in-the-outbox"


@pytest.fixture(scope="module")
def store(postgres):
    """One store for all tests: none of them can change it."""
    store = SqlStore(PostgresDialect(postgres.url(postgres.emptied())))
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}, {"k": SECRET, "n": 2}], late=(aside(1),))
    runner.commit(deletes=pa.table({"k": [SECRET]}))
    store.skip(runner.query, [aside(9, value=SECRET)])
    Runner(store, REVENUE).commit([{"w": minute(0), "category": "x", "amount": 1}])
    yield store
    store.close()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("select k, n from totals", [("a", 1)]),
        ("SELECT t.n + 1 FROM totals AS t WHERE t.k ILIKE 'A%'; -- the end", [(2,)]),
        ("with big as (select n from totals) select count(*) from big", [(1,)]),
        ("with recursive c(x) as (select 1 union all select x + 1 from c where x < 5) select sum(x) from c", [(15,)]),
        ("select value from jsonb_each('{\"a\":1}') as j(key, value)", [("1",)]),
        ("select row_number() over (order by n) from totals", [(1,)]),
        ("values (1, 'x')", [(1, "x")]),
        ("select name, in_, used, unaccounted from hw_pipelines where name = 'totals'", [("totals", 20, 20, 0)]),
        ("select count(*) from hw_batches", [(3,)]),
        ('select pipeline, topic, "offset" from hw_late', [("totals", "orders", 1)]),
        ('select amount, "w.start" from revenue', [("1", "1970-01-01T00:00:00Z")]),
        ("select sum(n), sum(n) * 1.5, max(n) > 0, cast(null as text) from totals", [(1, "1.5", True, None)]),
        ("select 'a;b', $$pg_class('$$, E'it\\'s; (' -- ; drop table totals", [("a;b", "pg_class('", "it's; (")]),
        ("select date '2026-01-31' + interval '1 day'", [("2026-02-01 00:00:00",)]),
        ("select n from totals where k in ('a', 'b') and n between 0 and 5", [(1,)]),
        ("select count(*) filter (where n > 0) from totals", [(1,)]),
    ],
)
def test_a_query_reads_views(store, views, text, rows):
    assert views.sql(text).rows == rows


def test_parameters_stand_for_values(store, views):
    assert views.sql("select n from totals where k = ? and n > ? -- ?", ("a", 0)).rows == [(1,)]
    assert views.sql("select '?' || ?", ("x",)).rows == [("?x",)]


PRODUCTS = TableRows(
    ViewTable("Products", 1, pa.schema([("k", pa.string()), ("price", pa.decimal128(20, 10))]), ("k",)),
    pa.table({"k": ["a", "ä,\n"], "price": [Decimal("2328.28"), None]}).cast(
        pa.schema([("k", pa.string()), ("price", pa.decimal128(20, 10))])
    ),
)


def test_a_table_of_the_log_is_a_relation_of_one_query(store, views):
    text = 'select p.k, p.price, t.n from "Products" p left join totals t using (k) order by 1'
    assert views.sql(text, tables=[PRODUCTS]).rows == [("a", "2328.28", 1), ("ä,\n", None, None)]
    with pytest.raises(BadQueryError) as caught:
        views.sql(text)
    assert "relation" in caught.value.data


HOSTILE = [
    *["", "   ", "-- nothing", "nope", "explain select 1", "select nope from totals"],
    *["select 1; select 2", "select * from headwater.outbox", "select * from headwater.v1_totals"],
    *["select * from outbox", "table headwater.skips", "insert into totals values ('x', 1)"],
    *["update totals set n = 2", "delete from totals", "drop view totals", "truncate totals"],
    *["create table x (a int)", "create temp table x (a int)", "alter table totals rename to x"],
    *["grant all on totals to public", "set role postgres", "reset role", "set statement_timeout = 0"],
    *["commit", "rollback; drop schema headwater cascade"],
    *["select 1; commit; drop schema headwater cascade; --", "copy totals to '/tmp/x'"],
    *["copy (select 1) to program 'id'", "do $$ begin end $$", "call x()", "vacuum", "listen headwater"],
    *["notify headwater", "lock table totals", "prepare x as select 1", "declare c cursor for select 1"],
    *["with x as (delete from totals returning *) select * from x", "select * from totals for update"],
    *["select * into x from totals", "select pg_read_file('/etc/passwd')", "select pg_ls_dir('.')"],
    *["select pg_sleep(100)", "select set_config('role', 'postgres', false)"],
    *["select pg_catalog.set_config('role', 'postgres', false)"],
    *['select "set_config"(\'role\', \'postgres\', false)'],
    *["select set_config ('role', 'postgres', true)", "select set_config/* */('role', 'postgres', true)"],
    *['select U&"\\0073et_config"(\'role\', \'postgres\', true)'],
    *["select query_to_xml('select 1', true, true, '')", "select lo_import('/etc/passwd')"],
    *["select current_setting('x')", "select * from pg_class", "select * from pg_catalog.pg_authid"],
    *['select * from "pg_class"', 'select * from U&"pg\\005fclass"'],
    *["select * from information_schema.tables", "select current_user", "select session_user"],
    *["select user", "select inet_server_addr()", "select version()", "select txid_current()"],
    *["select nextval('x')", "select pg_backend_pid()", "select dblink('x', 'y')"],
    *["select xmlparse(document 'x')", "select repeat('x', 100000000)", "select lpad('x', 1000000000)"],
    *["select format('%1000000000s', 'x')", "select 'x", 'select "x', "select $$x", "select /* x"],
    *["select E'x\\", "select \0 1", "select E'\\''; drop schema headwater cascade; --'"],
    *["select $a$ $b$; drop schema headwater cascade; --$a$ "],
    *["select /* /* */ 1; drop schema headwater cascade; --*/ */ 1", "select a.abs(1)"],
    *["select public.abs(1)", 7, "select 1 operator(pg_catalog.+) 1", "select @@role", "select _utf8 'x'"],
    *["select U&'\\0041'", "select n::pg_catalog.oid from totals", "select 'x' \\g", "select 1 /*+ x */ for update"],
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_query_does_nothing_else(store, views, text):
    try:
        rows = views.sql(text, limits=SHORT).rows
    except BadQueryError:
        rows = []
    assert SECRET not in str(rows)
    assert rows in ([], [(" $b$; drop schema headwater cascade; --",)])
    assert views.sql("select k, n from totals").rows == [("a", 1)]
    assert store.last_entry("totals@1").batch == 1


@pytest.mark.parametrize(
    "text", ["select set_config('role', 'x', true)", "select * from pg_class", "select 1; select 2"]
)
def test_what_the_guard_refuses_never_reaches_the_server(text):
    with pytest.raises(BadQueryError):
        check_select(text)


@pytest.mark.parametrize(
    "text",
    [
        *["SELECT * FROM headwater.outbox", "SELECT * FROM headwater.v1_totals", "SELECT pg_read_file('PG_VERSION')"],
        *["INSERT INTO headwater_views.totals VALUES ('x', 1)", "CREATE TABLE headwater_views.x (a int)"],
    ],
)
def test_the_role_alone_can_do_nothing_either(store, text):
    """Without the guard: the role is a protection of its own."""
    with store.dialect.pool.session() as session, session.connection.transaction(force_rollback=True):
        session.execute_raw("SET LOCAL ROLE headwater_reader")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute_raw(text)


@pytest.mark.parametrize("text", ["select * from headwater.outbox", "select pg_read_file('PG_VERSION')"])
def test_a_query_runs_under_the_role_whatever_it_says(store, text):
    with PostgresSandbox(store.dialect.pool, SHORT) as sandbox, pytest.raises(BadQueryError) as caught:
        sandbox.query(text)
    assert isinstance(caught.value.__context__, psycopg.errors.InsufficientPrivilege)
    with PostgresSandbox(store.dialect.pool, SHORT) as sandbox:
        assert sandbox.query("select current_user::text").rows == [("headwater_reader",)]


def test_a_transaction_of_a_query_cannot_write(store):
    read_only = psycopg.errors.ReadOnlySqlTransaction
    with PostgresSandbox(store.dialect.pool, SHORT, role=None) as sandbox, pytest.raises(read_only):
        sandbox._session.execute_raw("CREATE TABLE headwater.x (a int)")


ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c) select max(x) from c"


@pytest.mark.parametrize(
    "text", [ENDLESS, "select count(*) from generate_series(1, 100000) a, generate_series(1, 100000) b"]
)
def test_a_query_ends_in_time(store, views, text):
    start = time.monotonic()
    with pytest.raises(BadQueryError) as caught:
        views.sql(text, limits=SHORT)
    assert caught.value.data["limit"] == "time"
    assert time.monotonic() - start < 5


def test_a_query_is_cancelled(store, views):
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    with pytest.raises(BadQueryError) as caught:
        views.sql(ENDLESS, cancel=cancel)
    assert caught.value.data["limit"] == "cancelled"
    assert views.sql("select 1").rows == [(1,)]


def test_rows_beyond_the_limits_are_left_out(store, views):
    answer = views.sql("select x from generate_series(1, 100000) as s(x)", limits=QueryLimits(rows=10))
    assert (len(answer.rows), answer.complete) == (10, False)
    answer = views.sql("select md5('x') from generate_series(1, 100000)", limits=QueryLimits(size=1_000))
    assert (len(answer.rows), answer.complete) == (31, False)
    assert views.sql("select 1 where false").complete
