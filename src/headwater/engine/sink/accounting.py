"""Accounting of a batch: the outcome of every event, computed from the log and compared with Spark's counts.

`account_input` finds late and unreadable events of an offset range from the log alone. `BatchAccounting` compares the
result with the number of rows that Spark observed. If the two counts differ, the batch is not committed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property, partial
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import numpy as np

from headwater.engine.build.build import BuiltQuery
from headwater.engine.build.inputs import Input
from headwater.engine.build.plan_analysis import scala_items, split_partition
from headwater.engine.sink.checkpoint import PlannedInput
from headwater.engine.source.retries import read_retried
from headwater.engine.source.visible_rows import precedes_spark
from headwater.engine.state.state import OFFSET, PARTITION, QUARANTINE_REASON
from headwater.errors import EngineFailedError, RowsDroppedError
from headwater.events.values import format_moment, moments_of
from headwater.log import LogBatch
from headwater.log.protocol import TimedLog
from headwater.log.storage.frame import LOWEST_TIME, Frame, envelope_bits
from headwater.pipelines import DropLate, PipelineKind
from headwater.store import EventCounts, InputRange, RetriedEvent, SideOutput, StateSize
from headwater.store.commit.retries import EventPosition

__all__ = [
    "BatchAccounting",
    "InputAccounting",
    "ObservedRows",
    "Rejection",
    "account_input",
    "read_planned_retries",
    "to_side_outputs",
]

_DELETED = envelope_bits({"_hw.deleted": None})
_UNREADABLE = envelope_bits({"_hw.error": None})
_MICROSECOND = timedelta(microseconds=1)
_BEFORE_1970 = "event time at or before 1970-01-01, where steps of Spark that wait for event time begin"
_DROPPED_ROWS = "numRowsDroppedByWatermark"

Rejection: TypeAlias = tuple[int, int, str]
"""An event that an operator rejects: partition (see `split_partition`), offset and reason."""


@dataclass(frozen=True)
class InputAccounting:
    """The outcome of the events of one input of one batch.

    Attributes:
        in_: The number of events in the offset range.
        late: Late events.
        unreadable: Messages of other producers that do not match the topic's type.
        before_1970: Events up to 1970, if the steps of Spark cannot use them.
        left_out: The number of skipped events, which earlier batches quarantined, and of `unreadable`, `before_1970`.
        deleted: The number of tombstones, unless the input is a table.
        retried: Partition and offset of events that an earlier batch quarantined and this one uses.
    """

    in_: int = 0
    late: tuple[SideOutput, ...] = ()
    unreadable: tuple[SideOutput, ...] = ()
    before_1970: tuple[SideOutput, ...] = ()
    left_out: int = 0
    deleted: int = 0
    retried: tuple[tuple[int, int], ...] = ()

    @property
    def ready(self) -> int:
        """The number of events that Spark must have received."""
        return self.in_ - len(self.late) - self.left_out - self.deleted + len(self.retried)


def account_input(
    log: TimedLog,
    input_: Input,
    planned: PlannedInput,
    allowed: timedelta | None,
    skipped: Collection[tuple[int, int]],
    *,
    after_1970: bool = False,
) -> InputAccounting:
    """Count the events of a range; frame headers suffice for most, and only frames with late rows are read.

    Args:
        log: The log.
        input_: The input.
        planned: Its offset range.
        allowed: How late an event may be; None if no event is ever late.
        skipped: Partition and offset of events that are skipped.
        after_1970: Whether events up to 1970 are left out.
    """
    topic = log.open_topic(input_.topic.name)
    late: list[SideOutput] = []
    unreadable: list[SideOutput] = []
    before_1970: list[SideOutput] = []
    counted = left_out = deleted = 0
    for partition, start in planned.start.items():
        skipped_offsets = [offset for number, offset in skipped if number == partition]
        end = planned.end[partition]
        frames = topic.partitions[partition].frame_headers(start, end)
        must_read = partial(_must_read, input_=input_, allowed=allowed, skipped=skipped_offsets, after_1970=after_1970)
        known, unread = _scan_headers(frames, (start, end), must_read)
        counted += known
        for first, last in unread:
            for read in topic.batches(partition, first, last):
                batch = _select_events(read, input_, start, end)
                is_late = (False if allowed is None else batch.late(allowed)) & ~batch.bad
                is_deleted = np.zeros_like(is_late) if input_.is_table else batch.tombstones & ~is_late
                is_old = precedes_spark(batch) & after_1970 & ~(is_late | is_deleted | batch.bad)
                unreadable.extend(_unreadable_outputs(batch.select(batch.bad)))
                before_1970.extend(to_side_outputs(batch.select(is_old), iter([_BEFORE_1970] * int(is_old.sum()))))
                counted += batch.values.num_rows
                late.extend(to_side_outputs(late_batch := batch.select(is_late), _late_reasons(late_batch, allowed)))
                deleted += int(is_deleted.sum())
                is_skipped = np.isin(batch.offsets, skipped_offsets) & ~is_late & ~is_deleted
                left_out += int((is_skipped | is_old | batch.bad).sum())
    return InputAccounting(counted, tuple(late), tuple(unreadable), tuple(before_1970), left_out, deleted)


def _scan_headers(
    frames: Iterator[Frame], range_: tuple[int, int], must_read: Callable[[Frame], bool]
) -> tuple[int, list[tuple[int, int]]]:
    """Returns the number of events that frame headers account for, and the merged offset ranges of all other frames."""
    counted, unread = 0, list[tuple[int, int]]()
    for frame in frames:
        whole = range_[0] <= frame.base_offset and frame.next_offset <= range_[1]
        if whole and not must_read(frame):
            counted += frame.count
        elif unread and unread[-1][1] == frame.base_offset:  # adjacent frames are read in one call
            unread[-1] = (unread[-1][0], frame.next_offset)
        else:
            unread.append((frame.base_offset, frame.next_offset))
    return counted, unread


def _must_read(frame: Frame, input_: Input, allowed: timedelta | None, skipped: list[int], *, after_1970: bool) -> bool:
    """Returns whether the outcome of the frame's events cannot be told from its header."""
    if not frame.count:
        return False
    if input_.ops or frame.columns & _UNREADABLE or (frame.columns & _DELETED and not input_.is_table):
        return True
    if any(frame.base_offset <= offset < frame.next_offset for offset in skipped):
        return True
    if after_1970 and frame.lowest <= 0:
        return True
    # Max event time after the frame: a row can be late only if it is below that minus lateness.
    return allowed is not None and frame.lowest < frame.max_event_time - allowed // _MICROSECOND


