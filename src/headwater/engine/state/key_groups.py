"""Key groups and Arrow IPC batches: how rows and state move between Spark and an operator.

Keys are hashed into key groups. The rows of one task for one key group travel as a single value, an Arrow IPC batch,
and are sorted where they arrive. If an operator reads an input unchanged, the source packs its rows
(`attach_ipc_source`), and Java only carries bytes. Otherwise a task packs them after Spark's own steps.

A `TableJoin` also needs the watermark of its table: every batch in which that advances has a row with it for each key
group.

The state of a key group is stored as one value between two batches (`PackedKeyGroup`). Its first byte is the format
version. MessagePack follows: the number of key groups, the description of the operator's state, and by space the values
of entries named b"" and of all others.

`encode_state_sizes` reports the size of a key group. It runs in the worker, where the state is still unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.state.encoding import encode_time, hash_keys
from headwater.engine.state.grouping import group_by_key
from headwater.engine.state.state import TIME, TIMESTAMP, MapValues, MemoryState, SingleValues
from headwater.errors import NewerFormatError, StateChangedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "IPC_BATCH_SCHEMA",
    "WATERMARK_ROWS_FROM",
    "WATERMARK_ROW_SHIFT",
    "BatchPacker",
    "PackedKeyGroup",
    "assign_key_groups",
    "attach_ipc_source",
    "attach_watermark_rows",
    "decode_ipc",
    "encode_ipc",
    "encode_state_sizes",
    "ipc_source_of",
    "key_group_ids",
    "pack_key_group",
    "split_by_size",
    "unpack_key_group",
    "with_watermark_rows",
]

_FORMAT_VERSION: Final = 2


class PackedKeyGroup(NamedTuple):
    """The state of a key group as bytes, and the size of each of its spaces."""

    data: bytes
    sizes: dict[str, int]


def pack_key_group(state: MemoryState, key_groups: int, form: str) -> PackedKeyGroup:
    """Encode the state of a key group as bytes.

    Args:
        state: The state.
        key_groups: The number of key groups.
        form: The description of the operator's state.
    """
    # Each space is encoded by itself, because its size is reported.
    singles = {space: msgspec.Raw(msgspec.msgpack.encode(keys)) for space, keys in state.single_values.items()}
    maps = {space: msgspec.Raw(msgspec.msgpack.encode(keys)) for space, keys in state.map_values.items()}
    sizes = {space: len(singles.get(space, b"")) + len(maps.get(space, b"")) for space in [*singles, *maps]}
    return PackedKeyGroup(bytes([_FORMAT_VERSION]) + msgspec.msgpack.encode((key_groups, form, singles, maps)), sizes)


def unpack_key_group(data: bytes, key_groups: int, form: str) -> MemoryState:
    """Decode the state of a key group; the arguments are those of `pack_key_group`.

    Raises:
        NewerFormatError: The state was written by a newer version of Headwater.
        StateChangedError: The state was written with another number of key groups, by another operator, or in an older
            format.

    Example:
        >>> state = MemoryState({"seen": {b"k": b"two", b"j": b"one"}})
        >>> unpack_key_group(pack_key_group(state, 16, "counts").data, 16, "counts").values("seen", [b"j", b"i"])
        [b'one', None]
    """
    if data[0] < _FORMAT_VERSION:
        what = "keyed state was written by an older version of Headwater"
        raise StateChangedError(what, fix="rebuild", was=data[0], now=_FORMAT_VERSION)
    if data[0] > _FORMAT_VERSION:
        what = f"keyed state has format {data[0]}, and this version reads format {_FORMAT_VERSION}"
        raise NewerFormatError(what, fix="run the version of Headwater that wrote it, or rebuild", form=data[0])
    was, written_form, singles, maps = msgspec.msgpack.decode(data[1:], type=tuple[int, str, SingleValues, MapValues])
    if was != key_groups:
        what = f"keyed state has {was} key groups, and the pipeline now has {key_groups}"
        raise StateChangedError(what, fix=f"keep {was} key groups, or rebuild", was=was, now=key_groups)
    if written_form != form:
        what, detail = "keyed state was written by another operator", f"was: {written_form}\nis: {form}"
        raise StateChangedError(what, detail=detail, fix="rebuild", was=written_form, now=form)
    return MemoryState(singles, maps)


def encode_state_sizes(state: MemoryState, key_group: int, sizes: Mapping[str, int]) -> bytes:
    """Returns the size of each space, as a MessagePack list of `headwater.store.StateSize`.

    A space that the batch has emptied is included, with size 0. The result is built from dicts, because Spark's workers
    do not import `headwater.store`.

    Args:
        state: The state of the key group.
        key_group: The number of the key group.
        sizes: The bytes of each space.

    Example:
        >>> state = MemoryState()
        >>> state.put("seen", [b"k", b"k", b"j"], [b"1", b"2", b"1"], [b"one", b"two", b"one"])
        >>> from headwater.store import StateSize
        >>> msgspec.msgpack.decode(encode_state_sizes(state, 3, {"seen": 30}), type=list[StateSize])
        [StateSize(space='seen', bucket=3, keys=2, entries=3, size=30, largest=2, key=b'k', kinds='')]
    """
    reports, single_values, map_values = [], state.single_values, state.map_values
    for space, kinds in state.kinds.items():
        singles, maps = single_values.get(space, {}), map_values.get(space, {})
        largest = max(map(len, maps.values()), default=min(1, len(singles)))
        report = {
            "space": space,
            "bucket": key_group,
            "keys": len(singles.keys() | maps.keys()) if maps else len(singles),
            "entries": len(singles) + sum(map(len, maps.values())),
            "size": sizes.get(space, 0),
            "largest": largest,
            "key": min((key for key, entries in maps.items() if len(entries) == largest), default=b""),
            "kinds": kinds,
        }
        reports.append(report)
    return msgspec.msgpack.encode(reports)


IPC_BATCH_SCHEMA: Final = pa.schema(
    [("bucket", pa.int32()), ("input", pa.int32()), ("at", TIMESTAMP), ("count", pa.int64()), ("rows", pa.binary())]
)
"""Rows of one input and one task for one key group.

