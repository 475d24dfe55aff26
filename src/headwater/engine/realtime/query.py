"""A pipeline in real-time mode as a running Spark query: Kafka to Kafka, by Spark's own source and sink."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.config import REALTIME_PARTITIONS
from headwater.engine.building import plans, refusals
from headwater.engine.building.build import Built, called
from headwater.engine.building.inputs import Input
from headwater.engine.query import Query
from headwater.engine.realtime.brokers import java_settings
from headwater.engine.realtime.connector import load_connector
from headwater.engine.realtime.events import RECORD, arriving, leaving
from headwater.engine.realtime.qualifying import require_realtime
from headwater.engine.realtime.slots import Slots
from headwater.engine.spark.translation import first_line
from headwater.engine.surroundings import Surroundings
from headwater.log import Topic
from headwater.log.kafka.brokers import KafkaAddress
from headwater.pipelines import Pipeline
from headwater.pipelines.realtime import not_realtime

__all__ = ["RealtimeQuery"]

_LARGEST: Final = str(8 << 20)
_LOOK: Final = 0.1
_REFUSED: Final = "STREAMING_REAL_TIME_MODE"


class RealtimeQuery(Query):
    """Builds, starts and stops like any other query, without sink, ledger and counts of ours.

    Args:
        slots: Who holds Spark's task slots.
        tell: Told what takes time.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        inputs: tuple[Input, ...],
        version: int,
        around: Surroundings,
        slots: Slots,
        tell: Callable[[str], None],
    ) -> None:
        self._slots = slots
        self._tell = tell
        self._kafka = KafkaAddress.of(around.kafka) if around.kafka else None
        super().__init__(spark, pipeline, inputs, version, around, lambda: None)

    def _build(self, spark: SparkSession, inputs: tuple[Input, ...], version: int) -> tuple[Built, Topic]:
        """Build it over a stand-in, which needs neither Kafka nor the connector.

        Raises:
            NotRealtimeError: Real-time mode cannot run it.
        """
        pipeline, (input_,) = self.pipeline, inputs
        if self._kafka is None:
            detail = "real-time mode reads and writes Kafka, with Spark's own source and sink"
            fix = 'a profile with log = "kafka://…", or leave out latency="realtime"'
            raise not_realtime(pipeline, "its topic is in the embedded log", detail, fix)
        self._session = spark.newSession()
        self._session.conf.set("spark.sql.shuffle.partitions", REALTIME_PARTITIONS.read())
        rows = called(pipeline, {input_.name: arriving(_stand_in(self._session), input_)})
        require_realtime(rows, pipeline)
        plan = plans.plan_of(rows)
        fields = to_arrow_schema(rows.schema, timezone="UTC")
        schema = pa.schema([field.with_nullable(True) for field in fields])
        refusals.check_columns(pipeline, schema)
        stateful = tuple(plans.stateful(plan))
        time_ = input_.time if not stateful and _timed(schema, input_.time) else None
        topic = Topic.declare(
            pipeline.name, schema, place=pipeline.place, key=pipeline.key or None, time=time_,
            lateness=input_.topic.lateness,
        )  # fmt: skip
        frame = leaving(rows, pipeline, topic)
        built = Built(
            pipeline, inputs, self._reading(inputs), frame, "update", stateful, schema, None, time_,
            plans.state_text(plan), weighted=False,
        )  # fmt: skip
        return built, topic

    def start(self) -> None:
        """Create its topic, get what it needs and run; in a rehearsal over nothing, without Kafka.

        Raises:
            FencedError: A newer driver has taken the pipelines.
            BadSettingError: Spark has not enough task slots.
            MissingConnectorError: Spark's Kafka connector is not to be had.
        """
        assert self.topic is not None
        self._around.require_owner()
        self.home.make(self.made(), 1)
        self._around.log.create(self.topic)
        if self._around.rehearsed:
            writer = self.built.frame.writeStream.format("noop")
        else:
            self._hold_slots()
            load_connector(self._session, self._around.jars, self._tell)
            writer = self._frame().writeStream.format("kafka").options(**self._target())
            writer = writer.trigger(  # type: ignore[call-overload]
                realTime=f"{self._around.realtime_batch.total_seconds():g} seconds"
            )
        writer = writer.option("checkpointLocation", self.home.checkpoint.address)
        self._running = writer.outputMode("update").queryName(self.home.query).start()

    def _hold_slots(self) -> None:
        context = self._session.sparkContext
        if str(context.master).startswith("local"):  # on a cluster workers come and go, and Spark counts them
            states = int(REALTIME_PARTITIONS.number()) if self.built.stateful else 0
            needed = self.built.inputs[0].topic.partitions + states
            self._slots.hold(self.pipeline, needed, of=context.defaultParallelism)

    def _frame(self) -> DataFrame:
        (input_,) = self.built.inputs
        records = self._session.readStream.format("kafka").options(**self._source(input_)).load()
        assert self.topic is not None
        topic = self._around.log.topic(self.topic.name)  # with the version that the log gave it
        rows = called(self.pipeline, {input_.name: arriving(records, input_)})
        return leaving(rows, self.pipeline, topic)

    def _source(self, input_: Input) -> dict[str, str]:
        assert self._kafka is not None
        starts = {str(partition): offset for partition, offset in self.starts[input_.name].items()}
        return java_settings(self._kafka) | {
            "subscribe": input_.topic.name,
            "startingOffsets": json.dumps({input_.topic.name: starts}),
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
        }

    def _target(self) -> dict[str, str]:
        assert self._kafka is not None
        assert self.topic is not None
        return java_settings(self._kafka) | {"topic": self.topic.name, "kafka.max.request.size": _LARGEST}

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it ends; what Spark's own check refuses is told like what ours refuses."""
        ended = super().wait(timeout)
        if self.failure is not None and _REFUSED in str(self.failure):
            self.failure = not_realtime(self.pipeline, "Spark refuses it", first_line(self.failure))
        return ended

    def catch_up(self) -> None:
        """Return when Spark has committed everything that is in its topic now, or the query has ended.

        Where a transaction ends, Spark's offset stays before Kafka's mark of it. So a whole batch that began after this
        call and found nothing will do as well.
        """
        if self._around.rehearsed:
            return
        (input_,) = self.built.inputs
        asked = datetime.now(UTC).isoformat()
        ends = {end.partition: end.end for end in self._around.log.ends(input_.topic.name)}
        while self.active and not self._reached(input_.topic.name, ends, asked):
            time.sleep(_LOOK)

    def _reached(self, topic: str, ends: dict[int, int], asked: str) -> bool:
        assert self._running is not None
        progress = self._running.lastProgress
        if progress is None or not progress["sources"]:
            return False
        told = progress["sources"][0]["endOffset"]
        offsets = (json.loads(told) if isinstance(told, str) else told).get(topic, {})
        nothing = progress["timestamp"] > asked and progress["numInputRows"] == 0
        return nothing or all(offsets.get(str(partition), 0) >= end for partition, end in ends.items())


def _timed(schema: pa.Schema, name: str) -> bool:
    return name in schema.names and pa.types.is_timestamp(schema.field(name).type)


def _stand_in(session: SparkSession) -> DataFrame:
    """A stream without records, of the type that Kafka's have."""
    columns = [part.strip().split(" ", 1) for part in RECORD.split(", ", 3)]
    empty = session.readStream.format("rate").load()
    return empty.select(*(F.lit(None).cast(kind).alias(name) for name, kind in columns))