def _select_events(batch: LogBatch, input_: Input, start: int, end: int) -> LogBatch:
    """Returns the rows of the range; of a changelog, the changes that are events of this input."""
    mask = (batch.offsets >= start) & (batch.offsets < end)
    if input_.ops:
        mask &= np.isin(np.array(batch.values.column("op").to_pylist()), input_.ops)
    return batch if mask.all() else batch.select(mask)


def _late_reasons(batch: LogBatch, allowed: timedelta | None) -> Iterator[str]:
    border = batch.max_event_times - (allowed or timedelta()) // _MICROSECOND
    for moment, behind in zip(moments_of(border), border - batch.event_times, strict=True):
        yield f"behind {format_moment(moment)} by {behind / 1e6:g} s"


def _unreadable_outputs(batch: LogBatch) -> Iterator[SideOutput]:
    """Yields the messages of a batch that do not match the type, with their bytes."""
    if not batch.values.num_rows:
        return
    errors, raws = (batch.envelope[name].to_pylist() for name in ("_hw.error", "_hw.raw"))
    for offset, received, error, raw in zip(batch.offsets, batch.arrival_times, errors, raws, strict=True):
        text = msgspec.json.encode(raw.decode(errors="replace")).decode()
        at = int(received)
        yield SideOutput(batch.topic.name, batch.partition, int(offset), at, at, text, error, raw)


def to_side_outputs(batch: LogBatch, reasons: Iterator[str], data: bytes = b"") -> Iterator[SideOutput]:
    """Yields the rows of a batch as side outputs, each with its reason."""
    texts = batch.codec.to_json(batch.values)
    rows = zip(batch.offsets, batch.event_times, batch.arrival_times, texts, reasons, strict=True)
    for offset, occurred, received, text, reason in rows:
        yield SideOutput(
            batch.topic.name, batch.partition, int(offset), int(occurred), int(received), text.decode(), reason, data
        )


def read_planned_retries(
    log: TimedLog, built: BuiltQuery, read: Input, planned: PlannedInput, retries: Sequence[RetriedEvent]
) -> Iterator[LogBatch]:
    """Yields the quarantined events that an input takes again in a batch.

    Args:
        log: The log.
        built: The query.
        read: The input.
        planned: What Spark planned for it.
        retries: The events of all requests of the query.
    """
    if planned.retries:
        mine = [one for one in retries if one.topic == read.topic.name]
        positions = [(one.partition, one.offset) for one in mine if planned.retry_before < one.number <= planned.retry]
        visible = built.input_options.visible_rows(read)
        yield from read_retried(log.open_topic(read.topic.name), visible, positions, planned.watermark_before)


