import enum
import json
import math
import sys
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadEventError, BadTypeError
from headwater.events import Codec, from_ddl, storage_schema, to_ddl
from tests.events.strategies import schema_and_rows

ORDERS = from_ddl(
    "order_id STRING NOT NULL, customer_id INT NOT NULL, amount DECIMAL(12,2) NOT NULL, placed_at TIMESTAMP NOT NULL, "
    "note STRING, score DOUBLE, paid BOOLEAN, day DATE, raw BINARY, parts ARRAY<STRUCT<n: SMALLINT NOT NULL>>, "
    "counts MAP<STRING, BIGINT>"
)
GOOD: dict[str, Any] = {
    "order_id": "o-1",
    "customer_id": 7,
    "amount": Decimal("12.30"),
    "placed_at": datetime(2026, 1, 1, tzinfo=UTC),
}


def refused(codec: Codec, **fields: Any) -> BadEventError:
    """The error for a bad row that stands third among good ones."""
    bad = {name: value for name, value in {**GOOD, **fields}.items() if value is not ...}
    with pytest.raises(BadEventError) as caught:
        codec.encode([GOOD, GOOD, bad, GOOD])
    assert caught.value.data["row"] == 2
    return caught.value


@given(schema_and_rows())
def test_rows_come_back_as_they_were(case):
    schema, rows = case
    codec = Codec(schema)
    batch = codec.encode(rows)
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    assert codec.rows(batch) == rows


@given(schema_and_rows())
def test_rows_come_back_through_json(case):
    schema, rows = case
    codec = Codec(schema)
    batch = codec.encode(rows)
    lines = codec.to_json(batch)
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert codec.decode_json(lines).equals(batch)


@given(schema_and_rows())
def test_the_batch_equals_what_arrow_makes_of_the_rows(case):
    schema, rows = case
    ours = Codec(schema).encode(rows)
    theirs = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    assert all(mine.equals(other) for mine, other in zip(ours.columns, theirs, strict=True))


def test_plain_text_and_numbers_are_taken_where_json_needs_them():
    codec = Codec(ORDERS)
    batch = codec.encode(
        [
            {
                **GOOD,
                "placed_at": "2026-01-01T02:00:00+02:00",
                "amount": "12.3",
                "score": 1,
                "raw": "/w==",
                "day": "2026-01-02",
            },
            {**GOOD, "placed_at": GOOD["placed_at"].astimezone(timezone(timedelta(hours=-5))), "amount": 12},
            {**GOOD, "amount": 12.3},
        ]
    )
    rows = codec.rows(batch)
    assert [row["placed_at"] for row in rows] == [GOOD["placed_at"]] * 3
    assert [row["amount"] for row in rows] == [Decimal("12.3"), 12, Decimal("12.3")]
    assert (rows[0]["score"], rows[0]["raw"], rows[0]["day"]) == (1.0, b"\xff", date(2026, 1, 2))


def test_json_is_exact_about_decimals_and_times():
    codec = Codec(from_ddl("a DECIMAL(38,18), b TIMESTAMP, c BINARY, d DECIMAL(12,2)"))
    line = b'{"a":0.100000000000000001,"b":"2026-01-01T00:00:00.000001Z","c":"AAE=","d":12.30}'
    assert codec.to_json(codec.decode_json([line])) == [
        b'{"a":"0.100000000000000001","b":"2026-01-01T00:00:00.000001Z","c":"AAE=","d":"12.3"}'
    ]


class Kind(enum.Enum):
    WEB = "web"


@dataclass
class Part:
    n: int


