"""Key groups and Arrow IPC batches: how rows and state move between Spark and an operator.

Keys are hashed into key groups. The rows that one task has for one key group travel as a single value, an Arrow IPC
batch, and are sorted where they arrive. Rows that Spark transforms first are packed by a later task. Where an operator
takes an input unchanged, the source packs them (`attach_ipc_source`); Java then only carries bytes.

The state of a key group is stored as one value between two batches (`PackedKeyGroup`). Its first byte is the format
version. MessagePack follows: the number of key groups, a description of the operator's state, and by space the unnamed
and the named values.

`encode_state_sizes` reports the size of a key group. It runs in the worker, where keys are still decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.engine.state.encoding import hash_keys
from headwater.engine.state.grouping import group_by_key
from headwater.engine.state.state import OFFSET, PARTITION, TIME, MapValues, MemoryState, SingleValues
from headwater.errors import NewerFormatError, StateChangedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "IPC_BATCH_SCHEMA",
    "BatchPacker",
    "PackedKeyGroup",
    "assign_key_groups",
    "attach_ipc_source",
    "decode_ipc",
    "encode_state_sizes",
    "ipc_source_of",
    "key_group_ids",
    "pack_key_group",
    "sort_by_event_time",
    "unpack_key_group",
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
    plain = {space: msgspec.Raw(msgspec.msgpack.encode(keys)) for space, keys in state.single_values.items()}
    named = {space: msgspec.Raw(msgspec.msgpack.encode(keys)) for space, keys in state.map_values.items()}
    sizes = {space: len(plain.get(space, b"")) + len(named.get(space, b"")) for space in [*plain, *named]}
    return PackedKeyGroup(bytes([_FORMAT_VERSION]) + msgspec.msgpack.encode((key_groups, form, plain, named)), sizes)


def unpack_key_group(data: bytes, key_groups: int, form: str) -> MemoryState:
    """Decode the state of a key group; arguments as in `pack_key_group`.

    Raises:
        NewerFormatError: A newer version of Headwater has written them.
        StateChangedError: They were written with another number of key groups, by another operator, or by a version
            that spread keys in another way.

    Example:
        >>> state = MemoryState({"seen": {b"k": b"two", b"j": b"one"}})
        >>> unpack_key_group(pack_key_group(state, 16, "counts").data, 16, "counts").values("seen", [b"j", b"i"])
        [b'one', None]
    """
    if data[0] < _FORMAT_VERSION:
        what = "keyed state was written by an older version of Headwater"
        raise StateChangedError(what, fix="rebuild", was=data[0], now=_FORMAT_VERSION)
    if data[0] > _FORMAT_VERSION:
        what = f"a key group of state has format {data[0]}, and this version reads {_FORMAT_VERSION}"
        raise NewerFormatError(what, fix="run the version of Headwater that wrote it, or rebuild", form=data[0])
    was, written_form, plain, named = msgspec.msgpack.decode(data[1:], type=tuple[int, str, SingleValues, MapValues])
    if was != key_groups:
        what = f"keyed state is in {was} key groups, and {key_groups} are requested"
        raise StateChangedError(what, fix=f"keep {was} key groups, or rebuild", was=was, now=key_groups)
    if written_form != form:
        what = "keyed state was written by another operator"
        raise StateChangedError(
            what, detail=f"was: {written_form}\nis: {form}", fix="rebuild", was=written_form, now=form
        )
    return MemoryState(plain, named)


def encode_state_sizes(state: MemoryState, key_group: int, sizes: Mapping[str, int]) -> bytes:
    """Returns the size of each space, as a MessagePack list of `headwater.store.StateSize`.

    A space that a batch has emptied is told once more. Workers of Spark do not import stores.

    Args:
        state: The state of the key group.
        key_group: Which one it is.
        sizes: How many bytes each space takes.

    Example:
        >>> state = MemoryState()
        >>> state.put("seen", [b"k", b"k", b"j"], [b"1", b"2", b"1"], [b"one", b"two", b"one"])
        >>> from headwater.store import StateSize
        >>> msgspec.msgpack.decode(encode_state_sizes(state, 3, {"seen": 30}), type=list[StateSize])
        [StateSize(space='seen', bucket=3, keys=2, entries=3, size=30, largest=2, key=b'k', kinds='')]
    """
    plain, named = state.single_values, state.map_values
    return msgspec.msgpack.encode(
        [
            {
                "space": space,
                "bucket": key_group,
                "size": sizes.get(space, 0),
                "kinds": kinds,
                **_count_entries(plain.get(space, {}), named.get(space, {})),
            }
            for space, kinds in state.kinds.items()
        ]
    )


def _count_entries(plain: dict[bytes, bytes], named: dict[bytes, dict[bytes, bytes]]) -> dict[str, Any]:
    largest = max(map(len, named.values()), default=min(1, len(plain)))
    return {
        "keys": len(plain.keys() | named.keys()) if named else len(plain),
        "entries": len(plain) + sum(map(len, named.values())),
        "largest": largest,
        "key": min((key for key, below in named.items() if len(below) == largest), default=b""),
    }


IPC_BATCH_SCHEMA: Final = pa.schema(
    [
        ("bucket", pa.int32()),
        ("input", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("count", pa.int64()),
        ("rows", pa.binary()),
    ]
)
"""Rows of one input and one task for one key group; `count` is their number."""
NEVER_LATE: Final = 253_370_764_800_000_000
"""The year 9999. The source drops late rows; Spark, which checks `at`, must not drop any."""
_MODULUS: Final = 5_040
"""Divided by all numbers up to ten, and by 12, 14, 15 and 16."""
_MAX_ROWS: Final = 65_536
_MAX_BYTES: Final = 4 << 20
"""The rows and approximate bytes of one Arrow IPC batch: Java holds several copies of a whole batch."""
_IPC_SOURCE: Final = "_hw_packets"


@dataclass(frozen=True)
class BatchPacker:
    """Packs the rows of one input into Arrow IPC batches by key group.

    Args:
        number: Which input it is.
        keys: The columns that assign rows to key groups.
        key_groups: The number of key groups.

    Example:
        >>> rows = pa.record_batch({"n": [7, 8, 7]})
        >>> packets = pa.Table.from_batches(BatchPacker(0, ("n",), 2)([rows]))
        >>> [decode_ipc([one], rows.schema).column("n").to_pylist() for one in packets.column("rows").to_pylist()]
        [[7, 7], [8]]
    """

    number: int
    keys: tuple[str, ...]
    key_groups: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Returns all rows of a task as Arrow IPC batches."""
        return map(self._pack, _rechunk(batches))

    def watermark_row(self, at: int) -> pa.RecordBatch:
        """Returns an empty batch that advances Spark's watermark: it has a time, and counts as one row."""
        return self._build_batch([0], [at], [1], [b""])

    def _pack(self, table: pa.Table) -> pa.RecordBatch:
        if self.key_groups == 1:
            return self._build_batch([key_group_ids(1)[0]], [NEVER_LATE], [len(table)], [_encode_ipc(table)])
        bucket = assign_key_groups(table, self.keys, self.key_groups)
        counts = np.bincount(bucket, minlength=self.key_groups)
        touched = np.flatnonzero(counts)
        # Numbers of 16 bits are sorted in one pass over them.
        small = bucket.astype(np.uint16) if self.key_groups <= 1 << 16 else bucket
        rows = table.take(pa.array(np.argsort(small, kind="stable")))
        starts, lengths = (np.cumsum(counts) - counts)[touched].tolist(), counts[touched].tolist()
        streams = [_encode_ipc(rows.slice(*cut)) for cut in zip(starts, lengths, strict=True)]
        return self._build_batch(key_group_ids(self.key_groups)[touched], [NEVER_LATE] * len(streams), lengths, streams)

    def _build_batch(
        self, key_groups: Any, times: Sequence[int], counts: Sequence[int], streams: Sequence[bytes]
    ) -> pa.RecordBatch:
        columns = [key_groups, [self.number] * len(streams), times, counts, streams]
        arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, IPC_BATCH_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=IPC_BATCH_SCHEMA)


