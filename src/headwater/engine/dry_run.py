"""Dry run: runs every pipeline once on empty input in a temporary folder.

It finds errors that Spark otherwise raises only in the first batch.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from headwater.engine.build.build import BuiltQuery
from headwater.engine.build.inputs import RowBehaviour
from headwater.engine.build.placement import KEY_GROUPS
from headwater.engine.compatibility import Compatibility, check_compatibility
from headwater.engine.context import CheckpointFolder, EngineContext, LocalFolder, QueryDirectory, QueryManifest
from headwater.engine.engine import Engine
from headwater.errors import HeadwaterError, UnreachableError
from headwater.events import SystemClock
from headwater.invocation import Invocation
from headwater.log import EventLog
from headwater.pipelines import Graph, PipelineKind
from headwater.plan import PipelineCheck
from headwater.store import SqliteDialect, SqlStore

__all__ = ["describe", "dry_run", "last_manifest"]


def dry_run(
    graph: Graph,
    data: Path,
    spark: Callable[[], SparkSession],
    checkpoints: CheckpointFolder | None = None,
    log_url: str = "",
    names: Collection[str] | None = None,
    invocation: Invocation | None = None,
) -> Iterator[PipelineCheck]:
    """Check pipelines of an app with Spark, and against the manifests of earlier runs.

    Reads only these manifests, and writes nothing outside a temporary folder.

    Args:
        graph: The app's topics and pipelines.
        data: The data folder of earlier runs.
        spark: Returns the session.
        checkpoints: The checkpoint folder of earlier runs; in the data folder, if omitted.
        log_url: The address of the log that a run would use; real-time pipelines need one on Kafka.
        names: The pipelines to check; all, if None. Those upstream run, too: their rows are unknown otherwise.
        invocation: How the app was called; completes the commands in errors.
    """
    manifests = checkpoints or LocalFolder(data / "engine")
    clock = SystemClock()
    with (
        tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as scratch,
        EventLog(scratch) as log,
        contextlib.closing(SqlStore(SqliteDialect(Path(scratch, "store")), clock)) as store,
    ):
        context = EngineContext(
            log.folder,
            log,
            store,
            clock,
            wait=0.1,
            dry_run_log=log_url or log.url,
            turns=threading.Semaphore(os.cpu_count() or 2),  # nobody waits for the first one
            invocation=invocation or Invocation(),
        )
        names = [pipeline.name for pipeline in graph.pipelines] if names is None else names
        needed = {each for name in names for each in (name, *graph.upstream(name))}
        engine = Engine(graph, spark, context, names=needed)
        for topic in graph.topics:  # an idle marker is enough for a batch
            log.create(topic)
            for partition in log.open_topic(topic.name).partitions:
                partition.append_idle_marker(clock.micros())
        engine.start()
        try:
            ran = engine.begin_catch_up()
            for name in names:
                yield _check_pipeline(engine, name, ran[name], manifests)
        finally:
            engine.stop()


def _check_pipeline(engine: Engine, name: str, ran: Future[None], manifests: CheckpointFolder) -> PipelineCheck:
    try:
        ran.result()
        query = engine.supervisors[name].wait_until_running()
    except HeadwaterError as error:
        return PipelineCheck(name, error=error.problem())
    built = query.built
    try:
        compatibility = check_compatibility(
            last_manifest(manifests, name), query.manifest(), stateful=bool(built.stateful), kind=built.pipeline.kind
        )
    except UnreachableError as error:
        compatibility = Compatibility("new", (f"the previous run is unknown: {error.what}",))
    changes = built.pipeline.kind is PipelineKind.VIEW and built.row_behaviour is not RowBehaviour.FINAL
    mode = "update" if changes else built.mode
    notes = (*compatibility.notes, *describe(built))
    return PipelineCheck(name, query.manifest().schema, mode, built.stateful, compatibility.verdict, notes)


def last_manifest(manifests: CheckpointFolder, name: str) -> QueryManifest | None:
    """Returns the manifest of the newest version of a pipeline; None if it has never run."""
    versions = [int(number) for number in manifests.list_names(name) if number.isdigit()]
    return QueryDirectory(Path(), name, max(versions), manifests).load_manifest() if versions else None


def describe(built: BuiltQuery) -> Iterator[str]:
    """Yields notes for the user: where state is kept, and when rows are emitted."""
    if built.pipeline.realtime:
        yield "real-time mode can run it; events are not counted, and unreadable records are dropped"
        if built.stateful:
            yield "state is kept for ever, and a row is emitted whenever it changes"
        return
    if built.sink_stage is not None:
        yield "its last step runs at the sink: its state commits with rows and ledger, in the store"
    elif built.spark_operators:
        yield f"other steps follow {built.spark_operators[-1]}: its state is in Spark, in {KEY_GROUPS} key groups"
    if built.sink_stage is None:
        yield from _describe_emission(built)
    yield from _describe_late(built)
    if built.checks_key:
        yield "two rows could have the same key: every batch is checked, and a second row stops it with KEY_NOT_UNIQUE"


def _describe_late(built: BuiltQuery) -> Iterator[str]:
    if built.event_time_steps:
        steps = ", ".join(built.event_time_steps)
        yield f"late events are left out, because the result depends on event time: {steps}"
    elif built.stateful and not all(input_.is_table for input_ in built.inputs):
        yield "late events are used: no step depends on event time"


def _endless_window(built: BuiltQuery) -> str:
    topic = built.inputs[0].topic
    times = [field.name for field in topic.schema if pa.types.is_timestamp(field.type)]
    line = f'app.topic("{topic.name}", …, time="{times[0] if times else "…"}")'
    return f'"{built.window}" is no window of the event time, so it never closes; its topic names the column: {line}'


def _describe_emission(built: BuiltQuery) -> Iterator[str]:
    if built.marks_final_rows and not built.event_time_steps:
        yield _endless_window(built)
    elif built.marks_final_rows:
        yield "rows are shown while their window is open, and marked as open"
    if built.mode == "append" and built.stateful:
        yield "rows are shown when they are final"
    if built.stateful and not built.event_time_steps:
        yield "no step waits for event time: state is kept for ever"
