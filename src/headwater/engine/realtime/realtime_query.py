"""A pipeline in real-time mode as a running Spark query.

`find_obstacle` names the part of a plan that real-time mode cannot run. `TaskSlots` counts task slots: as long as a
real-time query runs, it occupies one slot for each partition of its topic and of its state.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headwater.config import REALTIME_PARTITIONS, SPARK_CORES
from headwater.engine.build import checks, plan_analysis
from headwater.engine.build.build import BuiltQuery, call_function
from headwater.engine.build.inputs import Input
from headwater.engine.build.plan_analysis import scala_items
from headwater.engine.context import EngineContext
from headwater.engine.query import Query
from headwater.engine.realtime.kafka import RECORD, decode_records, encode_records, java_settings, load_connector
from headwater.engine.spark.error_translation import first_line
from headwater.errors import BadSettingError
from headwater.events import storage_schema
from headwater.log import Topic
from headwater.log.kafka.brokers import KafkaAddress
from headwater.pipelines import Pipeline
from headwater.pipelines.graph import not_realtime_error

__all__ = ["PlanStep", "RealtimeQuery", "TaskSlots", "find_obstacle", "require_realtime"]

_SUPPORTED_NODES: Final = (
    *("Project", "Filter", "Aggregate", "Generate", "SubqueryAlias", "Subquery", "EventTimeWatermark"),
    *("View", "WithCTE", "CTERelationDef", "CTERelationRef", "StreamingRelation", "StreamingRelationV2"),
)
"""Steps that real-time mode can run, and nodes that do nothing at run time."""
_NODE_NAMES: Final = {
    "Deduplicate": "distinct or dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "GlobalLimit": "limit",
    "Join": "a join",
    "LocalLimit": "limit",
    "Sort": "a sort order",
    "Union": "a union",
    "Window": "a window function",
}
_PYTHON_NODES: Final = ("Pandas", "Arrow", "PySpark", "Python")
_SQL_FIX: Final = 'write it with functions of Spark SQL, or leave out latency="realtime"'


@dataclass(frozen=True)
class PlanStep:
    """One step of Spark's plan.

    Attributes:
        name: The name of its class.
        python_functions: The names of the Python functions in its expressions.
        has_subquery: Whether an expression contains a query.
    """

    name: str
    python_functions: tuple[str, ...] = ()
    has_subquery: bool = False


def find_obstacle(steps: Iterable[PlanStep]) -> dict[str, str] | None:
    """Returns what real-time mode cannot run, as arguments of the error; None if it can run all steps.

    Example:
        >>> find_obstacle([PlanStep("Project"), PlanStep("Sort")])
        {'part': 'it contains a sort order', 'detail': 'real-time mode has no such step'}
    """
    for step in steps:
        if any(word in step.name for word in _PYTHON_NODES):
            return {"part": f"it contains a Python function ({step.name})", "fix": _SQL_FIX}
        if step.python_functions:
            return {"part": f"it contains the Python function {step.python_functions[0]}", "fix": _SQL_FIX}
        if step.name not in _SUPPORTED_NODES:
            part = _NODE_NAMES.get(step.name, f"the step {step.name}")
            return {"part": f"it contains {part}", "detail": "real-time mode has no such step"}
        if step.has_subquery:
            return {"part": "it contains a query inside an expression"}
    return None


def require_realtime(frame: DataFrame, pipeline: Pipeline) -> None:
    """Refuse a pipeline that real-time mode cannot run.

    Args:
        frame: The result of the pipeline's function over a placeholder for its topic.
        pipeline: The pipeline.

    Raises:
        NotRealtimeError: Real-time mode cannot run it; the message names the reason.
    """
    plan = plan_analysis.plan_of(frame)
    checks.refuse_nondeterminism(pipeline, plan.toString())
    if (obstacle := find_obstacle(_steps(plan))) is not None:
        raise not_realtime_error(pipeline, **obstacle)
    reason = plan_analysis.output_mode_error(frame, "update")
    if reason is not None:
        detail = f"rows are emitted whenever they change, and cannot wait until they are final\nSpark: {reason}"
        raise not_realtime_error(pipeline, "it cannot run in update mode", detail)


def _steps(plan: Any) -> Iterator[PlanStep]:
    functions = tuple(name for expression in scala_items(plan.expressions()) for name in _python_functions(expression))
    yield PlanStep(plan.nodeName(), functions, plan.subqueries().nonEmpty())
    for child in scala_items(plan.children()):
        yield from _steps(child)


def _python_functions(expression: Any) -> Iterator[str]:
    if expression.getClass().getSimpleName().startswith("PythonUD"):
        yield expression.name()
    for child in scala_items(expression.children()):
        yield from _python_functions(child)


class TaskSlots:
    """The number of task slots that each pipeline occupies.

    Args:
        spare: The number of slots to leave free for pipelines that run in batches.

    Example:
        >>> from headwater.pipelines import PipelineKind
        >>> fast = Pipeline(name="fast", kind=PipelineKind.STREAM, inputs=("orders",), sql="…", latency="realtime")
        >>> TaskSlots(spare=1).reserve(fast, 3, total=2)
        Traceback (most recent call last):
        headwater.errors.BadSettingError: BAD_SETTING: stream "fast" needs 3 task slots at once, and Spark has 2
          a real-time query holds a slot for each partition of its topic and of its state; 1 is left for batches
          fix: HEADWATER_SPARK_CORES=4, and as many more as other real-time pipelines need
    """

    def __init__(self, spare: int = 0) -> None:
        self._spare = spare
        self._reserved: dict[str, int] = {}
        self._lock = threading.Lock()  # makes the check and the reservation one step

    def reserve(self, pipeline: Pipeline, needed: int, *, total: int) -> None:
        """Reserve slots for a pipeline, replacing its earlier reservation.

        Raises:
            BadSettingError: Spark has not enough slots.
        """
        with self._lock:
            others = {name: held for name, held in self._reserved.items() if name != pipeline.name}
            wanted = needed + sum(others.values()) + self._spare
            if wanted > total:
                detail = "a real-time query holds a slot for each partition of its topic and of its state"
                detail += "".join(f"; {held} are held by {name}" for name, held in others.items())
                detail += f"; {self._spare} is left for batches" if self._spare else ""
                raise BadSettingError(
                    f"{pipeline} needs {needed} task slots at once, and Spark has {total}",
                    detail=detail,
                    fix=f"{SPARK_CORES.variable}={wanted}, and as many more as other real-time pipelines need",
                    location=pipeline.location,
                    setting=SPARK_CORES.name,
                    partitions=REALTIME_PARTITIONS.variable,
                    needed=wanted,
                )
            self._reserved[pipeline.name] = needed


_MAX_REQUEST_BYTES: Final = str(8 << 20)
_POLL_INTERVAL: Final = 0.1  # seconds
_UNSUPPORTED: Final = "STREAMING_REAL_TIME_MODE"


class RealtimeQuery(Query):
    """A query in real-time mode, without Headwater's sink, ledger and counts.

    Args:
        slots: The reservations of Spark's task slots.
        report: Called with a description of slow steps.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        inputs: tuple[Input, ...],
        version: int,
        context: EngineContext,
        slots: TaskSlots,
        report: Callable[[str], None],
    ) -> None:
        self._slots = slots
        self._report = report
        self._kafka = KafkaAddress.parse(context.kafka) if context.kafka else None
        super().__init__(spark, pipeline, inputs, version, context, lambda: None)

    def _build(self, spark: SparkSession, inputs: tuple[Input, ...], version: int) -> tuple[BuiltQuery, Topic]:
        """Build the query over an empty stream, so that the check needs neither Kafka nor the connector.

        Raises:
            NotRealtimeError: Real-time mode cannot run it.
        """
        pipeline, (input_,) = self.pipeline, inputs
        if self._kafka is None:
            detail = "real-time mode reads and writes Kafka, with Spark's own source and sink"
            fix = 'a profile with log = "kafka://…", or remove latency="realtime"'
            raise not_realtime_error(pipeline, "its topic is in the embedded log", detail, fix)
        self._session = spark.newSession()
        self._session.conf.set("spark.sql.shuffle.partitions", REALTIME_PARTITIONS.read())
        empty = self._session.readStream.format("rate").load()
        records = empty.select(*(F.lit(None).cast(kind).alias(name) for name, kind in RECORD.items()))
        rows = call_function(pipeline, {input_.name: decode_records(records, input_)})
        require_realtime(rows, pipeline)
        plan = plan_analysis.plan_of(rows)
        schema = storage_schema(to_arrow_schema(rows.schema, timezone="UTC"))
        checks.check_columns(pipeline, schema)
        stateful = tuple(plan_analysis.stateful_steps(plan))
        has_time = input_.time in schema.names and pa.types.is_timestamp(schema.field(input_.time).type)
        time_ = input_.time if has_time and not stateful else None
        topic = Topic.declare(
            pipeline.name, schema, location=pipeline.location, key=pipeline.key or None, time=time_,
            lateness=input_.topic.lateness,
        )  # fmt: skip
        frame = encode_records(rows, pipeline, topic)
        built = BuiltQuery(
            pipeline, inputs, self._input_options(), frame, "update", stateful, schema, None, time_,
            plan_analysis.state_text(plan), has_weights=False,
        )  # fmt: skip
        return built, topic

    def start(self) -> None:
        """Create the topic, load the connector and start; a dry run needs no Kafka.

        Raises:
            FencedError: A newer driver has taken over the pipelines.
            BadSettingError: Spark has not enough task slots.
            MissingConnectorError: Spark's Kafka connector is not available.
        """
        assert self.topic is not None
        self._context.check_owner()
        self.directory.prepare(self.manifest(), 1)
        self._context.log.create(self.topic)
        if self._context.dry_run_log:
            writer = self.built.frame.writeStream.format("noop")
        else:
            context = self._session.sparkContext
            if str(context.master).startswith("local"):  # on a cluster workers come and go, and Spark counts them
                states = int(REALTIME_PARTITIONS.number()) if self.built.stateful else 0
                needed = self.built.inputs[0].topic.partitions + states
                self._slots.reserve(self.pipeline, needed, total=context.defaultParallelism)
            load_connector(self._session, self._context.jars, self._report)
            writer = self._output_stream(self.topic).trigger(  # type: ignore[call-overload]
                realTime=f"{self._context.realtime_batch.total_seconds():g} seconds"
            )
        writer = writer.option("checkpointLocation", self.directory.checkpoint.address)
        self._running = writer.outputMode("update").queryName(self.directory.query_id).start()

    def _output_stream(self, topic: Topic) -> DataStreamWriter:
        """Returns the query from Kafka to Kafka."""
        (input_,) = self.built.inputs
        assert self._kafka is not None
        starts = {str(partition): offset for partition, offset in self.starts[input_.name].items()}
        settings = java_settings(self._kafka)
        source = settings | {
            "subscribe": input_.topic.name,
            "startingOffsets": json.dumps({input_.topic.name: starts}),
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
        }
        records = self._session.readStream.format("kafka").options(**source).load()
        rows = call_function(self.pipeline, {input_.name: decode_records(records, input_)})
        created = self._context.log.topic(topic.name)  # with the version that the log assigned
        sink = settings | {"topic": topic.name, "kafka.max.request.size": _MAX_REQUEST_BYTES}
        return encode_records(rows, self.pipeline, created).writeStream.format("kafka").options(**sink)

    def wait(self) -> None:
        """Wait until the query ends; translates refusals by Spark's own check."""
        super().wait()
        if self.failure is not None and _UNSUPPORTED in str(self.failure):
            self.failure = not_realtime_error(self.pipeline, "Spark refuses it", first_line(self.failure))

    def catch_up(self) -> None:
        """Return when Spark has committed everything now in its topic, or the query has ended.

        After a transaction, Spark's offset stays before Kafka's transaction marker, and never reaches the end. So an
        empty batch that began after this call is sufficient, too.
        """
        if self._context.dry_run_log:
            return
        (input_,) = self.built.inputs
        began = datetime.now(UTC).isoformat()
        ends = {end.partition: end.end for end in self._context.log.ends(input_.topic.name)}
        while self.active and not self._has_reached(input_.topic.name, ends, began):
            time.sleep(_POLL_INTERVAL)

    def _has_reached(self, topic: str, ends: dict[int, int], asked: str) -> bool:
        assert self._running is not None
        progress = self._running.lastProgress
        if progress is None or not progress["sources"]:
            return False
        end_offset = progress["sources"][0]["endOffset"]
        offsets = (json.loads(end_offset) if isinstance(end_offset, str) else end_offset).get(topic, {})
        nothing = progress["timestamp"] > asked and progress["numInputRows"] == 0
        return nothing or all(offsets.get(str(partition), 0) >= end for partition, end in ends.items())