`bucket` is the id of the key group in Spark, `at` the time that Spark compares with its watermark, `count` the number
of rows, and `rows` the Arrow IPC stream. If `count` is 0, `rows` is the watermark of the input instead.
"""
WATERMARK_ROW_SHIFT: Final = 3_652_500 * 86_400 * 1_000_000
"""The event time of a watermark row is this much (10,000 years, in microseconds) above the watermark it carries."""
WATERMARK_ROWS_FROM: Final = 253_402_300_800_000_000
"""The year 10000: rows from here on are watermark rows. No event is that late, because Python's dates end before."""
NEVER_LATE: Final = 253_370_764_800_000_000
"""The start of the year 9999. Spark drops rows whose `at` is late; the source has dropped late rows already."""
_MODULUS: Final = 5_040
"""A multiple of all numbers up to ten, and of 12, 14, 15 and 16: likely numbers of tasks."""
_MAX_ROWS: Final = 65_536
_MAX_BYTES: Final = 4 << 20
"""The maximum rows and approximate bytes of one Arrow IPC batch: Java holds several copies of a whole batch."""
_IPC_SOURCE: Final = "_hw_packets"
_WATERMARK_ROWS: Final = "_hw_watermark_rows"


@dataclass(frozen=True)
class BatchPacker:
    """Packs the rows of one input into Arrow IPC batches by key group.

    Args:
        number: The number of the input.
        keys: The key columns, which assign rows to key groups.
        key_groups: The number of key groups.
        with_watermark: Whether each key group also gets the watermark of the input. Watermark rows among the rows are
            then replaced by one row for each key group.

    Example:
        >>> rows = pa.record_batch({"n": [7, 8, 7]})
        >>> batches = pa.Table.from_batches(BatchPacker(0, ("n",), 2)([rows]))
        >>> [decode_ipc([one], rows.schema).column("n").to_pylist() for one in batches.column("rows").to_pylist()]
        [[7, 7], [8]]
    """

    number: int
    keys: tuple[str, ...]
    key_groups: int
    with_watermark: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields all rows of a task as Arrow IPC batches."""
        for table in _rechunk(batches):
            if self.with_watermark and pc.max(times := table.column(TIME)).as_py() >= WATERMARK_ROWS_FROM:
                carries = pc.greater_equal(times, WATERMARK_ROWS_FROM)
                for at in times.filter(carries).to_pylist():
                    yield self.key_group_watermarks(at - WATERMARK_ROW_SHIFT)
                table = table.filter(pc.invert(carries))  # noqa: PLW2901
                if not len(table):
                    continue
            if self.key_groups == 1:  # no row has to be hashed or moved
                yield self._build_batch([key_group_ids(1)[0]], [NEVER_LATE], [len(table)], [encode_ipc(table)])
                continue
            groups = assign_key_groups(table, self.keys, self.key_groups)
            counts = np.bincount(groups, minlength=self.key_groups)
            touched = np.flatnonzero(counts)
            # NumPy sorts 16-bit integers by radix sort, in linear time.
            small = groups.astype(np.uint16) if self.key_groups <= 1 << 16 else groups
            rows = table.take(pa.array(np.argsort(small, kind="stable")))
            starts, lengths = (np.cumsum(counts) - counts)[touched].tolist(), counts[touched].tolist()
            streams = [encode_ipc(rows.slice(*cut)) for cut in zip(starts, lengths, strict=True)]
            ids = key_group_ids(self.key_groups)[touched]
            yield self._build_batch(ids, [NEVER_LATE] * len(streams), lengths, streams)

    def watermark_row(self, at: int) -> pa.RecordBatch:
        """Returns an empty batch that advances Spark's watermark to a time; it counts as one row."""
        return self._build_batch([0], [at], [1], [b""])

    def key_group_watermarks(self, watermark: int) -> pa.RecordBatch:
        """Returns a row for each key group with the watermark of the input; they count as no rows."""
        groups = self.key_groups
        return self._build_batch(
            key_group_ids(groups), [NEVER_LATE] * groups, [0] * groups, [encode_time(watermark)] * groups
        )

    def _build_batch(
        self, key_groups: Any, times: Sequence[int], counts: Sequence[int], streams: Sequence[bytes]
    ) -> pa.RecordBatch:
        columns = [key_groups, [self.number] * len(streams), times, counts, streams]
        arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, IPC_BATCH_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=IPC_BATCH_SCHEMA)


