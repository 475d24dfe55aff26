"""Columns in SQLite: values of every type are read back unchanged, and their stored form suits SQL."""

from __future__ import annotations

import math
import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import BadEventError, BadTypeError
from headwater.events import values_of
from headwater.store import ViewTable
from headwater.store.columns import storage_columns
from headwater.store.sqlite.columns import column_type, decode_columns, encode_columns
from tests.store.given import MOMENT, WINDOW

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def _decimals(kind):
    most = 10**kind.precision - 1
    return st.integers(-most, most).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -kind.scale)))


LEAVES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.date32(): st.dates(),
    MOMENT: st.datetimes(timezones=st.just(UTC)),
    **{
        kind: _decimals(kind)
        for kind in (pa.decimal128(1, 0), pa.decimal128(12, 2), pa.decimal128(38, 18), pa.decimal128(38, 38))
    },
}
KINDS = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda inner: st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        inner.map(lambda kind: pa.map_(pa.string(), pa.field("value", kind))),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"f{number}", kind) for number, kind in enumerate(kinds)])
        ),
    ),
    max_leaves=4,
)


def values(kind):
    if pa.types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_map(kind):
        found = st.dictionaries(TEXTS, values(kind.item_type), max_size=3).map(lambda d: list(d.items()))
    elif pa.types.is_list(kind):
        found = st.lists(values(kind.value_type), max_size=3)
    else:
        found = LEAVES[kind]
    return st.none() | found


@st.composite
def columns(draw):
    kinds = draw(st.lists(KINDS, min_size=1, max_size=4))
    count = draw(st.integers(0, 5))
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    arrays = [pa.array([draw(values(kind)) for _ in range(count)], kind) for kind in kinds]
    return pa.Table.from_arrays(arrays, schema=schema)


def through_sqlite(table, rows):
    """What is there after rows went into a real table and came out."""
    connection = sqlite3.connect(":memory:")
    names = [f'"{slot.name}"' for slot in storage_columns(table)]
    described = ", ".join(
        f"{name} {column_type(slot.kind)}" for name, slot in zip(names, storage_columns(table), strict=True)
    )
    connection.execute(f"CREATE TABLE t ({described})")
    marks = ", ".join("?" * len(names))
    connection.executemany(f"INSERT INTO t VALUES ({marks})", zip(*encode_columns(table, rows), strict=True))
    found = connection.execute("SELECT * FROM t").fetchall()
    connection.close()
    return decode_columns(table, list(zip(*found, strict=True)) or [[] for _ in names])


def same(one, other):
    """Equal, where NaN is NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@settings(max_examples=400)
@given(columns())
def test_every_type_comes_back_as_it_was(rows):
    found = through_sqlite(ViewTable("v", 1, rows.schema, ("c0",)), rows)
    assert found.schema == rows.schema
    for name in rows.column_names:
        before, after = (values_of(t.column(name).combine_chunks()) for t in (rows, found))
        assert same(before, after)


@given(st.lists(st.none() | st.tuples(LEAVES[MOMENT], LEAVES[MOMENT])))
def test_windows_come_back_as_they_were(pairs):
    schema = pa.schema([("w", WINDOW), ("n", pa.int64())])
    given_rows = [
        {"w": None if pair is None else {"start": pair[0], "end": pair[1]}, "n": n} for n, pair in enumerate(pairs)
    ]
    rows = pa.Table.from_pylist(given_rows, schema=schema)
    assert through_sqlite(ViewTable("v", 1, schema, ("w",), "w"), rows).equals(rows)


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (pa.bool_(), True, 1),
        (pa.decimal128(12, 2), Decimal("-0.5"), "-0.50"),
        (pa.decimal128(38, 18), Decimal(0), "0.000000000000000000"),
        (pa.float64(), float("nan"), "NaN"),
        (pa.float64(), float("-inf"), float("-inf")),
        (MOMENT, datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00.000000Z"),
        (MOMENT, datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00.000000Z"),
        (pa.date32(), date(2026, 1, 31), "2026-01-31"),
        (pa.list_(pa.decimal128(5, 1)), [Decimal(2)], '["2.0"]'),
        (pa.map_(pa.string(), pa.int64()), [("b", 1), ("a", 2)], '{"b":1,"a":2}'),
        (pa.struct([("at", MOMENT)]), {"at": datetime(2026, 1, 1, tzinfo=UTC)}, '{"at":"2026-01-01T00:00:00Z"}'),
        (pa.list_(pa.float64()), [math.inf, -math.inf, math.nan], '["Infinity","-Infinity","NaN"]'),
        (pa.list_(pa.string()), ["ü🌊"], '["ü🌊"]'),
    ],
)
def test_values_are_written_for_people(kind, value, written):
    rows = pa.Table.from_arrays([pa.array([value], kind)], names=["c"])
    assert encode_columns(ViewTable("v", 1, rows.schema, ("c",)), rows) == [[written]]


def test_a_slice_of_a_column_is_written_alone():
    rows = pa.table({"c": [[1], [2, 3], [4]], "n": [1, 2, 3]}).slice(1, 1)
    assert encode_columns(ViewTable("v", 1, rows.schema, ("n",)), rows) == [["[2,3]"], [2]]


@pytest.mark.parametrize("micros", [-62_135_596_800_000_001, 253_402_300_800_000_000])
def test_a_time_without_four_digits_is_refused(micros):
    rows = pa.table({"c": pa.array([micros], MOMENT)})
    with pytest.raises(BadEventError):
        encode_columns(ViewTable("v", 1, rows.schema, ("c",)), rows)


def test_a_day_without_four_digits_is_refused():
    rows = pa.table({"c": pa.array([2_932_897], pa.int32()).cast(pa.date32())})
    with pytest.raises(BadEventError):
        encode_columns(ViewTable("v", 1, rows.schema, ("c",)), rows)


def test_columns_that_differ_by_case_are_refused():
    with pytest.raises(BadTypeError):
        storage_columns(ViewTable("v", 1, pa.schema([("a", pa.int64()), ("A", pa.int64())]), ("a",)))


def test_a_column_beside_a_window_of_its_name_is_refused():
    with pytest.raises(BadTypeError):
        storage_columns(ViewTable("v", 1, pa.schema([("w", WINDOW), ("w.end", pa.int64())]), ("w",), "w"))


def test_a_type_that_cannot_be_kept_is_refused():
    with pytest.raises(BadTypeError):
        storage_columns(ViewTable("v", 1, pa.schema([("a", pa.duration("us"))]), ("a",)))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.map_(pa.int64(), pa.string()), [(-5, "a"), (7, None)]),
        (pa.map_(pa.bool_(), pa.string()), [(True, "a"), (False, "b")]),
        (pa.large_string(), "a"),
        (pa.large_binary(), b"\0"),
        (pa.null(), None),
    ],
)
def test_what_only_spark_makes_comes_back_too(kind, value):
    rows = pa.Table.from_arrays([pa.array([value], kind)], names=["c"])
    assert through_sqlite(ViewTable("v", 1, rows.schema, ("c",)), rows).equals(rows)
