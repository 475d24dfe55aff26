"""The commands `cat` and `tail`: print a range of a topic, or events as they arrive.

Both resolve positions, apply a condition batch by batch, and print lines for people, or NDJSON of values or
whole events.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import pyarrow as pa
from cyclopts import Parameter

from headwater.cli.formatting import escape, plural
from headwater.cli.options import DEFAULTS, LIMIT, Flag, Options, PositionText, open_client, parse_position
from headwater.cli.output import Output
from headwater.client.consumer import open_reader
from headwater.errors import BadOffsetError, BadSettingError
from headwater.events import key_bytes
from headwater.events.values import format_value
from headwater.log import LogBatch
from headwater.log.reader import TopicReader

if TYPE_CHECKING:
    from headwater.events import Event
    from headwater.log import Start, Topic
    from headwater.log.protocol import Log
    from headwater.sql.filter import Filter

__all__ = ["cat", "tail"]

_FOLLOW_TIMEOUT = 3600.0  # seconds of one wait; then it waits again
_TIMESTAMP = pa.timestamp("us", "UTC")
_HEADERS = pa.map_(pa.string(), pa.string())


@Parameter(name="*")
@dataclass(frozen=True)
class EventSelection:
    """A selection of events, and the form in which they are printed."""

    where: str | None = None
    """Only events that meet a condition, such as "amount > 100" or "headers['tenant'] = 'a'"."""
    partition: int | None = None
    """Only this partition."""
    limit: Annotated[int | None, LIMIT] = None
    """Print at most this many events."""
    envelope: Flag = False
    """Print whole events as CloudEvents documents, with key, times and headers."""


_ALL_EVENTS = EventSelection()


def cat(
    topic: str,
    /,
    *,
    from_: Annotated[PositionText, Parameter(name="--from")] = "earliest",
    to: PositionText = "end",
    selection: EventSelection = _ALL_EVENTS,
    options: Options = DEFAULTS,
) -> int:
    """Print a range of events of a topic.

    In a pipe each line is the value of an event as JSON, which `headwater send` accepts. Events are ordered within each
    partition.

    Args:
        topic: The topic to read.
        from_: Start position: earliest, an offset, a time with zone, or a relative time such as -10m.
        to: End position, exclusive: end, an offset or a time.
        selection: A selection of events.
        options: Options of every command.
    """
    start, stop = parse_position(from_), parse_position(to)
    with open_client(options) as client:
        printer = EventPrinter(Output(options), envelope=selection.envelope)
        for batch in read_batches(client.log, topic, start, stop, selection):
            printer.print_batch(batch)
        printer.close()
    return 0


def tail(
    topic: str,
    /,
    *,
    from_: Annotated[PositionText, Parameter(name="--from")] = "latest",
    selection: EventSelection = _ALL_EVENTS,
    options: Options = DEFAULTS,
) -> int:
    """Follow a topic and print events as they arrive.

    Starts with the next event by default, and runs until Ctrl-C or until --limit is reached.

    Args:
        topic: The topic to follow.
        from_: Start position: latest, earliest, an offset, a time with zone, or a relative time such as -10m.
        selection: A selection of events.
        options: Options of every command.
    """
    output, start = Output(options), parse_position(from_)
    with open_client(options) as client:
        printer = EventPrinter(output, envelope=selection.envelope)
        if output.terminal:
            output.note(f"following {topic}; Ctrl-C ends")
        for batch in read_batches(client.log, topic, start, None, selection):
            printer.print_batch(batch)
    return 0


class EventPrinter:
    """Prints batches of events.

    In a pipe, and with `--json`, a line is the event's value as JSON. With `envelope` it is the whole event as a
    CloudEvents document, which `headwater send` accepts with key, times and headers. On a terminal a line starts with
    event time, position and key.

    Args:
        output: The output of the command.
        envelope: Whether to print whole events in place of values.
    """

    def __init__(self, output: Output, *, envelope: bool) -> None:
        self._output = output
        self._envelope = envelope
        self._tombstones = 0

    def print_batch(self, batch: LogBatch) -> None:
        """Print the events of a batch."""
        if self._envelope:
            self._output.print_lines(msgspec.json.encode(event.cloud_event()) for event in batch.events())
        elif self._output.terminal:
            lines = map(self._format_event, batch.events(), batch.codec.to_json(batch.values))
            self._output.print_text("\n".join(lines))
        else:
            if "_hw.deleted" in batch.envelope:
                self._tombstones += int(np.count_nonzero(batch.tombstones))
                batch = batch.select(~batch.tombstones)
            self._output.print_lines(batch.codec.to_json(batch.values))

    def close(self) -> None:
        """Report tombstones that were left out."""
        if self._tombstones:
            self._output.note(f"{plural(self._tombstones, 'tombstone')} left out; --envelope prints them")

    def _format_event(self, event: Event, value: bytes) -> str:
        key = "" if event.key is None else key_bytes(event.key).decode(errors="replace")
        prefix = f"{format_value(event.occurred_at)}  {event.partition}:{event.offset}  {key}".rstrip()
        late = "  late" if event.late else ""
        text = "deleted" if event.tombstone else event.error or value.decode()
        return f"{self._output.style(escape(prefix), 'dim')}{self._output.style(late, 'yellow')}  {escape(text)}"


def read_batches(
    log: Log, name: str, start: Start, stop: Start | None, selection: EventSelection
) -> Iterator[LogBatch]:
    """Yields the selected events of a topic in batches, ordered within each partition; empty batches are left out.

    Args:
        log: The log.
        name: The topic.
        start: Start position.
        stop: End position, exclusive; None to follow the topic.
        selection: The selection.

    Raises:
        BadFilterError: The condition is not valid for the topic; raised before anything is read.
        BadOffsetError: The topic has no such partition or offset.
    """
    topic = log.topic(name)
    where: Filter | None = None
    if selection.limit is not None and selection.limit < 1:
        raise BadSettingError(f"limit {selection.limit} is less than 1", fix="--limit 10")
    if selection.where is not None:
        from headwater.sql.filter import Filter

        where = Filter(selection.where)
        # Evaluated once over no rows: a mistake in the condition is reported even if the topic is empty.
        where.mask(pa.RecordBatch.from_pylist([], topic.schema), _empty_envelope(topic))
    numbers = _select_partitions(topic, selection.partition)
    with contextlib.closing(open_reader(log, name, start, stop, numbers)) as reader:
        # A reader without an end is followed: `next` waits for new events.
        batches = iter(reader) if stop is not None else _follow(reader)
        yield from _limit_rows(_filter_batches(batches, where), selection.limit)


def _select_partitions(topic: Topic, chosen: int | None) -> list[int]:
    if chosen is None:
        return list(range(topic.partitions))
    if not 0 <= chosen < topic.partitions:
        what = f'topic "{topic.name}" has no partition {chosen}'
        raise BadOffsetError(what, detail=f"it has 0 to {topic.partitions - 1}", partition=chosen)
    return [chosen]


def _follow(reader: TopicReader) -> Iterator[LogBatch]:
    while True:
        yield from reader.next(_FOLLOW_TIMEOUT)


def _filter_batches(batches: Iterator[LogBatch], where: Filter | None) -> Iterator[LogBatch]:
    for batch in batches:
        if not batch.values.num_rows:
            continue  # an idle marker
        if where is None:
            yield batch
            continue
        mask = where.mask(batch.values, _envelope(batch))
        if mask.any():
            yield batch if mask.all() else batch.select(mask)


def _limit_rows(batches: Iterator[LogBatch], limit: int | None) -> Iterator[LogBatch]:
    if limit is None:
        yield from batches
        return
    left = limit
    for batch in batches:
        rows = batch.values.num_rows
        yield batch if rows <= left else batch.select(np.arange(rows) < left)
        left -= rows
        if left <= 0:
            return


def _envelope(batch: LogBatch) -> dict[str, pa.Array]:
    """Returns the columns that a condition may use besides the fields of the value."""
    rows = batch.values.num_rows
    headers = batch.envelope.get("_hw.headers")
    return {
        "key": _keys(batch),
        "partition": pa.array(np.full(rows, batch.partition)),
        "offset": pa.array(batch.offsets),
        "occurred_at": pa.array(batch.event_times).cast(_TIMESTAMP),
        "received_at": pa.array(batch.arrival_times).cast(_TIMESTAMP),
        "headers": pa.nulls(rows, _HEADERS) if headers is None else headers,
        "late": pa.array(batch.late()),
    }


def _keys(batch: LogBatch) -> pa.Array:
    if len(batch.topic.key) == 1:
        return batch.values.column(batch.topic.key[0])
    keys = batch.key_bytes
    if keys is None:
        return pa.nulls(batch.values.num_rows, pa.string())
    return pa.array([None if key is None else key.decode(errors="replace") for key in keys.to_pylist()], pa.string())


def _empty_envelope(topic: Topic) -> dict[str, pa.Array]:
    key = topic.schema.field(topic.key[0]).type if len(topic.key) == 1 else pa.string()
    kinds = {"key": key, "partition": pa.int64(), "offset": pa.int64(), "occurred_at": _TIMESTAMP}
    kinds |= {"received_at": _TIMESTAMP, "headers": _HEADERS, "late": pa.bool_()}
    return {name: pa.nulls(0, kind) for name, kind in kinds.items()}
