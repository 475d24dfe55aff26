"""Our functions and orders in users' queries: as SQLite's own where those are sound."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.sql.guard import DECIMAL_COLLATION
from headwater.store.sqlite.sandbox import TIMESTAMP_COLLATION, add_functions

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
