"""Views as readers see them: rows by key, condition and order, open windows, positions."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadFilterError, BadKeyError, BadQueryError, UnknownViewError
from headwater.events import Position
from headwater.store import InputRange, ViewTable
from headwater.store.views.view_query import open_window_mask
from tests.store.given import BOTH, MINUTE, MOMENT, REVENUE, TOTALS, Runner, minute, read

STORES = BOTH
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SALES = [
    {"w": minute(0), "category": "books", "amount": Decimal("99.00")},
    {"w": minute(0), "category": "games", "amount": Decimal("100.00")},
    {"w": minute(1), "category": "books", "amount": Decimal("-7.50")},
    {"w": minute(2), "category": None, "amount": None},
]


@pytest.fixture
def sales(store):
    runner = Runner(store, REVENUE)
    runner.commit(SALES, watermark=MINUTE + 1)
    return runner


def amounts(rows):
    return [None if row["amount"] is None else float(row["amount"]) for row in rows]


def test_rows_have_the_values_of_python(sales, views):
    assert views.rows("revenue")[0] == {
        "w": {"start": EPOCH, "end": EPOCH + timedelta(minutes=1)},
        "category": "books",
        "amount": Decimal("99.00"),
    }


def test_a_row_is_found_by_its_key(sales, views):
    window = {"start": EPOCH, "end": EPOCH + timedelta(minutes=1)}
    for key in ((window, "games"), {"category": "games", "w": window}):
        assert amounts(views.rows("revenue", key=key)) == [100.0]


def test_a_row_is_found_by_a_null_in_its_key(sales, views):
    window = {"start": EPOCH + timedelta(minutes=2), "end": EPOCH + timedelta(minutes=3)}
    assert amounts(views.rows("revenue", key=(window, None))) == [None]


def test_a_key_that_is_not_there_finds_nothing(store, views):
    Runner(store).commit([{"k": "a", "n": 1}])
    assert views.rows("totals", key="a") == [{"k": "a", "n": 1}]
    assert views.rows("totals", key="b") == []


@pytest.mark.parametrize("key", [("a",), ("a", "b", "c"), {"w": 1}, {"nope": 1}, ("x", "y"), "a"])
def test_a_key_that_does_not_fit_is_told(sales, views, key):
    with pytest.raises(BadKeyError):
        views.rows("revenue", key=key)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("amount > 99", [100.0]),
        ("amount >= '99.000'", [99.0, 100.0]),
        ("amount = 100", [100.0]),
        ("amount < 0", [-7.5]),
        ("amount between 98.5 and 100.0", [99.0, 100.0]),
        ("amount in (99, 1e2)", [99.0, 100.0]),
        ("\"w.start\" = '1970-01-01T00:01:00Z'", [-7.5]),
        ("\"w.end\" <= '1970-01-01 00:01'", [99.0, 100.0]),
        ("\"w.end\" > '1970-01-01T02:01:00+02:00'", [-7.5, None]),
        ("category is null", [None]),
        ("category = 'books' -- no more", [99.0, -7.5]),
        ("category <> ')' and /* ( */ category like '%s'", [99.0, 100.0, -7.5]),
        ("w.start = '1970-01-01T00:01:00Z'", [-7.5]),
        ("upper(category) = 'GAMES' and amount > 1", [100.0]),
        ("amount * 2 = 198", [99.0]),
    ],
)
def test_a_condition_chooses_rows(sales, views, where, expected):
    assert amounts(views.rows("revenue", where=where)) == expected


@pytest.mark.parametrize(
    "where",
    [
        "",
        "  ",
        "1=1) union select 1, 2, 3, 4 from revenue where (1=1",
        "1=1); drop table x; --",
        "1 = 1;",
        "'",
        '"',
        "(",
        ")",
        "[x",
        "/* never closed",
        "nope = 1",
        "1 = (select count(*) from hw$outbox)",
        "load_extension('x')",
        "category in (select category from revenue)",
        "amount > 1 limit 5",
        "amount > 1 order by 1",
    ],
)
def test_what_is_not_one_condition_is_refused(sales, views, where):
    with pytest.raises(BadFilterError):
        views.rows("revenue", where=where)


def test_rows_are_sorted_as_numbers_and_times(sales, views):
    assert amounts(views.rows("revenue", order=["amount"])) == [None, -7.5, 99.0, 100.0]
    assert amounts(views.rows("revenue", order=["-w", "-amount"])) == [None, -7.5, 100.0, 99.0]


def test_a_limit_ends_the_rows(sales, views):
    assert len(views.rows("revenue", limit=2)) == 2
    assert amounts(views.rows("revenue", order=["-amount"], limit=1)) == [100.0]
    assert views.rows("revenue", where="amount > 0", limit=0) == []


def test_an_unknown_column_to_sort_by_is_told(sales, views):
    with pytest.raises(BadQueryError):
        views.rows("revenue", order=["nope"])


@pytest.mark.parametrize("options", [{}, {"where": "1=1"}, {"key": "a"}])
def test_an_unknown_view_is_told_with_a_near_name(sales, views, options):
    with pytest.raises(UnknownViewError) as caught:
        views.rows("revenues", **options)
    assert caught.value.fix == "revenue"


def test_a_table_has_the_types_of_the_view(sales, views):
    for options in ({}, {"where": "1 = 1"}, {"where": "1 = 0"}, {"limit": 0}):
        assert views.table("revenue", **options).schema == REVENUE.schema


def test_many_rows_come_back_whole(store, views):
    Runner(store).commit([{"k": str(number), "n": number} for number in range(12_000)])
    expected = list(range(12_000))
    assert sorted(views.table("totals", where="n >= 0").column("n").to_pylist()) == expected
    assert sorted(views.table("totals").column("n").to_pylist()) == expected


def open_windows(views, name):
    return open_window_mask(views.definition(name), views.table(name), views.watermark(name))


def test_a_window_is_open_until_the_watermark_passes(sales, views):
    assert open_windows(views, "revenue").to_pylist() == [False, False, True, True]
    sales.commit([{"w": None, "category": "x", "amount": None}], watermark=2 * MINUTE)
    assert open_windows(views, "revenue").to_pylist() == [False, False, False, True, None]


def test_without_a_watermark_every_window_is_open(store, views):
    Runner(store, REVENUE).commit(SALES)
    assert open_windows(views, "revenue").to_pylist() == [True] * 4


def test_rows_without_windows_are_neither_open_nor_closed(store, views):
    Runner(store).commit([{"k": "a", "n": 1}], watermark=5)
    assert open_windows(views, "totals").to_pylist() == [None]
    assert views.watermark("totals") == 5


def test_a_position_says_how_far_each_topic_was_read(store, views):
    runner = Runner(store)
    assert views.position("totals") == {}
    inputs = (InputRange("orders", {0: 0, 1: 0}, {0: 4, 1: 7}), InputRange("users", {0: 0}, {0: 2}))
    runner.commit(inputs=inputs)
    assert views.position("totals") == {
        "orders": Position.of("orders", {0: 4, 1: 7}),
        "users": Position.of("users", {0: 2}),
    }


def test_a_topic_read_twice_is_as_far_as_the_slower(store, views):
    Runner(store).commit(inputs=(InputRange("orders", {0: 0}, {0: 4}), InputRange("orders", {0: 0}, {0: 2})))
    assert views.position("totals") == {"orders": Position.of("orders", {0: 2})}


def test_readers_see_one_state_during_swaps(store, views):
    Runner(store).commit([{"k": "a", "n": 1}])
    failed = []

    def look():
        while not done.is_set():
            try:
                for options in ({}, {"where": "n > 0"}):
                    assert [row["n"] == 1 for row in views.rows("totals", **options)] == [True]
            except Exception as error:
                failed.append(error)

    done = threading.Event()
    reader = threading.Thread(target=look)
    reader.start()
    for version in range(2, 12):
        Runner(store, replace(TOTALS, version=version)).commit([{"k": "a", "n": 1}])
        store.make_current("totals", version)
    done.set()
    reader.join()
    assert failed == []


def test_a_condition_is_cancelled(store, views):
    cancel = threading.Event()
    cancel.set()
    Runner(store).commit([{"k": str(number), "n": number} for number in range(50_000)])
    with pytest.raises(BadQueryError) as caught:
        views.rows("totals", where="k like '%a%b'", cancel=cancel)
    assert caught.value.data["limit"] == "cancelled"


NUMBERS = st.none() | st.decimals(min_value=-9999, max_value=9999, places=2)


@given(
    st.lists(NUMBERS, min_size=1, max_size=30),
    st.decimals(-9999, 9999, places=1),
    st.sampled_from(["<", "<=", "=", "<>", ">"]),
)
def test_decimals_compare_as_in_duckdb(tmp_path_factory, numbers, bound, operator):
    from headwater.store import SqliteDialect, SqlStore, ViewReader

    store = SqlStore(SqliteDialect(tmp_path_factory.mktemp("store")))
    schema = pa.schema([("k", pa.int64()), ("d", pa.decimal128(12, 2)), ("at", MOMENT)])
    rows = [{"k": k, "d": d, "at": None if d is None else int(d * 10**6)} for k, d in enumerate(numbers)]
    Runner(store, ViewTable("d", 1, schema, ("k",))).commit(rows)
    views = ViewReader(store)
    found = [row["k"] for row in views.rows("d", where=f"d {operator} {bound}", order=["d", "k"])]
    given_rows = pa.Table.from_pylist(rows, schema=schema)  # noqa: F841
    order = "order by d nulls first, k"
    expected = duckdb.sql(f"select k from given_rows where d {operator} {bound} {order}").fetchall()
    assert found == [k for (k,) in expected]
    store.close()


def test_the_batches_read_are_those_of_the_current_version(store, views):
    Runner(store).commit(inputs=(read(0),))
    Runner(store, replace(TOTALS, version=2)).commit(inputs=(read(5),))
    assert views.position("totals")["orders"] == Position.of("orders", {0: 10})
    store.make_current("totals", 2)
    assert views.position("totals")["orders"] == Position.of("orders", {0: 60})
