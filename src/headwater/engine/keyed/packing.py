"""Rows in packets: what one task has for one bucket travels as a single value, and is put in order where it arrives.

Rows that Spark has to do something with are packed by a task of their own, behind it. Where an operator takes an input
as it is, the source packs them (`with_packets`): then Java carries bytes, and never sees a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.engine.keyed.grouping import grouped
from headwater.engine.keyed.keys import hashes_of
from headwater.engine.keyed.operator import OFFSET, PARTITION, TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PACKET", "Packing", "in_order", "packets_of", "spread", "spread_ids", "unpacked", "with_packets"]

PACKET: Final = pa.schema(
    [
        ("bucket", pa.int32()),
        ("input", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("count", pa.int64()),
        ("rows", pa.binary()),
    ]
)
"""Rows of one input, of one task, for one bucket; `count` says how many."""
NEVER_LATE: Final = 253_370_764_800_000_000
"""The year 9999. Late rows are left out where they are read; Spark, which looks at `at`, must find none."""
_MODULUS: Final = 5_040
"""Divided by all numbers up to ten, and by 12, 14, 15 and 16."""
_MOST: Final = 65_536
_BYTES: Final = 4 << 20
"""How many rows, and about how many bytes, are packed at a time: Java holds packets whole, and several times."""
_PACKETS: Final = "_hw_packets"


@dataclass(frozen=True)
class Packing:
    """Packs the rows of one input.

    Args:
        number: Which input it is.
        keys: The columns by which rows are spread among buckets.
        buckets: How many buckets there are.

    Example:
        >>> rows = pa.record_batch({"n": [7, 8, 7]})
        >>> packets = pa.Table.from_batches(Packing(0, ("n",), 2)([rows]))
        >>> [unpacked([one], rows.schema).column("n").to_pylist() for one in packets.column("rows").to_pylist()]
        [[7, 7], [8]]
    """

    number: int
    keys: tuple[str, ...]
    buckets: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of a task, as packets."""
        return map(self._packets, _portions(batches))

    def tick(self, at: int) -> pa.RecordBatch:
        """A packet without rows that moves Spark's watermark: it has a time, in microseconds, and counts as one row."""
        return self._packet([0], [at], [1], [b""])

    def _packets(self, table: pa.Table) -> pa.RecordBatch:
        if self.buckets == 1:
            return self._packet([spread_ids(1)[0]], [NEVER_LATE], [len(table)], [_stream(table)])
        bucket = spread(table, self.keys, self.buckets)
        counts = np.bincount(bucket, minlength=self.buckets)
        touched = np.flatnonzero(counts)
        # Numbers of 16 bits are sorted in one pass over them.
        small = bucket.astype(np.uint16) if self.buckets <= 1 << 16 else bucket
        rows = table.take(pa.array(np.argsort(small, kind="stable")))
        starts, lengths = (np.cumsum(counts) - counts)[touched].tolist(), counts[touched].tolist()
        streams = [_stream(rows.slice(*cut)) for cut in zip(starts, lengths, strict=True)]
        return self._packet(spread_ids(self.buckets)[touched], [NEVER_LATE] * len(streams), lengths, streams)

    def _packet(
        self, buckets: Any, times: Sequence[int], counts: Sequence[int], streams: Sequence[bytes]
    ) -> pa.RecordBatch:
        columns = [buckets, [self.number] * len(streams), times, counts, streams]
        arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, PACKET, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=PACKET)


def with_packets(frame: DataFrame, make: Callable[[Packing], DataFrame]) -> DataFrame:
    """A frame of which it is known how its rows come in packets; what is made of it does not know it any more."""
    setattr(frame, _PACKETS, make)
    return frame


def packets_of(frame: DataFrame) -> Callable[[Packing], DataFrame] | None:
    """Gives the rows of this very frame in packets; None when it is not an input as it is."""
    found: Callable[[Packing], DataFrame] | None = vars(frame).get(_PACKETS)
    return found


def spread(table: pa.Table, keys: Sequence[str], buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each row: equal keys, as `encode_keys` has it, have equal buckets, also those of another table.

    Example:
        >>> wide, narrow = pa.table({"k": [7, None, 7]}), pa.table({"k": pa.array([7], pa.int8())})
        >>> spread(wide, ["k"], 16).tolist(), spread(narrow, ["k"], 16).tolist()
        ([4, 13, 4], [4])
    """
    by_key = grouped(table, keys)
    of_keys = hashes_of(by_key.keys).astype(np.int64) % buckets
    found: npt.NDArray[np.int64] = of_keys[by_key.at]
    return found


def unpacked(streams: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """The rows of some packets of one input, with exactly these columns.

    Example:
        >>> rows = pa.record_batch({"n": [7, 8]})
        >>> (packets,) = Packing(0, (), 1)([rows])
        >>> unpacked(packets["rows"].to_pylist(), rows.schema).to_pydict()
        {'n': [7, 8]}
    """
    found = pa.concat_tables([pa.ipc.open_stream(stream).read_all() for stream in streams])
    return found if found.schema.equals(schema) else found.select(schema.names).cast(schema)


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


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables that are not too large; a large batch is cut, small ones are put together."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        most = min(_MOST, max(1, _BYTES * len(batch) // max(1, batch.nbytes)))
        for start in range(0, len(batch), most):
            part = batch.slice(start, most)
            if waiting and (rows + len(part) > _MOST or size + part.nbytes > _BYTES):
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(part)
            rows, size = rows + len(part), size + part.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())