def test_enums_uuids_times_and_nested_classes_are_made_plain():
    codec = Codec(
        from_ddl("k STRING, u STRING, t STRING, w BIGINT, p ARRAY<STRUCT<n: INT>>, f DOUBLE, i INT, at TIMESTAMP")
    )
    row = {
        "k": Kind.WEB,
        "u": uuid.UUID(int=1),
        "t": time(1, 2),
        "w": timedelta(seconds=1),
        "p": (Part(1), {"n": 2}),
        "f": np.float32(1.5),
        "i": np.int64(3),
        "at": pd.Timestamp("2026-01-01", tz="UTC"),
    }
    assert codec.rows(codec.encode([MappingProxyType(row)])) == [
        {
            "k": "web",
            "u": "00000000-0000-0000-0000-000000000001",
            "t": "01:02:00",
            "w": 1_000_000,
            "p": [{"n": 1}, {"n": 2}],
            "f": 1.5,
            "i": 3,
            "at": datetime(2026, 1, 1, tzinfo=UTC),
        }
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("customer_id", ...),
        ("customer_id", None),
        ("customer_id", "7"),
        ("customer_id", 7.5),
        ("customer_id", True),
        ("customer_id", 2**31),
        ("customer_id", -(2**31) - 1),
        ("customer_id", 10**400),
        ("order_id", 7),
        ("order_id", b"o"),
        ("order_id", "\ud800"),
        ("amount", "twelve"),
        ("amount", Decimal("1.234")),
        ("amount", Decimal("99999999999.00")),
        ("amount", Decimal("NaN")),
        ("amount", Decimal("1E+999999999")),
        ("amount", Decimal("1E-999999999")),
        ("amount", "1E-999999999"),
        ("amount", "0." + "1" * 100_000),
        ("amount", float("inf")),
        ("placed_at", datetime(2026, 1, 1)),  # noqa: DTZ001  the missing zone is the point
        ("placed_at", "2026-01-01T00:00:00"),
        ("placed_at", "yesterday"),
        ("placed_at", 1_767_225_600),
        ("placed_at", datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
        ("placed_at", datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))),
        ("score", float("nan")),
        ("score", float("-inf")),
        ("score", "1.5"),
        ("score", 10**400),
        ("paid", 1),
        ("paid", "true"),
        ("day", datetime(2026, 1, 1, tzinfo=UTC)),
        ("raw", "not base64!"),
        ("colour", "red"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, (str, float)) else type(value).__name__,
)
def test_what_does_not_fit_is_refused_by_row_and_field(field, value):
    error = refused(Codec(ORDERS), **{field: value})
    assert error.data["field"] == field
    assert error.data["fields"] == ORDERS.names
    assert error.detail is not None
    assert "customer_id int32 required" in error.detail


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"parts": [{"n": 1}, {"n": "x"}]}, "parts[...].n"),
        ({"parts": [{"n": 1}, {"n": 2**15}]}, "parts[...].n"),
        ({"parts": [{}]}, "parts[...].n"),
        ({"parts": [{"n": 1, "m": 2}]}, "parts[...].m"),
        ({"parts": {"n": 1}}, "parts"),
        ({"counts": {"a": "x"}}, "counts[...]"),
        ({"counts": {1: 1}}, "counts"),
        ({"counts": {"\ud800": 1}}, "counts[]"),
    ],
    ids=str,
)
def test_what_does_not_fit_inside_is_refused_by_path(fields, path):
    found = refused(Codec(ORDERS), **fields).data["field"]
    assert found.replace("[1]", "[...]").replace("[0]", "[...]") == path


def test_a_misfit_inside_a_list_finds_its_row():
    codec = Codec(from_ddl("l ARRAY<STRUCT<d: DECIMAL(5,2)>>"))
    rows = [{"l": [{"d": 1}, None]}, {"l": None}, {"l": []}, {"l": [None, {"d": "1.5"}, {"d": "1.555"}]}]
    with pytest.raises(BadEventError) as caught:
        codec.encode(rows)
    assert caught.value.data["row"] == 3
    assert caught.value.data["field"] == "l[].d"


def test_an_unknown_field_hints_at_the_near_one():
    assert "customer_id" in (refused(Codec(ORDERS), customer_ids=7).fix or "")