def attach_ipc_source(frame: DataFrame, make: Callable[[BatchPacker], DataFrame]) -> DataFrame:
    """Attach to a frame the function that reads its rows as Arrow IPC batches; derived frames do not inherit it."""
    setattr(frame, _IPC_SOURCE, make)
    return frame


def ipc_source_of(frame: DataFrame) -> Callable[[BatchPacker], DataFrame] | None:
    """Returns the function that `attach_ipc_source` attached to this frame; None if the frame is no unchanged input."""
    found: Callable[[BatchPacker], DataFrame] | None = vars(frame).get(_IPC_SOURCE)
    return found


def attach_watermark_rows(frame: DataFrame, unfiltered: DataFrame) -> DataFrame:
    """Attach to a frame the same frame with its watermark rows; derived frames do not inherit it."""
    setattr(frame, _WATERMARK_ROWS, unfiltered)
    return frame


def with_watermark_rows(frame: DataFrame) -> DataFrame:
    """Returns the frame that `attach_watermark_rows` attached to this one; the frame itself if there is none."""
    found: DataFrame = vars(frame).get(_WATERMARK_ROWS, frame)
    return found


def assign_key_groups(table: pa.Table, keys: Sequence[str], key_groups: int) -> npt.NDArray[np.int64]:
    """Returns the key group of each row; equal keys have one key group, also across tables and integer widths.

    Example:
        >>> wide, narrow = pa.table({"k": [7, None, 7]}), pa.table({"k": pa.array([7], pa.int8())})
        >>> assign_key_groups(wide, ["k"], 16).tolist(), assign_key_groups(narrow, ["k"], 16).tolist()
        ([4, 13, 4], [4])
    """
    by_key = group_by_key(table, keys)
    groups: npt.NDArray[np.int64] = (hash_keys(by_key.keys).astype(np.int64) % key_groups)[by_key.codes]
    return groups


def decode_ipc(streams: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """Returns the rows of Arrow IPC streams of one input, with exactly these columns.

    Example:
        >>> rows = pa.record_batch({"n": [7, 8]})
        >>> (batches,) = BatchPacker(0, (), 1)([rows])
        >>> decode_ipc(batches["rows"].to_pylist(), rows.schema).to_pydict()
        {'n': [7, 8]}
    """
    found = pa.concat_tables([pa.ipc.open_stream(stream).read_all() for stream in streams])
    return found if found.schema.equals(schema) else found.select(schema.names).cast(schema)


@cache
def key_group_ids(key_groups: int) -> npt.NDArray[np.int32]:
    """Returns the ids of key groups in Spark, chosen so that Spark's hash distributes them evenly over tasks.

    With few key groups, Spark's hash of 0, 1, 2, … would often leave a task without any. The ids depend only on the
    number of key groups, so they are the same in every run.

    Example:
        >>> ids = key_group_ids(4)
        >>> (_spark_hash(ids) % 2).tolist(), len(set(ids.tolist()))
        ([0, 1, 0, 1], 4)
    """
    if key_groups > _MODULUS:
        return np.arange(key_groups, dtype=np.int32)
    # The n-th id hashes to n modulo 5,040, and so to n modulo the number of tasks.
    candidates = np.arange(32 * _MODULUS, dtype=np.int32)
    remainders, first = np.unique(_spark_hash(candidates) % _MODULUS, return_index=True)
    assert len(remainders) == _MODULUS
    return candidates[first[:key_groups]]


def _spark_hash(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Returns Spark's hash of an int: 32-bit Murmur3 with seed 42."""

    def rotate_left(bits: npt.NDArray[Any], by: int) -> npt.NDArray[Any]:
        return (bits << np.uint32(by)) | (bits >> np.uint32(32 - by))

    mixed = rotate_left(numbers.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = rotate_left(mixed ^ np.uint32(42), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    mixed ^= mixed >> np.uint32(16)
    return mixed.view(np.int32).astype(np.int64)


def _rechunk(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields the rows in tables of limited size: large batches are split, small ones are merged."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for part in split_by_size(batch):
            if waiting and (rows + len(part) > _MAX_ROWS or size + part.nbytes > _MAX_BYTES):
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(part)
            rows, size = rows + len(part), size + part.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def split_by_size(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a batch in parts that Java can hold several copies of, without copying them.

    Example:
        >>> [len(part) for part in split_by_size(pa.record_batch({"text": ["x" * (3 << 20)] * 3}))]
        [1, 1, 1]
    """
    length = min(_MAX_ROWS, max(1, _MAX_BYTES * len(batch) // max(1, batch.nbytes)))
    return (batch.slice(start, length) for start in range(0, len(batch), length))


def encode_ipc(rows: pa.Table) -> bytes:
    """Returns rows as an Arrow IPC stream of one batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())
