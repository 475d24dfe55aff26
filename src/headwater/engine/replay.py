"""A range of the log run again, apart from everything: the proof that it gives the same rows, however it is cut."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from headwater.engine.building.inputs import Input, Rows
from headwater.engine.query import Bounds, Query
from headwater.engine.sink.outputs import changelog_name
from headwater.engine.surroundings import Surroundings
from headwater.errors import UnknownViewError
from headwater.log.protocol import Log
from headwater.log.reader import Reader
from headwater.pipelines import Graph, Kind, Pipeline
from headwater.store import LedgerEntry, SqliteStore, Views, views_of

__all__ = ["Replayed", "replay", "rows_hash"]


@dataclass(frozen=True)
class Replayed:
    """What came of a range the first time and this time.

    Attributes:
        pipeline: Which pipeline.
        batches: Into how many batches the range was cut this time.
        events: How many events it has.
        before: The hash of the rows that are kept.
        now: The hash of the rows made this time.
    """

    pipeline: str
    batches: int
    events: int
    before: str
    now: str

    @property
    def same(self) -> bool:
        """Whether both gave the same rows."""
        return self.before == self.now


def replay(
    spark: SparkSession,
    graph: Graph,
    pipeline: Pipeline,
    around: Surroundings,
    scratch: Path,
    rows: int,
) -> Replayed:
    """Run everything that a pipeline has committed once more, in a folder apart, and compare.

    Args:
        spark: The session.
        graph: The app it belongs to.
        pipeline: Which pipeline.
        around: The log it reads and the store that has its rows.
        scratch: An empty folder.
        rows: About how many events a batch takes; another number cuts the range elsewhere.

    Raises:
        UnknownViewError: It has committed nothing yet.
    """
    version = _version(pipeline.name, around)
    inputs = tuple(_input(name, graph, around) for name in pipeline.inputs)
    entry, kept = _kept(pipeline, version, around)
    store = SqliteStore(scratch / "store", around.clock)
    apart = replace(around, store=store, scratch=scratch, rows=rows, wait=0.02, owner=None)
    query = Query(
        spark,
        pipeline,
        inputs,
        version,
        apart,
        lambda: None,
        _bounds(pipeline, version, inputs, entry, around),
    )
    try:
        query.start()
        query.catch_up()
        made = _made(query, store)
        last = store.last(query.home.query)
    finally:
        query.stop()
        store.close()
    batches = last.batch + 1 if last else 0
    return Replayed(pipeline.name, batches, _events_between(query), rows_hash(kept), rows_hash(made))


def _events_between(query: Query) -> int:
    assert query.bounds is not None
    ends = query.bounds.ends
    return sum(end - query.starts[name].get(p, 0) for name, read in ends.items() for p, end in read.items())


def _version(name: str, around: Surroundings) -> int:
    current = around.store.current(name)
    return current.version if current else 1


def _input(name: str, graph: Graph, around: Surroundings) -> Input:
    """What a pipeline saw under this name when it ran."""
    source = {pipeline.name: pipeline for pipeline in graph.pipelines}.get(name)
    if source is None or source.kind is not Kind.VIEW:
        return Input(name, around.log.topic(name))
    version = _version(name, around)
    made = around.home(name, version).made()
    assert made is not None
    topic = around.log.topic(changelog_name(name, version))
    return Input.of_view(name, topic, Rows(made.rows), source.key)


def _kept(pipeline: Pipeline, version: int, around: Surroundings) -> tuple[LedgerEntry, pa.Table]:
    """The newest entry of the ledger and exactly the rows that belong to it."""
    query = f"{pipeline.name}@{version}"
    while True:
        entry = around.store.last(query)
        if entry is None:
            what = f"{pipeline} has committed nothing yet"
            raise UnknownViewError(what, fix="headwater run app.py", view=pipeline.name)
        rows = _rows_of(pipeline, around)
        if around.store.last(query) == entry:
            return entry, rows


def _rows_of(pipeline: Pipeline, around: Surroundings) -> pa.Table:
    if pipeline.kind is Kind.VIEW:
        views = views_of(around.store)
        try:
            return views.table(pipeline.name)
        finally:
            views.close()
    return pa.Table.from_batches(_events(around.log, pipeline.name), around.log.topic(pipeline.name).schema)


def _events(log: Log, topic: str) -> Iterator[pa.RecordBatch]:
    ends = {end.partition: (end.start, end.end) for end in log.ends(topic)}
    reader = Reader(
        log, topic, {p: start for p, (start, _) in ends.items()}, {p: end for p, (_, end) in ends.items()}
    )
    for batch in reader:
        if batch.values.num_rows:
            yield batch.values.cast(batch.topic.schema)


def _bounds(
    pipeline: Pipeline, version: int, inputs: tuple[Input, ...], entry: LedgerEntry, around: Surroundings
) -> Bounds:
    made = around.home(pipeline.name, version).made()
    assert made is not None
    ends = {read.topic: read.end for read in entry.inputs}
    return Bounds(
        made.starts, {input_.name: ends.get(input_.topic.name, made.starts[input_.name]) for input_ in inputs}
    )


def _made(query: Query, store: SqliteStore) -> pa.Table:
    if query.table is not None:
        views = Views(store)
        try:
            return views.table(query.pipeline.name)
        finally:
            views.close()
    tables = [outgoing.changes for outgoing in store.pending(query.home.query)]
    return pa.concat_tables(tables) if tables else query.built.schema.empty_table()


def rows_hash(rows: pa.Table) -> str:
    """A hash of rows in any order; floats count to nine digits, because the order of an addition is Spark's.

    Example:
        >>> rows = pa.table({"a": [1, 2], "b": [0.1 + 0.2, 1.0]})
        >>> rows_hash(rows) == rows_hash(pa.table({"a": [2, 1], "b": [1.0, 0.3]}))
        True
    """
    texts = sorted(repr([_plain(value) for value in row.values()]) for row in rows.to_pylist())
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isnan(value) else f"{value:.9g}"
    if isinstance(value, dict):
        return {name: _plain(member) for name, member in value.items()}
    return [_plain(member) for member in value] if isinstance(value, list) else value
