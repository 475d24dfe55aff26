"""One version of one pipeline as a running Spark query."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.engine.building.build import Built, build
from headwater.engine.building.inputs import Input, Reading
from headwater.engine.continuing import require_events
from headwater.engine.home import Made
from headwater.engine.sink.bookkeeping import ObservedRows
from headwater.engine.sink.checkpoint import mend, next_offsets
from headwater.engine.sink.outputs import output_topic, publish
from headwater.engine.sink.sink import Sink
from headwater.engine.surroundings import Surroundings
from headwater.events import to_ddl
from headwater.log import Topic
from headwater.log.protocol import Log, TimedLog
from headwater.pipelines import Kind, Pipeline
from headwater.store import ViewTable

__all__ = ["Bounds", "Query"]

logger = logging.getLogger("headwater.engine")
_starting = threading.Lock()
"""One query starts at a time: Spark gives the Python process of an input ten seconds to come up, and no more."""


@dataclass(frozen=True)
class Bounds:
    """Where a query begins and, unless it goes on for ever, ends: offsets by partition, by name of the input."""

    starts: Mapping[str, Mapping[int, int]]
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


class Query:
    """Builds, starts and stops; a query that failed is started again by making a new one.

    Args:
        spark: The session.
        pipeline: What to run.
        inputs: What it reads.
        version: Which version of it.
        around: What it shares with others.
        committed: Called after each batch.
        bounds: Where it begins and ends; from the start of its inputs and for ever, if left out.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        inputs: tuple[Input, ...],
        version: int,
        around: Surroundings,
        committed: Callable[[], None],
        bounds: Bounds | None = None,
    ) -> None:
        self._around = around
        self._committed = committed
        self.pipeline = pipeline
        self.bounds = bounds
        self.home = around.home(pipeline.name, version)
        made = self.home.made()
        fresh = bounds.starts if bounds else _beginnings(around.log, inputs)
        self.starts = made.starts if made else fresh
        self.incarnations = made.incarnations if made else _incarnations(around.log, inputs)
        self.built, self.topic = self._build(spark, inputs, version)
        self.table = (
            ViewTable(pipeline.name, version, self.built.schema, pipeline.key, self.built.window)
            if pipeline.kind is Kind.VIEW
            else None
        )
        self.failure: BaseException | None = None
        self._running: StreamingQuery | None = None
        self._sink: Sink | None = None
        self._started = threading.Event()

    def _build(
        self, spark: SparkSession, inputs: tuple[Input, ...], version: int
    ) -> tuple[Built, Topic | None]:
        """The query and the topic it feeds."""
        built = build(spark, self.pipeline, inputs, self._reading(inputs))
        return built, output_topic(built, version) if self._around.scratch is None else None

    def _reading(self, inputs: tuple[Input, ...]) -> Reading:
        return Reading(
            self._around.log.where,
            str(self.home.notes),
            str(self.home.loaded),
            {input_.name: str(self.home.skips(input_.name)) for input_ in inputs},
            self.starts,
            rows=self._around.rows,
            cores=self._around.cores,
            wait=self._around.wait,
            ends=self.bounds.ends if self.bounds else {},
        )

    def made(self) -> Made:
        """What this query is made from."""
        topics = {f"topic.{input_.name}": input_.topic.name for input_ in self.built.inputs}
        starts = {name: dict(offsets) for name, offsets in self.starts.items()}
        return Made(
            self.pipeline.facts() | topics,
            self.built.state,
            to_ddl(self.built.schema),
            self.built.mode,
            self.built.rows.value,
            starts,
            dict(self.incarnations),
        )

    def start(self) -> None:
        """Make what it needs on disk, publish what a crash left unpublished, and run.

        Raises:
            FencedError: A newer driver has taken the pipelines.
        """
        store, log = self._around.store, self._around.log
        self._around.require_owner()
        epoch = store.take(self.home.query)
        self.home.make(self.made(), len(self.built.inputs))
        if self.table is not None:
            store.create(self.table)
        if self.topic is not None:
            log.create(self.topic)
        topics = {input_.name: input_.topic.name for input_ in self.built.inputs}
        for topic in topics.values():
            log.opened(topic)  # on Kafka its event time is kept from now on
        self.home.write_skips(topics, store.skipped(self.home.query))
        last = store.last(self.home.query)
        for name in mend(self.home.checkpoint, last.batch if last else -1):
            logger.warning(
                "%s: %s of the checkpoint was cut short and is planned anew", self.home.query, name
            )
        positions = next_offsets(self.home.checkpoint, list(self.starts), self.starts)
        require_events(log, self.pipeline, self.built.inputs, positions, self.incarnations)
        publish(store, log, self.built, self.topic, self.home.query)
        sink = self._sink = Sink(
            self.built,
            self.home,
            self._around,
            epoch=epoch,
            table=self.table,
            topic=self.topic,
            starts=self.starts,
        )
        writer = self.built.frame.writeStream.outputMode(self.built.mode)
        writer = writer.option("checkpointLocation", self.home.checkpoint.address)
        with _starting:
            self._running = writer.foreachBatch(lambda frame, batch: self._take(sink, frame, batch)).start()
            self._started.set()
            self._wait_for_sources(self._running)

    def _wait_for_sources(self, running: StreamingQuery) -> None:
        while running.isActive and running.status["message"] == "Initializing sources":
            time.sleep(0.05)

    def _take(self, sink: Sink, frame: DataFrame, batch: int) -> None:
        """Called by Spark for each batch; what goes wrong is kept, since Spark passes on only its text."""
        self._started.wait()
        try:
            sink.take(frame, batch, ObservedRows(self._running))
        except BaseException as error:
            self.failure = error
            message = "the batch was not committed"
            raise RuntimeError(message) from error
        self._committed()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it ends; True when it did, whatever the reason."""
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
        """Return when all events that are in the log now are committed; raises when the query ends before."""
        assert self._running is not None
        self._running.processAllAvailable()

    @property
    def active(self) -> bool:
        """Whether it runs."""
        return self._running is not None and self._running.isActive

    def stop(self) -> None:
        """Let the present batch end, or not; either way nothing is lost."""
        if self._running is not None:
            self._running.stop()
        if self._sink is not None:
            self._sink.close()


def _incarnations(log: TimedLog, inputs: tuple[Input, ...]) -> Mapping[str, str]:
    return {input_.name: log.incarnation(input_.topic.name) for input_ in inputs}


def _beginnings(log: Log, inputs: tuple[Input, ...]) -> Mapping[str, Mapping[int, int]]:
    """The start of every topic."""
    return {
        input_.name: {end.partition: end.start for end in log.ends(input_.topic.name)} for input_ in inputs
    }
