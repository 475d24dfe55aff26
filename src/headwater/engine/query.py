"""One version of one pipeline as a running Spark query.

Before a query starts, `check_gap` checks that the next offsets it reads are still in the log. A query never continues
over a gap.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.engine.build.build import BuiltQuery, build
from headwater.engine.build.inputs import Input, InputOptions
from headwater.engine.context import EngineContext, QueryManifest
from headwater.engine.sink.accounting import ObservedRows
from headwater.engine.sink.checkpoint import PartitionOffsets, mend, next_offsets
from headwater.engine.sink.publisher import output_topic, publish
from headwater.engine.sink.sink import Sink
from headwater.errors import DataGoneError
from headwater.events import to_ddl
from headwater.log import Topic
from headwater.log.event_log import PartitionRange
from headwater.log.protocol import Log, TimedLog
from headwater.pipelines import Pipeline, PipelineKind
from headwater.store import ViewTable

__all__ = ["OffsetBounds", "Query", "check_gap"]


def check_gap(
    log: TimedLog,
    pipeline: Pipeline,
    inputs: Sequence[Input],
    positions: Mapping[str, PartitionOffsets],
    topic_ids: Mapping[str, str],
) -> None:
    """Refuse to start a query that would skip events silently.

    Args:
        log: Where the events are.
        pipeline: Whose query it is.
        inputs: What it reads.
        positions: The next offset of each partition, by name of the input.
        topic_ids: Which topic it has read under the name of each input; see `TimedLog.topic_id`.

    Raises:
        DataGoneError: Retention has removed events that it has not read; or the topic is another one by now.
    """
    for input_ in inputs:
        topic = input_.topic.name
        if topic_ids.get(input_.name) not in (None, log.topic_id(topic)):
            what = f'topic "{topic}" was deleted and made again since {pipeline} read it'
            raise _gap_error(pipeline, what, "what the old one had and was not read is gone", topic=topic)
        ranges = {part.partition: part for part in log.ends(topic)}
        for number, at in sorted(positions[input_.name].items()):
            if number not in ranges or at > ranges[number].end:
                end = ranges[number].end if number in ranges else 0
                what = f'partition {number} of topic "{topic}" ends at {end}, and {pipeline} has read it up to {at}'
                raise _gap_error(pipeline, what, "the log has lost events", topic=topic, partition=number)
        missed = [(part, at) for part, at in _pair_positions(ranges, positions[input_.name]) if at < part.start]
        if missed:
            raise _retention_error(pipeline, topic, missed)


def _pair_positions(
    ranges: Mapping[int, PartitionRange], positions: PartitionOffsets
) -> list[tuple[PartitionRange, int]]:
    return [(ranges[number], positions.get(number, 0)) for number in sorted(ranges)]


def _retention_error(pipeline: Pipeline, topic: str, missed: Sequence[tuple[PartitionRange, int]]) -> DataGoneError:
    part, at = missed[0]
    ranges = [f"{at} to {part.start - 1} of partition {part.partition}" for part, at in missed]
    return _gap_error(
        pipeline,
        f'offsets {", ".join(ranges)} of topic "{topic}" are gone, and {pipeline} has not read them',
        "retention removed them before the pipeline came to them",
        topic=topic,
        partition=part.partition,
        first=at,
        last=part.start - 1,
        start=part.start,
        events=sum(part.start - at for part, at in missed),
    )


def _gap_error(pipeline: Pipeline, what: str, why: str, **data: object) -> DataGoneError:
    view = pipeline.kind is PipelineKind.VIEW
    remedy = (
        "a rebuild makes the view from what is left"
        if view
        else "what it has written stays; under another name it reads what is left"
    )
    return DataGoneError(
        what,
        detail=f"{why}; {remedy}",
        fix=f"headwater run --rebuild {pipeline.name}" if view else "give it another name",
        location=pipeline.location,
        pipeline=pipeline.name,
        **data,
    )


logger = logging.getLogger("headwater.engine")
_start_lock = threading.Lock()
"""Starts one query at a time: Spark gives the Python process of an input only ten seconds to start."""


@dataclass(frozen=True)
class OffsetBounds:
    """Where a query begins and optionally ends: offsets by partition, by name of the input."""

    starts: Mapping[str, Mapping[int, int]]
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


class Query:
    """One running version of a pipeline; after a failure a new object is created.

    Args:
        spark: The session.
        pipeline: What to run.
        inputs: What it reads.
        version: Which version of it.
        context: The engine context.
        on_commit: Called after each batch.
        bounds: Where it begins and ends; from the start of its inputs and for ever, if omitted.
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
        manifest = self.directory.load_manifest()
        fresh = bounds.starts if bounds else _earliest_offsets(context.log, inputs)
        self.starts = manifest.starts if manifest else fresh
        self.topic_ids = manifest.topic_ids if manifest else _topic_ids(context.log, inputs)
        self.built, self.topic = self._build(spark, inputs, version)
        self.table = (
            ViewTable(pipeline.name, version, self.built.schema, pipeline.key, self.built.window)
            if pipeline.kind is PipelineKind.VIEW
            else None
        )
        self.failure: BaseException | None = None
        self._running: StreamingQuery | None = None
        self._sink: Sink | None = None
        self._started = threading.Event()

    def _build(self, spark: SparkSession, inputs: tuple[Input, ...], version: int) -> tuple[BuiltQuery, Topic | None]:
        """Returns the built query and its output topic."""
        built = build(spark, self.pipeline, inputs, self._input_options(inputs))
        return built, output_topic(built, version) if self._context.scratch is None else None

    def _input_options(self, inputs: tuple[Input, ...]) -> InputOptions:
        return InputOptions(
            self._context.log.url,
            str(self.directory.pacing_file),
            str(self.directory.barrier_file),
            {input_.name: str(self.directory.skips_file(input_.name)) for input_ in inputs},
            self.starts,
            batch_rows=self._context.rows,
            cores=self._context.cores,
            max_wait=self._context.wait,
            end_offsets=self.bounds.ends if self.bounds else {},
        )

    def manifest(self) -> QueryManifest:
        """Returns the manifest of this query."""
        topics = {f"topic.{input_.name}": input_.topic.name for input_ in self.built.inputs}
        starts = {name: dict(offsets) for name, offsets in self.starts.items()}
        return QueryManifest(
            self.pipeline.facts() | topics,
            self.built.state,
            to_ddl(self.built.schema),
            self.built.mode,
            self.built.row_behaviour.value,
            starts,
            dict(self.topic_ids),
        )

    def start(self) -> None:
        """Create the files it needs, publish what a crash left in the outbox, and start.

        Raises:
            FencedError: A newer driver has taken over the pipelines.
        """
        store, log = self._context.store, self._context.log
        self._context.check_owner()
        epoch = store.open_epoch(self.directory.query_id)
        self.directory.prepare(self.manifest(), len(self.built.inputs))
        if self.table is not None:
            store.create(self.table)
        if self.topic is not None:
            log.create(self.topic)
        topics = {input_.name: input_.topic.name for input_ in self.built.inputs}
        for topic in topics.values():
            log.open_topic(topic)  # on Kafka, event time is tracked from now on
        self.directory.write_skips(topics, store.skips(self.directory.query_id))
        last = store.last_entry(self.directory.query_id)
        for name in mend(self.directory.checkpoint, last.batch if last else -1):
            logger.warning("%s: %s of the checkpoint was cut short and is planned anew", self.directory.query_id, name)
        positions = next_offsets(self.directory.checkpoint, list(self.starts), self.starts)
        check_gap(log, self.pipeline, self.built.inputs, positions, self.topic_ids)
        publish(store, log, self.built, self.topic, self.directory.query_id)
        sink = self._sink = Sink(
            self.built,
            self.directory,
            self._context,
            epoch=epoch,
            table=self.table,
            topic=self.topic,
            starts=self.starts,
        )
        writer = self.built.frame.writeStream.outputMode(self.built.mode)
        writer = writer.option("checkpointLocation", self.directory.checkpoint.address)
        with _start_lock:
            self._running = writer.foreachBatch(lambda frame, batch: self._process_batch(sink, frame, batch)).start()
            self._started.set()
            self._wait_for_sources(self._running)

    def _wait_for_sources(self, running: StreamingQuery) -> None:
        while running.isActive and running.status["message"] == "Initializing sources":
            time.sleep(0.05)

    def _process_batch(self, sink: Sink, frame: DataFrame, batch: int) -> None:
        """Process a batch, called by Spark; keeps the exception, because Spark passes on only its text."""
        self._started.wait()
        try:
            sink.process_batch(frame, batch, ObservedRows(self._running))
        except BaseException as error:
            self.failure = error
            message = "the batch was not committed"
            raise RuntimeError(message) from error
        self._on_commit()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the query ends; returns True if it did, for whatever reason."""
        assert self._running is not None
        try:
            if timeout is None:
                self._running.awaitTermination()
                return True
            return bool(self._running.awaitTermination(timeout.total_seconds()))  # type: ignore[arg-type]
        except StreamingQueryException as error:
            self.failure = self.failure or error
            return True

    def catch_up(self) -> None:
        """Return when all events now in the log are committed; raises if the query ends before."""
        assert self._running is not None
        self._running.processAllAvailable()

    @property
    def active(self) -> bool:
        """Whether it runs."""
        return self._running is not None and self._running.isActive

    def stop(self) -> None:
        """Stop the query, with or without the current batch; nothing is lost either way."""
        if self._running is not None:
            self._running.stop()
        if self._sink is not None:
            self._sink.close()


def _topic_ids(log: TimedLog, inputs: tuple[Input, ...]) -> Mapping[str, str]:
    return {input_.name: log.topic_id(input_.topic.name) for input_ in inputs}


def _earliest_offsets(log: Log, inputs: tuple[Input, ...]) -> Mapping[str, Mapping[int, int]]:
    """Returns the start offsets of every topic."""
    return {input_.name: {end.partition: end.start for end in log.ends(input_.topic.name)} for input_ in inputs}
