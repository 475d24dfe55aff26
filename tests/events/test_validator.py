from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadTypeError
from headwater.events.validator import (
    InvalidValueError,
    RowValidator,
    check_fields,
    exponent_too_large,
    field_default,
    first_out_of_range,
)


def test_structs_keep_what_the_row_left_out_apart_from_null():
    shape = RowValidator([pa.field("a", pa.int64(), metadata={"default": "5"}), pa.field("b", pa.int64())])
    structs = msgspec.convert([{"a": None}, {}, {"a": 1, "b": 2}], list[shape.struct])  # type: ignore[name-defined]
    assert [column.to_pylist() for column in shape.to_columns(structs)] == [[None, 5, 1], [None, None, 2]]
    assert [shape.field_value(struct, "a") for struct in structs] == [None, 5, 1]


def test_a_default_that_does_not_fit_its_field_is_refused():
    with pytest.raises(msgspec.ValidationError):
        RowValidator([pa.field("a", pa.int64(), metadata={"default": '"x"'})])


def test_a_misfit_tells_its_row_and_path():
    kind = pa.struct([("s", pa.list_(pa.struct([("d", pa.decimal128(4, 2))])))])
    shape = RowValidator([pa.field("x", kind)])
    rows = [{"x": None}, {"x": {"s": []}}, {"x": {"s": [None, {"d": Decimal("1.5")}, {"d": Decimal("1.555")}]}}]
    structs = msgspec.convert(rows, list[shape.struct])  # type: ignore[name-defined]
    with pytest.raises(InvalidValueError) as caught:
        shape.to_columns(structs)
    assert (caught.value.row, caught.value.path) == (2, "x.s.[].d")


@given(st.lists(st.none() | st.decimals(allow_nan=False, allow_infinity=False, places=3), min_size=1, max_size=40))
def test_the_first_bad_row_is_found(numbers):
    shape = RowValidator([pa.field("d", pa.decimal128(10, 2))])
    structs = msgspec.convert([{"d": number} for number in numbers], list[shape.struct])  # type: ignore[name-defined]
    bad = [row for row, number in enumerate(numbers) if number is not None and not fits(number)]
    if not bad:
        assert shape.to_columns(structs)[0].to_pylist() == numbers
        return
    with pytest.raises(InvalidValueError) as caught:
        shape.to_columns(structs)
    # A number with digits far away is found before Arrow sees any of the column.
    far = [row for row, number in enumerate(numbers) if number is not None and exponent_too_large(number)]
    assert caught.value.row == (far or bad)[0]


def fits(number: Decimal) -> bool:
    scaled = number * 100
    return abs(number) < 10**8 and scaled == scaled.to_integral_value()


def test_defaults_are_read_from_metadata():
    assert field_default(pa.field("a", pa.int64())) is None
    assert field_default(pa.field("a", pa.int64(), metadata={"comment": "x"})) is None
    assert field_default(pa.field("a", pa.int64(), metadata={"default": "[1]"})) == [1]


@pytest.mark.parametrize(
    ("kind", "values", "row"),
    [
        (pa.float32(), [1.0, None, float("inf")], 2),
        (pa.float64(), [1.0, None], None),
        (pa.timestamp("us", "UTC"), [None, -62_135_596_800_000_001], 1),
        (pa.timestamp("us", "UTC"), [-62_135_596_800_000_000, 253_402_300_799_999_999], None),
        (pa.timestamp("us", "UTC"), [253_402_300_800_000_000], 0),
        (pa.date32(), [-719_162, 2_932_896], None),
        (pa.date32(), [0, -719_163], 1),
        (pa.date32(), [2_932_897], 0),
        (pa.string(), ["x"], None),
        (pa.float64(), [], None),
    ],
)
def test_values_python_cannot_hold_are_found(kind, values, row):
    assert first_out_of_range(pa.array(values, kind)) == row


def test_a_type_nested_too_deep_is_refused():
    kind = pa.int64()
    for _ in range(70):
        kind = pa.list_(kind) if _ % 2 else pa.struct([("a", kind)])
    with pytest.raises(BadTypeError) as caught:
        check_fields([pa.field("a", kind)], "Deep")
    assert caught.value.data["field"] == "a"
