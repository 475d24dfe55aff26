"""What became of every event of a batch, found from the log alone, to be compared with what Spark says it used."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import numpy as np
import numpy.typing as npt

from headwater.engine.building.inputs import Input
from headwater.engine.sink.checkpoint import Planned
from headwater.events.values import moment_text, moments_of
from headwater.log import LogBatch
from headwater.log.protocol import TimedLog
from headwater.log.storage.frame import Frame, columns_of
from headwater.store import Aside

__all__ = ["Account", "account", "asides_of"]

_DELETED = columns_of({"_hw.deleted": None})


@dataclass(frozen=True)
class Account:
    """The events of one input of one batch.

    `ready` are those that Spark was given: neither late, nor left out for what they did before, nor tombstones.
    `unreadable` are messages of others that do not fit the topic's type; `left_out` counts them, too.
    """

    in_: int = 0
    late: tuple[Aside, ...] = ()
    unreadable: tuple[Aside, ...] = ()
    left_out: int = 0
    deleted: int = 0

    @property
    def ready(self) -> int:
        """How many events Spark must have counted."""
        return self.in_ - len(self.late) - self.left_out - self.deleted


def account(
    log: TimedLog,
    input_: Input,
    planned: Planned,
    allowed: timedelta | None,
    skipped: Collection[tuple[int, int]],
) -> Account:
    """Count the events of a range; headers tell most of it, and only frames that may hold late rows are read.

    Args:
        log: Where the topic is.
        input_: The input.
        planned: Its range.
        allowed: How late an event may be; None when none is ever late.
        skipped: Partition and offset of rows that are left out.
    """
    late: list[Aside] = []
    unreadable: list[Aside] = []
    counted = left_out = deleted = 0
    for partition, start in planned.start.items():
        mine = [offset for number, offset in skipped if number == partition]
        end = planned.end[partition]
        known, looks = _looked_over(log, input_, partition, (start, end), allowed, mine)
        counted += known
        for first, last in looks:
            for read in log.opened(input_.topic.name).batches(partition, first, last):
                batch = _events(read, input_, start, end)
                behind = _late(batch, allowed) & ~batch.bad
                gone = np.zeros_like(behind) if input_.of_table else batch.deleted & ~behind
                unreadable.extend(_unreadable(batch.select(batch.bad)))
                counted += batch.values.num_rows
                late.extend(asides_of(batch.select(behind), _reasons(batch, behind, allowed)))
                deleted += int(gone.sum())
                left_out += int(((np.isin(batch.offsets, mine) & ~behind & ~gone) | batch.bad).sum())
    return Account(counted, tuple(late), tuple(unreadable), left_out, deleted)


def _looked_over(
    log: TimedLog,
    input_: Input,
    partition: int,
    range_: tuple[int, int],
    allowed: timedelta | None,
    skipped: list[int],
) -> tuple[int, list[tuple[int, int]]]:
    """How many events headers alone account for, and the offsets of all others; neighbours are read in one go."""
    start, end = range_
    counted, looks = 0, list[tuple[int, int]]()
    for frame in log.opened(input_.topic.name).partitions[partition].headers(start, end):
        whole = start <= frame.base_offset and frame.next_offset <= end
        if whole and not _must_look(frame, input_, allowed, skipped):
            counted += frame.count
        elif looks and looks[-1][1] == frame.base_offset:
            looks[-1] = (looks[-1][0], frame.next_offset)
        else:
            looks.append((frame.base_offset, frame.next_offset))
    return counted, looks


def _must_look(frame: Frame, input_: Input, allowed: timedelta | None, skipped: list[int]) -> bool:
    if not frame.count:
        return False
    if input_.ops or (frame.columns & _DELETED and not input_.of_table):
        return True
    if any(frame.base_offset <= offset < frame.next_offset for offset in skipped):
        return True
    return allowed is not None and frame.lowest < frame.running_max - allowed // timedelta(microseconds=1)


def _events(batch: LogBatch, input_: Input, start: int, end: int) -> LogBatch:
    """The rows of the range; of a changelog, the changes that are events of this input."""
    mask = (batch.offsets >= start) & (batch.offsets < end)
    if input_.ops:
        mask &= np.isin(np.array(batch.values.column("op").to_pylist()), input_.ops)
    return batch if mask.all() else batch.select(mask)


def _late(batch: LogBatch, allowed: timedelta | None) -> npt.NDArray[np.bool_]:
    return np.zeros(batch.values.num_rows, bool) if allowed is None else batch.late(allowed)


def _reasons(batch: LogBatch, late: npt.NDArray[np.bool_], allowed: timedelta | None) -> Iterator[str]:
    border = batch.running_max[late] - (allowed or timedelta()) // timedelta(microseconds=1)
    for moment, behind in zip(moments_of(border), border - batch.occurred[late], strict=True):
        yield f"behind {moment_text(moment)} by {behind / 1e6:g} s"


def _unreadable(batch: LogBatch) -> Iterator[Aside]:
    """Messages that cannot be read under the type, as they are kept beside a result: with their bytes."""
    if not batch.values.num_rows:
        return
    errors, raws = (batch.envelope[name].to_pylist() for name in ("_hw.error", "_hw.raw"))
    for offset, received, error, raw in zip(batch.offsets, batch.received, errors, raws, strict=True):
        text = msgspec.json.encode(raw.decode(errors="replace")).decode()
        at = int(received)
        yield Aside(batch.topic.name, batch.partition, int(offset), at, at, text, error, raw)


def asides_of(batch: LogBatch, reasons: Iterator[str], data: bytes = b"") -> Iterator[Aside]:
    """The rows of a batch as they are kept beside a result."""
    texts = batch.codec.to_json(batch.values)
    rows = zip(batch.offsets, batch.occurred, batch.received, texts, reasons, strict=True)
    for offset, occurred, received, text, reason in rows:
        yield Aside(
            batch.topic.name,
            batch.partition,
            int(offset),
            int(occurred),
            int(received),
            text.decode(),
            reason,
            data,
        )