def attach_ipc_source(frame: DataFrame, make: Callable[[BatchPacker], DataFrame]) -> DataFrame:
    """Attach the Arrow IPC form of its rows to a frame; frames derived from it do not inherit it."""
    setattr(frame, _IPC_SOURCE, make)
    return frame


def ipc_source_of(frame: DataFrame) -> Callable[[BatchPacker], DataFrame] | None:
    """Returns the Arrow IPC form of exactly this frame; None if it is not an unchanged input."""
    found: Callable[[BatchPacker], DataFrame] | None = vars(frame).get(_IPC_SOURCE)
    return found


def assign_key_groups(table: pa.Table, keys: Sequence[str], key_groups: int) -> npt.NDArray[np.int64]:
    """Returns the key group of each row; equal keys of different tables have the same key group.

    Example:
        >>> wide, narrow = pa.table({"k": [7, None, 7]}), pa.table({"k": pa.array([7], pa.int8())})
        >>> assign_key_groups(wide, ["k"], 16).tolist(), assign_key_groups(narrow, ["k"], 16).tolist()
        ([4, 13, 4], [4])
    """
    by_key = group_by_key(table, keys)
    of_keys = hash_keys(by_key.keys).astype(np.int64) % key_groups
    found: npt.NDArray[np.int64] = of_keys[by_key.codes]
    return found


