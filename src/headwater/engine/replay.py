"""Replay: runs an offset range of the log again in isolation, and compares the rows with the committed ones.

The result must be the same for every division of the range into batches.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from headwater.backends import open_view_reader
from headwater.engine.build.inputs import Input, RowBehaviour
from headwater.engine.context import EngineContext
from headwater.engine.query import OffsetBounds, Query
from headwater.errors import UnknownViewError
from headwater.log.protocol import Log
from headwater.log.reader import TopicReader
from headwater.pipelines import Graph, Pipeline, PipelineKind
from headwater.store import LedgerEntry, SqliteDialect, SqlStore, ViewReader
from headwater.store.changelog import changelog_topic

__all__ = ["ReplayResult", "replay", "rows_hash"]


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay: the rows of the first run and of this run.

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
    spark: SparkSession, graph: Graph, pipeline: Pipeline, context: EngineContext, scratch: Path, rows: int
) -> ReplayResult:
    """Run the whole committed range of a pipeline again in a separate folder, and compare the rows.

    Args:
        spark: The session.
        graph: The app it belongs to.
        pipeline: Which pipeline.
        context: The log it reads and the store that has its rows.
        scratch: An empty folder.
        rows: About how many events a batch takes; another number cuts the range elsewhere.

    Raises:
        UnknownViewError: It has committed nothing yet.
    """
    version = _current_version(pipeline.name, context)
    inputs = tuple(_resolve_input(name, graph, context) for name in pipeline.inputs)
    entry, kept = _load_committed(pipeline, version, context)
    store = SqlStore(SqliteDialect(scratch / "store"), context.clock)
    isolated = replace(context, store=store, scratch=scratch, rows=rows, wait=0.02, owner=None)
    query = Query(
        spark,
        pipeline,
        inputs,
        version,
        isolated,
        lambda: None,
        _replay_bounds(pipeline, version, inputs, entry, context),
    )
    try:
        query.start()
        query.catch_up()
        result = _replay_rows(query, store)
        last = store.last_entry(query.directory.query_id)
    finally:
        query.stop()
        store.close()
    batches = last.batch + 1 if last else 0
    return ReplayResult(pipeline.name, batches, _event_count(query), rows_hash(kept), rows_hash(result))


def _event_count(query: Query) -> int:
    assert query.bounds is not None
    ends = query.bounds.ends
    return sum(end - query.starts[name].get(p, 0) for name, read in ends.items() for p, end in read.items())


def _current_version(name: str, context: EngineContext) -> int:
    current = context.store.current_table(name)
    return current.version if current else 1


def _resolve_input(name: str, graph: Graph, context: EngineContext) -> Input:
    """Returns the input of this name as the pipeline saw it when it ran."""
    source = {pipeline.name: pipeline for pipeline in graph.pipelines}.get(name)
    if source is None or source.kind is not PipelineKind.VIEW:
        return Input(name, context.log.topic(name))
    version = _current_version(name, context)
    manifest = context.query_directory(name, version).load_manifest()
    assert manifest is not None
    topic = context.log.topic(changelog_topic(name, version))
    return Input.of_view(name, topic, RowBehaviour(manifest.rows), source.key)


def _load_committed(pipeline: Pipeline, version: int, context: EngineContext) -> tuple[LedgerEntry, pa.Table]:
    """Returns the newest ledger entry and exactly the rows that belong to it."""
    query = f"{pipeline.name}@{version}"
    while True:
        entry = context.store.last_entry(query)
        if entry is None:
            what = f"{pipeline} has committed nothing yet"
            raise UnknownViewError(what, fix="headwater run app.py", view=pipeline.name)
        rows = _output_rows(pipeline, context)
        if context.store.last_entry(query) == entry:
            return entry, rows


def _output_rows(pipeline: Pipeline, context: EngineContext) -> pa.Table:
    if pipeline.kind is PipelineKind.VIEW:
        return open_view_reader(context.store).table(pipeline.name)
    return pa.Table.from_batches(_topic_batches(context.log, pipeline.name), context.log.topic(pipeline.name).schema)


def _topic_batches(log: Log, topic: str) -> Iterator[pa.RecordBatch]:
    ends = {end.partition: (end.start, end.end) for end in log.ends(topic)}
    reader = TopicReader(
        log, topic, {p: start for p, (start, _) in ends.items()}, {p: end for p, (_, end) in ends.items()}
    )
    for batch in reader:
        if batch.values.num_rows:
            yield batch.values.cast(batch.topic.schema)


def _replay_bounds(
    pipeline: Pipeline, version: int, inputs: tuple[Input, ...], entry: LedgerEntry, context: EngineContext
) -> OffsetBounds:
    manifest = context.query_directory(pipeline.name, version).load_manifest()
    assert manifest is not None
    ends = {read.topic: read.end for read in entry.inputs}
    return OffsetBounds(
        manifest.starts, {input_.name: ends.get(input_.topic.name, manifest.starts[input_.name]) for input_ in inputs}
    )


def _replay_rows(query: Query, store: SqlStore) -> pa.Table:
    if query.table is not None:
        return ViewReader(store).table(query.pipeline.name)
    tables = [outgoing.changes for outgoing in store.outbox(query.directory.query_id)]
    return pa.concat_tables(tables) if tables else query.built.schema.empty_table()


def rows_hash(rows: pa.Table) -> str:
    """Returns a hash of rows in any order; floats count to nine digits, because Spark's order of addition varies.

    Example:
        >>> rows = pa.table({"a": [1, 2], "b": [0.1 + 0.2, 1.0]})
        >>> rows_hash(rows) == rows_hash(pa.table({"a": [2, 1], "b": [1.0, 0.3]}))
        True
    """
    texts = sorted(repr([_normalize(value) for value in row.values()]) for row in rows.to_pylist())
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _normalize(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isnan(value) else f"{value:.9g}"
    if isinstance(value, dict):
        return {name: _normalize(member) for name, member in value.items()}
    return [_normalize(member) for member in value] if isinstance(value, list) else value
