"""Rows travel in Arrow IPC batches and are sorted where they arrive."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.state.encoding import encode_keys
from headwater.engine.state.grouping import sort_by_event_time
from headwater.engine.state.key_groups import BatchPacker, assign_key_groups, decode_ipc, key_group_ids
from headwater.engine.state.state import OFFSET, PARTITION, TIME

SMALL = st.integers(0, 3)
NUMBERS = pa.schema([("n", pa.int64())])


@settings(max_examples=100)
@given(st.lists(st.tuples(SMALL, SMALL, SMALL)))
def test_rows_are_ordered_by_time_partition_and_offset(rows):
    columns = dict(zip((TIME, PARTITION, OFFSET), zip(*rows, strict=True), strict=True)) if rows else {}
    table = pa.table({name: pa.array(columns.get(name, ()), pa.int64()) for name in (TIME, PARTITION, OFFSET)})
    assert [tuple(row.values()) for row in sort_by_event_time(table).to_pylist()] == sorted(rows)


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=3))
def test_every_row_reaches_its_key_group_once(batches):
    given_ = [pa.record_batch({"n": batch}) for batch in batches if batch]
    found: dict[int, list[int]] = {}
    for packed in BatchPacker(1, ("n",), 4)(given_):
        assert set(packed["input"].to_pylist()) == {1}
        for one in packed.to_pylist():
            assert one["bucket"] not in found
            found[one["bucket"]] = decode_ipc([one["rows"]], NUMBERS)["n"].to_pylist()
            assert one["count"] == len(found[one["bucket"]])
    sent = [number for batch in batches for number in batch]
    ids = key_group_ids(4)[assign_key_groups(pa.table({"n": pa.array(sent, pa.int64())}), ["n"], 4)].tolist()
    expected = {id_: [n for n, other in zip(sent, ids, strict=True) if other == id_] for id_ in ids}
    assert found == expected


@pytest.mark.parametrize("key_groups", [1, 8])
def test_many_rows_and_large_ones_are_packed_in_portions(key_groups):
    large = "x" * 1_000_000
    batches = [
        pa.record_batch({"n": list(range(70_000)), "text": [""] * 70_000}),
        *(pa.record_batch({"n": [70_000 + number], "text": [large]}) for number in range(10)),
        pa.record_batch({"n": list(range(70_010, 70_020)), "text": [large] * 10}),
    ]
    portions = list(BatchPacker(0, ("n",), key_groups)(iter(batches)))
    assert max(sum(map(len, portion["rows"].to_pylist())) for portion in portions) < 5_000_000
    packed = [one for portion in portions for one in portion.to_pylist()]
    assert max(one["count"] for one in packed) <= 65_536
    found = decode_ipc([one["rows"] for one in packed], NUMBERS)["n"].to_pylist()
    assert len(found) == sum(one["count"] for one in packed)
    assert sorted(found) == list(range(70_020))


def test_rows_are_unpacked_as_the_types_that_spark_has():
    (packed,) = BatchPacker(0, (), 1)([pa.record_batch({"n": pa.array([1, 2], pa.int16()), "x": ["a", "b"]})])
    assert decode_ipc(packed["rows"].to_pylist(), NUMBERS).schema == NUMBERS


def test_equal_keys_have_equal_key_groups():
    values = [0.0, -0.0, float("nan"), -float("nan"), None, 1.5]
    columns = [pa.array(values, pa.float64()), pa.array(values, pa.float32())]
    columns += [pa.array([1, 2, None], kind) for kind in (pa.int64(), pa.int32(), pa.int8())]
    groups = defaultdict(set)
    for column in columns:
        table = pa.table({"k": column})
        for key, group in zip(encode_keys([table["k"]]), assign_key_groups(table, ["k"], 1_000).tolist(), strict=True):
            groups[key].add(group)
    assert all(len(found) == 1 for found in groups.values())
    assert len(groups) == 6


@pytest.mark.parametrize("tasks", [2, 3, 4, 8, 12])
def test_key_groups_spread_evenly_over_tasks(tasks):
    from headwater.engine.state.key_groups import _spark_hash

    assert (_spark_hash(key_group_ids(24)) % tasks).tolist() == [number % tasks for number in range(24)]
    assert len(set(key_group_ids(5_040).tolist())) == 5_040
    assert key_group_ids(6_000).tolist() == list(range(6_000))
