from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given

from headwater.errors import BadEventError
from headwater.events import Codec, from_ddl
from tests.events.strategies import schema_and_rows

ORDERS = from_ddl(
    "id STRING NOT NULL, n INT, amount DECIMAL(12,2), at TIMESTAMP, day DATE, score DOUBLE, ok BOOLEAN, raw BINARY"
)
ROWS: list[dict[str, Any]] = [
    {
        "id": "a",
        "n": 1,
        "amount": Decimal("12.10"),
        "at": datetime(2026, 1, 1, 12, 0, 0, 250, tzinfo=UTC),
        "day": date(2026, 1, 1),
        "score": 1.5,
        "ok": True,
        "raw": b"\xff",
    },
    {"id": "b", "n": None, "amount": None, "at": None, "day": None, "score": None, "ok": None, "raw": None},
]


def encoded(schema: str, column: Any) -> list[Any]:
    codec = Codec(from_ddl(schema))
    batch = codec.encode_dataframe(pa.table({"x": column}))
    batch.validate(full=True)
    assert batch.schema.equals(codec.schema)
    return [row["x"] for row in codec.rows(batch)]


def refused(schema: str, column: Any) -> BadEventError:
    with pytest.raises(BadEventError) as caught:
        encoded(schema, column)
    return caught.value


@given(schema_and_rows())
def test_a_batch_of_the_schema_passes_unchanged(case):
    schema, rows = case
    codec = Codec(schema)
    batch = codec.encode(rows)
    again = codec.encode_dataframe(batch)
    assert again.equals(batch)
    again.validate(full=True)
    if len(rows) > 2:
        assert codec.encode_dataframe(batch.slice(1, 2)).equals(batch.slice(1, 2))


def test_columns_of_the_same_type_are_not_copied():
    batch = Codec(ORDERS).encode(ROWS)
    again = Codec(ORDERS).encode_dataframe(batch)
    for mine, theirs in zip(again.columns, batch.columns, strict=True):
        assert [b and b.address for b in mine.buffers()] == [b and b.address for b in theirs.buffers()]


@pytest.mark.parametrize("library", ["table", "chunks", "pandas", "arrow pandas", "polars"])
def test_frames_of_every_library_give_the_same_batch(library):
    codec = Codec(ORDERS)
    batch = codec.encode(ROWS)
    table = pa.Table.from_batches([batch])
    frames: dict[str, Any] = {
        "table": table,
        "chunks": pa.concat_tables([table.slice(0, 1), table.slice(1, 1), table.slice(0, 0)]),
        "pandas": pd.DataFrame(ROWS),
        "arrow pandas": table.to_pandas(types_mapper=pd.ArrowDtype),
        "polars": pl.DataFrame(ROWS),
    }
    # pandas turns a column of numbers with a gap into floats; the user would cast it back.
    if library == "pandas":
        frames["pandas"]["n"] = frames["pandas"]["n"].astype("Int64")
    assert codec.encode_dataframe(frames[library]).equals(batch)


def test_an_empty_frame_gives_an_empty_batch():
    codec = Codec(ORDERS)
    empty = pa.Table.from_batches([], schema=ORDERS)
    assert codec.encode_dataframe(empty).num_rows == 0
    assert codec.encode_dataframe(pl.DataFrame(schema={"id": pl.String})).num_rows == 0


def test_the_index_of_pandas_is_no_column_unless_it_has_a_name():
    codec = Codec(from_ddl("x BIGINT, y BIGINT"))
    frame = pd.DataFrame({"x": [1, 2, 3], "y": [4, 5, 6]})
    assert codec.rows(codec.encode_dataframe(frame[frame.x > 1])) == [{"x": 2, "y": 5}, {"x": 3, "y": 6}]
    assert codec.rows(codec.encode_dataframe(frame.set_index("y")))[0] == {"x": 1, "y": 4}


