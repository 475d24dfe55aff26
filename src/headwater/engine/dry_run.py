"""Dry run: runs every pipeline once on empty input in a temporary folder.

It reports errors before the first batch that Spark otherwise raises in the first batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from headwater.engine.build.inputs import RowBehaviour
from headwater.engine.build.placement import KEY_GROUPS
from headwater.engine.compatibility import Compatibility, check_compatibility
from headwater.engine.context import CheckpointFolder, EngineContext, LocalFolder, QueryDirectory, QueryManifest
from headwater.engine.engine import Engine
from headwater.engine.query import Query
from headwater.errors import HeadwaterError, UnreachableError
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.pipelines import Graph, PipelineKind
from headwater.plan import PipelineCheck
from headwater.store import SqliteDialect, SqlStore

__all__ = ["dry_run"]


def dry_run(
    graph: Graph,
    data: Path,
    spark: Callable[[], SparkSession],
    checkpoints: CheckpointFolder | None = None,
    log_url: str = "",
) -> Iterator[PipelineCheck]:
    """Check all pipelines of an app against Spark, and against the manifests of earlier runs.

    Nothing is read but what earlier runs noted about themselves, in the data folder, or in `checkpoints`, where the
    checkpoints of a profile are; nothing is written there. `log_url` is where the log will be: pipelines in real-time
    mode need a Kafka.
    """
    manifests = checkpoints or LocalFolder(data / "engine")
    clock = SystemClock()
    with (
        tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as scratch,
        EventLog(scratch) as log,
    ):
        store = SqlStore(SqliteDialect(Path(scratch, "store")), clock)
        context = EngineContext(log.folder, log, store, clock, wait=0.02, dry_run_log=log_url or log.url)
        engine = Engine(graph, spark, context)
        engine.start()
        for topic in graph.topics:  # an idle marker is enough for a batch
            for partition in log.open_topic(topic.name).partitions:
                partition.append_idle_marker(clock.micros())
        try:
            for pipeline in graph.pipelines:
                yield _check_pipeline(engine, pipeline.name, manifests)
        finally:
            engine.stop()
            store.close()


def _check_pipeline(engine: Engine, name: str, manifests: CheckpointFolder) -> PipelineCheck:
    supervisor = engine.supervisors[name]
    try:
        supervisor.catch_up()
    except HeadwaterError as error:
        return PipelineCheck(name, error=error.problem())
    query = supervisor.wait_until_running()
    try:
        compatibility = check_compatibility(_last_manifest(manifests, name), query.manifest(), query.built)
    except UnreachableError as error:
        compatibility = Compatibility("new", (f"what ran before is not known: {error.what}",))
    built = query.built
    changes = built.pipeline.kind is PipelineKind.VIEW and built.row_behaviour is not RowBehaviour.FINAL
    mode = "update" if changes else built.mode
    notes = (*compatibility.notes, *_notes(query))
    return PipelineCheck(name, query.manifest().schema, mode, built.stateful, compatibility.verdict, notes)


def _last_manifest(manifests: CheckpointFolder, name: str) -> QueryManifest | None:
    versions = [int(number) for number in manifests.list_names(name) if number.isdigit()]
    return QueryDirectory(Path(), name, max(versions), manifests).load_manifest() if versions else None


def _notes(query: Query) -> Iterator[str]:
    built = query.built
    if built.pipeline.realtime:
        yield "real-time mode can run it; nothing is counted, and what cannot be read is left out"
        if built.stateful:
            yield "state is kept for ever, and a row goes out whenever it changes"
        return
    if built.sink_stage is not None:
        yield "its last step runs after Spark: what it remembers commits with rows and ledger, in the store"
        return
    if built.spark_operators:
        yield f"other steps follow {built.spark_operators[-1]}: it is kept in Spark, in {KEY_GROUPS} key groups"
    if built.marks_final_rows:
        yield "rows are shown while their window is open, and marked as open"
    if built.mode == "append" and built.stateful:
        yield "rows are shown when they are final"
    if built.stateful and not built.drops_late:
        yield "waits for nothing: late events count, and state is kept for ever"
