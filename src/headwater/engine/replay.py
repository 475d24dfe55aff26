"""Replay: runs an offset range of the log again in isolation, and compares the rows with the committed ones.

A correct pipeline returns the same rows for every division of the range into batches. Quarantined events are left out
again. A retried event is used at its own offset; so the rows are the same unless they depend on the order of arrival.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from headwater.backends import open_view_reader
from headwater.engine.context import EngineContext
from headwater.engine.query import OffsetBounds, Query
from headwater.engine.stored_inputs import current_version, find_input
from headwater.errors import UnknownViewError
from headwater.log.reader import TopicReader
from headwater.pipelines import Graph, Pipeline, PipelineKind
from headwater.store import LedgerEntry, SideOutput, SqliteDialect, SqlStore, Store
from headwater.store.status import WorkProgress

__all__ = ["ReplayResult", "replay", "rows_hash"]


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        pipeline: The name of the pipeline.
        batches: The number of batches of the replay.
        events: The number of events in the range.
        before: The hash of the committed rows.
        now: The hash of the rows of the replay.
    """

    pipeline: str
    batches: int
    events: int
    before: str
    now: str

    @property
    def same(self) -> bool:
        """Whether both runs returned the same rows."""
        return self.before == self.now


def replay(
    spark: SparkSession,
    graph: Graph,
    pipeline: Pipeline,
    context: EngineContext,
    scratch: Path,
    rows: int,
    on_progress: Callable[[WorkProgress], None] = lambda _: None,
) -> ReplayResult:
    """Run the whole committed range of a pipeline again in a separate folder, and compare the rows.

    Args:
        spark: The session.
        graph: The app of the pipeline.
        pipeline: The pipeline.
        context: The log that it reads and the store that has its rows.
        scratch: An empty folder.
        rows: The approximate number of events in a batch; another number divides the range elsewhere.
        on_progress: Called after each batch.

    Raises:
        UnknownViewError: It has committed nothing yet.
    """
    version = current_version(pipeline.name, context)
    manifest = context.query_directory(pipeline.name, version).load_manifest()
    entry, kept = _load_committed(pipeline, version, context)
    assert manifest is not None
    inputs = tuple(find_input(name, graph, context) for name in pipeline.inputs)
    ends = {read.topic: read.end for read in entry.inputs}
    bounds = OffsetBounds(manifest.starts, {i.name: ends.get(i.topic.name, manifest.starts[i.name]) for i in inputs})
    events = sum(_count_events(context, i.topic.name, bounds.starts[i.name], bounds.ends[i.name]) for i in inputs)

    def report() -> None:
        last = store.last_entry(query.directory.query_id)
        left = (
            sum(_count_events(context, read.topic, read.end, ends[read.topic]) for read in last.inputs) if last else 0
        )
        on_progress(WorkProgress("replay", events - left, events, pipeline.name))

    with contextlib.closing(SqlStore(SqliteDialect(scratch / "store"), context.clock)) as store:
        isolated = replace(context, store=store, scratch=scratch, rows=rows, wait=0.02, owner=None)
        query = Query(spark, pipeline, inputs, version, isolated, report, bounds)
        store.skip(query.directory.query_id, _still_skipped(context.store, query.directory.query_id))
        try:
            query.start()
            query.catch_up()
            if pipeline.kind is PipelineKind.VIEW:
                result = open_view_reader(store).table(pipeline.name)
            else:  # nothing was published, so the rows are still in the outbox
                tables = [outgoing.changes for outgoing in store.outbox(query.directory.query_id)]
                result = pa.concat_tables(tables) if tables else query.built.schema.empty_table()
            last = store.last_entry(query.directory.query_id)
        finally:
            query.stop()
    return ReplayResult(pipeline.name, last.batch + 1 if last else 0, events, rows_hash(kept), rows_hash(result))


def _still_skipped(store: Store, query: str) -> list[SideOutput]:
    """Returns the events that the search for failing events quarantined, without those that a retry has used since."""
    # A quarantined event is removed some day, its skip and its request only with the event.
    quarantined = {event.position for event in store.preview_retry(query)}
    used = {event.position for event in store.retries(query) if not event.waits} - quarantined
    return [one for one in store.skips(query) if (one.topic, one.partition, one.offset) not in used]


def _count_events(context: EngineContext, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> int:
    """Returns the number of events between these offsets."""
    before = context.log.count_events(topic, {number: starts.get(number, 0) for number in ends})
    return sum(before.values()) - sum(context.log.count_events(topic, ends).values())


def _load_committed(pipeline: Pipeline, version: int, context: EngineContext) -> tuple[LedgerEntry, pa.Table]:
    """Returns the newest ledger entry and exactly the rows that belong to it."""
    query, name, log = f"{pipeline.name}@{version}", pipeline.name, context.log
    while True:
        entry = context.store.last_entry(query)
        if entry is None:
            what = f"{pipeline} has committed nothing yet"
            raise UnknownViewError(what, fix="headwater run app.py", view=name)
        if pipeline.kind is PipelineKind.VIEW:
            rows = open_view_reader(context.store).table(name)
        else:
            ranges = log.ends(name)
            starts, ends = {r.partition: r.start for r in ranges}, {r.partition: r.end for r in ranges}
            batches = [batch.values for batch in TopicReader(log, name, starts, ends) if batch.values.num_rows]
            schema = log.topic(name).schema
            rows = pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)
        if context.store.last_entry(query) == entry:  # else a batch was committed meanwhile
            return entry, rows


def rows_hash(rows: pa.Table) -> str:
    """Returns a hash of rows that ignores their order, and digits of floats after the ninth: Spark adds in any order.

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
