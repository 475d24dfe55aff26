"""Rows that no store holds are found before a transaction, with row and column."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import BadRowError
from headwater.store import ViewTable
from headwater.store.commit.row_checks import MAX_KEY_BYTES, MAX_ROW_BYTES, check_rows, find_large_rows, plain_text

NESTED = pa.struct([("tags", pa.list_(pa.string())), ("by", pa.map_(pa.string(), pa.string()))])
SCHEMA = pa.schema(
    [("k", pa.string()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("x", NESTED)]
)
VIEW = ViewTable("notes", 1, SCHEMA, ("k",))
GOOD = {"k": "a", "text": "é \x01 \u20ac", "at": datetime(9999, 12, 31, tzinfo=UTC), "x": {"tags": ["t"], "by": []}}


def rows_with(**bad: Any) -> pa.Table:
    """Four rows, of which the third has these values; in two chunks."""
    values = [GOOD | {"k": name} for name in "abcd"]
    values[2] |= bad
    return pa.concat_tables(
        [pa.Table.from_pylist(values[:1], SCHEMA), pa.Table.from_pylist(values[1:], SCHEMA).slice(0)]
    )


def test_ordinary_rows_are_right():
    check_rows(VIEW, rows_with())
    check_rows(VIEW, rows_with(k=None, text=None, at=None, x=None))
    check_rows(VIEW, SCHEMA.empty_table())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("k", "c\0"),
        ("text", "\0"),
        ("x", {"tags": ["fine", "\0"], "by": []}),
        ("x", {"tags": [], "by": [("a\0", "")]}),
        ("x", {"tags": [], "by": [("a", "\0")]}),
        ("day", 2_932_897),  # 10000-01-01
    ],
)
def test_the_first_bad_value_is_named(column: str, value: Any):
    rows = rows_with()
    if column == "day":
        days = pa.array([None, None, value, None], pa.int32()).view(pa.date32())
        rows = rows.set_column(3, SCHEMA.field("day"), days)
    else:
        rows = rows_with(**{column: value})
    with pytest.raises(BadRowError) as caught:
        check_rows(VIEW, rows)
    assert (caught.value.data["view"], caught.value.data["column"]) == ("notes", column)
    assert ("c" in caught.value.data["key"]) is True


def test_text_that_is_not_utf8_is_found():
    bad = pa.array([b"a", b"b", b"\xff", b"d"], pa.binary()).view(pa.string())
    with pytest.raises(BadRowError) as caught:
        check_rows(VIEW, rows_with().set_column(1, SCHEMA.field("text"), bad))
    assert caught.value.data["column"] == "text"


def test_a_key_fits_into_an_index_of_postgresql():
    check_rows(VIEW, rows_with(k="x" * MAX_KEY_BYTES))
    check_rows(VIEW, rows_with(text="x" * 10_000))
    with pytest.raises(BadRowError):
        check_rows(VIEW, rows_with(k="x" * (MAX_KEY_BYTES - 1) + "é"))


@pytest.mark.parametrize(
    ("kind", "fits", "too_large"),
    [
        (pa.struct([("name", pa.string())]), {"name": "x" * 2_400}, {"name": "x" * MAX_KEY_BYTES}),
        (pa.list_(pa.int64()), [7] * 150, [7] * 300),
        (pa.list_(pa.string()), ["é" * 1_000], ["é" * 1_300]),
    ],
)
def test_a_nested_key_fits_into_an_index_of_postgresql(kind: pa.DataType, fits: Any, too_large: Any):
    view = ViewTable("notes", 1, pa.schema([("k", kind), ("n", pa.string())]), ("k", "n"))
    check_rows(view, pa.Table.from_pylist([{"k": None, "n": "a"}, {"k": fits, "n": "b"}], view.schema))
    with pytest.raises(BadRowError) as caught:
        check_rows(view, pa.Table.from_pylist([{"k": fits, "n": "a"}, {"k": too_large, "n": "bad"}], view.schema))
    assert "bad" in caught.value.data["key"]


def test_a_row_fits_into_an_event():
    check_rows(VIEW, rows_with(text="x" * (MAX_ROW_BYTES - 2_000)))
    with pytest.raises(BadRowError) as caught:
        check_rows(VIEW, rows_with(text="x" * MAX_ROW_BYTES))
    assert caught.value.data["key"] == "k = 'c'"


def test_large_rows_are_found_among_small_ones():
    rows = pa.table({"text": ["x" * size for size in (5, 900, 7, 8, 2_000, 1)]})
    assert list(find_large_rows(rows, 500)) == [1, 4]


def test_every_text_can_be_stored_as_escapes():
    assert plain_text("plain é") == "plain é"
    assert plain_text("a\0b\ud800") == "a\\x00b\\ud800"
