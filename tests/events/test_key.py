import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import BadKeyError
from headwater.events import Codec, key_bytes, keys_of, murmur2, partition_of, partitions_of
from tests.events.strategies import LEAVES, texts

# Published in Apache Kafka's UtilsTest.testMurmur2, as Java's signed numbers.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
# kafka-python 3.0.12's murmur2 of bytes((i * 37 + 11) % 256 for i in range(length)), by length.
BY_LENGTH = {
    0: 275646681,
    1: 346141627,
    2: 1658708447,
    3: 17943975,
    4: 405319480,
    5: 1270727179,
    6: 3138558427,
    7: 2016470548,
    8: 3033865386,
    9: 2695183351,
    10: 1989839624,
    11: 414350974,
    12: 662180152,
    13: 3092258915,
    14: 2496802243,
    15: 2045368529,
    16: 3075275251,
    17: 831605985,
    31: 2803528703,
    32: 675075838,
    33: 4262689426,
    255: 3493848157,
    256: 990323918,
    257: 2770963206,
    300: 3361276054,
    1001: 1709880804,
}


def sample(length: int) -> bytes:
    return bytes((i * 37 + 11) % 256 for i in range(length))


@pytest.mark.parametrize("key", KAFKA_VECTORS)
def test_hash_equals_the_vectors_of_kafka(key):
    assert murmur2(key) == KAFKA_VECTORS[key] % 2**32
    assert partition_of(key, 7) == (KAFKA_VECTORS[key] & 0x7FFFFFFF) % 7


@pytest.mark.parametrize("length", BY_LENGTH)
def test_hash_equals_another_client_for_every_length(length):
    assert murmur2(sample(length)) == BY_LENGTH[length]


def test_many_keys_at_once_equal_the_vectors():
    keys = [sample(length) for length in BY_LENGTH]
    expected = [(value & 0x7FFFFFFF) % 13 for value in BY_LENGTH.values()]
    assert partitions_of(keys, 13).tolist() == expected


@given(st.lists(st.binary(max_size=40)), st.integers(1, 1000))
def test_many_keys_at_once_equal_one_by_one(keys, partitions):
    assert partitions_of(keys, partitions).tolist() == [partition_of(key, partitions) for key in keys]


@given(st.lists(st.binary(max_size=9), min_size=3), st.data())
def test_a_slice_of_a_column_has_the_same_partitions(keys, data):
    start = data.draw(st.integers(0, len(keys)))
    column = pa.array(keys, pa.binary()).slice(start)
    assert partitions_of(column, 5).tolist() == [partition_of(key, 5) for key in keys[start:]]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_whole_number_columns_hash_their_text(numbers):
    expected = [partition_of(str(number).encode(), 12) for number in numbers]
    assert partitions_of(pa.array(numbers, pa.int64()), 12).tolist() == expected


def test_long_and_short_keys_mix():
    keys = [b"x" * 5000, b"", b"abc", b"y" * 257, b"z" * 256]
    assert partitions_of(pa.array(keys), 99).tolist() == [partition_of(key, 99) for key in keys]


def test_large_columns_and_empty_ones_work():
    assert partitions_of(pa.array(["a", "b"], pa.large_string()), 3).tolist() == [
        partition_of(b"a", 3),
        partition_of(b"b", 3),
    ]
    assert partitions_of(pa.array([], pa.string()), 3).tolist() == []
    assert partitions_of(pa.array(["", ""]), 3).tolist() == [partition_of(b"", 3)] * 2


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("grün", "grün".encode()),
        ("", b""),
        (7, b"7"),
        (-(2**63), b"-9223372036854775808"),
        (True, b"true"),
        (False, b"false"),
        (b"\xff\x00", b"\xff\x00"),
        (bytearray(b"ab"), b"ab"),
        (Decimal("10.50"), b"10.5"),
        (Decimal("1E+3"), b"1000"),
        (Decimal("-0.00"), b"0"),
        (date(2026, 1, 2), b"2026-01-02"),
        (datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2))), b"2026-01-02T01:00:00Z"),
        (datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=UTC), b"2026-01-02T03:04:05.000060Z"),
        (time(3, 4), b"03:04:00"),
        (uuid.UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
        (1.5, b"1.5"),
        (-0.0, b"0.0"),
        (Colour.RED, b"red"),
        (Level.HIGH, b"3"),
        (("de", 7, True, Decimal("1.0")), b'["de",7,true,"1"]'),
        (("a",), b'["a"]'),
        (('quo"te',), b'["quo\\"te"]'),
        ((b"raw",), b'["cmF3"]'),
    ],
)
def test_values_have_canonical_bytes(value, expected):
    assert key_bytes(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        None,
        float("nan"),
        float("inf"),
        {"a": 1},
        ["a"],
        {1},
        object(),
        Decimal("NaN"),
        Decimal("1E+999999"),
        Decimal("1E-999999"),
        datetime(2026, 1, 1),  # noqa: DTZ001  the missing zone is the point
        2**64,
        10**5000,
        "\ud800",
        ("a", None),
        ("\ud800",),
        (("nested",),),
        timedelta(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused(value):
    with pytest.raises(BadKeyError):
        key_bytes(value)


@given(st.data())
def test_a_typed_column_has_the_keys_of_its_values(data):
    kind = data.draw(st.sampled_from(list(LEAVES)))
    values = data.draw(st.lists(LEAVES[kind], min_size=1, max_size=6))
    schema = pa.schema([pa.field("k", kind, nullable=False)])
    column = Codec(schema).encode([{"k": value} for value in values]).column("k")
    assert keys_of([column]).to_pylist() == [key_bytes(value) for value in values]


@given(st.data())
def test_several_columns_have_the_keys_of_their_tuples(data):
    kinds = data.draw(st.lists(st.sampled_from(list(LEAVES)), min_size=2, max_size=3))
    rows = data.draw(st.lists(st.tuples(*(LEAVES[kind] for kind in kinds)), min_size=1, max_size=4))
    columns = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
    assert keys_of(columns).to_pylist() == [key_bytes(row) for row in rows]


@given(st.lists(st.tuples(texts, st.integers(-(2**63), 2**63 - 1), st.booleans()), min_size=1))
def test_text_that_needs_escapes_gives_the_same_tuples(rows):
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    assert keys_of(columns).to_pylist() == [key_bytes(row) for row in rows]


def test_a_null_key_is_refused_with_its_row():
    with pytest.raises(BadKeyError) as caught:
        keys_of([pa.array(["a", "b", None])])
    assert caught.value.data["row"] == 2


def test_partitions_spread_evenly():
    counts = np.bincount(partitions_of(pa.array(np.arange(100_000)), 8), minlength=8)
    assert counts.min() > 12_000
    assert counts.max() < 13_000
