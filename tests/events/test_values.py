import enum
import sys
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadEventError
from headwater.events import to_row, values_of
from headwater.events.values import format_decimal, format_moment, preview, to_json_value, trim_zeros
from tests.events.strategies import decimals, moments, types, values


@given(types.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(st.none() | values(kind), max_size=6))))
def test_values_of_equals_what_arrow_itself_says(case):
    kind, given_values = case
    column = pa.array(given_values, kind)
    assert values_of(column) == column.to_pylist(maps_as_pydicts="strict")


@given(types.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(st.none() | values(kind), min_size=3))))
def test_a_slice_gives_the_slice_of_the_values(case):
    kind, given_values = case
    column = pa.array(given_values, kind)
    assert values_of(column.slice(1, 2)) == values_of(column)[1:3]


def test_moments_are_aware_and_exact_at_the_ends_of_time():
    ends = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), None]
    back = values_of(pa.array(ends, pa.timestamp("us", "UTC")))
    assert back == ends
    assert all(moment is None or moment.tzinfo is UTC for moment in back)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30))
def test_decimal_text_means_the_same_number(number):
    if abs(number.adjusted()) > 76:
        return
    text = format_decimal(number)
    assert Decimal(text) == number
    assert "E" not in text
    assert not ("." in text and text.endswith(("0", ".")))


@given(decimals)
def test_trailing_zeros_never_change_the_text(number):
    padded = number.quantize(Decimal("0.00000"))
    assert format_decimal(padded) == format_decimal(number) == trim_zeros(str(padded))


@pytest.mark.parametrize(
    ("digits", "expected"), [("-0.00", "0"), ("0E-18", "0"), ("1E+3", "1000"), ("-1.50", "-1.5"), ("100", "100")]
)
def test_digits_are_trimmed_and_written_out(digits, expected):
    assert trim_zeros(digits) == format_decimal(Decimal(digits)) == expected


@given(moments, st.integers(-14 * 60, 14 * 60))
def test_zones_never_change_the_text(moment, minutes):
    elsewhere = moment.astimezone(timezone(timedelta(minutes=minutes)))
    assert format_moment(elsewhere) == format_moment(moment)
    assert datetime.fromisoformat(format_moment(moment)) == moment


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1E+1000", "1E-1000"])
def test_numbers_without_plain_digits_are_refused(number):
    with pytest.raises(ValueError, match="decimal form"):
        format_decimal(Decimal(number))


class Size(enum.Enum):
    SMALL = "s"


def test_json_form_is_what_json_can_hold():
    given_row = {
        "a": [Decimal("1.50"), None, True, 2.5, "x"],
        "b": {"at": datetime(2026, 1, 1, tzinfo=UTC), "day": date(2026, 1, 1), "time": time(1, 2)},
        "c": (b"\x00", uuid.UUID(int=0), Size.SMALL, timedelta(seconds=1)),
    }
    assert msgspec.json.decode(msgspec.json.encode(to_json_value(given_row))) == {
        "a": ["1.5", None, True, 2.5, "x"],
        "b": {"at": "2026-01-01T00:00:00Z", "day": "2026-01-01", "time": "01:02:00"},
        "c": ["AA==", "00000000-0000-0000-0000-000000000000", "s", 1_000_000],
    }
    with pytest.raises(ValueError, match="object"):
        to_json_value(object())


def test_to_row_makes_numpy_and_nested_values_plain():
    assert to_row({"n": np.int32(3), "l": {np.float64(1.5)}, "b": memoryview(b"x")}) == {"n": 3, "l": [1.5], "b": b"x"}


def test_to_row_refuses_what_is_no_event():
    for value in (5, None, "text", [1], object()):
        with pytest.raises(BadEventError):
            to_row(value)


def test_to_row_refuses_endless_nesting():
    deep: list[object] = []
    for _ in range(sys.getrecursionlimit() * 2):
        deep = [deep]
    with pytest.raises(BadEventError):
        to_row({"a": deep})


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_preview_is_short_for_any_value():
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    for value in (deep, "x" * 10**6, b"\xff" * 10**6, 10**5000, Rude(), {"a": deep}, Decimal("1E+999999999")):
        assert len(preview(value)) < 100