class ObservedRows:
    """The metrics that Spark observed in the batch that has just run."""

    def __init__(self, query: Any) -> None:
        self._execution = query._jsq.streamingQuery().lastExecution()

    def _metric(self, name: str) -> Any | None:
        found = self._execution.observedMetrics().get(name)
        return found.get() if found.isDefined() else None

    def __call__(self, name: str) -> int | None:
        """Returns the number of rows of an input; None if Spark did not need to read it."""
        row = self._metric(name)
        return None if row is None else int(row.getLong(0))

    def dropped_rows(self, steps: int) -> int:
        """Returns how many rows Spark's stateful steps dropped because their time was not above the watermark.

        Args:
            steps: The highest possible number of these steps. The search ends when they are found, because every call
                to the JVM costs time in every batch.
        """
        return sum(islice(_metric_values(self._execution.executedPlan(), _DROPPED_ROWS), steps))

    def rejections(self, names: Sequence[str]) -> tuple[Rejection, ...]:
        """Returns the events that operators in Spark rejected."""
        rows = [row for row in map(self._metric, names) if row is not None]
        events = [event for row in rows for event in json.loads(row.json())["events"]]
        return tuple((event[PARTITION], event[OFFSET], event[QUARANTINE_REASON]) for event in events)

    def state_sizes(self, names: Sequence[str]) -> tuple[StateSize, ...]:
        """Returns the state sizes of the key groups that the batch touched in Spark."""
        return tuple(
            replace(one, space=f"{one.space}, in Spark, step {name.rpartition('.')[2]}")
            for name in names
            if (row := self._metric(name)) is not None
            for key_group in row.getList(0)
            for one in msgspec.msgpack.decode(key_group, type=list[StateSize])
        )


def _metric_values(step: Any, name: str) -> Iterator[int]:
    """Yields a metric of a step of an executed plan and of all steps below it that have the metric."""
    metric = step.metrics().get(name)
    if metric.isDefined():
        yield int(metric.get().value())
    for child in scala_items(step.children()):
        yield from _metric_values(child, name)


