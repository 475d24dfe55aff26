"""Rows in packets: what one task has for one bucket travels as a single value, and is put in order where it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.engine.keyed.operator import OFFSET, PARTITION, TIME

__all__ = ["BUCKET", "PACKET", "Packing", "in_order", "spread_ids", "unpacked"]

BUCKET: Final = "_hw_bucket"
"""Of a row on its way in: the number of its bucket."""
PACKET: Final = pa.schema(
    [("bucket", pa.int32()), ("input", pa.int32()), ("at", pa.timestamp("us", "UTC")), ("rows", pa.binary())]
)
"""Rows of one input, of one task, for one bucket."""
NEVER_LATE: Final = 253_370_764_800_000_000
"""The year 9999. Late rows are left out where they are read; Spark, which looks at `at`, must find none."""
_MODULUS: Final = 5_040
"""Divided by all numbers up to ten, and by 12, 14, 15 and 16."""


@dataclass(frozen=True)
class Packing:
    """Packs the rows of one input; the `BUCKET` column is taken off.

    Args:
        number: Which input it is.
        buckets: How many buckets there are.

    Example:
        >>> rows = pa.record_batch({"n": [7, 8, 9], BUCKET: pa.array([1, 0, 1], pa.int32())})
        >>> packets = pa.Table.from_batches(Packing(0, 2)([rows]))
        >>> [unpacked([packet]).column("n").to_pylist() for packet in packets.column("rows").to_pylist()]
        [[8], [7, 9]]
    """

    number: int
    buckets: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of a task, as packets."""
        found = list(batches)
        if not found:
            return
        table = pa.Table.from_batches(found)
        if table.num_rows:
            yield self._packets(table)

    def _packets(self, table: pa.Table) -> pa.RecordBatch:
        bucket = table.column(BUCKET).to_numpy()
        rows = table.drop_columns([BUCKET])
        counts = np.bincount(bucket, minlength=self.buckets)
        touched = np.flatnonzero(counts)
        if len(touched) > 1:
            # Numbers of 16 bits are sorted in one pass over them.
            small = bucket.astype(np.uint16) if self.buckets <= 1 << 16 else bucket
            rows = rows.take(pa.array(np.argsort(small, kind="stable")))
        ends = np.cumsum(counts)[touched]
        cuts = zip((ends - counts[touched]).tolist(), ends.tolist(), strict=True)
        streams = [_stream(rows.slice(start, end - start)) for start, end in cuts]
        columns = [
            pa.array(spread_ids(self.buckets)[touched], pa.int32()),
            pa.array(np.full(len(touched), self.number, np.int32)),
            pa.array(np.full(len(touched), NEVER_LATE)).cast(PACKET.field("at").type),
            pa.array(streams, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PACKET)


def unpacked(streams: Iterable[bytes]) -> pa.Table:
    """The rows of some packets of one input.

    Example:
        >>> rows = pa.record_batch({"n": [7, 8], BUCKET: pa.array([0, 0], pa.int32())})
        >>> (packets,) = Packing(0, 1)([rows])
        >>> unpacked(packets["rows"].to_pylist()).to_pydict()
        {'n': [7, 8]}
    """
    return pa.concat_tables([pa.ipc.open_stream(stream).read_all() for stream in streams])


def in_order(table: pa.Table) -> pa.Table:
    """Rows in the order of time, partition and offset.

    Example:
        >>> rows = {TIME: [5, 5, 4], PARTITION: [1, 0, 1], OFFSET: [7, 8, 6]}
        >>> in_order(pa.table(rows)).column(OFFSET).to_pylist()
        [6, 8, 7]
    """
    time = table.column(TIME).to_numpy()
    order = np.argsort(time, kind="stable")
    same = np.diff(time[order]) == 0
    if same.any():
        # Rows that share their time with others change places among themselves.
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        places = [table.column(name).to_numpy()[rows] for name in (OFFSET, PARTITION)]
        order[tied] = rows[np.lexsort((*places, time[rows]))]
    return table.take(pa.array(order))


def spread_ids(buckets: int) -> npt.NDArray[np.int32]:
    """The number under which Spark knows each bucket: such that its hash sends neighbours to different tasks.

    With a handful of buckets, Spark's hash of 0, 1, 2, … would often leave a task without any. What is returned depends
    on the number of buckets alone.

    Example:
        >>> ids = spread_ids(4)
        >>> (_spark_hash(ids) % 2).tolist(), len(set(ids.tolist()))
        ([0, 1, 0, 1], 4)
    """
    known = _ids.get(buckets)
    if known is None:
        known = _ids[buckets] = _found_ids(buckets)
    return known


_ids: dict[int, npt.NDArray[np.int32]] = {}


def _found_ids(buckets: int) -> npt.NDArray[np.int32]:
    if buckets > _MODULUS:
        return np.arange(buckets, dtype=np.int32)
    candidates = np.arange(32 * _MODULUS, dtype=np.int32)
    rests, first = np.unique(_spark_hash(candidates) % _MODULUS, return_index=True)
    assert len(rests) == _MODULUS
    return candidates[first[:buckets]]


def _spark_hash(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """What Spark makes of an int before it chooses a task: Murmur3 of 32 bits with seed 42."""

    def turned(bits: npt.NDArray[Any], by: int) -> npt.NDArray[Any]:
        return (bits << np.uint32(by)) | (bits >> np.uint32(32 - by))

    mixed = turned(numbers.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = turned(mixed ^ np.uint32(42), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    mixed ^= mixed >> np.uint32(16)
    return mixed.view(np.int32).astype(np.int64)


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())