def test_a_time_without_a_zone_is_refused():
    error = refused(Codec(ORDERS), placed_at=datetime(2026, 1, 1))  # noqa: DTZ001
    assert (error.data["row"], error.data["field"]) == (2, "placed_at")


def test_moments_of_pandas_lose_nothing():
    codec = Codec(from_ddl("at TIMESTAMP"))
    assert codec.rows(codec.encode([{"at": pd.NaT}])) == [{"at": None}]
    with pytest.raises(BadEventError):
        codec.encode([{"at": pd.Timestamp(1, unit="ns", tz="UTC")}])
    with pytest.raises(BadEventError):
        codec.encode([{"at": pd.Timestamp("2026-01-01")}])


def test_the_first_and_last_moment_are_taken():
    codec = Codec(from_ddl("at TIMESTAMP"))
    rows = [{"at": datetime.min.replace(tzinfo=UTC)}, {"at": datetime.max.replace(tzinfo=UTC)}]
    assert codec.rows(codec.encode(rows)) == rows


@pytest.mark.parametrize("row", [None, 5, "text", [], b"x", object()], ids=lambda row: type(row).__name__)
def test_what_is_no_row_is_refused(row):
    with pytest.raises(BadEventError) as caught:
        Codec(ORDERS).encode([GOOD, row])
    assert caught.value.data["row"] == 1


class Touchy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("value", [Kind, Touchy(), Part, int, len, complex(1, 1), iter([1]), ...], ids=type)
@pytest.mark.parametrize("field", ["note", "parts", "counts", "amount"])
def test_objects_of_any_kind_are_refused(field, value):
    with pytest.raises(BadEventError) as caught:
        Codec(ORDERS).encode([GOOD, {**GOOD, field: value}])
    assert caught.value.data["row"] == 1


def test_endless_nesting_and_millions_of_fields_are_refused():
    deep: list[Any] = []
    for _ in range(sys.getrecursionlimit() * 10):
        deep = [deep]
    assert refused(Codec(ORDERS), parts=deep).code == "BAD_EVENT"
    assert refused(Codec(ORDERS), colour=deep).code == "BAD_EVENT"
    wide = {f"f{number}": number for number in range(200_000)}
    assert refused(Codec(ORDERS), **wide).data["field"].startswith("f")


def test_no_rows_give_an_empty_batch():
    codec = Codec(ORDERS)
    for batch in (codec.encode([]), codec.decode_json([])):
        assert batch.num_rows == 0
        assert batch.schema.equals(ORDERS)
        assert codec.rows(batch) == []
        assert codec.to_json(batch) == []


def test_storage_lets_every_column_be_null_and_nothing_else():
    schema = from_ddl("a INT NOT NULL, s STRUCT<b: INT NOT NULL> NOT NULL")
    assert to_ddl(storage_schema(schema)) == "a INT, s STRUCT<b: INT NOT NULL>"


def test_odd_field_names_work():
    names = ["class", "two words", "ä", "m0", "a`b", "x.y", "self", "None", "__init__"]
    codec = Codec(pa.schema([(name, pa.int64()) for name in names]))
    row = dict(zip(names, range(9), strict=True))
    assert codec.rows(codec.encode([row])) == codec.rows(codec.decode_json([json.dumps(row).encode()])) == [row]
    with pytest.raises(BadEventError) as caught:
        codec.encode([{"two words": "x"}])
    assert caught.value.data["field"] == "two words"


def test_a_schema_no_event_can_have_is_refused():
    with pytest.raises(BadTypeError):
        Codec(pa.schema([("a", pa.large_string())]))


@given(st.floats())
def test_floats_are_finite_or_refused(number):
    codec = Codec(from_ddl("f DOUBLE, g FLOAT"))
    try:
        row = codec.rows(codec.encode([{"f": number, "g": number}]))[0]
    except BadEventError:
        assert not math.isfinite(number) or abs(number) > float(np.finfo(np.float32).max)
    else:
        assert (row["f"], row["g"]) == (number, float(np.float32(number)))
