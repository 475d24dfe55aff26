"""The stateful stage of the sink: an operator whose state is in the store and commits with its result rows.

`to_upserts` converts Z-set rows to rows and deletes, and `inserted_keys` finds the keys that must be new. If each row
has the time from which it is valid, `to_changes` converts all versions to published changes, and `last_by_key` keeps
the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.build.plan_analysis import HIDDEN_PREFIX
from headwater.engine.build.sink_stage import SinkStage
from headwater.engine.state.encoding import encode_keys
from headwater.engine.state.state import OFFSET, PARTITION, QUARANTINE_REASON, SINCE, WEIGHT
from headwater.engine.state.store_state import PageCache, StoreState
from headwater.errors import DamagedError
from headwater.store import StateStore, StateWrite, ViewTable
from headwater.store.changelog import change_schema

__all__ = ["STATE_LOST", "StageResult", "StatefulStage", "inserted_keys", "last_by_key", "to_changes", "to_upserts"]

STATE_LOST: Final = "the state of an operator is gone or damaged"
"""The message of that error. The supervisor recognises it, and rebuilds the view from the log."""
_LAYOUT_SPACE: Final = "mark"
"""A space with one entry, written by the first commit; the name of the entry tells the layout of the state."""
_LAYOUT: Final = b"pages and logs"


@dataclass(frozen=True)
class StageResult:
    """The result of an operator for one batch.

    Attributes:
        rows: The result rows.
        states: The changes of its state.
        refused: Events that it rejects: partition, offset and reason.
    """

    rows: pa.Table
    states: tuple[StateWrite, ...] = ()
    refused: tuple[tuple[int, int, str], ...] = ()


class StatefulStage:
    """One operator and its state, over all batches.

    Args:
        sink_stage: The operator.
        states: The committed state.
        has_commits: Whether the query has committed a batch.

    Raises:
        DamagedError: The query has committed a batch, and its state is missing.
    """

    def __init__(self, sink_stage: SinkStage, states: StateStore, *, has_commits: bool = False) -> None:
        self._sink_stage = sink_stage
        self._states = states
        self._cache = PageCache()
        self._state: StoreState | None = None
        self._layout_known = states.values(_LAYOUT_SPACE, [b""], [_LAYOUT]) != [None]
        if has_commits and not self._layout_known:
            detail = "the store has commits of the query, but no state that this version can read"
            raise DamagedError(STATE_LOST, detail=detail)

    def run(self, rows: pa.Table, watermark: int, input_watermarks: Mapping[str, int]) -> StageResult:
        """Run the operator on a batch; the caller commits rows and state together.

        Args:
            rows: The batch.
            watermark: The event time up to which all its rows have come.
            input_watermarks: The watermarks of the inputs, by name.

        Raises:
            DamagedError: Its state cannot be read.
        """
        if self._state is not None:  # the previous batch was never committed, so the cached pages are invalid
            self._cache.clear()
        self._state = StoreState(self._states, self._cache)
        try:
            result = self._sink_stage.run(self._state, rows, watermark, input_watermarks)
        except msgspec.DecodeError as error:
            raise DamagedError(STATE_LOST, detail=str(error)) from error
        refused: tuple[tuple[int, int, str], ...] = ()
        if QUARANTINE_REASON in result.column_names:
            rejected = result.filter(pc.is_valid(result.column(QUARANTINE_REASON)))
            refused = tuple(
                zip(*(rejected.column(n).to_pylist() for n in (PARTITION, OFFSET, QUARANTINE_REASON)), strict=True)
            )
            result = result.filter(pc.is_null(result.column(QUARANTINE_REASON)))
        hidden = {name for name in result.column_names if name.startswith(HIDDEN_PREFIX)} - {WEIGHT, SINCE}
        writes = list(self._state.build_writes())
        if not self._layout_known:
            writes.append(StateWrite(_LAYOUT_SPACE, [b""], [_LAYOUT], [self._sink_stage.operator.form.encode()]))
        return StageResult(result.drop_columns(sorted(hidden)), tuple(writes), refused)

    def on_commit(self) -> None:
        """Record that the result of `run` was committed."""
        if self._state is not None:
            self._state.on_commit()
            self._state = None
            self._layout_known = True


def to_upserts(rows: pa.Table, key: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """Returns the rows that exist after these Z-set rows, and the keys that no longer exist.

    Example:
        >>> rows = pa.table({"k": [1, 1, 2], "n": [5, 6, 7], WEIGHT: [-1, 1, -1]})
        >>> now, gone = to_upserts(rows, ("k",))
        >>> now.to_pylist(), gone.to_pylist()
        ([{'k': 1, 'n': 6}], [{'k': 2}])
    """
    values, weights = rows.drop_columns([WEIGHT]), rows.column(WEIGHT).to_numpy()
    now = values.take(pa.array((weights > 0).nonzero()[0].repeat(weights[weights > 0])))
    gone = values.select(list(key)).filter(pa.array(weights < 0))
    keys_now = set(_row_keys(now, key))
    first = {found: position for position, found in enumerate(_row_keys(gone, key)) if found not in keys_now}
    return now, gone.take(pa.array(list(first.values()), pa.int64()))


def inserted_keys(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Returns the keys that get a row and lose none, each once: if the key is unique, the view has no row of them yet.

    Example:
        >>> rows = pa.table({"k": [1, 1, 2, 3], "n": [5, 6, 7, 8], WEIGHT: [-1, 1, -1, 1]})
        >>> inserted_keys(rows, ("k",)).to_pylist()
        [{'k': 3}]
    """
    keys, weights = _row_keys(rows, key), rows.column(WEIGHT).to_pylist()
    first = {found: position for position, found in enumerate(keys) if weights[position] > 0}
    for position, found in enumerate(keys):
        if weights[position] < 0:
            first.pop(found, None)
    return rows.select(list(key)).take(pa.array(list(first.values()), pa.int64()))


