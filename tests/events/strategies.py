"""Random schemas, and rows that fit them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

names = st.text("abcdefgh_", min_size=1, max_size=6)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
moments = st.datetimes(timezones=st.just(UTC), min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30))  # noqa: DTZ001
decimals = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9)

LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(allow_nan=False, allow_infinity=False, width=32),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.string(): texts,
    pa.binary(): st.binary(max_size=12),
    pa.date32(): st.dates(min_value=date(1, 1, 1)),
    pa.timestamp("us", "UTC"): moments,
    pa.decimal128(12, 2): decimals,
    pa.decimal128(38, 18): decimals,
}


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that fit an Arrow type."""
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: field_values(field) for field in kind})
    if pa.types.is_map(kind):
        return st.dictionaries(texts, field_values(kind.item_field), max_size=3)
    if pa.types.is_list(kind):
        return st.lists(field_values(kind.value_field), max_size=3)
    return LEAVES[kind]


def field_values(field: pa.Field) -> st.SearchStrategy[Any]:
    return st.none() | values(field.type) if field.nullable else values(field.type)


def fields_of(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    field = st.builds(pa.field, names, kinds, st.booleans())
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda item: item.name.casefold())


def _nested(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        st.builds(lambda kind, nullable: pa.list_(pa.field("element", kind, nullable)), kinds, st.booleans()),
        st.builds(lambda kind: pa.map_(pa.string(), pa.field("value", kind)), kinds),
        st.builds(pa.struct, fields_of(kinds)),
    )


types = st.recursive(st.sampled_from(list(LEAVES)), _nested, max_leaves=4)
schemas = st.builds(pa.schema, fields_of(types))


def rows(schema: pa.Schema, most: int = 5) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows that fit a schema."""
    row = st.fixed_dictionaries({field.name: field_values(field) for field in schema})
    return st.lists(row, max_size=most)


@st.composite
def schema_and_rows(draw: st.DrawFn) -> tuple[pa.Schema, list[dict[str, Any]]]:
    schema = draw(schemas)
    return schema, draw(rows(schema))


def same(left: Any, right: Any) -> bool:
    """Equal values, where -0.0 and 0.0 or 1.5 and 1.50 do not differ."""
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return left == right
    return bool(left == right)
