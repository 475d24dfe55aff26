"""The books of one batch: what was planned, what became of each event, and that two ways of counting agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec

from headwater.engine.building.build import Built
from headwater.engine.building.inputs import Input
from headwater.engine.building.places import place_in
from headwater.engine.keyed.operator import OFFSET, PARTITION, REFUSED
from headwater.engine.sink.accounting import Account, account, asides_of
from headwater.engine.sink.checkpoint import Planned
from headwater.errors import EngineFailedError
from headwater.log.protocol import TimedLog
from headwater.log.storage.frame import LOWEST_TIME
from headwater.pipelines import Drop
from headwater.store import Aside, Counts, InputRange, StateKept

__all__ = ["Books", "ObservedRows"]

_ALL_CHANGES = ("insert", "update", "delete")


class ObservedRows:
    """How many rows Spark counted behind each input, read from the batch that has just run."""

    def __init__(self, query: Any) -> None:
        self._execution = query._jsq.streamingQuery().lastExecution()

    def __call__(self, name: str) -> int | None:
        """The count; None when Spark found that it need not read the input at all."""
        found = self._execution.observedMetrics().get(name)
        return int(found.get().getLong(0)) if found.isDefined() else None

    def refused(self, names: Sequence[str]) -> tuple[tuple[int, int, str], ...]:
        """The events that operators in Spark gave back: partition, offset and reason."""
        metrics = [self._execution.observedMetrics().get(name) for name in names]
        found = [json.loads(one.get().json())["events"] for one in metrics if one.isDefined()]
        return tuple((one[PARTITION], one[OFFSET], one[REFUSED]) for events in found for one in events)

    def kept(self, names: Sequence[str]) -> tuple[StateKept, ...]:
        """How much operators in Spark keep in the buckets that the batch touched."""
        found = [(name, self._execution.observedMetrics().get(name)) for name in names]
        return tuple(
            replace(one, space=f"{one.space}, in Spark, step {name.rpartition('.')[2]}")
            for name, metric in found
            if metric.isDefined()
            for bucket in metric.get().getList(0)
            for one in msgspec.msgpack.decode(bucket, type=list[StateKept])
        )


@dataclass(frozen=True)
class Books:
    """What became of the events of one batch.

    Args:
        built: The pipeline.
        planned: What Spark planned, by name of the input.
        skipped: Events that are left out because of what they did before.
        log: Where the events are.
        refused: Events that the pipeline gives back: partition (see `place_in`), offset and reason. They may have come
            in an earlier batch, and have counted as used since then.
    """

    built: Built
    planned: Mapping[str, Planned]
    skipped: Sequence[Aside]
    log: TimedLog
    refused: tuple[tuple[int, int, str], ...] = ()

    def require_equal(self, observed: ObservedRows) -> None:
        """Count what the log says Spark was given, and compare it with what Spark says it was given.

        Raises:
            EngineFailedError: They differ, so something was lost or read twice.
        """
        for read in self.built.reads:
            if read.name not in self.planned:
                continue
            seen, range_ = observed(read.observed), self.planned[read.name]
            ticks = int(range_.watermark > LOWEST_TIME and range_.moved)
            expected = self._account(read).ready
            if seen is not None and seen - ticks != expected:
                raise EngineFailedError(
                    f'{self.built.pipeline} counts {seen - ticks} events of "{read.name}", the log {expected}',
                    detail="nothing of this batch was committed; it will be run again",
                    pipeline=self.built.pipeline.name,
                )

    def ranges(self, accounts: Mapping[str, Account]) -> tuple[InputRange, ...]:
        """The inputs as they stand in the ledger."""
        refused = Counter(number for number, _, _, _ in self._given_back)
        return tuple(
            InputRange(input_.topic.name, self.planned[input_.name].start, self.planned[input_.name].end,
                       self._counts(accounts[input_.name], refused[number]))
            for number, input_ in enumerate(self.built.inputs)
            if input_.name in accounts
        )  # fmt: skip

    def accounts(self) -> dict[str, Account]:
        """What became of the events, by name of the input; of a view over views, all changes count."""
        return {
            input_.name: self._account(replace(input_, ops=_ALL_CHANGES) if self._weighs(input_) else input_)
            for input_ in self.built.inputs
            if input_.name in self.planned
        }

    def _weighs(self, input_: Input) -> bool:
        return self.built.weighted and input_.rows is not None and not input_.of_table

    def _account(self, read: Input) -> Account:
        reading = self.built.reading
        judged = reading.late and not read.of_table
        allowed = timedelta(microseconds=reading.lateness(read)) if judged else None
        topic = read.topic.name
        skipped = {(aside.partition, aside.offset) for aside in self.skipped if aside.topic == topic}
        return account(self.log, read, self.planned[read.name], allowed, skipped)

    def _counts(self, counted: Account, refused: int) -> Counts:
        late = len(counted.late)
        dropping = isinstance(self.built.pipeline.late, Drop)
        return Counts(
            in_=counted.in_,
            used=counted.ready - refused,
            late=0 if dropping else late,
            quarantined=counted.left_out + refused,
            dropped=counted.deleted + (late if dropping else 0),
        )

    def quarantined(self, late: Sequence[Aside]) -> tuple[Aside, ...]:
        """Of the events that are left out, those of this batch that would not have been late anyway."""
        too_late = {(aside.topic, aside.partition, aside.offset) for aside in late}
        read = {i.topic.name: self.planned[i.name] for i in self.built.inputs if i.name in self.planned}
        mine = [aside for aside in self.skipped if aside.topic in read and _within(read[aside.topic], aside)]
        kept = tuple(a for a in mine if (a.topic, a.partition, a.offset) not in too_late)
        return (*kept, *self._refused())

    @cached_property
    def _given_back(self) -> list[tuple[int, int, int, str]]:
        """The events that the pipeline refused, each once: number of the input, partition, offset and reason."""
        by_place = {(*place_in(partition), offset): reason for partition, offset, reason in self.refused}
        return [(*place, reason) for place, reason in by_place.items()]

    def _refused(self) -> Iterator[Aside]:
        """The events that the pipeline refused, as they are in the log."""
        for number, partition, offset, reason in self._given_back:
            topic = self.log.opened(self.built.inputs[number].topic.name)
            for batch in topic.batches(partition, offset, offset + 1):
                yield from asides_of(batch.select(batch.offsets == offset), iter([reason]))

    @property
    def watermark(self) -> int | None:
        """Event time up to which the result is complete: no row below it will come or, unless told, change.

        Rows that Spark gives only when they are final come one batch after the watermark has passed them. Rows of a
        join may be as old as its range.
        """
        return self.complete - self.built.delay if self.complete > LOWEST_TIME else None

    @property
    def complete(self) -> int:
        """Event time up to which all rows have left Spark, in microseconds since 1970."""
        trailing = self.built.trailing
        return min(r.watermark_before if trailing else r.watermark for r in self.planned.values())


def _within(planned: Planned, aside: Aside) -> bool:
    partition = aside.partition
    return planned.start.get(partition, 0) <= aside.offset < planned.end.get(partition, 0)
