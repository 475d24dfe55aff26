"""Random histories of tables that change, and DuckDB as the judge of what a query over them should give."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from headwater.engine.state.state import DELETED, OFFSET, PARTITION, TIME, WEIGHT, MemoryState, State
from headwater.engine.tables.dataflow import Dataflow, TableInput

START = datetime(2026, 3, 1, tzinfo=UTC)
NAN = float("nan")
TABLES = {
    "posts": TableInput(
        pa.schema(
            [
                ("id", pa.int64()),
                ("author", pa.string()),
                ("likes", pa.int32()),
                ("price", pa.decimal128(10, 2)),
                ("score", pa.float64()),
                ("made", pa.timestamp("us", "UTC")),
            ]
        ),
        ("id",),
    ),
    "users": TableInput(pa.schema([("name", pa.string()), ("country", pa.string()), ("age", pa.int64())]), ("name",)),
    "follows": TableInput(pa.schema([("follower", pa.string()), ("followee", pa.string())]), ("follower", "followee")),
    "marks": TableInput(pa.schema([("mark", pa.float64()), ("n", pa.int64())]), ("mark",)),
}
NAMES = st.sampled_from(["ada", "bob", "cy", "dée"])
VALUES = {
    "id": st.integers(0, 6),
    "author": st.none() | NAMES,
    "likes": st.none() | st.integers(-3, 3),
    "price": st.none() | st.integers(-500, 500).map(lambda cents: Decimal(cents).scaleb(-2)),
    "score": st.none() | st.sampled_from([0.0, -0.0, 0.25, -1.5, 1e15, NAN, math.inf, -math.inf]),
    "made": st.none() | st.integers(-5, 5).map(lambda half: START + timedelta(minutes=30 * half)),
    "name": st.none() | NAMES,
    "country": st.none() | st.sampled_from(["de", "fr", ""]),
    "age": st.none() | st.integers(1, 4),
    "follower": NAMES,
    "followee": NAMES,
    "mark": st.none() | st.sampled_from([NAN, 0.0, -0.0, 1.5, math.inf]),
    "n": st.integers(-2, 2),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Version:
    """A row of a table as it arrives, or, with only the key, its deletion."""

    table: str
    row: Row
    deleted: bool


@st.composite
def versions(draw: st.DrawFn, tables: Sequence[str]) -> Version:
    table = draw(st.sampled_from(list(tables)))
    deleted = draw(st.integers(0, 3)) == 0
    given = TABLES[table]
    names = given.key if deleted else given.schema.names
    return Version(table, {name: draw(VALUES[name]) for name in names}, deleted)


def histories(tables: Sequence[str]) -> st.SearchStrategy[list[list[Version]]]:
    """Batches of versions of some tables."""
    return st.lists(st.lists(versions(tables), max_size=12), min_size=1, max_size=4)


def arrived(table: str, batch: Iterable[Version], after: int = 0) -> pa.Table:
    """The versions of one table in a batch, as a source hands them over."""
    mine = [version for version in batch if version.table == table]
    schema = TABLES[table].schema
    columns = [pa.array([version.row.get(name) for version in mine], schema.field(name).type) for name in schema.names]
    offsets = pa.array(range(after, after + len(mine)), pa.int64())
    hidden = {
        DELETED: pa.array([version.deleted for version in mine], pa.bool_()),
        TIME: pa.array([0] * len(mine), pa.int64()),
        PARTITION: pa.array([0] * len(mine), pa.int32()),
        OFFSET: offsets,
    }
    return pa.Table.from_arrays([*columns, *hidden.values()], names=[*schema.names, *hidden])


@dataclass
class World:
    """What the tables are now, what a dataflow made of their history, and what DuckDB makes of them."""

    flow: Dataflow
    state: State = field(default_factory=MemoryState)
    tables: dict[str, dict[tuple[Any, ...], Row]] = field(default_factory=lambda: {name: {} for name in TABLES})
    shown: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def take(self, batch: Sequence[Version]) -> pa.Table:
        """Run one batch through the dataflow; returns the changes."""
        for version in batch:
            key = tuple(plain(version.row[name]) for name in TABLES[version.table].key)
            if version.deleted:
                self.tables[version.table].pop(key, None)
            else:
                self.tables[version.table][key] = version.row
        changes = self.flow.step(self.state, [arrived(name, batch) for name in self.flow.inputs], 0)
        for row in changes.to_pylist():
            weight = row.pop(WEIGHT)
            assert weight != 0
            self.shown[tuple(map(plain, row.values()))] += weight
        self.shown = Counter({row: weight for row, weight in self.shown.items() if weight})
        return changes

    def keys(self, key: Sequence[str]) -> int:
        """How many different values the columns of the key have."""
        places = [self.flow.schema.get_field_index(name) for name in key]
        return len({tuple(row[place] for place in places) for row in self.shown})

    def asked(self, sql: str) -> Counter[tuple[Any, ...]]:
        """What DuckDB says the query gives now."""
        judge = _judge()
        for name in self.flow.inputs:
            judge.register(name, pa.Table.from_pylist(list(self.tables[name].values()), TABLES[name].schema))
        found = judge.sql(sql).to_arrow_table().to_pylist()
        return Counter(tuple(map(plain, row.values())) for row in found)


@cache
def _judge() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"threads": "1"})
    connection.execute("set TimeZone = 'UTC'")
    return connection


def plain(value: Any) -> Any:
    """A value that equals what it should: NaN itself, floats to nine digits, times without their zone."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.9g}") + 0.0
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, Mapping):
        return tuple((name, plain(member)) for name, member in value.items())
    return value