def decode_ipc(streams: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """Returns the rows of Arrow IPC batches of one input, with exactly these columns.

    Example:
        >>> rows = pa.record_batch({"n": [7, 8]})
        >>> (packets,) = BatchPacker(0, (), 1)([rows])
        >>> decode_ipc(packets["rows"].to_pylist(), rows.schema).to_pydict()
        {'n': [7, 8]}
    """
    found = pa.concat_tables([pa.ipc.open_stream(stream).read_all() for stream in streams])
    return found if found.schema.equals(schema) else found.select(schema.names).cast(schema)


def sort_by_event_time(table: pa.Table) -> pa.Table:
    """Sort rows by time, partition and offset.

    Example:
        >>> rows = {TIME: [5, 5, 4], PARTITION: [1, 0, 1], OFFSET: [7, 8, 6]}
        >>> sort_by_event_time(pa.table(rows)).column(OFFSET).to_pylist()
        [6, 8, 7]
    """
    time = table.column(TIME).to_numpy()
    order = np.argsort(time, kind="stable")
    same = np.diff(time[order]) == 0
    if same.any():
        # Only rows with equal times are reordered.
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        places = [table.column(name).to_numpy()[rows] for name in (OFFSET, PARTITION)]
        order[tied] = rows[np.lexsort((*places, time[rows]))]
    return table.take(pa.array(order))


def key_group_ids(key_groups: int) -> npt.NDArray[np.int32]:
    """Returns the ids of key groups in Spark, chosen so that its hash spreads them over tasks.

    With few key groups, Spark's hash of 0, 1, 2, … would often leave a task without any. The result depends only on
    the number of key groups.

    Example:
        >>> ids = key_group_ids(4)
        >>> (_spark_hash(ids) % 2).tolist(), len(set(ids.tolist()))
        ([0, 1, 0, 1], 4)
    """
    known = _key_group_ids.get(key_groups)
    if known is None:
        known = _key_group_ids[key_groups] = _compute_key_group_ids(key_groups)
    return known


_key_group_ids: dict[int, npt.NDArray[np.int32]] = {}


def _compute_key_group_ids(key_groups: int) -> npt.NDArray[np.int32]:
    if key_groups > _MODULUS:
        return np.arange(key_groups, dtype=np.int32)
    candidates = np.arange(32 * _MODULUS, dtype=np.int32)
    rests, first = np.unique(_spark_hash(candidates) % _MODULUS, return_index=True)
    assert len(rests) == _MODULUS
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
    """Yields the rows in tables of limited size; large batches are split, small ones are merged."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        most = min(_MAX_ROWS, max(1, _MAX_BYTES * len(batch) // max(1, batch.nbytes)))
        for start in range(0, len(batch), most):
            part = batch.slice(start, most)
            if waiting and (rows + len(part) > _MAX_ROWS or size + part.nbytes > _MAX_BYTES):
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(part)
            rows, size = rows + len(part), size + part.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def _encode_ipc(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())
