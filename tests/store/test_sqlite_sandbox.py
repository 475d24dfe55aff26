"""SQL of users: it reads views and nothing else, and ends in time whatever it tries."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import threading
import time
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadQueryError
from headwater.sql.guard import DECIMAL_COLLATION
from headwater.store import QueryLimits, SqliteDialect, SqlStore
from headwater.store.sqlite.sandbox import TIMESTAMP_COLLATION, add_functions
from tests.store.given import REVENUE, Runner, aside, minute
from tests.store.hostile import EXHAUSTING, hostile

SHORT = QueryLimits(time=timedelta(milliseconds=200), memory=128 << 20)
SECRET = "canary-in-the-outbox"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One store for all tests: none of them can change it."""
    store = SqlStore(SqliteDialect(tmp_path_factory.mktemp("store")))
    runner = Runner(store)
    runner.commit([{"k": "a", "n": 1}, {"k": SECRET, "n": 2}], late=(aside(1),))
    runner.commit(deletes=pa.table({"k": [SECRET]}))
    store.skip(runner.query, [aside(9, value=SECRET)])
    Runner(store, REVENUE).commit([{"w": minute(0), "category": "x", "amount": 1}])
    yield store
    store.close()


def content(store):
    """Everything in the folder that a query could have changed, and everything in the store."""
    files = sorted(path.name for path in store.dialect.folder.iterdir())
    dump = "\n".join(store.dialect.connection.iterdump())
    return files, hashlib.sha256(dump.encode()).hexdigest()


# -- what is allowed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("select k, n from totals", [("a", 1)]),
        ("select count(*) from totals", [(1,)]),
        ("SELECT t.n + 1 FROM totals AS t WHERE t.k LIKE 'A%'", [(2,)]),
        ("with big as (select n from totals) select count(*) from big", [(1,)]),
        ("with recursive c(x) as (select 1 union all select x + 1 from c where x < 5) select sum(x) from c", [(15,)]),
        ("select value from json_each('[1,2]')", [(1,), (2,)]),
        ("""select '{"a":3}' ->> 'a'""", [(3,)]),
        ("select row_number() over (order by n) from totals", [(1,)]),
        ("values (1, 'x')", [(1, "x")]),
        ("select name, in_, used, unaccounted from hw_pipelines where name = 'totals'", [("totals", 20, 20, 0)]),
        ("select count(*) from hw_batches", [(3,)]),
        ('select pipeline, topic, "offset" from hw_late', [("totals", "orders", 1)]),
        ("select count(*) from hw_quarantine", [(0,)]),
        (
            "select replace('aXbX', 'X', 'yy'), instr('abc', 'c'), trim('  a '), ltrim('xxa', 'x')",
            [("ayybyy", 3, "a", "a")],
        ),
        ("select instr(x'0102', x'02'), replace(12, 1, 3), instr(null, 'a'), trim(null)", [(2, "32", None, None)]),
        ('select amount, "w.start" from revenue', [("1", "1970-01-01T00:00:00Z")]),
        ('select max(amount) from revenue group by "w.start"', [("1",)]),
        ("select a.k from totals a join totals b on a.k = b.k", [("a",)]),
        ("select 'a;b' -- ; drop table totals", [("a;b",)]),
        (
            "select date('2026-01-31', '+1 day'), upper('x'), coalesce(null, 1), abs(-1), round(1.26, 1)",
            [("2026-02-01", "X", 1, 1, 1.3)],
        ),
    ],
)
def test_a_query_over_views_is_answered(views, text, rows):
    answer = views.sql(text)
    assert (answer.rows, answer.complete) == (rows, True)


def test_parameters_are_values(views):
    assert views.sql("select k from totals where k = ?", ["a' or 1=1"]).rows == []
    assert views.sql("select ? || ?", ["a", "b"]).columns == ("? || ?",)


def test_text_that_is_not_unicode_is_shown(views):
    assert views.sql("select cast(x'ff41' as text)").rows == [("�A",)]


def test_an_answer_becomes_columns(views):
    assert views.sql("select 1 as a union all select 'x'").table().to_pylist() == [{"a": "1"}, {"a": "x"}]
    assert views.sql("select n from totals where n > 5").table().num_rows == 0


def test_an_answer_is_cut_at_its_rows(views):
    many = "with recursive c(x) as (select 1 union all select x + 1 from c) select x from c"
    answer = views.sql(many, limits=QueryLimits(rows=10))
    assert (len(answer.rows), answer.complete) == (10, False)


def test_an_answer_is_cut_at_its_bytes(views):
    many = "with recursive c(x) as (select 1 union all select x + 1 from c) select printf('%1000d', x) from c"
    answer = views.sql(many, limits=QueryLimits(size=10_000))
    assert (len(answer.rows), answer.complete) == (10, False)


# -- what is refused --------------------------------------------------------------------------------------------------


def test_hostile_statements_are_refused_and_change_nothing(store, views):
    statements = list(hostile())
    assert len(statements) >= 500
    before = content(store)
    answered, refusals = [], []
    for text in statements:
        try:
            answered.append((text, views.sql(text, limits=SHORT)))
        except BadQueryError as refusal:
            refusals.append(f"{refusal} {refusal.data}")
    assert answered == []
    assert not [refusal for refusal in refusals if SECRET in refusal]
    assert content(store) == before


