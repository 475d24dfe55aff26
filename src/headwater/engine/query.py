"""One version of one pipeline as a running Spark query.

Before a query starts, `check_gap` checks that the next offsets are still in the log: a query never continues over a
gap. The same holds for tombstones that compaction removes, which is checked before each commit, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.engine.build.build import BuiltQuery, build
from headwater.engine.build.inputs import Input, InputOptions
from headwater.engine.context import EngineContext, QueryManifest
from headwater.engine.failpoints import failpoint
from headwater.engine.sink.accounting import ObservedRows
from headwater.engine.sink.checkpoint import PartitionOffsets, discard_plan, mend, next_offsets
from headwater.engine.sink.publisher import check_event_sizes, output_topic, publish
from headwater.engine.sink.sink import Sink
from headwater.engine.source.batch_budget import BatchBudget
from headwater.errors import DataGoneError, HeadwaterError
from headwater.events import to_ddl
from headwater.log import Topic
from headwater.log.protocol import TimedLog
from headwater.log.tombstones import check_tombstones
from headwater.pipelines import Pipeline, PipelineKind
from headwater.store import ViewTable
from headwater.store.commit.row_checks import check_rows

__all__ = ["OffsetBounds", "Query", "check_gap", "rebuild_error"]

logger = logging.getLogger("headwater.engine")
# Held while a query starts: Spark gives the Python process of an input only ten seconds to start, which many queries at
# once would exceed.
_starting = threading.Semaphore(4)


def check_gap(
    log: TimedLog,
    pipeline: Pipeline,
    topics: Mapping[str, str],
    positions: Mapping[str, PartitionOffsets],
    topic_ids: Mapping[str, str],
) -> None:
    """Refuse to start a query that would skip events silently.

    Args:
        log: The log.
        pipeline: The pipeline of the query.
        topics: The topic of each input.
        positions: The next offset of each partition, by name of the input.
        topic_ids: The id that the topic of each input had when it was first read; see `TimedLog.topic_id`.

    Raises:
        DataGoneError: Retention has removed unread events, the log has lost events, or the topic was deleted and
            created again.
    """
    for name, topic in topics.items():
        if topic_ids.get(name) not in (None, log.topic_id(topic)):
            what = f'topic "{topic}" was deleted and created again since {pipeline} read it'
            raise _gap_error(pipeline, what, "unread events of the deleted topic are gone", topic=topic)
        ranges = {part.partition: part for part in log.ends(topic)}
        for number, at in sorted(positions[name].items()):
            end = ranges[number].end if number in ranges else 0
            if number not in ranges or at > end:
                what = f'partition {number} of topic "{topic}" ends at {end}, but {pipeline} has read it up to {at}'
                raise _gap_error(pipeline, what, "the log has lost events", topic=topic, partition=number)
        # A partition that was added later is read from offset 0.
        starts = [(part, positions[name].get(number, 0)) for number, part in sorted(ranges.items())]
        missed = [(part, at) for part, at in starts if at < part.start]
        if missed:
            part, at = missed[0]
            lost = ", ".join(f"{at} to {part.start - 1} of partition {part.partition}" for part, at in missed)
            raise _gap_error(
                pipeline,
                f'offsets {lost} of topic "{topic}" are gone, and {pipeline} has not read them',
                "retention removed them first",
                topic=topic,
                partition=part.partition,
                first=at,
                last=part.start - 1,
                start=part.start,
                events=sum(part.start - at for part, at in missed),
            )


def _gap_error(pipeline: Pipeline, what: str, why: str, **data: object) -> HeadwaterError:
    rebuilt = "a rebuild creates the view from the events that are left"
    renamed = "rows that it has written stay; under another name it reads the events that are left"
    remedy = rebuilt if pipeline.kind is PipelineKind.VIEW else renamed
    return rebuild_error(DataGoneError, pipeline, what, f"{why}; {remedy}", **data)


def rebuild_error(
    kind: type[HeadwaterError], pipeline: Pipeline, what: str, detail: str, **data: object
) -> HeadwaterError:
    """Returns an error that ends a pipeline until its view is rebuilt; other pipelines need another name."""
    fix = "give it another name"
    if pipeline.kind is PipelineKind.VIEW:
        fix = f"stop the app; headwater run app.py --rebuild {pipeline.name}"
    return kind(what, detail=detail, fix=fix, location=pipeline.location, pipeline=pipeline.name, **data)


@dataclass(frozen=True)
class OffsetBounds:
    """The offsets at which a query begins and optionally ends: by partition, by name of the input."""

    starts: Mapping[str, Mapping[int, int]]
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


class Query:
    """One running version of a pipeline; after a failure a new object is created.

    Args:
        spark: The session.
        pipeline: The pipeline.
        inputs: Its inputs.
        version: Its version.
        context: The engine context.
        on_commit: Called after each batch.
        bounds: Where it begins and ends; from the start of its inputs and without end, if omitted.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        inputs: tuple[Input, ...],
        version: int,
        context: EngineContext,
        on_commit: Callable[[], None],
        bounds: OffsetBounds | None = None,
    ) -> None:
        self._context = context
        self._on_commit = on_commit
        self.pipeline = pipeline
        self.bounds = bounds
        self.directory = context.query_directory(pipeline.name, version)
        self._topics = {input_.name: input_.topic.name for input_ in inputs}
        if manifest := self.directory.load_manifest():
            self.starts: Mapping[str, Mapping[int, int]] = manifest.starts
            self.topic_ids = manifest.topic_ids
            self.marks = manifest.marks
        else:
            log = context.log
            earliest = {name: {end.partition: end.start for end in log.ends(t)} for name, t in self._topics.items()}
            self.starts = bounds.starts if bounds else earliest
            # Before anything is read: what compaction has removed so far, this query does not miss.
            self.marks = {
                name: {horizon.partition: horizon.fresh for horizon in log.tombstone_horizons(topic)}
                for name, topic in self._topics.items()
            }
            self.topic_ids = {name: log.topic_id(topic) for name, topic in self._topics.items()}
        self.built, self.topic = self._build(spark, inputs, version)
        context.start_report.record("analysed", pipeline.name)
        self.table = (
            ViewTable(pipeline.name, version, self.built.schema, pipeline.key, self.built.window)
            if pipeline.kind is PipelineKind.VIEW
            else None
        )
        self.failure: BaseException | None = None
        self.budget = BatchBudget(self.directory.budget_file, context.batch_size)
        self._running: StreamingQuery | None = None
        self._sink: Sink | None = None
        self._newest_retry = 0  # the newest request to retry quarantined events that the inputs know
        self._started = threading.Event()

    def _build(self, spark: SparkSession, inputs: tuple[Input, ...], version: int) -> tuple[BuiltQuery, Topic | None]:
        """Returns the built query and its output topic; a query in a scratch folder publishes nothing."""
        built = build(spark, self.pipeline, inputs, self._input_options())
        return built, output_topic(built, version) if self._context.scratch is None else None

    def _input_options(self) -> InputOptions:
        return InputOptions(
            self._context.log.url,
            str(self.directory.pacing_file),
            str(self.directory.barrier_file),
            {name: str(self.directory.skips_file(name)) for name in self._topics},
            self.starts,
            batch_rows=self._context.rows,
            batch_size=self._context.batch_size,
            budget_file=str(self.directory.budget_file),
            cores=self._context.cores,
            max_wait=self._context.wait,
            end_offsets=self.bounds.ends if self.bounds else {},
            retry_files={name: str(self.directory.retries_file(name)) for name in self._topics},
        )

    def manifest(self) -> QueryManifest:
        """Returns the manifest of this query."""
        return QueryManifest(
            self.pipeline.facts()
            | {f"topic.{name}": topic for name, topic in self._topics.items()}
            | self.built.lateness_facts,
            self.built.state,
            to_ddl(self.built.schema),
            self.built.mode,
            self.built.row_behaviour.value,
            {name: dict(offsets) for name, offsets in self.starts.items()},
            self.topic_ids,
            self.marks,
        )

    def start(self) -> None:
        """Create the query's files, publish the outbox that a crash has left, and start.

        Raises:
            FencedError: A newer driver has taken over the pipelines.
            DataGoneError: The next offsets are no longer in the log.
        """
        store, log, query_id = self._context.store, self._context.log, self.directory.query_id
        self._context.check_owner()
        # From here on, a commit of an older run of this query fails: its epoch is lower.
        epoch = store.open_epoch(query_id)
        self.directory.prepare(self.manifest(), len(self._topics))
        if self.table is not None:
            store.create(self.table)
        if self.topic is not None:
            log.create(self.topic)
        for topic in self._topics.values():
            log.open_topic(topic)  # on Kafka, this starts tracking event time
        self.directory.write_skips(self._topics, store.skip_positions(query_id))
        self.take_retries(store.newest_retries())
        last = store.last_entry(query_id)
        # Before the positions are read: a torn plan has none.
        for name in mend(self.directory.checkpoint, last.batch if last else -1):
            logger.warning("%s: %s of the checkpoint was incomplete and is planned again", query_id, name)
        self._discard_failed_plan(last.batch if last else -1)
        positions = next_offsets(self.directory.checkpoint, list(self.starts), self.starts)
        check_gap(log, self.pipeline, self._topics, positions, self.topic_ids)
        self._check_tombstones(positions)
        # Before the first batch, so that batches reach the topic in order.
        publish(store, log, self.built, self.topic, query_id)
        sink = self._sink = Sink(
            self.built,
            self.directory,
            self._context,
            epoch=epoch,
            table=self.table,
            topic=self.topic,
            starts=self.starts,
            check_inputs=self._check_tombstones,
        )
        writer = self.built.frame.writeStream.outputMode(self.built.mode)
        writer = writer.option("checkpointLocation", self.directory.checkpoint.address)
        with _starting:
            self._running = writer.foreachBatch(lambda frame, batch: self._process_batch(sink, frame, batch)).start()
            self._started.set()
            while self._running.isActive and self._running.status["message"] == "Initializing sources":
                time.sleep(0.05)
        self._context.start_report.record("started", self.pipeline.name)

    def _discard_failed_plan(self, committed: int) -> None:
        """Discard the plan of a batch that needed too much memory; Spark plans a smaller one.

        The new epoch is open: no older run commits the batch after the ledger was read.
        """
        smaller = self.budget.smaller
        if smaller is None or smaller.batch is None:
            return
        failpoint("before-discard")
        if discard_plan(self.directory.checkpoint, smaller.batch, committed):
            text = "%s: batch %d needed too much memory; it is planned again with at most %d bytes"
            logger.warning(text, self.directory.query_id, smaller.batch, smaller.size)
        failpoint("after-discard")
        self.budget.record_discard()

    def take_retries(self, newest: Mapping[str, int]) -> None:
        """Pass requests to retry quarantined events to the inputs; their next batch takes new ones.

        Args:
            newest: The number of the newest request, by query.
        """
        number = newest.get(self.directory.query_id, 0)
        if number > self._newest_retry:
            self.directory.write_retries(self._topics, self._context.store.retries(self.directory.query_id))
            self._newest_retry = number

    def _check_tombstones(self, positions: Mapping[str, PartitionOffsets]) -> None:
        """Check that no tombstone was removed that the query has not read.

        Raises:
            DataGoneError: One was. `data["reload"]` says whether a rebuild gives all rows: the inputs are tables, and
                retention has removed nothing of what the query has read.
        """
        for name, topic in self._topics.items():
            # A partition at its start was not read yet.
            read = {p: at for p, at in positions[name].items() if at > self.starts[name].get(p, 0)}
            try:
                check_tombstones(topic, self._context.log.tombstone_horizons(topic), read, self.marks.get(name, {}))
            except DataGoneError as gone:
                tables = all(input_.topic.is_table for input_ in self.built.inputs)
                data = gone.data | {"reload": tables and self._inputs_are_whole()}
                raise _gap_error(self.pipeline, gone.what, "compaction removed them unread", **data) from None

    def _inputs_are_whole(self) -> bool:
        return all(
            part.start <= self.starts[name].get(part.partition, 0)
            for name, topic in self._topics.items()
            for part in self._context.log.ends(topic)
        )

    def check_rows(self, rows: pa.Table) -> None:
        """Check that store and output topic can take these rows.

        Raises:
            BadRowError: They cannot take one of them.
        """
        rows = rows.select(self.built.schema.names).cast(self.built.schema)
        if self.table is not None:
            check_rows(self.table, rows)
        check_event_sizes(self._context.log, self.topic, self.built, rows)

    def check_values(self, rows: pa.Table, column: str | None) -> None:
        """Check that the store could hold these rows of an input, if they were rows of the view.

        Args:
            rows: The rows.
            column: The column of the view with a value that it cannot hold; None if a key is too large. All columns of
                the rows are checked if none has that name.

        Raises:
            BadRowError: It could not hold one of them.
        """
        if self.table is not None:
            suspects = self.table.key if column is None else (column,)
            names = [name for name in suspects if name in rows.column_names]
            check_rows(self.table, rows if column is not None and not names else rows.select(names))

    def _process_batch(self, sink: Sink, frame: DataFrame, batch: int) -> None:
        """Process a batch, called by Spark; keeps the exception, because Spark passes on only its text."""
        self._started.wait()  # Spark may call before `start` has set `_running`
        try:
            sink.process_batch(frame, batch, ObservedRows(self._running))
        except BaseException as error:  # also a CrashError
            self.failure = error
            message = "the batch was not committed"
            raise RuntimeError(message) from error
        self.budget.record_success()
        self._on_commit()

    def wait(self) -> None:
        """Wait until the query ends; `failure` is then the error that ended it, if any."""
        assert self._running is not None
        try:
            self._running.awaitTermination()
        except StreamingQueryException as error:
            self.failure = self.failure or error

    def catch_up(self) -> None:
        """Return when all events now in the log are committed; raises if the query ends first."""
        assert self._running is not None
        self._running.processAllAvailable()
        if any(input_.is_table for input_ in self.built.inputs):
            # Events wait for the loading of tables: after a restart Spark finds none until it has asked all inputs.
            self._running.processAllAvailable()

    @property
    def active(self) -> bool:
        """Whether the query runs."""
        return self._running is not None and self._running.isActive

    def stop(self) -> None:
        """Stop the query; a batch that has not committed runs again at the next start."""
        if self._running is not None:
            self._running.stop()
        if self._sink is not None:
            self._sink.close()
