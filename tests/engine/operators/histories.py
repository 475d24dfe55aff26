"""Random histories for operators: records of several partitions, in any interleaving, cut into any batches."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from headwater.engine.state.state import DELETED, OFFSET, PARTITION, TIME, WEIGHT, MemoryState, Operator

END = 1 << 60
START = -(1 << 60)
HIDDEN = [(TIME, pa.int64()), (PARTITION, pa.int32()), (OFFSET, pa.int64())]

Record = dict[str, Any]


@dataclass(frozen=True)
class History:
    """Records of each input by partition, and the order in which they arrive, cut into batches."""

    inputs: tuple[list[Record], ...]
    """All records that are not late, with their hidden columns."""
    batches: tuple[tuple[tuple[list[Record], ...], int], ...]
    """Records of each input, and the watermark."""


@st.composite
def histories(
    draw: st.DrawFn, *inputs: st.SearchStrategy[Record], partitions: int = 2, most: int = 8, span: int = 12
) -> History:
    """A history of inputs whose records are drawn; times are small, so that many are equal."""
    lateness = draw(st.sampled_from([0, 0, 4]))
    lanes = [
        _lane(draw(st.lists(st.tuples(st.integers(0, span), record), max_size=most)), number, partition, lateness)
        for number, record in enumerate(inputs)
        for partition in range(partitions)
    ]
    return arranged(draw, [lane for lane in lanes if lane], len(inputs), lateness)


def arranged(draw: st.DrawFn, lanes: list[list[tuple[int, Record]]], inputs: int, lateness: int) -> History:
    """Records in a drawn order that keeps the order of each partition, and in drawn batches."""
    turns = draw(st.permutations([number for number, lane in enumerate(lanes) for _ in lane]))
    cuts = draw(st.lists(st.booleans(), min_size=len(turns), max_size=len(turns)))
    reached, taken = [START] * len(lanes), [0] * len(lanes)
    batches, batch = [], tuple([] for _ in range(inputs))
    for number, cut in zip(turns, cuts, strict=True):
        side, record = lanes[number][taken[number]]
        taken[number] += 1
        reached[number] = max(reached[number], record[TIME])
        batch[side].append(record)
        if cut:
            batches.append((batch, max(min(reached) - lateness, START)))
            batch = tuple([] for _ in range(inputs))
    batches += [
        (batch, max([START, *([min(reached) - lateness] if reached else [])])),
        (tuple([] for _ in range(inputs)), END),
    ]
    every = tuple([record for lane in lanes for side, record in lane if side == number] for number in range(inputs))
    return History(every, tuple(batches))


def _lane(drawn: list[tuple[int, Record]], side: int, partition: int, lateness: int) -> list[tuple[int, Record]]:
    """The records of one partition that are not late: not further back than the lateness from the highest before."""
    highest, kept = START, []
    for offset, (time, record) in enumerate(drawn):
        if time >= highest - lateness:
            kept.append((side, {**record, TIME: time, PARTITION: partition, OFFSET: offset}))
        highest = max(highest, time)
    return kept


def table_of(records: Sequence[Record], schema: pa.Schema, *, of_table: bool = False) -> pa.Table:
    """Records as an operator gets them: in the order of time, partition and offset."""
    hidden = [(DELETED, pa.bool_()), *HIDDEN] if of_table else HIDDEN
    ordered = sorted(records, key=lambda record: (record[TIME], record[PARTITION], record[OFFSET]))
    return pa.Table.from_pylist(ordered, pa.schema([*schema, *map(lambda pair: pa.field(*pair), hidden)]))


def run(
    operator: Operator, history: History, schemas: Sequence[pa.Schema], tables: Sequence[bool]
) -> tuple[list[pa.Table], MemoryState]:
    """What the operator gives for each batch, and what it remembers at the end."""
    state = MemoryState()
    results = []
    for records, watermark in history.batches:
        arrived = [
            table_of(rows, schema, of_table=of_table)
            for rows, schema, of_table in zip(records, schemas, tables, strict=True)
        ]
        result = operator.step(state, arrived, watermark)
        assert result.schema == operator.schema
        results.append(result)
    return results, state


def contents(results: Sequence[pa.Table], *, without: Sequence[str] = ()) -> Counter[str]:
    """The rows that are left after adding up weights."""
    left: Counter[str] = Counter()
    for result in results:
        for row in result.to_pylist():
            weight = row.pop(WEIGHT, 1)
            left[repr({name: plain(value) for name, value in sorted(row.items()) if name not in without})] += weight
    return Counter({row: weight for row, weight in left.items() if weight})


def query(sql: str, **tables: pa.Table) -> pa.Table:
    """The answer of DuckDB."""
    for name, table in tables.items():
        _database().register(name, table)
    return _database().sql(sql).to_arrow_table()


def asked(sql: str, **tables: pa.Table) -> Counter[str]:
    """The rows that DuckDB gives."""
    return contents([query(sql, **tables)])


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """One database for all: opening one takes longer than a question."""
    database = duckdb.connect(config={"threads": 1})
    atexit.register(_database.cache_clear)
    atexit.register(database.close)
    return database


def moment(time: int) -> datetime:
    """A time of a history."""
    return datetime.fromtimestamp(time / 1_000_000, UTC)


def plain(value: Any) -> Any:
    """A value whose text is equal for equal values; doubles to nine digits, times in UTC."""
    if isinstance(value, float):
        return float(f"{value:.9g}") + 0.0
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def entries(state: MemoryState) -> list[tuple[str, bytes, bytes, bytes]]:
    """All entries, sorted: space, key, name, value."""
    singles = [(space, key, b"", value) for space, keys in state.single_values.items() for key, value in keys.items()]
    maps = [
        (space, key, name, value)
        for space, keys in state.map_values.items()
        for key, names in keys.items()
        for name, value in names.items()
    ]
    return sorted(singles + maps)


def spaces(state: MemoryState) -> dict[str, int]:
    """How many entries each space has."""
    return dict(Counter(space for space, *_ in entries(state)))
