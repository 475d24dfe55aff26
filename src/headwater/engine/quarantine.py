"""Quarantine search: finds the events on which user code fails, by running halves of the batch separately."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from headwater.engine.build.inputs import Input
from headwater.engine.build.plan_analysis import WATERMARK_DELAY_KEY
from headwater.engine.context import EngineContext
from headwater.engine.query import Query
from headwater.engine.sink.accounting import to_side_outputs
from headwater.engine.sink.checkpoint import pending_batch, read_planned_batch
from headwater.engine.spark.error_translation import first_line
from headwater.errors import BadRowError
from headwater.log import LogBatch
from headwater.store import SideOutput

__all__ = ["Candidates", "bisect", "find_failing_events"]


@dataclass(frozen=True)
class Candidates:
    """Rows of one log batch, as one input sees them."""

    input_: Input
    batch: LogBatch

    def __len__(self) -> int:
        return int(self.batch.values.num_rows)

    def rows(self, start: int, end: int) -> Candidates:
        """Returns the rows from `start` up to, but not including, `end`."""
        indexes = np.arange(len(self))
        return Candidates(self.input_, self.batch.select((indexes >= start) & (indexes < end)))


def find_failing_events(
    spark: SparkSession, query: Query, context: EngineContext, check: Callable[[pa.Table], None] | None = None
) -> list[SideOutput]:
    """Returns the events of the failed batch on which the user's function fails alone, with the reason.

    Empty if the batch now succeeds, because the cause was elsewhere and has passed, or if no single event is the cause.

    Args:
        spark: The session.
        query: The query whose batch has failed.
        context: The engine context.
        check: Raises if the rows that some events give cannot be stored.
    """
    candidates = list(_candidates(query, context))
    session = spark.newSession()
    apply = query.built.before_state
    assert apply is not None

    def probe(some: Sequence[Candidates]) -> str | None:
        frames = {input_.name: _to_frame(session, query, input_, some) for input_ in query.built.inputs}
        try:
            if check is None:
                apply(frames).write.format("noop").mode("overwrite").save()
            else:
                check(apply(frames).toArrow())
        except BadRowError as error:
            return f"{error.code}: {error.what}"
        except (Py4JNetworkError, OSError):
            raise  # Spark itself has ended; no event is the cause
        except Exception as error:
            return first_line(error)
        return None

    return [aside for one, reason in bisect(candidates, probe) for aside in _to_side_outputs(one, reason)]


def _candidates(query: Query, context: EngineContext) -> Iterator[Candidates]:
    """Yields the rows that the function received in the failed batch."""
    batch = pending_batch(query.directory.checkpoint)
    if batch is None:
        return
    planned = read_planned_batch(query.directory.checkpoint, batch, list(query.starts), query.starts)
    skipped = {(aside.topic, aside.partition, aside.offset) for aside in context.store.skips(query.directory.query_id)}
    for input_ in query.built.inputs:
        visible = query.built.input_options.visible_rows(input_)
        for partition, start in planned[input_.name].start.items() if input_.name in planned else ():
            topic, end = context.log.open_topic(input_.topic.name), planned[input_.name].end[partition]
            for found in topic.batches(partition, start, end):
                mask = visible.mask(found)
                mask &= [(input_.topic.name, partition, int(offset)) not in skipped for offset in found.offsets]
                yield Candidates(input_, found.select(mask))


def bisect(
    candidates: Sequence[Candidates], probe: Callable[[Sequence[Candidates]], str | None]
) -> Iterator[tuple[Candidates, str]]:
    """Split failing rows in halves until single rows are left; yields each with the reason.

    Args:
        candidates: The rows.
        probe: Runs the function on some rows; returns why it failed, or None.
    """
    remaining = [some for some in candidates if len(some)]
    reason = probe(remaining) if remaining else None
    if reason is None:
        return
    if sum(map(len, remaining)) == 1:
        if probe(remaining) is not None:  # twice: a worker killed from outside must not quarantine an event
            yield remaining[0], reason
        return
    if len(remaining) == 1:
        middle = len(remaining[0]) // 2
        remaining = [remaining[0].rows(0, middle), remaining[0].rows(middle, len(remaining[0]))]
    yield from bisect(remaining[: len(remaining) // 2], probe)
    yield from bisect(remaining[len(remaining) // 2 :], probe)


def _to_frame(session: SparkSession, query: Query, input_: Input, candidates: Sequence[Candidates]) -> DataFrame:
    visible = query.built.input_options.visible_rows(input_)
    mine = [some.batch for some in candidates if some.input_ is input_]
    rows = [visible.rows(batch, np.ones(batch.values.num_rows, bool)) for batch in mine]
    frame = session.createDataFrame(pa.Table.from_batches(rows, input_.schema))
    # Operators look for the column that is marked as event time.
    return frame.withMetadata(input_.time, {WATERMARK_DELAY_KEY: 0})


def _to_side_outputs(one: Candidates, reason: str) -> Iterator[SideOutput]:
    target = io.BytesIO()
    with pa.ipc.new_stream(target, one.batch.values.schema) as writer:
        writer.write_batch(one.batch.values)
    return to_side_outputs(one.batch, iter([reason]), target.getvalue())
