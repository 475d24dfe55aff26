"""What Spark would only say in the first batch, said before: pipelines run once over nothing, in a folder apart."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from headwater.engine.building.inputs import Rows
from headwater.engine.building.placing import BUCKETS
from headwater.engine.engine import Engine
from headwater.engine.fit import Fit, compare
from headwater.engine.folder import Folder, LocalFolder
from headwater.engine.home import Home, Made
from headwater.engine.query import Query
from headwater.engine.surroundings import Surroundings
from headwater.errors import HeadwaterError, UnreachableError
from headwater.events import SystemClock
from headwater.log import EventLog
from headwater.pipelines import Graph, Kind
from headwater.plan import Checked
from headwater.store import SqliteStore

__all__ = ["check"]


def check(
    graph: Graph,
    data: Path,
    spark: Callable[[], SparkSession],
    kept: Folder | None = None,
    log_at: str = "",
) -> Iterator[Checked]:
    """Check all pipelines of an app against Spark, and against what ran before.

    Nothing is read but what earlier runs noted about themselves, in the data folder, or in `kept`, where the
    checkpoints of a profile are; nothing is written there. `log_at` is where the log will be: pipelines in real-time
    mode need a Kafka.
    """
    noted = kept or LocalFolder(data / "engine")
    clock = SystemClock()
    with (
        tempfile.TemporaryDirectory(prefix="headwater-", ignore_cleanup_errors=True) as scratch,
        EventLog(scratch) as log,
    ):
        store = SqliteStore(Path(scratch, "store"), clock)
        around = Surroundings(log.folder, log, store, clock, wait=0.02, rehearsed=log_at or log.where)
        engine = Engine(graph, spark, around)
        engine.start()
        for topic in graph.topics:  # a time mark is enough for a batch
            for partition in log.opened(topic.name).partitions:
                partition.mark(clock.micros())
        try:
            for pipeline in graph.pipelines:
                yield _checked(engine, pipeline.name, noted)
        finally:
            engine.stop()
            store.close()


def _checked(engine: Engine, name: str, noted: Folder) -> Checked:
    keeper = engine.keepers[name]
    try:
        keeper.catch_up()
    except HeadwaterError as error:
        return Checked(name, error=error.problem())
    query = keeper.ready()
    try:
        fit = compare(_made_before(noted, name), query.made(), query.built)
    except UnreachableError as error:
        fit = Fit("new", (f"what ran before is not known: {error.what}",))
    built = query.built
    changes = built.pipeline.kind is Kind.VIEW and built.rows is not Rows.FINAL
    mode = "update" if changes else built.mode
    notes = (*fit.notes, *_notes(query))
    return Checked(name, query.made().schema, mode, built.stateful, fit.verdict, notes)


def _made_before(noted: Folder, name: str) -> Made | None:
    versions = [int(number) for number in noted.names(name) if number.isdigit()]
    return Home(Path(), name, max(versions), noted).made() if versions else None


def _notes(query: Query) -> Iterator[str]:
    built = query.built
    if built.pipeline.realtime:
        yield "real-time mode can run it; nothing is counted, and what cannot be read is left out"
        if built.stateful:
            yield "state is kept for ever, and a row goes out whenever it changes"
        return
    if built.after_spark is not None:
        yield "its last step runs after Spark: what it remembers commits with rows and ledger, in the store"
        return
    if built.keyed:
        yield f"other steps follow {built.keyed[-1]}: it is kept in Spark, in {BUCKETS} buckets"
    if built.finals:
        yield "rows are shown while their window is open, and marked as open"
    if built.mode == "append" and built.stateful:
        yield "rows are shown when they are final"
    if built.stateful and not built.timed:
        yield "waits for nothing: late events count, and state is kept for ever"
