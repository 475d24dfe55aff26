from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadEventError, HeadwaterError
from headwater.events import Change, Position, Transaction, from_ddl

AT = Transaction("tx-9", datetime(2026, 1, 1, tzinfo=UTC), index=2, last=False)
SCHEMA = from_ddl(
    "id BIGINT NOT NULL, price DECIMAL(12,2) NOT NULL, since TIMESTAMP, day DATE, raw BINARY, "
    "parts ARRAY<STRUCT<n: INT>>"
)
ROW = {
    "id": 7,
    "price": Decimal("1.50"),
    "since": datetime(2026, 1, 1, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "raw": b"\xff",
    "parts": [{"n": 1}],
}
lanes = st.dictionaries(
    st.integers(0, 4), st.tuples(st.integers(0, 9)) | st.tuples(st.integers(0, 9), st.integers(0, 9))
)


def change(**other: Any) -> Change:
    fields: dict[str, Any] = {
        "op": "update",
        "table": "public.products",
        "key": (7,),
        "before": None,
        "before_holds": "nothing",
        "after": {"id": 7},
        "unchanged": frozenset(["blob"]),
        "position": Position.of("shop", {0: (1234, 2)}),
        "transaction": AT,
        "schema": 3,
    }
    return Change(**{**fields, **other})


CHANGES = [
    change(),
    change(op="read", unchanged=frozenset()),
    change(op="insert", after=ROW, unchanged=frozenset()),
    change(before=ROW, before_holds="row", after={**ROW, "price": Decimal("2")}),
    change(before={"id": 6}, before_holds="key", key=(7, "x")),
    change(op="delete", before={"id": 7}, before_holds="key", after=None),
    change(op="truncate", key=(), after=None, unchanged=frozenset()),
]


@pytest.mark.parametrize("given_change", CHANGES, ids=lambda item: item.op)
def test_changes_come_back_from_json_with_their_types(given_change):
    assert Change.from_json(given_change.to_json(), schema=SCHEMA) == given_change


def test_without_a_schema_values_stay_as_in_json():
    back = Change.from_json(CHANGES[2].to_json())
    assert back.after == {
        "id": 7,
        "price": "1.5",
        "since": "2026-01-01T00:00:00Z",
        "day": "2026-01-02",
        "raw": "/w==",
        "parts": [{"n": 1}],
    }


def test_keys_get_their_types_back_by_name():
    given_change = change(key=(Decimal("1.5"), 7))
    assert Change.from_json(given_change.to_json()).key == ("1.5", 7)
    assert Change.from_json(given_change.to_json(), schema=SCHEMA, key=("price", "id")).key == (Decimal("1.5"), 7)


def test_a_column_that_was_not_sent_stays_absent():
    back = Change.from_json(change(after={"id": 7, "price": Decimal(1)}).to_json(), schema=SCHEMA)
    assert back.after == {"id": 7, "price": Decimal(1)}


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("op", {"op": "upsert"}),
        ("before_holds", {"before_holds": "some"}),
        ("before", {"before_holds": "row"}),
        ("before", {"before": {}}),
        ("after", {"after": None}),
        ("after", {"op": "delete"}),
        ("key", {"key": ()}),
        ("key", {"op": "truncate", "after": None}),
        ("unchanged", {"unchanged": frozenset(["id"])}),
    ],
)
def test_a_change_that_contradicts_itself_is_refused(field, other):
    with pytest.raises(BadEventError) as caught:
        change(**other)
    assert caught.value.data["field"] == field


@pytest.mark.parametrize("text", [b"", b"{}", b"[", b"null", b"\xff", b"[" * 100_000, b'{"op":"read"}'])
def test_text_that_is_no_change_is_refused(text):
    with pytest.raises(BadEventError):
        Change.from_json(text)


def test_rows_that_do_not_fit_the_schema_are_refused():
    with pytest.raises(BadEventError):
        Change.from_json(change(after={"id": "seven"}).to_json(), schema=SCHEMA)
    with pytest.raises(BadEventError):
        Change.from_json(change(after={"other": 1}).to_json(), schema=pa.schema([("id", pa.int64())]))


@given(st.text(min_size=1, max_size=8).filter(lambda text: "\n" not in text), lanes)
def test_positions_come_back_from_their_text(source, places):
    position = Position.of(source, places)
    assert Position.parse(str(position)) == position


@given(lanes, lanes)
def test_positions_are_ordered_lane_by_lane(left, right):
    one, other = Position.of("s", left), Position.of("s", right)
    behind = all(lane in right and place <= right[lane] for lane, place in left.items())
    assert (one <= other) is behind
    assert (other >= one) is behind
    assert (one < other) is (behind and left != right)
    assert (other > one) is (one < other)


@given(lanes, lanes)
def test_a_merged_position_is_the_first_after_both(left, right):
    one, other = Position.of("s", left), Position.of("s", right)
    both = one.merge(other)
    assert one <= both
    assert other <= both
    assert both == other.merge(one)
    assert set(dict(both.lanes).values()) <= {*left.values(), *right.values()}


def test_offsets_of_one_lane_are_in_total_order():
    places = [Position.of("shop", {0: (lsn, index)}) for lsn in (9, 10, 100) for index in (0, 2, 11)]
    for shuffled in list(permutations(places, 4))[::97]:
        assert sorted(shuffled) == sorted(shuffled, key=places.index)


def test_crossed_positions_are_in_no_order():
    one, other = Position.of("orders", {0: 1, 1: 9}), Position.of("orders", {0: 2, 1: 8})
    assert not one <= other
    assert not other <= one
    assert not one > other


def test_positions_of_two_sources_cannot_be_compared():
    with pytest.raises(BadEventError):
        assert Position.of("a", {0: 1}) < Position.of("b", {0: 2})


@pytest.mark.parametrize(
    "text", ["", "@", "a", "a@x", "a@0", "a@0:", "a@0:1,", "a@0:1,,1:2", "a@0:1.", "@0:1", None, 7]
)
def test_text_that_is_no_position_is_refused(text):
    with pytest.raises(HeadwaterError):
        Position.parse(text)