@dataclass(frozen=True)
class BatchAccounting:
    """The accounting of one batch over all its inputs.

    Args:
        built: The query.
        planned: The offset ranges that Spark planned, by name of the input.
        skipped: Events that earlier runs of the query quarantined.
        log: The log.
        retries: The events of all requests of the query to retry quarantined events.
    """

    built: BuiltQuery
    planned: Mapping[str, PlannedInput]
    skipped: Sequence[SideOutput]
    log: TimedLog
    retries: Sequence[RetriedEvent] = ()
    _known: dict[tuple[object, ...], InputAccounting] = field(default_factory=dict, init=False)

    def reconcile(self, observed: Callable[[str], int | None]) -> None:
        """Compare the number of events in the log with the number that Spark counted.

        Args:
            observed: Returns the number of rows that Spark counted under a name; None if it did not count.

        Raises:
            EngineFailedError: The numbers differ, so Spark has lost events or read them twice.
        """
        for read in self.built.source_inputs:
            counted = observed(read.metric_name) if read.name in self.planned else None
            if counted is None:
                continue
            range_ = self.planned[read.name]
            events = counted - int(range_.watermark > LOWEST_TIME and range_.has_progress)  # without the watermark row
            expected = self._account(read).ready
            if events != expected:
                raise EngineFailedError(
                    f'Spark counts {events} events of "{read.name}" in {self.built.pipeline}, the log {expected}',
                    detail="nothing of this batch was committed; it will run again",
                    pipeline=self.built.pipeline.name,
                )

    def check_dropped_rows(self, dropped: int) -> None:
        """Check that Spark has used every row that was passed to it.

        The watermark is below every event that is not late, so Spark has none to drop.

        Raises:
            RowsDroppedError: Spark has dropped rows.
        """
        if not dropped:
            return
        pipeline, view = self.built.pipeline, self.built.pipeline.kind is PipelineKind.VIEW
        raise RowsDroppedError(
            f"Spark dropped {dropped} rows of {pipeline} that are not late",
            detail="nothing of this batch was committed\n"
            "a step returned rows older than the watermark, or the checkpoint is of a version with a higher watermark",
            fix=f"stop the app; headwater run app.py --rebuild {pipeline.name}" if view else "give it another name",
            location=pipeline.location,
            pipeline=pipeline.name,
            rows=dropped,
        )

    @cached_property
    def accounts(self) -> dict[str, InputAccounting]:
        """The outcome of the events by name of the input."""
        found = {}
        for input_ in self.built.inputs:
            if input_.name in self.planned:
                # A view over views reads every change twice, as the old and as the new row; it counts once.
                whole = self.built.has_weights and input_.row_behaviour is not None and not input_.is_table
                read = replace(input_, ops=("insert", "update", "delete")) if whole else input_
                found[input_.name] = self._account(read)
        return found

    def _account(self, read: Input) -> InputAccounting:
        known = (read.name, read.ops, read.side)
        if known not in self._known:
            options = self.built.input_options
            judged = options.drop_late and not read.is_table
            allowed = timedelta(microseconds=options.lateness(read)) if judged else None
            skipped = {(one.partition, one.offset) for one in self.skipped if one.topic == read.topic.name}
            after_1970 = options.after_1970 and not read.is_table
            account = account_input(self.log, read, self.planned[read.name], allowed, skipped, after_1970=after_1970)
            self._known[known] = replace(account, retried=tuple(self._retried_positions(read)))
        return self._known[known]

    def _retried_positions(self, read: Input) -> Iterator[tuple[int, int]]:
        for batch in read_planned_retries(self.log, self.built, read, self.planned[read.name], self.retries):
            yield from ((batch.partition, int(offset)) for offset in batch.offsets)

    @property
    def retried(self) -> tuple[EventPosition, ...]:
        """The events that leave the quarantine."""
        return tuple(
            (input_.topic.name, *position)
            for input_ in self.built.inputs
            if input_.name in self.accounts
            for position in self.accounts[input_.name].retried
        )

    @property
    def late(self) -> tuple[SideOutput, ...]:
        """The late events of all inputs."""
        return tuple(one for account in self.accounts.values() for one in account.late)

    def input_ranges(self, rejections: Sequence[Rejection] = ()) -> tuple[InputRange, ...]:
        """Returns the inputs as they are recorded in the ledger.

        Args:
            rejections: Events that operators reject. They may belong to an earlier batch, which counted them as used.
        """
        rejected = Counter(number for number, _, _ in _by_position(rejections))
        drops_late = isinstance(self.built.pipeline.late, DropLate)
        found = []
        for number, input_ in enumerate(self.built.inputs):
            if input_.name in self.accounts:
                account, planned = self.accounts[input_.name], self.planned[input_.name]
                late = len(account.late)
                counts = EventCounts(
                    in_=account.in_,
                    used=account.ready - rejected[number],
                    late=0 if drops_late else late,
                    quarantined=account.left_out + rejected[number] - len(account.retried),
                    dropped=account.deleted + (late if drops_late else 0),
                )
                range_ = planned.start, planned.end, counts, planned.retry, planned.watermark
                found.append(InputRange(input_.topic.name, *range_))
        return tuple(found)

    def events_to_quarantine(self, rejections: Sequence[Rejection] = ()) -> tuple[SideOutput, ...]:
        """Returns the events to quarantine: skipped ones that are not late, rejected, unreadable and too old ones."""
        old = [one for account in self.accounts.values() for one in account.before_1970]
        left_out = {(one.topic, one.partition, one.offset) for one in (*self.late, *old)}
        ranges = {i.topic.name: self.planned[i.name] for i in self.built.inputs if i.name in self.planned}
        skipped = [
            one
            for one in self.skipped
            if one.topic in ranges
            and ranges[one.topic].contains(one.partition, one.offset)
            and (one.topic, one.partition, one.offset) not in left_out
        ]
        unreadable = [one for account in self.accounts.values() for one in account.unreadable]
        return (*skipped, *self._read_rejected(rejections), *unreadable, *old)

    def _read_rejected(self, rejections: Sequence[Rejection]) -> Iterator[SideOutput]:
        for (number, partition, offset), reason in _by_position(rejections).items():
            topic = self.log.open_topic(self.built.inputs[number].topic.name)
            for batch in topic.batches(partition, offset, offset + 1):
                yield from to_side_outputs(batch.select(batch.offsets == offset), iter([reason]))

    @property
    def watermark(self) -> int | None:
        """The event time up to which the result is complete; no earlier row appears or changes without notice.

        Rows that Spark emits when they are final come one batch after the watermark has passed them. Rows of a join may
        be older than the watermark by the range of the join.
        """
        return self.complete - self.built.delay if self.complete > LOWEST_TIME else None

    @property
    def complete(self) -> int:
        """The event time up to which all rows have left Spark, in microseconds since 1970."""
        trailing = self.built.lags_one_batch
        return min(r.watermark_before if trailing else r.watermark for r in self.planned.values())


def _by_position(rejections: Sequence[Rejection]) -> dict[tuple[int, int, int], str]:
    """Returns each rejected event once, by number of the input, partition and offset."""
    return {(*split_partition(partition), offset): reason for partition, offset, reason in rejections}