@pytest.mark.parametrize(
    ("schema", "column", "expected"),
    [
        ("x STRING", pa.array(["a"], pa.large_string()), ["a"]),
        ("x STRING", pa.array(["a"], pa.string_view()), ["a"]),
        ("x STRING", pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        ("x STRING", pa.nulls(2), [None, None]),
        ("x BINARY", pa.array([b"a"], pa.large_binary()), [b"a"]),
        ("x BINARY", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("x INT", pa.array([1], pa.int64()), [1]),
        ("x INT", pa.array([1], pa.uint8()), [1]),
        ("x DOUBLE", pa.array([1], pa.int32()), [1.0]),
        ("x DOUBLE", pa.array([1.5], pa.float32()), [1.5]),
        ("x DECIMAL(12,2)", pa.array([12], pa.int64()), [Decimal(12)]),
        ("x DECIMAL(12,2)", pa.array([12.1, None]), [Decimal("12.1"), None]),
        ("x DECIMAL(38,18)", pa.array([0.1]), [Decimal("0.1")]),
        ("x DECIMAL(12,2)", pa.array(["12.1", "1e2"]), [Decimal("12.1"), Decimal(100)]),
        ("x DECIMAL(12,2)", pa.array([Decimal("1.2")], pa.decimal256(50, 3)), [Decimal("1.2")]),
        ("x TIMESTAMP", pa.array([1], pa.timestamp("s", "UTC")), [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]),
        ("x TIMESTAMP", pa.array([2000], pa.timestamp("ns", "Asia/Tokyo")), [datetime(1970, 1, 1, 0, 0, 0, 2, UTC)]),
        ("x TIMESTAMP", pa.array(["2026-01-01T02:00:00+02:00"]), [datetime(2026, 1, 1, tzinfo=UTC)]),
        ("x DATE", pa.array([86_400_000], pa.date64()), [date(1970, 1, 2)]),
        ("x DATE", pa.array(["2026-01-02"]), [date(2026, 1, 2)]),
        ("x ARRAY<BIGINT>", pa.array([[1], None, []], pa.large_list(pa.int8())), [[1], None, []]),
        ("x ARRAY<BIGINT>", pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [[1, 2]]),
        ("x STRUCT<a: BIGINT, b: STRING>", pa.array([{"a": 1}, None]), [{"a": 1, "b": None}, None]),
        ("x MAP<STRING, INT>", pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())), [{"k": 1}, None]),
        ("x MAP<STRING, INT>", pa.array([[{"key": "k", "value": 1}], None, []]), [{"k": 1}, None, {}]),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_types_that_mean_the_same_are_cast(schema, column, expected):
    assert encoded(schema, column) == expected


@pytest.mark.parametrize(
    ("schema", "column", "row"),
    [
        ("x INT NOT NULL", pa.array([1, None], pa.int32()), 1),
        ("x INT", pa.array([1, 2**31]), 1),
        ("x BIGINT", pa.array([1, 2**64 - 1], pa.uint64()), 1),
        ("x DOUBLE", pa.array([1.0, None, float("nan")]), 2),
        ("x DOUBLE", pa.array([1, 2**53 + 1]), 1),
        ("x FLOAT", pa.array([1.0, 1e300]), 1),
        ("x DECIMAL(12,2)", pa.array([1.0, 0.1 + 0.2]), 1),
        ("x DECIMAL(12,2)", pa.array([1.0, float("inf")]), 1),
        ("x DECIMAL(12,2)", pa.array(["1", "one"]), 1),
        ("x DECIMAL(12,2)", pa.array(["1", None, "1e-99999999"]), 2),
        ("x DECIMAL(12,2)", pa.array(["1", "1E+999999999"]), 1),
        ("x DECIMAL(4,2)", pa.array([1, 100]), 1),
        ("x TIMESTAMP", pa.array([0, 1], pa.timestamp("ns", "UTC")), 1),
        ("x TIMESTAMP", pa.array(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00"]), 1),
        ("x TIMESTAMP", pa.array([0, 2**62], pa.timestamp("us", "UTC")), 1),
        ("x TIMESTAMP", pa.array([0, 2**62], pa.timestamp("s", "UTC")), 1),
        ("x DATE", pa.array([0, 10**7], pa.date32()), 1),
        ("x ARRAY<INT>", pa.array([[1], None, [2, 2**31]]), 2),
        ("x STRUCT<a: INT NOT NULL>", pa.array([None, {"a": 1}, {"a": None}]), None),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_values_that_do_not_fit_are_refused_by_column_and_row(schema, column, row):
    error = refused(schema, column)
    assert error.data["field"].split("[")[0].split(".")[0] == "x"
    assert row is None or error.data["row"] == row


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ("x INT", pa.array(["1"])),
        ("x INT", pa.array([1.0])),
        ("x INT", pa.array([True])),
        ("x INT", pa.array([Decimal(1)])),
        ("x BOOLEAN", pa.array([1])),
        ("x STRING", pa.array([1])),
        ("x STRING", pa.array([b"a"])),
        ("x BINARY", pa.array(["a"])),
        ("x TIMESTAMP", pa.array([1], pa.timestamp("us"))),
        ("x TIMESTAMP", pa.array([date(2026, 1, 1)])),
        ("x TIMESTAMP", pa.array([1])),
        ("x DATE", pa.array([1], pa.timestamp("us", "UTC"))),
        ("x DOUBLE", pa.array(["1.5"])),
        ("x ARRAY<INT>", pa.array([1])),
        ("x ARRAY<INT>", pa.array([["a"]])),
        ("x STRUCT<a: INT>", pa.array([{"b": 1}])),
        ("x STRUCT<a: INT>", pa.array(["a"])),
        ("x MAP<STRING, INT>", pa.array([{"a": 1}])),
        ("x MAP<STRING, INT>", pa.array([[(1, 1)]], pa.map_(pa.int8(), pa.int8()))),
        ("x BIGINT", pa.array([timedelta(1)])),
    ],
    ids=lambda part: part if isinstance(part, str) else str(part.type),
)
def test_columns_of_another_meaning_are_refused(schema, column):
    assert refused(schema, column).data["field"].startswith("x")


def test_a_null_list_may_hide_values():
    offsets = pa.array([0, 2, 3, 4], pa.int32())
    hidden = pa.ListArray.from_arrays(offsets, pa.array([1, 2, 9, 4]), mask=pa.array([False, True, False]))
    assert encoded("x ARRAY<BIGINT>", hidden) == [[1, 2], None, [4]]
    maps = pa.MapArray.from_arrays(
        offsets, pa.array(["a", "b", "c", "d"]), pa.array([1, 2, 9, 4]), mask=pa.array([False, True, False])
    )
    assert encoded("x MAP<STRING, INT>", maps) == [{"a": 1, "b": 2}, None, {"d": 4}]


def test_unknown_missing_and_double_columns_are_named():
    codec = Codec(from_ddl("id INT NOT NULL, note STRING"))
    for frame, field in (
        (pa.table({"id": [1], "colour": ["red"]}), "colour"),
        (pa.table({"note": ["x"]}), "id"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"]), "id"),
    ):
        with pytest.raises(BadEventError) as caught:
            codec.encode_dataframe(frame)
        assert caught.value.data["field"] == field
        assert caught.value.data["fields"] == ["id", "note"]


@pytest.mark.parametrize("frame", [None, 5, [], [{"id": 1}], {"id": [1]}, "text", np.zeros(3)], ids=str)
def test_what_is_no_frame_is_refused(frame):
    with pytest.raises(BadEventError):
        Codec(ORDERS).encode_dataframe(frame)


def test_decimals_that_would_crash_arrow_are_refused_in_pandas():
    frame = pd.DataFrame({"id": ["a", "b"], "amount": [Decimal(1), Decimal("1E-99999999")]})
    with pytest.raises(BadEventError) as caught:
        Codec(ORDERS).encode_dataframe(frame)
    assert (caught.value.data["row"], caught.value.data["field"]) == (1, "amount")


def test_mixed_objects_of_pandas_are_refused():
    with pytest.raises(BadEventError):
        Codec(ORDERS).encode_dataframe(pd.DataFrame({"id": ["a", 5]}))


def test_zones_of_pandas_and_polars_become_utc():
    codec = Codec(from_ddl("x TIMESTAMP"))
    at = datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    frames = [
        pd.DataFrame({"x": pd.to_datetime([at]).tz_convert("Europe/Berlin")}),
        pl.DataFrame({"x": [at]}).with_columns(pl.col("x").dt.convert_time_zone("Europe/Berlin")),
    ]
    for frame in frames:
        assert codec.rows(codec.encode_dataframe(frame)) == [{"x": at}]


def test_the_row_of_a_misfit_counts_null_structs():
    members = pa.struct([pa.field("n", pa.int64())])
    schema = pa.schema([pa.field("x", pa.struct([pa.field("n", pa.int64(), nullable=False)]))])
    with pytest.raises(BadEventError) as caught:
        Codec(schema).encode_dataframe(pa.table({"x": pa.array([None, {"n": None}], members)}))
    assert (caught.value.data["row"], caught.value.data["field"]) == (1, "x.n")
