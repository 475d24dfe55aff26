"""Single events on their way into one batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.events import Codec
from headwater.log.storage.frame import LOWEST_TIME
from headwater.log.write.write_batch import coalesce
from tests.log.given import declared, row_of

TOPIC = declared(type_="id string, amount int")
CODEC = Codec(TOPIC.schema)


def codec_of(version: int) -> Codec:
    assert version == TOPIC.version
    return CODEC


def row(amount: int, **about):
    return row_of(TOPIC, {"id": "a", "amount": amount}, **about)


def test_values_keep_their_order():
    rows = coalesce(codec_of, [row(3), row(1), row(2)])
    assert rows.values.column("amount").to_pylist() == [3, 1, 2]
    assert (rows.version, rows.envelope, rows.sent_at) == (TOPIC.version, {}, LOWEST_TIME)


def test_envelope_has_only_the_columns_that_someone_gave():
    rows = coalesce(codec_of, [row(1, envelope={"_hw.id": "x"}), row(2), row(3, envelope={"_hw.source": "/till"})])
    assert {name: column.to_pylist() for name, column in rows.envelope.items()} == {
        "_hw.id": ["x", None, None],
        "_hw.source": [None, None, "/till"],
    }


def test_envelope_columns_stand_in_the_order_of_the_format():
    about = {"_hw.source": "/till", "_hw.headers": [("a", "b")], "_hw.key": b"k", "_hw.id": "x"}
    rows = coalesce(codec_of, [row(1, envelope=about)])
    assert list(rows.envelope) == ["_hw.key", "_hw.id", "_hw.headers", "_hw.source"]


def test_one_moment_of_sending_stands_in_the_header():
    same = coalesce(codec_of, [row(1, envelope={"_hw.sent_at": 5}), row(2, envelope={"_hw.sent_at": 5})])
    assert (same.sent_at, same.envelope) == (5, {})


@pytest.mark.parametrize("other", [6, None])
def test_several_moments_of_sending_have_a_column(other):
    rows = coalesce(codec_of, [row(1, envelope={"_hw.sent_at": 5}), row(2, envelope={"_hw.sent_at": other})])
    assert rows.sent_at == LOWEST_TIME
    assert rows.envelope["_hw.sent_at"].cast("int64").to_pylist() == [5, other]


def test_rows_of_a_producer_begin_with_the_first_sequence():
    rows = coalesce(codec_of, [row(n, producer="a", sequence=n, previous=n - 1, partition=2) for n in (4, 5, 6)])
    assert (rows.producer, rows.sequence, rows.previous, rows.per_row, rows.partition) == ("a", 4, 3, True, 2)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"sequence": 9}, False),
        ({"sequence": 4}, False),
        ({"producer": "b"}, False),
        ({"producer": ""}, False),
        ({"version": 7}, False),
        ({"previous": 2}, True),
        ({"previous": 3}, False),
        ({"previous": None}, False),
    ],
)
def test_only_neighbours_of_one_producer_share_a_batch(change, expected):
    before = row(1, producer="a", sequence=4, previous=2)
    after = replace(row(2, producer="a", sequence=5, previous=4), **change)
    assert after.can_follow(before) is expected


def test_rows_without_producer_always_share_a_batch():
    assert row(1).can_follow(row(2))