@pytest.mark.parametrize(
    "text", ["select 1\0", "\0", "select '\ud800'", "x" * 200_000, "select " + "(" * 500 + "1" + ")" * 500]
)
def test_text_that_cannot_be_sql_is_refused(views, text):
    with pytest.raises(BadQueryError):
        views.sql(text)


def test_a_refusal_says_what_was_refused(views):
    for text, word in (
        ("select load_extension('x')", "load_extension"),
        ("pragma user_version", "user_version"),
        ("attach 'x' as y", "other databases"),
        ("select * from hw$skips", "hw$skips"),
        ("delete from v1_totals", "only read"),
        ("select nope from totals", "no such column: nope"),
    ):
        with pytest.raises(BadQueryError) as caught:
            views.sql(text)
        assert word in caught.value.what


# -- exhaustion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXHAUSTING)
def test_a_query_that_takes_too_much_is_ended(views, name):
    start = time.monotonic()
    try:
        answer = views.sql(EXHAUSTING[name], limits=SHORT)
    except BadQueryError:
        pass
    else:
        assert sum(len(str(row)) for row in answer.rows) < 2 * SHORT.size
    assert time.monotonic() - start < 3


def test_a_query_says_which_limit_it_reached(views):
    for name, limit in (("recursion", "time"), ("union of long rows", "memory"), ("concatenation", "cell")):
        with pytest.raises(BadQueryError) as caught:
            views.sql(EXHAUSTING[name], limits=SHORT if limit != "memory" else QueryLimits(memory=50 << 20))
        assert caught.value.data["limit"] == limit


def test_a_query_is_cancelled_from_another_thread(views):
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    start = time.monotonic()
    with pytest.raises(BadQueryError) as caught:
        views.sql(EXHAUSTING["recursion"], limits=QueryLimits(time=timedelta(seconds=60)), cancel=cancel)
    assert caught.value.data["limit"] == "cancelled"
    assert time.monotonic() - start < 5


def test_queries_do_not_wait_for_one_another(views):
    cancel = threading.Event()

    def ask():
        with contextlib.suppress(BadQueryError):
            views.sql(EXHAUSTING["recursion"], limits=QueryLimits(time=timedelta(seconds=60)), cancel=cancel)

    slow = threading.Thread(target=ask)
    slow.start()
    assert views.sql("select n from totals").rows == [(1,)]
    assert slow.is_alive()
    cancel.set()
    slow.join()


# -- functions and collations -----------------------------------------------------------------------------------------


TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
FEW = st.none() | st.text("ab ", max_size=5)


@pytest.fixture(scope="module")
def pair():
    ours, theirs = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    add_functions(ours, 1_000)
    yield ours, theirs
    ours.close()
    theirs.close()


@given(
    st.sampled_from(
        ["replace(?1, ?2, ?3)", "instr(?1, ?2)", "trim(?1)", "trim(?1, ?2)", "ltrim(?1, ?2)", "rtrim(?1, ?2)"]
    ),
    st.tuples(TEXT, TEXT, TEXT) | st.tuples(FEW, FEW, FEW) | st.tuples(st.integers(0, 999), st.integers(0, 9), FEW),
)
def test_a_replaced_function_gives_what_sqlite_gives(pair, call, values):
    text = f"SELECT {call}, ?1, ?2, ?3"
    ours, theirs = (connection.execute(text, values).fetchone()[0] for connection in pair)
    assert ours == theirs


def compared(connection, one, sign, other, order):
    return connection.execute(f"SELECT ? {sign} ? COLLATE {order}", (one, other)).fetchone() == (1,)


@pytest.mark.parametrize(
    ("one", "sign", "other"),
    [
        ("99.00", "<", "100"),
        ("-2", "<", "-1.5"),
        ("1.50", "=", "1.5"),
        ("1e2", "=", "100.00"),
        ("5", "<", "abc"),
        ("abc", "<", "abd"),
        ("abc", ">", "1e999"),
        ("NaN", ">", "5"),
    ],
)
def test_decimals_are_ordered_as_numbers(pair, one, sign, other):
    assert compared(pair[0], one, sign, other, DECIMAL_COLLATION)


@pytest.mark.parametrize(
    ("one", "sign", "other"),
    [
        ("2026-01-01T00:00:00.000000Z", "=", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.000000Z", "=", "2026-01-01"),
        ("2026-01-01T00:00:00.000000Z", "=", "2026-01-01 01:00:00+01:00"),
        ("2026-01-01T00:00:00.000001Z", ">", "2026-01-01T00:00:00Z"),
        ("0009-01-01T00:00:00.000000Z", "=", "0009-01-01T00:00:00"),
        ("2026-01-01T00:00:00.000000Z", "<", "tomorrow"),
    ],
)
def test_times_are_ordered_as_times(pair, one, sign, other):
    assert compared(pair[0], one, sign, other, TIMESTAMP_COLLATION)
