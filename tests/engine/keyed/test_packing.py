"""Rows travel in packets and are put in order where they arrive."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.engine.keyed.operator import OFFSET, PARTITION, TIME
from headwater.engine.keyed.packing import BUCKET, Packing, in_order, spread_ids, unpacked

SMALL = st.integers(0, 3)


@settings(max_examples=100)
@given(st.lists(st.tuples(SMALL, SMALL, SMALL)))
def test_rows_are_ordered_by_time_partition_and_offset(rows):
    columns = dict(zip((TIME, PARTITION, OFFSET), zip(*rows, strict=True), strict=True)) if rows else {}
    table = pa.table(
        {name: pa.array(columns.get(name, ()), pa.int64()) for name in (TIME, PARTITION, OFFSET)}
    )
    assert [tuple(row.values()) for row in in_order(table).to_pylist()] == sorted(rows)


@settings(max_examples=50)
@given(st.lists(st.lists(SMALL, max_size=6), max_size=3))
def test_every_row_reaches_its_bucket_once(batches):
    given_ = [
        pa.record_batch({"n": [bucket * 10 for bucket in batch], BUCKET: pa.array(batch, pa.int32())})
        for batch in map(list, batches)
        if batch
    ]
    found: dict[int, list[int]] = {}
    for packets in Packing(1, 4)(given_):
        assert set(packets["input"].to_pylist()) == {1}
        for bucket, rows in zip(packets["bucket"].to_pylist(), packets["rows"].to_pylist(), strict=True):
            assert bucket not in found
            found[bucket] = unpacked([rows])["n"].to_pylist()
    sent = [number for batch in batches for number in batch]
    ids = spread_ids(4).tolist()
    assert found == {ids[n]: [n * 10] * sent.count(n) for n in set(sent)}


@pytest.mark.parametrize("tasks", [2, 3, 4, 8, 12])
def test_buckets_spread_evenly_over_tasks(tasks):
    from headwater.engine.keyed.packing import _spark_hash

    assert (_spark_hash(spread_ids(24)) % tasks).tolist() == [number % tasks for number in range(24)]
    assert len(set(spread_ids(5_040).tolist())) == 5_040
    assert spread_ids(6_000).tolist() == list(range(6_000))
