"""Which events make the user's code fail: found by running halves of the batch by themselves."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from headwater.engine.building.inputs import Input
from headwater.engine.building.plans import MARK
from headwater.engine.query import Query
from headwater.engine.sink.accounting import asides_of
from headwater.engine.sink.checkpoint import newest_batch, planned_batch
from headwater.engine.spark.translation import first_line
from headwater.engine.surroundings import Surroundings
from headwater.log import LogBatch
from headwater.store import Aside

__all__ = ["find_poison"]


@dataclass(frozen=True)
class Suspects:
    """Rows of one batch of the log, seen by one input."""

    input_: Input
    batch: LogBatch

    def __len__(self) -> int:
        return int(self.batch.values.num_rows)

    def rows(self, start: int, end: int) -> Suspects:
        """Some of them."""
        places = np.arange(len(self))
        return Suspects(self.input_, self.batch.select((places >= start) & (places < end)))


def find_poison(spark: SparkSession, query: Query, around: Surroundings) -> list[Aside]:
    """The events of the batch that failed on which the user's function fails by itself, with the reason.

    Empty when the batch as a whole runs well by itself (the cause was elsewhere, and has passed), or when no single
    event is to blame.
    """
    suspects = list(_suspects(query, around))
    session = spark.newSession()

    apply = query.built.before_state
    assert apply is not None

    def probe(some: Sequence[Suspects]) -> str | None:
        frames = {input_.name: _frame(session, input_, some) for input_ in query.built.inputs}
        try:
            apply(frames).write.format("noop").mode("overwrite").save()
        except (Py4JNetworkError, OSError):
            raise  # Spark itself is gone: no event is to blame
        except Exception as error:
            return first_line(error)
        return None

    return [aside for one, reason in _guilty(suspects, probe) for aside in _asides(one, reason)]


def _suspects(query: Query, around: Surroundings) -> Iterator[Suspects]:
    """The rows that the function was given in the batch that failed."""
    batch = newest_batch(query.home.checkpoint)
    if batch is None:
        return
    planned = planned_batch(query.home.checkpoint, batch, list(query.starts), query.starts)
    known = {(aside.topic, aside.partition, aside.offset) for aside in around.store.skipped(query.home.query)}
    for input_ in query.built.inputs:
        visible = query.built.reading.visible(input_)
        for partition, start in planned[input_.name].start.items() if input_.name in planned else ():
            topic, end = around.log.opened(input_.topic.name), planned[input_.name].end[partition]
            for found in topic.batches(partition, start, end):
                mask = visible.mask(found)
                mask &= [(input_.topic.name, partition, int(offset)) not in known for offset in found.offsets]
                yield Suspects(input_, found.select(mask))


def _guilty(
    suspects: Sequence[Suspects], probe: Callable[[Sequence[Suspects]], str | None]
) -> Iterator[tuple[Suspects, str]]:
    """Halve what fails until single rows are left."""
    there = [some for some in suspects if len(some)]
    reason = probe(there) if there else None
    if reason is None:
        return
    if len(there) == 1 and len(there[0]) == 1:
        if probe(there) is not None:  # twice: a worker that somebody killed must not blame an event
            yield there[0], reason
        return
    for half in _halves(there):
        yield from _guilty(half, probe)


def _halves(suspects: Sequence[Suspects]) -> tuple[list[Suspects], list[Suspects]]:
    if len(suspects) > 1:
        middle = len(suspects) // 2
        return list(suspects[:middle]), list(suspects[middle:])
    only = suspects[0]
    return [only.rows(0, len(only) // 2)], [only.rows(len(only) // 2, len(only))]


def _frame(session: SparkSession, input_: Input, suspects: Sequence[Suspects]) -> DataFrame:
    visible = input_.visible()
    mine = [some.batch for some in suspects if some.input_ is input_]
    rows = [visible.rows(batch, np.ones(batch.values.num_rows, bool)) for batch in mine]
    frame = session.createDataFrame(pa.Table.from_batches(rows, input_.schema))
    return frame.withMetadata(input_.time, {MARK: 0})


def _asides(one: Suspects, reason: str) -> Iterator[Aside]:
    target = io.BytesIO()
    with pa.ipc.new_stream(target, one.batch.values.schema) as writer:
        writer.write_batch(one.batch.values)
    return asides_of(one.batch, iter([reason]), target.getvalue())