def to_changes(rows: pa.Table, view: ViewTable) -> pa.Table:
    """Returns Z-set rows as changes in order; a retraction and an insertion at one time are an update.

    Example:
        >>> view = ViewTable("v", 1, pa.schema([("k", pa.int64()), ("n", pa.int64())]), ("k",))
        >>> rows = pa.table({"k": [1, 1, 1], "n": [5, 5, 6], WEIGHT: [1, -1, 1], SINCE: [10, 20, 20]})
        >>> [(row["op"], row["before"], row["after"]) for row in to_changes(rows, view).to_pylist()]
        [('insert', None, {'k': 1, 'n': 5}), ('update', {'k': 1, 'n': 5}, {'k': 1, 'n': 6})]
    """
    schema = change_schema(view)
    keys = _row_keys(rows, view.key)
    weights, since = rows.column(WEIGHT).to_numpy(), rows.column(SINCE).cast(pa.int64()).to_numpy()
    same = np.fromiter((one == other for one, other in pairwise(keys)), bool)
    paired = np.zeros(len(keys) + 1, bool)  # whether a removed row is followed by its replacement
    paired[1:-1] = same & (weights[:-1] < 0) & (weights[1:] > 0) & (since[:-1] == since[1:])
    first = np.flatnonzero(~paired[:-1])
    last = first + paired[1:][first]
    ops = np.where(first != last, "update", np.where(weights[first] < 0, "delete", "insert"))
    values = [rows.column(field.name).cast(field.type).combine_chunks() for field in view.schema]
    structs = pa.StructArray.from_arrays(values, fields=list(view.schema))
    columns = [
        pa.array(ops.tolist(), pa.string()),
        structs.take(pa.array(first, pa.int64(), mask=weights[first] > 0)),
        structs.take(pa.array(last, pa.int64(), mask=weights[last] < 0)),
        pa.array(since[first], pa.int64()).cast(schema.field("at").type),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def last_by_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Returns the last Z-set row of each key, which tells whether the key still has a row.

    Example:
        >>> rows = pa.table({"k": [1, 2, 1], WEIGHT: [1, 1, -1]})
        >>> last_by_key(rows, ("k",)).to_pylist()
        [{'k': 2, '_hw_weight': 1}, {'k': 1, '_hw_weight': -1}]
    """
    last = {found: position for position, found in enumerate(_row_keys(rows, key))}
    return rows.take(pa.array(sorted(last.values()), pa.int64()))


def _row_keys(rows: pa.Table, key: tuple[str, ...]) -> list[bytes]:
    return encode_keys([rows.column(name) for name in key])
